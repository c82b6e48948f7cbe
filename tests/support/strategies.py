"""Hypothesis strategies of the core's data, shared by the unit tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from coordinator.codec import encode
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.model import entities
from coordinator.core.model.entities import Entity
from coordinator.core.model.records import Mutation

NAMES = st.sampled_from(["a", "b", "c", "by_city", "x.y", "#primary"])
IDS = st.integers(1, 6)
LONGS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=20)


def slices() -> st.SearchStrategy[tuple[entities.Slice, ...]]:
    one = st.builds(
        entities.Slice,
        st.integers(0, 3),
        st.integers(0, 250),
        st.lists(st.integers(0, 250), max_size=2).map(tuple),
    )
    return st.lists(one, min_size=1, max_size=3).map(tuple)


def indexes() -> st.SearchStrategy[entities.Index]:
    """Any indexes; a request makes no more than one."""
    return st.builds(
        entities.Index,
        id=IDS,
        name=NAMES,
        bucket=NAMES,
        expressions=st.lists(TEXTS, max_size=3).map(tuple),
        where=st.none() | TEXTS,
        primary=st.booleans(),
        using=st.just("gsi"),
        defer_build=st.booleans(),
        state=st.sampled_from(entities.INDEX_STATES),
        reason=st.none() | TEXTS,
        slices=slices(),
        request=TEXTS,
        created_ms=st.integers(0, 2**50),
    ).map(lambda index: replace(index, request=f"{index.id}/{index.request}"))


def any_entity() -> st.SearchStrategy[Entity]:
    return st.one_of(
        indexes(),
        st.builds(entities.Bucket, NAMES, st.integers(1, 4096)),
        st.builds(entities.Setting, NAMES, TEXTS),
        st.builds(entities.Consumed, st.integers(0, 3), st.integers(0, 2**40)),
    )


def mutations() -> st.SearchStrategy[Mutation]:
    """A put of any entity, or the drop of one that may or may not exist."""

    def put(entity: Entity) -> Mutation:
        return Mutation("Written", entity.key, encode(entity), entity)

    def drop(entity: Entity) -> Mutation:
        return Mutation("Dropped", entity.key, None, None)

    return any_entity().map(put) | any_entity().map(drop)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Mutation, int]]:
    """Mutations with ascending CAS values that have gaps, as offsets do; names are unique."""
    chosen = draw(st.lists(mutations(), max_size=15))
    state = EMPTY
    history: list[tuple[Mutation, int]] = []
    for mutation in chosen:
        cas = state.cas + draw(st.integers(1, 3))
        step = (_with_a_free_name(state, mutation), cas)
        state = evolve(state, [step])
        history.append(step)
    return history


def _with_a_free_name(state: StateContext, mutation: Mutation) -> Mutation:
    """Return the mutation, its index being dropped where another one holds its name."""
    index = mutation.entity
    if not isinstance(index, entities.Index):
        return mutation
    holder = state.names.get((index.bucket, index.name))
    if holder in (None, index.id):
        return mutation
    dropping = replace(index, state=entities.DROPPING)
    return Mutation("Dropped", dropping.key, encode(dropping), dropping)
