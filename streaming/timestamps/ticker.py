"""Time as an input: a small record each period, so that a replay sees the same time.

With each goes a heartbeat: the coordinator asks for restart timestamps only where somebody is
there to answer. Ticks are lost without harm; the next one says more. The first one of a life marks
where it begins on the topic: who finds a tick of another writer after it knows that there is
another application.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaError, Message, Producer

from coordinator import codec
from coordinator.core.model.records import TimestampsHeartbeat
from coordinator.core.model.stream_records import Tick
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.topics import HEARTBEAT, TICK, topic_name
from schemas.registry import SchemaError

LOOK_BACK = 1_000
RECENT_MS = 10_000
"""Who ticked so shortly before this one's last tick is there still."""

MESSAGE_TIMEOUT_MS = 5_000
ANNOUNCE_S = 5.0


class Ticker:
    """Writes a tick each period, while it is switched on."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        writer: int,
        period_ms: int,
        clock_ms: Callable[[], int],
        beat: Callable[[], TimestampsHeartbeat],
    ) -> None:
        """`clock_ms` returns milliseconds of the wall clock; a period of 0 means: never."""
        self._servers = bootstrap_servers
        self._topic = topic_name(cluster, TICK)
        self._heartbeat = topic_name(cluster, HEARTBEAT)
        self._beat = beat
        self._writer = writer
        self._period_s = period_ms / 1000
        self._clock_ms = clock_ms
        self._first = UNKNOWN
        self._producer = Producer(
            plain_settings(
                bootstrap_servers,
                **{"message.timeout.ms": MESSAGE_TIMEOUT_MS, "queue.buffering.max.messages": 1_000},
            )
        )
        self._on = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticks", daemon=True)
        if period_ms:
            self._thread.start()

    def announce(self) -> None:
        """Write one tick now, and wait until it is there, or cannot be."""
        if self._period_s:
            self._tick()
            self._producer.flush(ANNOUNCE_S)

    def switch(self, on: bool) -> None:
        """Tick from now on, or no more."""
        (self._on.set if on else self._on.clear)()

    def stop(self) -> None:
        self._stopping.set()
        self._on.set()

    def another(self) -> int | None:
        """Return the writer who began after this one, and was there lately; None if there is none.

        Raises KafkaException.
        """
        last: dict[int, int] = {}
        for message in read_to_end(self._servers, self._topic, "ticks", last=LOOK_BACK):
            if self._first < 0 or (message.offset() or 0) < self._first:
                continue
            with suppress(SchemaError):
                record = codec.decode(message.value() or b"")
                if isinstance(record, Tick):
                    last[record.writer] = record.at_ms
        own_ms = last.pop(self._writer, 0)
        recent = [writer for writer, at_ms in last.items() if at_ms >= own_ms - RECENT_MS]
        return recent[0] if recent else None

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._on.wait()
            if self._stopping.is_set():
                return
            self._tick()
            with suppress(BufferError):
                self._producer.produce(self._heartbeat, codec.encode(self._beat()), partition=0)
            self._stopping.wait(self._period_s)

    def _tick(self) -> None:
        tick = codec.encode(Tick(self._clock_ms(), self._writer))
        with suppress(BufferError):
            self._producer.produce(self._topic, tick, partition=0, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None and self._first < 0:
            self._first = offset_of(message)
