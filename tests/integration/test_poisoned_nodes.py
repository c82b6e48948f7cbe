"""A record that nobody can use stops nobody, on whichever topic it stands, now and at a restart."""

from __future__ import annotations

import pytest

from coordinator import codec
from coordinator.client.request_ids import new_request_id
from coordinator.core.model import records
from coordinator.core.model.commands import CreateIndex
from coordinator.core.model.records import DdlReply, DeadLetter
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DDL,
    DDL_PARTITIONS,
    DDL_REPLIES,
    DEAD_LETTER,
    FAILOVER_LOG,
    HEARTBEAT,
    HW,
    RESTART,
    STABILITY,
)
from schemas.registry import registry
from tests.integration.cluster import Cluster, wait_until
from tests.integration.poison import nested
from tests.support.raw_batches import batch, produce, zstd_bomb

pytestmark = pytest.mark.integration

TOPICS = [COMMIT, ACKS, HEARTBEAT, HW, FAILOVER_LOG, DDL, STABILITY, RESTART]
BURIED = [name for name in TOPICS if name != COMMIT]
"""What cannot be used on `commit` is void there: it stays where it is, and every node sees it."""

FROM_THE_END = [HEARTBEAT, HW]

LARGE = 900_000


def poisons() -> list[bytes]:
    head = registry().current["HwHeartbeat"].head
    return [
        b"",
        b"garbage",
        nested(400),
        nested(5_000),
        registry().current["TransactionProposed"].head + b"\xff" * LARGE,
        head + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" * 50,
        b"\xc3\x01" + bytes(LARGE),
        codec.encode(DeadLetter("nowhere", 0, 0, "", b"", 0)),
        codec.encode(
            records.DdlReply(
                request="r",
                status="ok",
                answer_json="{}",
                error_code="",
                error_message="",
                error_details_json="{}",
                cas=1,
                txn="1-1",
                at_ms=0,
            )
        ),
    ]


def reads(cluster: Cluster, name: str) -> None:
    """Wait until a topic is read: until what cannot be used of it is a dead letter.

    A reader that begins at the end of a topic passes over what is there before it knows the end.
    """

    def are_dead_letters() -> bool:
        cluster.publish(name, b"garbage")
        return any(letter.topic == cluster.topic(name) for letter in cluster.records(DEAD_LETTER))

    wait_until(are_dead_letters, f"{name} is read")


def test_no_record_on_any_topic_stops_a_node(cluster: Cluster) -> None:
    lives = {node: child.pid for node, child in cluster.nodes.items()}
    for name in FROM_THE_END:
        reads(cluster, name)
    epoch = cluster.settled()["epoch"]
    bad = poisons()
    where: dict[str, list[int]] = {}
    for name in TOPICS:
        where[name] = cluster.publish_all(name, [(value, 0) for value in bad], key="bad")
    bomb = batch(zstd_bomb())
    for name in BURIED:
        where[name].append(produce(cluster.servers, cluster.topic(name), 0, bomb))
    request = new_request_id()
    good = codec.encode_ddl(
        request, CreateIndex(name="behind", bucket="poisoned", expressions=("a",))
    )
    odd = codec.encode_ddl(
        new_request_id(), CreateIndex(name="odd", bucket="poisoned", expressions=("ELSE",))
    )
    cluster.publish_all(DDL, [(odd, 0), (good, 0)])

    def answered() -> DdlReply | None:
        replies: list[DdlReply] = cluster.records(DDL_REPLIES, DDL_PARTITIONS)
        return next((reply for reply in replies if reply.request == request), None)

    assert wait_until(answered, "the command behind them is executed").status == "ok"

    def are_dead_letters() -> bool:
        found: set[tuple[str, int]] = {
            (letter.topic, letter.offset) for letter in cluster.records(DEAD_LETTER)
        }
        return found >= {(cluster.topic(name), o) for name in BURIED for o in where[name]}

    wait_until(are_dead_letters, "every one of them is a dead letter")
    assert cluster.put("after", 1).status_code == 200
    assert cluster.settled()["epoch"] == epoch
    assert {node: child.pid for node, child in cluster.nodes.items() if child.runs} == lives


def test_nor_does_it_when_all_of_them_are_read_again(cluster: Cluster) -> None:
    """Runs after the one before: what is compacted, or not yet snapped, is read from the start."""
    for child in cluster.nodes.values():
        child.kill()
    for child in cluster.nodes.values():
        child.start()
    cluster.settled()
    assert cluster.put("again", 1).status_code == 200
