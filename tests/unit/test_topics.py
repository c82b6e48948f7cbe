"""How long one waits for what Kafka has not yet."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.kafka import topics
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.topics import ensure_topics

TOO_FEW = KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "2 are registered"))


class Starting:
    """A Kafka that says these errors, the last one for `times`, and is there then."""

    def __init__(self, error: KafkaException, times: int, *before: KafkaException) -> None:
        self.error = error
        self.times = times
        self.before = list(before)

    def __call__(self, *_: Any) -> str:
        if self.before:
            raise self.before.pop(0)
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return "id"


def test_brokers_that_come_late_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_make_and_check", Starting(TOO_FEW, 3))
    assert ensure_topics("k:1", "c", replication_factor=3) == "id"


def test_brokers_that_do_not_come_are_a_final_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_make_and_check", Starting(TOO_FEW, 10_000))
    monkeypatch.setattr(topics, "BROKERS_COME_S", 0.1)
    with pytest.raises(KafkaRefusal, match="2 are registered") as refused:
        ensure_topics("k:1", "c", replication_factor=3, deadline_s=30)
    assert refused.value.code == "topic_mismatch"


def test_the_wait_for_brokers_begins_when_the_first_one_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nobody = KafkaException(KafkaError(KafkaError._TRANSPORT, "nobody"))
    monkeypatch.setattr(topics, "_make_and_check", Starting(TOO_FEW, 1, *[nobody] * 6))
    monkeypatch.setattr(topics, "BROKERS_COME_S", 1.0)
    assert ensure_topics("k:1", "c", replication_factor=3, deadline_s=60) == "id"


@pytest.mark.parametrize("code", sorted(topics.BUSY))
def test_a_topic_that_cannot_be_made_now_is_made_later(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(topics, "_make_and_check", Starting(KafkaException(KafkaError(code)), 2))
    assert ensure_topics("k:1", "c") == "id"


def test_what_never_passes_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"))
    kafka = Starting(error, 10_000)
    monkeypatch.setattr(topics, "_make_and_check", kafka)
    with pytest.raises(KafkaRefusal) as refused:
        ensure_topics("k:1", "c", deadline_s=30)
    assert refused.value.code == "kafka_error"
    assert kafka.times == 10_000 - 1
