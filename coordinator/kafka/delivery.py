"""Where a record stands that Kafka has acknowledged."""

from __future__ import annotations

from confluent_kafka import Message

from coordinator.core.model.types import Offset

UNKNOWN = Offset(-1)
"""The offset of a record of which Kafka did not say it."""


def offset_of(delivered: Message) -> Offset:
    """Return where a delivered record is, `UNKNOWN` if Kafka did not say.

    It acknowledges a repeated record without an offset where it knows only that it has it already.
    """
    offset = delivered.offset()
    return UNKNOWN if offset is None else Offset(offset)
