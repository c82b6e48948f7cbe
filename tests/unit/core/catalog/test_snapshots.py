"""Copies of the state: cut into chunks, and put together again from a topic that has more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.catalog import snapshots
from coordinator.core.catalog import state as states
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk, SnapshotEntry, chunks
from coordinator.core.catalog.state import EMPTY
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Mutation
from schemas.registry import SchemaError
from tests.support.strategies import histories

History = list[tuple[Mutation, int]]


@pytest.mark.thorough
@given(histories(), st.data())
def test_a_copy_is_the_state_whatever_stands_between_its_chunks(
    history: History, data: st.DataObject
) -> None:
    state = states.evolve(EMPTY, history)
    others = list(chunks(8, states.evolve(EMPTY, history[:2])))
    topic = list(chunks(7, state))
    for other in others:
        topic.insert(data.draw(st.integers(0, len(topic))), other)
    topic += topic[: data.draw(st.integers(0, len(topic)))]
    assembly = Assembly(7)
    held = [pair for chunk in topic for pair in assembly.add(chunk)]
    assert assembly.is_whole
    assert states.restore(assembly.cas, held) == state


def test_a_large_state_is_cut_into_chunks_of_bounded_size() -> None:
    entities = [Setting(f"k{n}", "x" * 50_000) for n in range(40)]
    written = [Mutation("W", e.key, e.value_json.encode(), e) for e in entities]
    state = states.evolve(EMPTY, [(m, cas) for cas, m in enumerate(written, 1)])
    found = list(chunks(7, state))
    assert len(found) > 3
    for chunk in found:
        assert sum(len(e.value) for e in chunk.entries) <= snapshots.CHUNK_BYTES
    assert [chunk.is_last for chunk in found] == [False] * (len(found) - 1) + [True]


def test_a_copy_without_its_last_chunk_is_not_whole() -> None:
    found = list(chunks(7, EMPTY))
    assert [chunk.is_last for chunk in found] == [True]
    assembly = Assembly(7)
    assert not assembly.is_whole
    assert assembly.add(found[0]) == ()
    assert assembly.is_whole


def test_a_copy_holds_entities_and_nothing_that_has_records_inside() -> None:
    """A chunk inside of a chunk would be read as deep as somebody cared to nest them."""
    inner = codec.encode(SnapshotChunk(1, 5, 6, 0, True, ()))
    chunk = SnapshotChunk(
        1, 5, 6, 0, True, (SnapshotEntry("config/k", 3, inner, Setting("k", "1")),)
    )
    with pytest.raises(SchemaError, match="an entity belongs here"):
        codec.decode(codec.encode(chunk))
