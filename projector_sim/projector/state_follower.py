"""The thread of a projector that reads Kafka: the state from its start, and what indexers report.

It passes on what it reads, and decides nothing. It goes on when Kafka is away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_END, KafkaException, Message, TopicPartition

from coordinator.core.model.records import AckRecord, DeadLetter, Heartbeat
from coordinator.kafka.producers import DeadLetters
from coordinator.kafka.state_follower import PAUSE_S, Link, StatusLog
from coordinator.kafka.topics import (
    ACKS,
    DEAD_LETTER,
    FAILOVER_LOG,
    HEARTBEAT,
    HW,
    MUTATIONS,
    STREAM_BEGIN,
    STREAM_END,
    STREAM_PARTITIONS,
    STREAM_REQUEST,
    SYNC,
    topic_name,
)
from coordinator.runtime.threads import Threads

NEEDED = (
    *(ACKS, HEARTBEAT, DEAD_LETTER, HW, STREAM_REQUEST),
    *(MUTATIONS, SYNC, STREAM_BEGIN, STREAM_END, FAILOVER_LOG),
)
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Started:
    """The state is read from its start, from here on."""


@dataclass(frozen=True, slots=True)
class Read:
    """Records, in the order of their partitions; `at_end`: the state was read to its end."""

    messages: list[Message]
    at_end: bool


class Follower:
    """Reads `statecontext` from its start, `hw` and `stream-request` from where they end."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        who: str,
        hand_over: Callable[[Started | Read], None],
        stopping: threading.Event,
        status_log: StatusLog,
        threads: Threads,
    ) -> None:
        self.state = ""
        self.watermarks = topic_name(cluster, HW)
        self.requests = topic_name(cluster, STREAM_REQUEST)
        self._who = (bootstrap_servers, cluster, who)
        self._dead_letters = DeadLetters(cluster)
        self._hand_over = hand_over
        self._stopping = stopping
        self._status_log = status_log
        self._link: Link | None = None
        self._thread = threads.start("following", self._run, stopping)

    def answer(self, record: AckRecord) -> None:
        """Send an answer; without Kafka it is lost, as all that is repeated may be."""
        if (link := self._link) is not None:
            link.answer(record)

    def beat(self, record: Heartbeat) -> None:
        """Send a heartbeat, if there is any Kafka."""
        if (link := self._link) is not None:
            link.beat(record)

    def dead_letter(self, message: Message, reason: str) -> None:
        """Make a record that cannot be used a dead letter."""
        self._dead_letters.add_message(message, reason)

    def add_dead_letter(self, letter: DeadLetter) -> None:
        """Send a dead letter about somebody else's topic. Any thread may."""
        self._dead_letters.add_foreign(letter)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            link = Link(*self._who, NEEDED, self._dead_letters)
            try:
                self._follow(link)
            except KafkaException as error:
                self._status_log.problem("Kafka", error.args[0].str())
                self._stopping.wait(PAUSE_S)
            finally:
                self._link = None
                link.close()

    def _follow(self, link: Link) -> None:
        if link.connect(self._stopping) is None:
            return
        low, end = link.bounds()
        self.state = link.topic
        self._hand_over(Started())
        self._link = link
        link.assign(
            [
                TopicPartition(link.topic, 0, low),
                TopicPartition(self.requests, 0, OFFSET_END),
                *(TopicPartition(self.watermarks, p, OFFSET_END) for p in range(STREAM_PARTITIONS)),
            ]
        )
        self._status_log.resolved("Kafka")
        self._status_log.info(f"following {link.topic} from offset {low}")
        position, told = low, False
        while not self._stopping.is_set():
            messages = link.read(POLL_S)
            for message in messages:
                if message.topic() == link.topic:
                    position = int(message.offset() or 0) + 1
            at_end = link.at_end or position >= end
            if messages or (at_end and not told):
                self._hand_over(Read(messages, at_end))
                told = at_end
