"""`indexctl undo`: it shows what would change, and does it only when it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from tests.support.http_node import Answer, Node, Request

CHANGE: dict[str, Any] = {
    "key": "config/a",
    "kind": "setting",
    "event": "SettingWritten",
    "cas": 0,
    "txn": "",
    "before_cas": 9,
    "before": {"x": 2},
    "value": {"x": 1},
    "dropped": False,
    "undoes": 7,
}


class Scripted:
    """A node where an undo has one change, or none."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = [CHANGE]
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: Request) -> Answer:
        if request.path == "/v1/history":
            row = {**CHANGE, "cas": 13, "txn": "2-5", "principal": "", "request": "r", "at_ms": 1}
            return Answer(200, {"events": [row], "next": None, "cas": 13})
        if request.path != "/v1/undo":
            return Answer(200, {"members": [], "epoch": 1})
        body = json.loads(request.body)
        self.bodies.append(body)
        kept = [{"key": "bucket/b", "reason": "it stays"}]
        done = {} if body["dry_run"] else {"undo": "", "txns": ["2-5"]}
        answer = {"dry_run": body["dry_run"], "to": 7, "changes": self.changes, "kept": kept}
        return Answer(200, {**answer, "cas": 12, **done})


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    script = Scripted()
    node = Node(script)
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield script
    node.stop()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["undo", "--to", "7", *arguments])


def test_a_dry_run_shows_the_values_and_changes_nothing(scripted: Scripted) -> None:
    found = run("--dry-run", "--only", "config/a")
    assert found.exit_code == 0, found.output
    assert [(b["to"], b["only"], b["dry_run"]) for b in scripted.bodies] == [
        (7, ["config/a"], True)
    ]
    for text in ("config/a", "- 2", "+ 1", "bucket/b: it stays", "1 to change"):
        assert text in found.stdout


def test_nothing_is_done_that_was_not_confirmed(scripted: Scripted) -> None:
    found = run()
    assert found.exit_code == 2
    assert "--yes" in found.output
    assert all(body["dry_run"] for body in scripted.bodies)


def test_what_was_shown_is_what_is_done(scripted: Scripted) -> None:
    found = run("--yes", "--in-steps")
    assert found.exit_code == 0, found.output
    assert [(b["dry_run"], b["expected_cas"], b["in_steps"]) for b in scripted.bodies] == [
        (True, None, False),
        (False, 12, True),
    ]
    assert "1 changed by 2-5" in found.stdout
    assert json.loads(run("--yes", "--json").stdout) == CHANGE


def test_a_moment_before_the_first_change_is_named_as_it_was_given(scripted: Scripted) -> None:
    found = CliRunner().invoke(app, ["undo", "--to", "0"])
    assert found.exit_code == 1
    assert "--to 0: nothing had been committed by then" in found.output
    assert "[invalid_request]" in found.output
    assert scripted.bodies == []


def test_where_nothing_differs_nothing_is_asked(scripted: Scripted) -> None:
    scripted.changes = []
    found = run()
    assert found.exit_code == 0, found.output
    assert "0 to change" in found.stdout


def test_the_history_shows_what_an_undo_led_back_to(scripted: Scripted) -> None:
    found = CliRunner().invoke(app, ["history", "--since", "0"])
    assert found.exit_code == 0, found.output
    assert "txn 2-5  undoes to CAS 7" in found.stdout
