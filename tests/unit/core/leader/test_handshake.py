"""What an indexer holds, against what the state says it should."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.leader.handshake import ROUNDS_BEFORE_REREAD, Handshakes, compare, moved_shard
from coordinator.core.model.entities import DROPPING, INIT, READY, Index, Shard, Slice
from coordinator.core.model.records import (
    Holding,
    HoldingsReported,
    IndexerHeartbeat,
)
from tests.support.indexes import make_index, make_indexer_beat

INDEXER = 2
PERIOD_MS = 100


def an_index(number: int, state: str = READY, shard: int = 5, host: int = INDEXER) -> Index:
    return make_index(number, host, host, bucket="b", state=state, shards=(Shard(host, shard),))


def a_state(*indexes: Index) -> StateContext:
    held = [(i.key, Versioned(at, repr(i).encode(), i)) for at, i in enumerate(indexes, 1)]
    return states.restore(len(indexes), held)


def held(number: int, shard: int = 5, slices: tuple[int, ...] = (0, 1)) -> Holding:
    return Holding(number, shard, slices)


def test_holding_what_the_state_says_is_no_difference() -> None:
    state = a_state(an_index(7), an_index(8, host=3))
    assert not compare(state, INDEXER, state.cas, [held(7)])


def test_a_lost_or_partial_index_is_missing() -> None:
    state = a_state(an_index(7), an_index(8))
    assert compare(state, INDEXER, state.cas, [held(8, slices=(0,))]).missing == (7, 8)


def test_a_copy_that_leaves_may_be_gone() -> None:
    index = replace(an_index(7), slices=(Slice(0, 9, leaving=(INDEXER,)), Slice(1, INDEXER)))
    state = a_state(index)
    assert not compare(state, INDEXER, state.cas, [held(7, slices=(0, 1))])
    assert not compare(state, INDEXER, state.cas, [held(7, slices=(1,))])
    assert compare(state, INDEXER, state.cas, []).missing == (7,)


def test_storage_that_was_allocated_again_has_moved() -> None:
    state = a_state(an_index(7))
    assert compare(state, INDEXER, state.cas, [held(7, shard=9)]).moved == ((7, Shard(INDEXER, 9)),)


def test_what_the_state_does_not_have_there_is_an_orphan() -> None:
    state = a_state(an_index(7, host=3))
    assert compare(state, INDEXER, state.cas, [held(7), held(99)]).orphans == (7, 99)


def test_an_indexer_that_is_behind_is_not_blamed_for_it() -> None:
    state = a_state(an_index(7), an_index(8))
    assert compare(state, INDEXER, 1, [held(7), held(99)]).missing == ()
    assert compare(state, INDEXER, 1, [held(7), held(99)]).orphans == ()
    assert compare(state, INDEXER, 1, []).missing == (7,)


def test_what_is_being_made_or_dropped_counts_neither_way() -> None:
    state = a_state(an_index(7, INIT), an_index(8, DROPPING))
    assert not compare(state, INDEXER, state.cas, [])
    assert not compare(state, INDEXER, state.cas, [held(7, shard=1), held(8, shard=1)])


@given(st.sampled_from((INIT, READY, DROPPING)), st.integers(0, 9), st.booleans())
def test_a_moved_shard_is_one_of_a_finished_index_here(state: str, shard: int, here: bool) -> None:
    index = an_index(7, state, host=INDEXER if here else 3)
    assert moved_shard(index, INDEXER, shard) == (state == READY and here and shard not in (0, 5))


# -- the exchange --------------------------------------------------------------------------------


def beat(incarnation: int = 1) -> IndexerHeartbeat:
    return make_indexer_beat(INDEXER, incarnation=incarnation)


def report(number: int, *holdings: Holding, cas: int = 1, **more: int) -> HoldingsReported:
    part, parts = more.get("part", 0), more.get("parts", 1)
    return HoldingsReported(INDEXER, more.get("life", 1), number, cas, part, parts, holdings)


def test_each_life_of_an_indexer_is_asked_until_it_agrees() -> None:
    state = a_state(an_index(7))
    handshakes = Handshakes(3, PERIOD_MS)
    handshakes.note(beat(), 0)
    (asked,) = handshakes.due(0, 1)
    assert (asked.epoch, asked.indexer, asked.incarnation, asked.reread) == (3, INDEXER, 1, False)
    assert handshakes.due(PERIOD_MS - 1, 1) == []
    assert handshakes.count(report(asked.round, held(7)), state) is not None
    assert handshakes.due(10**9, 1) == []
    handshakes.note(beat(2), 10**9)
    assert handshakes.due(10**9, 1)[0].incarnation == 2


def test_an_indexer_agrees_although_writes_go_on() -> None:
    state = a_state(an_index(7), an_index(8))
    handshakes = Handshakes(3, PERIOD_MS)
    for reported, agreed in (((held(7), held(99)), False), ((held(7),), True)):
        handshakes.note(beat(), 0)
        (asked,) = handshakes.due(10**6 if agreed else 0, 1)
        assert not handshakes.count(report(asked.round, *reported), state)
        known = handshakes.get(INDEXER)
        assert known is not None
        assert known.agreed == agreed


def test_a_report_in_parts_counts_once_it_is_whole() -> None:
    state = a_state(an_index(7), an_index(8))
    handshakes = Handshakes(3, PERIOD_MS)
    handshakes.note(beat(), 0)
    number = handshakes.due(0, 1)[0].round
    first = report(number, held(7), cas=2, part=0, parts=2)
    assert handshakes.count(first, state) is None
    assert handshakes.count(first, state) is None
    last = report(number, held(8), cas=2, part=1, parts=2)
    difference = handshakes.count(last, state)
    assert difference is not None
    assert not difference


def test_answers_to_another_question_or_from_another_life_are_ignored() -> None:
    state = a_state(an_index(7))
    handshakes = Handshakes(3, PERIOD_MS)
    assert handshakes.count(report(1, held(7)), state) is None
    handshakes.note(beat(), 0)
    old = handshakes.due(0, 1)[0].round
    new = handshakes.due(10 * PERIOD_MS, 1)[0].round
    assert handshakes.count(report(old, held(7)), state) is None
    assert handshakes.count(report(new, held(7), life=9), state) is None
    assert handshakes.count(report(new, held(7)), state) is not None


def test_a_difference_that_stays_makes_the_indexer_read_the_state_again() -> None:
    state = a_state(an_index(7))
    handshakes = Handshakes(3, PERIOD_MS)
    handshakes.note(beat(), 0)
    rereads = []
    for now in range(0, 10**6, 10**5):
        (asked,) = handshakes.due(now, 1)
        rereads.append(asked.reread)
        handshakes.count(report(asked.round), state)
    assert rereads[:ROUNDS_BEFORE_REREAD] == [False] * (ROUNDS_BEFORE_REREAD - 1) + [True]


def test_an_indexer_that_is_behind_the_question_has_not_answered_it() -> None:
    made = Handshakes(1, 100)
    made.note(
        make_indexer_beat(3, incarnation=7, address="http://x", at_ms=1),
        0,
    )
    (asked,) = made.due(0, 20)
    made.count(HoldingsReported(3, 7, asked.round, 10, 0, 1, ()), StateContext())
    held = made.get(3)
    assert held is not None
    assert not held.agreed
