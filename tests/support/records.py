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
from coordinator.core.model.entities import (
    Bucket,
    Move,
    Rebalance,
    RequestOutcome,
    Rollback,
    Setting,
    Source,
    Stream,
    Subscription,
    Topic,
)
from coordinator.core.model.outcome_records import OutcomesRecorded, RecordedOutcome
from coordinator.core.model.subscription_records import (
    SubscriberSeen,
    SubscriptionAcknowledged,
)
from coordinator.core.model.types import Cas, TxnId
from coordinator.core.timestamps import progress
from coordinator.core.timestamps.bucket_state import TimestampState
from schemas.registry import (
    registry,
)

TXN = TxnId(3, 7)


BIG = 2**128 - 1


U64 = b"\xff" * 8 + b"\x01" * 8


AUTHORITY = AuthorityState(
    cluster_id="c1",
    cas_base=1,
    roster=(1, 2, 3),
    minimum=2,
    log_capacity=100,
    request_window_ms=600_000,
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
    Topic("cities", '{"kind":["index"]}', 5),
    Subscription(
        topic="cities",
        id="router",
        number=2**60,
        filter_json="{}",
        after=Cas(7),
        deliver_to="out",
        expires_after_ms=0,
        state="active",
        created_ms=5,
    ),
    SubscriptionAcknowledged(2**60, Cas(9), 5),
    SubscriberSeen(2**60, 5, 3),
    RequestOutcome(
        id="r",
        status="done",
        fingerprint=5,
        index_id=0,
        txn_epoch=1,
        txn_seq=2,
        distance=1,
        answer_json="{}",
        error_code="",
        error_message="",
        error_details_json="{}",
        by_topic=True,
        at_ms=9,
    ),
    AUTHORITY,
    TransactionStatus(TXN, "initial", 0, (1, 2), "why"),
    records.ClusterFormed(
        cluster_id="c",
        cas_base=1,
        roster=(1,),
        minimum=1,
        log_capacity=10,
        request_window_ms=5,
        sync_partitions=8,
        at_ms=6,
    ),
    records.MasterClaimed(
        epoch=4,
        node=1,
        incarnation=2,
        address="http://x",
        cas=12,
        digest=BIG,
        snapshot=AUTHORITY,
        at_ms=8,
    ),
    records.AuthoritySnapshot(3, AUTHORITY),
    records.TransactionProposed(TXN, 12, BIG, (1, 2, 3), (MUTATION,)),
    records.TransactionCommitted(
        txn=TXN, proposal_offset=40, accepted=(1, 2), cas=(13, 14), state_digest=BIG, at_ms=7
    ),
    records.TransactionCommitted(
        txn=TXN,
        proposal_offset=40,
        accepted=(1,),
        cas=(13,),
        state_digest=BIG,
        at_ms=7,
        outcomes=b"group",
        outcomes_forgotten=5,
        outcomes_digest=BIG,
        outcomes_forgotten_ms=2**41,
    ),
    records.OutcomesForgotten(3, 12, BIG, 2**41),
    records.OutcomesSeparated(
        epoch=3,
        cas=12,
        digest=BIG,
        state_digest=BIG - 1,
        groups=(b"one", b"two"),
        outcomes_digest=BIG - 2,
        at_ms=5,
    ),
    records.SnapshotKept(3, 2**61, 12, BIG, 9, 40, 5),
    records.CopyRequested(1, 2, 3, 9, 12),
    records.CopyOffered(3, 1, 2, 9, 2**61, 7),
    OutcomesRecorded(
        *(TXN, 14, 5),
        (
            RecordedOutcome(
                id="r",
                status="done",
                fingerprint=5,
                answer="indexes",
                index_ids=(1, 2**40),
                cas=13,
                by_topic=True,
                answer_json="{}",
                error_code="c",
                error_message="m",
                error_details_json="{}",
            ),
        ),
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
    records.ClusterReformed(
        epoch=3,
        node=1,
        cas=12,
        digest=BIG,
        minimum=1,
        roster=(1, 3),
        principal="me",
        reason="two are lost",
        at_ms=5,
    ),
    records.ProjectorRegistered(3, 0, 1, "x", 5),
    records.ServiceRemoved(3, "indexer", 250, "who", 5),
    records.ReadBarrier(3, 2**62),
    records.ProposalAnswered(1, 2, TXN, 40, "refused", "disk"),
    records.JoinRequested(2, 1, "x", 12, BIG),
    records.SliceAnswered(1, 2, 77, "allocated", "", (0, 1), 2**40),
    records.HoldingsReported(1, 2, 9, 12, 0, 1, (records.Holding(77, 5, (0, 1)),)),
    records.HoldingsRequested(3, 1, 2, 9, True),
    records.ProjectorHeartbeat(
        projector=0,
        incarnation=2,
        address="x",
        pid=99,
        at_ms=5,
        kv="http://kv",
        buckets=(records.BucketSeen("b", 64),),
        topics=(records.TopicSeen("orders", 2, 7, "there is no topic orders", 3),),
        waiting=(records.StreamAwaited("b", 3),),
        backfills=(records.BackfillProgress(77, 1, 10, 20),),
    ),
    records.NodeHeartbeat(
        node=1,
        incarnation=2,
        state="master",
        epoch=3,
        cas=12,
        digest=BIG,
        address="x",
        pid=99,
        reason="",
        at_ms=5,
    ),
    records.IndexerHeartbeat(
        indexer=1,
        incarnation=2,
        address="x",
        zone="z",
        pid=99,
        slices=3,
        bytes=4096,
        cas=12,
        at_ms=5,
    ),
    records.SliceLoads(1, 2, (records.SliceLoad(77, 3, 1_000, 2**40, 12),), 4, 5),
    records.TimestampsHeartbeat(incarnation=2**62, pid=99, batch=7, at_ms=5),
    records.TimestampsHeartbeat(
        incarnation=2**62,
        pid=99,
        batch=7,
        at_ms=5,
        currents=(records.BucketCurrent("b", str(2**70)),),
        owners=(records.StreamOwner("b", 2**62, 1, 3, 1024),),
        shard="1/2",
        period_ms=250,
    ),
    records.DdlReply(
        request="r",
        status="ok",
        answer_json="{}",
        error_code="",
        error_message="",
        error_details_json="{}",
        cas=13,
        txn="3-7",
        at_ms=5,
    ),
    records.DeadLetter("ddl", 0, 3, "not_avro", b"\x00", 5),
    records.Event(MUTATION, TXN, 0, 1, 13),
    commands.CreateIndex(name="n", bucket="b", expressions=("x",), nodes=(1, 2)),
    commands.DropIndex(bucket="b", name="n"),
    commands.AlterIndex(
        bucket="b", name="n", new_name="m", expressions=("a",), replicas=0, nodes=(1,)
    ),
    commands.BuildIndexes((1, 2), "b", ("n",)),
    commands.Transact(
        compare=(
            commands.Comparison(key="config/a", cas=7),
            commands.Comparison(bucket="b", name="n", cas=0),
        ),
        then=(commands.PutSetting("a", "[1]"), commands.CreateIndex(name="n", bucket="b")),
        otherwise=(
            commands.DeleteSetting("a"),
            commands.DropIndex(7),
            commands.AlterIndex(index_id=7, new_name="m", expressions=("a",)),
        ),
    ),
    Stream(
        "b", 3, (Source(0, 7, 3, 1, (2, 5), (2, 3)), Source(1, 9, 2)), U64, U64, "a new projector"
    ),
    Rollback(
        bucket="b",
        number=7,
        state="done",
        vbuckets=(3, 5),
        reason="2 vbuckets have lost something",
        began_ms=5,
        failover_vbuuids=U64,
        failover_seqnos=U64,
        restart_vbuuids=U64,
        restart_seqnos=U64,
        barrier=8,
        ended_ms=9,
    ),
    Rebalance(
        id=7,
        state="cancelling",
        moves=(
            Move(index=1, slice=2, source=-1, target=250, bytes=2**40, part=3, reason="no room"),
            Move(index=1, slice=3, source=4, target=5, bytes=0, state="done"),
        ),
        began_ms=5,
        drain=(4, 250),
        ended_ms=9,
    ),
    streams.StreamBegin(
        bucket="b",
        vbucket=1023,
        kind="backfill",
        projector=1,
        connection=2**62,
        ordinal=0,
        vbuuid=2**64 - 1,
        seqno=2**63,
        at_ms=5,
        number=3,
    ),
    streams.StreamEnd(
        bucket="b",
        vbucket=1023,
        kind="maintenance",
        projector=1,
        connection=2**62,
        ordinal=9,
        vbuuid=2**64 - 1,
        seqno=2**63,
        reason="closed",
        at_ms=5,
    ),
    streams.ConnectionClosed("b", "maintenance", 1, 2**62, 10, "gone", 5),
    streams.Sync(
        bucket="b",
        vbucket=7,
        projector=1,
        connection=2**62,
        ordinal=3,
        vbuuid=2**63,
        seqno=2**64 - 1,
        at_ms=5,
    ),
    streams.SyncVector(
        bucket="b",
        projector=1,
        connection=2**62,
        ordinal=3,
        vbuckets=b"\xff\x03",
        vbuuids=U64[:8],
        seqnos=U64[:8],
        at_ms=5,
    ),
    streams.KeyVersions(
        bucket="b",
        kind="maintenance",
        projector=1,
        connection=2**62,
        ordinal=4,
        number=3,
        indexes=(77, 78),
        builds=(1, 2),
        items=b"items",
        at_ms=5,
        previous=3,
        continued=True,
    ),
    streams.CatchUpRequested(1, 2, "b", (0, 7), U64, U64, 5),
    streams.FailoverLog("b", 7, (streams.FailoverBranch(2**64 - 1, 2**63),), 5),
    streams.HwHeartbeat(
        indexer=1,
        incarnation=2,
        bucket="b",
        indexes=(77,),
        vbuuids=U64,
        seqnos=U64,
        last_persistence=1,
        last_stability=2,
        mutation_queue=3,
        free=4,
        builds=(streams.BuildProgress(77, 1, b"\x01", True),),
        at_ms=5,
        read=(streams.ConnectionRead(1, 2**62, (4, 0, 0, 17)),),
        taken=(streams.GenerationTaken(2**62, 250, b"\x01"),),
    ),
    streams.StabilityTimestamp("b", 4, U64, U64, 5),
    streams.ConsolidatedStability((streams.StabilityTimestamp("b", 4, U64, U64, 5),)),
    streams.Tick(5, 2**62, 7),
    streams.Tick(5, 2**62, 7, "1/2"),
    streams.RestartRequested("b", 3, 1024, (1, 2), "bootstrap", 5),
    streams.PromotionRequested("b", 10_000, 5),
    streams.RestartTimestamp(
        bucket="b",
        number=9,
        round=3,
        vbuckets=(0, 7),
        vbuuids=U64,
        seqnos=U64,
        branched=(7,),
        projectors=(0,),
        reason="held begin",
        at_ms=5,
    ),
    streams.RollbackEnquiry(
        bucket="b",
        number=9,
        vbucket=7,
        vbuuid=2**63,
        seqno=2**64 - 1,
        seen_vbuuid=2**64 - 1,
        seen_seqno=2**63,
        projector=0,
        connection=2**62,
        reason=streams.SYNC_MISSING,
        at_ms=5,
    ),
    TimestampState("b", 1024, 5, b"\x01state"),
    streams.IndexRouted(0, 2, 77, 1, "no such bucket"),
    streams.IndexBuilt(1, 2, 77, 1),
    progress.TimestampProgress(5, (progress.NextOffset("c.sync", 2, 2**40),), 2**62, 9),
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
