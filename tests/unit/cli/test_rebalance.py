"""`indexctl rebalance`, `drain` and `rebalances`: what is asked of the nodes, and what is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from coordinator.cli.output import Exit
from tests.support.http_node import Answer, Node, Request

MOVE: dict[str, Any] = {
    "index": "1099511630848",
    "slice": 1,
    "from": "2",
    "to": "3",
    "bytes": 123_456,
    "state": "pending",
    "part": "7",
    "why": "indexer 2 is drained",
    "reason": None,
    "progress": {"percent": 41.0},
}


INDEX = {"id": "1099511630848", "bucket": "travel", "name": "by_city"}


def a_rebalance(state: str = "running", *moves: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "id": "9",
        "state": state,
        "drain": ["2"],
        "began_ms": 1_700_000_000_000,
        "ended_ms": 1_700_000_004_500 if state in ("done", "cancelled") else None,
        "moves": [*moves],
        "load_before": {"2": 0.5, "3": 0.5},
        "load_after": {"2": 0.0, "3": 1.0},
        **more,
    }


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    node = Node(lambda request: Answer(200, {}))
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield node
    node.stop()


class Script:
    """Answers of a node, one after the other; it notes what was asked."""

    def __init__(self, node: Node, *answers: tuple[int, dict[str, Any]]) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.left = [*answers]
        node.script = self.answered

    def answered(self, request: Request) -> Answer:
        if request.path == "/v1/members":
            return Answer(200, {"master": 1, "members": []})
        if request.path == "/v1/indexes":
            return Answer(200, {"indexes": [INDEX], "cas": 9})
        body = json.loads(request.body) if request.body else None
        self.asked.append((request.method, request.path, body))
        answer = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        return Answer(*answer)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, [*args])


def begun(rebalance: dict[str, Any], *impossible: dict[str, Any]) -> dict[str, Any]:
    return {"rebalance": rebalance, "impossible": [*impossible], "cas": 9, "txn": "1.2"}


def test_a_dry_run_shows_what_would_move_and_why(node: Node) -> None:
    planned = a_rebalance("planned", {**MOVE, "state": "start", "progress": None}, id=None)
    script = Script(node, (200, begun(planned)))
    result = run("rebalance", "--dry-run", "--max-moves", "5")
    assert result.exit_code == 0, result.output
    assert script.asked == [
        ("POST", "/v1/rebalance", {"drain": [], "dry_run": True, "max_moves": 5})
    ]
    for text in (
        "travel.by_city",
        "123,456",
        "indexer 2 is drained",
        "50.0% of the load, then 0.0%",
    ):
        assert text in result.output, result.output
    assert "rebalance None" not in result.output


def test_where_the_load_is_balanced_it_says_so(node: Node) -> None:
    Script(node, (200, begun(a_rebalance("done"))))
    assert "nothing to move" in run("rebalance").output


@pytest.mark.thorough
def test_it_waits_until_all_has_moved(node: Node) -> None:
    done = {"rebalances": [a_rebalance("done", {**MOVE, "state": "done"})], "cas": 9}
    going = {"rebalances": [a_rebalance("running", MOVE)], "cas": 9}
    script = Script(node, (200, begun(a_rebalance("running", MOVE))), (200, going), (200, done))
    result = run("rebalance", "--wait", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["rebalance"]["state"] == "done"
    assert [method for method, _, _ in script.asked] == ["POST", "GET", "GET"]


@pytest.mark.thorough
def test_it_waits_for_no_rebalance_that_nobody_knows_any_more(node: Node) -> None:
    others = {"rebalances": [a_rebalance("done", MOVE, id="10")], "cas": 9}
    Script(node, (200, begun(a_rebalance("running", MOVE))), (200, others))
    result = run("rebalance", "--wait", "--timeout", "20")
    assert result.exit_code == 0, result.output
    assert "rebalance 9 was over long ago" in result.output


@pytest.mark.thorough
def test_it_waits_no_longer_than_it_is_told(node: Node) -> None:
    going = {"rebalances": [a_rebalance("running", MOVE)], "cas": 9}
    Script(node, (200, begun(a_rebalance("running", MOVE))), (200, going))
    result = run("rebalance", "--wait", "--timeout", "0.6")
    assert result.exit_code == Exit.UNAVAILABLE
    assert "it goes on" in result.output


def test_a_rebalance_is_cancelled_by_its_id(node: Node) -> None:
    script = Script(node, (200, begun(a_rebalance("cancelling", MOVE))))
    result = run("rebalance", "--cancel", "9")
    assert script.asked == [("DELETE", "/v1/rebalance/9", None)]
    assert "rebalance 9: cancelling" in result.output


def test_several_indexers_are_drained_at_once(node: Node) -> None:
    script = Script(node, (200, begun(a_rebalance("running", MOVE))))
    assert run("drain", "2", "4").exit_code == 0
    assert script.asked == [("POST", "/v1/rebalance", {"drain": [2, 4], "dry_run": False})]


def test_a_drain_that_cannot_be_completed_says_what_stays_and_why(node: Node) -> None:
    stays = {"index": "7", "slice": 0, "rule": "copies", "why": "2 copies need 2 indexers"}
    Script(node, (200, begun(a_rebalance("running", MOVE), stays)))
    result = run("drain", "2")
    assert result.exit_code == Exit.CONFLICT
    assert "slice 0 of 7 stays where it is: 2 copies need 2 indexers" in result.output


@pytest.mark.thorough
def test_a_move_that_has_failed_fails_a_drain_that_waits(node: Node) -> None:
    failed = {**MOVE, "state": "failed", "reason": "indexer 3: the disk is full", "progress": None}
    done = {"rebalances": [a_rebalance("done", failed)], "cas": 9}
    Script(node, (200, begun(a_rebalance("running", MOVE))), (200, done))
    result = run("drain", "2", "--wait")
    assert result.exit_code == Exit.CONFLICT
    assert "the disk is full" in result.output


@pytest.mark.parametrize(("slices", "code"), [(0, Exit.OK), (44, Exit.CONFLICT)])
def test_a_drain_that_waits_ends_well_only_if_nothing_is_left(
    node: Node, slices: int, code: Exit
) -> None:
    """More copies than one rebalance moves are not in its plan, and not impossible either."""
    done = a_rebalance("done", {**MOVE, "state": "done"})
    rows = [{"id": 2, "slices": slices}, {"id": 3, "slices": 5}]
    Script(node, (200, begun(done)), (200, {"indexers": rows}))
    result = run("drain", "2", "--wait")
    assert result.exit_code == code, result.output
    assert ("indexer 2 still has 44 slices" in result.output) == bool(slices)


def test_the_last_rebalances_are_listed_with_the_moves_of_the_one_that_runs(node: Node) -> None:
    rows = [a_rebalance("running", MOVE), a_rebalance("done", {**MOVE, "state": "done"}, id="5")]
    Script(node, (200, {"rebalances": rows, "cas": 9}))
    output = run("rebalances").output
    assert "4.5 s" in output
    assert "so far" in output
    assert "pending 41 %" in output
    Script(node, (200, {"rebalances": [], "cas": 9}))
    assert run("rebalances").output == "no rebalances\n"
    assert json.loads(run("rebalances", "--json").output) == {"rebalances": [], "cas": 9}


def test_a_refusal_is_told(node: Node) -> None:
    error = {"code": "rebalance_running", "message": "rebalance 5 is under way", "details": {}}
    Script(node, (409, {"error": error}))
    result = run("rebalance")
    assert result.exit_code == Exit.CONFLICT
    assert "rebalance 5 is under way" in result.output
