"""What a part returns is handed on: a result that is dropped is an effect that never happens."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from coordinator.core.consensus.effects import Effect
from coordinator.core.consensus.signals import Signal, Want
from coordinator.core.leader.master import Master
from coordinator.core.model.commands import MarkReady
from coordinator.core.node import EFFECTS, SIGNALS
from tests.support.lone_node import LoneNode

CORE = Path(__file__).parents[3] / "coordinator" / "core"
RESULTS = {"list[Result]", "list[Effect]"}
NAMESAKES = {
    "self.committer.answered(record)",
    "self.committer.membership_changed(authority_of(view))",
    "self.committer.read_back(record)",
    "self.election.resigned(self, record)",
    "self.follower.rolled_back(record.txn)",
    "self.liveness.read(self)",
    "self.master.read_back(entry.record)",
    "self.outcomes.begin(self.authority.outcomes_digest)",
}
"""Calls of functions that return nothing, though another of the name returns results."""

TREES = {path: ast.parse(path.read_text()) for path in sorted(CORE.rglob("*.py"))}


def functions() -> Iterator[ast.FunctionDef]:
    for tree in TREES.values():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def returns_results(function: ast.FunctionDef) -> bool:
    return function.returns is not None and ast.unparse(function.returns) in RESULTS


def dropped(tree: ast.AST, names: set[str]) -> Iterator[str]:
    """Return the calls of functions of these names whose value nobody takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in names:
                yield ast.unparse(node)


@pytest.mark.thorough
def test_nobody_drops_what_a_part_returns() -> None:
    names = {function.name for function in functions() if returns_results(function)}
    assert len(names) > 80
    found = {call for tree in TREES.values() for call in dropped(tree, names)}
    assert found == NAMESAKES


def test_a_dropped_result_is_found() -> None:
    tree = ast.parse("def f(self):\n    self.part.tick(view)\n    return self.part.tick(view)")
    assert list(dropped(tree, {"tick"})) == ["self.part.tick(view)"]


def test_the_node_takes_every_signal_but_what_only_a_master_takes() -> None:
    assert set(get_args(Signal)) - SIGNALS.keys() == {Want}
    assert set(get_args(Effect)) == EFFECTS
    assert not EFFECTS & SIGNALS.keys()


def test_a_result_that_nobody_takes_ends_the_node() -> None:
    lone = LoneNode().start()
    with pytest.raises(AssertionError, match="nobody takes Want"):
        lone.node.run([Want("key", MarkReady(1))])
    assert isinstance(lone.master, Master)
