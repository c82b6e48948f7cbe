"""A transaction that Kafka itself has forgotten to end holds nobody up.

Kafka's coordinator may leave a marker out and count the transaction as complete. Here the same is
made on purpose: a producer writes to a partition of which it does not tell the coordinator. Kafka
verifies that since 3.6, so the broker is told not to.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.structs import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.embedded.broker import Broker
from coordinator.kafka.hanging_transactions import read_entries
from coordinator.kafka.producer_fencing import open_transactional
from coordinator.kafka.readers import watermarks, written_end
from coordinator.kafka.topics import COMMIT, DDL_REPLIES, topic_name, transactional_id
from tests.integration.cluster import Cluster, read_partition, value_of, wait_until

UNVERIFIED = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "50",
}
"""The number of partitions is Kafka's default; an embedded broker has one."""

SETTINGS = {"transaction.timeout.ms": 20_000}
NEGATIVE, POSITIVE = "abc.master", "abc"
"""Transactional ids, by the sign of Java's hash."""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that does not verify what belongs to a transaction."""
    with Broker(tmp_path_factory.mktemp("kafka"), settings=UNVERIFIED) as running:
        yield running.bootstrap_servers


def hang(
    servers: str, name: str, *, ended: Sequence[str], hanging: Sequence[str], committed: bool
) -> None:
    """Write to all these topics in one transaction, and end it on `ended` only."""

    async def write() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=name)
        await producer.start()
        try:
            await producer.begin_transaction()
            for topic in ended:
                await producer.send_and_wait(topic, b"ended", partition=0)
            for topic in hanging:
                producer._txn_manager._txn_partitions.add(TopicPartition(topic, 0))
                await producer.send_and_wait(topic, b"hanging", partition=0)
            await (producer.commit_transaction() if committed else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(write())
    for topic in ended:  # Whoever ends a transaction is answered before the markers are written.
        wait_until(lambda topic=topic: not hangs(servers, topic), f"{topic} does not hang")


def hangs(servers: str, topic: str) -> bool:
    return watermarks(servers, topic)[1] < written_end(servers, topic)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("later", ["at once", "after others have begun"])
def test_what_hangs_is_ended_as_the_coordinator_has_decided(
    servers: str, committed: bool, later: str
) -> None:
    name = f"hanging-{uuid.uuid4().hex[:8]}"
    topics = [f"{name}.ended", f"{name}.hanging", f"{name}.too"]
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(t, 1, 1) for t in topics]).values():
        made.result(30)
    hang(servers, name, ended=topics[:1], hanging=topics[1:], committed=committed)
    assert [hangs(servers, topic) for topic in topics] == [False, True, True]
    if later != "at once":
        hang(servers, name, ended=topics[:1], hanging=(), committed=not committed)
        assert hangs(servers, topics[1]), "as it did when masters began and gave up"
    open_transactional(servers, name, topics, 30.0, **SETTINGS)
    assert [hangs(servers, topic) for topic in topics] == [False, False, False]
    for topic in topics[1:]:
        values = [value_of(message) for message in read_partition(servers, topic)]
        assert values == ([b"hanging"] if committed else [])


def test_what_others_have_open_is_left_alone(servers: str) -> None:
    name = f"hanging-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(30)
    other = open_transactional(servers, f"{name}.other", [name], 30.0, **SETTINGS)
    other.begin_transaction()
    other.produce(name, b"under way", partition=0)
    assert other.flush(30) == 0
    open_transactional(servers, name, [name], 30.0, **SETTINGS)
    assert hangs(servers, name)
    other.commit_transaction(30)
    assert [value_of(message) for message in read_partition(servers, name)] == [b"under way"]


@pytest.mark.parametrize("name", [NEGATIVE, POSITIVE])
def test_the_coordinators_log_tells_each_step(servers: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(30)
    hang(servers, name, ended=[name], hanging=(), committed=True)
    entries = read_entries(servers, name)
    states = [entry.state.name for entry in entries]
    assert states == ["EMPTY", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"]
    assert entries[2].partitions == {(name, 0)}


def test_a_cluster_goes_on_although_its_log_hangs(servers: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "c", servers, nodes=2, indexers=0) as cluster:
        cluster.start()
        commit, replies = (topic_name(cluster.name, name) for name in (COMMIT, DDL_REPLIES))
        name = transactional_id(cluster.name)
        hang(servers, name, ended=[replies], hanging=[commit], committed=False)
        with cluster.client() as client:
            client.put_config("after", 1)
        cluster.settled()
        assert not hangs(servers, commit)
        assert any("hung on" in node.said for node in cluster.nodes.values())
