"""The commands that clients and operators can send, and the outcomes that they get.

Pure, frozen data, in the imperative. A `Request` wraps a command with its durable id and the
terms under which it counts; `Outcome` is what every requester finally gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from coordinator.core.model.entities import HASH, Shard, Slice
from coordinator.core.model.types import Cas, Epoch, Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateIndex:
    """Create an index: committed as INIT, READY once all hosting indexers have allocated it."""

    name: str
    bucket: str
    expressions: tuple[str, ...] = ()
    where: str | None = None
    primary: bool = False
    using: str = "gsi"
    slices: int = 1
    replicas: int = 0
    nodes: tuple[int, ...] = ()
    defer_build: bool = False
    if_not_exists: bool = False
    partitioning: str = HASH
    bounds_json: str = "[]"


@dataclass(frozen=True, slots=True)
class DropIndex:
    """Drop an index, named by its id or by bucket and name."""

    index_id: int = 0
    bucket: str = ""
    name: str = ""
    if_exists: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterIndex:
    """Change an index, named by its id or by bucket and name: None leaves a field as it is.

    `drops_where`: the condition goes. `dry_run`: only say what would be done.
    """

    index_id: int = 0
    bucket: str = ""
    name: str = ""
    new_name: str | None = None
    expressions: tuple[str, ...] | None = None
    where: str | None = None
    drops_where: bool = False
    slices: int | None = None
    replicas: int | None = None
    nodes: tuple[int, ...] | None = None
    partitioning: str | None = None
    bounds_json: str | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class BuildIndexes:
    """Build indexes: those with these ids, those of a bucket with these names, or all of a bucket
    that were deferred."""

    indexes: tuple[int, ...] = ()
    bucket: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PutSetting:
    """Write a setting: any JSON value, given as its text."""

    name: str
    value_json: str


@dataclass(frozen=True, slots=True)
class DeleteSetting:
    """Delete a setting."""

    name: str


@dataclass(frozen=True, slots=True)
class AddBucket:
    """Add a bucket whose documents are in a Kafka topic of so many partitions."""

    name: str
    topic: str
    partitions: int
    format: str
    registry: str = ""


@dataclass(frozen=True, slots=True)
class RemoveBucket:
    """Remove a bucket that was added, and that no index is of. Its topic stays as it is."""

    name: str


@dataclass(frozen=True, slots=True)
class AddTopic:
    """Add a topic to subscribe to; the filters are a JSON object."""

    name: str
    filter_json: str = "{}"


@dataclass(frozen=True, slots=True)
class RemoveTopic:
    """Remove a topic; with its subscriptions, or only if it has none."""

    name: str
    with_subscriptions: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Subscribe to a topic: to the changes above `after`, or from now on (None)."""

    topic: str
    subscriber: str
    filter_json: str = "{}"
    after: Cas | None = None
    deliver_to: str = ""
    expires_after_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription: no change above the CAS of this one is delivered."""

    topic: str
    subscriber: str


@dataclass(frozen=True, slots=True)
class ExpireSubscription:
    """The subscriber of this subscription has been silent for too long."""

    topic: str
    subscriber: str
    number: int


@dataclass(frozen=True, slots=True)
class MarkReady:
    """All hosting indexers have allocated the index: it becomes READY, and its creator hears."""

    index_id: int
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class MoveShards:
    """Indexers hold an index in other storage than the state says: it was allocated again."""

    index_id: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, slots=True)
class UndoIndex:
    """An indexer refused or stayed silent: the index goes again, and its creator hears why."""

    index_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForgetIndex:
    """All hosting indexers have released a dropped index: its entity goes."""

    index_id: int


@dataclass(frozen=True, slots=True)
class MarkRouted:
    """All projectors send the key-versions of this build of an index: it may be backfilled."""

    index_id: int
    build: int


@dataclass(frozen=True, slots=True)
class MarkBuilt:
    """All hosting indexers hold this build of an index: it takes scans."""

    index_id: int
    build: int


@dataclass(frozen=True, slots=True)
class MarkFailed:
    """A build of an index cannot be: it waits for its administrator, with the reason."""

    index_id: int
    build: int
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptBucket:
    """The key-value store has this bucket with another number of vbuckets than was assumed."""

    name: str
    vbuckets: int


@dataclass(frozen=True, slots=True)
class ReadTopicAgain:
    """Deletions may have been missed in this reading of a bucket's topic: begin another one."""

    name: str
    reading: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewStream:
    """A bucket's maintenance stream begins anew, for these incarnations, after this vector.

    `number` is that of the generation against which this was decided (0: there was none); `restart`
    that of the newest restart timestamp or enquiry that this answers (0: of none). What begins are
    the streams that a projector lacks, and those of `vbuckets`; all that it has, if it is among
    `whole`, or if it has had none yet.
    """

    bucket: str
    number: int
    projectors: tuple[tuple[int, int], ...]
    vbuuids: bytes = b""
    seqnos: bytes = b""
    reason: str = ""
    restart: int = 0
    vbuckets: tuple[int, ...] = ()
    whole: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class MoveRollback:
    """A bucket's rollback begins, or goes on to its next state.

    `number` is that of the rollback that goes on, or of the one before it (0: there was none).
    `vbuuids` and `seqnos` are the timestamp that belongs to the state.
    """

    bucket: str
    number: int
    state: str
    vbuckets: tuple[int, ...] = ()
    vbuuids: bytes = b""
    seqnos: bytes = b""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A copy of a slice is to go from one indexer to another; from NOWHERE: one more is made."""

    index: int
    slice: int
    source: int
    target: int
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class BeginRebalance:
    """Move copies of slices, as planned; `drain` are the indexers that are emptied by it.

    The loads are the shares of the indexers before and after, JSON objects.
    """

    moves: tuple[PlannedMove, ...]
    drain: tuple[int, ...] = ()
    load_before_json: str = "{}"
    load_after_json: str = "{}"


@dataclass(frozen=True, slots=True)
class CancelRebalance:
    """Begin no further move of a rebalance, and give up those that are not built yet."""

    rebalance: int


@dataclass(frozen=True, slots=True)
class StepMove:
    """A move of a rebalance, by its place, goes on to its next state."""

    rebalance: int
    move: int
    to: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseCopies:
    """The copies of an index that are leaving go, if its slices are still these (empty: any)."""

    index_id: int
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True)
class DropPart:
    """Drop a part of an index that is gone, or is being dropped."""

    index_id: int


@dataclass(frozen=True, slots=True)
class RewriteEntities:
    """Entities that stray events touched are written again from the master's own state."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SkipRecord:
    """A record of the `ddl` topic that is no command: move on, it is dead-lettered."""

    reason: str
    value: bytes


Operation = CreateIndex | DropIndex | PutSetting | DeleteSetting | AlterIndex
"""What a client's transaction may do; it alters an index only in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """An entity that has to be at a CAS; 0: it must not exist.

    It is named by its key, or, if it is an index, by its bucket and name.
    """

    cas: Cas
    key: str = ""
    bucket: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """If all comparisons hold, do all that is in `then`, otherwise all that is in `otherwise`.

    In one transaction, or not at all. An index that is created is INIT then, like any other; the
    answer waits until each is READY or undone. `undoes` is the CAS to which an undo leads back, 0
    for all else.
    """

    compare: tuple[Comparison, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()
    undoes: Cas = Cas(0)


Command = (
    CreateIndex
    | DropIndex
    | AlterIndex
    | BuildIndexes
    | PutSetting
    | DeleteSetting
    | MarkReady
    | MoveShards
    | UndoIndex
    | ForgetIndex
    | MarkRouted
    | MarkBuilt
    | MarkFailed
    | AdoptBucket
    | ReadTopicAgain
    | RenewStream
    | MoveRollback
    | BeginRebalance
    | CancelRebalance
    | StepMove
    | ReleaseCopies
    | DropPart
    | RewriteEntities
    | SkipRecord
    | Transact
    | AddBucket
    | RemoveBucket
    | AddTopic
    | RemoveTopic
    | Subscribe
    | Unsubscribe
    | ExpireSubscription
)


# -- asked of the Authority, not of the StateContext -----------------------------------------------


@dataclass(frozen=True, slots=True)
class StepDown:
    """The master gives the mastership up, to `successor` if one is named (0: to the newest).

    `epoch` is the one that is meant: a repeat does not depose the successor (0: whichever).
    """

    successor: int = 0
    reason: str = ""
    epoch: Epoch = Epoch(0)


@dataclass(frozen=True, slots=True)
class Leave:
    """A replica leaves the cluster: the in-sync set, and the roster."""

    node: int


@dataclass(frozen=True, slots=True)
class Reform:
    """Lower the minimum of copies, and drop the nodes of `forget` from the roster."""

    minimum: int
    forget: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RemoveService:
    """Remove an indexer or a projector (`kind`) that is gone."""

    kind: str
    number: int


MembershipCommand = StepDown | Leave | Reform | RemoveService


@dataclass(frozen=True, slots=True)
class Position:
    """Where on the `ddl` topic a command stood."""

    partition: int
    offset: Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command and the terms under which it counts.

    `id` is durable where `recorded` is set: a repeat gets the first outcome. `fingerprint` tells
    a repeat from another command under the same id. `token` is the caller who waits (0: nobody);
    `position` is set for commands from the `ddl` topic, which are recorded whatever happens.
    `objection` is what the shell found wrong with the command's expressions: it is refused. `key`
    names a command of the master's own, of which there is only one at a time.
    """

    command: Command
    id: str = ""
    principal: str = ""
    expected_cas: Cas | None = None
    fingerprint: int = 0
    recorded: bool = False
    token: int = 0
    position: Position | None = None
    deadline_ms: int = 0
    attempts: int = 0
    objection: str = ""
    key: str = ""


REQUEST_BYTES = 512
"""What a request weighs beside the texts in it."""


def weight(request: Request) -> int:
    """Return what a request weighs while it waits, in bytes, roughly."""
    return _weight(request.command)


def _weight(command: Command) -> int:
    if isinstance(command, Transact):
        named = sum(len(c.key) + len(c.bucket) + len(c.name) for c in command.compare)
        operations = (*command.then, *command.otherwise)
        return REQUEST_BYTES + named + sum(map(_weight, operations))
    if isinstance(command, PutSetting):
        return REQUEST_BYTES + len(command.name) + len(command.value_json)
    if isinstance(command, DeleteSetting):
        return REQUEST_BYTES + len(command.name)
    if isinstance(command, DropIndex):
        return REQUEST_BYTES + len(command.bucket) + len(command.name)
    if isinstance(command, CreateIndex):
        names = (command.bucket, command.name, command.using)
        texts = (*names, *command.expressions, command.where or "", command.bounds_json)
        return REQUEST_BYTES + sum(map(len, texts))
    if isinstance(command, AlterIndex):
        named = len(command.bucket) + len(command.name) + len(command.new_name or "")
        texts = (*(command.expressions or ()), command.where or "", command.bounds_json or "")
        return REQUEST_BYTES + named + sum(map(len, texts))
    if isinstance(command, SkipRecord):
        return REQUEST_BYTES + len(command.value)
    if isinstance(command, AddBucket):
        texts = (command.name, command.topic, command.format, command.registry)
        return REQUEST_BYTES + sum(map(len, texts))
    if isinstance(command, AddTopic | Subscribe):
        return REQUEST_BYTES + len(command.filter_json)
    if isinstance(command, BuildIndexes):
        return REQUEST_BYTES + 8 * len(command.indexes) + sum(map(len, command.names))
    return REQUEST_BYTES


OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer to a request.

    `ok`: it is effective at `cas`, on every participant. `refused`: it never happened. `unknown`:
    repeat with the same request id to learn what became of it.
    """

    status: str
    code: str = ""
    message: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    answer: dict[str, Any] = field(default_factory=dict)
    cas: Cas = Cas(0)
    txn: str = ""


def refused(code: str, message: str, **details: Any) -> Outcome:
    """Return the refusal of a command that changed nothing."""
    return Outcome(REFUSED, code, message, details)


def unknown(code: str, message: str, **details: Any) -> Outcome:
    """Return the answer to a request whose fate this node cannot tell."""
    return Outcome(UNKNOWN, code, message, details)
