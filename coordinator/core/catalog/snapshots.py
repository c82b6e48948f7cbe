"""Copies of a StateContext on the topic `snapshots`: cut into chunks, and put together again.

Pure. A copy is sealed by the CAS and the digest of the state that it holds, and both stand in the
commit topic as well: so whoever reads one need not trust who wrote it. Chunks of two copies may
interleave; each chunk names its copy. What `history` has above a copy's CAS is its *tail*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.model.entities import Entity
from coordinator.core.model.types import Cas

CHUNK_BYTES = 512 * 1024
ENTRY_BYTES = 32
"""What an entity weighs in a chunk beside its key and value."""


@dataclass(frozen=True, slots=True)
class SnapshotEntry:
    """One entity: its key, its CAS, its bytes as they were written."""

    key: str
    cas: Cas
    value: bytes
    entity: Entity = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of a copy of the state at `cas`; the parts of a copy are numbered from 0."""

    copy: int
    cas: Cas
    digest: int
    part: int
    is_last: bool
    entries: tuple[SnapshotEntry, ...]


def chunks(copy: int, state: StateContext) -> Iterator[SnapshotChunk]:
    """Cut `state` into chunks of some `CHUNK_BYTES`, at least one."""
    part, size = 0, 0
    entries: list[SnapshotEntry] = []
    head = (copy, state.cas, state.digest)
    for key, held in state.entities.items():
        weight = len(key) + len(held.value) + ENTRY_BYTES
        if entries and size + weight > CHUNK_BYTES:
            yield SnapshotChunk(*head, part, False, tuple(entries))
            part, size = part + 1, 0
            entries.clear()
        entries.append(SnapshotEntry(key, held.cas, held.value, held.entity))
        size += weight
    yield SnapshotChunk(*head, part, True, tuple(entries))


class Assembly:
    """Puts one copy together from what stands on the topic, in its order."""

    def __init__(self, copy: int) -> None:
        self.copy = copy
        self.cas = 0
        self.is_whole = False
        self._parts = 0

    def add(self, chunk: SnapshotChunk) -> tuple[tuple[str, Versioned], ...]:
        """Return the entities of the next chunk; nothing of one that is not the copy's next."""
        if chunk.copy != self.copy or chunk.part != self._parts or self.is_whole:
            return ()
        self._parts += 1
        self.cas = chunk.cas
        self.is_whole = chunk.is_last
        return tuple(versioned(chunk.entries))


def versioned(entries: Iterable[SnapshotEntry]) -> Iterator[tuple[str, Versioned]]:
    """Yield the entities of a chunk as a StateContext holds them."""
    return ((e.key, Versioned(e.cas, e.value, e.entity)) for e in entries)
