"""What is planned of a state: which slices count, where they may lie, and what they weigh."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import rebalance_plan
from coordinator.core.catalog.decisions import Unchanged
from coordinator.core.catalog.loads import Load, Reported
from coordinator.core.catalog.rebalance_plan import AwayError, Known, plan_rebalance
from coordinator.core.catalog.state import StateContext, evolve
from coordinator.core.model.commands import BeginRebalance, CreateIndex, PutSetting
from coordinator.core.model.entities import MAINTENANCE, NOWHERE, Index, Rebalance, Setting, Slice
from coordinator.core.model.records import Mutation
from tests.support.catalog_bench import CREATE, Bench
from tests.support.indexes import make_index

THREE = tuple(Known(number, "", is_alive=True) for number in (1, 2, 3))


def a_state(*entities: Index | Rebalance | Setting) -> StateContext:
    changes: Any = [(Mutation("Changed", e.key, b"", e), cas) for cas, e in enumerate(entities, 1)]
    return evolve(StateContext(), changes)


def an_index(number: int, *slices: Slice, **more: Any) -> Index:
    return replace(make_index(number, 1, state=MAINTENANCE), slices=slices, **more)


def moves(state: StateContext, *known: Known, drain: tuple[int, ...] = (), **more: Any) -> Any:
    command, _ = plan_rebalance(state, known or THREE, more.get("loads", {}), set(drain), 100)
    return [(move.index, move.slice, move.source, move.target) for move in command.moves]


def test_what_an_indexer_has_that_is_drained_goes_elsewhere() -> None:
    state = a_state(an_index(1, Slice(0, 1), Slice(1, 2)), an_index(2, Slice(0, 3)))
    [(index, number, source, target)] = moves(state, drain=(1,))
    assert (index, number, source) == (1, 0, 1)
    assert target in (2, 3)


def test_a_plan_says_what_each_indexer_bears_before_and_after() -> None:
    state = a_state(an_index(1, Slice(0, 1), Slice(1, 2)))
    command, _ = plan_rebalance(state, THREE[:2], {}, {1}, 100)
    assert json.loads(command.load_before_json) == {"1": 0.5, "2": 0.5}
    assert json.loads(command.load_after_json) == {"1": 0.0, "2": 1.0}
    assert command.drain == (1,)
    assert command.moves[0].why


def test_slices_weigh_what_is_said_of_those_who_have_them() -> None:
    heavy, light = Load(1_000, 1_000, 0), Load(1, 1, 0)
    state = a_state(an_index(1, *(Slice(n, 1) for n in range(3))))
    loads = {(1, 0, 1): heavy, (1, 1, 1): light, (1, 2, 1): light}
    found = moves(state, *THREE[:2], loads=loads)
    assert [number for _, number, *_ in found] in ([0], [1, 2]), "the heavy one is alone"


def test_a_part_counts_where_it_is() -> None:
    whole = an_index(1, Slice(0, NOWHERE), Slice(1, 1))
    part = an_index(9, Slice(0, 2), Slice(1, NOWHERE), part_of=1)
    [(index, number, source, target)] = moves(a_state(whole, part), drain=(2,))
    assert (index, number, source) == (1, 0, 2)
    assert target == 3


@pytest.mark.parametrize("state", ["pending", "error"])
def test_so_does_one_that_is_built_anew(state: str) -> None:
    whole = an_index(1, Slice(0, NOWHERE))
    part = replace(an_index(9, Slice(0, 2), part_of=1), state=state)
    [(index, number, source, _)] = moves(a_state(whole, part), drain=(2,))
    assert (index, number, source) == (1, 0, 2)


@pytest.mark.parametrize("state", ["init", "dropping"])
def test_an_index_that_comes_or_goes_is_left_alone(state: str) -> None:
    index = replace(an_index(1, Slice(0, 1)), state=state)
    assert moves(a_state(index), drain=(1,)) == []


def test_a_slice_of_which_a_copy_leaves_is_left_alone() -> None:
    index = an_index(1, Slice(0, 1, (), (2,)))
    assert moves(a_state(index), drain=(1,)) == []


def test_an_index_that_names_its_indexers_stays_on_these() -> None:
    state = a_state(an_index(1, Slice(0, 1), nodes=(1, 2)))
    assert moves(state, drain=(1,)) == [(1, 0, 1, 2)]
    command, plan = plan_rebalance(state, (THREE[0], THREE[2]), {}, {1}, 100)
    assert command.moves == ()
    assert [one.rule for one in plan.impossible]


def test_an_indexer_that_is_away_is_waited_for_or_drained() -> None:
    away = (Known(1, "", is_alive=False), *THREE[1:])
    state = a_state(an_index(1, Slice(0, 1)))
    with pytest.raises(AwayError) as caught:
        moves(state, *away)
    assert caught.value.indexers == [1]
    assert [source for _, _, source, _ in moves(state, *away, drain=(1,))] == [1]
    assert moves(a_state(an_index(1, Slice(0, 2)), an_index(2, Slice(0, 3))), *away) == []


def test_or_its_slices_are_left_alone() -> None:
    """Somebody has cancelled the repair of 1: so the loss of 2 can be repaired nevertheless."""
    state = a_state(an_index(1, Slice(0, 1)), an_index(2, Slice(0, 2)))
    known = [*(Known(n, "", is_alive=False) for n in (1, 2)), THREE[2]]
    with pytest.raises(AwayError):
        plan_rebalance(state, known, {}, {2}, 100)
    command, _ = plan_rebalance(state, known, {}, {2}, 100, left_alone={1})
    [move] = command.moves
    assert (move.index, move.source, move.target) == (2, 2, 3)


def test_copies_of_a_slice_lie_in_different_zones() -> None:
    zones = tuple(Known(n, zone, is_alive=True) for n, zone in ((1, "a"), (2, "a"), (3, "b")))
    found = moves(a_state(an_index(1, Slice(0, 1, (2,)))), *zones)
    assert [target for *_, target in found] == [3]


# -- new indexes ------------------------------------------------------------------------------


def a_drained(state: str) -> Rebalance:
    return Rebalance(id=9, state=state, moves=(), began_ms=0, drain=(1,))


@pytest.mark.parametrize(
    ("state", "is_avoided"),
    [("running", True), ("done", True), ("cancelling", False), ("cancelled", False)],
)
def test_nothing_new_is_put_where_the_last_rebalance_empties(state: str, is_avoided: bool) -> None:
    bench = Bench()
    bench.state = a_state(a_drained(state))
    bench.apply(CREATE)
    assert (bench.index().slices[0].master == 1) != is_avoided
    assert bench.state.drained == ({1} if is_avoided else set())


def test_who_asks_for_a_drained_indexer_is_told_so() -> None:
    bench = Bench()
    bench.apply(BeginRebalance((), (2,)))
    decision = bench.decide(replace(CREATE, nodes=(2,)))
    assert isinstance(decision, Unchanged)
    assert "indexers [2] are drained" in decision.outcome.message
    assert decision.outcome.details["drained"] == [2]


def test_nothing_new_is_put_on_an_indexer_that_is_full() -> None:
    bench = Bench()
    bench.reported = {1: Reported(1, Load(1, 50, 0)), 2: Reported(1, Load(9, 900, 0))}
    bench.apply(PutSetting("rebalance", '{"capacity_bytes": {"1": 50}}'))
    bench.apply(CREATE)
    assert bench.index().slices[0].master == 2
    decision = bench.decide(replace(CREATE, name="other", nodes=(1,)))
    assert isinstance(decision, Unchanged)
    assert "the setting rebalance" in decision.outcome.message
    assert decision.outcome.details["full"] == [1]


def test_the_next_rebalance_uses_it_again() -> None:
    bench = Bench()
    bench.state = a_state(a_drained("done"))
    bench.apply(BeginRebalance(()))
    assert bench.state.drained == set()


def test_an_index_remembers_the_indexers_that_it_names() -> None:
    bench = Bench()
    bench.apply(CreateIndex(name="i", bucket="b", expressions=("x",), nodes=(2, 1, 2)))
    assert bench.index().nodes == (1, 2)


def test_an_index_gets_no_more_parts_than_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalance_plan, "PARTS_MAX", 2)
    whole = an_index(1, Slice(0, 1), Slice(1, 1), Slice(2, NOWHERE))
    part = an_index(9, *(Slice(n, NOWHERE) for n in (0, 1)), Slice(2, 1), part_of=1)
    state = a_state(whole, part)
    command, plan = plan_rebalance(state, THREE, {}, {1}, 100)
    targets = {move.target for move in command.moves}
    assert (len(targets), len(command.moves)) == (1, 2 if len(plan.impossible) == 1 else 1)
    assert {(one.index, one.rule) for one in plan.impossible} == {(1, "parts")}
    assert len(command.moves) + len(plan.impossible) == 3


def test_the_setting_rebalance_bounds_what_an_indexer_holds() -> None:
    heavy = Load(100, 1_000, 0)
    index = an_index(1, Slice(0, 1), Slice(1, 1), Slice(2, 1))
    setting = Setting("rebalance", '{"capacity_bytes": {"*": 1500, "3": 900}}')
    state = a_state(index, setting)
    loads = {(1, n, 1): heavy for n in range(3)}
    command, plan = plan_rebalance(state, THREE, loads, set(), 100)
    assert [move.target for move in command.moves] == [2]
    assert {one.rule for one in plan.impossible} == {"capacity"}
