"""The StateContext and the one way to change it.

Pure. `evolve` folds mutations, with the CAS that each got, into the next StateContext; master,
replica, recovery, replay of `history` and the simulator all call it. It cannot refuse: whatever is
in the log happened. Values are persistent maps, so that a reader keeps a consistent state for as
long as it likes while the node moves on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from immutables import Map

from coordinator.core.model import digest as digests
from coordinator.core.model.entities import (
    DROPPING,
    MAINTENANCE,
    MOVE_PENDING,
    READY,
    REBALANCE_CANCELLED,
    REBALANCE_CANCELLING,
    Entity,
    Index,
    Rebalance,
    Rollback,
    Slice,
    bucket_key,
    index_key,
    rebalance_key,
    rollback_key,
    setting_key,
    stream_key,
)
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import Cas

LEGACY_OUTCOMES = "request/"
"""Under such keys older versions kept outcomes of requests as entities."""


DEFERRED = "deferred"
"""The phase of an index that is READY and waits for its administrator to have it built."""

ENTITY_BYTES = 64
"""What an entity weighs beside its key and value."""


class Versioned(NamedTuple):
    """An entity with its CAS and its bytes exactly as they were written."""

    cas: Cas
    value: bytes
    entity: Entity


class StateContext(NamedTuple):
    """All replicated metadata at one CAS.

    `cas` is that of the last mutation of the last committed transaction, never a maximum over the
    entities that are left: the last mutation may have been a drop. `names` finds an index by
    (bucket, name); an index that is being dropped has given its name back. `load` counts the
    slices that each indexer holds, those being dropped included. `kinds` has the entities by kind,
    `phases` the indexes by state, where READY is parted by whether they are deferred; `pending`
    finds an index in INIT, or one that is to replace another, by the request that makes it;
    `replacements` finds the latter by the index that it replaces, and `claims` by the name that it
    takes then. Until then it holds no name. `parts` finds the parts of an index, `leaving` has the
    indexes of which copies are leaving. `size` is what all entities weigh, in bytes. All of it
    follows from `entities`, and is kept so that nobody has to look at them all.

    Large because each thing that somebody looks up is one method.
    """

    cas: Cas = Cas(0)
    digest: int = digests.EMPTY
    entities: Map[str, Versioned] = Map()
    names: Map[tuple[str, str], int] = Map()
    load: Map[int, int] = Map()
    kinds: Map[str, Map[str, Versioned]] = Map()
    phases: Map[str, Map[int, Index]] = Map()
    pending: Map[str, int] = Map()
    replacements: Map[int, int] = Map()
    claims: Map[tuple[str, str], int] = Map()
    parts: Map[int, frozenset[int]] = Map()
    leaving: Map[int, None] = Map()
    size: int = 0

    def get(self, key: str) -> Versioned | None:
        return self.entities.get(key)

    def cas_of(self, key: str) -> int:
        """Return the CAS of an entity, 0 if it does not exist."""
        found = self.entities.get(key)
        return found.cas if found else 0

    def index_by_id(self, index_id: int) -> Versioned | None:
        return self.entities.get(index_key(index_id))

    def find_index(self, index_id: int) -> Index | None:
        """Return an index, or a part of one, if it is there."""
        held = self.index_by_id(index_id)
        entity = held.entity if held else None
        return entity if isinstance(entity, Index) else None

    def named_by_id(self, index_id: int) -> Versioned | None:
        """Return an index that clients may name by its id: a part is none."""
        index = self.find_index(index_id)
        return None if index is not None and index.part_of else self.index_by_id(index_id)

    def index_named(self, bucket: str, name: str) -> Versioned | None:
        found = self.names.get((bucket, name))
        return None if found is None else self.index_by_id(found)

    def replacement_of(self, index_id: int) -> Versioned | None:
        """Return the index that is to take this one's place, if there is one."""
        found = self.replacements.get(index_id)
        return None if found is None else self.index_by_id(found)

    def parts_of(self, index_id: int) -> list[Index]:
        """Return what holds copies of slices of an index that were moved, or move: oldest first."""
        found = (self.find_index(part) for part in sorted(self.parts.get(index_id, ())))
        return [part for part in found if part is not None]

    def holders_of(self, index: Index) -> list[Index]:
        """Return what scans of an index are answered from: the newest part first, itself last."""
        parts = [part for part in self.parts_of(index.id) if part.state == MAINTENANCE]
        return [*reversed(parts), index]

    def keepers_of(self, index: Index) -> list[Index]:
        """Return what has copies that answer scans, or will again when they are built anew: the
        newest part first, the index last. A part that has yet to take over is none."""
        parts = [part for part in self.parts_of(index.id) if part.state != DROPPING]
        if not all(part.state == MAINTENANCE for part in parts):
            running = (one for one in self.rebalances() if not one.is_over)
            moves = (move for one in running for move in one.moves)
            coming = {move.part for move in moves if move.state == MOVE_PENDING}
            parts = [p for p in parts if p.state == MAINTENANCE or p.id not in coming]
        return [*reversed(parts), index]

    def whole(self, index: Index) -> Index:
        """Return an index with all copies of its slices, whoever holds them: not those that leave,
        or that have yet to take over."""
        holders = self.keepers_of(index)
        if len(holders) == 1 and not index.has_leaving_copies:
            return index
        return replace(
            index,
            slices=tuple(
                piece.on(tuple(dict.fromkeys(h for one in holders for h in one.slices[at].serving)))
                for at, piece in enumerate(index.slices)
            ),
        )

    def rebalance(self, rebalance_id: int) -> Rebalance | None:
        found = self.entities.get(rebalance_key(rebalance_id))
        entity = found.entity if found else None
        return entity if isinstance(entity, Rebalance) else None

    def rebalances(self) -> list[Rebalance]:
        """Return the rebalances that are known, the newest first."""
        found = [v.entity for v in self.of_kind("rebalance") if isinstance(v.entity, Rebalance)]
        return sorted(found, key=lambda one: -one.id)

    @property
    def drained(self) -> frozenset[int]:
        """The indexers that the last rebalance empties, or has emptied: they get nothing new."""
        known = self.rebalances()
        is_on = bool(known) and known[0].state not in (REBALANCE_CANCELLING, REBALANCE_CANCELLED)
        return frozenset(known[0].drain) if is_on else frozenset()

    def bucket(self, name: str) -> Versioned | None:
        return self.entities.get(bucket_key(name))

    def stream(self, bucket: str) -> Versioned | None:
        return self.entities.get(stream_key(bucket))

    def rollback(self, bucket: str) -> Rollback | None:
        """Return the last rollback of a bucket."""
        found = self.entities.get(rollback_key(bucket))
        entity = found.entity if found else None
        return entity if isinstance(entity, Rollback) else None

    def rollbacks(self) -> list[Rollback]:
        """Return the last rollback of each bucket that had one, in the order of their names."""
        found = [v.entity for v in self.of_kind("rollback") if isinstance(v.entity, Rollback)]
        return sorted(found, key=lambda one: one.bucket)

    @property
    def streams_are_stopped(self) -> bool:
        """Whether a rollback has yet to find out after what streams begin again."""
        return any(rollback.stops_streams for rollback in self.rollbacks())

    def setting(self, name: str) -> Versioned | None:
        return self.entities.get(setting_key(name))

    def of_kind(self, kind: str) -> Iterator[Versioned]:
        """Yield the entities under `<kind>/`, in no particular order."""
        return iter(self.kinds.get(kind, Map()).values())

    def in_phase(self, *phases: str) -> Iterator[Index]:
        """Yield the indexes in these phases, in no particular order."""
        for phase in phases:
            yield from self.phases.get(phase, Map()).values()

    def indexes(self) -> list[tuple[Index, Cas]]:
        """Return every index with its CAS, ordered by bucket and name; no parts."""
        held = [(v.entity, v.cas) for v in self.of_kind("index") if isinstance(v.entity, Index)]
        found = [(index, cas) for index, cas in held if not index.part_of]
        return sorted(found, key=lambda pair: (pair[0].bucket, pair[0].name, pair[0].id))


EMPTY = StateContext()


def evolve(state: StateContext, changes: Iterable[tuple[Mutation, Cas]]) -> StateContext:
    """Return `state` after `changes`: mutations in log order, each with its CAS.

    The CAS values ascend and are above `state.cas`; the last one becomes the state's.
    """
    cas = state.cas
    folding = _Folding(state)
    for mutation, at in changes:
        assert at > cas, f"CAS {at} follows {cas}"
        cas = at
        if mutation.value is None:
            folding.put(mutation.key, None)
        else:
            assert mutation.entity is not None
            folding.put(mutation.key, Versioned(at, mutation.value, mutation.entity))
    return folding.finish(cas)


def without(state: StateContext, keys: Iterable[str]) -> StateContext:
    """Return `state` at the same CAS, as if these entities had never been."""
    folding = _Folding(state)
    for key in keys:
        folding.put(key, None)
    return folding.finish(state.cas)


class _Folding:
    """A StateContext while it is changed: maps that share structure with the one before."""

    def __init__(self, state: StateContext) -> None:
        self._digest = state.digest
        self._size = state.size
        self._names, self._load = state.names, state.load
        self._phases, self._pending = state.phases, state.pending
        self._replacements, self._claims = state.replacements, state.claims
        self._parts, self._leaving = state.parts, state.leaving
        self._kinds = state.kinds
        self._entities = state.entities.mutate()
        self._changed: dict[str, Any] = {}

    def put(self, key: str, after: Versioned | None) -> None:
        """Replace the entity under a key; None: it goes."""
        kind = key.partition("/")[0]
        of_kind = self._changed.get(kind)
        if of_kind is None:
            of_kind = self._changed[kind] = self._kinds.get(kind, Map()).mutate()
        before = self._entities.get(key)
        if before is not None:
            self._digest -= digests.weight(key, before.cas, before.value)
            self._size -= len(key) + len(before.value) + ENTITY_BYTES
        if after is not None:
            self._entities[key] = of_kind[key] = after
            self._digest += digests.weight(key, after.cas, after.value)
            self._size += len(key) + len(after.value) + ENTITY_BYTES
        elif before is not None:
            del self._entities[key]
            del of_kind[key]
        if kind == "index":
            self._index(before.entity if before else None, after.entity if after else None)

    def _index(self, before: Entity | None, after: Entity | None) -> None:
        self._names = _renamed(self._names, before, after)
        if _borne_of(before) != _borne_of(after):
            self._load = _loaded(_loaded(self._load, before, -1), after, 1)
        if isinstance(before, Index):
            phase = phase_of(before)
            left = self._phases[phase].delete(before.id)
            self._phases = self._phases.set(phase, left) if left else self._phases.delete(phase)
            if self._pending.get(before.request) == before.id:
                self._pending = self._pending.delete(before.request)
            if self._replacements.get(before.replaces) == before.id:
                self._replacements = self._replacements.delete(before.replaces)
            if self._claims.get((before.bucket, before.name)) == before.id:
                self._claims = self._claims.delete((before.bucket, before.name))
            if before.part_of and not (isinstance(after, Index) and after.part_of):
                others = self._parts[before.part_of] - {before.id}
                self._parts = (
                    self._parts.set(before.part_of, others)
                    if others
                    else self._parts.delete(before.part_of)
                )
            if before.has_leaving_copies:
                self._leaving = self._leaving.delete(before.id)
        if isinstance(after, Index):
            if after.has_leaving_copies:
                self._leaving = self._leaving.set(after.id, None)
            if after.part_of:
                others = self._parts.get(after.part_of, frozenset())
                self._parts = self._parts.set(after.part_of, others | {after.id})
            phase = phase_of(after)
            found: Map[int, Index] = self._phases.get(phase, Map())
            self._phases = self._phases.set(phase, found.set(after.id, after))
            if after.is_unfinished and after.request:
                self._pending = self._pending.set(after.request, after.id)
            if after.is_replacement:
                self._replacements = self._replacements.set(after.replaces, after.id)
                self._claims = self._claims.set((after.bucket, after.name), after.id)

    def finish(self, cas: Cas) -> StateContext:
        kinds = self._kinds
        for kind, held in self._changed.items():
            of_kind = held.finish()
            if of_kind:
                kinds = kinds.set(kind, of_kind)
            elif kind in kinds:
                kinds = kinds.delete(kind)
        return StateContext(
            cas=cas,
            digest=self._digest & digests.MODULUS_MASK,
            entities=self._entities.finish(),
            names=self._names,
            load=self._load,
            kinds=kinds,
            phases=self._phases,
            pending=self._pending,
            replacements=self._replacements,
            claims=self._claims,
            parts=self._parts,
            leaving=self._leaving,
            size=self._size,
        )


def phase_of(index: Index) -> str:
    """Return under which phase a StateContext finds an index.

    One that is to replace another is built without being asked for, deferred or not.
    """
    waits = index.state == READY and index.defer_build and not index.is_replacement
    return DEFERRED if waits else index.state


def _renamed(
    names: Map[tuple[str, str], int], before: Entity | None, after: Entity | None
) -> Map[tuple[str, str], int]:
    """Keep the name space: an index holds its name until it is being dropped.

    One that is to replace another holds none before it takes that one's place, and a part none at
    all.
    """
    if isinstance(before, Index) and names.get((before.bucket, before.name)) == before.id:
        names = names.delete((before.bucket, before.name))
    if (
        isinstance(after, Index)
        and after.state != DROPPING
        and not (after.replaces or after.part_of)
    ):
        names = names.set((after.bucket, after.name), after.id)
    return names


def _borne_of(entity: Entity | None) -> tuple[Slice, ...]:
    """Return the slices that are a load: what is being dropped is none any more."""
    return entity.slices if isinstance(entity, Index) and entity.state != DROPPING else ()


def _loaded(load: Map[int, int], entity: Entity | None, sign: int) -> Map[int, int]:
    """Count the slices of an index towards the indexers that hold them, or away from them."""
    for piece in _borne_of(entity):
        for host in piece.hosts:
            count = load.get(host, 0) + sign
            load = load.set(host, count) if count else load.delete(host)
    return load


def recomputed_digest(state: StateContext) -> int:
    """Return the digest over all entities from nothing: what the incremental one must equal."""
    total = sum(digests.weight(key, v.cas, v.value) for key, v in state.entities.items())
    return total & digests.MODULUS_MASK


def restore(cas: Cas, entities: Iterable[tuple[str, Versioned]]) -> StateContext:
    """Build a StateContext from stored entities: after a restart or a full synchronisation.

    The digest is computed from the bytes given, so that a damaged store cannot hide.
    """
    folding = _Folding(EMPTY)
    for key, versioned in entities:
        folding.put(key, versioned)
    return folding.finish(cas)
