"""One of each record, and values that are nested deep."""

from __future__ import annotations

from typing import Any

from immutables import Map

from coordinator import codec
from coordinator.core.catalog.snapshots import SnapshotChunk, SnapshotEntry
from coordinator.core.model import commands, records
from coordinator.core.model import stream_records as streams
from coordinator.core.model.authority_state import (
    AuthorityState,
    IndexerInfo,
    Member,
    OpenTransaction,
    SnapshotInfo,
    TransactionStatus,
)
from coordinator.core.model.entities import Bucket, RequestOutcome, Setting, Source, Stream
from coordinator.core.model.outcome_records import OutcomesRecorded, RecordedOutcome
from coordinator.core.model.types import TxnId
from coordinator.core.timestamps import progress
from coordinator.core.timestamps.bucket_state import TimestampState
from schemas.registry import (
    registry,
)

TXN = TxnId(3, 7)


BIG = 2**128 - 1


U64 = b"\xff" * 8 + b"\x01" * 8


AUTHORITY = AuthorityState(
    "c1",
    1,
    (1, 2, 3),
    2,
    100,
    600_000,
    epoch=3,
    master=2,
    incarnation=2**62,
    address="http://127.0.0.1:1",
    members=Map({2: Member(2, 5, "x")}),
    indexers=Map({0: IndexerInfo(0, 9, "i", "z")}),
    last_seq=7,
    open=OpenTransaction(TXN, 40, (1, 2), 12, BIG, 2),
    last_txn=TxnId(3, 6),
    last_cas=12,
    digest=BIG,
    acceptors=(1, 2),
    log=Map({4: TransactionStatus(TxnId(3, 6), "commit", 12, (1,), "")}),
    log_next=5,
    snapshots=(SnapshotInfo(2**61, 12, BIG, 9, 40, 5),),
    outcomes_digest=BIG - 1,
)


SETTING = Setting("k", "1")


MUTATION = records.Mutation("SettingWritten", SETTING.key, codec.encode(SETTING), SETTING, "r")


ONE_OF_EACH: list[Any] = [
    RequestOutcome("r", "done", 5, 0, 1, 2, 1, "{}", "", "", "{}", True, 9),
    AUTHORITY,
    TransactionStatus(TXN, "initial", 0, (1, 2), "why"),
    records.ClusterFormed("c", 1, (1,), 1, 10, 5, 6),
    records.MasterClaimed(4, 1, 2, "http://x", 12, BIG, AUTHORITY, 8),
    records.AuthoritySnapshot(3, AUTHORITY),
    records.TransactionProposed(TXN, 12, BIG, (1, 2, 3), (MUTATION,)),
    records.TransactionCommitted(TXN, 40, (1, 2), (13, 14), BIG, 7),
    records.TransactionCommitted(TXN, 40, (1,), (13,), BIG, 7, b"group", 5, BIG, 2**41),
    records.OutcomesForgotten(3, 12, BIG, 2**41),
    records.OutcomesSeparated(3, 12, BIG, BIG - 1, (b"one", b"two"), BIG - 2, 5),
    records.SnapshotKept(3, 2**61, 12, BIG, 9, 40, 5),
    records.CopyRequested(1, 2, 3, 9, 12),
    records.CopyOffered(3, 1, 2, 9, 2**61, 7),
    OutcomesRecorded(
        *(TXN, 14, 5),
        (RecordedOutcome("r", "done", 5, "indexes", (1, 2**40), 13, True, "{}", "c", "m", "{}"),),
    ),
    SnapshotChunk(
        *(2**61, 12, BIG, 0, True),
        (SnapshotEntry(SETTING.key, 12, codec.encode(SETTING), SETTING),),
    ),
    records.TransactionRolledBack(TXN, -1, "no", 7),
    records.MemberAdmitted(3, 2, 1, "x", 12, BIG, 5),
    records.MemberExpired(3, 2, "silent", 5),
    records.IndexerRegistered(3, 250, 1, "x", "", 5),
    records.MemberLeft(3, 2, 1, "me", 5),
    records.MasterResigned(3, 2, 1, "upgrade", 5),
    records.ClusterReformed(3, 1, 12, BIG, 1, (1, 3), "me", "two are lost", 5),
    records.ProjectorRegistered(3, 0, 1, "x", 5),
    records.ReadBarrier(3, 2**62),
    records.ProposalAnswered(1, 2, TXN, 40, "refused", "disk"),
    records.JoinRequested(2, 1, "x", 12, BIG),
    records.SliceAnswered(1, 2, 77, "allocated", "", (0, 1), 2**40),
    records.HoldingsReported(1, 2, 9, 12, 0, 1, (records.Holding(77, 5, (0, 1)),)),
    records.HoldingsRequested(3, 1, 2, 9, True),
    records.ProjectorHeartbeat(
        0,
        2,
        "x",
        99,
        5,
        "http://kv",
        (records.BucketSeen("b", 64),),
        (records.StreamAwaited("b", 3),),
        (records.BackfillProgress(77, 1, 10, 20),),
    ),
    records.NodeHeartbeat(1, 2, "master", 3, 12, BIG, "x", 99, "", 5),
    records.IndexerHeartbeat(1, 2, "x", "z", 99, 3, 4096, 12, 5),
    records.TimestampsHeartbeat(2**62, 99, "q", 7, 5),
    records.TimestampsHeartbeat(
        *(2**62, 99, "q", 7, 5),
        (records.BucketCurrent("b", str(2**70)),),
        (records.StreamOwner("b", 2**62, 1, 3, 1024),),
    ),
    records.DdlReply("r", "ok", "{}", "", "", "{}", 13, "3-7", 5),
    records.DeadLetter("ddl", 0, 3, "not_avro", b"\x00", 5),
    records.Event(MUTATION, TXN, 0, 1, 13),
    commands.CreateIndex("n", "b", ("x",), nodes=(1, 2)),
    commands.DropIndex(bucket="b", name="n"),
    commands.BuildIndexes((1, 2), "b", ("n",)),
    Stream("b", 3, (Source(0, 7, 3), Source(1, 9, 2)), U64, U64, "a new projector"),
    streams.StreamBegin("b", 1023, "backfill", 1, 2**62, 0, 2**64 - 1, 2**63, 5, 3),
    streams.StreamEnd("b", 1023, "maintenance", 1, 2**62, 9, 2**64 - 1, 2**63, "closed", 5),
    streams.ConnectionClosed("b", "maintenance", 1, 2**62, 10, "gone", 5),
    streams.Sync("b", 7, 1, 2**62, 3, 2**63, 2**64 - 1, 5),
    streams.KeyVersions("b", "maintenance", 1, 2**62, 4, 3, (77, 78), (1, 2), b"items", 5, 3, True),
    streams.CatchUpRequested(1, 2, "b", (0, 7), U64, U64, 5),
    streams.FailoverLog("b", 7, (streams.FailoverBranch(2**64 - 1, 2**63),), 5),
    streams.HwHeartbeat(
        *(1, 2, "b", (77,), U64, U64, 1, 2, 3, 4, (streams.BuildProgress(77, 1, b"\x01"),), 5),
        (streams.ConnectionRead(1, 2**62, (4, 0, 0, 17)),),
        (streams.GenerationTaken(2**62, 250, b"\x01"),),
    ),
    streams.StabilityTimestamp("b", 4, U64, U64, 5),
    streams.ConsolidatedStability((streams.StabilityTimestamp("b", 4, U64, U64, 5),)),
    streams.Tick(5, 2**62),
    streams.RestartRequested("b", 3, 1024, (1, 2), "bootstrap", 5),
    streams.PromotionRequested("b", 10_000, 5),
    streams.RestartTimestamp("b", 9, 3, (0, 7), U64, U64, (7,), (0,), "held begin", 5),
    streams.RollbackEnquiry(
        "b", 9, 7, 2**63, 2**64 - 1, 2**64 - 1, 2**63, 0, 2**62, streams.SYNC_MISSING, 5
    ),
    TimestampState("b", "query", 9, 1024, 5, b"\x01state"),
    streams.IndexRouted(0, 2, 77, 1, "no such bucket"),
    streams.IndexBuilt(1, 2, 77, 1),
    progress.TimestampProgress("q", 3, 1, 5, (progress.NextOffset("c.sync", 2, 2**40),)),
    progress.TimestampContext(9, (Bucket("b", 64),), (Setting("timestamps", "{}"),)),
    progress.TimestampWaiting((records.DeadLetter("c.sync", 0, 3, "not yet", b"\x00", 5),)),
]


def nested(depth: int) -> bytes:
    """Return an event whose value is an event, and so on; the innermost has a setting."""
    data = codec.encode(SETTING)
    for _ in range(depth):
        fields = codec.TO_AVRO[records.Event](records.Event(MUTATION, TXN, 0, 1, 1))
        data = registry().current["Event"].encode({**fields, "value": data})
    return data
