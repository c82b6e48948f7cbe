"""What the writer of timestamps makes of an error of Kafka's client."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from streaming.spark.crash_points import Crasher
from streaming.timestamps.state_store import DoubtError, FencedError, RefusedError, StateStore
from tests.support.kafka_errors import while_a_callback_is_due


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (KafkaError._FENCED, FencedError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RefusedError),
        (KafkaError._TIMED_OUT, DoubtError),
    ],
)
def test_an_error_means_the_same_alone_and_while_a_callback_is_due(
    code: int, meaning: type[Exception]
) -> None:
    store = StateStore("127.0.0.1:1", "c", Crasher())
    for error in (KafkaException(KafkaError(code)), while_a_callback_is_due(code)):
        assert type(store._failure(error)) is meaning
