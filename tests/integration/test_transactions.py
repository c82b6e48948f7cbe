"""Clients' transactions on a real cluster: all of a branch or nothing, once, whoever dies."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.client import Client
from coordinator.client.errors import ConflictError, CoordinatorError
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import Comparison, CreateIndex, PutSetting, Transact
from coordinator.core.model.types import Cas
from coordinator.kafka.topics import DDL
from tests.integration.cluster import Cluster, an_index, replies

pytestmark = pytest.mark.integration


def put(key: str, value: Any) -> dict[str, Any]:
    return {"put": {"key": f"config/{key}", "value": value}}


def history_of(client: Client, request: str) -> list[dict[str, Any]]:
    return list(client.history_all(request=request))


def test_settings_and_indexes_change_at_once_and_a_repeat_changes_nothing(cluster: Cluster) -> None:
    request = new_request_id()
    with cluster.client() as client:
        old = client.create_index(an_index("atomic-old"))["index"]["id"]
        then = [
            put("atomic/a", {"deep": [1, 2.5, "ü"]}),
            {"drop_index": {"id": old}},
            {"create_index": an_index("atomic-new")},
        ]
        compare = [{"key": "config/atomic/a", "cas": 0}]
        first = client.transact(compare, then, request_id=request)
        again = client.transact(compare, then, request_id=request)
        assert first["succeeded"] is True
        assert first["results"][2]["index"]["state"] != "init"
        assert [r["key"] for r in again["results"]] == [r["key"] for r in first["results"]]
        assert again["txn"] == first["txn"]
        changes = history_of(client, request)
        effects = [c for c in changes if c["txn"] == first["txn"]]
        assert [c["event"] for c in effects] == [
            *("SettingWritten", "IndexDropped", "IndexProposed")
        ]
        assert [c["cas"] for c in effects][:2] == [r["cas"] for r in first["results"]][:2]
        state = client.state(consistency="linearizable")
        assert state["config"]["atomic/a"]["value"] == {"deep": [1, 2.5, "ü"]}
        names = {
            index["name"] for index in state["indexes"].values() if index["state"] != "dropping"
        }
        assert "atomic-new" in names
        assert "atomic-old" not in names


def test_a_comparison_that_does_not_hold_does_what_stands_in_else(cluster: Cluster) -> None:
    with cluster.client() as client:
        held = client.put_config("compared", 1)["cas"]
        compare = [{"key": "config/compared", "cas": held + 1}]
        answer = client.transact(compare, [put("compared", 2)], [put("lost", 1)])
        assert answer["succeeded"] is False
        assert answer["compared"] == [{"key": "config/compared", "cas": held}]
        assert [result["key"] for result in answer["results"]] == ["config/lost"]
        nothing = client.transact(compare, [put("compared", 2)])
        assert (nothing["results"], nothing["txn"]) == ([], "")
        assert client.get_config("compared", consistency="linearizable")["value"] == 1


def test_an_index_takes_the_name_of_one_that_is_dropped_with_no_moment_between(
    cluster: Cluster,
) -> None:
    with cluster.client() as client:
        old = client.create_index(an_index("blue"))["index"]["id"]
        new = client.create_index(an_index("green"))["index"]["id"]
        rename = {"alter_index": {"id": new, "changes": {"name": "blue"}}}
        then = [{"drop_index": {"id": old}}, rename, put("blue/is", new)]
        request = new_request_id()
        answer = client.transact(then=then, request_id=request)
        assert client.transact(then=then, request_id=request)["txn"] == answer["txn"]
        changes = history_of(client, request)
        assert [(c["event"], c["txn"]) for c in changes] == [
            (event, answer["txn"]) for event in ("IndexDropped", "IndexAltered", "SettingWritten")
        ]
        assert [c["cas"] for c in changes] == [result["cas"] for result in answer["results"]]
        rebuild = {"alter_index": {"id": new, "changes": {"expressions": ["y"]}}}
        with pytest.raises(CoordinatorError) as refusal:
            client.transact(then=[put("blue/is", 0), rebuild])
        assert (refusal.value.code, refusal.value.details) == ("invalid_request", {"operation": 1})
    for node in cluster.nodes:
        found = cluster.ask(node, "GET", f"/v1/state?at_least={answer['cas']}").json()
        names = {i: x["name"] for i, x in found["indexes"].items() if x["state"] != "dropping"}
        assert names[new] == "blue"
        assert old not in names
        assert found["config"]["blue/is"]["value"] == new


def test_one_operation_that_is_refused_leaves_everything_as_it_was(cluster: Cluster) -> None:
    with cluster.client() as client:
        there = client.create_index(an_index("taken"))["index"]["id"]
        with pytest.raises(ConflictError) as refusal:
            client.transact(then=[put("half", 1), {"create_index": an_index("taken")}])
        assert refusal.value.code == "index_exists"
        assert refusal.value.details["operation"] == 1
        assert refusal.value.details["id"] == there
        with pytest.raises(CoordinatorError) as missing:
            client.get_config("half", consistency="linearizable")
        assert missing.value.code == "config_not_found"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"then": [{"put": {"key": "quota", "value": 1}}]}, "invalid_request"),
        ({"then": [{"put": {"key": "config/a", "value": 1}, "delete": None}]}, "invalid_request"),
        ({"then": [{}]}, "invalid_request"),
        ({"then": [{"drop_index": {}}]}, "invalid_request"),
        ({"then": [{"alter_index": {"id": "1"}}]}, "invalid_request"),
        ({"then": [{"drop_index": {"id": "1", "bucket": "b", "name": "n"}}]}, "invalid_request"),
        ({"compare": [{"key": "config/a"}]}, "invalid_request"),
        ({"compare": [{"key": "stream/a", "cas": 0}]}, "invalid_request"),
        ({"compare": [{"key": "config/a", "cas": 2**63}]}, "invalid_request"),
        ({"then": [put("a", 1)] * 257}, "invalid_request"),
        ({"then": [{"create_index": an_index("x", expressions=["ELSE"])}]}, "invalid_request"),
        (
            {"then": [{"create_index": an_index("x", expressions=["a" * 4_000] * 3)}]},
            "invalid_request",
        ),
        ({"then": [put(f"{n}/{'k' * 200}", "v" * 1_300) for n in range(200)]}, "value_too_large"),
        (
            {"then": [{"create_index": an_index(f"i{n}", "fresh")} for n in range(256)]},
            "too_large",
        ),
        ({"otherwise": []}, "invalid_request"),
    ],
)
def test_what_is_no_transaction_says_why(cluster: Cluster, body: dict[str, Any], code: str) -> None:
    answer = cluster.ask(cluster.master(), "POST", "/v1/txn", json=body)
    error = answer.json()["error"]
    assert (400 <= answer.status_code < 500, error["code"]) == (True, code)
    assert error["message"]


def test_of_all_who_want_a_lock_one_has_it(cluster: Cluster) -> None:
    """And who releases it, releases his own."""

    def contend(number: int) -> int:
        won = 0
        with cluster.client() as client:
            for _ in range(5):
                taken = client.transact(
                    [{"key": "config/lock", "cas": 0}],
                    [put("lock", number), put(f"held/{number}", won)],
                )
                if not taken["succeeded"]:
                    continue
                cas = taken["results"][0]["cas"]
                assert client.get_config("lock", consistency="linearizable")["value"] == number
                freed = client.transact(
                    [{"key": "config/lock", "cas": cas}], [{"delete": {"key": "config/lock"}}]
                )
                assert freed["succeeded"]
                won += 1
        return won

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(contend, range(4))) >= 1


def test_a_transaction_on_the_topic_is_answered_when_its_indexes_are_ready(
    cluster: Cluster,
) -> None:
    request, again = new_request_id(), new_request_id()
    command = Transact(
        compare=(Comparison(key="config/published", cas=Cas(0)),),
        then=(
            PutSetting("published", "1"),
            CreateIndex(name="published-1", bucket="travel", expressions=("a",)),
            CreateIndex(name="published-2", bucket="travel", expressions=("b",)),
        ),
    )
    value = codec.encode_ddl(request, command, "producer")
    cluster.publish_all(DDL, [(value, 1), (value, 1), (codec.encode_ddl(again, command), 1)])
    first, repeated = replies(cluster, request, count=2)
    (late,) = replies(cluster, again)
    for reply in (first, repeated):
        answer = json.loads(reply.answer_json)
        assert (reply.status, answer["succeeded"]) == ("ok", True)
        assert [r["index"]["name"] for r in answer["results"][1:]] == ["published-1", "published-2"]
        assert "init" not in {r["index"]["state"] for r in answer["results"][1:]}
    assert repeated.txn == first.txn
    assert json.loads(late.answer_json)["succeeded"] is False


def test_no_transaction_is_lost_halved_or_doubled_when_the_master_is_killed(
    cluster: Cluster,
) -> None:
    """Each moves one unit between two accounts: their sum never changes."""
    with cluster.client() as client:
        client.transact(then=[put("from", 1_000), put("to", 0)])

    def move(_: int) -> int:
        moved = 0
        with cluster.client() as client:
            while moved < 15:
                state = client.state(consistency="linearizable")["config"]
                one, other = state["from"], state["to"]
                assert one["value"] + other["value"] == 1_000
                answer = client.transact(
                    [
                        {"key": "config/from", "cas": one["cas"]},
                        {"key": "config/to", "cas": other["cas"]},
                    ],
                    [put("from", one["value"] - 1), put("to", other["value"] + 1)],
                )
                moved += answer["succeeded"]
        return moved

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(move, number) for number in range(2)]
        master = cluster.master()
        cluster.nodes[master].kill()
        cluster.master(other_than=master)
        cluster.nodes[master].start()
        total = sum(one.result() for one in running)
    with cluster.client() as client:
        state = client.state(consistency="linearizable")["config"]
    assert (state["from"]["value"], state["to"]["value"]) == (1_000 - total, total)
    cluster.settled()
    cluster.settled_members()
