"""`PATCH /v1/indexes/{id}` on a node without processes: what is asked for, and what is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from coordinator.core.model.commands import AlterIndex
from coordinator.http.models import AlterIndexBody
from coordinator.node import history
from tests.support.lone_api import LoneApi


def command(**fields: Any) -> AlterIndex:
    return AlterIndexBody(**fields).command(7, dry_run=False)


def test_what_a_body_leaves_out_is_not_asked_for() -> None:
    assert command() == AlterIndex(index_id=7)
    assert command(name="x") == AlterIndex(index_id=7, new_name="x")
    assert command(replicas=0, slices=1) == AlterIndex(index_id=7, replicas=0, slices=1)
    assert command(bounds=[]) == AlterIndex(index_id=7, bounds_json="[]")
    assert command(expressions=["a"], nodes=[]) == AlterIndex(
        index_id=7, expressions=("a",), nodes=()
    )


def test_a_condition_that_is_null_goes() -> None:
    assert command(where=None) == AlterIndex(index_id=7, drops_where=True)
    assert command(where="a") == AlterIndex(index_id=7, where="a")


@pytest.mark.parametrize("fields", [{"name": None}, {"replicas": None}, {"primary": True}])
def test_a_body_has_nothing_that_cannot_be_altered(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        command(**fields)


class Api(LoneApi):
    """The API of a node, and an index on it."""

    def __init__(self) -> None:
        super().__init__()
        made = self.ask("POST", "/v1/indexes", {"name": "i", "bucket": "b", "expressions": ["a"]})
        self.index = made.json()["index"]
        self.path = f"/v1/indexes/{self.index['id']}"

    def named(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", f"/v1/indexes?name={name}").json()["indexes"]
        return found


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


@pytest.mark.thorough
def test_a_rename_takes_effect_at_once_and_a_repeat_gets_its_answer(api: Api) -> None:
    terms = {"Idempotency-Key": "r"}
    answer = api.ask("PATCH", api.path, {"name": "j"}, **terms)
    assert answer.status_code == 200
    assert answer.json()["index"] == {**api.index, "name": "j"}
    assert answer.headers["X-Applied-Cas"] == str(answer.json()["cas"])
    assert api.ask("PATCH", api.path, {"name": "j"}, **terms).json() == answer.json()
    assert [one["id"] for one in api.named("j")] == [api.index["id"]]
    assert api.named("i") == []


def test_what_is_so_already_makes_no_transaction(api: Api) -> None:
    answer = api.ask("PATCH", api.path, {"name": "i", "expressions": [" a "]}).json()
    assert (answer["index"], answer["txn"]) == (api.index, "")


def test_a_rebuild_is_answered_with_the_index_that_has_the_name_then(api: Api) -> None:
    answer = api.ask("PATCH", api.path, {"where": "b is not null", "name": "j"}).json()
    made = answer["index"]
    assert made["id"] != api.index["id"]
    assert (made["name"], made["where"], made["replaces"]) == ("j", "NOT b IS NULL", None)
    assert [one["id"] for one in api.named("j")] == [made["id"]]
    assert answer["cas"] == api.named("j")[0]["cas"]


@pytest.mark.parametrize(
    ("body", "change"),
    [({}, "none"), ({"name": "j"}, "in_place"), ({"slices": 2}, "rebuild")],
    ids=repr,
)
def test_a_dry_run_tells_and_does_nothing(api: Api, body: dict[str, Any], change: str) -> None:
    cas = api.ask("GET", "/v1/state").json()["cas"]
    answer = api.ask("PATCH", f"{api.path}?dry_run=true", body, **{"Idempotency-Key": "d"}).json()
    assert (answer["change"], answer["txn"]) == (change, "")
    assert api.ask("GET", "/v1/state").json()["cas"] == cas
    if body:
        # Nothing is remembered of it: the same key is free for the real one.
        assert api.ask("PATCH", api.path, body, **{"Idempotency-Key": "d"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        ({"expressions": ["a +"]}, {}, "invalid_request"),
        ({"expressions": []}, {}, "invalid_request"),
        ({"name": "no name"}, {}, "invalid_request"),
        ({"replicas": 3}, {}, "placement_impossible"),
        ({"name": "j"}, {"If-Match": "1"}, "cas_mismatch"),
    ],
    ids=repr,
)
def test_a_refusal_is_the_same_for_a_dry_run(
    api: Api, body: dict[str, Any], headers: dict[str, str], code: str
) -> None:
    for path in (api.path, f"{api.path}?dry_run=true"):
        assert api.ask("PATCH", path, body, **headers).json()["error"]["code"] == code


def test_an_index_that_is_not_there_is_not_found(api: Api) -> None:
    for number in (1, 2**63):
        answer = api.ask("PATCH", f"/v1/indexes/{number}", {"name": "j"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "index_not_found")


def test_an_undo_shows_a_rename_and_takes_it_back(api: Api) -> None:
    cas = api.ask("GET", "/v1/state").json()["cas"]
    api.ask("PATCH", api.path, {"name": "j"})
    body = {"to": cas}
    planned = api.ask("POST", "/v1/undo", {**body, "dry_run": True}).json()["changes"]
    done = api.ask("POST", "/v1/undo", body, **{"Idempotency-Key": "u"}).json()["changes"]
    for (change,) in (planned, done):
        shown = (change["before"]["name"], change["value"]["name"])
        assert (change["event"], *shown) == ("IndexAltered", "j", "i")
    assert [one["id"] for one in api.named("i")] == [api.index["id"]]
    again = api.ask("POST", "/v1/undo", body, **{"Idempotency-Key": "u"}).json()["changes"]
    assert [change["cas"] for change in again] == [change["cas"] for change in done]


def test_a_dry_run_of_an_undo_names_no_undo_and_no_transaction(api: Api) -> None:
    to = api.ask("GET", "/v1/state").json()["cas"]
    api.ask("PUT", "/v1/config/a", 1)
    body = {"to": to}
    planned = api.ask("POST", "/v1/undo", {**body, "dry_run": True}).json()
    assert planned.keys() == {"dry_run", "to", "changes", "kept", "cas"}
    assert (planned["dry_run"], [one["key"] for one in planned["changes"]]) == (True, ["config/a"])
    done = api.ask("POST", "/v1/undo", body, **{"Idempotency-Key": "u"}).json()
    assert (done["dry_run"], done["undo"], len(done["txns"])) == (False, "u", 1)


def transact(api: Api, *then: dict[str, Any], **headers: str) -> httpx.Response:
    return api.ask("POST", "/v1/txn", {"then": [*then]}, **headers)


def test_an_undo_to_a_cas_within_a_transaction_leaves_that_whole_however_large(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of the past that is too small for it would divide it."""
    monkeypatch.setattr(history, "PAGE_BYTES_MAX", 10)
    done = transact(api, *({"put": {"key": f"config/{key}", "value": 1}} for key in "abc"))
    first = done.json()["results"][0]["cas"]
    assert first < done.json()["cas"], "it is within the transaction"
    api.ask("PUT", "/v1/config/b", 2)
    undone = api.ask("POST", "/v1/undo", {"to": first}, **{"Idempotency-Key": "u"}).json()
    shown = [(one["key"], one["before"], one["value"]) for one in undone["changes"]]
    assert shown == [("config/b", 2, 1)]


def test_a_transaction_renames_an_index_with_what_goes_with_it(api: Api) -> None:
    named = {"bucket": "b", "name": "i", "changes": {"name": "j"}}
    put = {"put": {"key": "config/current", "value": "j"}}
    terms = {"Idempotency-Key": "t"}
    first = transact(api, {"alter_index": named}, put, **terms)
    assert first.status_code == 200
    keys = [result["key"] for result in first.json()["results"]]
    assert keys == [f"index/{api.index['id']}", "config/current"]
    assert [index["id"] for index in api.named("j")] == [api.index["id"]]
    assert transact(api, {"alter_index": named}, put, **terms).json() == first.json()


def test_a_transaction_whose_alter_is_refused_changes_nothing(api: Api) -> None:
    put = {"put": {"key": "config/current", "value": "j"}}
    rebuild = {"alter_index": {"id": api.index["id"], "changes": {"expressions": ["z"]}}}
    refused = transact(api, put, rebuild)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    assert refused.json()["error"]["details"] == {"operation": 1}
    wrong = {"alter_index": {"id": api.index["id"], "changes": {"expressions": ["ELSE"]}}}
    assert transact(api, put, wrong).json()["error"]["message"].startswith("operation 1: ")
    assert api.ask("GET", "/v1/config").json()["config"] == {}


@pytest.mark.parametrize(
    "body",
    [
        {"id": "1"},
        {"changes": {"name": "j"}},
        {"id": "1", "bucket": "b", "name": "i", "changes": {}},
        {"id": "1", "changes": {"primary": True}},
        {"id": "1", "changes": {}, "dry_run": True},
    ],
)
def test_what_is_no_alter_of_a_transaction_is_refused(api: Api, body: dict[str, Any]) -> None:
    refused = transact(api, {"alter_index": body})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
