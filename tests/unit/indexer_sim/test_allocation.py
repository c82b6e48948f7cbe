"""Laws of what an indexer holds and answers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.entities import DROPPING, INDEX_STATES, INIT, READY, Index, Slice
from indexer_sim.bucket.allocation import Allocate, Desk, Release, Reply, Slices, wanted

INDEXER = 1


def an_index(index_id: int, state: str = INIT, slices: Iterable[Slice] = (Slice(0, 1),)) -> Index:
    return Index(
        index_id, f"i{index_id}", "b", ("a",), None, False, "gsi", False, state, None,
        tuple(slices), "", 1,
    )  # fmt: skip


def carry_out(desk: Desk, refusing: bool = False) -> None:
    """Do what the desk plans, on storage that is a dict."""
    held = dict(desk.held)
    for action in desk.plan():
        if isinstance(action, Release):
            left = held[action.index_id] - action.slices
            held.pop(action.index_id)
            if left:
                held[action.index_id] = left
        elif refusing:
            desk.refuse(action, "full")
        else:
            held[action.index.id] = held.get(action.index.id, frozenset()) | action.slices
    desk.hold(held)


def a_desk(*indexes: Index, held: dict[int, Slices] | None = None) -> Desk:
    desk = Desk(INDEXER)
    for index in indexes:
        desk.observe(index.id, index)
    desk.hold(held or {})
    desk.caught_up()
    return desk


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
    desk = a_desk()
    latest: dict[int, Index] = {}
    for index_id, change, then in history:
        latest.pop(index_id, None)
        if change is not None:
            latest[index_id] = an_index(index_id, *change)
        desk.observe(index_id, latest.get(index_id))
        if then == "restart":
            desk = a_desk(*desk.indexes.values(), held=desk.held)
        elif then == "read again":
            desk.read_again()
            for index in latest.values():
                desk.observe(index.id, index)
            desk.caught_up()
        elif then != "nothing":
            carry_out(desk, refusing=then == "refuse")
            desk.close_finished()
    carry_out(desk)
    expected = {index.id: wanted(index, INDEXER) for index in latest.values()}
    assert desk.held == {
        index_id: numbers
        for index_id, numbers in expected.items()
        if numbers and index_id not in desk.refusals
    } | {i: n for i, n in desk.held.items() if i in desk.refusals and n <= expected[i]}
    assert desk.plan() == []
    desk.close_finished()
    assert desk.open == {reply.index_id for reply in desk.replies()}


@given(changes)
def test_no_answer_says_what_is_not_so(history: list) -> None:
    desk = a_desk()
    for index_id, change, then in history:
        desk.observe(index_id, None if change is None else an_index(index_id, *change))
        if then in ("act", "refuse"):
            carry_out(desk, refusing=then == "refuse")
        for reply in desk.replies():
            index = desk.indexes[reply.index_id]
            have = desk.held.get(reply.index_id, frozenset())
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


def test_an_answer_is_repeated_until_the_state_moves_on() -> None:
    desk = a_desk(an_index(1))
    carry_out(desk)
    for _ in range(3):
        desk.close_finished()
        assert desk.replies() == [Reply(1, "allocated", "", (0,))]
    desk.observe(1, an_index(1, READY))
    assert desk.replies() == []
    desk.close_finished()
    assert desk.open == set()
    desk.observe(1, an_index(1, DROPPING))
    carry_out(desk)
    for _ in range(3):
        desk.close_finished()
        assert desk.replies() == [Reply(1, "released", "", (0,))]
    desk.observe(1, None)
    assert desk.replies() == []


def test_a_refusal_in_init_is_final_and_one_later_is_not() -> None:
    desk = a_desk(an_index(1), an_index(2, READY))
    carry_out(desk, refusing=True)
    assert desk.plan() == [Allocate(an_index(2, READY), frozenset({0}))]
    assert desk.replies() == [Reply(1, "refused", "full", (0,))]
    desk.observe(1, an_index(1, DROPPING))
    assert desk.replies() == [Reply(1, "released", "", (0,))]
    desk.observe(1, an_index(1))
    assert Allocate(an_index(1), frozenset({0})) in desk.plan()


def test_nothing_is_done_or_answered_before_the_log_was_read_to_its_end() -> None:
    desk = Desk(INDEXER)
    desk.hold({1: frozenset({0, 1}), 9: frozenset({0})})
    desk.observe(1, an_index(1, DROPPING))
    assert (desk.plan(), desk.replies()) == ([], [])
    desk.close_finished()
    desk.observe(1, an_index(1, READY))
    desk.caught_up()
    assert desk.plan() == [Release(1, frozenset({1})), Release(9, frozenset({0}))]


def test_an_index_that_a_whole_reading_never_met_is_gone() -> None:
    desk = a_desk(an_index(1, READY), an_index(2, READY))
    carry_out(desk)
    desk.read_again()
    desk.observe(2, an_index(2, READY))
    assert desk.caught_up() == {1}
    assert desk.plan() == [Release(1, frozenset({0}))]


def test_releases_come_before_allocations() -> None:
    desk = a_desk(an_index(1), an_index(2, DROPPING), held={2: frozenset({0})})
    assert [type(action) for action in desk.plan()] == [Release, Allocate]


def test_an_index_of_other_indexers_is_not_remembered() -> None:
    desk = a_desk()
    assert not desk.observe(1, an_index(1, INIT, (Slice(0, 2, (3,)),)))
    assert (desk.indexes, desk.open) == ({}, set())
