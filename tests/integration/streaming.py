"""What tests of the application on Spark need: topics of a cluster, streams, and what came of them.

`Streams` plays the projectors of one bucket: it numbers connections and records as they do.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from pyspark.sql import SparkSession

from coordinator import codec
from coordinator.core.model.entities import Bucket, Entity, Setting
from coordinator.core.model.records import DeadLetter, Event, Mutation
from coordinator.core.model.stream_records import (
    MAINTENANCE,
    ConnectionClosed,
    FailoverBranch,
    FailoverLog,
    RestartRequested,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
    Sync,
    Tick,
)
from coordinator.core.model.types import TxnId
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.bucket_state import TimestampState
from coordinator.core.timestamps.progress import TimestampProgress
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.kafka.topics import (
    DEAD_LETTER,
    FAILOVER_LOG,
    HW,
    RESTART,
    RESTART_REQUEST,
    STABILITY,
    STABILITY_HISTORY,
    STATECONTEXT,
    STREAM_BEGIN,
    STREAM_END,
    STREAM_PARTITIONS,
    SYNC,
    TICK,
    TIMESTAMP_STATE,
    ensure_topics,
    topic_name,
)
from streaming.timestamps.application import Application, Options
from tests.integration.cluster import Child, read_partition, value_of, wait_until
from tests.support.indexes import make_sync, make_sync_vector, make_watermarks

VBUCKETS = 64
BUCKET = "travel"
NOW_MS = 1_700_000_000_000
READY_S = 180.0
"""Spark starts in some ten seconds, on a machine that does nothing else."""
QUICK = {"period_ms": 300, "sync_missing_ms": 3_600_000}
"""Settings of a bucket whose timestamps come soon. Between two SYNCs Spark may start more than
once: nobody is to miss one meanwhile."""


class Topics:
    """The topics of a cluster of its own: what is written to them, and what came of it."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 2,
                "log_level": 2,
                "enable.idempotence": True,
            }
        )
        ensure_topics(servers, self.name, durable=False)

    def put(self, topic: str, record: Any, partition: int = 0, key: str = "") -> None:
        """Write a record, or bytes as they are; `flush` waits for it."""
        value = record if isinstance(record, bytes) else codec.encode(record)
        name = topic_name(self.name, topic)
        self._producer.produce(name, value, key.encode() or None, partition=partition)
        self._producer.poll(0)

    def erase(self, topic: str) -> None:
        """Write a tombstone for every key of a topic: whoever reads it finds nothing."""
        name = topic_name(self.name, topic)
        for key in {message.key() for message in read_partition(self.servers, name)}:
            self._producer.produce(name, None, key, partition=0)
        self.flush()

    def delete(self, topic: str) -> None:
        """Have Kafka delete all records of a topic, as retention does."""
        name = topic_name(self.name, topic)
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        partitions = client.list_topics(name, timeout=30).topics[name].partitions
        ends = [TopicPartition(name, partition, OFFSET_END) for partition in partitions]
        for done in client.delete_records(ends).values():
            done.result(30)

    def let_through(self, topic: str, bytes_max: int) -> None:
        """Have Kafka refuse longer batches of records on a topic."""
        changed = ConfigEntry(
            "max.message.bytes",
            str(bytes_max),
            incremental_operation=AlterConfigOpType.SET,
        )
        resource = ConfigResource(
            ResourceType.TOPIC, topic_name(self.name, topic), incremental_configs=[changed]
        )
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        for done in client.incremental_alter_configs([resource]).values():
            done.result(30)

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def write(self, *entities: Entity) -> None:
        """Write entities to the StateContext."""
        for entity in entities:
            mutation = Mutation("Changed", entity.key, codec.encode(entity), entity)
            self.put(STATECONTEXT, Event(mutation, TxnId(1, 1), 0, 1), key=entity.key)
        self.flush()

    def bucket(self, name: str = BUCKET, vbuckets: int = VBUCKETS, **settings: Any) -> Streams:
        """Make a bucket with these settings of its timestamps."""
        self.write(Bucket(name, vbuckets), Setting(f"timestamps/{name}", json.dumps(settings)))
        return Streams(self, name, vbuckets)

    def tick(self, at_ms: int, shard: BucketShard = WHOLE) -> None:
        self.put(TICK, Tick(at_ms, 1, shard=shard.name))
        self.flush()

    # -- what came of it ---------------------------------------------------------------------

    def read(self, topic: str) -> list[Any]:
        """Return the decoded records of partition 0, as far as they are committed."""
        found = read_partition(self.servers, topic_name(self.name, topic))
        return [codec.decode(value_of(message)) for message in found if message.value()]

    def history(self, bucket: str = BUCKET) -> list[StabilityTimestamp]:
        return [one for one in self.read(STABILITY_HISTORY) if one.bucket == bucket]

    def stability(self, bucket: str = BUCKET) -> StabilityTimestamp | None:
        """Return the last stability timestamp that stands for itself."""
        found = [one for one in self.read(STABILITY) if getattr(one, "bucket", "") == bucket]
        return found[-1] if found else None

    def dead_letters(self) -> list[DeadLetter]:
        return self.read(DEAD_LETTER)

    def progress(self) -> TimestampProgress | None:
        found = [r for r in self.read(TIMESTAMP_STATE) if isinstance(r, TimestampProgress)]
        return found[-1] if found else None

    def states(self) -> dict[str, TimestampState]:
        kept = self.read(TIMESTAMP_STATE)
        return {one.bucket: one for one in kept if isinstance(one, TimestampState)}

    def reaches(self, seqno: int, bucket: str = BUCKET) -> None:
        """Wait until the stability timestamp has this seqno everywhere, or more."""

        def reached() -> bool:
            last = self.stability(bucket)
            return last is not None and min(seqnos(last)) >= seqno

        wait_until(reached, f"{bucket} is stable at {seqno}", READY_S)


class Streams:
    """The maintenance streams of one bucket, over one connection at a time."""

    def __init__(self, topics: Topics, bucket: str, vbuckets: int) -> None:
        self.topics = topics
        self.bucket = bucket
        self.vbuckets = vbuckets
        self.number = 0
        self.connection = 0
        self.ordinal = 0
        self.seqno = 0

    def begin(self, encode: Callable[[StreamBegin], bytes] = codec.encode) -> Streams:
        """Begin all streams on a new connection of a new generation."""
        self.number += 1
        self.connection = zlib.crc32(f"{self.bucket} {self.number}".encode())
        self.ordinal = 0
        for vbucket in range(self.vbuckets):
            vbuuid = _vbuuid(vbucket)
            log = FailoverLog(self.bucket, vbucket, (FailoverBranch(vbuuid, 0),), 1)
            self._put(FAILOVER_LOG, vbucket, log)
            begin = StreamBegin(
                bucket=self.bucket,
                vbucket=vbucket,
                kind=MAINTENANCE,
                projector=0,
                connection=self.connection,
                ordinal=self._count(),
                vbuuid=vbuuid,
                seqno=self.seqno,
                at_ms=1,
                number=self.number,
            )
            self._put(STREAM_BEGIN, vbucket, encode(begin))
        self.topics.flush()
        return self

    def sync(self, seqno: int) -> Streams:
        """Say of every vbucket that everything up to `seqno` was sent."""
        self.seqno = seqno
        for vbucket in range(self.vbuckets):
            self._put(SYNC, vbucket, self.a_sync(vbucket, seqno))
        self.topics.flush()
        return self

    def sync_together(self, seqno: int) -> Streams:
        """Say the same of every vbucket in one record."""
        self.seqno = seqno
        vector = make_sync_vector(
            range(self.vbuckets),
            bucket=self.bucket,
            connection=self.connection,
            ordinal=self._count(),
            vbuuids=[_vbuuid(vbucket) for vbucket in range(self.vbuckets)],
            seqno=seqno,
            at_ms=1,
        )
        self.topics.put(SYNC, vector, self.connection % STREAM_PARTITIONS, self.bucket)
        self.topics.flush()
        return self

    def a_sync(self, vbucket: int, seqno: int) -> Sync:
        return make_sync(
            vbucket,
            bucket=self.bucket,
            connection=self.connection,
            ordinal=self._count(),
            vbuuid=_vbuuid(vbucket),
            seqno=seqno,
            at_ms=1,
        )

    def end(self) -> None:
        """End all streams, and the connection."""
        for vbucket in range(self.vbuckets):
            self._put(STREAM_END, vbucket, self._end(vbucket))
        closed = ConnectionClosed(
            self.bucket, MAINTENANCE, 0, self.connection, self._count(), "test", 1
        )
        self._put(STREAM_END, 0, closed)
        self.topics.flush()

    def lose(self, vbucket: int, seqno: int) -> None:
        """Say that a vbucket has lost what came after a seqno, and went on from there."""
        newer = _vbuuid(vbucket) - 1_000
        branches = (FailoverBranch(newer, seqno), FailoverBranch(_vbuuid(vbucket), 0))
        self._put(FAILOVER_LOG, vbucket, FailoverLog(self.bucket, vbucket, branches, 2))
        sync = replace(self.a_sync(vbucket, seqno + 1), vbuuid=newer)
        self._put(SYNC, vbucket, sync)
        self.topics.flush()

    def leave(self, vbucket: int) -> None:
        """End the stream of one vbucket; nobody begins another one."""
        self._put(STREAM_END, vbucket, self._end(vbucket))
        self.topics.flush()

    def hold(self, indexer: int, seqno: int) -> None:
        """Have an indexer say that it holds everything up to a seqno."""
        vector = Vector(map(_vbuuid, range(self.vbuckets)), [seqno] * self.vbuckets)
        beat = make_watermarks(indexer, vector, bucket=self.bucket, indexes=(7,), free=1_000)
        self._put(HW, 0, beat)

    def ask(self, number: int, participants: tuple[int, ...]) -> None:
        """Ask where the streams would have to begin again."""
        question = RestartRequested(
            self.bucket, number, self.vbuckets, participants, "a question", 1
        )
        self.topics.put(RESTART_REQUEST, question, key=self.bucket)
        self.topics.flush()

    def _end(self, vbucket: int) -> StreamEnd:
        return StreamEnd(
            bucket=self.bucket,
            vbucket=vbucket,
            kind=MAINTENANCE,
            projector=0,
            connection=self.connection,
            ordinal=self._count(),
            vbuuid=_vbuuid(vbucket),
            seqno=self.seqno,
            reason="test",
            at_ms=1,
        )

    def _count(self) -> int:
        self.ordinal += 1
        return self.ordinal - 1

    def _put(self, topic: str, vbucket: int, record: Any) -> None:
        key = f"{self.bucket}/{vbucket}"
        self.topics.put(topic, record, vbucket % STREAM_PARTITIONS, key)


def _vbuuid(vbucket: int) -> int:
    return 2**64 - 1 - vbucket


def seqnos(timestamp: StabilityTimestamp) -> list[int]:
    found: list[int] = np.frombuffer(timestamp.seqnos, "<u8").tolist()
    return found


def checked(history: Sequence[StabilityTimestamp]) -> None:
    """Check the laws of a bucket's stability timestamps: numbered without gap, never going back."""
    assert [one.number for one in history] == list(range(1, len(history) + 1))
    for before, after in itertools.pairwise(history):
        assert after.vbuuids == before.vbuuids
        assert all(b <= a for b, a in zip(seqnos(before), seqnos(after), strict=True))
        assert after.seqnos != before.seqnos, "nothing has advanced"


def a_long_input(topics: Topics) -> None:
    """Write what makes many small batches, and an output of every kind.

    Connections change, records are bad, questions are asked, heartbeats are averaged; one bucket
    loses mutations, and the owners of others.
    """
    travel = topics.bucket("travel", period_ms=1_000).begin()
    other = topics.bucket("other", period_ms=2_000, algorithm="heartbeat").begin()
    sick = topics.bucket("sick", 4, begin_held_ms=1_000, sync_missing_ms=2_000).begin()
    for fold_batch in range(1, 13):
        travel.sync(10 * fold_batch)
        other.sync(10 * fold_batch - 3).sync_together(10 * fold_batch)
        for indexer in (1, 2):
            other.hold(indexer, 10 * fold_batch - indexer)
        topics.put(SYNC, b"garbage %d" % fold_batch, fold_batch % 4)
        if fold_batch == 2:
            sick.sync(10)
        if fold_batch == 3:
            sick.leave(1)
        if fold_batch == 8:
            sick.lose(0, 5)
        if fold_batch == 6:
            travel.end()
            travel.begin()
        if fold_batch % 4 == 0:
            travel.ask(fold_batch, ())
        topics.tick(NOW_MS + fold_batch * 700)


def outcome(topics: Topics) -> Any:
    """Return all that came of an input, without what is different each time by its nature."""
    letters = [replace(letter, topic="") for letter in topics.dead_letters()]
    states = {name: state.state for name, state in topics.states().items()}
    progress = topics.progress()
    assert progress is not None
    return (
        topics.history("travel"),
        topics.history("other"),
        topics.read(RESTART),
        letters,
        sorted(states.items()),
        (progress.now_ms, [(o.partition, o.offset) for o in progress.offsets]),
    )


def read_through(spark: SparkSession, topics: Topics, folder: Path, **more: Any) -> Application:
    """Have all that is there computed, by an application in this process, without ticks."""
    options = Options(
        cluster=topics.name,
        bootstrap_servers=topics.servers,
        data_dir=folder,
        tick_ms=0,
        until_read=True,
        **more,
    )
    made = Application(options, threading.Event(), threading.Event())
    made.compute(spark)
    return made


class Timestamps(Child):
    """The application as a process of its own."""

    def __init__(self, topics: Topics, folder: Path, name: str = "timestamps") -> None:
        super().__init__(name, folder / name, folder)
        self.topics = topics
        self.options: tuple[str, ...] = ()
        self.ready_file = folder / f"{name}.ready"

    def argv(self) -> list[str]:
        return [
            *(sys.executable, "-m", "streaming", "timestamps", "--cluster", self.topics.name),
            *("--bootstrap-servers", self.topics.servers, "--data-dir", str(self.folder)),
            *("--ready-file", str(self.ready_file), *self.options),
        ]

    def begin(self, *options: str) -> None:
        """Start it with these options more."""
        self.options = options
        self.ready_file.unlink(missing_ok=True)
        self.start()

    def ready(self) -> None:
        """Wait for its first batch."""

        def there() -> bool:
            assert self.runs, self.said[-2000:]
            return self.ready_file.exists()

        wait_until(there, f"{self.name} has finished a batch", READY_S)


def jvm_of(application: Child) -> psutil.Process:
    """Return the JVM of an application on Spark. StopIteration: it has none."""
    children = psutil.Process(application.pid).children(recursive=True)
    return next(child for child in children if child.name() == "java")
