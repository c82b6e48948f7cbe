"""DDL and settings on a real cluster: the laws that clients rely on, with nothing failing."""

from __future__ import annotations

import random
import time
import uuid
from functools import partial

import httpx
import pytest

from coordinator.client.client import Client
from coordinator.client.errors import ConflictError, NotFoundError
from coordinator.client.request_ids import new_request_id
from tests.integration.cluster import Cluster, an_index, error_of, in_parallel, shown

pytestmark = pytest.mark.integration

CLIENTS = 8
DDL = 200


def _mixed_ddl(client: Client, number: int, count: int) -> None:
    """Do `count` creates, drops and settings, some of which meet those of the other clients."""
    choose = random.Random(number)
    for step in range(count):
        name = f"mixed{choose.randrange(20)}"
        try:
            match choose.choice(("create", "create", "drop", "config", "unconfig")):
                case "create":
                    client.create_index(an_index(name, replicas=choose.randrange(3)))
                case "drop":
                    client.drop_index(bucket="travel", name=name)
                case "config":
                    client.put_config(f"mixed/{choose.randrange(10)}", [number, step])
                case "unconfig":
                    client.delete_config(f"mixed/{choose.randrange(10)}")
        except (ConflictError, NotFoundError):
            pass  # Another client was faster: an answer like any other.


def test_all_nodes_history_and_statecontext_give_one_digest(cluster: Cluster) -> None:
    def load(number: int) -> None:
        with cluster.client(number % 3 + 1) as client:
            _mixed_ddl(client, number, DDL // CLIENTS)

    in_parallel(*(partial(load, n) for n in range(CLIENTS)))
    state = cluster.settled()
    assert state["indexes"]
    assert state["config"]
    assert cluster.digest_by_history() == shown(state)
    assert cluster.digest_by_statecontext(state["cas"]) == shown(state)


def test_of_two_creators_of_a_name_exactly_one_wins(cluster: Cluster) -> None:
    def create(client: Client, name: str) -> str:
        try:
            return str(client.create_index(an_index(name))["index"]["id"])
        except ConflictError as error:
            return f"{error.code} as {error.details['id']}"

    with cluster.client(1) as one, cluster.client(2) as other:
        for attempt in range(20):
            name = f"race{attempt}"
            answers = in_parallel(
                partial(create, one, name),
                partial(create, other, name),
            )
            winner = min(answers)
            assert sorted(answers) == [winner, f"index_exists as {winner}"]
            assert [i["id"] for i in one.list_indexes(name=name)["indexes"]] == [winner]


def test_both_creators_succeed_with_if_not_exists(cluster: Cluster) -> None:
    with cluster.client(1) as one, cluster.client(2) as other:
        for attempt in range(8):
            body = an_index(f"both{attempt}", if_not_exists=True)
            first, second = in_parallel(
                partial(one.create_index, body),
                partial(other.create_index, body),
            )
            assert first["index"] == second["index"]
            assert first["cas"] == second["cas"]
            assert [first.get("existed", False), second.get("existed", False)].count(True) == 1


# -- idempotency ---------------------------------------------------------------------------------


def _twice(cluster: Cluster, method: str, path: str, **more: object) -> httpx.Response:
    """Send a request twice under one key; return the answer, which must be the same."""
    headers = {"Idempotency-Key": new_request_id()}
    master = cluster.master()
    first = cluster.ask(master, method, path, headers=headers, **more)
    again = cluster.ask(master, method, path, headers=headers, **more)
    assert again.json() == first.json()
    assert again.status_code == first.status_code
    return first


def test_a_repeat_under_the_same_key_gets_the_first_answer(cluster: Cluster) -> None:
    made = _twice(cluster, "POST", "/v1/indexes", json=an_index("idem"))
    assert made.status_code == 201
    path = f"/v1/indexes/{made.json()['index']['id']}"
    headers = {"Idempotency-Key": new_request_id()}
    first, again = (
        cluster.ask(cluster.master(), "DELETE", path, headers=headers).json() for _ in range(2)
    )
    # An index is shown as it is now: it may be gone already.
    assert again | {"index": again["index"]["id"]} == first | {"index": first["index"]["id"]}
    assert _twice(cluster, "PUT", "/v1/config/idem", json={"a": 1}).json()["value"] == {"a": 1}
    assert _twice(cluster, "DELETE", "/v1/config/idem").status_code == 200


def test_a_repeat_gets_the_first_answer_although_the_world_has_moved_on(cluster: Cluster) -> None:
    headers = {"Idempotency-Key": new_request_id()}
    first = cluster.put("moved", 1, **headers)
    assert cluster.put("moved", 2).status_code == 200
    assert cluster.put("moved", 1, **headers).json() == first.json()
    with cluster.client() as client:
        assert client.get_config("moved", consistency="linearizable")["value"] == 2


def test_another_command_under_a_used_key_is_a_mismatch(cluster: Cluster) -> None:
    headers = {"Idempotency-Key": new_request_id()}
    assert cluster.put("mine", 1, **headers).status_code == 200
    master = cluster.master()
    others = [
        cluster.put("mine", 2, **headers),
        cluster.put("yours", 1, **headers),
        cluster.put("mine", 1, **headers, **{"If-Match": "7"}),
        cluster.ask(master, "DELETE", "/v1/config/mine", headers=headers),
        cluster.ask(master, "POST", "/v1/indexes", json=an_index("mine"), headers=headers),
    ]
    assert [(r.status_code, error_of(r)) for r in others] == [(422, "request_mismatch")] * 5


def test_a_time_ordered_id_older_than_the_window_is_expired(cluster: Cluster) -> None:
    born_ms = time.time_ns() // 1_000_000 - 3_600_000
    bits = born_ms << 80 | 0x7 << 76 | 0x2 << 62 | random.getrandbits(60)
    old = cluster.put("old", 1, **{"Idempotency-Key": str(uuid.UUID(int=bits))})
    assert (old.status_code, error_of(old)) == (410, "request_expired")
    assert cluster.ask(cluster.master(), "GET", "/v1/config/old").status_code == 404


# -- compare and set -----------------------------------------------------------------------------


def test_a_mismatch_changes_nothing_and_shows_both_values(cluster: Cluster) -> None:
    first = cluster.put("cas/one", "a", **{"If-Match": "0"}).json()
    again = cluster.put("cas/one", "b", **{"If-Match": "0"})
    assert (again.status_code, error_of(again)) == (412, "cas_mismatch")
    assert again.json()["error"]["details"] == {
        "expected": 0,
        "actual": first["cas"],
        "value": "a",
    }
    second = cluster.put("cas/one", "b", **{"If-Match": f'"{first["cas"]}"'}).json()
    assert second["cas"] > first["cas"]
    late = cluster.put("cas/one", "c", **{"If-Match": str(first["cas"])})
    assert late.json()["error"]["details"] == {
        "expected": first["cas"],
        "actual": second["cas"],
        "value": "b",
    }
    absent = cluster.put("cas/absent", 1, **{"If-Match": "17"})
    assert absent.json()["error"]["details"] == {"expected": 17, "actual": 0}
    with cluster.client() as client:
        assert client.get_config("cas/one", consistency="linearizable")["value"] == "b"


def test_an_index_is_dropped_only_at_the_expected_cas(cluster: Cluster) -> None:
    with cluster.client() as client:
        made = client.create_index(an_index("guarded"))
        with pytest.raises(ConflictError) as refusal:
            client.drop_index(made["index"]["id"], expected_cas=made["cas"] + 1)
        assert refusal.value.code == "cas_mismatch"
        assert refusal.value.details == {"expected": made["cas"] + 1, "actual": made["cas"]}
        assert client.get_index(made["index"]["id"], consistency="linearizable")["cas"]
        client.drop_index(made["index"]["id"], expected_cas=made["cas"])


def test_concurrent_increments_lose_no_update(cluster: Cluster) -> None:
    increments, clients = 15, 4
    with cluster.client() as client:
        client.put_config("counter", 0)

    def increment(node: int) -> int:
        conflicts = 0
        with cluster.client(node) as client:
            done = 0
            while done < increments:
                held = client.get_config("counter", consistency="linearizable")
                try:
                    client.put_config("counter", held["value"] + 1, expected_cas=held["cas"])
                    done += 1
                except ConflictError:
                    conflicts += 1
        return conflicts

    conflicts = in_parallel(*(partial(increment, n % 3 + 1) for n in range(clients)))
    assert sum(conflicts), "they never met: this shows nothing"
    with cluster.client() as client:
        held = client.get_config("counter", consistency="linearizable")
        assert held["value"] == increments * clients
