"""State outlives processes, folders, compaction and the broker; damage is noticed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from rocksdict import Rdict

from coordinator import codec
from coordinator.core.model.records import MemberExpired
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import COMMIT, OF_SYNC, STATECONTEXT, ensure_topics
from coordinator.node.store import ENTITY, _options
from tests.integration.cluster import (
    CAS_BASE,
    Cluster,
    add_partitions,
    an_index,
    read_partition,
    shown,
    summary,
    wait_until,
)

pytestmark = pytest.mark.integration

Make = Callable[..., Cluster]
REFUSED = 78


def _load(cluster: Cluster, prefix: str = "kept", count: int = 30) -> None:
    """Create, overwrite and drop some of everything."""
    with cluster.client() as client:
        for number in range(count):
            client.put_config(f"{prefix}/{number % 7}", {"number": number})
        for number in range(4):
            client.create_index(an_index(f"{prefix}{number}", replicas=1))
        client.drop_index(bucket="travel", name=f"{prefix}0")
        client.delete_config(f"{prefix}/3")
    cluster.settled()


def _empty(cluster: Cluster, node: int) -> None:
    """Restart a node with an empty folder."""
    cluster.nodes[node].kill()
    shutil.rmtree(cluster.nodes[node].folder)
    cluster.nodes[node].start()


def test_a_restart_of_every_process_keeps_the_state(cluster: Cluster) -> None:
    _load(cluster)
    before = cluster.settled()
    cluster.stop_children()
    for child in cluster.children:
        child.start()
    state = cluster.settled()
    assert shown(state) == shown(before)
    assert (state["indexes"], state["config"]) == (before["indexes"], before["config"])
    assert state["cluster_id"] == before["cluster_id"]
    with cluster.client() as client:
        assert client.put_config("after", 1)["cas"] > before["cas"]


def test_kill_of_every_process_keeps_what_was_acknowledged(cluster: Cluster) -> None:
    with cluster.client() as client:
        answers = {n: client.put_config(f"killed/{n}", n)["cas"] for n in range(20)}
    for child in cluster.children:
        child.kill()
    for child in cluster.children:
        child.start()
    config = cluster.settled()["config"]
    assert {n: config[f"killed/{n}"]["cas"] for n in answers} == answers


def test_a_node_with_an_empty_folder_reaches_the_same_digest(cluster: Cluster) -> None:
    _load(cluster, "wiped")
    before = cluster.settled()
    for victim in (cluster.replicas()[0], cluster.master()):
        _empty(cluster, victim)
        assert shown(cluster.settled()) == shown(before)
        wait_until(lambda v=victim: "synchronised from " in cluster.nodes[v].said, "a full one")  # type: ignore[misc]
    restored = cluster.nodes[victim].restored()
    assert restored is not None
    assert summary(restored.state) == shown(before)


def test_all_nodes_with_empty_folders_reach_the_same_digest(cluster: Cluster) -> None:
    before = cluster.settled()
    for node in cluster.nodes.values():
        node.kill()
        shutil.rmtree(node.folder)
    for node in cluster.nodes.values():
        node.start()
    assert shown(cluster.settled()) == shown(before)


# -- damage --------------------------------------------------------------------------------------


def _flip_a_byte(folder: Path) -> None:
    """Change one byte of the value of an entity, behind RocksDB's checksums."""
    db = Rdict(str(folder), _options())
    try:
        entries: Any = db.items(from_key=ENTITY + b"config/")
        key, value = next(iter(entries))
        assert key.startswith(ENTITY + b"config/")
        db[key] = value[:-1] + bytes([value[-1] ^ 1])
    finally:
        db.close()


def _tear_a_table(folder: Path) -> None:
    """Overwrite the middle of every sst file."""
    db = Rdict(str(folder), _options())
    db.flush()
    db.close()
    tables = list(folder.glob("*.sst"))
    assert tables
    for table in tables:
        size = table.stat().st_size
        with table.open("r+b") as file:
            file.seek(size // 4)
            file.write(os.urandom(size // 4))


@pytest.mark.parametrize(
    "damage", [_flip_a_byte, pytest.param(_tear_a_table, marks=pytest.mark.matrix)]
)
def test_a_damaged_store_is_noticed_and_rebuilt(
    cluster: Cluster, damage: Callable[[Path], None]
) -> None:
    cluster.put("damaged", "value")
    before = cluster.settled()
    node = cluster.nodes[cluster.replicas()[0]]
    node.stop()
    damage(node.folder)
    said = len(node.said)
    node.start()
    wait_until(lambda: "synchronised from " in node.said[said:], "the store is rebuilt")
    assert any(word in node.said[said:] for word in ("digest_mismatch", "store_damaged"))
    assert shown(cluster.settled()) == shown(before)


# -- a log that is not the one --------------------------------------------------------------------


def _refuses(cluster: Cluster, node: int, code: str) -> None:
    """A node that cannot run ends with 78 and one line."""
    said = len(cluster.nodes[node].said)
    cluster.nodes[node].start()
    assert cluster.nodes[node].wait() == REFUSED
    lines = [line for line in cluster.nodes[node].said[said:].splitlines() if f"[{code}]" in line]
    assert len(lines) == 1
    assert "Traceback" not in cluster.nodes[node].said[said:]


def test_a_node_beyond_the_end_of_the_log_refuses_to_start(
    make_cluster: Make, broker: Broker
) -> None:
    cluster = make_cluster(indexers=0).start()
    _settings(cluster, 20)
    cluster.stop_children()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    topic = cluster.topic(COMMIT)
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone")
    ensure_topics(broker.bootstrap_servers, cluster.name)
    for node in (1, 1, 2):
        _refuses(cluster, node, "log_lost")


def test_a_node_refuses_to_start_when_somebody_has_added_partitions_to_sync(
    make_cluster: Make, broker: Broker
) -> None:
    """Topics that agree with each other may still be others than those of genesis."""
    cluster = make_cluster(indexers=0, options=("--sync-partitions", "2")).start()
    _settings(cluster, 3)
    cluster.nodes[1].stop()
    cluster.nodes[1].start()
    cluster.settled()
    cluster.stop_children()
    add_partitions(broker.bootstrap_servers, map(cluster.topic, OF_SYNC), 3)
    cluster.node_options = ()
    _refuses(cluster, 1, "topic_mismatch")
    cluster.node_options = ("--sync-partitions", "2")
    _refuses(cluster, 1, "topic_mismatch")


def _settings(cluster: Cluster, count: int) -> None:
    with cluster.client() as client:
        for number in range(count):
            client.put_config(f"s/{number % 5}", number)
    cluster.settled()


def test_a_folder_of_another_kafka_or_cluster_or_node_is_refused(
    make_cluster: Make, cluster: Cluster, tmp_path: Path
) -> None:
    """A fresh broker with the old folders; another node's folder; another cluster's."""
    other = make_cluster()
    for node, source in ((1, 1), (2, 3)):
        held = cluster.nodes[source].folder
        shutil.copytree(held, other.nodes[node].folder, ignore=shutil.ignore_patterns("LOCK"))
    other.name, name = cluster.name, other.name
    _refuses(other, 2, "data_folder_mismatch")
    other.name = name
    _refuses(other, 1, "data_folder_mismatch")
    with Broker(tmp_path) as fresh:
        other.name, other.servers = cluster.name, fresh.bootstrap_servers
        _refuses(other, 1, "data_folder_mismatch")


def test_records_of_an_aborted_transaction_are_never_folded(cluster: Cluster) -> None:
    """Another producer's: the nodes' consumers must read committed records only."""
    victim = cluster.replicas()[0]
    epoch = cluster.state(victim)["epoch"]
    poison = codec.encode(MemberExpired(epoch, victim, "aborted", 0))
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "transactional.id": f"{cluster.name}.stranger",
            "log_level": 2,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(50):
        producer.produce(cluster.topic(COMMIT), poison, partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)

    cas = cluster.put("behind-aborted", 1).json()["cas"]
    for node in cluster.nodes:
        path = f"/v1/config/behind-aborted?consistency=local&at_least={cas}"
        assert cluster.get(node, path)["cas"] == cas
        assert cluster.member(victim, seen_by=node)["role"] == "replica"
    assert cluster.get(victim, "/readyz")["ready"]
    assert not any(r.reason == "aborted" for r in cluster.records(COMMIT) if _expires(r))

    # The same record, committed, is folded: the test above can fail.
    producer.begin_transaction()
    producer.produce(cluster.topic(COMMIT), poison, partition=0)
    producer.commit_transaction(30)
    assert any(r.reason == "aborted" for r in cluster.records(COMMIT) if _expires(r))
    wait_until(lambda: "JoinRequested" in str(cluster.records("acks")[-20:]), "the victim rejoins")
    cluster.settled()


def _expires(record: Any) -> bool:
    return isinstance(record, MemberExpired)


# -- a compacted log ------------------------------------------------------------------------------


@pytest.fixture
def tidy_broker(mortal_broker: Broker) -> Iterator[Broker]:
    """The broker, whose cleaner looks each second for what it may compact."""
    admin = AdminClient({"bootstrap.servers": mortal_broker.bootstrap_servers, "log_level": 2})

    def set_backoff(operation: AlterConfigOpType) -> None:
        resource = ConfigResource(ResourceType.BROKER, "1")
        entry = ConfigEntry("log.cleaner.backoff.ms", "1000", incremental_operation=operation)
        resource.add_incremental_config(entry)
        admin.incremental_alter_configs([resource])[resource].result(30)

    set_backoff(AlterConfigOpType.SET)
    yield mortal_broker
    set_backoff(AlterConfigOpType.DELETE)


def _shrink(servers: str, topic: str) -> None:
    """Let the broker compact a topic at once, and forget tombstones at once."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in {
        "segment.ms": "200",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "200",
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": "0",
    }.items():
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource.add_incremental_config(entry)
    admin.incremental_alter_configs([resource])[resource].result(30)


ROLL_S = 1.0
"""So often a segment is rolled, until the cleaner has been there."""


def _roll(cluster: Cluster) -> None:
    """Append to `statecontext` what nobody ever sees, so that its active segment is rolled."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "transactional.id": f"{cluster.name}.roller",
            "log_level": 2,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(cluster.topic(STATECONTEXT), b"", b"roller", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)


def test_a_restarted_broker_and_a_compacted_log_keep_the_state(
    make_cluster: Make, tidy_broker: Broker
) -> None:
    # Nobody starts a node again here that takes a busy machine for a stalled reader.
    cluster = make_cluster(options=("--stall-ms", "60000")).start()
    _load(cluster)
    before = cluster.settled()
    tidy_broker.stop()
    tidy_broker.start()
    assert shown(cluster.settled(deadline_s=90)) == shown(before)

    _settings(cluster, 40)
    master = cluster.master()
    last = cluster.ask(master, "DELETE", "/v1/config/s/4").json()["cas"]
    state = cluster.settled()
    assert state["cas"] == last, "the last event is a drop"
    topic = cluster.topic(STATECONTEXT)
    _shrink(tidy_broker.bootstrap_servers, topic)

    def compacted() -> bool:
        left = read_partition(tidy_broker.bootstrap_servers, topic)
        keys = [message.key() for message in left]
        if len(keys) == len(set(keys)) and not any(m.value() is None for m in left):
            return True
        _roll(cluster)
        return False

    wait_until(compacted, "superseded records and tombstones are gone", 90, ROLL_S)
    left = read_partition(tidy_broker.bootstrap_servers, topic)
    assert CAS_BASE + max(message.offset() or 0 for message in left) < last
    for victim in (cluster.replicas()[0], cluster.master()):
        _empty(cluster, victim)
        assert shown(cluster.settled()) == shown(state)
    assert cluster.digest_by_history() == shown(state)
    assert cluster.put("after", 1).json()["cas"] > last
