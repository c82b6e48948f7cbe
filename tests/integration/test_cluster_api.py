"""The HTTP API of real nodes: who answers what, how fresh it is, and how bad requests fare."""

from __future__ import annotations

import json
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from coordinator.client.request_ids import new_request_id
from coordinator.embedded.ports import LOOPBACK
from tests.integration.cluster import Cluster, an_index, error_of, in_parallel, wait_until

pytestmark = pytest.mark.integration


def test_a_replica_sends_writers_to_the_master(cluster: Cluster) -> None:
    master = cluster.master()
    calls: list[tuple[str, str, Any]] = [
        ("PUT", "/v1/config/a%2Fb", 1),
        ("DELETE", "/v1/config/a", None),
        ("POST", "/v1/indexes", an_index("elsewhere")),
        ("DELETE", "/v1/indexes/1", None),
        ("GET", "/v1/state?consistency=linearizable", None),
    ]
    for replica in cluster.replicas():
        for method, path, body in calls:
            answer = cluster.ask(replica, method, path, json=body)
            assert (answer.status_code, error_of(answer)) == (307, "not_master")
            assert answer.headers["Location"] == cluster.nodes[master].url + path
            details = answer.json()["error"]["details"]
            assert details == {"node": master, "address": cluster.nodes[master].url}


def test_every_read_carries_the_cas_it_was_answered_at(cluster: Cluster) -> None:
    written = cluster.put("read", 1).json()["cas"]
    for node in cluster.nodes:
        for path in ("state", "indexes", "config", "topology", "config/read"):
            answer = cluster.ask(node, "GET", f"/v1/{path}?consistency=local&at_least={written}")
            assert answer.status_code == 200
            assert int(answer.headers["X-Applied-Cas"]) >= written
        assert cluster.get(node, "/v1/config/read?consistency=local")["cas"] == written


def test_a_deposed_master_answers_no_linearizable_read(cluster: Cluster) -> None:
    """It hung while another took over and wrote: what it has applied it shows to who asks for that,
    but as the newest there is it answers nothing older."""
    old = cluster.master()
    cluster.put("linear", "old")
    cluster.nodes[old].pause()
    try:
        new = cluster.master(other_than=old)
        with cluster.client(new) as client:
            cas = client.put_config("linear", "new")["cas"]
        # They wait in its sockets: when it wakes up, it reads them before it reads the log.
        waiting = [HTTPConnection(LOOPBACK, cluster.nodes[old].port, timeout=60) for _ in range(3)]
        for query, connection in zip(
            ("", "?consistency=linearizable", "?consistency=local"), waiting, strict=True
        ):
            connection.request("GET", f"/v1/config/linear{query}")
    finally:
        cluster.nodes[old].resume()
    *linearizable, local = [connection.getresponse() for connection in waiting]
    assert local.status == 200
    for answer in linearizable:
        body = json.loads(answer.read())
        if answer.status == 200:
            assert (body["value"], body["cas"]) == ("new", cas)
        else:
            assert answer.status in (307, 503, 504), body
    cluster.settled()
    cluster.settled_members()


def test_a_read_waits_for_the_cas_it_asks_for(cluster: Cluster) -> None:
    replica = cluster.replicas()[0]
    for number in range(10):
        cas = cluster.put("fresh", number).json()["cas"]
        seen = cluster.get(replica, f"/v1/config/fresh?consistency=local&at_least={cas}")
        assert seen["value"] == number
    ahead = cluster.state(replica)["cas"] + 1
    path = f"/v1/state?consistency=local&at_least={ahead}"
    waiting, written = in_parallel(
        partial(cluster.ask, replica, "GET", path), partial(cluster.put, "fresh", "more")
    )
    assert waiting.json()["cas"] >= written.json()["cas"] >= ahead


def test_health_metrics_and_the_openapi_page_answer(cluster: Cluster) -> None:
    master = cluster.master()
    for node in cluster.nodes:
        assert cluster.get(node, "/livez")["alive"] is True
        role = "master" if node == master else "replica"
        expected = {"ready": True, "reason": "", "role": role, "mastership": "elected"}
        assert cluster.get(node, "/readyz") == expected
        metrics = cluster.ask(node, "GET", "/metrics")
        assert metrics.status_code == 200
        assert metrics.text.startswith("# HELP")
        described = cluster.get(node, "/openapi.json")
        assert {"/v1/indexes", "/v1/config/{key}", "/v1/state"} <= set(described["paths"])
        assert cluster.ask(node, "GET", "/docs").status_code == 200


def test_members_transactions_and_indexers_have_their_shapes(cluster: Cluster) -> None:
    written = cluster.put("shape", 1).json()
    master = cluster.master()
    members = cluster.get(master, "/v1/members")
    assert members["master"] == master
    rows = {row["node"]: row for row in members["members"]}
    assert set(rows) == {1, 2, 3}
    for node, row in rows.items():
        assert row["address"] == cluster.nodes[node].url
        assert row["pid"] == cluster.nodes[node].pid
        assert row["alive"] is True
    newest = cluster.get(master, "/v1/transactions?limit=1")["transactions"][0]
    assert (newest["txn"], newest["status"], newest["cas"]) == (
        written["txn"],
        "commit",
        written["cas"],
    )
    assert newest["participants"] == [1, 2, 3]
    indexers = cluster.get(master, "/v1/indexers")["indexers"]
    assert {row["id"]: row["pid"] for row in indexers} == {
        number: indexer.pid for number, indexer in cluster.indexers.items()
    }


ODD = ["\x00", "\ud800", "\U0001f600", -0.0, 1e308, 10**4000, {"": [{}, None]}, "\u2028"]


def test_any_json_value_comes_back_as_it_was_written(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number, value in enumerate(ODD):
            assert client.put_config(f"odd/{number}", value)["value"] == value
        state = cluster.settled()
        assert [state["config"][f"odd/{n}"]["value"] for n in range(len(ODD))] == ODD
        for number in range(len(ODD)):
            client.delete_config(f"odd/{number}")


DEEP = "[" * 100_000 + "]" * 100_000
CREATE = an_index("bad")

BAD_BODIES = [
    pytest.param("PUT", "/v1/config/a", b"", 400, id="no-value"),
    pytest.param("PUT", "/v1/config/a", b"{", 400, id="torn-json"),
    pytest.param("PUT", "/v1/config/a", b"NaN", 400, id="no-number"),
    pytest.param("PUT", "/v1/config/a", b"1e999", 400, id="no-finite-number"),
    pytest.param("PUT", "/v1/config/a", b"1 2", 400, id="two-values"),
    pytest.param("PUT", "/v1/config/a", b"\xff\xfe", 400, id="no-utf-8"),
    pytest.param("PUT", "/v1/config/a", DEEP[:60_000].encode(), 400, id="deep-torn"),
    pytest.param("PUT", "/v1/config/a", b"[" * 30_000 + b"]" * 30_000, 400, id="deep"),
    pytest.param("PUT", "/v1/config/a", b"9" * 60_000, 400, id="endless-number"),
    pytest.param("PUT", "/v1/config/a", b'"' + b"x" * 70_000 + b'"', 413, id="large"),
    pytest.param("PUT", "/v1/config/a", b'"' + b"x" * 2_000_000 + b'"', 413, id="very-large"),
    pytest.param("PUT", "/v1/config/a%20b", b"1", 400, id="key-with-a-space"),
    pytest.param("PUT", "/v1/config/%00", b"1", 400, id="key-of-nul"),
    pytest.param("PUT", "/v1/config/%ff", b"1", 400, id="key-of-no-utf-8"),
    pytest.param("PUT", "/v1/config/" + "k" * 300, b"1", 400, id="long-key"),
    pytest.param("PUT", "/v1/config/", b"1", 400, id="no-key"),
    pytest.param("POST", "/v1/indexes", b"", 400, id="create-nothing"),
    pytest.param("POST", "/v1/indexes", b"[]", 400, id="create-a-list"),
    pytest.param("POST", "/v1/indexes", b'{"name": "a"}', 400, id="create-half"),
    pytest.param("POST", "/v1/indexes", DEEP.encode(), 400, id="create-deep"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "slices": "3"}, 400, id="slices-as-text"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "slices": 0}, 400, id="no-slices"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "slices": 10**30}, 400, id="huge-slices"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "replicas": -1}, 400, id="minus-replicas"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "nodes": ["1"]}, 400, id="nodes-as-text"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "nodes": [10**20]}, 400, id="huge-node"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "more": 1}, 400, id="unknown-field"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "primary": True}, 400, id="primary-on-a"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "using": "btree"}, 400, id="using"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "name": ""}, 400, id="empty-name"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "name": "a\x00"}, 400, id="name-with-nul"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "bucket": "b" * 200}, 400, id="long-bucket"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "expressions": []}, 400, id="no-expression"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "expressions": ["("]}, 400, id="bad-sql"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "expressions": ["\ud800"]}, 400, id="surrogate"),
    pytest.param("POST", "/v1/indexes", {**CREATE, "where": "a ="}, 400, id="bad-where"),
    pytest.param(
        "POST", "/v1/indexes", {**CREATE, "where": "(" * 2_000 + "a" + ")" * 2_000}, 400,
        id="deep-where",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "body", "status"), BAD_BODIES)
@pytest.mark.parametrize("keyed", [False, True], ids=["", "keyed"])
def test_a_bad_body_is_refused_by_name(
    cluster: Cluster, method: str, path: str, body: Any, status: int, keyed: bool
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    if keyed:
        headers["Idempotency-Key"] = new_request_id()
    answer = cluster.ask(cluster.master(), method, path, content=content, headers=headers)
    code = {400: "invalid_request", 413: "value_too_large"}[status]
    assert (answer.status_code, error_of(answer)) == (status, code)


BAD_REQUESTS = [
    pytest.param("PUT", "/v1/config/a", {"If-Match": "x"}, 400, id="match-a-word"),
    pytest.param("PUT", "/v1/config/a", {"If-Match": "-1"}, 400, id="match-a-negative"),
    pytest.param("PUT", "/v1/config/a", {"If-Match": "1.5"}, 400, id="match-a-fraction"),
    pytest.param("PUT", "/v1/config/a", {"If-Match": ""}, 400, id="match-nothing"),
    pytest.param("PUT", "/v1/config/a", {"If-Match": "9" * 30}, 400, id="match-too-much"),
    pytest.param("PUT", "/v1/config/a", {"If-Match": "9" * 9000}, 400, id="match-digits"),
    pytest.param("PUT", "/v1/config/a", {"Idempotency-Key": ""}, 400, id="empty-id"),
    pytest.param("PUT", "/v1/config/a", {"Idempotency-Key": "i" * 200}, 400, id="long-id"),
    pytest.param("DELETE", "/v1/config/absent", {}, 404, id="delete-absent"),
    pytest.param("GET", "/v1/config/absent", {}, 404, id="get-absent"),
    pytest.param("GET", "/v1/indexes/1", {}, 404, id="no-index"),
    pytest.param("GET", "/v1/indexes/0", {}, 404, id="index-0"),
    pytest.param("GET", "/v1/indexes/-5", {}, 404, id="index-minus"),
    pytest.param("GET", "/v1/indexes/" + "9" * 30, {}, 404, id="index-huge"),
    pytest.param("GET", "/v1/indexes/" + "9" * 5000, {}, 400, id="index-endless"),
    pytest.param("GET", "/v1/indexes/x", {}, 400, id="index-word"),
    pytest.param("DELETE", "/v1/indexes/7", {}, 404, id="drop-absent"),
    pytest.param("GET", "/v1/nothing", {}, 404, id="no-path"),
    pytest.param("PATCH", "/v1/config/a", {}, 405, id="no-method"),
    pytest.param("GET", "/v1/state?consistency=strong", {}, 400, id="no-consistency"),
    pytest.param("GET", "/v1/state?at_least=-1", {}, 400, id="at-least-minus"),
    pytest.param("GET", "/v1/transactions?limit=0", {}, 400, id="limit-0"),
    pytest.param("GET", "/v1/transactions?limit=x", {}, 400, id="limit-word"),
]


@pytest.mark.parametrize(("method", "path", "headers", "status"), BAD_REQUESTS)
def test_a_bad_request_is_refused_by_name(
    cluster: Cluster, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    content = b"1" if method == "PUT" else None
    master = cluster.master()
    answer = cluster.ask(master, method, path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert (
        error_of(answer)
        in {
            400: {"invalid_request"},
            404: {"not_found", "index_not_found", "config_not_found"},
            405: {"method_not_allowed"},
        }[status]
    )


def test_bad_requests_left_every_node_well(cluster: Cluster) -> None:
    """Runs last in this file: none of the above stopped or confused a node."""
    wait_until(lambda: cluster.put("well", 1).status_code == 200, "a write")
    state = cluster.settled()
    assert "a" not in state["config"]
    assert not any(index["name"].startswith("bad") for index in state["indexes"].values())
