"""What a StateContext consists of: indexes, buckets, settings, topics, read positions.

Pure, frozen data. Every entity lives under one key, `<kind>/<id>`; an event on the log carries
the entity's whole new value, so that the last record of a key is all that compaction must keep.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.model.types import Cas, Epoch, Offset

INIT, READY, PENDING, BACKFILL, MAINTENANCE, ERROR, DROPPING = INDEX_STATES = (
    "init",
    "ready",
    "pending",
    "backfill",
    "maintenance",
    "error",
    "dropping",
)

HASH, RANGE = PARTITIONINGS = ("hash", "range")

TRANSITIONS: dict[str | None, frozenset[str | None]] = {
    None: frozenset({INIT}),
    INIT: frozenset({READY, DROPPING}),
    READY: frozenset({PENDING, DROPPING, ERROR}),
    PENDING: frozenset({PENDING, BACKFILL, DROPPING, ERROR}),
    BACKFILL: frozenset({PENDING, MAINTENANCE, DROPPING, ERROR}),
    MAINTENANCE: frozenset({PENDING, DROPPING, ERROR}),
    ERROR: frozenset({PENDING, DROPPING}),
    DROPPING: frozenset({None}),
}
"""Every legal change of an index's state; `None` is "does not exist".

Back to `pending` goes an index whose storage was lost on one of its hosts: it is built again.
"""

STREAMED = frozenset({PENDING, BACKFILL, MAINTENANCE})
"""In these states projectors send the key-versions of an index."""


NOWHERE = -1
"""The master of a slice of which this index has no copy: all of them were moved."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of an index: the indexer that serves it and those that hold copies.

    A copy goes in two steps. One that is `leaving` answers no new scan, and never will again; it
    is kept up to date until it is released. Were it taken out at once, an event that has become
    visible without a verdict could have projectors stop sending it what it still needs.
    """

    number: int
    master: int
    replicas: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()

    @property
    def serving(self) -> tuple[int, ...]:
        """The indexers whose copies answer scans, the master first."""
        return self.replicas if self.master == NOWHERE else (self.master, *self.replicas)

    @property
    def hosts(self) -> tuple[int, ...]:
        """The indexers that have a copy."""
        return (*self.serving, *self.leaving)

    def on(self, serving: tuple[int, ...], leaving: tuple[int, ...] = ()) -> Slice:
        """Return this slice with its copies on these indexers, the first of which is the master."""
        return Slice(self.number, serving[0] if serving else NOWHERE, serving[1:], leaving)

    def left_by(self, indexer: int) -> Slice:
        """Return this slice with the copy on an indexer leaving."""
        serving = tuple(host for host in self.serving if host != indexer)
        return self.on(serving, (*self.leaving, indexer))


@dataclass(frozen=True, slots=True)
class Shard:
    """The storage of an index on one indexer; allocated again, it has another number."""

    indexer: int
    number: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a part may have a slice from: what an indexer holds it under, in which storage."""

    slice: int
    indexer: int
    index: int
    shard: int
    build: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index definition with its topology (seed: IndexDefinition and IndexTopology).

    `partitioning` says how keys are spread over the slices: `hash`, or `range` with `bounds_json`,
    the lowest key of every partition but the first. `build` is another number for each time that it
    is begun to be built, ascending; 0 before that. `request` made it; its outcome is recorded where
    `request_fingerprint` is not 0, and told on `ddl-replies` where it came `by_topic`. `replaces`
    is the index whose place it takes once it is as far as that one; 0 for all others.

    `nodes` are the indexers on which its copies may lie, if it names any.

    A *part* holds copies of slices that were moved: it is built like any index, under an id of its
    own, beside the index `part_of`, which holds the others. Nobody but the coordinator names it.
    `origins` are complete copies of its slices, one of each, as it is begun; none: it is
    backfilled.
    """

    id: int
    name: str
    bucket: str
    expressions: tuple[str, ...]
    where: str | None
    primary: bool
    using: str
    defer_build: bool
    state: str
    reason: str | None
    slices: tuple[Slice, ...]
    request: str
    created_ms: int
    shards: tuple[Shard, ...] = ()
    partitioning: str = HASH
    bounds_json: str = "[]"
    build: int = 0
    request_fingerprint: int = 0
    by_topic: bool = False
    replaces: int = 0
    part_of: int = 0
    nodes: tuple[int, ...] = ()
    origins: tuple[Origin, ...] = ()

    @property
    def key(self) -> str:
        return index_key(self.id)

    @property
    def is_replacement(self) -> bool:
        """Tell whether it is to take the place of another index, and has not yet."""
        return bool(self.replaces) and self.state != DROPPING

    @property
    def is_unfinished(self) -> bool:
        """Tell whether the request that made it still waits for what becomes of it."""
        return self.state == INIT or self.is_replacement

    @property
    def has_leaving_copies(self) -> bool:
        return self.state != DROPPING and any(piece.leaving for piece in self.slices)

    @property
    def hosts(self) -> frozenset[int]:
        """The indexers that hold any slice of this index."""
        return frozenset(host for piece in self.slices for host in piece.hosts)

    def shard_on(self, indexer: int) -> int:
        """The number of the storage that `indexer` allocated; 0 before it did."""
        return next((s.number for s in self.shards if s.indexer == indexer), 0)

    def slices_on(self, indexer: int) -> tuple[int, ...]:
        """The numbers of the slices that `indexer` holds, as master or replica."""
        return tuple(piece.number for piece in self.slices if indexer in piece.hosts)

    def needed_on(self, indexer: int) -> tuple[int, ...]:
        """The numbers of those that it must hold: if a copy that is leaving is lost, it is gone."""
        return tuple(piece.number for piece in self.slices if indexer in piece.serving)


DOCUMENT_FORMATS = ("json", "avro", "debezium-json", "debezium-avro")
"""What the records of a topic may be, whose documents are a bucket."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and its number of vbuckets.

    Its documents are in the key-value store, or in the Kafka topic `topic`: then its vbuckets are
    the partitions, `format` is one of `DOCUMENT_FORMATS`, and `registry` the URL of the schema
    registry, where the format has one. `reading` counts how often the topic was read anew from its
    beginning; each reading has branches of its own. This one has begun at `read_from_ms` or later.
    """

    name: str
    vbuckets: int
    topic: str = ""
    format: str = ""
    registry: str = ""
    reading: int = 0
    read_from_ms: int = 0

    @property
    def key(self) -> str:
        return bucket_key(self.name)


@dataclass(frozen=True, slots=True)
class Source:
    """The incarnation of a projector that streams a bucket, and the newest number it was given.

    Under a new number begin the streams that it lacks. Others have found that the streams of
    `restarted` were lost, which it may not know: each of these begins again under the number at the
    same place of `under`. `began` is the number of the last generation with which all of its
    streams began: who has not streamed under that, or a later one, begins all of them (0: always).
    """

    projector: int
    incarnation: int
    number: int
    began: int = 0
    restarted: tuple[int, ...] = ()
    under: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """The maintenance stream of a bucket: who sends it, and from where on.

    A projector streams only if this names its incarnation. Numbers of generations ascend, not one
    by one; `number` is the newest. A stream under a new one begins after the vector of `vbuuids`
    and `seqnos` (unsigned 64 bits each, little-endian, one for each vbucket), or, if they are
    empty, with what comes next.
    """

    bucket: str
    number: int
    sources: tuple[Source, ...]
    vbuuids: bytes
    seqnos: bytes
    reason: str
    restart: int = 0
    """The number of the last restart timestamp, or enquiry, that was answered by a renewal."""

    @property
    def key(self) -> str:
        return stream_key(self.bucket)


MOVE_START, MOVE_PENDING, MOVE_CATCHUP, MOVE_DONE, MOVE_FAILED, MOVE_CANCELLED = MOVE_STATES = (
    "start",
    "pending",
    "catchup",
    "done",
    "failed",
    "cancelled",
)

MOVES: dict[str, frozenset[str]] = {
    MOVE_START: frozenset({MOVE_PENDING, MOVE_DONE, MOVE_FAILED, MOVE_CANCELLED}),
    MOVE_PENDING: frozenset({MOVE_CATCHUP, MOVE_FAILED, MOVE_CANCELLED}),
    MOVE_CATCHUP: frozenset({MOVE_DONE, MOVE_FAILED}),
    MOVE_DONE: frozenset(),
    MOVE_FAILED: frozenset(),
    MOVE_CANCELLED: frozenset(),
}
"""Every legal change of a move's state.

From `start` straight to `done` goes a copy of an index that is not built: there is nothing in it.
"""

REBALANCE_RUNNING, REBALANCE_CANCELLING, REBALANCE_DONE, REBALANCE_CANCELLED = REBALANCE_STATES = (
    "running",
    "cancelling",
    "done",
    "cancelled",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One copy of a slice goes from one indexer to another (seed: Rebalance).

    `source` is NOWHERE if another copy is made. `part` is what is built at the target, 0 before
    that. `why` it was planned, and the `reason` why it failed, are for people.
    """

    index: int
    slice: int
    source: int
    target: int
    bytes: int
    state: str = MOVE_START
    part: int = 0
    reason: str = ""
    why: str = ""

    @property
    def is_over(self) -> bool:
        return not MOVES[self.state]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """Copies of slices move between indexers, by one plan; `drain` are those that are emptied.

    The loads are JSON objects: the share of all load that each indexer had, and is to have.
    """

    id: int
    state: str
    moves: tuple[Move, ...]
    began_ms: int
    drain: tuple[int, ...] = ()
    ended_ms: int = 0
    load_before_json: str = "{}"
    load_after_json: str = "{}"

    @property
    def key(self) -> str:
        return rebalance_key(self.id)

    @property
    def is_over(self) -> bool:
        return self.state in (REBALANCE_DONE, REBALANCE_CANCELLED)


ROLLBACK_STARTED, ROLLBACK_PREPARE, ROLLBACK_RESTART, ROLLBACK, ROLLBACK_DONE = ROLLBACK_STATES = (
    "started",
    "prepare",
    "restart",
    "rollback",
    "done",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """All indexes of a bucket go back to what its key-value store still has.

    `vbuckets` have lost something. From `prepare` on the failover timestamp says, for each of them,
    which branch it has now, and up to where what was there before still counts: 8 bytes each, as
    in a `Stream`. From `restart` on the restart timestamp says, for each vbucket of the bucket,
    after what streams begin again. Indexers go back in `rollback`; what was sent under a generation
    below `barrier` is void for them. `number` ascends, not one by one. Once computed, timestamps
    never change: another loss is another rollback. Source: specification, "kv-rollback".
    """

    bucket: str
    number: int
    state: str
    vbuckets: tuple[int, ...]
    reason: str
    began_ms: int
    failover_vbuuids: bytes = b""
    failover_seqnos: bytes = b""
    restart_vbuuids: bytes = b""
    restart_seqnos: bytes = b""
    barrier: int = 0
    ended_ms: int = 0

    @property
    def key(self) -> str:
        return rollback_key(self.bucket)

    @property
    def stops_streams(self) -> bool:
        """No stream of any bucket runs until it is known after what they begin again."""
        return self.state in (ROLLBACK_STARTED, ROLLBACK_PREPARE, ROLLBACK_RESTART)

    @property
    def is_over(self) -> bool:
        return self.state == ROLLBACK_DONE


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the cluster: any JSON value, kept as the text that was written."""

    name: str
    value_json: str

    @property
    def key(self) -> str:
        return setting_key(self.name)


OUTCOME_PENDING, OUTCOME_DONE, OUTCOME_REFUSED = "pending", "done", "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """What became of a request, as older versions kept it: `core.outcomes` has taken its place.

    `answer_json` is the answer without its CAS. The CAS of the effect is `distance` below the CAS
    of this entity: the records of a transaction are contiguous on their partition.
    `fingerprint` tells a repeat from another command under the same id; `by_topic` says that the
    command came from the `ddl` topic, so that its reply belongs on `ddl-replies`.
    """

    id: str
    status: str
    fingerprint: int
    index_id: int
    txn_epoch: Epoch
    txn_seq: int
    distance: int
    answer_json: str
    error_code: str
    error_message: str
    error_details_json: str
    by_topic: bool
    at_ms: int

    @property
    def key(self) -> str:
        return request_key(self.id)


@dataclass(frozen=True, slots=True)
class Consumed:
    """How far the `ddl` topic has been decided: the offset of the last command, by partition."""

    partition: int
    offset: Offset

    @property
    def key(self) -> str:
        return consumed_key(self.partition)


ACTIVE, EXPIRED = SUBSCRIPTION_STATES = ("active", "expired")


@dataclass(frozen=True, slots=True)
class Topic:
    """A named selection of changes that can be subscribed to; `filter_json` says which."""

    name: str
    filter_json: str
    created_ms: int

    @property
    def key(self) -> str:
        return topic_key(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A durable subscription to a topic: the changes above `after` that fit both filters.

    `number` is that of no other subscription that ever was: what is known of one that was removed
    says nothing of the next one under its id. `deliver_to` is the Kafka topic to which the changes
    are written, empty where the subscriber reads them from a node. It is expired when its
    subscriber was silent for `expires_after_ms` (0: it never is).
    """

    topic: str
    id: str
    number: int
    filter_json: str
    after: Cas
    deliver_to: str
    expires_after_ms: int
    state: str
    created_ms: int

    @property
    def key(self) -> str:
        return subscription_key(self.topic, self.id)


Entity = (
    Index
    | Bucket
    | Stream
    | Rollback
    | Rebalance
    | Setting
    | RequestOutcome
    | Consumed
    | Topic
    | Subscription
)


def index_key(index_id: int) -> str:
    return f"index/{index_id}"


def bucket_key(name: str) -> str:
    return f"bucket/{name}"


def stream_key(bucket: str) -> str:
    return f"stream/{bucket}"


def rollback_key(bucket: str) -> str:
    return f"rollback/{bucket}"


def rebalance_key(rebalance_id: int) -> str:
    return f"rebalance/{rebalance_id}"


def setting_key(name: str) -> str:
    return f"config/{name}"


def topic_key(name: str) -> str:
    return f"topic/{name}"


def subscription_key(topic: str, subscriber: str) -> str:
    return f"subscription/{topic}/{subscriber}"


def request_key(request_id: str) -> str:
    return f"request/{request_id}"


def consumed_key(partition: int) -> str:
    return f"consumed/{partition}"
