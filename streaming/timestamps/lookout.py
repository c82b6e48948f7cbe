"""Waiting for a record that says something, while ticks and heartbeats go on.

A micro-batch of Spark costs a tenth of a second of processor time, whatever is in it. So where
nothing happens batches are rare, and a consumer of our own tells when something has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from coordinator.kafka.readers import TAIL_WAIT_MS, consumer
from coordinator.kafka.stall_detector import CALL_TIMEOUT_S, SILENCE_S

POLL_S = 0.25
"""So late it may be noticed that the application is to stop."""

TOLD_MAX, LOOKS_MAX, MORE_S = 1_000, 20, 0.02
"""What is there is told of at once, as far as it comes in so many looks."""

FETCHED = {
    "fetch.wait.max.ms": TAIL_WAIT_MS,
    "fetch.message.max.bytes": 65_536,
    "queued.max.messages.kbytes": 64,
}
"""Nobody looks at what comes: the less of it, the better."""


class Lookout:
    """Waits for the first record behind where reading has got to. For one thread; any may close it.

    The connection is made when it is first needed, also after `close`: a consumer may be blind on
    a topic that was made anew. One that finds nothing for long, and gets no answer, is replaced: a
    client that was told of no broker may never find one again, and reports nothing.

    A record is told of once. The query reads it next, and may have no use for it: then its place
    stays where it is.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._reader: Consumer | None = None
        self._told: dict[tuple[str, int], int] = {}
        """The offset behind what was told of last."""
        self._heard_s = time.monotonic()
        self._using = threading.Lock()
        self._closing = threading.Event()

    def wait(
        self, places: Mapping[tuple[str, int], int], timeout_s: float, stopping: threading.Event
    ) -> bool:
        """Return True as soon as something is at `places` or behind, which are offsets by topic and
        partition, or cannot be read there; False after `timeout_s`, or when told to stop.

        Where Kafka is away, nothing comes.
        """
        end_s = time.monotonic() + timeout_s
        told = self._told
        with self._using:
            reader = self._client(places)
            reader.assign(
                [TopicPartition(*w, max(at, told.get(w, at))) for w, at in places.items()]
            )
            try:
                while not (stopping.is_set() or self._closing.is_set()):
                    left_s = end_s - time.monotonic()
                    if left_s <= 0:
                        break
                    if found := reader.consume(TOLD_MAX, min(left_s, POLL_S)):
                        self._note(reader, found)
                        return True
                return False
            finally:
                reader.unassign()

    def _client(self, places: Mapping[tuple[str, int], int]) -> Consumer:
        """Return the client; another one if it has found nothing for long, and is not answered."""
        now_s = time.monotonic()
        if self._reader and places and now_s >= self._heard_s + SILENCE_S:
            self._heard_s = now_s
            try:
                self._reader.get_watermark_offsets(TopicPartition(*min(places)), CALL_TIMEOUT_S)
            except KafkaException:
                self._reader.close()
                self._reader = None
        self._reader = self._reader or consumer(self._servers, "lookout", **FETCHED)
        return self._reader

    def _note(self, reader: Consumer, found: list[Message]) -> None:
        """Note what was found, and what else is there."""
        self._heard_s = time.monotonic()
        for _ in range(LOOKS_MAX):
            for message in found:
                if message.error() is None:
                    where = str(message.topic()), int(message.partition() or 0)
                    self._told[where] = int(message.offset() or 0) + 1
            found = reader.consume(TOLD_MAX, MORE_S)
            if not found:
                return

    def close(self) -> None:
        """Let go of the connection; whoever waits does so no longer."""
        self._closing.set()
        with self._using:
            if self._reader is not None:
                self._reader.close()
            self._reader = None
            self._told.clear()
            self._closing.clear()
