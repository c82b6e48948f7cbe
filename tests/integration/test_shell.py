"""What the shell of a node has to get over, on a real broker: foreign and oversized input."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from coordinator import codec
from coordinator.core.model.commands import DropIndex
from coordinator.core.model.records import DeadLetter
from coordinator.embedded.ports import LOOPBACK
from coordinator.language.ddl_commands import COMMAND_BYTES_MAX
from coordinator.node.shell import EXIT_FAILED
from tests.integration.cluster import Cluster, Keep, error_of, wait_until

Make = Callable[..., Cluster]


@pytest.fixture(scope="module")
def cluster(keep: Keep) -> Cluster:
    """One node, for the tests that leave it as it was."""
    return keep(nodes=1, indexers=0)


def test_records_on_a_topic_where_they_do_not_belong_stop_no_node(cluster: Cluster) -> None:
    foreign = codec.encode(DeadLetter("x", 0, 0, "", b"", 0))
    cluster.publish("commit", foreign)

    def are_dead_letters() -> bool:
        """Publish again each time: a reader that begins at the end may not have begun yet."""
        for topic in ("heartbeat", "acks"):
            cluster.publish(topic, foreign)
        found = {letter.topic for letter in cluster.records("dead-letter")}
        return found == {cluster.topic("heartbeat"), cluster.topic("acks")}

    wait_until(are_dead_letters, "letters from both topics")
    assert cluster.put("after", 1).status_code == 200
    cluster.nodes[1].stop()
    cluster.nodes[1].start()
    assert cluster.put("again", 1).status_code == 200


def test_a_node_whose_port_is_taken_says_so_and_may_be_started_again(make_cluster: Make) -> None:
    cluster = make_cluster(nodes=1, indexers=0)
    (node,) = cluster.nodes.values()
    with socket.create_server((LOOPBACK, node.port)):
        node.start()
        assert node.wait() == EXIT_FAILED
        assert "[port_taken]" in node.said.splitlines()[-1]
    node.start()
    cluster.settled()


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_an_oversized_record_on_ddl_does_not_stop_the_master(
    make_cluster: Make, compression: str
) -> None:
    cluster = make_cluster(nodes=1, indexers=0).start()
    limits = {"message.max.bytes": 10**8, "compression.type": compression, "log_level": 2}
    producer = Producer(
        {"bootstrap.servers": cluster.servers, **limits, "enable.idempotence": True}
    )
    size = 1_048_470 if compression == "none" else 5_000_000
    producer.produce(cluster.topic("ddl"), b"x" * size, partition=0)
    long_name = codec.encode_ddl("long", DropIndex(0, "b", "n" * 200_000))
    producer.produce(cluster.topic("ddl"), long_name, partition=0)
    principal = codec.encode_ddl("principal", DropIndex(0, "b", "n"), principal="p" * 200_000)
    producer.produce(cluster.topic("ddl"), principal, partition=0)
    assert producer.flush(10) == 0
    replies = wait_until(lambda: cluster.records("ddl-replies", 3), "a reply")
    assert [reply.request for reply in replies] == ["long"]
    assert len(replies[0].error_message) < 400
    letters = wait_until(lambda: cluster.records("dead-letter")[1:], "the letters")
    assert "principal" in letters[-1].reason
    first = cluster.records("dead-letter")[0]
    assert (first.offset, len(first.value)) == (0, COMMAND_BYTES_MAX)
    assert cluster.get(1, "/v1/members")["epoch"] == 1


def test_an_oversized_principal_is_refused(cluster: Cluster) -> None:
    answer = cluster.put("key", 1, **{"X-Principal": "p" * 257})
    assert (answer.status_code, error_of(answer)) == (400, "invalid_request")
    assert cluster.put("key", 1, **{"X-Principal": "p" * 256}).status_code == 200


@pytest.mark.parametrize(("method", "path"), [("PUT", "/v1/config/k"), ("POST", "/v1/indexes")])
def test_a_body_without_a_length_is_refused_while_it_comes_in(
    cluster: Cluster, method: str, path: str
) -> None:
    def body() -> Iterator[bytes]:
        for _ in range(100):
            yield b"1" * 1_000_000

    def memory_kb() -> int:
        status = Path(f"/proc/{cluster.nodes[1].pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0])

    before = memory_kb()
    headers = {"Content-Type": "application/json"}
    answer = cluster.ask(1, method, path, content=body(), headers=headers)
    assert (answer.status_code, error_of(answer)) == (413, "value_too_large")
    assert memory_kb() - before < 50_000
