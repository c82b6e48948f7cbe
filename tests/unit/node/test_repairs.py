"""Whose copies a master makes anew, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.catalog.state import StateContext, evolve
from coordinator.core.model.commands import BeginRebalance
from coordinator.core.model.entities import (
    MAINTENANCE,
    NOWHERE,
    Entity,
    Rebalance,
    Setting,
    Slice,
)
from coordinator.core.model.records import Mutation
from coordinator.node import repairs
from coordinator.node.repairs import LOOK_S, PLAN_S, RETRY_MS, Repairs
from tests.support.indexes import make_index

WALL_MS = 10**12
INDEX = replace(make_index(1, 1, 2, state=MAINTENANCE), slices=(Slice(0, 1, (2,)),))


def a_state(*entities: Entity, after_s: int | None = None) -> StateContext:
    found: list[Any] = [INDEX, *entities]
    if after_s is not None:
        found.append(Setting("repair", f'{{"after_s": {after_s}}}'))
    changes = [(Mutation("Changed", e.key, b"", e), cas) for cas, e in enumerate(found, 1)]
    return evolve(StateContext(), changes)  # type: ignore[arg-type]


def lost(state: StateContext, silent_s: dict[int, int]) -> list[int]:
    peers = SimpleNamespace(silent_ms=lambda number: 1_000 * silent_s.get(number, 0))
    node: Any = SimpleNamespace(peers=peers)
    return Repairs(node, None, lambda: 0).lost(state, WALL_MS)  # type: ignore[arg-type]


def test_who_was_silent_for_as_long_as_the_setting_says_is_lost() -> None:
    assert lost(a_state(after_s=60), {1: 60}) == []
    assert lost(a_state(after_s=60), {1: 61, 2: 61}) == [1, 2]
    assert lost(a_state(), {1: 1_801}) == [1]


def test_nobody_is_lost_where_the_setting_says_never() -> None:
    assert lost(a_state(after_s=0), {1: 10**6}) == []


def test_who_holds_nothing_is_not_missed() -> None:
    moved = replace(INDEX, id=2, slices=(Slice(0, NOWHERE, (), (3,)),))
    assert lost(a_state(moved, after_s=1), {3: 5, 4: 5}) == []


def over(state: str, ended_ms: int, *drain: int) -> Rebalance:
    return Rebalance(
        id=9, state=state, moves=(), began_ms=0, drain=drain, ended_ms=WALL_MS - ended_ms
    )


@pytest.mark.parametrize(
    ("rebalance", "found"),
    [
        pytest.param(over("running", 0, 1), [], id="one goes on"),
        pytest.param(over("cancelling", 0, 1), [], id="one is being cancelled"),
        pytest.param(over("done", RETRY_MS - 1, 1), [2], id="one has just ended"),
        pytest.param(over("done", RETRY_MS - 1), [1, 2], id="another one has just ended"),
        pytest.param(over("done", RETRY_MS, 1), [1, 2], id="one has ended a while ago"),
        pytest.param(over("cancelled", RETRY_MS, 1), [2], id="somebody did not want that"),
        pytest.param(over("done", -5_000, 1), [1, 2], id="a clock went back"),
    ],
)
def test_a_repair_waits_for_what_was_done_last(rebalance: Rebalance, found: list[int]) -> None:
    assert lost(a_state(rebalance, after_s=1), {1: 5, 2: 5}) == found


def test_where_nothing_can_be_moved_no_plan_is_made_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan of a large cluster takes a second, and its copies may have nowhere to go for days."""
    made: list[list[int]] = []

    def plan(node: Any, drain: list[int], *more: Any) -> tuple[BeginRebalance, None]:
        made.append(drain)
        return BeginRebalance(()), None

    monkeypatch.setattr(repairs, "planned", plan)
    peers = SimpleNamespace(
        silent_ms=lambda number: 10**9 * (number == 1), indexer_alive=lambda number: number != 1
    )
    master = SimpleNamespace(active=True)
    node: Any = SimpleNamespace(peers=peers, state=a_state(), master=master)
    looking = Repairs(node, None, lambda: 0)  # type: ignore[arg-type]
    clock_s = 1_000.0
    clock = SimpleNamespace(monotonic=lambda: clock_s, time_ns=lambda: WALL_MS * 10**6)
    monkeypatch.setattr(repairs, "time", clock)
    for _ in range(100):
        clock_s += LOOK_S
        if looking.is_due():
            asyncio.run(looking.run())
    assert len(made) <= 1 + 100 * LOOK_S / PLAN_S


def test_who_was_not_to_be_repaired_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[Any, ...]] = []

    def plan(node: Any, *asked: Any) -> tuple[BeginRebalance, None]:
        made.append(asked)
        return BeginRebalance(()), None

    monkeypatch.setattr(repairs, "planned", plan)
    other = replace(INDEX, id=2, slices=(Slice(0, 3),))
    state = a_state(other, over("cancelled", RETRY_MS, 1, 4))
    peers = SimpleNamespace(silent_ms=lambda _: 10**9, indexer_alive=lambda number: number == 4)
    node: Any = SimpleNamespace(peers=peers, state=state)
    looking = Repairs(node, None, lambda: 0)  # type: ignore[arg-type]
    monkeypatch.setattr(repairs.time, "time_ns", lambda: WALL_MS * 10**6)
    asyncio.run(looking.run())
    assert made == [([2, 3], repairs.MOVES_MAX, {1})]
