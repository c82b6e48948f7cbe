"""Time as an input: a small record each period, so that a replay sees the same time.

A tick has the time of the wall clock, and for how long its writer has run, by a clock that does not
step: `streaming.timestamps.clock` says what becomes of both.

With each goes a heartbeat: the coordinator asks for restart timestamps only where somebody is
there to answer. Ticks are lost without harm; the next one says more. That none arrives is told. If
that lasts, another producer is made: perhaps the old one does not find its broker again.

The first tick of a life marks where it begins on the topic: who finds a tick of a writer that began
after it knows that there is another application.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.model.records import TimestampsHeartbeat
from coordinator.core.model.stream_records import NOT_SAID, Tick
from coordinator.core.timestamps.shards import WHOLE, BucketShard, shard_of
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.state_follower import RENEW_S, StatusLog
from coordinator.kafka.topics import HEARTBEAT, TICK, topic_name
from coordinator.runtime.threads import Threads
from schemas.registry import SchemaError

LOOK_BACK = 1_000
RECENT_MS = 10_000
"""Who ticked so shortly before this one's last tick is there still."""

SLACK_MS = 5_000
"""So much older than it seems this writer may be: its ticks may have been lost."""

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
        steady_ms: Callable[[], int],
        beat: Callable[[], TimestampsHeartbeat],
        status_log: StatusLog,
        threads: Threads,
        shard: BucketShard = WHOLE,
    ) -> None:
        """`clock_ms` returns milliseconds of the wall clock, `steady_ms` those of a clock that does
        not step; a period of 0 means: never."""
        self._servers = bootstrap_servers
        self._topic = topic_name(cluster, TICK)
        self._heartbeat = topic_name(cluster, HEARTBEAT)
        self._beat = beat
        self._status_log = status_log
        self._writer = writer
        self._shard = shard
        self._period_s = period_ms / 1000
        self._clock_ms, self._steady_ms = clock_ms, steady_ms
        self._begun_ms = steady_ms()
        self._first = UNKNOWN
        self._arrived_s = time.monotonic()
        """When a tick has arrived last, or another producer was made."""
        self._producer = self._made()
        self._due_s: float | None = None
        """When the next tick is written; None: nobody knows."""
        self._on = threading.Event()
        self._stopping = threading.Event()
        if period_ms:
            threads.start("ticks", self._run, self._stopping)

    def _made(self) -> Producer:
        return Producer(
            plain_settings(
                self._servers,
                **{"message.timeout.ms": MESSAGE_TIMEOUT_MS, "queue.buffering.max.messages": 1_000},
            )
        )

    def announce(self) -> None:
        """Write one tick now, and wait until it is there, or cannot be."""
        if self._period_s:
            self._tick()
            self._producer.flush(ANNOUNCE_S)

    def switch(self, on: bool) -> None:
        """Tick from now on, or no more."""
        self._arrived_s = time.monotonic()
        (self._on.set if on else self._on.clear)()

    def due_s(self) -> float | None:
        """Return when the next tick is written, on the monotonic clock; None: that is not known."""
        return self._due_s

    def stop(self) -> None:
        self._stopping.set()
        self._on.set()

    def another(self) -> int | None:
        """Return the writer who began after this one, and was there lately; None if there is none.

        Raises KafkaException.
        """
        ticks = []
        for message in read_to_end(self._servers, self._topic, "ticks", last=LOOK_BACK):
            with suppress(SchemaError):
                record = codec.decode(message.value() or b"")
                if isinstance(record, Tick) and rivals(self._shard, record.shard):
                    ticks.append((offset_of(message), record))
        return later_writer(ticks, self._writer, self._first)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._due_s = None
            self._on.wait()
            if self._stopping.is_set():
                return
            self._tick()
            self._send(self._heartbeat, codec.encode(self._beat()))
            self._renew_if_stuck()
            self._due_s = time.monotonic() + self._period_s
            self._stopping.wait(self._period_s)

    def _tick(self) -> None:
        elapsed_ms = self._steady_ms() - self._begun_ms
        tick = codec.encode(Tick(self._clock_ms(), self._writer, elapsed_ms, self._shard.name))
        self._send(self._topic, tick, on_delivery=self._delivered)
        self._producer.poll(0)

    def _send(self, topic: str, record: bytes, **more: Any) -> None:
        """Send what may be lost: the client refuses it where too much waits already, or where it
        does not know the topic, as right after a broker's start."""
        try:
            self._producer.produce(topic, record, partition=0, **more)
        except BufferError:
            pass  # What waits there is told of when it is given up.
        except KafkaException as error:
            self._refused(error.args[0])

    def _renew_if_stuck(self) -> None:
        """Make another producer if nothing arrives: perhaps it is not Kafka that is away."""
        now_s = time.monotonic()
        if now_s - self._arrived_s < max(RENEW_S, 4 * self._period_s):
            return
        self._arrived_s = now_s
        last, self._producer = self._producer, self._made()
        last.purge()
        last.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._refused(error)
            return
        self._arrived_s = time.monotonic()
        self._status_log.resolved("ticks")
        if self._first < 0:
            self._first = offset_of(message)

    def _refused(self, error: KafkaError) -> None:
        self._status_log.problem(
            "ticks", f"without them no timestamp is told: {error.str()} [ticks_refused]"
        )


def rivals(shard: BucketShard, name: str) -> bool:
    """Tell whether a shard of this name has buckets of `shard`, so that just one may go on."""
    try:
        other = shard_of(name)
    except ValueError:
        return False
    return other == shard or other.parts != shard.parts


def later_writer(ticks: Iterable[tuple[int, Tick]], writer: int, first: int) -> int | None:
    """Return a writer who began after `writer`, and was there lately; None if there is none.

    `ticks` are the last ones with their offsets, in order; `first` is the offset of this writer's
    first one, negative if it is not known. Who ticked before that is older, and so is who had run
    for longer at the same place. Clocks of different writers are not compared.
    """
    older: set[int] = set()
    own_ms = NOT_SAID
    last: dict[int, tuple[int, int]] = {}
    for offset, tick in ticks:
        if tick.writer == writer:
            own_ms = max(own_ms, tick.elapsed_ms)
        elif offset < first:
            older.add(tick.writer)
        else:
            last[tick.writer] = (tick.elapsed_ms, own_ms)
    if first < 0:
        return None
    later = [
        other
        for other, (elapsed_ms, own_then_ms) in last.items()
        if other not in older
        and elapsed_ms <= own_then_ms + SLACK_MS
        and own_ms - own_then_ms <= RECENT_MS
    ]
    return later[0] if later else None
