"""Bodies of the HTTP API, for validation and for the OpenAPI page."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coordinator.core.commands import CreateIndex


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


class CreateIndexBody(BaseModel):
    """The definition of an index."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Text
    bucket: Text
    expressions: list[Text] = []
    where: Text | None = None
    primary: bool = False
    using: Text = "gsi"
    slices: Count = 1
    replicas: Count = 0
    nodes: list[Annotated[int, Field(ge=0, le=250)]] = []
    defer_build: bool = False
    if_not_exists: bool = False

    def command(self) -> CreateIndex:
        fields = self.model_dump()
        fields["expressions"] = tuple(self.expressions)
        fields["nodes"] = tuple(self.nodes)
        return CreateIndex(**fields)


class SliceModel(BaseModel):
    slice: int
    master: int
    replicas: list[int]


class TopologyModel(BaseModel):
    slices: list[SliceModel]
    shards: dict[str, int]


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


class IndexAnswer(BaseModel):
    """An index, with the CAS and the transaction of the change."""

    index: IndexModel
    cas: int
    txn: str = ""
    existed: bool = False


class SettingAnswer(BaseModel):
    """A setting with its CAS; `txn` where it was just written."""

    key: str
    value: Any
    cas: int
    txn: str = ""


class TransactionModel(BaseModel):
    txn: str
    status: str
    cas: int
    participants: list[int]
    reason: str


class TransactionsAnswer(BaseModel):
    transactions: list[TransactionModel]


class MemberModel(BaseModel):
    node: int
    role: str
    state: str
    cas: int
    digest: str
    address: str
    pid: int
    alive: bool
    reason: str


class MastershipModel(BaseModel):
    """`elected`, `electing`, `no_eligible_node` (with those it waits for) or `unknown`."""

    state: str
    message: str
    waiting_for: list[int]


class MembersAnswer(BaseModel):
    """`minimum` is how many copies a transaction needs."""

    epoch: int
    master: int | None
    mastership: MastershipModel
    minimum: int
    roster: list[int]
    active: list[int]
    members: list[MemberModel]


class StepDownAnswer(BaseModel):
    """Who is master now."""

    epoch: int
    master: int
    address: str


class RosterAnswer(BaseModel):
    """The cluster after the change; `epoch` and `master` where a claim was forced."""

    roster: list[int]
    active: list[int]
    minimum: int


class ErrorModel(BaseModel):
    code: str
    message: str
    details: dict[str, Any]


class ErrorAnswer(BaseModel):
    """Every error has this shape."""

    error: ErrorModel
