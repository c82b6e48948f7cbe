"""Batches that Kafka has taken, and that its client cannot unpack: stepped over, and told of.

A batch may unpack to more than the client takes (a few KB of zstd become 100 MB), or be broken in a
way that the broker has not noticed. The client says so at each fetch, and never goes on by itself.
So who reads is moved behind it, and gets a record in its place that nobody can use: it becomes a
dead letter, as any other bad record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from coordinator.kafka.errors import passes_by_itself

UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
"""What the client says of a batch that it cannot unpack."""

PATIENCE_S, POLL_S, CALL_TIMEOUT_S = 30.0, 1.0, 10.0


class BrokenBatch:
    """Stands for all records of a batch; it has the offset of the last one."""

    def __init__(self, topic: str, partition: int, begin: int, end: int, reason: str) -> None:
        self._topic, self._partition, self._offset = topic, partition, end - 1
        text = f"the batch at the offsets {begin} to {end - 1} cannot be unpacked: {reason}"
        self._value = text.encode()

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> None:
        return None

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_NOT_AVAILABLE, -1

    def error(self) -> None:
        return None

    def __len__(self) -> int:
        return len(self._value)


class SteppingConsumer(Consumer):
    """A consumer that steps over batches that cannot be unpacked."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(dict(settings))
        self._settings = settings

    def poll(self, timeout: float = -1) -> Any:
        """Return a message or None, as every consumer does. Raises KafkaException."""
        message = super().poll(timeout)
        return message if message is None or message.error() is None else self._over(message)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Any]:
        """Return messages, as every consumer does. Raises KafkaException."""
        found = super().consume(num_messages, timeout)
        return [m if m.error() is None else self._over(m) for m in found]

    def _over(self, message: Message) -> Any:
        """Step over a batch, and return what stands for it; anything else as it is."""
        error, topic = message.error(), message.topic()
        partition, begin = message.partition(), message.offset()
        assert error is not None
        if error.code() not in UNREADABLE or topic is None or partition is None or begin is None:
            return message
        end = end_of_batch(self._settings, topic, partition, begin)
        self.seek(TopicPartition(topic, partition, end))
        return BrokenBatch(topic, partition, begin, end, error.str())


def end_of_batch(settings: Mapping[str, Any], topic: str, partition: int, begin: int) -> int:
    """Return the first offset behind a batch that cannot be unpacked and has the offset `begin`.

    Only fetching tells: who asks for an offset in the batch gets the batch. Raises KafkaException.
    """
    probe = Consumer({**settings, "enable.partition.eof": True, "fetch.wait.max.ms": 100})
    try:
        place = TopicPartition(topic, partition)
        _, high = probe.get_watermark_offsets(place, CALL_TIMEOUT_S)

        def is_behind(offset: int) -> bool:
            probe.assign([TopicPartition(topic, partition, offset)])
            return _can_be_read(probe)

        return first_behind(is_behind, begin, max(high, begin + 1))
    finally:
        probe.close()


def first_behind(is_behind: Callable[[int], bool], begin: int, high: int) -> int:
    """Return the first offset that is behind a batch in which `begin` is: `high` at the latest.

    Most batches are short: so the steps grow from one, and then the last one is halved.
    """
    inside, step = begin, 1
    while (behind := min(inside + step, high)) < high and not is_behind(behind):
        inside, step = behind, 2 * step
    while behind - inside > 1:
        middle = (inside + behind) // 2
        if is_behind(middle):
            behind = middle
        else:
            inside = middle
    return behind


def _can_be_read(probe: Consumer) -> bool:
    """Tell whether what is fetched where a consumer stands can be unpacked."""
    due_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < due_s:
        message = probe.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF:
            return True
        if error.code() in UNREADABLE:
            return False
        if not passes_by_itself(error):
            raise KafkaException(error)
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a batch that cannot be unpacked"))
