"""Three embedded brokers: what they replicate, and that the loss of any one of them loses nothing.

All tests but the last share three brokers and a cluster on them.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from coordinator.embedded.broker import Broker
from coordinator.embedded.brokers import Brokers
from coordinator.embedded.ports import is_free
from coordinator.kafka.document_topics import TopicFacts
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.readers import LogProbe
from coordinator.kafka.topic_histories import TopicHistories
from coordinator.kafka.topics import (
    COMMIT,
    STATECONTEXT,
    TOPICS,
    TRANSACTION_STATE,
    ensure_topics,
)
from tests.integration.cluster import Cluster, shown, wait_until
from tests.integration.indexctl_run import Run, eventually, state_of
from tests.integration.load import Load

pytestmark = pytest.mark.integration

CONSUMER_OFFSETS = "__consumer_offsets"
COPIES = 3
SILENCE_S_MAX = 120.0
"""Of a cluster on a busy machine. On an idle one it is 3 to 5 s."""

HUNG_SILENCE_S_MAX = 150.0
"""A client notices a broker that hangs only when requests time out, and Kafka after 9 s; a node
whose reader finds no leader for long ends, so that a new one may."""

STOP_S_MAX = 40.0
CALL_S = 2.0
ASKED_MAX = 6
"""A question of which nothing comes takes 10 s."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("kafka"), 3) as running:
        yield running


@pytest.fixture(scope="module")
def cluster(brokers: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--replication-factor", str(COPIES))
    servers = brokers.bootstrap_servers
    with Cluster(folder, servers, indexers=2, options=options) as running:
        yield running.start()


@pytest.fixture(autouse=True)
def whole(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did, the next one finds three brokers."""
    yield
    if "brokers" in request.fixturenames:
        for broker in request.getfixturevalue("brokers").members:
            if not broker.alive:
                broker.start()


def metadata_of(brokers: Brokers) -> Any:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers, "log_level": 0})
    return admin.list_topics(timeout=10)


def settings_of(servers: str, *topics: str) -> list[dict[str, str]]:
    admin = AdminClient({"bootstrap.servers": servers})
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    answers = [answer.result(10) for answer in admin.describe_configs(resources).values()]
    return [{key: entry.value for key, entry in answer.items()} for answer in answers]


def leader_of(brokers: Brokers, topic: str) -> int:
    return int(metadata_of(brokers).topics[topic].partitions[0].leader)


def controller_of(brokers: Brokers) -> int:
    """Return who leads the quorum, by what the brokers have noted; Kafka tells no client."""
    noted = [
        json.loads((one.data_dir / "data" / "__cluster_metadata-0" / "quorum-state").read_text())
        for one in brokers.members
    ]
    led = [(one["leaderEpoch"], one["leaderId"]) for one in noted if one["leaderId"] > 0]
    return int(max(led)[1])


def all_in_sync(brokers: Brokers) -> bool:
    metadata = metadata_of(brokers)
    partitions = [p for topic in metadata.topics.values() for p in topic.partitions.values()]
    return len(metadata.brokers) == 3 and all(len(p.isrs) == COPIES for p in partitions)


def test_every_topic_has_three_copies_and_needs_two(brokers: Brokers, cluster: Cluster) -> None:
    names = [cluster.topic(topic.name) for topic in TOPICS] + [TRANSACTION_STATE, CONSUMER_OFFSETS]
    topics = metadata_of(brokers).topics
    for name in names:
        assert {len(p.replicas) for p in topics[name].partitions.values()} == {COPIES}, name
    assert len(topics[TRANSACTION_STATE].partitions) == 1
    assert len(topics[CONSUMER_OFFSETS].partitions) == 1
    settings = settings_of(brokers.bootstrap_servers, *names)
    assert {one["min.insync.replicas"] for one in settings} == {"2"}


def test_topics_with_fewer_copies_are_refused(brokers: Brokers) -> None:
    name = f"thin-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap_servers})
    admin.create_topics([NewTopic(f"{name}.{COMMIT}", 1, 1)])[f"{name}.{COMMIT}"].result(20)
    with pytest.raises(KafkaRefusal, match="has replication factor 1, not 3") as refusal:
        ensure_topics(brokers.bootstrap_servers, name, replication_factor=COPIES)
    assert refusal.value.code == "topic_mismatch"
    for done in admin.delete_topics([f"{name}.{topic.name}" for topic in TOPICS]).values():
        done.result(20)


def kill(broker: Broker) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    eventually(lambda: not broker.alive, "the broker is dead")


def roles_of(brokers: Brokers, cluster: Cluster) -> dict[str, int]:
    """Return which broker leads what a commit needs."""
    return {
        "commit": leader_of(brokers, cluster.topic(COMMIT)),
        "statecontext": leader_of(brokers, cluster.topic(STATECONTEXT)),
        "transactions": leader_of(brokers, TRANSACTION_STATE),
        "quorum": controller_of(brokers),
    }


def led_by(broker: int, leaders: dict[str, int]) -> set[str]:
    return {role for role, leader in leaders.items() if leader == broker}


def most_wanted(leaders: dict[str, int], roles: set[str], victims: set[int]) -> int:
    """Return the broker whose death is worth the most of what is still to be seen."""
    return max((1, 2, 3), key=lambda one: len(led_by(one, leaders) & roles) + 2 * (one in victims))


@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["one", "every"]
)
def test_no_acknowledged_change_is_lost_or_doubled_whichever_broker_is_killed(
    brokers: Brokers, cluster: Cluster, every: bool
) -> None:
    """The leader of `commit` is killed; or of everything that a commit needs, and `every` broker
    once."""
    roles, victims = {"commit"}, set[int]()
    if every:
        roles, victims = set(roles_of(brokers, cluster)), {1, 2, 3}
    silences: list[tuple[float, int, dict[str, int]]] = []
    with Load(cluster, "killed", writers=2) as load:
        while roles or victims:
            leaders = roles_of(brokers, cluster)
            victim = most_wanted(leaders, roles, victims)
            broker = brokers.members[victim - 1]
            load.goes_on(30)
            since_s = time.monotonic()
            kill(broker)
            load.goes_on(30)
            silences.append((load.longest_silence_s(since_s), victim, leaders))
            broker.start()
            wait_until(lambda: all_in_sync(brokers), "all three are in sync again")
            roles -= led_by(victim, leaders)
            victims -= {victim}
    assert max(silences)[0] < SILENCE_S_MAX, silences
    state = cluster.settled()
    assert cluster.running() == [1, 2, 3]
    load.check()
    assert cluster.digest_by_history() == shown(state)
    assert cluster.digest_by_statecontext(state["cas"]) == shown(state)


@pytest.mark.matrix
def test_a_broker_that_hangs_is_left_out_and_harms_nothing_when_it_is_back(
    brokers: Brokers, cluster: Cluster
) -> None:
    """It still takes itself for the leader when it goes on; nobody else does.

    An indexer whose partition it led is silent until Kafka has another leader, which can take
    longer than DDL waits for an indexer. Who has asked it before asks the next leader now.
    """
    probe = LogProbe(brokers.bootstrap_servers)
    assert probe.end(cluster.topic(COMMIT), CALL_S)
    histories = TopicHistories(brokers.bootstrap_servers)
    before = newest_epoch(histories, cluster)
    assert before is not None
    hanging = brokers.members[leader_of(brokers, cluster.topic(COMMIT)) - 1]
    assert hanging.pid is not None
    with Load(cluster, "hung", writers=1, indexers_may_be_silent=True) as load:
        load.goes_on(20)
        since_s = time.monotonic()
        os.kill(hanging.pid, signal.SIGSTOP)
        try:
            _is_answered(probe, cluster)  # It is not, most likely: who hangs leads still.
            load.goes_on(20)
            wait_until(lambda: _is_answered(probe, cluster), "the next leader is asked")
            seen: list[int | None] = []
            while not seen or seen[-1] is None:
                seen.append(newest_epoch(histories, cluster))
                assert len(seen) < ASKED_MAX, "the next leader is not asked for its epoch"
            assert seen[-1] > before, "an epoch that is not known is not the first one"
        finally:
            os.kill(hanging.pid, signal.SIGCONT)
            probe.close()
            histories.close()
        assert load.longest_silence_s(since_s) < HUNG_SILENCE_S_MAX
        wait_until(lambda: all_in_sync(brokers), "all three are in sync again")
        load.goes_on(20)
    state = cluster.settled()
    assert cluster.running() == [1, 2, 3]
    load.check()
    assert cluster.digest_by_history() == shown(state)


def newest_epoch(histories: TopicHistories, cluster: Cluster) -> int | None:
    """Return the newest epoch of `commit`; None if Kafka does not say it."""
    with suppress(KafkaException):
        return histories.newest(TopicFacts(cluster.topic(COMMIT), "", 1), [0])[0]
    return None


def _is_answered(probe: LogProbe, cluster: Cluster) -> bool:
    with suppress(KafkaException):
        return probe.end(cluster.topic(COMMIT), CALL_S) > 0
    return False


@pytest.mark.matrix
def test_a_stop_of_all_is_quick_and_the_next_start_has_everything(
    brokers: Brokers, cluster: Cluster
) -> None:
    with cluster.client() as client:
        written = client.put_config("kept", "over a stop")
    before = cluster.settled()
    cluster.stop_children()
    servers = brokers.bootstrap_servers
    began_s = time.monotonic()
    brokers.stop()
    assert time.monotonic() - began_s < STOP_S_MAX
    assert all(is_free(one.port) and is_free(one.controller_port) for one in brokers.members)

    brokers.start()
    assert brokers.bootstrap_servers == servers
    after = cluster.start().settled()
    assert after["config"]["kept"] == {"value": "over a stop", "cas": written["cas"]}
    assert after["cluster_id"] == before["cluster_id"]


# -- a whole run, with stand-ins for nodes and indexers -------------------------------------------


@pytest.mark.matrix
def test_a_run_keeps_each_of_its_brokers_alive_and_remembers_how_many(tmp_path: Path) -> None:
    first = Run(tmp_path, "c1", brokers=3)
    first.said("Ctrl-C stops everything")
    first.said("Kafka (3 brokers), 1 node and 1 indexer, cluster 'c1'")
    servers = str(state_of(tmp_path)["bootstrap_servers"])
    first.said(f"{servers} (started here, 3 replicas of each topic)")
    ports = [int(server.rpartition(":")[2]) for server in servers.split(",")]
    assert len(set(ports)) == 3
    assert settings_of(servers, "c1.commit")[0]["flush.messages"] == "1", "they share their power"
    victim = broker_process(first, tmp_path / "kafka" / "broker-2")
    victim.kill()
    first.said("kafka-2 was killed by SIGKILL; starting it again in 0.5 s")
    first.said("kafka-2 was started again")
    began_s = time.monotonic()
    first.process.send_signal(signal.SIGINT)
    assert first.ended() == 0
    assert time.monotonic() - began_s < STOP_S_MAX
    assert all(is_free(port) for port in ports)

    other = Run(tmp_path, "c1", brokers=1)
    assert other.ended() == 1
    other.said("brokers_mismatch")
    other.said("run it with --brokers 3")


def broker_process(run: Run, folder: Path) -> psutil.Process:
    """Return the JVM that works in `folder`."""
    children = psutil.Process(run.process.pid).children()
    return next(p for p in children if p.name() == "java" and p.cwd() == str(folder))
