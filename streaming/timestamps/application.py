"""The application that computes timestamps: one Spark query, and what holds it up.

Spark decides which records make a batch, and reads them; `rows` reduces them, in the executors if
they are many; `query_state.fold_batch` computes; `state_store` writes outputs and state in one
transaction. Each batch counts once, whatever is killed when:

- Where to go on is in the state, which is written with the outputs. Each query begins there, with a
  checkpoint of its own that nobody needs afterwards: Spark never hands a batch over again.
- A batch that does not begin where the state ends is not used, and a new query begins there.
- Records that were deleted before they were read are told of, and reading goes on.
- A transaction whose outcome is in doubt is settled by reading, and written again as a whole.

What fails is begun again in this process; only without a JVM, or where nothing finishes for long,
does the process end, to be started again.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaException

from coordinator.core.model.records import BucketCurrent, Event, StreamOwner, TimestampsHeartbeat
from coordinator.core.model.types import Cas, Offset
from coordinator.core.timestamps.board import total
from coordinator.core.timestamps.bucket_state import BucketState
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.kafka.log_reader import read_events
from coordinator.kafka.readers import BEGINNING
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import (
    STATECONTEXT,
    topic_name,
)
from coordinator.runtime.threads import Threads
from streaming.spark.crash_points import Crasher
from streaming.spark.executors import executors_watched
from streaming.spark.kafka_source import bounds
from streaming.spark.queries import (
    FAILURES_MAX,
    LostError,
    StoppedError,
    end_query,
    end_session,
    error_of,
    first_line,
    unpaced,
    wait_for,
)
from streaming.spark.session import HEAP_MB, SparkOptions, start, warm_up
from streaming.stability.fold import owners
from streaming.timestamps.inputs import INPUTS, QUIET
from streaming.timestamps.lookout import Lookout
from streaming.timestamps.metrics import Metrics
from streaming.timestamps.query_state import (
    BatchResult,
    QueryState,
    fold_batch,
    forgotten,
    jumps,
    next_due_ms,
    with_buckets,
)
from streaming.timestamps.rows import RECORDS_DDL, Rows, partials, rows_of
from streaming.timestamps.source import rows
from streaming.timestamps.state_store import (
    OUTPUTS,
    DoubtError,
    FencedError,
    RefusedError,
    StateStore,
)
from streaming.timestamps.ticker import Ticker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CALL_TIMEOUT_S = 5.0
PAUSE_S = 0.5
SETTLE_S = 30.0
"""So long a transaction is written again before the query is given up."""

QUIET_PAUSE_S, QUIET_PAUSE_S_MAX = 0.1, 3.2
"""After a batch in which nothing has happened the next one waits, then twice as long, and so on: a
batch of ticks alone costs as much as any. It waits no longer than until a limit or a period is
over."""

HELD_S, SENT_S = 0.06, 0.015
"""A batch waits for a tick that comes so soon, and for so long after it, until Kafka has it. One
that just misses it would tell a whole batch later what the tick ends."""

UNSURE_PAUSE_S_MAX = 1.0
"""So long it waits at most where what ends a pause is not known for sure."""

LOOKED_OUT_S = 0.5
"""In a pause that is longer than this, something that comes ends it."""


class AnotherError(Exception):
    """Another application computes the timestamps of this cluster."""


class GapError(Exception):
    """Spark's batch does not follow on what the state has."""


EXECUTORS_FROM, OFFSETS_MAX = 5_000, 40_000
"""From so many records on a batch is reduced in the executors, and it has at most so many. A record
may be a vector of 18 KB: the driver has room for a batch that it reads itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    cluster: str
    bootstrap_servers: str
    data_dir: Path
    spark_master: str = "local[2]"
    trigger_ms: int = 100
    tick_ms: int = 250
    offsets_max: int = OFFSETS_MAX
    executors_from: int = EXECUTORS_FROM
    """A batch that is expected to have so many records is reduced in the executors."""
    partitions_min: int = 0
    """Have Spark divide a batch among so many tasks at least; 0: one for each partition."""
    heap_mb: int = HEAP_MB
    ready_file: Path | None = None
    metrics_port: int | None = None
    """Serve metrics on loopback at this port."""
    spark_conf: Mapping[str, str] | None = None
    crash_at: str = ""
    shard: BucketShard = WHOLE
    """Which of the buckets it has."""
    until_read: bool = False
    """End when all that is there now was read."""


class Seen(NamedTuple):
    """What a heartbeat says of a bucket's state."""

    state: BucketState
    current: BucketCurrent
    owners: tuple[StreamOwner, ...]


def _steady_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def look(state: BucketState) -> Seen:
    """Return what to say of a state."""
    found = tuple(
        StreamOwner(state.bucket, o.connection, o.projector, o.number, len(o.vbuckets))
        for o in owners(state)
    )
    return Seen(state, BucketCurrent(state.bucket, str(total(state.current.seqnos))), found)


class Application:
    """One life of the application. `run` returns when it was told to stop.

    Large because it puts query, reader, ticker and producer together and takes them apart
    again.
    """

    def __init__(self, options: Options, stopping: threading.Event, wake: threading.Event) -> None:
        """`wake` is set with `stopping`, and also when the query ends."""
        self.options = options
        self._stopping = stopping
        self._wake = wake
        self._status_log = StatusLog("timestamps")
        crasher = Crasher(options.crash_at)
        shard = options.shard
        self._state_store = StateStore(options.bootstrap_servers, options.cluster, crasher, shard)
        self._query_state = QueryState(options.cluster, shard=shard)
        self._incarnation = secrets.randbits(63)
        self._threads = Threads(self._end)
        self._ticker = Ticker(
            options.bootstrap_servers,
            options.cluster,
            self._incarnation,
            options.tick_ms,
            wall_ms,
            _steady_ms,
            self._heartbeat,
            self._status_log,
            self._threads,
            shard,
        )
        self._metrics = Metrics(lambda: self._query_state.published, wall_ms)
        self._lookout = Lookout(options.bootstrap_servers)
        self._watched: dict[tuple[str, int], int] = {}
        """The partitions to which nothing is written while nothing happens, and where reading has
        begun there."""
        self._called = False
        """Something has ended the last long pause, and no batch has had it yet."""
        self._seen: dict[str, Seen] = {}
        self._busy = threading.Lock()
        self._checkpoints = options.data_dir / "checkpoints"
        self._batches = self._expected = 0
        self._fault: BaseException | None = None
        self._failures = 0
        self._pause_s = QUIET_PAUSE_S
        self._returned_s = time.monotonic()
        """When the last batch was handed back to Spark."""
        self._sparks_s = 0.0
        """What Spark took between the two batches before."""
        self._ready = False

    def _end(self) -> None:
        """Stop: a thread has ended that is needed."""
        self._stopping.set()
        self._wake.set()

    # -- the life of it ----------------------------------------------------------------------

    def run(self) -> None:
        """Start Spark, and compute with it.

        Raises as `compute` does, and EmbeddedError, ThreadEndedError.
        """
        options = self.options
        spark = start(
            SparkOptions(
                f"{options.cluster}.timestamps",
                options.spark_master,
                options.data_dir,
                options.heap_mb,
                options.spark_conf or {},
            )
        )
        warm_up(spark)
        try:
            with executors_watched(spark, self._status_log):
                self.compute(spark)
            self._threads.check()
        finally:
            end_session(spark)

    def compute(self, spark: SparkSession) -> None:
        """Compute timestamps until told to stop.

        Raises AnotherError, LostError, RefusedError, UnreadableError.
        """
        if self.options.ready_file is not None:
            self.options.ready_file.unlink(missing_ok=True)
        shutil.rmtree(self._checkpoints, ignore_errors=True)  # Of a process that was killed.
        stop_serving = self._serve_metrics(spark)
        try:
            while not self._stopping.is_set():
                if self._run_query(spark):
                    return
                if self._failures >= FAILURES_MAX:
                    raise LostError(
                        f"{self._failures} attempts in a row have failed [attempts_failed]"
                    )
        finally:
            self._ticker.stop()
            self._state_store.close()
            self._lookout.close()
            stop_serving()

    def _serve_metrics(self, spark: SparkSession) -> Callable[[], None]:
        """Serve the metrics, if they are wanted; return what ends that."""
        port = self.options.metrics_port
        if port is None:
            return lambda: None
        try:
            stop = self._metrics.serve(port)
        except OSError as error:
            self._status_log.info(f"port {port}: {error.strerror}: no metrics [port_taken]")
            return lambda: None
        spark.streams.addListener(self._metrics.listener)
        return stop

    def _run_query(self, spark: SparkSession) -> bool:
        """Run a query until it ends; return whether it has read all that it was to read."""
        self._fault = None
        query = None
        try:
            starting = self._begin()
            if starting is None:
                return False
            busy = {topic_name(self.options.cluster, name) for name in QUIET}
            self._watched = {where: at for where, at in starting.items() if where[0] not in busy}
            query = self._start(spark, starting)
            self._status_log.resolved("Kafka")
            self._failures += 1
            self._ticker.switch(True)
            wait_for(query, self._stopping, self._wake)
        except KafkaException as error:
            self._status_log.problem("Kafka", str(error.args[0]))
            self._stopping.wait(PAUSE_S)
        finally:
            self._ticker.switch(False)
            if query is not None:
                end_query(query, self._busy)
                self._lookout.close()
                shutil.rmtree(self._checkpoints, ignore_errors=True)
        return query is not None and self._judge(query)

    def _begin(self) -> dict[tuple[str, int], int] | None:
        """Open the state store; return where a new query would begin, None if stopped."""
        options = self.options
        named = [topic_name(options.cluster, name) for name in INPUTS]
        wanted = [*named, *(topic_name(options.cluster, name) for name in OUTPUTS)]
        while (found := bounds(options.bootstrap_servers, wanted, CALL_TIMEOUT_S)) is None:
            where = f"the cluster {options.cluster} on {options.bootstrap_servers}"
            self._status_log.problem("topics", f"not all of {where} are there [no_cluster]")
            if self._stopping.wait(PAUSE_S):
                return None
        self._status_log.resolved("topics")
        self._ticker.announce()
        query_state = self._state_store.open()
        self._query_state = with_buckets(query_state, self._events_from(query_state.context.offset))
        return self._starting({w: b for w, b in found.items() if w[0] in named})

    def _events_from(self, offset: Offset) -> Iterator[Event]:
        """Yield what the StateContext has from an offset on, but what cannot be decoded."""
        options = self.options
        batches = read_events(
            options.bootstrap_servers,
            topic_name(options.cluster, STATECONTEXT),
            cas_base=0,
            above_cas=Cas(offset - 1),
            at_least_cas=Cas(0),
            bad=lambda message, reason: None,
        )
        return chain.from_iterable(batches)

    def _starting(
        self, found: Mapping[tuple[str, int], tuple[int, int]]
    ) -> dict[tuple[str, int], int]:
        """Return where to begin: where the state stands, if the topic still has that."""
        known = {
            (one.topic, one.partition): one.offset for one in self._query_state.progress.offsets
        }
        starting = dict.fromkeys(found, BEGINNING)
        anew = []
        for where, (low, end) in found.items():
            offset = known.get(where)
            if offset is None:
                continue
            if low <= offset <= end:
                starting[where] = offset
                continue
            anew.append(where)
            if offset < low:
                self._tell_of_loss(where, offset, low)
            else:
                self._status_log.info(
                    f"{where[0]}, partition {where[1]}: it is read from its beginning, for it ends "
                    f"at {end}, and was read up to {offset} before [topic_replaced]"
                )
        self._query_state = forgotten(self._query_state, anew)
        self._expected = sum(end - max(low, starting[where]) for where, (low, end) in found.items())
        return starting

    def _tell_of_loss(self, where: tuple[str, int], offset: int, low: int) -> None:
        self._metrics.lost.inc(low - offset)
        self._status_log.info(
            f"{where[0]}, partition {where[1]}: offsets {offset} to {low - 1} were deleted before "
            "they were read [offsets_lost]"
        )

    def _start(
        self, spark: SparkSession, starting: Mapping[tuple[str, int], int]
    ) -> StreamingQuery:
        options = self.options
        frame = rows(
            spark,
            options.bootstrap_servers,
            options.cluster,
            starting,
            offsets_max=options.offsets_max,
            partitions_min=options.partitions_min,
        )
        place = self._checkpoints / secrets.token_hex(8)
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", place.absolute().as_uri())
        if options.until_read:
            writer = writer.trigger(availableNow=True)
        else:
            writer = unpaced(spark, writer, options.trigger_ms)
        return writer.start()

    def _judge(self, query: StreamingQuery) -> bool:
        """Look at what a query ended with; return whether it has done what it was to do."""
        fault = self._fault
        if isinstance(fault, FencedError):
            self._look_for_another(fault)
        elif isinstance(fault, GapError):
            self._status_log.info(
                f"{fault}; a new query begins where the state stands [query_left]"
            )
        elif isinstance(fault, AssertionError | RefusedError):
            raise fault
        elif not self._stopping.is_set():
            error = error_of(query)
            if error is None and fault is None:
                return self.options.until_read
            self._status_log.problem("the query", first_line(fault or error))
            self._stopping.wait(PAUSE_S)
        return False

    def _look_for_another(self, fault: FencedError) -> None:
        """Raise AnotherError if another application has fenced this one; else go on."""
        try:
            other = self._ticker.another()
        except KafkaException as error:
            self._status_log.problem("Kafka", str(error.args[0]))
            return
        if other is not None:
            raise AnotherError(
                f"another application computes the timestamps of {self.options.cluster}: "
                "this one ends [another_application]"
            )
        self._status_log.info(f"{fault}; no other application is there: beginning again")

    def _heartbeat(self) -> TimestampsHeartbeat:
        query_state = self._query_state
        self._seen = {
            name: seen if (seen := self._seen.get(name)) and seen.state is state else look(state)
            for name, state in query_state.states.items()
        }
        return TimestampsHeartbeat(
            incarnation=self._incarnation,
            pid=os.getpid(),
            batch=self._batches,
            at_ms=wall_ms(),
            currents=tuple(seen.current for seen in self._seen.values()),
            owners=tuple(owner for seen in self._seen.values() for owner in seen.owners),
            shard=query_state.shard.name,
            period_ms=self.options.tick_ms,
        )

    # -- a batch -----------------------------------------------------------------------------

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Compute one micro-batch of Spark. What it raises ends the query.

        `batch` is the number that Spark gives it, which means nothing: each query begins at 0.
        """
        begun_s = time.monotonic()
        # One that waited for records is no measure of the next one.
        since_s = begun_s - self._returned_s
        sparks_s, self._sparks_s = min(since_s, self._sparks_s), since_s
        with self._busy:
            if self._stopping.is_set():
                raise StoppedError("stopping")
            try:
                quiet = self._carry_out(frame)
            except BaseException as error:
                self._fault = error
                raise
        self._failures = 0
        self._status_log.resolved("the query")
        self._batches += 1
        self._report_ready()
        self._pause_s = min(2 * self._pause_s, QUIET_PAUSE_S_MAX) if quiet else QUIET_PAUSE_S
        if not self.options.until_read:
            # Spark needs as long again until it begins the next batch.
            left_s = begun_s + self.options.trigger_ms / 1000 - sparks_s - time.monotonic()
            left_s = self._with_tick_s(max(0.0, left_s))
            self._stopping.wait(left_s)
            if quiet:
                self._pause(self._quiet_pause_s() - left_s)
            else:
                self._called = False
        self._returned_s = time.monotonic()

    def _with_tick_s(self, left_s: float) -> float:
        """Return how long to wait so that the next batch has a tick that comes soon after that."""
        due_s = self._ticker.due_s()
        there_s = 0.0 if due_s is None else due_s + SENT_S - time.monotonic()
        return there_s if left_s < there_s <= left_s + HELD_S + SENT_S else left_s

    def _quiet_pause_s(self) -> float:
        """Return how long nothing has to be computed if nothing comes.

        Heartbeats of indexers end no pause, and an open question may wait for one. What was due
        already, and came to nothing in this batch, may come to something with the next heartbeat.
        """
        query_state = self._query_state
        if any(state.questions for state in query_state.states.values()):
            return QUIET_PAUSE_S
        due_s = (next_due_ms(query_state) - query_state.progress.now_ms) / 1000
        return min(self._pause_s, max(QUIET_PAUSE_S, due_s) if due_s > 0 else UNSURE_PAUSE_S_MAX)

    def _pause(self, pause_s: float) -> None:
        """Wait, but in a long pause no longer than until something comes.

        What no batch has in the end must not keep this one running: it waits for once.
        """
        if pause_s <= LOOKED_OUT_S or self._called:
            self._called = False
            self._stopping.wait(max(0.0, min(pause_s, UNSURE_PAUSE_S_MAX)))
            return
        read = {
            (one.topic, one.partition): one.offset for one in self._query_state.progress.offsets
        }
        places = {where: read.get(where, at) for where, at in self._watched.items()}
        self._called = self._lookout.wait(places, pause_s, self._stopping)

    def _carry_out(self, frame: DataFrame) -> bool:
        """Compute a batch; return whether nothing has happened in it."""
        with self._metrics.phase("read"):
            found = self._read(frame)
        if not found.count:
            return True
        self._check_offsets(found)
        with self._metrics.phase("fold"):
            wanted = fold_batch(self._query_state, found)
        with self._metrics.phase("transaction"):
            self._write(wanted)
        self._metrics.records.inc(found.count)
        return wanted.quiet

    def _read(self, frame: DataFrame) -> Rows:
        """Read a batch: in the executors, if it should be as large as the last one was."""
        shard = self.options.shard
        limits = {one.name: one.vbuckets for one in self._query_state.context.buckets}
        in_executors = self._expected >= self.options.executors_from
        self._metrics.batches.labels("executors" if in_executors else "driver").inc()
        if in_executors:
            frame = frame.mapInArrow(lambda batches: partials(batches, limits, shard), RECORDS_DDL)
        found = rows_of(frame.toArrow(), limits, shard=shard)
        self._expected = found.count
        return found

    def _check_offsets(self, found: Rows) -> None:
        """Tell of records that were deleted while the query runs. GapError: they were read before.

        Spark goes on in either case, and says nothing.
        """
        ahead = jumps(self._query_state, found)
        for jump in ahead:
            if jump.found < jump.expected:
                raise GapError(
                    f"{jump.topic}, partition {jump.partition}: offset {jump.found} comes after "
                    f"{jump.expected - 1} was read"
                )
        if not ahead:
            return
        try:
            servers = self.options.bootstrap_servers
            there = bounds(servers, {jump.topic for jump in ahead}, CALL_TIMEOUT_S) or {}
        except KafkaException as error:
            self._status_log.problem("Kafka", str(error.args[0]))
            there = {}
        for jump in ahead:
            low = min(there.get((jump.topic, jump.partition), (0, 0))[0], jump.found)
            if low > jump.expected:
                self._tell_of_loss((jump.topic, jump.partition), jump.expected, low)

    def _write(self, wanted: BatchResult) -> None:
        """Write the result of a batch, once.

        Raises FencedError; RefusedError; DoubtError if it cannot be written for too long.
        """
        give_up_s = time.monotonic() + SETTLE_S
        while True:
            try:
                self._state_store.commit(wanted.records)
            except DoubtError as error:
                self._status_log.problem("the transaction", str(error))
                doubt = error
            else:
                self._query_state = wanted.query_state
                self._status_log.resolved("the transaction")
                return
            if self._settled(wanted, give_up_s):
                return
            if time.monotonic() > give_up_s:
                raise doubt
            self._stopping.wait(PAUSE_S)

    def _settled(self, wanted: BatchResult, give_up_s: float) -> bool:
        """Open the state store again; return whether the batch was written after all."""
        while True:
            if self._stopping.is_set():
                raise StoppedError("stopping")
            try:
                found = self._state_store.open()
            except KafkaException as error:
                if time.monotonic() > give_up_s:
                    raise DoubtError(str(error.args[0])) from error
                self._stopping.wait(PAUSE_S)
                continue
            if found.progress == wanted.query_state.progress:
                self._query_state = wanted.query_state
                return True
            if found.progress != self._query_state.progress:
                raise FencedError("another application has written meanwhile")
            return False

    def _report_ready(self) -> None:
        if self._ready:
            return
        self._ready = True
        self._status_log.info("reading")
        if self.options.ready_file is not None:
            self.options.ready_file.write_text(json.dumps({"pid": os.getpid()}) + "\n")
