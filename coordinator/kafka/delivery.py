"""Handing a record over, and where it stands once Kafka has acknowledged it."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message, Producer

from coordinator.core.model.types import Offset

UNKNOWN = Offset(-1)
"""The offset of a record of which Kafka did not say it."""


FULL_S = 0.1
"""So long what waits to be sent has to become less, until somebody looks again."""


def produce_when_there_is_room(
    producer: Producer, topic: str, value: bytes | None, key: bytes, **more: Any
) -> None:
    """Hand a record over; wait while too many are on their way. Raises KafkaException."""
    while True:
        try:
            producer.produce(topic, value, key, **more)
        except BufferError:
            producer.poll(FULL_S)
        else:
            return


def offset_of(delivered: Message) -> Offset:
    """Return where a delivered record is, `UNKNOWN` if Kafka did not say.

    It acknowledges a repeated record without an offset where it knows only that it has it already.
    """
    offset = delivered.offset()
    return UNKNOWN if offset is None else Offset(offset)
