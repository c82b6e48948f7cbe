"""Laws of what an indexer holds and answers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.entities import (
    DROPPING,
    INDEX_STATES,
    INIT,
    MAINTENANCE,
    READY,
    Index,
    Slice,
)
from indexer_sim.bucket.allocation import (
    Allocate,
    AllocationPlanner,
    Release,
    Reply,
    Slices,
    wanted,
)
from tests.support.indexes import make_index

INDEXER = 1


def an_index(index_id: int, state: str = INIT, slices: Iterable[Slice] = (Slice(0, 1),)) -> Index:
    return make_index(index_id, bucket="b", state=state, slices=tuple(slices))


def carry_out(planner: AllocationPlanner, refusing: bool = False) -> None:
    """Do what the desk plans, on storage that is a dict."""
    held = dict(planner.held)
    for action in planner.plan():
        if isinstance(action, Release):
            left = held[action.index_id] - action.slices
            held.pop(action.index_id)
            if left:
                held[action.index_id] = left
        elif refusing:
            planner.refuse(action, "full")
        else:
            held[action.index.id] = held.get(action.index.id, frozenset()) | action.slices
    planner.hold(held)


def a_desk(*indexes: Index, held: dict[int, Slices] | None = None) -> AllocationPlanner:
    planner = AllocationPlanner(indexer=INDEXER)
    for index in indexes:
        planner.observe(index.id, index)
    planner.hold(held or {})
    planner.caught_up()
    return planner


slices = st.lists(
    st.builds(Slice, st.integers(0, 4), st.integers(0, 3), st.tuples(st.integers(0, 3))),
    max_size=4,
    unique_by=lambda piece: piece.number,
)
changes = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.one_of(st.none(), st.tuples(st.sampled_from(INDEX_STATES), slices)),
        st.sampled_from(("nothing", "act", "refuse", "restart", "read again")),
    ),
    max_size=40,
)


@given(changes)
def test_any_interleaving_ends_with_exactly_the_wanted_slices(history: list) -> None:
    planner = a_desk()
    latest: dict[int, Index] = {}
    for index_id, change, then in history:
        latest.pop(index_id, None)
        if change is not None:
            latest[index_id] = an_index(index_id, *change)
        planner.observe(index_id, latest.get(index_id))
        if then == "restart":
            planner = a_desk(*planner.indexes.values(), held=planner.held)
        elif then == "read again":
            planner.read_again()
            for index in latest.values():
                planner.observe(index.id, index)
            planner.caught_up()
        elif then != "nothing":
            carry_out(planner, refusing=then == "refuse")
            planner.close_finished()
    carry_out(planner)
    expected = {index.id: wanted(index, INDEXER) for index in latest.values()}
    assert planner.held == {
        index_id: numbers
        for index_id, numbers in expected.items()
        if numbers and index_id not in planner.refusals
    } | {i: n for i, n in planner.held.items() if i in planner.refusals and n <= expected[i]}
    assert planner.plan() == []
    planner.close_finished()
    assert planner.open == {reply.index_id for reply in planner.replies()}


@given(changes)
def test_no_answer_says_what_is_not_so(history: list) -> None:
    planner = a_desk()
    for index_id, change, then in history:
        planner.observe(index_id, None if change is None else an_index(index_id, *change))
        if then in ("act", "refuse"):
            carry_out(planner, refusing=then == "refuse")
        for reply in planner.replies():
            index = planner.indexes[reply.index_id]
            have = planner.held.get(reply.index_id, frozenset())
            assert reply.slices == index.slices_on(INDEXER) != ()
            if reply.answer == "released":
                assert (index.state, have) == (DROPPING, frozenset())
            elif reply.answer == "allocated":
                assert index.state == INIT
                assert have >= set(reply.slices)
            else:
                assert reply.answer == "refused"
                assert (index.state, reply.reason) == (INIT, "full")


@pytest.mark.parametrize("state", [state for state in INDEX_STATES if state != DROPPING])
def test_storage_exists_in_every_state_but_dropping(state: str) -> None:
    index = an_index(1, state)
    assert a_desk(index).plan() == [Allocate(index, frozenset({0}))]
    assert a_desk(index, held={1: frozenset({0})}).plan() == []


def test_a_copy_that_leaves_is_kept_but_not_made_again() -> None:
    """Made again, it would be another shard: the slices beside it would begin from nothing."""
    pieces = (Slice(0, 2, leaving=(INDEXER,)), Slice(1, INDEXER))
    index = an_index(1, MAINTENANCE, pieces)
    whole, rest = frozenset({0, 1}), frozenset({1})
    for held, planned in ((whole, []), (rest, []), (frozenset[int](), [Allocate(index, rest)])):
        planner = a_desk(index, held={1: held} if held else {})
        assert planner.plan() == planned


def test_an_answer_is_repeated_until_the_state_moves_on() -> None:
    planner = a_desk(an_index(1))
    carry_out(planner)
    for _ in range(3):
        planner.close_finished()
        assert planner.replies() == [Reply(1, "allocated", "", (0,))]
    planner.observe(1, an_index(1, READY))
    assert planner.replies() == []
    planner.close_finished()
    assert planner.open == set()
    planner.observe(1, an_index(1, DROPPING))
    carry_out(planner)
    for _ in range(3):
        planner.close_finished()
        assert planner.replies() == [Reply(1, "released", "", (0,))]
    planner.observe(1, None)
    assert planner.replies() == []


def test_a_refusal_in_init_is_final_and_one_later_is_not() -> None:
    planner = a_desk(an_index(1), an_index(2, READY))
    carry_out(planner, refusing=True)
    assert planner.plan() == [Allocate(an_index(2, READY), frozenset({0}))]
    assert planner.replies() == [Reply(1, "refused", "full", (0,))]
    planner.observe(1, an_index(1, DROPPING))
    assert planner.replies() == [Reply(1, "released", "", (0,))]
    planner.observe(1, an_index(1))
    assert Allocate(an_index(1), frozenset({0})) in planner.plan()


def test_nothing_is_done_or_answered_before_the_log_was_read_to_its_end() -> None:
    planner = AllocationPlanner(indexer=INDEXER)
    planner.hold({1: frozenset({0, 1}), 9: frozenset({0})})
    planner.observe(1, an_index(1, DROPPING))
    assert (planner.plan(), planner.replies()) == ([], [])
    planner.close_finished()
    planner.observe(1, an_index(1, READY))
    planner.caught_up()
    assert planner.plan() == [Release(1, frozenset({1})), Release(9, frozenset({0}))]


def test_an_index_that_a_whole_reading_never_met_is_gone() -> None:
    planner = a_desk(an_index(1, READY), an_index(2, READY))
    carry_out(planner)
    planner.read_again()
    planner.observe(2, an_index(2, READY))
    assert planner.caught_up() == {1}
    assert planner.plan() == [Release(1, frozenset({0}))]


def test_releases_come_before_allocations() -> None:
    planner = a_desk(an_index(1), an_index(2, DROPPING), held={2: frozenset({0})})
    assert [type(action) for action in planner.plan()] == [Release, Allocate]


def test_an_index_of_other_indexers_is_not_remembered() -> None:
    planner = a_desk()
    assert not planner.observe(1, an_index(1, INIT, (Slice(0, 2, (3,)),)))
    assert (planner.indexes, planner.open) == ({}, set())
