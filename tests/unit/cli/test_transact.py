"""`indexctl txn`: what it sends, what it shows, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from tests.support.http_node import Answer, Node, Request

GIVEN: dict[str, Any] = {
    "compare": [{"key": "config/lock", "cas": 0}, {"bucket": "b", "name": "n", "cas": 7}],
    "then": [
        {"put": {"key": "config/lock", "value": "me"}},
        {"create_index": {"name": "i", "bucket": "b"}},
    ],
    "else": [{"delete": {"key": "config/late"}}],
}
DONE: dict[str, Any] = {
    "succeeded": True,
    "compared": [{"key": "config/lock", "cas": 0}, {"key": "index/3", "cas": 7}],
    "results": [
        {"key": "config/lock", "cas": 8},
        {
            "key": "index/5",
            "cas": 12,
            "index": {"name": "i", "state": "dropping"},
            "error": {"code": "indexer_refused", "message": "no room"},
        },
    ],
    "cas": 12,
    "txn": "1-4",
}
NOTHING: dict[str, Any] = {
    "succeeded": False,
    "compared": [{"key": "config/lock", "cas": 5}, {"key": "index/3", "cas": 7}],
    "results": [],
    "cas": 12,
    "txn": "",
}


class Scripted:
    """A node that answers every transaction alike."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = DONE
        self.seen: list[Request] = []

    def __call__(self, request: Request) -> Answer:
        if request.path != "/v1/txn":
            return Answer(200, {"members": []})
        self.seen.append(request)
        return Answer(200, self.answer)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    script = Scripted()
    node = Node(script)
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield script
    node.stop()


def run(text: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["txn", "-", *more], input=text)


def test_what_the_file_says_is_sent_and_the_results_are_shown(
    scripted: Scripted, tmp_path: Path
) -> None:
    file = tmp_path / "move.json"
    file.write_text(json.dumps(GIVEN))
    found = CliRunner().invoke(app, ["txn", str(file), "--request-id", "mine"])
    assert found.exit_code == 0, found.output
    (request,) = scripted.seen
    assert json.loads(request.body) == GIVEN
    assert request.headers["idempotency-key"] == "mine"
    assert "config/lock" in found.stdout
    assert "no room [indexer_refused]" in found.stdout
    assert "committed as 1-4, at CAS 12" in found.stdout


def test_what_did_not_hold_is_shown_and_is_a_conflict(scripted: Scripted) -> None:
    scripted.answer = NOTHING
    found = run(json.dumps({**GIVEN, "else": []}))
    assert found.exit_code == 4
    assert "config/lock" in found.stdout
    assert "b.n" not in found.stdout, "that one held"
    assert "nothing was changed" in found.stdout
    assert json.loads(run(json.dumps(GIVEN), "--json").stdout) == NOTHING


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"when": []}', '{"then": {}}', '{"then": [1]}', '{"then": [NaN]}']
)
def test_what_is_no_transaction_is_wrong_usage_and_not_sent(scripted: Scripted, text: str) -> None:
    found = run(text)
    assert found.exit_code == 2, found.output
    assert scripted.seen == []
