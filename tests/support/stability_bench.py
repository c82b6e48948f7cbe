"""A bench for the fold of a bucket: records by few words, ticks by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverBranch,
    FailoverLog,
    HwHeartbeat,
    PromotionRequested,
    RestartRequested,
    StreamBegin,
    StreamEnd,
    Sync,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.fold import Batch, BucketState, Control, Output, Refusals, Syncs, fold
from tests.support.indexes import make_sync, make_watermarks

TOP = 2**64 - 1
A, B, C = TOP, 8, 9
"""Branches."""


def begin(
    vbucket: int,
    connection: int,
    ordinal: int,
    seqno: int = 0,
    *,
    number: int = 1,
    projector: int = 0,
    vbuuid: int = A,
    kind: str = "maintenance",
) -> StreamBegin:
    return StreamBegin(
        bucket="b",
        vbucket=vbucket,
        kind=kind,
        projector=projector,
        connection=connection,
        ordinal=ordinal,
        vbuuid=vbuuid,
        seqno=seqno,
        at_ms=0,
        number=number,
    )


def end(
    vbucket: int,
    connection: int,
    ordinal: int,
    *,
    reason: str = "moved",
    projector: int = 0,
    vbuuid: int = A,
    seqno: int = 0,
    kind: str = "maintenance",
) -> StreamEnd:
    return StreamEnd(
        bucket="b",
        vbucket=vbucket,
        kind=kind,
        projector=projector,
        connection=connection,
        ordinal=ordinal,
        vbuuid=vbuuid,
        seqno=seqno,
        reason=reason,
        at_ms=0,
    )


def closed(
    connection: int, ordinal: int, projector: int = 0, kind: str = "maintenance"
) -> ConnectionClosed:
    return ConnectionClosed("b", kind, projector, connection, ordinal, "closed", 0)


def sync(
    vbucket: int, connection: int, ordinal: int, seqno: int, vbuuid: int = A, projector: int = 0
) -> Sync:
    return make_sync(
        vbucket,
        projector=projector,
        connection=connection,
        ordinal=ordinal,
        vbuuid=vbuuid,
        seqno=seqno,
    )


def log(vbucket: int, *branches: tuple[int, int]) -> FailoverLog:
    return FailoverLog("b", vbucket, tuple(FailoverBranch(*branch) for branch in branches), 0)


def heartbeat(
    indexer: int,
    vector: Vector,
    *,
    indexes: tuple[int, ...] = (7,),
    queue: int = 0,
    free: int = 100,
    incarnation: int = 1,
) -> HwHeartbeat:
    return make_watermarks(
        indexer,
        vector,
        incarnation=incarnation,
        indexes=indexes,
        mutation_queue=queue,
        free=free,
    )


def asked(number: int, participants: tuple[int, ...], vbuckets: int = 4) -> RestartRequested:
    return RestartRequested("b", number, vbuckets, participants, "bootstrap", 0)


def hurried(wait_ms: int, at_ms: int) -> PromotionRequested:
    return PromotionRequested("b", wait_ms, at_ms)


def columns(syncs: Iterable[Sync]) -> Syncs:
    """Return SYNCs as columns."""
    rows = list(syncs)

    def column(name: str, kind: type[np.int64] | type[np.uint64]) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows], kind)

    return Syncs(
        column("vbucket", np.int64),
        column("projector", np.int64),
        column("connection", np.int64),
        column("ordinal", np.int64),
        column("vbuuid", np.uint64),
        column("seqno", np.uint64),
    )


def batch(records: Iterable[Sync | Control], now_ms: int = 0, ticked: bool = False) -> Batch:
    """Return records as the fold takes them."""
    rows = list(records)
    syncs = columns(row for row in rows if isinstance(row, Sync))
    return Batch(syncs, [row for row in rows if not isinstance(row, Sync)], now_ms, ticked)


class Bench:
    """A bucket, the time, and what the last batch had that was refused."""

    def __init__(self, vbuckets: int = 4, settings: TimestampSettings | None = None) -> None:
        self.settings = settings or TimestampSettings()
        self.state = BucketState.new("b", vbuckets)
        self.now_ms = 1_000_000
        self.refused: Refusals | None = None
        self.fold([], ticked=True)

    def fold(self, records: Iterable[Sync | Control], *, ticked: bool = False) -> list[Output]:
        """Fold records as one batch."""
        given = batch(records, self.now_ms, ticked)
        self.state, outputs, self.refused = fold(self.state, given, self.settings)
        return outputs

    def read(self, *records: Sync | Control) -> list[Output]:
        """Fold records, each as a batch of its own."""
        return [output for record in records for output in self.fold([record])]

    def tick(self, after_ms: int, *records: Sync | Control, unwatched_ms: int = 0) -> list[Output]:
        """Let time go by, and fold a tick with these records."""
        self.now_ms += after_ms
        given = batch(records, self.now_ms, True)._replace(unwatched_ms=unwatched_ms)
        self.state, outputs, self.refused = fold(self.state, given, self.settings)
        return outputs

    @property
    def owners(self) -> list[int | None]:
        """The connection that owns each vbucket."""
        pairs = zip(
            self.state.places["connection"].tolist(),
            self.state.places["ended"].tolist(),
            strict=True,
        )
        return [c if c >= 0 and ended < 0 else None for c, ended in pairs]

    @property
    def seqnos(self) -> list[int]:
        return self.state.places["seqno"].tolist()

    @property
    def vbuuids(self) -> list[int]:
        return self.state.places["vbuuid"].tolist()
