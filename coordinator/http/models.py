"""Bodies of the HTTP API, for validation and for the OpenAPI page."""

from __future__ import annotations

import json
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from coordinator.core.catalog.ddl import EXPRESSIONS_MAX
from coordinator.core.catalog.decisions import compact
from coordinator.core.catalog.rebalances import DRAIN_MAX, MOVES_MAX
from coordinator.core.catalog.transactions import COMPARISONS_MAX, OPERATIONS_MAX
from coordinator.core.keys.topology import BOUNDS_MAX
from coordinator.core.model.commands import (
    AlterIndex,
    BuildIndexes,
    Comparison,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Operation,
    PutSetting,
    Transact,
)
from coordinator.core.model.entities import HASH
from coordinator.core.model.types import CAS_MAX, Cas, Epoch
from coordinator.language.ddl_commands import NAMED_MAX


def _of_whole_characters(text: str) -> str:
    """Return `text`; JSON can escape half a surrogate pair, which nothing else can hold."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError("half of a surrogate pair is no character") from None
    return text


Text = Annotated[str, AfterValidator(_of_whole_characters)]
Count = Annotated[int, Field(ge=-(2**31), lt=2**31)]
KeyComponent = bool | int | float | str | None
Key = Annotated[list[KeyComponent], Field(max_length=EXPRESSIONS_MAX)]
INDEXERS_MAX = 251
Indexer = Annotated[int, Field(ge=0, le=INDEXERS_MAX - 1)]
Nodes = Annotated[list[Indexer], Field(max_length=INDEXERS_MAX)]


class CreateIndexBody(BaseModel):
    """The definition of an index. With `partitioning` `range`, `bounds` holds the lowest key of
    each partition but the first; there are as many slices as partitions, or a multiple."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Text
    bucket: Text
    expressions: Annotated[list[Text], Field(max_length=EXPRESSIONS_MAX)] = []
    where: Text | None = None
    primary: bool = False
    using: Text = "gsi"
    slices: Count | None = None
    replicas: Count = 0
    nodes: Nodes = []
    defer_build: bool = False
    if_not_exists: bool = False
    partitioning: Text = HASH
    bounds: Annotated[list[Key], Field(max_length=BOUNDS_MAX)] = []

    def command(self) -> CreateIndex:
        fields = self.model_dump(exclude={"bounds"})
        fields["bounds_json"] = compact(self.bounds)
        if self.slices is None:
            fields["slices"] = 0 if self.bounds else 1
        fields["expressions"] = tuple(self.expressions)
        fields["nodes"] = tuple(self.nodes)
        return CreateIndex(**fields)


class AlterIndexBody(BaseModel):
    """The fields of an index that are to change. `where` null removes the condition."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Text = ""
    expressions: Annotated[list[Text], Field(max_length=EXPRESSIONS_MAX)] = []
    where: Text | None = None
    slices: Count = 0
    replicas: Count = 0
    nodes: Nodes = []
    partitioning: Text = ""
    bounds: Annotated[list[Key], Field(max_length=BOUNDS_MAX)] = []

    def command(self, index_id: int, *, dry_run: bool) -> AlterIndex:
        return AlterIndex(index_id=index_id, dry_run=dry_run, **self.fields())

    def fields(self) -> dict[str, Any]:
        """Return the fields of an `AlterIndex` that say what is to change."""
        given = self.model_dump(include=self.model_fields_set - {"name", "bounds"})
        fields: dict[str, Any] = {n: tuple(v) if type(v) is list else v for n, v in given.items()}
        if "name" in self.model_fields_set:
            fields["new_name"] = self.name
        if "bounds" in self.model_fields_set:
            fields["bounds_json"] = compact(self.bounds)
        fields["drops_where"] = "where" in given and self.where is None
        return fields


class BuildIndexesBody(BaseModel):
    """The indexes to build: by id, or by bucket and names; a bucket alone: all deferred ones."""

    model_config = ConfigDict(extra="forbid", strict=True)

    indexes: Annotated[
        list[Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]], Field(max_length=NAMED_MAX)
    ] = []
    bucket: Text = ""
    names: Annotated[list[Text], Field(max_length=NAMED_MAX)] = []

    def command(self) -> BuildIndexes:
        return BuildIndexes(tuple(map(int, self.indexes)), self.bucket, tuple(self.names))


def _of_63_bits(text: str) -> str:
    if int(text) >= 2**63:
        raise ValueError("no index has so large an id")
    return text


IndexId = Annotated[str, Field(pattern=r"^[0-9]{1,19}$"), AfterValidator(_of_63_bits)]
SETTING_PREFIX = "config/"


def _key_of_setting(key: str) -> str:
    """Return a key; only settings are written by key."""
    if not key.startswith(SETTING_PREFIX):
        raise ValueError(f"the key of a setting begins with {SETTING_PREFIX}")
    return key


SettingKey = Annotated[Text, Field(max_length=300), AfterValidator(_key_of_setting)]


class ComparisonBody(BaseModel):
    """`key` is at `cas`, or the index of this `bucket` and `name` is. 0: it does not exist."""

    model_config = ConfigDict(extra="forbid", strict=True)

    cas: Annotated[int, Field(ge=0, le=CAS_MAX)]
    key: Annotated[Text, Field(max_length=300)] = ""
    bucket: Annotated[Text, Field(max_length=300)] = ""
    name: Annotated[Text, Field(max_length=300)] = ""

    def comparison(self) -> Comparison:
        return Comparison(cas=Cas(self.cas), key=self.key, bucket=self.bucket, name=self.name)


class PutBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    key: SettingKey
    value: Any


class DeleteBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    key: SettingKey


class NamedIndexBody(BaseModel):
    """An index, by its id, or by bucket and name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: IndexId | None = None
    bucket: Text = ""
    name: Text = ""

    @model_validator(mode="after")
    def _is_named_once(self) -> Self:
        if (self.id is None) != bool(self.bucket and self.name):
            raise ValueError("an index is named by its id, or by bucket and name")
        return self


class DropBody(NamedIndexBody):
    """The index to drop."""

    if_exists: bool = False

    def command(self) -> DropIndex:
        return DropIndex(int(self.id or 0), self.bucket, self.name, self.if_exists)


class AlterBody(NamedIndexBody):
    """The index to alter, in place; `changes` as in `PATCH /v1/indexes/{id}`."""

    changes: AlterIndexBody

    def command(self) -> AlterIndex:
        fields = self.changes.fields()
        index_id = int(self.id or 0)
        return AlterIndex(index_id=index_id, bucket=self.bucket, name=self.name, **fields)


class OperationBody(BaseModel):
    """An operation: exactly one of the fields is set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    put: PutBody | None = None
    delete: DeleteBody | None = None
    create_index: CreateIndexBody | None = None
    alter_index: AlterBody | None = None
    drop_index: DropBody | None = None

    @model_validator(mode="after")
    def _is_one(self) -> OperationBody:
        if [getattr(self, name) is None for name in self.model_fields_set] != [False]:
            names = "put, delete, create_index, alter_index and drop_index"
            raise ValueError(f"an operation is one of {names}")
        return self

    def operation(self) -> Operation | None:
        if self.put is not None:
            return PutSetting(self.put.key.removeprefix(SETTING_PREFIX), _json_text(self.put.value))
        if self.delete is not None:
            return DeleteSetting(self.delete.key.removeprefix(SETTING_PREFIX))
        given = self.create_index or self.alter_index or self.drop_index
        return None if given is None else given.command()


def _json_text(value: Any) -> str:
    """Return the text of a value: as short as it can be."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


class TransactBody(BaseModel):
    """Comparisons, the operations if all of them hold (`then`), and those otherwise (`else`)."""

    model_config = ConfigDict(extra="forbid", strict=True)

    compare: Annotated[list[ComparisonBody], Field(max_length=COMPARISONS_MAX)] = []
    then: Annotated[list[OperationBody], Field(max_length=OPERATIONS_MAX)] = []
    otherwise: Annotated[list[OperationBody], Field(max_length=OPERATIONS_MAX, alias="else")] = []

    def command(self) -> Transact:
        return Transact(
            compare=tuple(comparison.comparison() for comparison in self.compare),
            then=_operations(self.then),
            otherwise=_operations(self.otherwise),
        )


def _operations(bodies: list[OperationBody]) -> tuple[Operation, ...]:
    found = (body.operation() for body in bodies)
    return tuple(operation for operation in found if operation is not None)


class ProgressModel(BaseModel):
    """Progress of a build: mutations sent, of how many, the rate, and the time left."""

    sent: int
    total: int
    percent: float
    documents_per_s: int
    remaining: int
    remaining_s: float | None


class SliceModel(BaseModel):
    slice: int
    master: int
    replicas: list[int]


class TopologyModel(BaseModel):
    slices: list[SliceModel]
    shards: dict[str, int]
    partitioning: str = HASH
    bounds: list[list[KeyComponent]] = []


class IndexModel(BaseModel):
    id: str
    name: str
    bucket: str
    state: str
    reason: str | None
    expressions: list[str]
    where: str | None
    primary: bool
    using: str
    defer_build: bool
    created_ms: int
    topology: TopologyModel
    build: int = 0
    replaces: str | None = None
    progress: ProgressModel | None = None


class IndexAnswer(BaseModel):
    """An index, with the CAS and the transaction of the change."""

    index: IndexModel
    cas: Cas
    txn: str = ""
    existed: bool = False


class AlterAnswer(IndexAnswer):
    """An index after an ALTER. `change` is set in the answer to a dry run: what would be done."""

    change: str | None = None


class IndexesAnswer(BaseModel):
    """The indexes after the change, with the CAS and the transaction of the change."""

    indexes: list[IndexModel]
    cas: Cas
    txn: str = ""


class ComparedModel(BaseModel):
    """What a comparison found: `cas` is 0 if there is no such entity."""

    key: str
    cas: Cas
    bucket: str = ""
    name: str = ""


class ResultModel(BaseModel):
    """The entity of an operation, with its CAS after the operation.

    A created index is shown as it is now. `error` says why it was undone, if it was.
    """

    key: str
    cas: Cas
    index: IndexModel | None = None
    error: dict[str, str] | None = None


class TransactAnswer(BaseModel):
    """`succeeded`: all comparisons held. `results` has one entry for each operation."""

    succeeded: bool
    compared: list[ComparedModel]
    results: list[ResultModel]
    cas: Cas
    txn: str = ""


class SettingAnswer(BaseModel):
    """A setting with its CAS. `txn` is set in answers to writes."""

    key: str
    value: Any
    cas: Cas
    txn: str = ""


class TransactionModel(BaseModel):
    txn: str
    status: str
    cas: Cas
    participants: list[int]
    reason: str


class TransactionsAnswer(BaseModel):
    transactions: list[TransactionModel]


class MemberModel(BaseModel):
    node: int
    role: str
    state: str
    cas: Cas
    digest: str
    address: str
    pid: int
    alive: bool
    reason: str


class MastershipModel(BaseModel):
    """`state` is `elected`, `electing`, `no_eligible_node` or `unknown`. `waiting_for`: the
    eligible nodes, which are down."""

    state: str
    message: str
    waiting_for: list[int]


class HistoryRetentionModel(BaseModel):
    """What this process has done as master. `oldest_cas`: the first CAS in the topic, as the last
    pass left it; null: there was none. `error`: why the last pass has failed."""

    retention_ms: int
    oldest_cas: Cas | None
    archived: int
    failures: int
    error: str


class MembersAnswer(BaseModel):
    """`node` answers. `minimum`: nodes that must hold a change to commit it. `active`: the in-sync
    set. `roster`: all nodes of the cluster. `history_retention` null: nothing leaves `history`."""

    node: int
    epoch: Epoch
    master: int | None
    mastership: MastershipModel
    minimum: int
    roster: list[int]
    active: list[int]
    members: list[MemberModel]
    history_retention: HistoryRetentionModel | None


class StepDownAnswer(BaseModel):
    """The master now."""

    epoch: Epoch
    master: int
    address: str


class RosterAnswer(BaseModel):
    """The cluster after the change."""

    roster: list[int]
    active: list[int]
    minimum: int


Place = Annotated[tuple[str, str], Field(description="vbuuid and seqno, decimal")]


class NumberedModel(BaseModel):
    """The numbers of a bucket's timestamps ascend. `age_ms` compares the clocks of two machines."""

    number: int
    at_ms: int
    age_ms: int


class StabilityAnswer(NumberedModel):
    """The newest stability timestamp of a bucket. Scans name its `digest` as `hash`."""

    bucket: str
    digest: str
    vbuckets: dict[str, Place]


class StabilityModel(NumberedModel):
    """`seqnos` is the sum over all vbuckets."""

    digest: str
    seqnos: int


class CurrentModel(BaseModel):
    """The current timestamp: `seqnos` is the sum of the seqnos that projectors have sent."""

    seqnos: int
    at_ms: int
    age_ms: int


class OwnerModel(BaseModel):
    """A connection that streams `vbuckets` vbuckets; `number` is its generation."""

    connection: str
    projector: int
    number: int
    vbuckets: int


class SourceModel(BaseModel):
    """A projector that may stream the bucket, and the number of its generation."""

    projector: int
    number: int


class IndexerLagModel(BaseModel):
    """An indexer holds `ahead` mutations beyond the timestamp and lacks `behind` of it. `branched`
    vbuckets are on another branch and not counted."""

    indexer: int
    ahead: int
    behind: int
    branched: int
    has_snapshot: bool
    snapshot: str | None
    persisted: str | None


class LagModel(BaseModel):
    """`high`: the sum of the highest seqnos that any indexer holds. `seqnos` and `ms`: how far the
    timestamp lags behind that."""

    high: int
    seqnos: int
    ms: int
    indexers: list[IndexerLagModel]


class BucketStabilityModel(BaseModel):
    """`lag` is null except on the master; `current` is null and `owners` is empty while the Spark
    application is down. `began_again`: the last timestamp that was ignored because its number is
    too low."""

    bucket: str
    vbuckets: int | None
    stability: StabilityModel | None
    began_again: NumberedModel | None
    current: CurrentModel | None
    owners: list[OwnerModel]
    projectors: list[SourceModel]
    lag: LagModel | None


class StabilitiesAnswer(BaseModel):
    """All buckets, as `node` has read them."""

    node: int
    buckets: list[BucketStabilityModel]


class PastStabilityModel(BaseModel):
    """`hash` is the `digest` of its vector. `seqnos` is the sum over all vbuckets."""

    bucket: str
    number: int
    at_ms: int
    hash: str
    seqnos: int


class StabilityHistoryAnswer(BaseModel):
    """Newest first. `next`: give it as `before` for the next page; null: there are no more."""

    bucket: str
    timestamps: list[PastStabilityModel]
    next: int | None


class RestartModel(NumberedModel):
    """The positions at which streams of these vbuckets begin again. `round`: the request that it
    answers, 0 without a request."""

    round: int
    reason: str
    projectors: list[int]
    branched: list[int]
    vbuckets: dict[str, Place]


class EnquiryModel(NumberedModel):
    """A vbucket that may have been rolled back. `seen`: the last position of its connection."""

    reason: str
    vbucket: int
    position: Place
    seen: Place
    projector: int
    connection: str


class RestartAnswer(BaseModel):
    """Restart timestamps and enquiries, newest first."""

    bucket: str
    restarts: list[RestartModel]
    enquiries: list[EnquiryModel]


class RollingIndexerModel(BaseModel):
    """A live indexer of the bucket. `done`: it has gone back, or had no need to. `recovering`: it
    waits for what comes again, and answers no scan. `branched`: of so many vbuckets it may hold
    what the store has lost."""

    indexer: int
    done: bool
    recovering: bool
    branched: int


class RollbackModel(BaseModel):
    """The last rollback of a bucket. `vbuckets` have lost something.

    `failover`: of each of these the branch that it has now, and up to where the former one counts.
    `restart`: after what streams of the bucket begin again; a vbucket that is not there begins at
    its beginning. Each is null until it is known. `ended_ms` is null while the rollback goes on;
    `indexers` is null except on the master.
    """

    bucket: str
    number: str
    state: str
    reason: str
    failover: dict[str, Place] | None
    restart: dict[str, Place] | None
    vbuckets: list[int]
    began_ms: int
    ended_ms: int | None
    indexers: list[RollingIndexerModel] | None


class RollbacksAnswer(BaseModel):
    """One for each bucket that had a rollback, newest first. `cas`: that of the state."""

    rollbacks: list[RollbackModel]
    cas: Cas


class RemovedAnswer(BaseModel):
    """What was removed: `kind` is indexer or projector."""

    kind: str
    id: int


Id = Annotated[int, Field(ge=0, lt=2**63)]


class NamedMove(BaseModel):
    """A copy of a slice goes from one indexer to another; from null: one more copy is made."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    index: Id
    slice: Annotated[int, Field(ge=0, lt=2**15)]
    source: Annotated[Indexer | None, Field(alias="from")]
    to: Indexer


class RebalanceBody(BaseModel):
    """A rebalance: by the plan of the cluster, of at most `max_moves` moves, or the `moves` that
    are named. `drain`: indexers that are emptied."""

    model_config = ConfigDict(extra="forbid")

    dry_run: bool = False
    drain: Annotated[list[Indexer], Field(max_length=DRAIN_MAX)] = []
    max_moves: Annotated[int, Field(ge=1, le=MOVES_MAX)] = MOVES_MAX
    moves: Annotated[list[NamedMove], Field(min_length=1, max_length=MOVES_MAX)] | None = None


class MoveModel(BaseModel):
    """A move of a rebalance. `from` is null if another copy is made, `reason` unless it failed.
    `part` names the storage of the copy at the target, null before it is begun; `progress` is
    null unless it is being built."""

    index: str
    slice: int
    source: Annotated[str | None, Field(alias="from")]
    to: str
    bytes: int
    state: str
    part: str | None
    why: str | None
    reason: str | None
    progress: ProgressModel | None


class RebalanceModel(BaseModel):
    """A rebalance. `id` is null where it is only planned, `began_ms` there and where it is
    forgotten, `ended_ms` until it is over. The loads are shares of all load, by indexer; none where
    the moves were named."""

    id: str | None
    state: str
    drain: list[str]
    began_ms: int | None
    ended_ms: int | None
    moves: list[MoveModel]
    load_before: dict[str, float]
    load_after: dict[str, float]


class ImpossibleModel(BaseModel):
    """A slice of which a copy lies where it should not, and cannot move; `rule`: which one."""

    index: str
    slice: int
    rule: str
    why: str


class RebalanceAnswer(BaseModel):
    """One rebalance. `cas`, `txn`: of the command; only `cas` where it is only planned.
    `impossible`: what the plan cannot put right."""

    rebalance: RebalanceModel
    impossible: list[ImpossibleModel]
    cas: Cas
    txn: str | None = None


class RebalancesAnswer(BaseModel):
    """The rebalances, newest first. `cas`: that of the state."""

    rebalances: list[RebalanceModel]
    cas: Cas


class ChangeModel(BaseModel):
    """One change of one entity. `value` is null where it is `dropped`, `before` where it is new:
    `before_cas` is 0 then.

    `cas`: its version. `txn`: the transaction that it belongs to. `event`: what happened.
    `principal` and `request`: who asked for it, under which id. `at_ms`: the master's clock.
    `undoes`: the CAS to which an undo led back, if this is a part of one.
    """

    cas: int
    txn: str
    kind: str
    key: str
    event: str
    principal: str
    request: str
    at_ms: int
    undoes: int | None
    dropped: bool
    value: Any
    before: Any
    before_cas: int


class HistoryAnswer(BaseModel):
    """Changes, oldest first. `next`: give it as `after` for the next page; null: there are no more.
    `cas`: that of the newest change that this node knows."""

    events: list[ChangeModel]
    next: int | None
    cas: int


class UndoBody(BaseModel):
    """Take the state back `to` a CAS; with `only`, just the entities under these keys.

    `dry_run`: change nothing, answer what would change. `expected_cas`: the `cas` that a dry run
    answered; the undo is refused if it would change anything else by now. `in_steps`: use several
    transactions, if the changes exceed one.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    to: Annotated[int, Field(ge=1, le=CAS_MAX)]
    only: Annotated[
        list[Annotated[Text, Field(max_length=300)]], Field(max_length=OPERATIONS_MAX)
    ] = []
    dry_run: bool = False
    expected_cas: Annotated[int | None, Field(ge=0, le=CAS_MAX)] = None
    in_steps: bool = False


class UndoneModel(BaseModel):
    """A change of an undo. Before it is made, it has no CAS (0) and no transaction.

    Of an index that comes back, `index` is the one that is created for it, and `error` says why it
    could not be.
    """

    key: str
    kind: str
    event: str
    cas: int
    txn: str
    before: Any
    before_cas: int
    value: Any
    dropped: bool
    undoes: int
    index: IndexModel | None = None
    error: dict[str, str] | None = None


class KeptModel(BaseModel):
    """Something that an undo leaves as it is."""

    key: str
    reason: str


class UndoAnswer(BaseModel):
    """`undo`: the request id of the undo. `txns`: its transactions. A dry run has neither.

    `to`: the CAS of the state that was restored, the last CAS of its transaction. `cas`: that of
    the state after the undo, or, for a dry run, of the state from which it was computed.
    """

    dry_run: bool
    undo: str = ""
    to: int
    changes: list[UndoneModel]
    kept: list[KeptModel]
    txns: list[str] = []
    cas: Cas


class DifferenceModel(BaseModel):
    """An entity that differs. Where it does not exist, its value is null and its CAS 0."""

    key: str
    kind: str
    before: Any
    before_cas: int
    after: Any
    after_cas: int


class DiffAnswer(BaseModel):
    """What differs between the states of two CAS, by key."""

    from_: int = Field(alias="from")
    to: int
    changes: list[DifferenceModel]


class ErrorModel(BaseModel):
    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    """Every error has this shape."""

    error: ErrorModel
