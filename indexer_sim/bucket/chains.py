"""How far each connection has been read here, partition by partition, and whether records are
missing between one and the next.

Pure. Each record has an ordinal and names the one before it on its connection, partition and
indexer. So a record that was read before is known, and so is a hole. Nothing here knows documents
or vbuckets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from coordinator.core.model.stream_records import MAINTENANCE, NOT_SAID, ConnectionRead, KeyVersions
from indexer_sim.bucket.progress import Connection

CHAINS_MAX = 8_192
"""So many connections are followed in all partitions; the one that was silent for longest goes.

There are a few maintenance connections for each projector, and a few that end. Should the one that
goes be heard again, something of it counts as lost, and is streamed once more.
"""

NEWEST_KEPT = 4
"""So many maintenance connections of a projector are followed, the newest ones, and all that own a
vbucket: a projector has no more at a time."""

READ_BEFORE, NEXT, AFTER_A_HOLE = "read before", "next", "after a hole"
"""What a record is to its connection: here already, the one that follows, or one that follows
others that are not here."""


class Chain(NamedTuple):
    """Up to which ordinal the records of a connection are here, in one partition.

    `number` is that of a maintenance connection, 0 for a connection that ends.
    """

    ordinal: int
    number: int


ChainKey = tuple[int, Connection]
"""A partition of `mutations`, and a connection that sends on it."""


class Chains:
    """The chains of one bucket. `dirty` are those that changed since they were last written."""

    def __init__(self) -> None:
        self.by_key: dict[ChainKey, Chain] = {}
        """Who was heard last comes last."""
        self.dirty: set[ChainKey] = set()
        self._maintaining: set[ChainKey] = set()
        """Those of them that do not end."""

    def load(self, partition: int, connection: Connection, chain: Chain) -> None:
        """Take up what was written before."""
        self._link((partition, connection), chain)

    def follow(
        self,
        record: KeyVersions,
        partition: int,
        owners: Callable[[], Collection[Connection]] = tuple,
    ) -> str:
        """Note how far a connection is; return what the record is to it.

        `owners` tells which connections own a vbucket, of any partition.
        """
        at = (partition, (record.projector, record.connection))
        before = self.by_key.get(at)
        reached = before.ordinal if before is not None else 0
        place = NEXT
        if record.previous != NOT_SAID:
            if record.ordinal <= reached:
                return READ_BEFORE
            if record.previous != reached:
                place = AFTER_A_HOLE
        number = record.number if record.kind == MAINTENANCE else 0
        if before is None:
            self._make_room(partition, record.projector, number, owners)
        else:
            del self.by_key[at]
        self._link(at, Chain(record.ordinal, number))
        self.dirty.add(at)
        return place

    def forget(self, partition: int) -> None:
        """Part of a partition is gone: every connection begins anew there."""
        for at in [at for at in self.by_key if at[0] == partition]:
            self._unlink(at)

    def read(self, partitions: int) -> tuple[ConnectionRead, ...]:
        """Return how far maintenance connections are here, in each of so many partitions."""
        found: dict[Connection, list[int]] = {}
        for at in self._maintaining:
            partition, connection = at
            if partition < partitions:
                ordinals = found.setdefault(connection, [0] * partitions)
                ordinals[partition] = self.by_key[at].ordinal
        return tuple(ConnectionRead(*c, tuple(o)) for c, o in sorted(found.items()))

    def _link(self, at: ChainKey, chain: Chain) -> None:
        self.by_key[at] = chain
        if chain.number:
            self._maintaining.add(at)

    def _unlink(self, at: ChainKey) -> None:
        self.by_key.pop(at, None)
        self._maintaining.discard(at)
        self.dirty.add(at)

    def _make_room(
        self,
        partition: int,
        projector: int,
        number: int,
        owners: Callable[[], Collection[Connection]],
    ) -> None:
        """Drop what a new connection supersedes, and the oldest if there are too many.

        A projector may have several. One that owns nothing yet, or here, is among the newest.
        """
        older = (
            at
            for at in self._maintaining
            if at[0] == partition and at[1][0] == projector and self.by_key[at].number < number
        )
        spare = sorted(older, key=lambda at: -self.by_key[at].number)[NEWEST_KEPT - 1 :]
        kept = owners() if spare else ()
        for at in spare:
            if at[1] not in kept:
                self._unlink(at)
        if len(self.by_key) >= CHAINS_MAX:
            self._unlink(next(iter(self.by_key)))
