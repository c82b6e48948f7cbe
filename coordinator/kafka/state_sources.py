"""The sources of the StateContext on Kafka: `statecontext`, `history`, and copies on `snapshots`.

A consumer made for this reads them with read_committed, in the thread that asks. It reports a
record that cannot be decoded, and reads on. The digest of the result shows whether something is
missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk, chunks
from coordinator.core.catalog.state import StateContext, Versioned, restore
from coordinator.core.consensus.full_sync import COMPACTED, COPY, HISTORY
from coordinator.core.model import digest as digests
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka import topics
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.history_archive import HistoryArchive, history_reader
from coordinator.kafka.log_reader import BadRecord, Kind, LogReader, decoded, read_events
from coordinator.kafka.settings import plain_settings

GROUP = "sources"

TAIL_WAIT_S = 5.0
"""So long the last events of `history` may take to become visible after their verdict."""

WRITE_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0
"""A copy that is not there whole by then is not there."""


class SnapshotLost(Exception):
    """A copy is not on the topic as it was written; the message says how."""


class Batch(NamedTuple):
    """A part of a source: entities as a copy has them, or events in order."""

    held: tuple[tuple[str, Versioned], ...] = ()
    events: tuple[Event, ...] = ()


class Sources:
    """What one cluster's topics say of its state."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        stopping: threading.Event,
        bad: BadRecord,
        archive: HistoryArchive | None = None,
    ) -> None:
        """`archive` has what `history` has no more."""
        self._servers, self._cluster = bootstrap_servers, cluster
        self._archive = archive
        self._stopping = stopping
        self._bad = bad
        self._names = {
            name: topics.topic_name(cluster, name)
            for name in (topics.STATECONTEXT, topics.SNAPSHOTS)
        }

    def read(
        self, source: str, *, cas_base: int, at_least: Cas, offset: Offset, copy: int
    ) -> Iterator[Batch]:
        """Yield what a source has: see `core.full_sync`.

        Raises KafkaException, SnapshotLost, ArchiveError.
        """
        if source == COMPACTED:
            for events in self.events(cas_base, Cas(0), at_least):
                yield Batch(events=events)
        elif source == HISTORY:
            yield from self._tail(Cas(0), at_least)
        else:
            cas = Cas(0)
            for chunk, held in self._copy(copy, offset):
                cas = chunk.cas
                yield Batch(held=held)
            if source != COPY:
                yield from self._tail(cas, at_least)

    def events(self, cas_base: int, above: Cas, at_least: Cas) -> Iterator[tuple[Event, ...]]:
        """Yield the events of `statecontext` above a CAS, to its end. Raises KafkaException.

        What a backup brought stands where later events could stand, with a CAS of its own.
        """
        batches = read_events(
            self._servers,
            self._names[topics.STATECONTEXT],
            cas_base=cas_base,
            above_cas=above,
            at_least_cas=at_least,
            stopping=self._stopping,
            bad=self._bad,
        )
        for batch in batches:
            if found := tuple(event for event in batch if event.cas > above):
                yield found

    # -- copies ------------------------------------------------------------------------------

    def write_copy(self, copy: int, state: StateContext) -> int:
        """Write a copy of the state, read it back, and return the offset at which it begins.

        Raises KafkaException, SnapshotLost.
        """
        producer = Producer(plain_settings(self._servers, **{"enable.idempotence": True}))
        offsets: list[Offset] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(offset_of(message))

        topic = self._names[topics.SNAPSHOTS]
        key = str(copy).encode()
        for chunk in chunks(copy, state):
            if self._stopping.is_set():
                break
            producer.produce(topic, codec.encode(chunk), key, partition=0, on_delivery=delivered)
            # One after the other: what is in memory twice is a chunk, and not the whole state.
            left = producer.flush(WRITE_TIMEOUT_S)
            if failures or left:
                raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
        if not offsets:
            raise SnapshotLost("nothing of it was written")
        if offsets[0] == UNKNOWN:
            raise SnapshotLost("where it begins is not known")
        found = self.read_copy(copy, offsets[0])
        if found.digest != state.digest:
            raise SnapshotLost(f"it was read back with the digest {found.digest:032x}")
        return offsets[0]

    def read_copy(self, copy: int, offset: Offset) -> StateContext:
        """Return the state of which a copy begins at an offset of `snapshots`.

        Raises KafkaException, SnapshotLost: it is not there, or is not what it says.
        """
        entities: list[tuple[str, Versioned]] = []
        head = Cas(0), digests.EMPTY
        for chunk, held in self._copy(copy, offset):
            head = chunk.cas, chunk.digest
            entities += held
        found = restore(head[0], entities)
        if found.digest != head[1]:
            raise SnapshotLost(f"it was read back with the digest {found.digest:032x}")
        return found

    def _copy(
        self, copy: int, offset: Offset
    ) -> Iterator[tuple[SnapshotChunk, tuple[tuple[str, Versioned], ...]]]:
        """Yield the chunks of a copy with their entities, to its last. Raises SnapshotLost."""
        assembly = Assembly(copy)
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        topic = self._names[topics.SNAPSHOTS]
        with closing(LogReader(self._servers, topic, GROUP)) as log:
            for found in log.read(offset, self._stopping):
                for chunk in self._decoded(found.records, SnapshotChunk):
                    if chunk.copy != copy:
                        continue
                    deadline_s = time.monotonic() + READ_TIMEOUT_S
                    held = assembly.add(chunk)
                    if held or assembly.is_whole:
                        yield chunk, held
                    if assembly.is_whole:
                        return
                if time.monotonic() > deadline_s:
                    break
        raise SnapshotLost(f"the copy {copy} is not whole")

    def _decoded(self, messages: Iterable[Message], kind: type[Kind]) -> Iterator[Kind]:
        """Yield the records of one kind; what is none of it is told of and passed over."""
        return (record for _, record in decoded(messages, kind, self._bad))

    # -- history -----------------------------------------------------------------------------

    def _tail(self, above: Cas, at_least: Cas) -> Iterator[Batch]:
        """Yield the events of `history` above a CAS, to its last stable offset and to `at_least`.

        The markers of a transaction become visible partition by partition, so the last events may
        take a moment longer than their verdict.
        """
        with closing(history_reader(self._servers, self._cluster, GROUP, self._archive)) as log:
            begin, seen = self._first_above(log, above), above
            deadline_s = time.monotonic() + TAIL_WAIT_S
            for found in log.read(Offset(begin), self._stopping):
                events = [e for e in self._decoded(found.records, Event) if e.cas > above]
                if events:
                    seen = max(seen, *(event.cas for event in events))
                    deadline_s = time.monotonic() + TAIL_WAIT_S
                    yield Batch(events=tuple(events))
                whole = found.at_end and seen >= at_least
                if whole or time.monotonic() > deadline_s:
                    return

    def _first_above(self, log: LogReader, cas: Cas) -> int:
        """Return an offset of `history` before which all events are at or below a CAS.

        CAS ascend with the offset, so the place is found by bisection.
        """
        low, high = log.bounds()
        if not cas:
            return low
        while low < high and not self._stopping.is_set():
            middle = Offset((low + high) // 2)
            message = log.first(middle, self._stopping)
            if message is None or any(e.cas > cas for e in self._decoded([message], Event)):
                high = middle
            else:
                low = Offset(int(message.offset() or 0) + 1)
        return low
