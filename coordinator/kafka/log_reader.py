"""Reads one partition from an offset on: record by record, to its end, or the events of the state.

It reads only committed records, by a consumer that is made for this and closed afterwards, in the
thread that asks.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator import codec
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import ClusterFormed, Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka import readers
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.settings import EVENT_HEADER
from coordinator.kafka.stall_detector import StallDetector
from schemas.registry import SchemaError

Kind = TypeVar("Kind")
Answer = TypeVar("Answer")

END_WAIT_MS = 5
"""The broker tells the end of a partition after this wait."""

END_LOST_S = 5.0
SILENCE_S = 60.0

BadRecord = Callable[[Message, str], None]
"""Is told of a record that cannot be decoded, and why."""


class Read(NamedTuple):
    """What one wait for a partition brought, and how far it is read now."""

    records: list[Message]
    position: Offset
    """All below this offset is read."""
    at_end: bool
    """The broker said that there is no more; silence does not say so."""


def stopped() -> KafkaException:
    """What is raised where a reading was stopped: half an answer would be a wrong one."""
    return KafkaException(KafkaError(KafkaError._DESTROY, "this node is stopping"))


def ignore(_: Message, __: str) -> None:
    """Pass over a record that does not belong: whoever follows the topic tells of it."""


def decoded(
    messages: Iterable[Message], kind: type[Kind], bad: BadRecord = ignore
) -> Iterator[tuple[Message, Kind]]:
    """Yield the records of one kind, each with its message; `bad` is told of all else."""
    for message in messages:
        try:
            record = codec.decode(message.value() or b"")
        except SchemaError as error:
            bad(message, str(error))
            continue
        if isinstance(record, kind):
            yield message, record
        else:
            bad(message, f"{type(record).__name__} does not belong here")


def is_end(error: KafkaError) -> bool:
    """Tell whether this only says that a partition was read to its end."""
    return bool(error.code() == KafkaError._PARTITION_EOF)


class LogReader:
    """A consumer of partition 0 of a topic. The caller closes it.

    Where a question or a reading fails, the next one has a new client. One that asks a leader that
    hangs may not recover; and one did not for minutes after the only broker was started again.
    """

    def __init__(self, bootstrap_servers: str, topic: str, group: str, **more: Any) -> None:
        """`more` is for the client."""
        settings = {"enable.partition.eof": True, "fetch.wait.max.ms": END_WAIT_MS, **more}
        self._make = partial(readers.consumer, bootstrap_servers, group, **settings)
        self._consumer = self._make()
        self._topic = topic
        self._has_failed = False

    def close(self) -> None:
        self._consumer.close()

    def bounds(self) -> tuple[Offset, Offset]:
        """Return the first offset and the last stable one. Raises KafkaException."""
        return self.topic_bounds()

    def topic_bounds(self) -> tuple[Offset, Offset]:
        """Return those of the topic itself, whatever else is read. Raises KafkaException."""
        return self._ask(lambda reader: readers.bounds(reader, TopicPartition(self._topic, 0)))

    def _ask(self, question: Callable[[Consumer], Answer]) -> Answer:
        """Ask with a client that has not failed yet. Raises KafkaException."""
        reader = self._client()
        try:
            return question(reader)
        except KafkaException:
            self._has_failed = True
            raise

    def _client(self) -> Consumer:
        """Return a client that has not failed yet."""
        if self._has_failed:
            self._consumer.close()
            self._consumer = self._make()
            self._has_failed = False
        return self._consumer

    def follow(self, offset: Offset, stopping: threading.Event) -> Iterator[Read]:
        """Yield what comes from `offset` on, for ever. Raises KafkaException, also where the
        client has stalled: it must be closed then, and another one be made."""
        return self.read(offset, stopping, stalls=StallDetector(self._client()))

    def end_of(self, topic: str, timeout_s: float) -> Offset:
        """Return the last stable offset of another topic. Raises KafkaException."""
        place = TopicPartition(topic, 0)
        return self._ask(lambda reader: readers.bounds(reader, place, timeout_s))[1]

    def offset_at(self, at_ms: int) -> Offset:
        """Return the first offset that was written at a time or later, else where the log ends.

        Raises KafkaException.
        """
        asked = TopicPartition(self._topic, 0, at_ms)
        (found,) = self._ask(lambda reader: reader.offsets_for_times([asked], readers.POLL_S * 25))
        return self.bounds()[1] if found.offset < 0 else Offset(found.offset)

    def read(
        self,
        offset: Offset,
        stopping: threading.Event | None = None,
        patience_s: float = math.inf,
        stalls: StallDetector | None = None,
    ) -> Iterator[Read]:
        """Yield what comes from `offset` on, also where nothing comes.

        Raises KafkaException, also when Kafka says nothing for `patience_s`, not even that the
        topic ends; and what `stalls` raises, which whoever reads for ever gives.
        """
        place = TopicPartition(self._topic, 0, offset)
        reader = self._client()
        reader.assign([place])
        if stalls is not None:
            stalls.assigned([place])
        position, at_end = offset, False
        heard_s = time.monotonic()
        while stopping is None or not stopping.is_set():
            records: list[Message] = []
            for message in readers.available(reader):
                error = message.error()
                if stalls is not None and (error is None or is_end(error)):
                    stalls.note(message)
                if error is None:
                    records.append(message)
                    position, at_end = Offset(max(position, int(message.offset() or 0) + 1)), False
                elif is_end(error):
                    # Only this steps over the markers of transactions at the end.
                    position, at_end = Offset(max(position, int(message.offset() or 0))), True
                elif not passes_by_itself(error):
                    self._has_failed = True
                    raise KafkaException(error)
            if stalls is not None:
                stalls.check()
            if records or at_end:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > patience_s:
                self._has_failed = True
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{self._topic} is silent"))
            yield Read(records, position, at_end)

    def first(
        self, offset: Offset, stopping: threading.Event, patience_s: float = SILENCE_S
    ) -> Message | None:
        """Return the first record at or above `offset`, None if there is none.

        Raises KafkaException, also when Kafka says nothing for so long.
        """
        for found in self.read(offset, stopping, patience_s):
            if found.records:
                return found.records[0]
            if found.at_end:
                break
        return None


def read_to_end(
    bootstrap_servers: str, topic: str, group: str, *, last: int | None = None
) -> Iterator[Message]:
    """Yield the records of partition 0 up to where it ends now, or only the `last` ones.

    Raises KafkaException, also when nothing is heard for `SILENCE_S`.
    """
    with closing(LogReader(bootstrap_servers, topic, group)) as log:
        low, end = log.bounds()
        begin = Offset(low if last is None else max(low, end - last))
        for found in log.read(begin, patience_s=SILENCE_S):
            yield from found.records
            if found.at_end:
                return


def read_events(
    bootstrap_servers: str,
    topic: str,
    *,
    cas_base: int,
    above_cas: Cas,
    at_least_cas: Cas,
    bad: BadRecord,
    stopping: threading.Event | None = None,
) -> Iterator[Sequence[Event]]:
    """Yield batches of the events of `statecontext` above a CAS, up to its last stable offset.

    Reads until the last stable offset lies beyond `at_least_cas`, measures it again, and reads up
    to that: the markers of one transaction become visible partition by partition. A topic that ends
    before and does not go on for `END_LOST_S` has lost its end: what it has must do. A record that
    is no event is passed over, after `bad` was told. Raises KafkaException.
    """
    with closing(LogReader(bootstrap_servers, topic, "synchronise")) as log:
        low, end = log.bounds()
        position = max(low, above_cas - cas_base + 1)
        target, measured_again = max(end, at_least_cas - cas_base + 1), False
        heard_s, at_end = time.monotonic(), position >= end
        reads = log.read(Offset(position), stopping)
        while stopping is None or not stopping.is_set():
            if position >= target:
                if measured_again:
                    return
                target, measured_again = max(target, log.bounds()[1]), True
                continue
            if at_end and time.monotonic() - heard_s > END_LOST_S:
                return
            found = next(reads, None)
            if found is None:
                return
            position, at_end = found.position, found.at_end
            if found.records:
                heard_s = time.monotonic()
                if batch := _events(found.records, cas_base, bad):
                    yield batch


def _events(records: Sequence[Message], cas_base: int, bad: BadRecord) -> list[Event]:
    events = []
    for message in records:
        try:
            events.append(decode_event(message, cas_base))
        except SchemaError as problem:
            bad(message, str(problem))
    return events


def decode_event(message: Message, cas_base: int) -> Event:
    """Return the event that a record of `statecontext` carries, with its CAS.

    The offset tells the CAS. Only what a backup brought carries one, which is below that. Raises
    SchemaError.
    """
    value: Any = message.value()
    if value is None:
        headers: dict[str, Any] = dict(message.headers() or ())
        value = headers.get(EVENT_HEADER, b"")
    event = codec.decode(value)
    if not isinstance(event, Event):
        raise SchemaError("bad_body", f"an Event belongs here, not {type(event).__name__}")
    cas = Cas(cas_base + int(message.offset() or 0))
    return event if 0 < event.cas < cas else replace(event, cas=cas)


def base_in(value: Any) -> int | None:
    """Return the base of all CAS that a record of `commit` carries, if it does."""
    try:
        record = codec.decode(value or b"")
    except Exception:
        return None  # Whatever it is: the nodes read the topic too, and say so.
    if isinstance(record, ClusterFormed):
        return record.cas_base
    snapshot = getattr(record, "snapshot", None)
    return snapshot.cas_base if isinstance(snapshot, AuthorityState) else None
