"""`indexctl rollbacks`: what is shown of a rollback that goes on, and of one that is over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.cli import rollbacks
from coordinator.cli.main import app
from coordinator.cli.moments import moment
from tests.support.http_node import Answer, Node, Request

ENDED: dict[str, Any] = {
    "bucket": "travel",
    "number": "4294967299",
    "state": "done",
    "reason": "2 vbuckets have lost what indexers hold",
    "failover": {"1": ["7", "0"], "3": ["9", "5"]},
    "restart": {"1": ["7", "0"]},
    "vbuckets": [1, 3],
    "began_ms": 1_700_000_000_000,
    "ended_ms": 1_700_000_012_300,
    "indexers": None,
}


def an_indexer(number: int, *, done: bool = True, recovering: bool = False) -> dict[str, Any]:
    return {"indexer": number, "done": done, "recovering": recovering, "branched": 0}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(lambda request: Answer(200, {"rollbacks": [], "cas": 9}))
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield node
    node.stop()


def said(node: Node, *rows: dict[str, Any], json: bool = False) -> str:
    """Return what the command prints where a node shows these rollbacks to who asks the master."""

    def answered(request: Request) -> Answer:
        if request.path == "/v1/members":
            return Answer(200, {"master": 1, "members": []})
        assert (request.path, request.query) == ("/v1/rollbacks", {"consistency": "linearizable"})
        return Answer(200, {"rollbacks": [*rows], "cas": 9})

    node.script = answered
    result = CliRunner().invoke(app, ["rollbacks", *(["--json"] if json else [])])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_where_no_store_has_lost_anything_it_says_so(node: Node) -> None:
    assert said(node) == "no rollbacks\n"
    assert json.loads(said(node, json=True)) == {"rollbacks": [], "cas": 9}


def test_one_that_is_over_says_how_long_it_took(node: Node) -> None:
    line = said(node, ENDED).splitlines()[3]
    began = moment(ENDED["began_ms"])
    for text in ("travel", "done", " 2 ", began, " 12.3 s ", ENDED["reason"]):
        assert text in line, line
    assert "so far" not in line
    assert json.loads(said(node, ENDED, json=True))["rollbacks"] == [ENDED]


def test_one_that_goes_on_says_for_how_long_and_who_has_gone_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexers = [an_indexer(1), an_indexer(2), an_indexer(3, done=False)]
    going_on = {**ENDED, "state": "rollback", "ended_ms": None, "indexers": indexers}
    monkeypatch.setattr(time, "time_ns", lambda: (ENDED["began_ms"] + 4_500) * 1_000_000)
    going, ended = said(node, going_on, {**ENDED, "bucket": "other"}).splitlines()[3:5]
    assert " 4.5 s so far " in going
    assert " 2 of 3 " in going
    assert "other" in ended
    monkeypatch.setattr(time, "time_ns", lambda: 1)  # A clock that is behind the master's.
    assert " 0.0 s so far " in said(node, going_on)


@pytest.mark.parametrize(
    ("indexers", "text"),
    [
        (None, ""),
        ([], ""),
        ([an_indexer(1, done=False)], "0 of 1"),
        ([an_indexer(1, done=False, recovering=True), an_indexer(2)], "1 of 2"),
        ([an_indexer(1), an_indexer(2, recovering=True)], "1 of 2, 1 recovering"),
    ],
)
def test_who_waits_for_what_comes_again_is_not_done(
    indexers: list[dict[str, Any]] | None, text: str
) -> None:
    assert rollbacks._done(indexers) == text
