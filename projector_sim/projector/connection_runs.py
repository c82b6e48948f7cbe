"""A connection to the key-value store, as the projector sees it: what it asked for, and what came.

The router writes a `Run`, and the stream planner reads it. `positions` has the vbuckets whose
stream has begun and not ended; everything up to a position was turned into items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.model.entities import Index
from coordinator.core.model.types import Seqno, Vbuuid


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """One connection: `kind` of one bucket, for `vbuckets`.

    `starts` has the branch and seqno to begin after, by vbucket; None: begin with the next
    mutation. `until` has the seqnos at which vbuckets end, and
    `until_on` the branches that these are of. A catch-up is for one `indexer` only.
    `carried` are the indexes whose items are sent. `shares` has the vbuckets that are sent for some
    of them only, and for which; `builds` are the builds that it began with. `done` are the vbuckets
    whose stream has reached its end, until the stream planner has noted them. `heard_ms` is when a
    vbucket last began or was refused. `histories` has, packed, which branches each vbucket has had;
    empty if it was one. `departed` are those that have moved to another node, and `given_up` those
    that another connection of this projector brings by now. `ordinal` is that of the last record
    that was passed on.
    """

    bucket: str
    kind: str
    connection: int
    vbuckets: tuple[int, ...]
    carried: dict[int, Index]
    opened_ms: int
    number: int = 0
    starts: Mapping[int, tuple[int, int]] | None = None
    until: Mapping[int, int] = field(default_factory=dict)
    until_on: Mapping[int, int] = field(default_factory=dict)
    indexer: int | None = None
    shares: Mapping[int, frozenset[int]] = field(default_factory=dict)
    vbuuids: dict[int, Vbuuid] = field(default_factory=dict)
    histories: dict[int, bytes] = field(default_factory=dict)
    positions: dict[int, Seqno] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    departed: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    done: list[int] = field(default_factory=list)
    heard_ms: int = 0
    builds: tuple[tuple[int, int], ...] = ()
    ordinal: int = 0

    def __post_init__(self) -> None:
        self.heard_ms = self.opened_ms
        self.builds = tuple((index.id, index.build) for index in self.carried.values())

    def is_settled(self) -> bool:
        """Tell whether each vbucket that was asked for has begun, in whatever way it went on."""
        return all(
            v in self.positions or v in self.ended or v in self.refused or v in self.given_up
            for v in self.vbuckets
        )

    def begun(self) -> set[int]:
        """Return the vbuckets whose mutations come by this connection, and by no other."""
        return self.positions.keys() - self.departed - self.given_up

    def open(self) -> set[int]:
        """Return the vbuckets that have begun here, or may begin yet."""
        return self.unfinished() - self.departed

    def refused_lately(self) -> set[int]:
        """Return the vbuckets that the store has refused, and nobody has asked for again."""
        return self.refused.keys() - self.ended.keys() - self.departed - self.given_up

    def unfinished(self) -> set[int]:
        """Return the vbuckets of which something may still come here."""
        return set(self.vbuckets) - self.ended.keys() - self.refused.keys() - self.given_up
