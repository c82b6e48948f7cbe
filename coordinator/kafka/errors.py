"""What Kafka refuses, in one line each, with a stable code."""

from __future__ import annotations

from confluent_kafka import KafkaException


class KafkaRefusal(Exception):
    """A clear refusal; `code` is stable, `message` says what is wrong and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def explain(error: KafkaException, bootstrap_servers: str) -> KafkaRefusal:
    """Turn the client's exception into a refusal."""
    cause = error.args[0]
    if cause.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"):
        message = f"no Kafka broker answers at {bootstrap_servers}: is it running there?"
        return KafkaRefusal("kafka_unavailable", message)
    return KafkaRefusal("kafka_error", f"{cause.name()}: {cause.str()}")
