"""Finds the state from which a reader of `history` begins: that of now, or one of the past.

The state of now is on `statecontext`. Of the past there are the copies on `snapshots`: the events
of `history` that follow a copy lead from there to any later moment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import Message

from coordinator.core.catalog import state as states
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk
from coordinator.core.catalog.state import LEGACY_OUTCOMES, StateContext, Versioned
from coordinator.core.history.changes import without_outcomes
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.log_reader import (
    BadRecord,
    LogReader,
    base_in,
    decoded,
    read_events,
    stopped,
)
from coordinator.kafka.topics import COMMIT, SNAPSHOTS, STATECONTEXT, topic_name

GROUP = "past-states"
COPIES_TRIED_MAX = 4
"""So many copies are looked at, the newest first: one may not be whole, or not be what it says."""


class PastStates:
    """What a cluster's topics have of its states."""

    def __init__(
        self, bootstrap_servers: str, cluster: str, stopping: threading.Event, bad: BadRecord
    ) -> None:
        self._servers = bootstrap_servers
        self._cluster = cluster
        self._stopping = stopping
        self._bad = bad

    def cas_base(self) -> int | None:
        """Return the CAS of offset 0 of `statecontext`; None: no master has ever been.

        Raises KafkaException.
        """
        with closing(self._open(COMMIT)) as log:
            low, end = log.bounds()
            for found in log.read(low, self._stopping):
                bases = (base_in(message.value()) for message in found.records)
                base = next((base for base in bases if base is not None), None)
                if base is not None or found.position >= end:
                    return base
        raise stopped()

    def now(self, cas_base: int) -> StateContext:
        """Return the state to which `statecontext` leads. Raises KafkaException."""
        state = states.EMPTY
        topic = topic_name(self._cluster, STATECONTEXT)
        zero = Cas(0)
        for events in read_events(
            self._servers,
            topic,
            cas_base=cas_base,
            above_cas=zero,
            at_least_cas=zero,
            bad=self._bad,
            stopping=self._stopping,
        ):
            kept = ((e.mutation, e.cas) for e in without_outcomes(events))
            state = states.evolve(state, kept)
        if self._stopping.is_set():
            raise stopped()
        return state

    def copy_below(self, cas: Cas) -> StateContext | None:
        """Return the newest state at or below a CAS of which there is a copy.

        Raises KafkaException.
        """
        with closing(self._open(SNAPSHOTS)) as log:
            wanted = cas
            for _ in range(COPIES_TRIED_MAX):
                last = self._last_chunk(log, wanted)
                if last is None:
                    return None
                found = self._whole(log, self._first_above(log, Cas(last.cas - 1)), last)
                if found is not None:
                    return found
                wanted = Cas(last.cas - 1)
        return None

    def _open(self, name: str) -> LogReader:
        return LogReader(self._servers, topic_name(self._cluster, name), GROUP)

    def _last_chunk(self, log: LogReader, cas: Cas) -> SnapshotChunk | None:
        """Return the last chunk of those that begin the topic, up to the first above a CAS."""
        low, _ = log.bounds()
        beyond = self._first_above(log, cas)
        while beyond > low:
            beyond = Offset(beyond - 1)
            message = log.first(beyond, self._stopping)
            for chunk in self._chunks([message] if message is not None else []):
                return chunk
        return None

    def _first_above(self, log: LogReader, cas: Cas) -> Offset:
        """Return the offset of the first chunk of a copy above a CAS, else where the topic ends.

        Copies ascend with the offset, unless two nodes have written at once: then an older copy is
        found, and more is read from the history.
        """
        low, high = log.bounds()
        while low < high and not self._stopping.is_set():
            middle = Offset((low + high) // 2)
            message = log.first(middle, self._stopping)
            if message is None or any(c.cas > cas for c in self._chunks([message])):
                high = middle
            else:
                low = Offset(int(message.offset() or 0) + 1)
        return low

    def _whole(self, log: LogReader, begin: Offset, last: SnapshotChunk) -> StateContext | None:
        """Return the copy of this chunk, None if it is not whole or not what it says."""
        assembly = Assembly(last.copy)
        held: list[tuple[str, Versioned]] = []
        for found in log.read(begin, self._stopping):
            for chunk in self._chunks(found.records):
                held += assembly.add(chunk)
            if assembly.is_whole:
                state = states.restore(last.cas, held)
                return _plain(state) if state.digest == last.digest else None
            if found.at_end:
                return None
        raise stopped()

    def _chunks(self, messages: Iterable[Message]) -> Iterable[SnapshotChunk]:
        return (chunk for _, chunk in decoded(messages, SnapshotChunk, self._bad))


def _plain(state: StateContext) -> StateContext:
    """Return a state without what older versions kept in it besides: no log tells of that."""
    old = [key for key in state.entities if key.startswith(LEGACY_OUTCOMES)]
    return states.without(state, old) if old else state
