"""Notices that a consumer has stalled: the client reports nothing then, and never continues.

After cuts of the network librdkafka may lose a broker for ever, though records wait there. So it
does where a broker that is about to stop, or was taken for gone, tells it that there is no broker
at all: it forgets the address that it was given, too. Then the owner of the consumer makes a new
one. No health check of the process would show the stall, as everything else works.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

SILENCE_S = 10.0
"""So long nothing may come of a partition before the broker is asked whether there is anything."""

CALL_TIMEOUT_S = 1.0
MOMENT_S = 0.1
"""After so long, no other partition is asked about until the next time."""

Place = tuple[str, int]


class StallDetector:
    """Watches what a consumer reads; the partitions are those of the last `assigned`."""

    def __init__(self, consumer: Consumer, silence_s: float = SILENCE_S) -> None:
        """`consumer` reports where partitions end, or their silence cannot be told from a fault."""
        self._consumer = consumer
        self._silence_s = silence_s
        self._heard_s: dict[Place, float] = {}
        self._reached: dict[Place, int] = {}
        self._doubted: dict[Place, int] = {}
        self._look_s = 0.0
        self._to_look: list[Place] = []

    def assigned(self, places: Iterable[TopicPartition]) -> None:
        """Note what is read from now on."""
        now = time.monotonic()
        self._heard_s = {(place.topic, place.partition): now for place in places}
        self._reached = {}
        self._doubted = {}
        self._look_s = now + self._silence_s
        self._to_look = []

    def unassigned(self, places: Iterable[TopicPartition]) -> None:
        """Note what is read no more."""
        for place in places:
            self._heard_s.pop((place.topic, place.partition), None)
        self._to_look = [place for place in self._to_look if place in self._heard_s]

    def note(self, message: Message) -> None:
        """Note a record, or that a partition was read to its end."""
        place = (str(message.topic()), int(message.partition() or 0))
        self._heard_s[place] = time.monotonic()
        is_end = message.error() is not None
        self._reached[place] = int(message.offset() or 0) + (0 if is_end else 1)

    def reached(self, topic: str) -> dict[int, int]:
        """Return up to which offset each partition of a topic was read."""
        return {place[1]: offset for place, offset in self._reached.items() if place[0] == topic}

    def check(self) -> None:
        """Ask about every partition that has been silent for long, now and then.

        It asks for a moment at a time, so that a slow broker holds nobody up. Raises KafkaException
        where twice in a row there was the same to be read, and nothing of it came; and where the
        broker does not answer.
        """
        now = time.monotonic()
        if now >= self._look_s:
            self._look_s = now + self._silence_s
            self._to_look = [*self._heard_s]
        while self._to_look and time.monotonic() - now < MOMENT_S:
            place = self._to_look.pop()
            if now - self._heard_s[place] < self._silence_s:
                self._doubted.pop(place, None)
                continue
            reached = self._reached.get(place, -1)
            _, end = self._consumer.get_watermark_offsets(TopicPartition(*place), CALL_TIMEOUT_S)
            if end <= reached:
                self._doubted.pop(place, None)
            elif self._doubted.get(place) == reached:
                topic, partition = place
                said = f"reading of {topic} [{partition}] stands still at offset {reached}"
                raise KafkaException(KafkaError(KafkaError._STATE, said))
            else:
                self._doubted[place] = reached
