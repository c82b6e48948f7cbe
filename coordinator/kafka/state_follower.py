"""How a process beside the nodes follows `statecontext`: one consumer, one plain producer.

A `Link` is one connection to Kafka. It lasts until a call raises KafkaException. Then the process
closes it and makes another one. No call blocks for long, so a process can stop within two seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from coordinator.core.consensus.effects import Answer, Beat
from coordinator.core.model.records import AckRecord, Heartbeat
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.producers import DeadLetters, PlainProducer
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.topics import STATECONTEXT, topic_name

CALL_TIMEOUT_S = 1.0
"""No call to Kafka may block longer."""

RENEW_S = 15.0
"""A producer of which nothing arrives for so long is made anew, while reading goes on."""

PAUSE_S = 0.5
BATCH_MAX = 1_000
FETCH_WAIT_MS = 500
FETCH_BUFFER_KBYTES = 4_096


class WatchedConsumer:
    """A consumer that tells which topics it has read to their ends, and notices when it stalls."""

    def __init__(self, bootstrap_servers: str, who: str, **more: Any) -> None:
        """`more` is for the client."""
        settings = {
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "queued.max.messages.kbytes": FETCH_BUFFER_KBYTES,
            **more,
        }
        self.client = consumer(bootstrap_servers, who, **settings)
        self.stall_detector = StallDetector(self.client)
        self.ended: set[str] = set()
        """The topics that were read to an end since the last assignment."""

    def assign(self, places: list[TopicPartition]) -> None:
        """Read these partitions, from these offsets on, and no others."""
        self.ended.clear()
        self.client.assign(places)
        self.stall_detector.assigned(places)

    def read(self, timeout_s: float) -> list[Message]:
        """Wait for a record, and take what has come with it. Raises KafkaException."""
        first = self.client.poll(timeout_s)
        found: list[Message] = []
        for message in () if first is None else (first, *self.client.consume(BATCH_MAX, 0)):
            error = message.error()
            if error is None:
                found.append(message)
                self.stall_detector.note(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ended.add(str(message.topic()))
                self.stall_detector.note(message)
            elif not passes_by_itself(error):
                raise KafkaException(error)
        self.stall_detector.check()
        return found


class Link:
    """One connection to Kafka: a consumer, a producer, and what they are used for."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        who: str,
        topics: Iterable[str],
        dead_letters: DeadLetters,
        **more: Any,
    ) -> None:
        """`topics` are those that must be there before anything begins; `more` is for the client.

        `statecontext` is always one of them. `dead_letters` wait here, and for the next connection.
        """
        self.topic = topic_name(cluster, STATECONTEXT)
        self._servers = bootstrap_servers
        self._cluster = cluster
        self._needed = {topic_name(cluster, name) for name in topics} | {self.topic}
        self._reader = WatchedConsumer(bootstrap_servers, who, **more)
        self._consumer = self._reader.client
        self._dead_letters = dead_letters
        self._producer: PlainProducer | None = None

    def connect(self, stopping: threading.Event) -> str | None:
        """Wait until the topics are there; return the Kafka cluster's id, None if stopped."""
        while not stopping.is_set():
            metadata = self._consumer.list_topics(timeout=CALL_TIMEOUT_S)
            if self._needed <= metadata.topics.keys():
                self._producer = self._made()
                return str(metadata.cluster_id)
            stopping.wait(PAUSE_S)
        return None

    def _made(self) -> PlainProducer:
        return PlainProducer(self._servers, self._cluster, ignore, self._dead_letters)

    def bounds(self, topic: str = "", partition: int = 0) -> tuple[int, int]:
        """Return the first offset of a topic, else of `statecontext`, and the last stable one."""
        low, end = self._consumer.get_watermark_offsets(
            TopicPartition(topic or self.topic, partition), CALL_TIMEOUT_S
        )
        return int(low), int(end)

    def reached(self, topic: str) -> dict[int, int]:
        """Return up to which offset each partition was read, of those that have said something."""
        return self._reader.stall_detector.reached(topic)

    @property
    def at_end(self) -> bool:
        """Tell whether `statecontext` was read to its end since the last assignment."""
        return self.topic in self._reader.ended

    def assign(self, places: list[TopicPartition]) -> None:
        """Read these partitions, from these offsets on, and no others."""
        self._reader.assign(places)

    def read(self, timeout_s: float) -> list[Message]:
        """Wait for a record, and take what has come with it. Raises KafkaException."""
        found = self._reader.read(timeout_s)
        self._serve()
        return found

    def _serve(self) -> None:
        """Serve the producer, and make another one if nothing of it arrives: what is lost with the
        old one is sent again."""
        if self._producer is None:
            return
        self._producer.serve()
        since_s = self._producer.waiting_since_s
        if since_s is not None and time.monotonic() - since_s >= RENEW_S:
            self._producer.close(0)
            self._producer = self._made()

    def answer(self, record: AckRecord) -> None:
        if self._producer is not None:
            self._producer.answer(Answer(record))

    def beat(self, record: Heartbeat) -> None:
        if self._producer is not None:
            self._producer.beat(Beat(record))

    def dead_letter(self, message: Message, reason: str) -> None:
        self._dead_letters.add_message(message, reason)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(CALL_TIMEOUT_S / 2)
        self._consumer.close()


class StatusLog:
    """Messages to the operator on stderr: each problem when it begins, and when it ends."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._problems: set[str] = set()

    def info(self, message: str) -> None:
        """Print a message."""
        with suppress(OSError):  # Where stderr goes, the disk may be full.
            print(f"{self._who}: {message}", file=sys.stderr, flush=True)

    def problem(self, about: str, message: str) -> None:
        """Print that a problem has begun, once until it is `resolved`."""
        if about not in self._problems:
            self._problems.add(about)
            self.info(f"{about}: {message}; trying again")

    def resolved(self, about: str) -> None:
        """Print that a problem is over, if its begin was printed."""
        if about in self._problems:
            self._problems.discard(about)
            self.info(f"{about}: well again")


def ignore(_: Any) -> None:
    """Ignore a failed send: the next heartbeat sends the same again."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
