"""What Kafka's client raises, as tests make it themselves."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException


def while_a_callback_is_due(code: int) -> SystemError:
    """Return what Python makes of an error of the client in a call that runs a callback, too."""
    made = SystemError("returned a result with an exception set")
    made.__cause__ = KafkaException(KafkaError(code))
    return made
