"""Where the time of a transaction goes, stage by stage, for metrics and benchmarks.

Watches the inputs and effects of a node from outside; the node does not know it. The stages:
`proposal`, from the proposal sent to read back; `events`, from the proposal sent to the events
acknowledged (at the same time); `answers`, from the proposal read back until all nodes have
answered and the events are acknowledged; `commit`, from the verdict sent to the end of the Kafka
transaction; `read_back`, from there to the verdict read back; `total`, all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from coordinator.core.consensus import effects, inputs
from coordinator.core.model.records import (
    TransactionCommitted,
    TransactionProposed,
)
from coordinator.core.model.types import TxnId


class Stages:
    """Times one transaction after the other, and reports each stage in seconds."""

    def __init__(
        self, report: Callable[[str, float], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._report = report
        self._clock = clock
        self._txn: TxnId | None = None
        self._began = self._last = 0.0
        self._token = 0

    def input(self, event: inputs.Input) -> None:
        """Note the stages that end when something comes in."""
        if self._txn is None:
            return
        if isinstance(event, inputs.CommitRead):
            for entry in event.entries:
                self._record_read(entry.record)
        elif isinstance(event, inputs.Written) and event.token == self._token:
            self._report("events", self._clock() - self._began)
        elif isinstance(event, inputs.Ended) and event.token == self._token:
            self._end("commit")

    def effect(self, effect: effects.Effect) -> None:
        """Note the stages that begin or end when something goes out."""
        if isinstance(effect, effects.Append):
            if isinstance(effect.record, TransactionProposed) and effect.record.txn != self._txn:
                self._txn, self._token = effect.record.txn, effect.token
                self._began = self._last = self._clock()
        elif isinstance(effect, effects.Conclude) and effect.token == self._token:
            self._end("answers")

    def _record_read(self, record: object) -> None:
        if isinstance(record, TransactionProposed) and record.txn == self._txn:
            self._end("proposal")
        elif isinstance(record, TransactionCommitted) and record.txn == self._txn:
            self._end("read_back")
            self._report("total", self._clock() - self._began)
            self._txn = None

    def _end(self, stage: str) -> None:
        now = self._clock()
        self._report(stage, now - self._last)
        self._last = now
