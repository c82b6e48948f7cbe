"""DDL by topic: what producers publish is executed exactly once, and answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import CreateIndex, DropIndex
from coordinator.core.model.records import DeadLetter
from coordinator.kafka.topics import DDL, DEAD_LETTER
from schemas.registry import registry
from tests.integration.cluster import Cluster, replies, wait_until

pytestmark = pytest.mark.integration


def a_create(request: str, name: str, **more: Any) -> bytes:
    return codec.encode_ddl(
        request, CreateIndex(name=name, bucket="travel", expressions=("a",), **more), "producer"
    )


def test_created_refused_and_dropped_are_answered(cluster: Cluster) -> None:
    ids = [new_request_id() for _ in range(5)]
    values = [
        a_create(ids[0], "by-topic", replicas=1),
        a_create(ids[1], "by-topic"),
        codec.encode_ddl(ids[2], DropIndex(bucket="travel", name="by-topic")),
        codec.encode_ddl(ids[3], DropIndex(bucket="travel", name="by-topic")),
        a_create(ids[4], "bad name"),
    ]
    cluster.publish_all(DDL, [(value, 1) for value in values])
    created, exists, dropped, missing, invalid = replies(cluster, *ids)
    assert (created.status, exists.status, dropped.status) == ("ok", "refused", "ok")
    index = json.loads(created.answer_json)["index"]
    assert (index["name"], index["state"], index["bucket"]) == ("by-topic", "ready", "travel")
    assert exists.error_code == "index_exists"
    assert json.loads(exists.error_details_json)["id"] == index["id"]
    assert json.loads(dropped.answer_json)["index"]["id"] == index["id"]
    assert (missing.status, missing.error_code) == ("refused", "index_not_found")
    assert (invalid.status, invalid.error_code) == ("refused", "invalid_request")
    assert dropped.cas > created.cas > 0
    cas_of_drop = [
        e.cas
        for e in cluster.history()
        if e.mutation.request == ids[2] and e.mutation.event == "IndexDropped"
    ]
    assert cas_of_drop == [dropped.cas]


def test_a_repeated_request_gets_the_same_reply_and_is_not_executed_again(
    cluster: Cluster,
) -> None:
    request = new_request_id()
    value = a_create(request, "again")
    for partition in (0, 0, 2):
        cluster.publish(DDL, value, partition)
    first, *others = replies(cluster, request, count=3)
    assert first.status == "ok"
    for other in others:
        assert (other.status, other.answer_json) == (first.status, first.answer_json)
        assert (other.cas, other.txn) == (first.cas, first.txn)
    made = [e for e in cluster.history() if e.mutation.event == "IndexProposed"]
    assert len([e for e in made if e.mutation.request == request]) == 1


def test_a_repeat_over_http_gets_the_outcome_of_the_topic(cluster: Cluster) -> None:
    request = new_request_id()
    cluster.publish(DDL, a_create(request, "either-way"))
    [reply] = replies(cluster, request)
    with cluster.client() as client:
        answer = client.create_index(
            {"name": "either-way", "bucket": "travel", "expressions": ["a"]}, request_id=request
        )
    assert answer["index"] == json.loads(reply.answer_json)["index"]
    assert (answer["cas"], answer["txn"]) == (reply.cas, reply.txn)


def test_what_is_no_command_is_a_dead_letter_and_those_behind_it_are_executed(
    cluster: Cluster,
) -> None:
    request = new_request_id()
    foreign = registry().current["Setting"].encode({"name": "a", "value_json": "1"})
    unknown = foreign[:2] + bytes(8) + foreign[10:]
    torn = a_create(new_request_id(), "torn")[:-3]
    bad = [b"garbage", unknown, foreign, torn, b""]
    offsets = cluster.publish_all(
        DDL, [(value, 2) for value in (*bad, a_create(request, "behind"))]
    )
    [reply] = replies(cluster, request)
    assert reply.status == "ok"

    def letters() -> list[DeadLetter] | None:
        found = [r for r in cluster.records(DEAD_LETTER) if r.topic.endswith(DDL)]
        return found if len(found) >= len(bad) else None

    found = {r.offset: r for r in wait_until(letters, "dead letters")}
    assert sorted(found) == offsets[: len(bad)]
    for offset, value in zip(offsets, bad, strict=False):
        assert found[offset].partition == 2
        assert found[offset].value == value
        assert found[offset].reason
    assert "unknown_schema" in found[offsets[1]].reason
    assert len(cluster.records(DEAD_LETTER)) == len(bad)


def test_commands_published_while_no_master_is_alive_are_executed_once(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.kill()
    ids = [new_request_id() for _ in range(12)]
    values = [(a_create(one, f"waiting{n}"), n % 3) for n, one in enumerate(ids)]
    cluster.publish_all(DDL, values)
    cluster.start()
    answers = replies(cluster, *ids)
    assert [reply.status for reply in answers] == ["ok"] * len(ids)

    victim = cluster.master()
    more = [new_request_id() for _ in range(12)]
    cluster.publish_all(
        DDL, [(a_create(one, f"meanwhile{n}"), n % 3) for n, one in enumerate(more)]
    )
    cluster.nodes[victim].kill()
    assert [r.status for r in replies(cluster, *more)] == ["ok"] * len(more)
    cluster.nodes[victim].start()
    state = cluster.settled()
    names = [index["name"] for index in state["indexes"].values()]
    for wanted in (f"{kind}{n}" for kind in ("waiting", "meanwhile") for n in range(12)):
        assert names.count(wanted) == 1
    proposed = [
        e.mutation.request for e in cluster.history() if e.mutation.event == "IndexProposed"
    ]
    assert sorted(r for r in proposed if r in {*ids, *more}) == sorted([*ids, *more])
    assert len(replies(cluster, *ids, *more)) == len(ids) + len(more)
