"""The sources of the StateContext on Kafka: `statecontext`, `history`, and copies on `snapshots`.

All are read with read_committed, by a consumer of their own, in the thread that asks. A record that
cannot be decoded is told of and passed over: whether what is left is right, the digest decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from enum import Enum
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from coordinator import codec
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk, chunks
from coordinator.core.catalog.state import StateContext, Versioned, restore
from coordinator.core.consensus.full_sync import COMPACTED, COPY, HISTORY
from coordinator.core.model.records import Event
from coordinator.kafka import topics
from coordinator.kafka.readers import (
    END_WAIT_MS,
    available,
    bounds,
    consumer,
    passing,
    read_events,
)
from coordinator.kafka.settings import plain_settings
from schemas.registry import SchemaError

Bad = Callable[[Message, str], None]

TAIL_WAIT_S = 5.0
"""So long the last events of `history` may take to become visible after their verdict."""

WRITE_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 60.0
"""A copy that is not there whole by then is not there."""


class SnapshotLost(Exception):
    """A copy is not on the topic as it was written; the message says how."""


class Pause(Enum):
    """Nothing comes: all that a partition has was read, or the broker has not answered yet."""

    END = "end"
    IDLE = "idle"


class Batch(NamedTuple):
    """A part of a source: entities as a copy has them, or events in order."""

    held: tuple[tuple[str, Versioned], ...] = ()
    events: tuple[Event, ...] = ()


class Sources:
    """What one cluster's topics say of its state."""

    def __init__(
        self, bootstrap_servers: str, cluster: str, stopping: threading.Event, bad: Bad
    ) -> None:
        self._servers = bootstrap_servers
        self._stopping = stopping
        self._bad = bad
        self._names = {
            name: topics.topic_name(cluster, name)
            for name in (topics.STATECONTEXT, topics.HISTORY, topics.SNAPSHOTS)
        }

    def read(
        self, source: str, *, cas_base: int, at_least: int, offset: int, copy: int
    ) -> Iterator[Batch]:
        """Yield what a source has: see `core.full_sync`. Raises KafkaException, SnapshotLost."""
        if source == COMPACTED:
            for events in self.events(cas_base, 0, at_least):
                yield Batch(events=events)
        elif source == HISTORY:
            yield from self._tail(0, at_least)
        else:
            cas = 0
            for chunk, held in self._copy(copy, offset):
                cas = chunk.cas
                yield Batch(held=held)
            if source != COPY:
                yield from self._tail(cas, at_least)

    def events(self, cas_base: int, above: int, at_least: int) -> Iterator[tuple[Event, ...]]:
        """Yield the events of `statecontext` above a CAS, to its end. Raises KafkaException."""
        batches = read_events(
            self._servers,
            self._names[topics.STATECONTEXT],
            cas_base=cas_base,
            above_cas=above,
            at_least_cas=at_least,
            stopping=self._stopping,
            bad=self._bad,
        )
        return map(tuple, batches)

    # -- copies ------------------------------------------------------------------------------

    def write_copy(self, copy: int, state: StateContext) -> int:
        """Write a copy of the state, read it back, and return the offset at which it begins.

        Raises KafkaException, SnapshotLost.
        """
        producer = Producer(plain_settings(self._servers, **{"enable.idempotence": True}))
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is not None:
                failures.append(error)
            else:
                offsets.append(message.offset())

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
        entities = (pair for _, held in self._copy(copy, offsets[0]) for pair in held)
        found = restore(state.cas, entities)
        if found.digest != state.digest:
            raise SnapshotLost(f"it was read back with the digest {found.digest:032x}")
        return offsets[0]

    def _copy(
        self, copy: int, offset: int
    ) -> Iterator[tuple[SnapshotChunk, tuple[tuple[str, Versioned], ...]]]:
        """Yield the chunks of a copy with their entities, to its last. Raises SnapshotLost."""
        assembly = Assembly(copy)
        deadline_s = time.monotonic() + READ_TIMEOUT_S
        topic = self._names[topics.SNAPSHOTS]
        with closing(_Records(self._servers, topic, self._bad)) as records:
            for message in records.read(offset, self._stopping):
                if isinstance(message, Pause):
                    if time.monotonic() > deadline_s:
                        break
                    continue
                chunk = self._decoded(message, SnapshotChunk)
                if chunk is None or chunk.copy != copy:
                    continue
                deadline_s = time.monotonic() + READ_TIMEOUT_S
                held = assembly.take(chunk)
                if held or assembly.is_whole:
                    yield chunk, held
                if assembly.is_whole:
                    return
        raise SnapshotLost(f"the copy {copy} is not whole")

    def _decoded(self, message: Message, kind: type) -> Any:
        value: Any = message.value()
        try:
            record = codec.decode(value or b"")
        except SchemaError as error:
            self._bad(message, str(error))
            return None
        if not isinstance(record, kind):
            self._bad(message, f"{type(record).__name__} does not belong here")
            return None
        return record

    # -- history -----------------------------------------------------------------------------

    def _tail(self, above: int, at_least: int) -> Iterator[Batch]:
        """Yield the events of `history` above a CAS, to its last stable offset and to `at_least`.

        The markers of a transaction become visible partition by partition, so the last events may
        take a moment longer than their verdict.
        """
        topic = self._names[topics.HISTORY]
        with closing(_Records(self._servers, topic, self._bad)) as records:
            begin, seen = self._first_above(records, above), above
            deadline_s = time.monotonic() + TAIL_WAIT_S
            found: list[Event] = []
            for message in records.read(begin, self._stopping):
                if isinstance(message, Pause):
                    if found:
                        yield Batch(events=tuple(found))
                        found = []
                    whole = message is Pause.END and seen >= at_least
                    if whole or time.monotonic() > deadline_s:
                        return
                    continue
                event = self._decoded(message, Event)
                if event is not None and event.cas > above:
                    found.append(event)
                    seen = max(seen, event.cas)
                    deadline_s = time.monotonic() + TAIL_WAIT_S

    def _first_above(self, records: _Records, cas: int) -> int:
        """Return an offset of `history` before which all events are at or below a CAS.

        CAS ascend with the offset, so the place is found by bisection.
        """
        low, high = records.bounds()
        if not cas:
            return low
        while low < high and not self._stopping.is_set():
            middle = (low + high) // 2
            message = records.first(middle, self._stopping)
            if message is None:
                high = middle
                continue
            event = self._decoded(message, Event)
            if event is not None and event.cas > cas:
                high = middle
            else:
                low = int(message.offset() or 0) + 1
        return low


class _Records:
    """The records of one partition, from any offset on."""

    def __init__(self, bootstrap_servers: str, topic: str, bad: Bad) -> None:
        settings = {"enable.partition.eof": True, "fetch.wait.max.ms": END_WAIT_MS}
        self._reader: Consumer = consumer(bootstrap_servers, "sources", **settings)
        self._topic = topic

    def close(self) -> None:
        self._reader.close()

    def bounds(self) -> tuple[int, int]:
        """Return the first offset and the last stable one."""
        return bounds(self._reader, TopicPartition(self._topic, 0))

    def read(self, offset: int, stopping: threading.Event) -> Iterator[Message | Pause]:
        """Yield records from `offset` on, and why nothing comes where nothing does."""
        self._reader.assign([TopicPartition(self._topic, 0, offset)])
        while not stopping.is_set():
            found = available(self._reader)
            for message in found:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    yield Pause.END
                elif not passing(error):
                    raise KafkaException(error)
            if not found:
                yield Pause.IDLE

    def first(self, offset: int, stopping: threading.Event) -> Message | None:
        """Return the first record at or above `offset`, None if there is none."""
        found = (one for one in self.read(offset, stopping) if one is not Pause.IDLE)
        first = next(found, Pause.END)
        return None if isinstance(first, Pause) else first
