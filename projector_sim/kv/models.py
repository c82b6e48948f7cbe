"""What the requests to the key-value store's HTTP API look like. Seqnos and vbuuids are strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coordinator.core.model.types import Seqno, Vbuuid
from projector_sim.kv.bucket import Bucket
from projector_sim.kv.streams import StreamRequest, Wanted
from projector_sim.kv.vbuckets import VBUCKETS_MAX

NODES_MAX = 1_000
DELAY_MS_MAX = 60_000
NUMBER_MAX = 2**63

Node = Annotated[int, Field(ge=0, lt=NODES_MAX)]
Vbucket = Annotated[int, Field(ge=0, lt=VBUCKETS_MAX)]
Vbuckets = Annotated[list[Vbucket], Field(max_length=VBUCKETS_MAX)]
Numbers = Annotated[
    list[Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]], Field(max_length=VBUCKETS_MAX)
]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class BucketBody(Body):
    vbuckets: int | None = Field(None, ge=1, le=VBUCKETS_MAX)
    nodes: Annotated[list[Node], Field(min_length=1, max_length=NODES_MAX)] | None = None


class StreamBody(Body):
    """`vbuuids`, `seqnos` and `until` go with `vbuckets`; without, with all of the bucket's."""

    bucket: str
    node: Node
    kind: Literal["maintenance", "backfill", "catchup"]
    connection: Annotated[str, Field(min_length=1, max_length=250)]
    vbuckets: Vbuckets | None = None
    vbuuids: Numbers | None = None
    seqnos: Numbers | None = None
    current: bool = False
    until: Numbers | None = None
    sync_ms: int = Field(100, ge=1, le=60_000)

    def request(self, bucket: Bucket) -> StreamRequest:
        """Return what is asked for. ValueError: that cannot be."""
        asked = self.vbuckets if self.vbuckets is not None else range(bucket.vbuckets)
        count = len(asked)
        if any(vbucket >= bucket.vbuckets for vbucket in asked) or len(set(asked)) != count:
            raise ValueError(f"vbuckets are different numbers below {bucket.vbuckets}")
        if self.seqnos is not None and self.vbuuids is None:
            raise ValueError("seqnos need the vbuuids under which they were given")
        vbuuids = _numbers("vbuuids", self.vbuuids, count) or [0] * count
        seqnos = _numbers("seqnos", self.seqnos, count) or [0] * count
        until: Sequence[int | None] = _numbers("until", self.until, count) or [None] * count
        wanted = [
            Wanted(vbucket, Vbuuid(vbuuid), Seqno(seqno), None if end is None else Seqno(end))
            for vbucket, vbuuid, seqno, end in zip(asked, vbuuids, seqnos, until, strict=True)
        ]
        if self.vbuckets is None:
            wanted = [one for one in wanted if bucket.owner(one.vbucket) == self.node]
        return StreamRequest(
            self.connection,
            self.bucket,
            self.node,
            self.kind,
            tuple(wanted),
            self.current,
            self.sync_ms,
        )


def _numbers(name: str, texts: Sequence[str] | None, count: int) -> list[int] | None:
    if texts is None:
        return None
    numbers = [int(text) for text in texts]
    if len(numbers) != count or any(number >= NUMBER_MAX for number in numbers):
        raise ValueError(f"{name}: {count} numbers below 2^63, one for each vbucket")
    return numbers


class MoveBody(Body):
    """Either `vbuckets`, or `count` of them, of node `source` or of those that have the most."""

    to: Node
    vbuckets: Vbuckets | None = None
    count: int | None = Field(None, ge=1, le=VBUCKETS_MAX)
    source: Node | None = None


class CrashBody(Body):
    """`lose` so many of the last seqnos, of `vbuckets` and of `bucket` where they are named."""

    lose: int = Field(0, ge=0, lt=NUMBER_MAX)
    vbuckets: Vbuckets | None = None
    bucket: str | None = None


class FaultBody(Body):
    """As of `faults`."""

    kind: Literal["begin", "end", "sync", "mutations"]
    action: Literal["drop", "delay"]
    bucket: str | None = None
    vbuckets: Vbuckets | None = None
    stream: Literal["maintenance", "backfill", "catchup"] | None = None
    count: int | None = Field(None, ge=1, le=NUMBER_MAX)
    delay_ms: int = Field(0, ge=0, le=DELAY_MS_MAX)
