"""The records that travel on the topics, as the core sees them.

Pure, frozen data, named in the past tense where they state a fact. `coordinator.codec` turns
them into Avro and back. A `Mutation` carries its value twice: as the bytes that were written
(they are hashed and stored) and as the decoded entity (it is decided upon).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.entities import Entity
from coordinator.core.model.stream_records import IndexBuilt, IndexRouted
from coordinator.core.model.types import Cas, Epoch, Offset, TxnId


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one entity: its whole new value, or `None` where it is dropped."""

    event: str
    key: str
    value: bytes | None
    entity: Entity | None = field(compare=False, repr=False)
    request: str = ""
    principal: str = ""
    at_ms: int = 0
    undoes: Cas | None = field(default=None, kw_only=True)
    """The CAS to which an undo leads back, of which this is a part."""


@dataclass(frozen=True, slots=True)
class Event:
    """A mutation as `statecontext` and `history` carry it: the `index`-th of `count` in `txn`."""

    mutation: Mutation
    txn: TxnId
    index: int
    count: int
    cas: Cas = Cas(0)


# -- the commit topic: the Authority's log -------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFormed:
    """Genesis: written once, by the first claimant of an empty log."""

    cluster_id: str
    cas_base: int
    roster: tuple[int, ...]
    minimum: int
    log_capacity: int
    request_window_ms: int
    at_ms: int
    outcomes_apart: bool = True
    sync_partitions: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterClaimed:
    """A claim of the mastership; void unless the fold accepts it. `snapshot` precedes the claim."""

    epoch: Epoch
    node: int
    incarnation: int
    address: str
    cas: Cas
    digest: int
    snapshot: AuthorityState
    at_ms: int


@dataclass(frozen=True, slots=True)
class AuthoritySnapshot:
    """The whole Authority, so that a reader can begin here. Never while a transaction is open."""

    epoch: Epoch
    snapshot: AuthorityState


@dataclass(frozen=True, slots=True)
class SnapshotKept:
    """A copy of the StateContext stands on `snapshots`, and was read back: see `SnapshotInfo`."""

    epoch: Epoch
    copy: int
    cas: Cas
    digest: int
    offset: Offset
    commit_offset: Offset
    at_ms: int


@dataclass(frozen=True, slots=True)
class TransactionProposed:
    """Phase one, plain: may arrive late or twice. The fold opens it or ignores it."""

    txn: TxnId
    prev_cas: Cas
    prev_digest: int
    participants: tuple[int, ...]
    mutations: tuple[Mutation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCommitted:
    """Phase two: the terminal status *commit*, in one Kafka transaction with its events.

    `outcomes` is the group of outcomes that the transaction adds to the window, as bytes, or empty;
    those up to the CAS `outcomes_forgotten` leave it, and what is left has `outcomes_digest`. Of no
    request that says it was made at `outcomes_forgotten_ms` or before is anything known any more.
    """

    txn: TxnId
    proposal_offset: Offset
    accepted: tuple[int, ...]
    cas: tuple[Cas, ...]
    state_digest: int
    at_ms: int
    outcomes: bytes = b""
    outcomes_forgotten: int = 0
    outcomes_digest: int = 0
    outcomes_forgotten_ms: int = 0


@dataclass(frozen=True, slots=True)
class OutcomesForgotten:
    """Outcomes up to a CAS leave the window while nothing is committed that could say so."""

    epoch: Epoch
    up_to: int
    outcomes_digest: int
    forgotten_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesSeparated:
    """From here on outcomes are no entities: what a new version does first to an older cluster.

    It counts at this CAS and digest alone. The state without such entities has `state_digest`; they
    stand in `groups` now, as far as they fit. Of those that do not, none is of a request that was
    made after `forgotten_ms`, as far as their ids tell.
    """

    epoch: Epoch
    cas: Cas
    digest: int
    state_digest: int
    groups: tuple[bytes, ...]
    outcomes_digest: int
    at_ms: int
    forgotten_ms: int = 0


@dataclass(frozen=True, slots=True)
class TransactionRolledBack:
    """Phase two: the terminal status *rollback*. `proposal_offset` is -1 if none was seen."""

    txn: TxnId
    proposal_offset: Offset
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class MemberAdmitted:
    """A joiner becomes active; void unless its CAS and digest equal the fold's."""

    epoch: Epoch
    node: int
    incarnation: int
    address: str
    cas: Cas
    digest: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class MemberExpired:
    """A node leaves the in-sync set because it lapsed, stayed silent, or kept refusing."""

    epoch: Epoch
    node: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """This incarnation of a node leaves the cluster: the in-sync set, and the roster."""

    epoch: Epoch
    node: int
    incarnation: int
    principal: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class MasterResigned:
    """The master gives the mastership up; `successor` is to claim first (0: whoever is newest)."""

    epoch: Epoch
    node: int
    successor: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReformed:
    """An operator lowers the minimum of copies, or the roster, to what is left.

    Written by the master in its epoch, or ahead of a claim of the next one by a node that stands
    at this CAS and digest; void unless they equal the fold's.
    """

    epoch: Epoch
    node: int
    cas: Cas
    digest: int
    minimum: int
    roster: tuple[int, ...]
    principal: str
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class IndexerRegistered:
    """An indexer is known to the cluster, under an id from 0 to 250."""

    epoch: Epoch
    indexer: int
    incarnation: int
    address: str
    zone: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ProjectorRegistered:
    """A projector is known to the cluster, under an id from 0 to 250."""

    epoch: Epoch
    projector: int
    incarnation: int
    address: str
    at_ms: int


INDEXER, PROJECTOR = SERVICES = ("indexer", "projector")


@dataclass(frozen=True, slots=True)
class ServiceRemoved:
    """An operator removes an indexer or a projector that is gone: nobody waits for it any more."""

    epoch: Epoch
    kind: str
    number: int
    principal: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ReadBarrier:
    """Says nothing: whoever reads it back has read all that came before it."""

    epoch: Epoch
    nonce: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands where a record could not be decoded, so that reading goes on past its offset."""

    reason: str


CommitRecord = (
    ClusterFormed
    | MasterClaimed
    | AuthoritySnapshot
    | SnapshotKept
    | TransactionProposed
    | TransactionCommitted
    | OutcomesForgotten
    | OutcomesSeparated
    | TransactionRolledBack
    | MemberAdmitted
    | MemberExpired
    | MemberLeft
    | MasterResigned
    | ClusterReformed
    | IndexerRegistered
    | ProjectorRegistered
    | ServiceRemoved
    | ReadBarrier
    | Unreadable
)


# -- answers and liveness ------------------------------------------------------------------------

ACCEPTED, REFUSED, BEHIND = "accepted", "refused", "behind"


@dataclass(frozen=True, slots=True)
class ProposalAnswered:
    """A node's answer to a proposal, bound to the offset at which the fold opened it."""

    node: int
    incarnation: int
    txn: TxnId
    proposal_offset: Offset
    answer: str
    reason: str


@dataclass(frozen=True, slots=True)
class JoinRequested:
    """A node outside the in-sync set has caught up to this CAS and asks to be admitted."""

    node: int
    incarnation: int
    address: str
    cas: Cas
    digest: int


ALLOCATED, RELEASED = "allocated", "released"


@dataclass(frozen=True, slots=True)
class SliceAnswered:
    """An indexer's answer about all of its slices of one index: allocated, refused or released.

    `shard` is the number of the storage that holds them (0 if there is none).
    """

    indexer: int
    incarnation: int
    index_id: int
    answer: str
    reason: str
    slices: tuple[int, ...]
    shard: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """What an indexer holds of one index: the shard (the number of its storage), and slices.

    Storage that was lost and allocated again is another shard.
    """

    index_id: int
    shard: int
    slices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HoldingsReported:
    """An indexer's part of the handshake: everything that it holds, in `parts` parts.

    `round` names the request. `cas` is how far the indexer has followed the StateContext.
    """

    indexer: int
    incarnation: int
    round: int
    cas: Cas
    part: int
    parts: int
    holdings: tuple[Holding, ...]


AckRecord = (
    ProposalAnswered | JoinRequested | SliceAnswered | HoldingsReported | IndexRouted | IndexBuilt
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHeartbeat:
    """An IndexManager node is alive, in this state."""

    node: int
    incarnation: int
    state: str
    epoch: Epoch
    cas: Cas
    digest: int
    address: str
    pid: int
    reason: str
    at_ms: int
    durable: int = -1
    """The offset of `commit` up to which this node has everything on its disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerHeartbeat:
    """An indexer is alive; its load in slices and bytes of storage.

    It says so every `period_ms`; 0: it does not say how often.
    """

    indexer: int
    incarnation: int
    address: str
    zone: str
    pid: int
    slices: int
    bytes: int
    cas: Cas
    at_ms: int
    period_ms: int = 0


SLICE_LOADS_MAX = 2_048
"""Of so many slices an indexer tells what they weigh: 80 KB at most."""


@dataclass(frozen=True, slots=True)
class SliceLoad:
    """What one slice has on one indexer, and the mutations that it gets in a second."""

    index_id: int
    slice: int
    entries: int
    bytes: int
    mutations: int


@dataclass(frozen=True, slots=True)
class SliceLoads:
    """What the slices weigh that an indexer holds, the largest first.

    Not part of its heartbeat, which stays small, and which older nodes go on to understand. Slices
    without entries are not in it; `left_out` had no room.
    """

    indexer: int
    incarnation: int
    loads: tuple[SliceLoad, ...]
    left_out: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class BucketSeen:
    """A bucket that the key-value store has."""

    name: str
    vbuckets: int


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A bucket whose documents are in a topic, at one projector: how many partitions are its to
    read, how many records were no documents, and what is wrong with the topic, if anything is.

    `forgetful` is the reading of the topic in which deletions may have been missed, -1: in none.
    """

    name: str
    owned: int
    unreadable: int
    problem: str = ""
    forgetful: int = -1


@dataclass(frozen=True, slots=True)
class StreamAwaited:
    """A bucket that a projector cannot stream under this number of its own (0: it has none)."""

    bucket: str
    number: int


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """How many mutations of a build's backfill one projector has sent, and how many there are."""

    index_id: int
    build: int
    sent: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectorHeartbeat:
    """A projector is alive.

    `kv` is where its key-value store answers. `waiting` are the buckets of which it has vbuckets
    that it may not stream: it needs a new generation of streams that names this incarnation.
    It says that it is alive every `period_ms`; 0: it does not say how often.
    """

    projector: int
    incarnation: int
    address: str
    pid: int
    at_ms: int
    kv: str = ""
    buckets: tuple[BucketSeen, ...] = ()
    waiting: tuple[StreamAwaited, ...] = ()
    backfills: tuple[BackfillProgress, ...] = ()
    topics: tuple[TopicSeen, ...] = ()
    period_ms: int = 0


@dataclass(frozen=True, slots=True)
class BucketCurrent:
    """A bucket's current timestamp: the sum of its seqnos, a decimal number of any size."""

    bucket: str
    seqnos: str


@dataclass(frozen=True, slots=True)
class StreamOwner:
    """A connection that streams so many vbuckets of a bucket, in a generation of its projector."""

    bucket: str
    connection: int
    projector: int
    number: int
    vbuckets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimestampsHeartbeat:
    """The application that computes timestamps is alive, and has finished `batch` batches.

    `currents` and `owners` are what it knows of the buckets by then; `shard` is the name of its
    shard (`timestamps.shards`). It says so every `period_ms`; 0: it does not say how often.
    """

    incarnation: int
    pid: int
    batch: int
    at_ms: int
    currents: tuple[BucketCurrent, ...] = ()
    owners: tuple[StreamOwner, ...] = ()
    shard: str = ""
    period_ms: int = 0


@dataclass(frozen=True, slots=True)
class HoldingsRequested:
    """The master asks an indexer what it holds. `reread`: after reading the state from its start.

    It travels with the heartbeats, to which indexers listen.
    """

    epoch: Epoch
    indexer: int
    incarnation: int
    round: int
    reread: bool


@dataclass(frozen=True, slots=True)
class CopyRequested:
    """A node that cannot find the StateContext asks the node `of` for a copy, at `cas` or later.

    `round` names the question. It travels with the heartbeats, to which all nodes listen.
    """

    node: int
    incarnation: int
    of: int
    round: int
    cas: Cas


@dataclass(frozen=True, slots=True)
class CopyOffered:
    """The copy that the node `to` asked for in `round` stands on `snapshots`, from `offset` on."""

    node: int
    to: int
    incarnation: int
    round: int
    copy: int
    offset: Offset


Heartbeat = (
    NodeHeartbeat
    | IndexerHeartbeat
    | SliceLoads
    | ProjectorHeartbeat
    | TimestampsHeartbeat
    | HoldingsRequested
    | CopyRequested
    | CopyOffered
)


# -- DDL by topic --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlReply:
    """The outcome of a command from the `ddl` topic."""

    request: str
    status: str
    answer_json: str
    error_code: str
    error_message: str
    error_details_json: str
    cas: Cas
    txn: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded or folded, where it stood, and why."""

    topic: str
    partition: int
    offset: Offset
    reason: str
    value: bytes
    at_ms: int
