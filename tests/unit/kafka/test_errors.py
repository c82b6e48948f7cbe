"""What Kafka's client means by what it raises."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.kafka.errors import as_meant, clients_error, may_pass
from tests.support.kafka_errors import while_a_callback_is_due


def test_a_fatal_error_is_found_behind_pythons() -> None:
    meant = clients_error(while_a_callback_is_due(KafkaError._FENCED))
    assert isinstance(meant, KafkaException)
    assert meant.args[0].code() == KafkaError._FENCED


def test_a_fatal_error_that_a_callback_has_used_up_is_known_as_fatal() -> None:
    meant = clients_error(SystemError("flush returned NULL without setting an exception"))
    assert isinstance(meant, KafkaException)
    assert meant.args[0].fatal()


@pytest.mark.parametrize(
    "error",
    [KafkaException(KafkaError(KafkaError._FENCED)), SystemError("another"), ValueError()],
    ids=["of Kafka", "of Python", "of neither"],
)
def test_any_other_error_means_itself(error: Exception) -> None:
    assert clients_error(error) is error
    with pytest.raises(type(error)) as raised, as_meant():
        raise error
    assert raised.value is error


def test_what_is_raised_is_what_the_client_means() -> None:
    with pytest.raises(KafkaException) as raised, as_meant():
        raise while_a_callback_is_due(KafkaError._FENCED)
    assert raised.value.args[0].code() == KafkaError._FENCED


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
