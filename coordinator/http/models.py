"""Bodies of the HTTP API, for validation and for the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coordinator.core.catalog.ddl import EXPRESSIONS_MAX
from coordinator.core.catalog.decisions import compact
from coordinator.core.keys.topology import BOUNDS_MAX
from coordinator.core.model.commands import BuildIndexes, CreateIndex
from coordinator.core.model.entities import HASH
from coordinator.core.model.types import Cas, Epoch
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


class CreateIndexBody(BaseModel):
    """The definition of an index. With `partitioning` `range`, `bounds` holds the lowest key of
    each slice but the first, and gives the number of slices."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Text
    bucket: Text
    expressions: Annotated[list[Text], Field(max_length=EXPRESSIONS_MAX)] = []
    where: Text | None = None
    primary: bool = False
    using: Text = "gsi"
    slices: Count | None = None
    replicas: Count = 0
    nodes: Annotated[
        list[Annotated[int, Field(ge=0, le=INDEXERS_MAX - 1)]], Field(max_length=INDEXERS_MAX)
    ] = []
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
    progress: ProgressModel | None = None


class IndexAnswer(BaseModel):
    """An index, with the CAS and the transaction of the change."""

    index: IndexModel
    cas: Cas
    txn: str = ""
    existed: bool = False


class IndexesAnswer(BaseModel):
    """The indexes after the change, with the CAS and the transaction of the change."""

    indexes: list[IndexModel]
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


class MembersAnswer(BaseModel):
    """`node` answers. `minimum`: nodes that must hold a change to commit it. `active`: the in-sync
    set. `roster`: all nodes of the cluster."""

    node: int
    epoch: Epoch
    master: int | None
    mastership: MastershipModel
    minimum: int
    roster: list[int]
    active: list[int]
    members: list[MemberModel]


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
    """Numbers ascend within a bucket. `age_ms` compares the clocks of two machines."""

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
    """Newest first. `next` is for `before`; null: there are no more."""

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


class ChangeModel(BaseModel):
    """One change of one entity. `value` is null where it is `dropped`, `before` where it is new:
    `before_cas` is 0 then.

    `cas`: its version. `txn`: the transaction that it belongs to. `event`: what happened.
    `principal` and `request`: who asked for it, under which id. `at_ms`: the master's clock.
    """

    cas: int
    txn: str
    kind: str
    key: str
    event: str
    principal: str
    request: str
    at_ms: int
    dropped: bool
    value: Any
    before: Any
    before_cas: int


class HistoryAnswer(BaseModel):
    """Changes, oldest first. `next`: the CAS after which to go on; null: there are no more. `cas`:
    the newest that this node tells of."""

    events: list[ChangeModel]
    next: int | None
    cas: int


class DifferenceModel(BaseModel):
    """An entity that differs. `before` or `after` is null, and its CAS 0, where it does not
    exist."""

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
