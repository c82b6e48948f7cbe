"""What a topic has lost, an index of it loses, and nothing else.

A broker that is killed and whose disk has lost the end of a partition is what an unclean election
is to a consumer: the next leader begins where its log ends.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tenacity import retry, retry_if_exception_message, stop_after_delay, wait_fixed

from coordinator.embedded import broker_config
from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import BEGINNING, consumer
from tests.conftest import MATRIX
from tests.integration.cluster import DEADLINE_S, Cluster, wait_until
from tests.integration.some_documents import some_documents
from tests.integration.topic_plane import TopicPlane
from tests.integration.travel_specs import BY_CITY, BY_NAME
from tests.support.oracle import Document

pytestmark = pytest.mark.integration

BATCH_HEAD = struct.Struct(">QI")


@pytest.fixture(scope="module")
def plane(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicPlane]:
    """A bucket of two partitions, its indexes built. No node is taken for a stalled one here."""
    options = ("--stall-ms", "60000")
    with Cluster(
        tmp_path_factory.mktemp("cluster"),
        broker.bootstrap_servers,
        nodes=1,
        indexers=2,
        projectors=1,
        options=options,
    ) as cluster:
        cluster.start()
        made = TopicPlane(cluster, "orders", 2)
        chance = random.Random(1)
        for _ in range(20):
            made.write(some_documents(chance, 20, 300))
        made.create(BY_CITY, BY_NAME)
        made.agrees()
        yield made


@retry(
    retry=retry_if_exception_message(match="(?s).*slice_unavailable"),
    stop=stop_after_delay(2 * DEADLINE_S),
    wait=wait_fixed(0.2),
    reraise=True,
)
def agrees_once_heard(plane: TopicPlane) -> None:
    """Require that indexes equal their oracles. After Kafka was away, heartbeats come late."""
    plane.agrees()


def cut(data_dir: Path, topic: str, partition: int, batches: int) -> int:
    """Take the last batches out of a partition's log; return how many records are left."""
    (log,) = (data_dir / broker_config.DATA / f"{topic}-{partition}").glob("*.log")
    content = log.read_bytes()
    starts = []
    at = 0
    while at + BATCH_HEAD.size <= len(content) and content[at + 16] == 2:
        starts.append(at)
        at += BATCH_HEAD.size + BATCH_HEAD.unpack_from(content, at)[1]
    assert len(starts) > batches
    end = starts[-batches]
    log.write_bytes(content[:end])
    return int(BATCH_HEAD.unpack_from(content, end)[0])


def reread(plane: TopicPlane) -> dict[str, Document]:
    """Return what the topic has, read from its start."""
    reader = consumer(plane.cluster.servers, "oracle", **{"enable.partition.eof": True})
    reader.assign([TopicPartition(plane.topic, p, BEGINNING) for p in range(plane.partitions)])
    found: dict[str, Document] = {}
    ended: set[int] = set()
    while len(ended) < plane.partitions:
        message = reader.poll(DEADLINE_S)
        assert message is not None
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition() or 0)
            continue
        key, value = message.key(), message.value()
        assert isinstance(key, bytes)
        if value is None:
            found.pop(key.decode(), None)
        else:
            found[key.decode()] = json.loads(value)
    reader.close()
    return found


def test_a_leader_that_has_everything_stops_nothing(
    mortal_broker: Broker, plane: TopicPlane
) -> None:
    chance = random.Random(2)
    renewed = plane.events("stream")
    for _ in range(3 if MATRIX else 1):
        mortal_broker.stop()
        mortal_broker.start()
        plane.write(some_documents(chance, 50, 300))
        agrees_once_heard(plane)
    assert plane.events("stream") == renewed
    assert plane.events("rollback") == []


@pytest.mark.parametrize(
    "is_overtaken",
    [pytest.param(False, marks=pytest.mark.matrix), True],
    ids=["alone", "overtaken"],
)
def test_what_the_log_has_lost_is_taken_back(
    mortal_broker: Broker, plane: TopicPlane, is_overtaken: bool
) -> None:
    """Also where the log has grown past the lost positions before anybody looks at it."""
    chance = random.Random(3)
    projector = plane.cluster.projectors[0]
    before = plane.events("rollback").count("RollbackEnded")
    if is_overtaken:
        projector.kill()
    mortal_broker.kill()
    left = cut(mortal_broker.data_dir, plane.topic, 0, 8)
    mortal_broker.start()
    plane.held = reread(plane)
    if is_overtaken:
        plane.write(some_documents(chance, 400, 300))
        projector.start()
    else:
        plane.write(some_documents(chance, 5, 300))

    def has_gone_back() -> bool:
        return plane.events("rollback").count("RollbackEnded") > before

    wait_until(has_gone_back, "the bucket has gone back", 120)
    agrees_once_heard(plane)
    node = plane.cluster.running()[0]
    (rollback,) = plane.cluster.get(node, "/v1/rollbacks")["rollbacks"]
    assert list(rollback["failover"]) == ["0"], "nothing of the other partition was lost"
    assert int(rollback["failover"]["0"][1]) == left
