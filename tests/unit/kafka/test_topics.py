"""How long one waits for what Kafka has not yet."""

from __future__ import annotations

from types import SimpleNamespace
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

    def __call__(self, *_: Any, **__: Any) -> str:
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


@pytest.mark.thorough
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


class Answer:
    """What a broker answers to one question."""

    def __init__(self, value: Any = None, error: Exception | None = None) -> None:
        self.value, self.error = value, error

    def result(self, *_: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def test_a_topic_that_another_node_has_just_made_is_there() -> None:
    error = KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, "there"))
    answers = {"c.commit": Answer(error=error)}
    admin: Any = SimpleNamespace(create_topics=lambda *_, **__: answers)
    topics._create(admin, "c", [topics.TOPICS[0]], 1, 1)


@pytest.mark.parametrize("code", sorted(topics.REFUSED))
def test_a_topic_that_kafka_will_never_make_is_a_final_refusal(code: int) -> None:
    answers = {"c.commit": Answer(error=KafkaException(KafkaError(code, "never")))}
    admin: Any = SimpleNamespace(create_topics=lambda *_, **__: answers)
    with pytest.raises(KafkaRefusal) as refused:
        topics._create(admin, "c", [topics.TOPICS[0]], 1, 1)
    assert refused.value.code == "topic_mismatch"


def test_transactions_whose_state_has_too_few_copies_are_refused() -> None:
    wanted = topics._complete(topics.TOPICS[0], 3, 0, False)

    def seen(copies: int) -> Any:
        part = SimpleNamespace(leader=1, replicas=list(range(copies)))
        return SimpleNamespace(error=None, partitions={0: part})

    found = {"c.commit": seen(3), topics.TRANSACTION_STATE: seen(1)}
    config = {key: SimpleNamespace(value=value) for key, value in wanted.config.items()}
    admin: Any = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(topics=found),
        describe_configs=lambda asked, **_: {asked[0]: Answer(config)},
    )
    with pytest.raises(KafkaRefusal, match="__transaction_state has replication factor 1, not 3"):
        topics._check(admin, "c", [wanted], 3, 1)


@pytest.mark.parametrize(("asked", "there", "made"), [(None, 8, 8), (2, 8, 2), (None, 0, 4)])
def test_sync_has_as_many_partitions_as_are_asked_for_or_there(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, there: int, made: int
) -> None:
    found = {"c.sync": SimpleNamespace(partitions=dict.fromkeys(range(there)))} if there else {}
    admin: Any = SimpleNamespace(
        list_topics=lambda **_: SimpleNamespace(topics=found, cluster_id="id")
    )
    checked: list[topics.Topic] = []
    monkeypatch.setattr(topics, "_create", lambda *_: None)
    monkeypatch.setattr(
        topics, "_check", lambda _admin, _cluster, wanted, *_: checked.extend(wanted)
    )
    topics._make_and_check(admin, "c", [*topics.TOPICS], 1, 1, sync_partitions=asked)
    partitions = {topic.name: topic.partitions for topic in checked}
    assert {partitions[name] for name in topics.OF_SYNC} == {made}
    assert partitions[topics.COMMIT] == 1


@pytest.mark.parametrize(
    ("topic", "own"),
    [
        ("c.commit", True),
        ("c.", True),
        ("__consumer_offsets", True),
        ("cc.commit", False),
        ("c", False),
    ],
)
def test_topics_of_the_cluster_and_of_kafka_are_nobody_elses(topic: str, own: bool) -> None:
    assert topics.is_own("c", topic) is own
