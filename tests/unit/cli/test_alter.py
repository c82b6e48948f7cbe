"""`indexctl alter` and ALTER INDEX in a script: what is asked for, and what is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from tests.support.http_node import Answer, Node, Request

INDEX: dict[str, Any] = {"id": "7", "name": "i", "bucket": "b", "state": "maintenance"}
DROPPING = {**INDEX, "id": "6", "state": "dropping", "replaces": None}


class Scripted:
    """A node with one index, beside one of its name that is being dropped."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answer: dict[str, Any] = {"index": INDEX, "cas": 12, "txn": "2-5"}

    def __call__(self, request: Request) -> Answer:
        if request.method == "PATCH":
            self.asked.append(request)
            return Answer(200, self.answer)
        if request.path == "/v1/indexes":
            return Answer(200, {"indexes": [DROPPING, {**INDEX, "replaces": None}], "cas": 11})
        if request.path.startswith("/v1/indexes/"):
            return Answer(200, {"index": INDEX, "cas": 11})
        return Answer(200, {"members": [], "epoch": 1})

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.asked]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    script = Scripted()
    node = Node(script)
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield script
    node.stop()


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, arguments, input=stdin)


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        (["b.i", "--rename", "j", "--replicas", "0"], {"name": "j", "replicas": 0}),
        (["i", "--bucket", "b", "--no-where"], {"where": None}),
        (["7", "--on", "x", "--where", "y"], {"expressions": ["x"], "where": "y"}),
        (
            ["7", "--bound", '"F"', "--node", "1", "--slices", "2"],
            {"partitioning": "range", "bounds": [["F"]], "nodes": [1], "slices": 2},
        ),
        (["ALTER INDEX i ON b RENAME TO j"], {"name": "j"}),
    ],
    ids=repr,
)
def test_only_what_is_named_is_asked_for(
    scripted: Scripted, arguments: list[str], body: dict[str, Any]
) -> None:
    result = run("alter", *arguments)
    assert result.exit_code == 0, result.output
    assert scripted.bodies == [body]
    assert scripted.asked[0].path == "/v1/indexes/7"
    assert result.stdout == "altered i on b: id 7, maintenance, cas 12\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"txn": ""}, "unchanged i on b: cas 12"),
        ({"index": {**INDEX, "id": "9"}}, "rebuilt, was 7, i on b: id 9, maintenance, cas 12"),
        ({"change": "none", "txn": ""}, "i on b: nothing would change"),
        ({"change": "in_place", "txn": ""}, "i on b: would change in place"),
        (
            {"change": "rebuild", "txn": ""},
            "i on b: would be built anew beside the old one, which it then replaces",
        ),
    ],
    ids=repr,
)
def test_it_says_how_the_index_is_changed(
    scripted: Scripted, answer: dict[str, Any], said: str
) -> None:
    scripted.answer |= answer
    assert run("alter", "7", "--rename", "j").stdout == f"{said}\n"


def test_a_dry_run_is_asked_for_as_such(scripted: Scripted) -> None:
    scripted.answer |= {"change": "in_place", "txn": ""}
    result = run("alter", "7", "--rename", "j", "--dry-run", "--if-match", "3", "--json")
    assert json.loads(result.stdout)["change"] == "in_place"
    (request,) = scripted.asked
    assert request.query == {"dry_run": "true"}
    assert request.headers["if-match"] == "3"


@pytest.mark.parametrize(
    "arguments",
    [
        ["7"],
        ["i", "--rename", "j"],
        ["7", "--where", "x", "--no-where"],
        ["7", "--bound", "["],
        ["ALTER INDEX i ON b RENAME TO j", "--replicas", "0"],
        ["DROP INDEX i ON b"],
    ],
    ids=repr,
)
def test_wrong_usage_asks_for_nothing(scripted: Scripted, arguments: list[str]) -> None:
    assert run("alter", *arguments).exit_code in (2, 3)
    assert scripted.asked == []


def test_a_script_alters_the_index_that_has_the_name_now(scripted: Scripted) -> None:
    result = run("apply", "-", "--json", stdin="ALTER INDEX i ON b RENAME TO j")
    (told,) = json.loads(result.stdout)["results"]
    assert (told["verb"], told["outcome"], told["id"]) == ("alter", "altered", "7")
    assert scripted.asked[0].path == "/v1/indexes/7"
