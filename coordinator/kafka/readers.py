"""Readers on confluent-kafka: consumers with assigned offsets, and a thread that reads a tail.

All read committed records only. No consumer resets its offset by itself: if the log does not have
an offset, the caller gets an error. Records are passed on raw.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from coordinator.core.model.types import Offset
from coordinator.kafka.address import client_settings
from coordinator.kafka.broken_batches import SteppingConsumer
from coordinator.kafka.errors import may_pass, passes_by_itself
from coordinator.kafka.settings import RECONNECT_BACKOFF_MS_MAX, SOCKET_TIMEOUT_MS
from coordinator.kafka.stall_detector import SILENCE_S
from coordinator.kafka.topics import MESSAGE_BYTES_MAX

BEGINNING, END = -2, -1
"""Begin at the first offset of a partition, or at its end: `OFFSET_BEGINNING`, `OFFSET_END`."""

POLL_S = 0.2
BATCH_MAX = 1_000
FETCH_WAIT_MS = 100
TAIL_WAIT_MS = 500
"""Kafka answers as soon as there is something. A reader that also asks for bounds would have its
question wait behind a fetch; the reader of a tail asks for nothing else."""

FETCH_AGAIN_MS = 10
"""A client that has fetched as much as it may keep looks so soon again whether something was taken.
By default it pauses for a second: a reader that takes what is there in less would wait for the
rest of it."""

ATTEMPT_S, LOOK_S = SOCKET_TIMEOUT_MS / 1000, 1.0
"""So long one attempt takes to ask for bounds, and who failed to look for another leader."""

TOGETHER = {"fetch.min.bytes": 65_536, "fetch.wait.max.ms": 250}
"""Heartbeats may be late by so much: Kafka hands those of all processes over in one answer, and
each look costs the broker."""


def consumer(bootstrap_servers: str, group: str, **more: Any) -> Consumer:
    """Return a consumer that reads committed records and never moves by itself, but for a batch
    that cannot be unpacked."""
    return SteppingConsumer(
        {
            **client_settings(bootstrap_servers),
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.message.max.bytes": MESSAGE_BYTES_MAX,
            "queued.max.messages.kbytes": 16_384,
            "fetch.queue.backoff.ms": FETCH_AGAIN_MS,
            "socket.timeout.ms": SOCKET_TIMEOUT_MS,
            "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS_MAX,
            "socket.nagle.disable": True,
            "log_level": 2,
            **more,
        }
    )


class TailReader:
    """Reads partitions in a thread and passes batches on; pauses while `pause_while` is true.

    A client that was told of no broker, by one that is just stopping, may never find one again, and
    reports nothing. So one that has been silent for long, and gets no answer, is replaced.

    If the thread ends by a failure, it calls `failed` with the reason. `has_died` also tells if
    that call has failed: a node whose reader is dead would not notice it otherwise.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        group: str,
        positions: Mapping[tuple[str, int], int],
        hand_over: Callable[[list[Message]], None],
        failed: Callable[[str], None],
        pause_while: Callable[[], bool] = lambda: False,
        **more: Any,
    ) -> None:
        """`positions` maps (topic, partition) to the first offset to read, or `END`; `more` is for
        the client."""
        self._servers, self._group = bootstrap_servers, group
        self._settings = {"fetch.wait.max.ms": TAIL_WAIT_MS, **more}
        self._places = [TopicPartition(t, p, o) for (t, p), o in positions.items()]
        self._consumer = self._begun()
        self._heard_s = time.monotonic()
        self._hand_over = hand_over
        self._failed = failed
        self._pause_while = pause_while
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=group, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop reading; returns once the thread has ended."""
        self._stopping.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    @property
    def has_died(self) -> bool:
        """Tell whether the thread has ended without a call of `stop`."""
        return not self._thread.is_alive() and not self._stopping.is_set()

    def _begun(self) -> Consumer:
        """Return a client that reads from where this reader is."""
        made = consumer(self._servers, self._group, **self._settings)
        made.assign(self._places)
        return made

    def _run(self) -> None:
        try:
            self._read()
        except Exception as error:
            if not self._stopping.is_set():
                self._failed(_reason(error))
        finally:
            self._consumer.close()

    def _read(self) -> None:
        while not self._stopping.is_set():
            if self._pause_while():
                self._stopping.wait(0.01)
                self._heard_s = time.monotonic()
                continue
            batch = self._next()
            if batch and not self._stopping.is_set():
                self._hand_over(batch)

    def _next(self) -> list[Message]:
        messages = available(self._consumer)
        for message in messages:
            error = message.error()
            if error is not None and not passes_by_itself(error):
                raise KafkaException(error)
        found = [m for m in messages if m.error() is None]
        if found or not self._places:
            self._heard_s = time.monotonic()
        elif time.monotonic() >= self._heard_s + SILENCE_S:
            self._doubt()
        return found

    def _doubt(self) -> None:
        """Replace the client if it gets no answer; one that is well is left alone for a while."""
        try:
            self._consumer.get_watermark_offsets(self._places[0], ATTEMPT_S)
        except KafkaException:
            lost = self._consumer
            read = lost.position(self._places)
            # Of a partition of which nothing was read there is no position yet.
            self._places = [
                now if now.offset >= 0 else begin
                for now, begin in zip(read, self._places, strict=True)
            ]
            self._consumer = self._begun()
            lost.close()
        self._heard_s = time.monotonic()


def _reason(error: Exception) -> str:
    """Return what to tell of an error, the client's in its own words."""
    if isinstance(error, KafkaException) and error.args:
        return str(error.args[0])
    return f"{type(error).__name__}: {error}"


def available(reader: Consumer) -> list[Message]:
    """Wait for one message, and return it with all others that have arrived."""
    first = reader.poll(POLL_S)
    return [] if first is None else [first, *reader.consume(BATCH_MAX, 0)]


def watermarks(
    bootstrap_servers: str, topic: str, partition: int = 0, timeout_s: float = 10.0
) -> tuple[Offset, Offset]:
    """Return the first offset of a partition, and its last stable offset.

    A topic that was just made, or whose leader died, may have no leader yet: that is tried again.
    """
    reader = consumer(bootstrap_servers, "watermarks")
    try:
        return bounds(reader, TopicPartition(topic, partition), timeout_s)
    finally:
        reader.close()


def written_end(bootstrap_servers: str, topic: str, timeout_s: float = 10.0) -> Offset:
    """Return Kafka's high watermark of partition 0: records of open transactions count, too."""
    reader = consumer(bootstrap_servers, "watermarks", **{"isolation.level": "read_uncommitted"})
    try:
        return bounds(reader, TopicPartition(topic, 0), timeout_s)[1]
    finally:
        reader.close()


def bounds(
    reader: Consumer, place: TopicPartition, timeout_s: float = 10.0
) -> tuple[Offset, Offset]:
    """Return the first offset and the last stable one, trying until `timeout_s`.

    A client asks the leader that it knows. Of a topic that it does not read, it does not look for
    another one by itself: where a leader hangs, it would ask that one again and again.
    """

    def look_for_leader(_: Any) -> None:
        with suppress(KafkaException):
            reader.list_topics(place.topic, timeout=LOOK_S)

    attempts = Retrying(
        retry=retry_if_exception(may_pass),
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=stop_after_delay(timeout_s),
        before_sleep=look_for_leader,
        reraise=True,
    )
    low, high = attempts(reader.get_watermark_offsets, place, min(timeout_s, ATTEMPT_S))
    return Offset(low), Offset(high)


class LogProbe:
    """Asks for the last stable offset of a topic, over a connection of its own.

    Threads may share it; the connection is made when it is first needed, and anew where it failed:
    a client that reads nothing asks the leader that it knows for ever, also where that one hangs.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._making = threading.Lock()
        self._reader: Consumer | None = None

    def end(self, topic: str, timeout_s: float, partition: int = 0) -> int:
        """Return the last stable offset of a partition. Raises KafkaException."""
        with self._making:
            if self._reader is None:
                self._reader = consumer(self._servers, "probe")
            reader = self._reader
        place = TopicPartition(topic, partition)
        try:
            return int(reader.get_watermark_offsets(place, timeout_s)[1])
        except KafkaException:
            with self._making:
                if self._reader is reader:
                    self._reader = None  # Another thread may be asking it: it ends with the last.
            raise

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
