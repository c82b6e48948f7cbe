"""A node's disk: a store of atomic batches, some of which a crash may take back.

It does what `coordinator.store` does on RocksDB, and can be damaged: so that the reader notices, as
RocksDB's checksums do, or in silence, where only the digest tells.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from immutables import Map

from coordinator.core import effects as fx
from coordinator.core import inputs as inp
from coordinator.core import state as states
from coordinator.core.authority_state import AuthorityState


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
    log: inp.LocalLog | None = None
    cas: int = 0
    digest: int = 0
    entities: Map[str, Any] = Map()
    outcomes: Map[int, bytes] = Map()


class Disk:
    """A store of atomic batches: those after the last sync may be lost, the newest first."""

    def __init__(self) -> None:
        self.contents: list[Content] = [Content()]
        self.full = False
        self.refusing = False
        self.unreadable = False
        self.durable_logs: set[int] = set()

    @property
    def newest(self) -> Content:
        return self.contents[-1]

    def write(self, save: fx.Save) -> Content:
        """Apply a batch in memory and return the content after it."""
        old = Content() if save.wipe else self.newest
        entities = old.entities.mutate()
        for key, versioned in save.changes:
            if versioned is not None:
                entities[key] = versioned
            elif key in entities:
                del entities[key]
        outcomes = old.outcomes
        for cas, value in save.outcomes:
            if value is not None:
                outcomes = outcomes.set(cas, value)
            elif cas in outcomes:
                outcomes = outcomes.delete(cas)
        rows = old.rows
        for number, row in save.rows:
            rows = rows.set(number, row)
        authority = None if save.authority is None else replace(save.authority, log=Map())
        content = Content(
            save.authority is not None,
            save.applied,
            authority,
            rows,
            save.log,
            save.cas,
            save.digest,
            entities.finish(),
            outcomes,
        )
        self.contents.append(content)
        return content

    def synced(self, content: Content) -> None:
        """Everything up to `content` survives from now on."""
        position = next((i for i, c in enumerate(self.contents) if c is content), None)
        if position is None:
            return
        del self.contents[:position]
        if content.log is not None:
            self.durable_logs.add(content.log.offset)

    def crash(self, kept: int) -> None:
        """Lose all but `kept` of the batches that were not synced."""
        del self.contents[1 + kept :]
        if self.newest.log is not None:
            self.durable_logs.add(self.newest.log.offset)

    def restore(self) -> inp.Restored | None:
        """Return what a starting node finds."""
        content = self.newest
        del self.contents[:-1]
        if self.unreadable:
            self.unreadable = False
            self.contents = [Content()]
            return None
        if not content.finished or content.authority is None:
            return None
        authority = content.authority
        first = max(0, authority.log_next - authority.log_capacity)
        rows = {n: content.rows[n] for n in range(first, authority.log_next) if n in content.rows}
        authority = replace(authority, log=Map(rows))
        state = states.restore(content.cas, content.entities.items())
        outcomes = tuple(sorted(content.outcomes.items()))
        return inp.Restored(content.applied, authority, state, content.log, outcomes)

    def flip(self, choose: Any) -> bool:
        """Change one byte of an entity in silence; tell whether there was one to change."""
        content = self.newest
        if not content.finished or not content.entities:
            return False
        key = choose(sorted(content.entities))
        held = content.entities[key]
        flipped = held._replace(value=bytes([held.value[0] ^ 1]) + held.value[1:])
        self.contents = [content._replace(entities=content.entities.set(key, flipped))]
        return True
