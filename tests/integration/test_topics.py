"""Topics are made once, and checked at every start: what the protocol rests on is not assumed."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from coordinator.embedded.broker import Broker
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.topics import SYNC, TOPICS, Topic, ensure_topics, sync_partitions, topic_name
from tests.integration.cluster import add_partitions
from tests.support.ports import reserve_port

pytestmark = pytest.mark.integration


@pytest.fixture
def cluster() -> str:
    return f"topics-{uuid.uuid4().hex[:8]}"


def test_topics_are_made_once_and_found_again(broker: Broker, cluster: str) -> None:
    first = ensure_topics(broker.bootstrap_servers, cluster)
    assert ensure_topics(broker.bootstrap_servers, cluster) == first != ""
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
    for topic in TOPICS:
        assert len(metadata.topics[topic_name(cluster, topic.name)].partitions) == topic.partitions


def test_the_number_of_sync_partitions_is_that_of_who_makes_the_topics(
    broker: Broker, cluster: str
) -> None:
    servers = broker.bootstrap_servers
    ensure_topics(servers, cluster, sync_partitions=8)
    ensure_topics(servers, cluster)
    assert sync_partitions(servers, cluster) == 8
    with pytest.raises(KafkaRefusal, match="has 8 partitions, not 4") as caught:
        ensure_topics(servers, cluster, sync_partitions=4)
    assert caught.value.code == "topic_mismatch"
    add_partitions(servers, [topic_name(cluster, SYNC)], 9)
    with pytest.raises(KafkaRefusal, match="stream-begin has 8 partitions, not 9"):
        ensure_topics(servers, cluster)


def test_the_partitions_of_a_topic_that_lacks_are_not_counted(broker: Broker, cluster: str) -> None:
    with pytest.raises(KafkaRefusal, match="sync is not there") as caught:
        sync_partitions(broker.bootstrap_servers, cluster)
    assert caught.value.code == "topic_mismatch"
    metadata = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10)
    assert topic_name(cluster, SYNC) not in metadata.topics


DURABLE = {
    "flush.messages": "1",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
}


@pytest.mark.parametrize("name", ["commit", "statecontext", "history"])
def test_what_is_authoritative_survives_the_loss_of_power_on_a_single_broker(
    broker: Broker, cluster: str, name: str
) -> None:
    """The page cache is its only copy: each message is flushed."""
    ensure_topics(broker.bootstrap_servers, cluster)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic_name(cluster, name))
    found = admin.describe_configs([resource])[resource].result(20)
    assert {key: found[key].value for key in DURABLE} == DURABLE


WRONG: list[tuple[str, int, dict[str, str], str]] = [
    ("commit", 2, {}, "has 2 partitions, not 1"),
    ("statecontext", 1, {"cleanup.policy": "delete"}, "cleanup.policy=delete, not compact"),
    ("history", 1, {"retention.ms": "1000"}, "retention.ms=1000, not -1"),
    ("commit", 1, {"min.insync.replicas": "2"}, "min.insync.replicas=2, not 1"),
    ("commit", 1, {"flush.messages": "100"}, "flush.messages=100, not 1"),
]


@pytest.mark.parametrize(("name", "partitions", "change", "says"), WRONG)
def test_a_topic_that_differs_is_a_refusal_that_names_it(
    broker: Broker, cluster: str, name: str, partitions: int, change: dict[str, str], says: str
) -> None:
    _make(broker, cluster, name, partitions, change)
    with pytest.raises(KafkaRefusal) as caught:
        ensure_topics(broker.bootstrap_servers, cluster)
    assert caught.value.code == "topic_mismatch"
    assert f"{cluster}.{name} has" in caught.value.message
    assert says in caught.value.message


def _make(broker: Broker, cluster: str, name: str, partitions: int, change: dict[str, str]) -> None:
    """Make one topic as it must be, but for `change`."""
    right: Topic = next(topic for topic in TOPICS if topic.name == name)
    config = {**right.config, "flush.messages": "1", "min.insync.replicas": "1", **change}
    config["unclean.leader.election.enable"] = "false"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic(topic_name(cluster, name), partitions, 1, config=config)
    for future in admin.create_topics([new]).values():
        future.result(20)


def test_more_copies_than_there_are_brokers_are_refused(broker: Broker, cluster: str) -> None:
    with pytest.raises(KafkaRefusal, match="replication factor") as caught:
        ensure_topics(broker.bootstrap_servers, cluster, replication_factor=3, deadline_s=1)
    assert caught.value.code == "topic_mismatch"


def test_a_kafka_that_does_not_answer_is_named(cluster: str) -> None:
    servers = f"127.0.0.1:{reserve_port()}"
    with pytest.raises(KafkaRefusal, match=servers) as caught:
        ensure_topics(servers, cluster, deadline_s=2)
    assert caught.value.code == "kafka_unavailable"
