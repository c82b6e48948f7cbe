"""Laws of the StateContext: folding, splitting, restoring, and the digest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.codec import decode
from coordinator.core.catalog.state import (
    EMPTY,
    StateContext,
    Versioned,
    evolve,
    recomputed_digest,
    restore,
)
from coordinator.core.model.entities import DROPPING, Index
from coordinator.core.model.records import Mutation
from tests.support.strategies import histories

History = list[tuple[Mutation, int]]


@given(histories())
def test_every_split_of_a_history_folds_to_the_same_state(history: History) -> None:
    whole = evolve(EMPTY, history)
    for cut in range(len(history) + 1):
        assert evolve(evolve(EMPTY, history[:cut]), history[cut:]) == whole


@given(histories())
def test_a_snapshot_and_the_tail_equal_the_whole(history: History) -> None:
    whole = evolve(EMPTY, history)
    for cut in range(len(history) + 1):
        at_cut = evolve(EMPTY, history[:cut])
        thawed = restore(at_cut.cas, at_cut.entities.items())
        assert evolve(thawed, history[cut:]) == whole


@given(histories())
def test_the_incremental_digest_is_the_recomputed_one(history: History) -> None:
    state = evolve(EMPTY, history)
    assert state.digest == recomputed_digest(state)


@given(histories())
def test_compaction_keeps_the_digest(history: History) -> None:
    """Only the last record of each key survives, and drops do not survive at all."""
    last = {mutation.key: (mutation, cas) for mutation, cas in history}
    survivors = sorted(last.values(), key=lambda pair: pair[1])
    kept = [(m, cas) for m, cas in survivors if m.value is not None]
    assert evolve(EMPTY, kept).digest == evolve(EMPTY, history).digest


@given(histories().filter(lambda h: bool(evolve(EMPTY, h).entities)), st.data())
def test_flipping_one_stored_bit_changes_the_recomputed_digest(
    history: History, data: st.DataObject
) -> None:
    state = evolve(EMPTY, history)
    key = data.draw(st.sampled_from(sorted(state.entities)))
    held = state.entities[key]
    place = data.draw(st.integers(0, len(held.value) * 8 - 1))
    damaged = bytearray(held.value)
    damaged[place // 8] ^= 1 << (place % 8)
    flipped = Versioned(held.cas, bytes(damaged), held.entity)
    assert recomputed_digest(_replaced(state, key, flipped)) != state.digest


@given(histories().filter(lambda h: bool(evolve(EMPTY, h).entities)))
def test_the_digest_covers_the_cas(history: History) -> None:
    state = evolve(EMPTY, history)
    key, held = next(iter(state.entities.items()))
    moved = held._replace(cas=held.cas + 1)
    assert recomputed_digest(_replaced(state, key, moved)) != state.digest


def _replaced(state: StateContext, key: str, versioned: Versioned) -> StateContext:
    return state._replace(entities=state.entities.set(key, versioned))


@given(histories())
def test_an_index_holds_its_name_until_it_is_dropped(history: History) -> None:
    state = evolve(EMPTY, history)
    for (bucket, name), number in state.names.items():
        found = state.index_by_id(number)
        assert found is not None
        assert isinstance(found.entity, Index)
        assert (found.entity.bucket, found.entity.name) == (bucket, name)
        assert found.entity.state != DROPPING


@given(histories())
def test_the_load_counts_every_slice_that_an_indexer_holds_and_keeps(history: History) -> None:
    state = evolve(EMPTY, history)
    expected: dict[int, int] = {}
    for index, _ in state.indexes():
        for piece in index.slices if index.state != DROPPING else ():
            for host in piece.hosts:
                expected[host] = expected.get(host, 0) + 1
    assert dict(state.load) == expected


@given(histories())
def test_the_cas_is_that_of_the_last_mutation_even_if_it_was_a_drop(history: History) -> None:
    assert evolve(EMPTY, history).cas == (history[-1][1] if history else 0)


@given(histories())
def test_values_are_kept_byte_by_byte_as_they_were_written(history: History) -> None:
    state = evolve(EMPTY, history)
    for held in state.entities.values():
        assert decode(held.value) == held.entity
