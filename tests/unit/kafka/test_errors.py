"""What Kafka's client means by what it raises."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.kafka.errors import clients_error, may_pass


def fatal_while_a_callback_is_due() -> SystemError:
    """Return what the client raises: a callback runs though an exception is set."""
    made = SystemError("returned a result with an exception set")
    made.__cause__ = KafkaException(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
    return made


def test_a_fatal_error_is_found_behind_pythons() -> None:
    meant = clients_error(fatal_while_a_callback_is_due())
    assert isinstance(meant, KafkaException)
    assert meant.args[0].code() == KafkaError._FENCED


@pytest.mark.parametrize(
    "error",
    [KafkaException(KafkaError(KafkaError._FENCED)), SystemError("another"), ValueError()],
    ids=["of Kafka", "of Python", "of neither"],
)
def test_any_other_error_means_itself(error: Exception) -> None:
    assert clients_error(error) is error


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError.LEADER_NOT_AVAILABLE,
    ],
)
def test_what_a_broker_says_that_has_just_started_may_pass(code: int) -> None:
    assert may_pass(KafkaException(KafkaError(code)))


@pytest.mark.parametrize(
    "error",
    [KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), ValueError("no Kafka's")],
)
def test_what_stays_does_not_pass(error: Exception) -> None:
    assert not may_pass(error)
