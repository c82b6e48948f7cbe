"""A connection to the key-value store, as the projector sees it: what was asked and what came.

`Run` is data that its router writes and the desk reads. Its positions are those of vbuckets whose
stream has begun and not ended; all up to a position has been turned into items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.model.entities import Index
from coordinator.core.model.types import Seqno, Vbuuid


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """One connection: `kind` of one bucket, for `vbuckets`.

    `starts` has the branch and seqno to begin after, by vbucket; None is "with what comes next".
    `until` bounds it: a vbucket ends when it has got there. A catch-up is for one `indexer` only.
    `carried` are the indexes whose items are sent; `shares` says of which of them a vbucket is
    sent, where not of all; `builds` are those with which it began. `done` are the vbuckets whose
    bounded stream has come to its end, until the desk has taken note of them. `heard_ms` is when a
    vbucket last began or ended. `ordinal` is that of the last record that was handed over.
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
    indexer: int | None = None
    shares: Mapping[int, frozenset[int]] = field(default_factory=dict)
    vbuuids: dict[int, Vbuuid] = field(default_factory=dict)
    positions: dict[int, Seqno] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    departed: set[int] = field(default_factory=set)
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
            v in self.positions or v in self.ended or v in self.refused for v in self.vbuckets
        )
