"""What timestamps on Spark cost: to catch up, to be fresh, to do nothing, to start again, to grow.

Each starts the application as a process on a broker of its own, and writes what projectors and
indexers would. `BENCH_SYNCS` is how many SYNCs `catch_up` reads, eight million if it is not set.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.commit import quantile_ms, summary
from coordinator import codec
from coordinator.core.model.entities import Bucket, Entity, Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.stream_records import (
    MAINTENANCE,
    FailoverBranch,
    FailoverLog,
    HwHeartbeat,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
    Sync,
)
from coordinator.core.model.types import TxnId
from coordinator.core.timestamps.bucket_state import TimestampState
from coordinator.core.timestamps.progress import TimestampProgress
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import (
    FAILOVER_LOG,
    HW,
    STABILITY,
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

SYNCS = int(os.environ.get("BENCH_SYNCS", "8000000"))
CONTROL = 0.01
"""The part of all records that are BEGIN and END."""

WAIT_S = 180.0
WARM_UP_S = 15.0
FRESH_S, ROUNDS = 40.0, 2
FRESH_PERIOD_S = 0.05
IDLE_AFTER_S, IDLE_S = 90.0, 40.0
"""A JVM that does little takes minutes to compile what it does."""

KILLS = 5
BATCH = 400_000
"""Records of the first batch: of the application's, if nobody says otherwise."""

TRIGGER_MS = "100"
"""Of the application, if nobody says otherwise."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a folder that is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """Run a broker; yield its address."""
    with scratch() as folder, Broker(folder) as running:
        yield running.bootstrap_servers


# -- what is written -------------------------------------------------------------------------------


@dataclass
class Owner:
    """One projector's connection, and how many records it has written."""

    projector: int
    connection: int
    ordinal: int = 0

    def count(self) -> int:
        self.ordinal += 1
        return self.ordinal - 1


class Load:
    """The topics of a cluster, and two projectors whose connections share each bucket."""

    def __init__(self, servers: str, name: str, buckets: int, vbuckets: int) -> None:
        self.servers, self.name = servers, name
        self.buckets, self.vbuckets = [f"b{n}" for n in range(buckets)], vbuckets
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "batch.num.messages": 10_000,
                "compression.type": "lz4",
                "log_level": 2,
                "enable.idempotence": True,
            }
        )
        self.records = 0
        self.seqno = 0
        self._owners = {
            bucket: [Owner(n, 1_000 * (place + 1) + n) for n in range(2)]
            for place, bucket in enumerate(self.buckets)
        }
        self._said: dict[str, dict[int, int]] = {bucket: {} for bucket in self.buckets}
        self._owned = {bucket: [v % 2 for v in range(vbuckets)] for bucket in self.buckets}
        ensure_topics(servers, name, durable=False)

    def begin(self, period_ms: int = 1_000) -> None:
        """Make the buckets, and begin all their streams."""
        for bucket in self.buckets:
            settings = {"period_ms": period_ms, "sync_missing_ms": 3_600_000}
            self._entity(Bucket(bucket, self.vbuckets))
            self._entity(Setting(f"timestamps/{bucket}", json.dumps(settings)))
            for vbucket in range(self.vbuckets):
                log = FailoverLog(bucket, vbucket, (FailoverBranch(vbuuid_of(vbucket), 0),), 1)
                self._put(FAILOVER_LOG, bucket, vbucket, log)
                self._begin(bucket, vbucket)
        self.flush()

    def syncs(self, count: int, move_every: int = 0) -> None:
        """Write SYNCs of all buckets in turn; every so many, a vbucket changes its connection."""
        written = 0
        while written < count:
            self.seqno += 1
            for vbucket in range(self.vbuckets):
                for bucket in self.buckets:
                    if written == count:
                        return
                    written += 1
                    if move_every and not written % move_every:
                        self._move(bucket, vbucket)
                    self._sync(bucket, vbucket, self.seqno)

    def a_sync(self, seqno: int) -> None:
        """Write one SYNC of each bucket's first vbucket."""
        for bucket in self.buckets:
            self._sync(bucket, 0, seqno)
        self._producer.flush(10)

    def heartbeats(self, indexers: int) -> None:
        """Write one high watermark of each indexer and bucket."""
        vbuuids = np.array([vbuuid_of(v) for v in range(self.vbuckets)], "<u8").tobytes()
        seqnos = np.full(self.vbuckets, self.seqno, "<u8").tobytes()
        for bucket in self.buckets:
            for indexer in range(indexers):
                heartbeat = HwHeartbeat(
                    indexer=indexer,
                    incarnation=1,
                    bucket=bucket,
                    indexes=(1,),
                    vbuuids=vbuuids,
                    seqnos=seqnos,
                    last_persistence=0,
                    last_stability=0,
                    mutation_queue=0,
                    free=1_000,
                    builds=(),
                    at_ms=int(time.time() * 1000),
                )
                self._put(HW, bucket, indexer, heartbeat)
        self._producer.flush(10)

    @property
    def sums(self) -> dict[str, int]:
        """Return the sum of all seqnos that were said last, by bucket."""
        return {bucket: sum(said.values()) for bucket, said in self._said.items()}

    def flush(self) -> None:
        if self._producer.flush(60):
            raise RuntimeError("the broker does not take the load")

    def _sync(self, bucket: str, vbucket: int, seqno: int) -> None:
        self._said[bucket][vbucket] = seqno
        owner = self._owners[bucket][self._owned[bucket][vbucket]]
        sync = Sync(
            bucket=bucket,
            vbucket=vbucket,
            projector=owner.projector,
            connection=owner.connection,
            ordinal=owner.count(),
            vbuuid=vbuuid_of(vbucket),
            seqno=seqno,
            at_ms=1,
        )
        self._put(SYNC, bucket, vbucket, sync)

    def _move(self, bucket: str, vbucket: int) -> None:
        owner = self._owners[bucket][self._owned[bucket][vbucket]]
        end = StreamEnd(
            bucket=bucket,
            vbucket=vbucket,
            kind=MAINTENANCE,
            projector=owner.projector,
            connection=owner.connection,
            ordinal=owner.count(),
            vbuuid=vbuuid_of(vbucket),
            seqno=self.seqno,
            reason="moved",
            at_ms=1,
        )
        self._put(STREAM_END, bucket, vbucket, end)
        self._owned[bucket][vbucket] ^= 1
        self._begin(bucket, vbucket)

    def _begin(self, bucket: str, vbucket: int) -> None:
        owner = self._owners[bucket][self._owned[bucket][vbucket]]
        begin = StreamBegin(
            bucket=bucket,
            vbucket=vbucket,
            kind=MAINTENANCE,
            projector=owner.projector,
            connection=owner.connection,
            ordinal=owner.count(),
            vbuuid=vbuuid_of(vbucket),
            seqno=self.seqno,
            at_ms=1,
            number=1,
        )
        self._put(STREAM_BEGIN, bucket, vbucket, begin)

    def _entity(self, entity: Entity) -> None:
        mutation = Mutation("Changed", entity.key, codec.encode(entity), entity)
        event = codec.encode(Event(mutation, TxnId(1, 1), 0, 1))
        self._producer.produce(topic_name(self.name, STATECONTEXT), event, entity.key, partition=0)

    def _put(self, topic: str, bucket: str, vbucket: int, record: Any) -> None:
        value, name = codec.encode(record), topic_name(self.name, topic)
        while True:
            try:
                self._producer.produce(
                    name, value, f"{bucket}/{vbucket}", partition=vbucket % STREAM_PARTITIONS
                )
                break
            except BufferError:
                self._producer.poll(0.1)
        self.records += 1
        if not self.records % 1_000:
            self._producer.poll(0)


def vbuuid_of(vbucket: int) -> int:
    return 2**63 + vbucket


# -- what runs -------------------------------------------------------------------------------------


class Process:
    """A process of ours with its JVM, in a group of its own."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.began_s = time.time()
        self._log = (folder / "log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._folder = folder

    def check(self) -> None:
        """Raise RuntimeError with what it said if it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"it ended: {(self._folder / 'log').read_text()[-2000:]}")

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended. Raises RuntimeError if that was no success."""
        if self._process.wait(timeout_s):
            raise RuntimeError(f"it failed: {(self._folder / 'log').read_text()[-2000:]}")

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of each process of it, up to now."""
        found: dict[str, float] = {}
        for one in self.processes():
            times = one.cpu_times()
            found[one.name()] = found.get(one.name(), 0.0) + times.user + times.system
        return found

    def rss_mib(self) -> dict[str, float]:
        return {one.name(): round(one.memory_info().rss / 2**20) for one in self.processes()}

    def processes(self) -> list[psutil.Process]:
        """Return this process, and all that it has started."""
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[Process]:
    """Run a process; it is killed when the block ends."""
    process = Process(command, folder)
    try:
        yield process
    finally:
        process.kill()


ONE_EACH = ("--offsets-max", "400000", "--executors-from", "200000")
"""What is written here is small: a record for each vbucket, as older projectors have it."""


def application(
    load: Load, folder: Path, *options: str
) -> contextlib.AbstractContextManager[Process]:
    """Run the application; it is killed when the block ends."""
    command = ["-m", "streaming", "timestamps", "--cluster", load.name]
    command += ["--bootstrap-servers", load.servers, "--data-dir", str(folder), *ONE_EACH, *options]
    return started(command, folder)


Run = Callable[[Load, Path], contextlib.AbstractContextManager[Process]]


def stateful_query(load: Load, folder: Path) -> contextlib.AbstractContextManager[Process]:
    """Run the same fold as state of Spark; it is killed when the block ends."""
    command = ["-m", "benchmarks.stateful_query", load.servers, load.name, str(load.vbuckets)]
    command += [topic_name(load.name, STABILITY), TRIGGER_MS, str(folder)]
    return started(command, folder)


# -- what is read ----------------------------------------------------------------------------------


class Reader:
    """Follows partitions of one topic; each record with the time at which it was there."""

    def __init__(self, servers: str, topic: str, partitions: int = 1, begin: int = 0) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5,
                "log_level": 2,
            }
        )
        self._consumer.assign([TopicPartition(topic, n, begin) for n in range(partitions)])

    def end(self, topic: str) -> int:
        """Return where partition 0 of a topic ends."""
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1])

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, timeout_s: float) -> list[tuple[float, Message]]:
        """Return what there is, after waiting for the first record for so long."""
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        now_s = time.time()
        found = [first, *self._consumer.consume(10_000, 0)]
        return [(now_s, message) for message in found if message.error() is None]

    def until(
        self, process: Process, done: Callable[[Any], bool]
    ) -> tuple[float, list[tuple[float, Any]]]:
        """Read until a record is such; return when that was written, and all with their times."""
        seen = []
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            process.check()
            for _, message in self.read(0.5):
                record = codec.decode(message.value() or b"")
                at_s = message.timestamp()[1] / 1000
                seen.append((at_s, record))
                if done(record):
                    return at_s, seen
        raise RuntimeError("it takes too long")


# -- measurements ----------------------------------------------------------------------------------


def catch_up(
    servers: str, syncs: int = SYNCS, buckets: int = 4, vbuckets: int = 1_024, *options: str
) -> dict[str, Any]:
    """Write records first; then time the application from its first transaction to its last."""
    load = Load(servers, f"catchup{buckets}x{vbuckets}{time.time_ns() % 10**6}", buckets, vbuckets)
    load.begin()
    load.syncs(syncs, move_every=round(2 / CONTROL))
    load.flush()
    topic = topic_name(load.name, TIMESTAMP_STATE)
    with scratch() as folder, application(load, folder, *options) as running:
        with Reader(servers, topic) as reader:
            ended_s, seen = reader.until(running, lambda r: is_through(r, load.records))
        rss = running.rss_mib()
        cpu = running.cpu_s()
    turns = [(at_s, read_of(r)) for at_s, r in seen if isinstance(r, TimestampProgress)]
    states = {r.bucket: len(r.state) for _, r in seen if isinstance(r, TimestampState)}
    (first_s, first), (last_s, last) = turns[0], turns[-1]
    return {
        "records": load.records,
        "buckets": buckets,
        "vbuckets": vbuckets,
        "records_per_second": round((last - first) / (last_s - first_s)) if last > first else None,
        "with_its_start_per_second": round(last / (ended_s - running.began_s)),
        "first_transaction_s": round(first_s - running.began_s, 1),
        "transactions": [[round(at_s - running.began_s, 2), read] for at_s, read in turns][:12],
        "state_bytes_per_vbucket": round(sum(states.values()) / buckets / vbuckets, 1),
        "rss_mib": rss,
        "cpu_s": {name: round(seconds, 1) for name, seconds in cpu.items()},
    }


def read_of(progress: TimestampProgress) -> int:
    """Return how many records of streams were read."""
    topics = (SYNC, STREAM_BEGIN, STREAM_END, FAILOVER_LOG)
    return sum(
        one.offset for one in progress.offsets if one.topic.endswith(tuple(f".{t}" for t in topics))
    )


def is_through(record: Any, records: int) -> bool:
    return isinstance(record, TimestampProgress) and read_of(record) >= records


def freshness(servers: str) -> dict[str, Any]:
    """A SYNC until a stability timestamp has it, beyond the wait for the period; against a copy.

    The application and the bare query take turns, each in a process of its own.
    """
    ours: list[float] = []
    bare: list[float] = []
    for number in range(ROUNDS):
        bare += _bare(servers, f"bare{number}{time.time_ns() % 10**6}")
        ours += _fresh(servers, f"fresh{number}{time.time_ns() % 10**6}")
    return {
        "syncs": len(ours),
        "ours": summary(ours),
        "bare": summary(bare),
        "ratio_p50": round(quantile_ms(ours, 0.5) / quantile_ms(bare, 0.5), 2),
        "ratio_p99": round(quantile_ms(ours, 0.99) / quantile_ms(bare, 0.99), 2),
    }


def _fresh(servers: str, name: str, run: Run = application) -> list[float]:
    """Return seconds from when a SYNC could be promoted until that could be read."""
    load = Load(servers, name, 4, 64)
    load.begin()
    topic = topic_name(name, STABILITY)
    with (
        scratch() as folder,
        run(load, folder) as running,
        Reader(servers, topic) as reader,
    ):
        load.a_sync(1)
        reader.until(running, lambda r: isinstance(r, StabilityTimestamp))
        written, read = _follow(
            reader, load.a_sync, lambda m: _stable(codec.decode(m.value() or b""))
        )
    due = sorted({tick_s for _, _, tick_s in read})
    return _beyond(written, [(at_s, seqno) for at_s, seqno, _ in read], due)


def _stable(record: Any) -> tuple[int, float] | None:
    if not isinstance(record, StabilityTimestamp) or record.bucket != "b0":
        return None
    return int(np.frombuffer(record.seqnos, "<u8")[0]), record.at_ms / 1000


def _beyond(
    written: Sequence[tuple[float, int]], read: Sequence[tuple[float, int]], due: Sequence[float]
) -> list[float]:
    """Return for each SYNC the time from the first period that ended after it until it was read."""
    found = []
    for at_s, seqno in written:
        ends_s = next((end_s for end_s in due if end_s >= at_s), None)
        there_s = next((there_s for there_s, stable in read if stable >= seqno), None)
        if ends_s is not None and there_s is not None:
            found.append(there_s - ends_s)
    return found


def _bare(servers: str, name: str) -> list[float]:
    """Return seconds from when a SYNC was written until its copy could be read."""
    load = Load(servers, name, 4, 64)
    source, target = topic_name(name, SYNC), topic_name(name, TICK)
    command = ["-m", "benchmarks.bare_query", servers, source, target, str(STREAM_PARTITIONS)]
    with (
        scratch() as folder,
        started([*command, TRIGGER_MS, str(folder)], folder) as running,
        Reader(servers, target) as reader,
    ):
        load.a_sync(1)
        reader.until(running, lambda r: isinstance(r, Sync))
        written, read = _follow(
            reader, load.a_sync, lambda m: _copied(codec.decode(m.value() or b""))
        )
    there = {seqno: at_s for at_s, seqno, _ in read}
    return [there[seqno] - at_s for at_s, seqno in written if seqno in there]


def _copied(record: Any) -> tuple[int, float] | None:
    return (record.seqno, 0.0) if record.bucket == "b0" else None


def _follow(
    reader: Reader,
    write: Callable[[int], None],
    wanted: Callable[[Message], tuple[int, float] | None],
) -> tuple[list[tuple[float, int]], list[tuple[float, int, float]]]:
    """Write all the time and read what comes of it; return both, after a time to warm up."""
    written: list[tuple[float, int]] = []
    read: list[tuple[float, int, float]] = []
    stopping = threading.Event()

    def run() -> None:
        seqno = 2
        while not stopping.wait(FRESH_PERIOD_S):
            written.append((time.time(), seqno))
            write(seqno)
            seqno += 1

    writer = threading.Thread(target=run)
    writer.start()
    began_s = time.time()
    while time.time() < began_s + WARM_UP_S + FRESH_S:
        for at_s, message in reader.read(0.2):
            found = wanted(message)
            if found is not None:
                read.append((at_s, *found))
    stopping.set()
    writer.join()
    return [one for one in written if one[0] > began_s + WARM_UP_S], read


def stateful(servers: str, syncs: int = 2_000_000) -> dict[str, Any]:
    """What was not chosen: `transformWithStateInPandas`, beside the application.

    Raises SystemExit without the packages that only this needs.
    """
    missing = [name for name in ("pandas", "google.protobuf") if not _is_installed(name)]
    if missing:
        raise SystemExit("stateful needs more: .venv/bin/pip install 'pandas<3' protobuf")
    found = {}
    runs: dict[str, Run] = {"application": application, "stateful": stateful_query}
    for name, run in runs.items():
        fresh = _fresh(servers, f"{name}{time.time_ns() % 10**6}", run)
        found[name] = {**summary(fresh), "records_per_second": _stable_rate(servers, syncs, run)}
    return found


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _stable_rate(servers: str, syncs: int, run: Run) -> int:
    """Return records a second from the first stability timestamp to the one that has all."""
    load = Load(servers, f"rate{time.time_ns() % 10**6}", 4, 1_024)
    load.begin()
    load.syncs(syncs, move_every=round(2 / CONTROL))
    load.flush()
    with (
        scratch() as folder,
        run(load, folder) as running,
        Reader(servers, topic_name(load.name, STABILITY)) as reader,
    ):
        done: set[str] = set()

        def is_last(record: Any) -> bool:
            if np.frombuffer(record.seqnos, "<u8").sum() >= load.sums[record.bucket]:
                done.add(record.bucket)
            return len(done) == len(load.buckets)

        last_s, seen = reader.until(running, is_last)
    first_s = seen[0][0]
    return round((load.records - BATCH) / (last_s - first_s))


def idle(servers: str, buckets: int = 1, vbuckets: int = 64) -> dict[str, Any]:
    """Streams at which nothing happens: three indexers' heartbeats, and the application's ticks."""
    load = Load(servers, f"idle{buckets}{time.time_ns() % 10**6}", buckets, vbuckets)
    load.begin()
    stopping = threading.Event()

    def run() -> None:
        while not stopping.wait(0.5):
            load.heartbeats(3)

    writer = threading.Thread(target=run)
    writer.start()
    try:
        with scratch() as folder, application(load, folder) as running:
            with Reader(servers, topic_name(load.name, STABILITY)) as reader:
                load.a_sync(1)
                reader.until(running, lambda r: isinstance(r, StabilityTimestamp))
            time.sleep(IDLE_AFTER_S)
            before = running.cpu_s()
            time.sleep(IDLE_S)
            after = running.cpu_s()
            rss = running.rss_mib()
    finally:
        stopping.set()
        writer.join()
    cores = {name: round((after[name] - before[name]) / IDLE_S, 3) for name in before}
    return {"buckets": buckets, "cores": cores, "all": round(sum(cores.values()), 3), "rss": rss}


def restart(servers: str, kills: int = KILLS) -> dict[str, Any]:
    """SIGKILL; seconds from the next start to the first stability timestamp that is new."""
    load = Load(servers, f"restart{time.time_ns() % 10**6}", 1, 64)
    load.begin()
    took = []
    with scratch() as folder, Reader(servers, topic_name(load.name, STABILITY)) as reader:
        for number in range(1, kills + 2):
            with application(load, folder) as running:
                load.a_sync(number)
                wanted = number

                def is_new(record: Any, wanted: int = wanted) -> bool:
                    found = _stable(record)
                    return found is not None and found[0] >= wanted

                at_s, _ = reader.until(running, is_new)
                took.append(at_s - running.began_s)
    return {
        "first_start_s": round(took[0], 1),
        "p50_s": round(statistics.median(took[1:]), 1),
        "max_s": round(max(took[1:]), 1),
    }


def growth(servers: str, syncs: int = 400_000) -> list[dict[str, Any]]:
    """How the costs grow with buckets and vbuckets."""
    found = []
    for buckets, vbuckets in ((1, 64), (1, 1_024), (16, 64), (128, 64)):
        caught = catch_up(servers, syncs, buckets, vbuckets, "--offsets-max", "100000")
        del caught["transactions"], caught["cpu_s"]
        still = idle(servers, buckets, vbuckets)
        found.append({**caught, "idle_cores": still["all"]})
    return found
