"""Follows `history`: whole transactions as they are committed, from any CAS on.

For those who read the log themselves, and not through a node. Nobody is told what happens here: no
consumer group is joined, and nothing is written. All of it blocks, in the thread that asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import Joining
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.history_log import END_WAIT_S, HistoryLog
from coordinator.kafka.log_reader import BadRecord, LogReader, decoded
from coordinator.kafka.past_states import PastStates
from coordinator.kafka.readers import FETCH_WAIT_MS, written_end
from coordinator.kafka.topics import COMMIT, HISTORY, SNAPSHOTS, STATECONTEXT, topic_name

NEEDED = (COMMIT, HISTORY, SNAPSHOTS, STATECONTEXT)
"""The topics that are read."""

GROUP = "history-tail"
POLL_S = 0.002
CALL_TIMEOUT_S = 1.0
BUFFER_KBYTES = 2_048

Transaction = tuple[Event, ...]


class Gone(Exception):
    """What is asked for is no longer there; `oldest` is the first CAS that is."""

    def __init__(self, oldest: Cas) -> None:
        super().__init__(f"the history begins with CAS {oldest}")
        self.oldest = oldest


class LogReplaced(Exception):
    """The topic ends before the place up to which it has been read: it is another log."""


class Found(NamedTuple):
    """What one wait for the log has brought."""

    transactions: list[Transaction]
    at_end: bool
    """There was no more at this moment."""


class HistoryTail:
    """One connection to a cluster's `history`. The caller closes it, also where a call fails."""

    def __init__(
        self, bootstrap_servers: str, cluster: str, stopping: threading.Event, bad: BadRecord
    ) -> None:
        self._servers = bootstrap_servers
        self._cluster = cluster
        self._stopping = stopping
        self._bad = bad
        self._states = PastStates(bootstrap_servers, cluster, stopping, bad)
        self._log = LogReader(
            bootstrap_servers,
            topic_name(cluster, HISTORY),
            GROUP,
            **{"fetch.wait.max.ms": FETCH_WAIT_MS, "queued.max.messages.kbytes": BUFFER_KBYTES},
        )
        self._base: int | None = None
        self._newest = Cas(0)
        self.position: Offset | None = None
        """All transactions below this offset were handed over; None: nothing was looked at yet."""

    def close(self) -> None:
        self._log.close()

    # -- where to begin ----------------------------------------------------------------------

    def state_now(self) -> StateContext:
        """Return the newest state. Raises KafkaException."""
        base = self._cas_base()
        return states.EMPTY if base is None else self._states.now(base)

    def state_below(self, cas: Cas) -> StateContext:
        """Return a state at or below a CAS from which the history leads on.

        Raises Gone, KafkaException.
        """
        copy = self._states.copy_below(cas) if cas else None
        state = copy if copy is not None else states.EMPTY
        with closing(self._history()) as log:
            if state.cas >= log.leads_on_from(self.newest()):
                return state
        newest = self.state_now()
        if newest.cas <= cas:
            return newest
        raise Gone(self._oldest())

    def _oldest(self) -> Cas:
        with closing(self._history()) as log:
            return log.oldest(self.newest())

    def _history(self) -> HistoryLog:
        return HistoryLog(self._servers, self._cluster, self._stopping, self._bad)

    def newest(self) -> Cas:
        """Return a CAS that all committed events are at or below. Raises KafkaException.

        An event has the CAS of its place on `statecontext`: what is beyond its end, nobody has
        committed.
        """
        base = self._cas_base()
        if base is not None:
            end = self._log.end_of(topic_name(self._cluster, STATECONTEXT), CALL_TIMEOUT_S)
            self._newest = Cas(max(self._newest, base + end - 1))
        return self._newest

    def _is_written(self, cas: Cas) -> bool:
        """Tell whether `statecontext` has a record for a CAS, committed or not.

        Raises KafkaException.
        """
        base = self._cas_base()
        topic = topic_name(self._cluster, STATECONTEXT)
        return base is not None and cas < base + written_end(self._servers, topic, CALL_TIMEOUT_S)

    def _cas_base(self) -> int | None:
        if self._base is None:
            self._base = self._states.cas_base()
        return self._base

    # -- following ---------------------------------------------------------------------------

    def follow(self, cas: Cas, position: Offset | None = None) -> Iterator[Found]:
        """Yield the transactions above a CAS, which ends one, for ever; also that none came.

        `position` is where an earlier connection had come to. Raises Gone, LogReplaced,
        KafkaException.
        """
        begin = self.begin(cas, position)
        self.position = begin
        joining = Joining(cas)
        for found in self._log.follow(begin, self._stopping):
            whole = [*self._joined(joining, found.records)]
            if not joining.is_open:
                self.position = found.position
            yield Found(whole, found.at_end)

    def begin(self, cas: Cas, position: Offset | None = None) -> Offset:
        """Return from which offset on there is all above a CAS: `position`, or a place that is
        looked for, which takes a while. Raises Gone, LogReplaced, KafkaException.
        """
        if position is not None:
            low, end = self._log.bounds()
            if position > end:
                text = f"history was read up to offset {position}, but ends at {end}"
                raise LogReplaced(f"{text}: the log was lost or replaced")
            if position >= low:
                return position
        with closing(self._history()) as log:
            newest = self.newest()
            place = log.place_above(cas, newest)
            # What comes next may have left the topic since the state was found.
            if cas < log.leads_on_from(newest):
                raise Gone(log.oldest(newest))
            return place

    def _joined(self, joining: Joining, messages: list[Message]) -> Iterator[Transaction]:
        patience_s = time.monotonic() + END_WAIT_S
        for message, event in decoded(messages, Event, self._bad):
            if event.cas > self._newest and not self._is_committed(event.cas, patience_s):
                self._bad(message, f"no master has committed CAS {event.cas}")
                continue
            whole = joining.add(event)
            if joining.torn is not None:
                self._bad(message, f"transaction {joining.torn} is not whole")
            if whole is not None:
                yield whole

    def _is_committed(self, cas: Cas, until_s: float) -> bool:
        """Tell whether there is an event of this CAS, when the markers of its transaction have come
        everywhere: they become visible partition by partition.

        Raises KafkaException where nobody can tell yet: the next connection reads it again.
        """
        while self.newest() < cas:
            if self._stopping.is_set():
                return False
            if time.monotonic() > until_s:
                if self._is_written(cas):
                    text = f"statecontext has CAS {cas}, and does not show it yet"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
                return False
            self._stopping.wait(POLL_S)
        return True
