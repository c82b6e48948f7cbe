"""The StateContext and the one way to change it.

Pure. `evolve` folds mutations, with the CAS that each got, into the next StateContext; master,
replica, recovery, replay of `history` and the simulator all call it. It cannot refuse: whatever is
in the log happened. Values are persistent maps, so that a reader keeps a consistent state for as
long as it likes while the node moves on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from immutables import Map

from coordinator.core import digest as digests
from coordinator.core.entities import (
    DROPPING,
    Entity,
    Index,
    RequestOutcome,
    bucket_key,
    index_key,
    request_key,
    setting_key,
    stream_key,
)
from coordinator.core.records import Mutation


class Versioned(NamedTuple):
    """An entity with its CAS and its bytes exactly as they were written."""

    cas: int
    value: bytes
    entity: Entity


class StateContext(NamedTuple):
    """All replicated metadata at one CAS.

    `cas` is that of the last mutation of the last committed transaction, never a maximum over the
    entities that are left: the last mutation may have been a drop. `names` finds an index by
    (bucket, name); an index that is being dropped has given its name back. `load` counts the
    slices that each indexer holds, those being dropped included.
    """

    cas: int = 0
    digest: int = digests.EMPTY
    entities: Map[str, Versioned] = Map()
    names: Map[tuple[str, str], int] = Map()
    load: Map[int, int] = Map()

    def get(self, key: str) -> Versioned | None:
        return self.entities.get(key)

    def cas_of(self, key: str) -> int:
        """Return the CAS of an entity, 0 if it does not exist."""
        found = self.entities.get(key)
        return found.cas if found else 0

    def index_by_id(self, index_id: int) -> Versioned | None:
        return self.entities.get(index_key(index_id))

    def index_named(self, bucket: str, name: str) -> Versioned | None:
        found = self.names.get((bucket, name))
        return None if found is None else self.index_by_id(found)

    def bucket(self, name: str) -> Versioned | None:
        return self.entities.get(bucket_key(name))

    def stream(self, bucket: str) -> Versioned | None:
        return self.entities.get(stream_key(bucket))

    def setting(self, name: str) -> Versioned | None:
        return self.entities.get(setting_key(name))

    def outcome(self, request_id: str) -> Versioned | None:
        return self.entities.get(request_key(request_id))

    def of_kind(self, kind: str) -> Iterator[Versioned]:
        """Yield the entities under `<kind>/`, in no particular order."""
        prefix = kind + "/"
        return (held for key, held in self.entities.items() if key.startswith(prefix))

    def indexes(self) -> list[tuple[Index, int]]:
        """Return every index with its CAS, ordered by bucket and name."""
        found = [(v.entity, v.cas) for v in self.of_kind("index") if isinstance(v.entity, Index)]
        return sorted(found, key=lambda pair: (pair[0].bucket, pair[0].name, pair[0].id))

    def outcomes(self) -> list[tuple[int, RequestOutcome]]:
        """Return the recorded outcomes, oldest first."""
        rows = [
            (v.cas, v.entity)
            for v in self.of_kind("request")
            if isinstance(v.entity, RequestOutcome)
        ]
        return sorted(rows, key=lambda row: row[0])


EMPTY = StateContext()


def evolve(state: StateContext, changes: Iterable[tuple[Mutation, int]]) -> StateContext:
    """Return `state` after `changes`: mutations in log order, each with its CAS.

    The CAS values ascend and are above `state.cas`; the last one becomes the state's.
    """
    cas = state.cas
    digest = state.digest
    names, load = state.names, state.load
    entities = state.entities.mutate()
    weight = digests.weight
    for mutation, at in changes:
        assert at > cas, f"CAS {at} follows {cas}"
        cas = at
        key = mutation.key
        before = entities.get(key)
        if before is not None:
            digest -= weight(key, before.cas, before.value)
        if mutation.value is None:
            if before is not None:
                del entities[key]
        else:
            assert mutation.entity is not None
            entities[key] = Versioned(at, mutation.value, mutation.entity)
            digest += weight(key, at, mutation.value)
        if key.startswith("index/"):
            was = before.entity if before else None
            names = _renamed(names, was, mutation.entity)
            load = _loaded(_loaded(load, was, -1), mutation.entity, 1)
    return StateContext(cas, digest & digests.MODULUS_MASK, entities.finish(), names, load)


def _renamed(
    names: Map[tuple[str, str], int], before: Entity | None, after: Entity | None
) -> Map[tuple[str, str], int]:
    """Keep the name space: an index holds its name until it is being dropped."""
    if isinstance(before, Index) and names.get((before.bucket, before.name)) == before.id:
        names = names.delete((before.bucket, before.name))
    if isinstance(after, Index) and after.state != DROPPING:
        names = names.set((after.bucket, after.name), after.id)
    return names


def _loaded(load: Map[int, int], entity: Entity | None, sign: int) -> Map[int, int]:
    """Count the slices of an index towards the indexers that hold them, or away from them."""
    if isinstance(entity, Index):
        for piece in entity.slices:
            for host in piece.hosts:
                count = load.get(host, 0) + sign
                load = load.set(host, count) if count else load.delete(host)
    return load


def recomputed_digest(state: StateContext) -> int:
    """Return the digest over all entities from nothing: what the incremental one must equal."""
    total = sum(digests.weight(key, v.cas, v.value) for key, v in state.entities.items())
    return total & digests.MODULUS_MASK


def restore(cas: int, entities: Iterable[tuple[str, Versioned]]) -> StateContext:
    """Build a StateContext from stored entities: after a restart or a full synchronisation.

    The digest is computed from the bytes given, so that a damaged store cannot hide.
    """
    held = Map(entities)
    names: Map[tuple[str, str], int] = Map()
    load: Map[int, int] = Map()
    for versioned in held.values():
        if isinstance(versioned.entity, Index):
            names = _renamed(names, None, versioned.entity)
            load = _loaded(load, versioned.entity, 1)
    state = StateContext(cas, 0, held, names, load)
    return state._replace(digest=recomputed_digest(state))
