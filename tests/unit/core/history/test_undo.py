"""What an undo changes: it leads from one state back to another, and touches nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog.decisions import Accepted
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.undo import (
    STEP_OPERATIONS,
    definition_of,
    plan_undo,
    transactions_of,
)
from coordinator.core.model.commands import (
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    ForgetIndex,
    MarkReady,
    PutSetting,
)
from coordinator.core.model.entities import DROPPING, Index
from coordinator.core.model.types import Cas
from tests.support.catalog_bench import CREATE, Bench

NAMES = ("by_city", "by_name")
SETTINGS = ("a", "b", "c")


def shape(state: StateContext) -> tuple[object, ...]:
    """Return what an undo is about: settings with their values, and definitions of indexes."""
    settings = {v.entity.key: v.value for v in state.of_kind("config")}
    indexes = {
        (index.bucket, index.name): replace(definition_of(index), defer_build=False)
        for index, _ in state.indexes()
        if index.state != DROPPING
    }
    return settings, indexes


def undo(bench: Bench, to: StateContext, *only: str, in_steps: bool = False) -> None:
    """Undo, and let all indexes that it creates become ready."""
    for command in transactions_of(plan_undo(to, bench.state, only), to.cas, in_steps):
        if command.then:
            decision = bench.apply(command)
            assert decision.answer["succeeded"]
            for index_id in decision.waits_for:
                bench.apply(MarkReady(index_id))


def apply(bench: Bench, command: Command) -> None:
    """Carry a command out, if it can be, to its end."""
    decision = bench.decide(command)
    if not isinstance(decision, Accepted):
        return
    applied = bench.apply(command)
    for index_id in applied.waits_for:
        bench.apply(MarkReady(index_id))


COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(PutSetting, st.sampled_from(SETTINGS), st.sampled_from(("1", "2", "null"))),
    st.builds(DeleteSetting, st.sampled_from(SETTINGS)),
    st.builds(
        lambda name, text: replace(CREATE, name=name, expressions=(text,)),
        st.sampled_from(NAMES),
        st.sampled_from(("x", "y")),
    ),
    st.builds(lambda name: DropIndex(0, "travel", name), st.sampled_from(NAMES)),
    st.builds(
        lambda name, new: AlterIndex(bucket="travel", name=name, new_name=new),
        *(st.sampled_from((*NAMES, "other")), st.sampled_from((*NAMES, "other"))),
    ),
)


@given(st.lists(COMMANDS, max_size=8), st.lists(COMMANDS, max_size=8), st.booleans())
def test_an_undo_leads_back_and_can_be_undone(
    first: list[Command], then: list[Command], in_steps: bool
) -> None:
    bench = Bench()
    for command in first:
        apply(bench, command)
    before = bench.state
    for command in then:
        apply(bench, command)
    after = bench.state
    undo(bench, before, in_steps=in_steps)
    assert shape(bench.state) == shape(before)
    assert plan_undo(before, bench.state).steps == (), "a second time there is nothing to undo"
    undo(bench, after, in_steps=in_steps)
    assert shape(bench.state) == shape(after)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    apply(bench, PutSetting("a", "1"))
    apply(bench, CREATE)
    return bench


def test_a_name_that_another_index_took_is_given_back(bench: Bench) -> None:
    before, old = bench.state, bench.index()
    apply(bench, DropIndex(old.id))
    bench.apply(ForgetIndex(old.id))
    apply(bench, replace(CREATE, expressions=("country",)))
    assert [type(s.operation) for s in plan_undo(before, bench.state).steps] == [
        DropIndex,
        type(CREATE),
    ]
    undo(bench, before)
    held = bench.state.index_named("travel", "by_city")
    assert held is not None
    assert isinstance(held.entity, Index)
    assert held.entity.expressions == CREATE.expressions
    assert held.entity.id != old.id


def test_an_index_is_made_again_although_one_like_it_has_its_name_until_the_undo(
    bench: Bench,
) -> None:
    """Two with one definition: one is dropped, the other takes its name, and gives it back."""
    apply(bench, replace(CREATE, name="by_name"))
    before = bench.state
    apply(bench, DropIndex(0, "travel", "by_name"))
    apply(bench, AlterIndex(bucket="travel", name="by_city", new_name="by_name"))
    undo(bench, before)
    assert shape(bench.state) == shape(before)


def test_what_changes_in_the_meantime_undoes_nothing(bench: Bench) -> None:
    before = bench.state
    apply(bench, PutSetting("a", "2"))
    apply(bench, PutSetting("b", "2"))
    (command,) = transactions_of(plan_undo(before, bench.state), before.cas, in_steps=False)
    apply(bench, PutSetting("b", "3"))
    found = bench.decide(command)
    assert not isinstance(found, Accepted)
    assert found.outcome.answer["succeeded"] is False  # type: ignore[union-attr]


def test_only_what_is_named_is_undone_and_what_is_alike_is_said(bench: Bench) -> None:
    before = bench.state
    apply(bench, PutSetting("a", "2"))
    apply(bench, PutSetting("b", "2"))
    plan = plan_undo(before, bench.state, ["config/b", "config/none"])
    assert [step.key for step in plan.steps] == ["config/b"]
    assert [(one.key, one.reason) for one in plan.kept] == [("config/none", "it is as it was")]


def test_a_build_is_not_taken_back_and_neither_is_a_bucket(bench: Bench) -> None:
    apply(bench, replace(CREATE, name="later", defer_build=True))
    before = bench.state
    bench.apply(BuildIndexes(bucket="travel", names=("later",)))
    apply(bench, replace(CREATE, bucket="other"))
    plan = plan_undo(before, bench.state)
    assert [type(step.operation) for step in plan.steps] == [DropIndex]
    assert {one.key.partition("/")[0] for one in plan.kept} == {"index", "bucket"}


def test_an_undo_in_steps_is_cut_into_transactions_of_bounded_size(bench: Bench) -> None:
    before = bench.state
    for number in range(STEP_OPERATIONS + 1):
        apply(bench, PutSetting(f"many/{number}", "1"))
    for number in range(4):
        apply(bench, PutSetting(f"large/{number}", f'"{"x" * 60_000}"'))
    plan = plan_undo(before, bench.state)
    parts = transactions_of(plan, before.cas, in_steps=True)
    assert sum(len(part.then) for part in parts) == len(plan.steps) == STEP_OPERATIONS + 5
    assert max(len(part.then) for part in parts) <= STEP_OPERATIONS
    assert len(parts) > 2
    assert {part.undoes for part in parts} == {before.cas}
    assert len(transactions_of(plan, Cas(before.cas), in_steps=False)) == 1


def test_a_name_that_an_earlier_step_frees_is_free(bench: Bench) -> None:
    before, old = bench.state, bench.index()
    apply(bench, DropIndex(old.id))
    apply(bench, replace(CREATE, expressions=("country",)))
    for number in range(STEP_OPERATIONS):
        apply(bench, PutSetting(f"many/{number}", "1"))
    undo(bench, before, in_steps=True)
    assert shape(bench.state) == shape(before)


# -- what was altered -----------------------------------------------------------------------------


def rename(bench: Bench, name: str, new: str) -> None:
    bench.apply(AlterIndex(bucket="travel", name=name, new_name=new))


@pytest.fixture
def ready() -> Bench:
    """One index is ready, and nothing else is there."""
    made = Bench()
    apply(made, CREATE)
    return made


def named(bench: Bench, name: str = "by_city") -> Index:
    held = bench.state.index_named("travel", name)
    assert held is not None
    assert isinstance(held.entity, Index)
    return held.entity


def test_a_renamed_index_gets_its_name_back_and_stays_what_it_is(ready: Bench) -> None:
    before, then = named(ready), ready.state
    rename(ready, "by_city", "by_town")
    undo(ready, then)
    assert named(ready) == before


def test_names_that_were_handed_on_are_handed_back_in_their_order(ready: Bench) -> None:
    apply(ready, replace(CREATE, name="next", expressions=("y",)))
    then, before = ready.state, (named(ready), named(ready, "next"))
    rename(ready, "next", "last")
    rename(ready, "by_city", "next")
    steps = plan_undo(then, ready.state).steps
    assert [type(step.operation) for step in steps] == [AlterIndex, AlterIndex]
    undo(ready, then)
    assert (named(ready), named(ready, "next")) == before


@pytest.mark.parametrize("in_steps", [False, True])
def test_indexes_that_have_changed_their_names_are_created_again(
    ready: Bench, in_steps: bool
) -> None:
    apply(ready, replace(CREATE, name="other", expressions=("y",)))
    then, wanted = ready.state, shape(ready.state)
    for name, new in (("by_city", "x"), ("other", "by_city"), ("x", "other")):
        rename(ready, name, new)
    undo(ready, then, in_steps=in_steps)
    assert shape(ready.state) == wanted


def test_an_undo_ends_an_alter_that_is_under_way(ready: Bench) -> None:
    first, then = named(ready), ready.state
    decision = ready.apply(AlterIndex(index_id=first.id, where="TRUE"))
    plan = plan_undo(then, ready.state)
    assert [step.operation for step in plan.steps] == [DropIndex(*decision.waits_for)]
    undo(ready, then)
    assert named(ready) == first
    assert not ready.state.replacements


def test_an_index_that_is_dropped_takes_its_replacement_along() -> None:
    bench = Bench()
    then = bench.state
    apply(bench, CREATE)
    bench.apply(AlterIndex(index_id=named(bench).id, where="TRUE"))
    assert len(plan_undo(then, bench.state).steps) == 1
    undo(bench, then)
    assert {index.state for index, _ in bench.state.indexes()} == {DROPPING}


def test_an_index_that_was_replaced_comes_back_with_its_definition(ready: Bench) -> None:
    then, wanted = ready.state, shape(ready.state)
    apply(ready, AlterIndex(index_id=named(ready).id, where="TRUE", new_name="other"))
    assert named(ready, "other").where == "TRUE"
    undo(ready, then)
    assert shape(ready.state) == wanted


def test_an_alter_that_was_under_way_then_is_not_taken_up(ready: Bench) -> None:
    decision = ready.apply(AlterIndex(index_id=named(ready).id, where="TRUE"))
    then = ready.state
    ready.apply(MarkReady(*decision.waits_for))
    assert named(ready).where == "TRUE"
    undo(ready, then)
    assert named(ready).where is None


def test_replicas_that_were_taken_away_stay_away_and_an_undo_says_so() -> None:
    bench = Bench()
    apply(bench, replace(CREATE, replicas=1))
    then = bench.state
    bench.apply(AlterIndex(index_id=named(bench).id, replicas=0))
    plan = plan_undo(then, bench.state)
    assert plan.steps == ()
    assert [one.key for one in plan.kept] == [named(bench).key]


def test_a_replacement_goes_with_its_index_whatever_their_names_are() -> None:
    bench = Bench()
    then = bench.state
    apply(bench, CREATE)
    first = named(bench).id
    bench.apply(AlterIndex(index_id=first, where="TRUE", new_name="a_name_before"))
    assert [step.operation for step in plan_undo(then, bench.state).steps] == [DropIndex(first)]


def test_an_index_that_was_built_is_built_again(bench: Bench) -> None:
    """Also where its build was deferred at first; what waited for its build waits again."""
    for name in ("built", "waits"):
        apply(bench, replace(CREATE, name=name, defer_build=True))
    bench.apply(BuildIndexes(bucket="travel", names=("built",)))
    then = bench.state
    for name in ("built", "waits"):
        apply(bench, DropIndex(0, "travel", name))
    found = [step.operation for step in plan_undo(then, bench.state).steps]
    assert [(one.name, one.defer_build) for one in found if isinstance(one, CreateIndex)] == [
        ("built", False),
        ("waits", True),
    ]
