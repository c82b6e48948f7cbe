"""Undo on a real cluster: back to how it was, by ordinary changes that the history tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordinator.client.client import Client
from coordinator.client.errors import ConflictError, CoordinatorError
from coordinator.client.request_ids import new_request_id
from tests.integration.cluster import Cluster, an_index

pytestmark = pytest.mark.integration


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as client:
        yield client


def config_of(client: Client) -> dict[str, Any]:
    listed = client.list_config(consistency="linearizable")["config"]
    return {key: held["value"] for key, held in listed.items()}


def definitions_of(client: Client) -> dict[str, Any]:
    listed = client.list_indexes(consistency="linearizable")["indexes"]
    return {
        index["name"]: (index["expressions"], index["where"])
        for index in listed
        if index["state"] != "dropping"
    }


def test_an_undo_leads_back_says_so_in_the_history_and_can_be_undone(client: Client) -> None:
    client.put_config("undo/kept", {"deep": [1]})
    client.put_config("undo/gone", None)
    old = client.create_index(an_index("undone", where="a > 1"))["index"]["id"]
    before = client.state(consistency="linearizable")["cas"]
    wanted = (config_of(client), definitions_of(client))

    client.put_config("undo/kept", 2)
    client.delete_config("undo/gone")
    client.put_config("undo/new", 3)
    client.drop_index(old)
    client.create_index(an_index("undone", expressions=["b"]))
    after = client.state(consistency="linearizable")["cas"]
    changed = (config_of(client), definitions_of(client))

    planned = client.undo(before, dry_run=True)
    assert (config_of(client), definitions_of(client)) == changed, "a dry run changes nothing"
    request = new_request_id()
    done = client.undo(before, expected_cas=planned["cas"], request_id=request)
    assert (config_of(client), definitions_of(client)) == wanted
    shapes = [
        [(c["key"], c["event"], c["before"], c["value"]) for c in answer["changes"]]
        for answer in (planned, done)
    ]
    assert shapes[0] == shapes[1]
    (created,) = [c for c in done["changes"] if c["event"] == "IndexProposed"]
    assert created["key"] == f"index/{old}"
    assert created["index"]["id"] != old

    (txn,) = done["txns"]
    told = list(client.history_all(after=before, txn=txn))
    assert {e["undoes"] for e in told} == {before}
    assert {e["request"] for e in told} == {request}
    assert {e["undoes"] for e in client.history_all(after=before, until=after)} == {None}

    again = client.undo(before, expected_cas=planned["cas"], request_id=request)
    assert again["txns"] == [txn]
    assert sorted(c["cas"] for c in again["changes"]) == sorted(e["cas"] for e in told)
    assert client.undo(before)["changes"] == []

    client.undo(after)
    assert (config_of(client), definitions_of(client)) == changed


def test_only_what_is_named_is_undone(client: Client) -> None:
    before = client.put_config("only/a", 1)["cas"]
    client.put_config("only/a", 2)
    client.put_config("only/b", 2)
    done = client.undo(before, ["config/only/b", "config/never"])
    assert [c["key"] for c in done["changes"]] == ["config/only/b"]
    assert [k["key"] for k in done["kept"]] == ["config/never"]
    assert config_of(client)["only/a"] == 2


def test_what_was_not_looked_at_is_not_undone(client: Client) -> None:
    before = client.put_config("seen", 1)["cas"]
    client.put_config("seen", 2)
    planned = client.undo(before, dry_run=True)
    client.put_config("unseen", 3)
    with pytest.raises(ConflictError) as refusal:
        client.undo(before, expected_cas=planned["cas"])
    assert refusal.value.code == "cas_mismatch"
    assert config_of(client)["seen"] == 2
    client.put_config("seen", 1)
    client.delete_config("unseen")


def test_what_does_not_fit_into_one_transaction_is_undone_in_steps(client: Client) -> None:
    before = client.state(consistency="linearizable")["cas"]
    many = [{"put": {"key": f"config/many/{n}", "value": n}} for n in range(256)]
    client.transact(then=many)
    client.put_config("many/last", 1)
    with pytest.raises(CoordinatorError) as refusal:
        client.undo(before)
    assert refusal.value.code == "too_large"
    planned = client.undo(before, dry_run=True)
    assert len(planned["changes"]) == 257
    terms = {"expected_cas": planned["cas"], "in_steps": True, "request_id": new_request_id()}
    done = client.undo(before, **terms)
    assert len(done["txns"]) > 1
    assert len(done["changes"]) == 257
    assert not [key for key in config_of(client) if key.startswith("many/")]

    client.put_config("many/0", "later")
    again = client.undo(before, **terms)
    assert config_of(client)["many/0"] == "later", "a repeat is no second undo"
    assert again["txns"] == done["txns"]
    assert sorted(c["key"] for c in again["changes"]) == sorted(c["key"] for c in done["changes"])


def test_an_undo_in_steps_gives_a_name_back_that_another_index_took(client: Client) -> None:
    old = client.create_index(an_index("stepped"))["index"]["id"]
    before = client.state(consistency="linearizable")["cas"]
    wanted = definitions_of(client)
    client.drop_index(old)
    client.create_index(an_index("stepped", expressions=["b"]))
    client.transact(then=[{"put": {"key": f"config/step/{n}", "value": n}} for n in range(64)])
    planned = client.undo(before, dry_run=True)
    done = client.undo(before, expected_cas=planned["cas"], in_steps=True)
    assert len(done["txns"]) == 2
    assert len(done["changes"]) == len(planned["changes"]) == 66
    assert definitions_of(client) == wanted


def test_the_whole_transaction_that_is_led_back_to_stays(client: Client) -> None:
    """A writer knows the CAS of its own change, and not what else its transaction has."""
    pair = [{"put": {"key": f"config/pair/{name}", "value": 1}} for name in "ab"]
    first, second = client.transact(then=pair)["results"]
    client.put_config("pair/b", 2)
    done = client.undo(first["cas"], ["config/pair/a", "config/pair/b"])
    assert done["to"] == second["cas"]
    assert {c["undoes"] for c in done["changes"]} == {second["cas"]}
    assert [config_of(client)[f"pair/{name}"] for name in "ab"] == [1, 1]


@pytest.mark.parametrize("expected", [None, 2**50])
def test_a_cas_that_is_still_to_come_was_not_looked_at(client: Client, expected: int) -> None:
    to = 2**50 if expected is None else 1
    with pytest.raises(CoordinatorError) as refusal:
        client.undo(to, expected_cas=expected)
    assert refusal.value.code == "invalid_request"


def test_an_undo_beside_writers_loses_none_of_their_later_writes(cluster: Cluster) -> None:
    """Each entity is guarded by the CAS that was seen: whoever wrote later is not overwritten."""
    with cluster.client() as client:
        before = client.put_config("raced", 0)["cas"]

        def write(number: int) -> int:
            with cluster.client() as own:
                return max(own.put_config("raced", number)["cas"] for _ in range(10))

        with ThreadPoolExecutor(2) as pool:
            codes: list[str] = []
            writing = [pool.submit(write, number) for number in (1, 2)]
            try:
                client.undo(before, ["config/raced"])
            except ConflictError as error:
                codes.append(error.code)
            [one.result() for one in writing]
        assert codes in ([], ["cas_mismatch"])
        events = list(client.history_all(after=before, key="config/raced"))
        cas = before
        for event in events:
            assert event["before_cas"] == cas
            cas = event["cas"]
        assert len([e for e in events if e["undoes"] is None]) == 20
