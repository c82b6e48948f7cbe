"""The records of the data plane: streams and their control, high watermarks, timestamps.

Pure, frozen data. A vector of a bucket is two byte strings, the vbuuid and the seqno of each
vbucket, unsigned 64 bits, little-endian: `coordinator.core.model.vectors`. A connection is one
stream of a projector, numbered for itself alone; an ordinal counts its records, whatever the topic.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model.types import Seqno, Vbuuid

MAINTENANCE, BACKFILL, CATCHUP = STREAM_KINDS = ("maintenance", "backfill", "catch-up")


ORDINAL_MAX = 2**62 - 1
"""No record of a connection has a higher ordinal: this one closes it after whatever came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBegin:
    """A vbucket's stream begins on a connection, after this seqno of this branch."""

    bucket: str
    vbucket: int
    kind: str
    projector: int
    connection: int
    ordinal: int
    vbuuid: Vbuuid
    seqno: Seqno
    at_ms: int
    number: int = 0
    """Of the generation of maintenance streams that it belongs to; 0 for other kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """A vbucket's stream ends on a connection: nothing after this seqno comes on it."""

    bucket: str
    vbucket: int
    kind: str
    projector: int
    connection: int
    ordinal: int
    vbuuid: Vbuuid
    seqno: Seqno
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """A connection is gone, and with it the streams of all vbuckets that it still had."""

    bucket: str
    kind: str
    projector: int
    connection: int
    ordinal: int
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """All mutations of a vbucket up to this seqno, the end of a snapshot, were sent."""

    bucket: str
    vbucket: int
    projector: int
    connection: int
    ordinal: int
    vbuuid: Vbuuid
    seqno: Seqno
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncVector:
    """What a `Sync` says, of many vbuckets at once.

    `vbuckets` has 2 bytes for each, `vbuuids` and `seqnos` have 8, in the same order: unsigned,
    little-endian.
    """

    bucket: str
    projector: int
    connection: int
    ordinal: int
    vbuckets: bytes
    vbuuids: bytes
    seqnos: bytes
    at_ms: int


NOT_SAID = -1
"""The `previous` of a record whose projector does not link its records, or a time that is not
told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVersions:
    """What a connection sends to one indexer about vbuckets of one partition of `mutations`.

    `number` orders the maintenance connections of a vbucket; `indexes` are the ids to which
    `items` refers by place, and `builds` which build of each the items are for. `items` is laid
    out as `coordinator.core.keys.key_versions` says. `previous` is the ordinal of the record before
    this one that the connection sent to the same indexer on the same partition: 0 if this is the
    first, `NOT_SAID` from a projector that does not say. `continued`: further items of the last
    seqno here follow in the connection's next record.
    """

    bucket: str
    kind: str
    projector: int
    connection: int
    ordinal: int
    number: int
    indexes: tuple[int, ...]
    builds: tuple[int, ...]
    items: bytes
    at_ms: int
    previous: int = NOT_SAID
    continued: bool = False


@dataclass(frozen=True, slots=True)
class CatchUpRequested:
    """An indexer lacks what comes after these seqnos of these vbuckets: stream it again, to it."""

    indexer: int
    incarnation: int
    bucket: str
    vbuckets: tuple[int, ...]
    vbuuids: bytes
    seqnos: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class FailoverBranch:
    """A history of a vbucket, and the seqno after which it differs from the one before."""

    vbuuid: Vbuuid
    seqno: Seqno


BRANCHES_MAX = 256
"""No source keeps as many."""


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """The histories of a vbucket, newest first; at most `BRANCHES_MAX`."""

    bucket: str
    vbucket: int
    branches: tuple[FailoverBranch, ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far a build has got on an indexer: a bit for each vbucket that is complete.

    Bit `v % 8` of byte `v // 8` is vbucket `v`. While it `transfers`, it is filled from what
    another indexer holds, and no backfill is needed.
    """

    index_id: int
    build: int
    done: bytes
    transfers: bool = False


@dataclass(frozen=True, slots=True)
class ConnectionRead:
    """How far an indexer has applied a maintenance connection.

    `ordinals` has the ordinal of the last record on each partition of `mutations`, 0 for none.
    """

    projector: int
    connection: int
    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GenerationTaken:
    """Of these vbuckets an indexer takes what this projector sends under this number.

    What comes under a lower one is ignored, and so is what another projector sends under this one,
    which both may have: who began last is taken. Bit `v % 8` of byte `v // 8` is vbucket `v`.
    """

    number: int
    projector: int
    vbuckets: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HwHeartbeat:
    """The high watermarks of an indexer in one bucket (seed: HWHeartbeat).

    `indexes` are those that it hosts there. The seqno 0 under the vbuuid 0 means that nothing
    is held of a vbucket. `last_persistence` and `last_stability` are hashes of vectors, 0 for none.
    `builds` say what is here after the records that `read` names. `taken` has the newest numbers
    under which vbuckets are taken. `branched` are vbuckets whose stream is on a branch that may
    have lost what is held; `rollback` is the number of the last rollback that was done here. It is
    `recovering` until all has come again that this took away.
    """

    indexer: int
    incarnation: int
    bucket: str
    indexes: tuple[int, ...]
    vbuuids: bytes
    seqnos: bytes
    last_persistence: int
    last_stability: int
    mutation_queue: int
    free: int
    builds: tuple[BuildProgress, ...]
    at_ms: int
    read: tuple[ConnectionRead, ...] = ()
    taken: tuple[GenerationTaken, ...] = ()
    branched: tuple[int, ...] = ()
    rollback: int = 0
    recovering: bool = False


@dataclass(frozen=True, slots=True)
class StabilityTimestamp:
    """All indexers of a bucket snapshot at this vector; `number` ascends."""

    bucket: str
    number: int
    vbuuids: bytes
    seqnos: bytes
    at_ms: int


TOGETHER_MAX = 2_000
"""So many timestamps one message may have: a node folds all of them in one turn of its loop. The
application writes fewer, as their bytes have a bound."""


@dataclass(frozen=True, slots=True)
class ConsolidatedStability:
    """The stability timestamps of several buckets in one message."""

    timestamps: tuple[StabilityTimestamp, ...]


# -- what timestamps are computed from, and what they lead to -------------------------------------


@dataclass(frozen=True, slots=True)
class Tick:
    """Time as an input: what the wall clock of a writer shows, and how long the writer has run.

    `elapsed_ms` is of a clock that does not step; `NOT_SAID` from a writer that does not tell.
    `shard` is the name of the writer's shard (`timestamps.shards`).
    """

    at_ms: int
    writer: int
    elapsed_ms: int = NOT_SAID
    shard: str = ""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Where would a bucket's streams have to begin again? `participants` are active indexers."""

    bucket: str
    round: int
    vbuckets: int
    participants: tuple[int, ...]
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class PromotionRequested:
    """A query waits for a newer stability timestamp, so long: the next one is wanted soon."""

    bucket: str
    wait_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTimestamp:
    """From where on the streams of `vbuckets` are to begin again.

    `vbuuids` and `seqnos` have one entry for each of `vbuckets`, in their order. `branched` are
    those that have lost what an indexer holds; `projectors` had the connections. `number` ascends
    within a bucket; `round` names the question that it answers, 0 if nobody asked.
    """

    bucket: str
    number: int
    round: int
    vbuckets: tuple[int, ...]
    vbuuids: bytes
    seqnos: bytes
    branched: tuple[int, ...]
    projectors: tuple[int, ...]
    reason: str
    at_ms: int


SYNC_MISSING, SEQNO_REGRESSED, STREAM_REFUSED = ENQUIRIES = (
    "sync_missing",
    "seqno_regressed",
    "stream_refused",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackEnquiry:
    """A vbucket may have been rolled back: somebody has to look at its failover log.

    It stands at `vbuuid` and `seqno`; its connection said `seen_vbuuid` and `seen_seqno` last.
    """

    bucket: str
    number: int
    vbucket: int
    vbuuid: Vbuuid
    seqno: Seqno
    seen_vbuuid: Vbuuid
    seen_seqno: Seqno
    projector: int
    connection: int
    reason: str
    at_ms: int


# -- answers about builds, on `acks` --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexRouted:
    """A projector's router sends key-versions of an index, or says in `reason` why it cannot."""

    projector: int
    incarnation: int
    index_id: int
    build: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class IndexBuilt:
    """An indexer holds all of its share of an index, and keeps it up to date."""

    indexer: int
    incarnation: int
    index_id: int
    build: int


StreamRecord = (
    StreamBegin
    | StreamEnd
    | ConnectionClosed
    | Sync
    | SyncVector
    | KeyVersions
    | CatchUpRequested
    | FailoverLog
    | HwHeartbeat
    | StabilityTimestamp
    | ConsolidatedStability
    | Tick
    | RestartRequested
    | PromotionRequested
    | RestartTimestamp
    | RollbackEnquiry
)
