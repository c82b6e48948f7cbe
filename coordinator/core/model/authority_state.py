"""The Authority's state: who is master, who is active, which transaction has which status.

Pure, frozen data; `coordinator.core.consensus.authority` holds the rules that change it. It folds
from the `commit` topic alone and is therefore the same on every node that has read as far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from immutables import Map

from coordinator.core.model.types import Cas, Epoch, Offset, TxnId

NO_TXN = TxnId(Epoch(0), 0)

INITIAL, COMMIT, ROLLBACK = "initial", "commit", "rollback"


@dataclass(frozen=True, slots=True)
class Member:
    """A node of the in-sync set: its address, and the incarnation of its process."""

    node: int
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class IndexerInfo:
    """A registered indexer."""

    id: int
    incarnation: int
    address: str
    zone: str


@dataclass(frozen=True, slots=True)
class ProjectorInfo:
    """A registered projector."""

    id: int
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class TransactionStatus:
    """A row of the rolling log of transactions; `cas` is the last of its mutations, or 0."""

    txn: TxnId
    status: str
    cas: Cas
    participants: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """The one transaction that is *initial*: the proposal that the fold opened, by its offset."""

    txn: TxnId
    offset: Offset
    participants: tuple[int, ...]
    prev_cas: Cas
    prev_digest: int
    count: int


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A copy of the StateContext at `cas` that was read back from the topic `snapshots`.

    It is the copy with this number, and begins at `offset` there. `commit_offset` is that of the
    `AuthoritySnapshot` at the same CAS: who reads `commit` from there on needs nothing before it.
    """

    copy: int
    cas: Cas
    digest: int
    offset: Offset
    commit_offset: Offset
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityState:
    """All that the fold of `commit` knows.

    `members` is the in-sync set. `acceptors` are those of the last committed transaction: only
    they may claim the mastership. `master` is 0 before the first claim and after a resignation,
    which may name a `successor`. `log` maps a running number to a transaction's status; it
    holds the numbers from `log_next - len(log)` to `log_next - 1`. `snapshots` are the newest
    copies of the StateContext, the oldest first. `outcomes_apart` is False in clusters of an older
    version, where outcomes of requests were entities; `outcomes_digest` is that of the window, and
    `outcomes_forgotten_ms` the time up to which requests are too old to be in it. The topics of
    SYNC, STREAM_BEGIN and STREAM_END have `sync_partitions` each.
    """

    cluster_id: str
    cas_base: int
    roster: tuple[int, ...]
    minimum: int
    log_capacity: int
    request_window_ms: int
    epoch: Epoch = Epoch(0)
    master: int = 0
    incarnation: int = 0
    address: str = ""
    members: Map[int, Member] = field(default_factory=Map)
    indexers: Map[int, IndexerInfo] = field(default_factory=Map)
    last_seq: int = 0
    open: OpenTransaction | None = None
    last_txn: TxnId = NO_TXN
    last_cas: Cas = Cas(0)
    digest: int = 0
    acceptors: tuple[int, ...] = ()
    log: Map[int, TransactionStatus] = field(default_factory=Map)
    log_next: int = 0
    successor: int = 0
    projectors: Map[int, ProjectorInfo] = field(default_factory=Map)
    snapshots: tuple[SnapshotInfo, ...] = ()
    outcomes_apart: bool = True
    outcomes_digest: int = 0
    outcomes_forgotten_ms: int = 0
    sync_partitions: int = 4

    @property
    def next_epoch(self) -> Epoch:
        """The epoch of the next claim."""
        return Epoch(self.epoch + 1)

    @property
    def active(self) -> tuple[int, ...]:
        """The nodes of the in-sync set, in numeric order."""
        return tuple(sorted(self.members))

    @property
    def eligible(self) -> tuple[int, ...]:
        """The nodes that may claim: the last transaction's acceptors; before any, the roster."""
        return self.acceptors or self.roster

    @property
    def shape(self) -> dict[str, Any]:
        """Roster, in-sync set (`active`) and minimum, as clients see them."""
        return {
            "roster": list(self.roster),
            "active": list(self.active),
            "minimum": self.minimum,
        }

    def newest(self, limit: int) -> tuple[TransactionStatus, ...]:
        """Return up to `limit` rows of the rolling log, newest first."""
        first = self.log_next - len(self.log)
        numbers = range(self.log_next - 1, max(first, self.log_next - limit) - 1, -1)
        return tuple(self.log[number] for number in numbers)
