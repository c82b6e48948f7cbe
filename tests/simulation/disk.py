"""A node's disk: a store of atomic batches, some of which a crash may take back.

It does what `coordinator.node.store` does on RocksDB, and can be damaged: so that the reader
notices, as RocksDB's checksums do, or in silence, where only the digest tells. A sync can fail:
then nobody knows what of the batches before it is on the disk, and a later sync does not bring
them there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from immutables import Map

from coordinator.core.catalog import state as states
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.authority_state import AuthorityState
from tests.simulation.kernel import disk as kernel


class ReprCodec:
    """A deterministic encoding that needs no schema: it remembers what it has encoded."""

    def __init__(self) -> None:
        self._groups: dict[bytes, Any] = {}

    def encode_entity(self, entity: Any) -> bytes:
        return repr(entity).encode()

    def encode_outcomes(self, group: Any) -> bytes:
        value = repr(group).encode()
        self._groups[value] = group
        return value

    def decode_outcomes(self, value: bytes) -> Any:
        return self._groups[value]


class Content(NamedTuple):
    """What is on a disk after some batch."""

    finished: bool = False
    applied: int = -1
    authority: AuthorityState | None = None
    rows: Map[int, Any] = Map()
    prepared: inp.PreparedTransaction | None = None
    cas: int = 0
    digest: int = 0
    entities: Map[str, Any] = Map()
    outcomes: Map[int, bytes] = Map()


@dataclass(slots=True, eq=False)
class Batch:
    """A batch that was written, and not synced yet; `doubtful` once a sync of it has failed."""

    save: fx.Save
    doubtful: bool = False


class Disk(kernel.Disk[Content, Batch]):
    """A node's store."""

    def __init__(self) -> None:
        super().__init__(Content())
        self.full = False
        self.refusing = False
        self.unreadable = False
        self.next_sync_fails = False
        self.durable_prepared: set[int] = set()

    def applied(self, content: Content, batch: Batch) -> Content:
        if batch.doubtful:
            return content
        save = batch.save
        if save.wipe:
            content = Content()
        entities = content.entities.mutate()
        for key, versioned in save.changes:
            if versioned is not None:
                entities[key] = versioned
            elif key in entities:
                del entities[key]
        outcomes = content.outcomes
        for cas, value in save.outcomes:
            if value is not None:
                outcomes = outcomes.set(cas, value)
            elif cas in outcomes:
                outcomes = outcomes.delete(cas)
        rows = content.rows
        for number, row in save.rows:
            rows = rows.set(number, row)
        authority = None if save.authority is None else replace(save.authority, log=Map())
        return Content(
            save.authority is not None,
            save.applied,
            authority,
            rows,
            save.prepared,
            save.cas,
            save.digest,
            entities.finish(),
            outcomes,
        )

    def write(self, save: fx.Save) -> Batch:
        """Apply a batch in memory."""
        batch = Batch(save)
        self.take(batch)
        return batch

    def synced(self, batch: Batch) -> None:
        """Everything up to this batch survives from now on, but for what is doubtful."""
        if batch in self.unsynced:
            self.secure(self.unsynced.index(batch) + 1)

    def secure(self, count: int) -> None:
        super().secure(count)
        if self.durable.prepared is not None:
            self.durable_prepared.add(self.durable.prepared.offset)

    def sync_failed(self) -> None:
        """The system has dropped what it could not write, and calls it clean."""
        for batch in self.unsynced:
            batch.doubtful = True

    def restore(self) -> inp.Restored | None:
        """Return what a starting node finds."""
        if self.unreadable:
            self.unreadable = False
            self.durable = self.newest = Content()
            return None
        content = self.newest
        if not content.finished or content.authority is None:
            return None
        authority = content.authority
        first = max(0, authority.log_next - authority.log_capacity)
        rows = {n: content.rows[n] for n in range(first, authority.log_next) if n in content.rows}
        authority = replace(authority, log=Map(rows))
        state = states.restore(content.cas, content.entities.items())
        outcomes = tuple(group for _, group in sorted(content.outcomes.items()))
        return inp.Restored(content.applied, authority, state, content.prepared, outcomes)

    def flip(self, choose: Any) -> bool:
        """Change one byte of an entity in silence; tell whether there was one to change."""
        content = self.newest
        if not content.finished or not content.entities:
            return False
        key = choose(sorted(content.entities))
        held = content.entities[key]
        flipped = held._replace(value=bytes([held.value[0] ^ 1]) + held.value[1:])
        self.durable = content._replace(entities=content.entities.set(key, flipped))
        self.newest = self.durable
        self.unsynced.clear()
        return True
