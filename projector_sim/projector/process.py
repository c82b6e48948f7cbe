"""The shell of a projector: streams of documents in, items and control records out.

It decides nothing: `stream_planner` does, and `router` turns frames into items. One thread owns
both. Other threads only read, from Kafka (`state_follower`) and from where the documents come from
(`projector_sim.sources`), and pass on what they read. Invariant: no record of a connection is left
out silently. If Kafka refuses a record, the connections end, and their buckets wait for a new
generation of streams. A projector has no folder: a new process begins with what the log says.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from confluent_kafka import Message

from coordinator import codec
from coordinator.core.catalog.rebalance_settings import (
    REBALANCE,
    RebalanceSettings,
    rebalance_of,
)
from coordinator.core.model.entities import setting_key
from coordinator.core.model.records import ProjectorHeartbeat
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    CatchUpRequested,
    FailoverLog,
    HwHeartbeat,
    IndexRouted,
)
from coordinator.kafka.arguments import add_cluster, kafka_of
from coordinator.kafka.log_reader import decode_event
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import STREAM_PARTITIONS
from coordinator.runtime.arguments import within
from coordinator.runtime.garbage import collect_rarely
from coordinator.runtime.gathering import Gathering
from coordinator.runtime.pace import Pace
from coordinator.runtime.private_files import keep_private
from coordinator.runtime.signals import ignore_stops, on_stop
from coordinator.runtime.threads import ThreadEndedError, Threads
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.credits import QUIET_MS, Credit
from projector_sim.projector.data_sink import DataSink
from projector_sim.projector.evaluation_plan import Route, Routes
from projector_sim.projector.router import GARBAGE, FrameError, Router
from projector_sim.projector.state_follower import Follower, Read, Started
from projector_sim.projector.stream_planner import (
    Action,
    Carry,
    Close,
    GiveUp,
    MakeBucket,
    Open,
    Probe,
    StreamPlanner,
)
from projector_sim.protocol.frames import Kind
from projector_sim.protocol.source import Logs, Source, SourceBucket, SourceStream
from projector_sim.sources.kv_source import KvSource
from schemas.registry import SchemaError

if TYPE_CHECKING:
    from projector_sim.sources.topic_source import TopicSource

FLUSH_S = {MAINTENANCE: 0.002, CATCHUP: 0.02}
FLUSH_MOST_S = 0.1
"""At most so often what waits is sent: the first item after a pause at once. Where much comes, and
in a backfill, it is gathered for longer."""

FLUSH_PER_S = 2_500
"""So many documents a second of one connection are much: then what is sent is gathered for longer,
and each costs less. A write is seen later for it, by a tenth of a second at most."""

SERVE_S = 0.01
TURN_S = 0.02
"""So long maintenance is served before the others have a turn, while it has something."""

SWITCH_S = 0.0005
"""A thread that has read something takes its turn after this: with the interpreter's 5 ms, reading
64 KiB at a time, that is all that a connection would bring."""

PLAN_PERIOD_S = 0.02
REPORT_PERIOD_S = 10.0
FLUSH_TIMEOUT_S = 1.0
PROJECTOR_ID_MAX = 250
EX_UNUSABLE = 1
PRIORITY = {MAINTENANCE: 0, CATCHUP: 1}


def gathering_of(kind: str) -> Gathering:
    """Return how long is gathered what a connection of this kind sends."""
    return Gathering(FLUSH_S.get(kind, FLUSH_MOST_S), FLUSH_MOST_S, FLUSH_PER_S)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    projector: int
    cluster: str
    bootstrap_servers: str
    kv: str
    heartbeat_ms: int = 500
    sync_ms: int = 100
    repeat_ms: int = 20_000


@dataclass(slots=True, eq=False, kw_only=True)
class Line:
    """A running connection: its frames, and the router that turns them into records."""

    run: Run
    stream: SourceStream
    router: Router
    gathering: Gathering
    gathered: int = 0
    """How many documents there were when something was sent last."""
    flushed_s: float = 0.0
    waits: bool = False
    """Something may wait to be sent."""
    pace: Pace = field(default_factory=Pace)
    credit: Credit = field(default_factory=Credit)

    @property
    def is_of_moves(self) -> bool:
        """Tell whether only copies that move are filled by it."""
        return self.run.kind == BACKFILL and all(i.part_of for i in self.run.carried.values())

    @property
    def due_s(self) -> float:
        """When what waits is to be sent."""
        return self.flushed_s + self.gathering.wait_s

    def flush(self) -> None:
        """Send what waits."""
        self.router.flush()
        self.flushed_s, self.waits = time.monotonic(), False
        self.gathering.passed(self.router.documents - self.gathered, self.flushed_s)
        self.gathered = self.router.documents


@dataclass(slots=True)
class Counters:
    """What has happened in this process; `errors` by index, documents that are no JSON under 0."""

    documents: int = 0
    errors: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class KvSeen:
    """What the key-value store has, None while it is away."""

    buckets: dict[str, SourceBucket] | None


@dataclass(frozen=True, slots=True)
class TopicsSeen:
    """The buckets whose topics are there."""

    buckets: Mapping[str, SourceBucket]


@dataclass(frozen=True, slots=True)
class LogsFetched:
    """The failover logs of a bucket were looked up."""

    bucket: str
    logs: Logs


Note = Started | Read | KvSeen | TopicsSeen | LogsFetched


class Projector:
    """A projector between sources of documents and a Kafka cluster that may come and go.

    Large because it puts all parts of a projector together and takes them apart again.
    """

    def __init__(
        self, options: Options, stopping: threading.Event, wake: threading.Event | None = None
    ) -> None:
        self.options = options
        self.incarnation = secrets.randbits(63)
        self.counters = Counters()
        self.routes = Routes()
        self.planner = StreamPlanner(
            options.projector, self.incarnation, lambda: secrets.randbits(63), self.routes.why_not
        )
        self._stopping = stopping
        self._wake = wake or threading.Event()
        self._threads = Threads(self._end)
        self._status_log = StatusLog(f"projector {options.projector}")
        self._inbox: deque[Note] = deque()
        self._lines: list[Line] = []
        self._moving = RebalanceSettings()
        self._sink = DataSink(
            options.bootstrap_servers, options.cluster, stopping, self._send_heartbeat_if_due
        )
        self._follower = Follower(
            options.bootstrap_servers,
            options.cluster,
            f"projector-{options.projector}",
            self._hand_over,
            stopping,
            self._status_log,
            self._threads,
        )
        self._kv = (
            KvSource(
                *(options.kv, options.projector, options.sync_ms),
                lambda kv: self._hand_over(KvSeen(kv)),
                *(self._status_log, stopping, self._threads),
            )
            if options.kv
            else None
        )
        self._topics: TopicSource | None = None
        self._written_ms = _mono_ms()
        """When a document was last to be maintained, of any bucket: all go through one topic."""
        self._dirty = True
        self._planned_s = 0.0
        self._served_s = 0.0
        self._beat_due_s = 0.0
        self._report_due_s = time.monotonic() + REPORT_PERIOD_S
        self._repeat_due_s = 0.0
        self._reported: Counter[int] = Counter()
        self._answered: set[tuple[int, int, str]] = set()
        self._waited: tuple[object, ...] = ()

    def run(self) -> None:
        """Serve until told to stop. Raises ThreadEndedError."""
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                self._read_inbox()
                busy = self._feed()
                self._serve_sink()
                if self._sink.failed:
                    self._lose_kafka()
                self._plan_if_due()
                self._send_heartbeat_if_due()
                self._repeat_if_due()
                if not busy:
                    self._wake.wait(self._idle_s())
        finally:
            self._stop()
        self._threads.check()

    def _end(self) -> None:
        """A thread that is needed has ended."""
        self._stopping.set()
        self._wake.set()

    def _hand_over(self, note: Note) -> None:
        """Take what another thread has read."""
        self._inbox.append(note)
        self._wake.set()

    def _serve_sink(self) -> None:
        """Hear what has become of what was sent, now and then: others need the interpreter."""
        now = time.monotonic()
        if now >= self._served_s + SERVE_S:
            self._served_s = now
            self._sink.serve()

    def _idle_s(self) -> float:
        due = min((line.due_s for line in self._lines if line.waits), default=self._beat_due_s)
        due, now = min(due, self._beat_due_s), time.monotonic()
        due = min([due, *(line.pace.due_s for line in self._lines if line.pace.due_s > now)])
        if self._dirty:
            due = min(due, self._planned_s + PLAN_PERIOD_S)
        return max(0.0, due - now)

    def _stop(self) -> None:
        """End all streams, within the time that a stop may take."""
        for source in (self._kv, self._topics):
            if source is not None:
                source.close()
        for line in tuple(self._lines):
            self._finish(line, "the projector stops")
        self._report()
        self._sink.finish(FLUSH_TIMEOUT_S)
        self._follower.join(FLUSH_TIMEOUT_S / 2)
        if self._topics is not None:
            self._topics.join(FLUSH_TIMEOUT_S)

    # -- what is heard -----------------------------------------------------------------------

    def _read_inbox(self) -> None:
        while self._inbox:
            note = self._inbox.popleft()
            self._dirty = True
            if isinstance(note, Read):
                self._note_records(note)
            elif isinstance(note, KvSeen):
                self._note_store(note)
            elif isinstance(note, TopicsSeen):
                self.planner.see_topics(note.buckets)
            elif isinstance(note, LogsFetched):
                for vbucket, branches in note.logs.items():
                    record = FailoverLog(note.bucket, vbucket, branches, wall_ms())
                    self._sink.control(vbucket, record)
            else:
                if not self.planner.complete:
                    self.planner.listening_since_ms = _mono_ms()
                self.planner.read_again()

    def _note_records(self, read: Read) -> None:
        follower = self._follower
        for message in read.messages:
            try:
                if message.topic() == follower.state:
                    self._note_state(message)
                else:
                    self._note_indexer(codec.decode(message.value() or b""))
            except SchemaError as error:
                self._dead_letter(message, f"{error.code}: {error}")
            except Exception as error:
                # Whatever a record does to who reads it: others follow.
                self._dead_letter(message, f"{type(error).__name__}: {error}")
        if read.at_end and not self.planner.complete:
            self.planner.caught_up()
            self._follow_topics()

    def _dead_letter(self, message: Message, reason: str) -> None:
        self._follower.dead_letter(message, reason)
        where = f"{message.topic()} offset {message.offset()}"
        self._status_log.info(f"{where} cannot be read and is a dead letter: {reason}")

    def _note_state(self, message: Message) -> None:
        """Note what one record of the state says. Raises SchemaError."""
        mutation = decode_event(message, 0).mutation
        entity = mutation.entity
        if mutation.key.encode() != message.key():
            raise SchemaError("bad_body", f"the event is about {mutation.key}, its key is another")
        if entity is not None and entity.key != mutation.key:
            raise SchemaError("bad_body", f"{mutation.key} holds something else")
        kind, _, name = mutation.key.partition("/")
        if kind == "index" and not name.isdecimal():
            raise SchemaError("bad_body", f"{mutation.key} names no index")
        self.planner.observe(mutation.key, entity)
        if kind == "bucket" and self.planner.complete:
            self._follow_topics()
        if mutation.key == setting_key(REBALANCE):
            self.slow_down(rebalance_of(entity))
        if kind == "index" and entity is None:
            self.routes.forget(int(name))

    def _follow_topics(self) -> None:
        """Follow the topics that have the documents of a bucket; without any, nothing is needed."""
        buckets = {n: b for n, b in self.planner.buckets.items() if b.topic}
        if self._topics is None:
            if not buckets:
                return
            from projector_sim.sources.topic_source import TopicSource

            self._topics = TopicSource(
                *(self.options.bootstrap_servers, self.options.cluster, self.options.sync_ms),
                lambda topics: self._hand_over(TopicsSeen(topics)),
                self._follower.add_dead_letter,
                *(self._status_log, self._stopping, self._threads),
            )
        self._topics.follow(buckets)

    def _source_of(self, bucket: str) -> Source | None:
        return self._topics if self.planner.is_of_topic(bucket) else self._kv

    def _garbage_of(self, bucket: str) -> Callable[[int, int, bytes], None] | None:
        topics = self._topics
        if topics is None or not self.planner.is_of_topic(bucket):
            return None
        return partial(topics.note_garbage, bucket)

    def slow_down(self, settings: RebalanceSettings) -> None:
        """Read as fast as these settings say from now on; a pause that is on ends."""
        self._moving = settings
        for line in self._lines:
            line.pace = Pace()

    def _note_indexer(self, record: object) -> None:
        if isinstance(record, HwHeartbeat):
            self.planner.note_heartbeat(record, _mono_ms())
        elif isinstance(record, CatchUpRequested):
            self.planner.request(record)

    def _note_store(self, seen: KvSeen) -> None:
        assert self._kv is not None
        if seen.buckets is None:
            self._status_log.problem("the key-value store", self._kv.trouble)
        else:
            self._status_log.resolved("the key-value store")
        self.planner.see(seen.buckets)

    # -- what is done ------------------------------------------------------------------------

    def _plan_if_due(self) -> None:
        now = time.monotonic()
        if not self._dirty or now < self._planned_s + PLAN_PERIOD_S:
            return
        self._dirty, self._planned_s = False, now
        for action in self.planner.plan(_mono_ms()):
            self._carry_out(action)
        answers = {(i.id, i.build, reason) for i, reason in self.planner.routed()}
        for answer in sorted(answers - self._answered):
            self._answer(*answer)
        self._answered = answers
        waiting = self.planner.waiting(_mono_ms())
        if waiting != self._waited:
            self._waited = waiting
            self._beat_due_s = 0.0

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, MakeBucket):
            if self._kv is not None:
                self._kv.make_bucket(action.name, action.vbuckets)
        elif isinstance(action, Open):
            self._open(action.run)
        else:
            line = next((line for line in self._lines if line.run is action.run), None)
            if line is None:
                return
            if isinstance(action, Close):
                self._finish(line, action.reason)
            elif isinstance(action, Probe):
                line.router.probe(action.vbuckets)
            elif isinstance(action, GiveUp):
                line.router.give_up(action.vbuckets)
            elif isinstance(action, Carry):
                line.router.carry(self._routes_of(line.run), action.attached, action.vbuckets)

    def _routes_of(self, run: Run) -> list[Route]:
        return [self.routes.of(index) for index in run.carried.values()]

    def _open(self, run: Run) -> None:
        router = Router(
            run,
            self._routes_of(run),
            self._sink,
            self.options.projector,
            STREAM_PARTITIONS,
            wall_ms,
            is_topic=self.planner.is_of_topic(run.bucket),
            garbage=self._garbage_of(run.bucket),
        )
        source = self._source_of(run.bucket)
        assert source is not None
        stream = source.open(run, self._wake.set)
        line = Line(run=run, stream=stream, router=router, gathering=gathering_of(run.kind))
        self._lines.append(line)
        self._lines.sort(key=lambda line: PRIORITY.get(line.run.kind, 2))
        self._status_log.info(
            f"{run.kind} of {run.bucket}: {len(run.vbuckets)} vbuckets, "
            f"{len(run.carried)} indexes, number {run.number}"
        )

    def _finish(self, line: Line, reason: str, *, lost: bool = False) -> None:
        """End a connection; `lost`: what waits to be sent must not be."""
        line.stream.close()
        line.router.close(reason, lost=lost)
        self.counters.documents += line.router.documents
        self.counters.errors += line.router.errors
        self._lines.remove(line)
        self._dirty = True

    def _lose_kafka(self) -> None:
        """End all connections: of each of them something may be lost."""
        reason = f"Kafka: {self._sink.failed}"
        self._status_log.info(f"{reason}; all streams begin anew")
        self._sink.renew()
        for line in tuple(self._lines):
            self._finish(line, reason, lost=True)
            self.planner.closed(line.run, _mono_ms())

    # -- frames ------------------------------------------------------------------------------

    def _feed(self) -> bool:
        """Take what has come, maintenance first; tell whether there was anything."""
        busy = False
        for line in tuple(self._lines):
            turn_s = TURN_S if line.run.kind == MAINTENANCE else 0.0
            try:
                busy |= self._drain(line, time.monotonic() + turn_s)
            except FrameError as error:
                self._break_off(line, str(error))
            if self._sink.failed:
                return True
            if line.stream.is_over and line in self._lines:
                self._break_off(line, line.stream.reason)
        return busy

    def _drain(self, line: Line, until_s: float) -> bool:
        """Turn frames into items for a while; tell whether there were any. Raises FrameError."""
        stream, router = line.stream, line.router
        took = False
        while self._may_read(line) and (frames := stream.poll()) is not None:
            took = line.waits = True
            refused, before = len(line.run.refused), router.documents
            for kind, body in frames:
                if kind == Kind.CLOSE:
                    continue
                router.route(kind, body)
                self._dirty |= kind not in (Kind.MUTATIONS, Kind.SYNC)
                if kind in (Kind.BEGIN, Kind.ROLLBACK):
                    line.run.heard_ms = _mono_ms()
            if len(line.run.refused) > refused:
                self._roll_back(line.run, tuple(line.run.refused)[refused:])
            if line.run.kind == MAINTENANCE and router.documents != before:
                self._written_ms = _mono_ms()
            now = time.monotonic()
            is_slow = line.is_of_moves and not self.planner.keeps_others_waiting(line.run)
            per_s = self._moving.documents_per_s if is_slow else 0
            line.pace.took(router.documents - before, per_s, now)
            if line.run.kind != MAINTENANCE and line.credit.spend(router.sent_bytes):
                self._mark(line)
            if now >= until_s or now >= line.due_s or line.pace.due_s > now:
                break
        if line.waits and time.monotonic() >= line.due_s:
            line.flush()
        return took

    def _may_read(self, line: Line) -> bool:
        """Tell whether more may be sent: not too fast, and not too far ahead of the indexers."""
        credit = line.credit
        if credit.is_waiting:
            source, now_ms = self.planner.carrier(line.run), _mono_ms()
            read = self.planner.read_by_hosts(line.run, now_ms)
            is_quiet = now_ms - self._written_ms >= QUIET_MS
            connection = source.connection if source is not None else 0
            credit.settle(connection, read, now_ms, is_quiet=is_quiet)
        return line.pace.due_s <= time.monotonic() and not credit.is_spent

    def _mark(self, line: Line) -> None:
        """Have all hosts tell when they have read what was sent so far."""
        source = self.planner.carrier(line.run)
        beside = next((one for one in self._lines if one.run is source), None)
        if source is None or beside is None:
            line.credit.clear()
            return
        line.credit.mark(source.connection, source.ordinal, _mono_ms())
        beside.router.probe()

    def _roll_back(self, run: Run, vbuckets: tuple[int, ...]) -> None:
        """Say that vbuckets are not streamed, and have their histories looked up."""
        named = ", ".join(map(str, vbuckets[:5])) + (" …" if len(vbuckets) > 5 else "")
        self._status_log.info(
            f"{run.kind} of {run.bucket}: {len(vbuckets)} vbuckets ({named}) have lost what was "
            "asked for, and are not streamed: they need a rollback"
        )
        source = self._source_of(run.bucket)
        if source is not None:
            source.fetch_logs(
                run.bucket, vbuckets, lambda logs: self._hand_over(LogsFetched(run.bucket, logs))
            )

    def _break_off(self, line: Line, reason: str) -> None:
        """Note that a connection has ended by itself."""
        run = line.run
        if not run.positions and len(run.ended) == len(run.vbuckets):
            reason = "done"
        else:
            self._status_log.info(f"{run.kind} of {run.bucket} has ended: {reason}")
        self._finish(line, reason)
        self.planner.closed(run, _mono_ms())

    # -- what is told ------------------------------------------------------------------------

    def _answer(self, index_id: int, build: int, reason: str) -> None:
        self._follower.answer(
            IndexRouted(self.options.projector, self.incarnation, index_id, build, reason)
        )

    def _send_heartbeat_if_due(self) -> None:
        """Send a heartbeat, and repeat every answer that somebody may still wait for."""
        now = time.monotonic()
        if now < self._beat_due_s:
            return
        self._beat_due_s = now + self.options.heartbeat_ms / 1000
        self._dirty = True
        for answer in sorted(self._answered):
            self._answer(*answer)
        self._follower.beat(
            ProjectorHeartbeat(
                projector=self.options.projector,
                incarnation=self.incarnation,
                address=f"projector-{self.options.projector}",
                pid=os.getpid(),
                at_ms=wall_ms(),
                kv=self.options.kv,
                buckets=self.planner.seen(),
                waiting=self.planner.waiting(_mono_ms()),
                backfills=self.planner.progress(),
                topics=self._topics.status() if self._topics is not None else (),
                period_ms=self.options.heartbeat_ms,
            )
        )

    def _repeat_if_due(self) -> None:
        """Say again how far streams are, and tell the operator what is new.

        Never while the sink waits: it is in the middle of another record then.
        """
        now = time.monotonic()
        if now >= self._repeat_due_s:
            self._repeat_due_s = now + self.options.repeat_ms / 1000
            for line in self._lines:
                line.router.repeat()
        if now >= self._report_due_s:
            self._report_due_s = now + REPORT_PERIOD_S
            self._report()

    def _report(self) -> None:
        """Tell the operator how many documents could not be evaluated, if there are new ones."""
        errors = self.errors()
        for index_id, count in sorted((errors - self._reported).items()):
            what = "are no JSON" if index_id == GARBAGE else f"have no key in index {index_id}"
            self._status_log.info(f"{count} more documents {what}: they are treated as absent")
        self._reported = errors

    def errors(self) -> Counter[int]:
        """Return how many documents could not be evaluated, by index."""
        return sum((line.router.errors for line in self._lines), self.counters.errors.copy())


def _mono_ms() -> int:
    return time.monotonic_ns() // 1_000_000


# -- the command line ------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run a projector until SIGTERM or SIGINT, and return its exit code."""
    arguments = parser().parse_args(argv)
    keep_private()
    stopping, wake = threading.Event(), threading.Event()

    def stop() -> None:
        stopping.set()
        wake.set()

    on_stop(stop)
    sys.setswitchinterval(SWITCH_S)
    collect_rarely()
    options = Options(
        arguments.projector,
        arguments.cluster,
        kafka_of(arguments),
        (arguments.kv or "").rstrip("/"),
        arguments.heartbeat_ms,
        arguments.sync_ms,
        arguments.repeat_ms,
    )
    try:
        Projector(options, stopping, wake).run()
    except ThreadEndedError as error:
        StatusLog(f"projector {options.projector}").info(str(error))
        return EX_UNUSABLE
    ignore_stops()
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m projector_sim projector", description="Run a projector with its router."
    )
    found.add_argument(
        "--projector",
        type=within(0, PROJECTOR_ID_MAX),
        required=True,
        help="number of this projector, and of the node of the key-value store that it streams",
    )
    add_cluster(found)
    found.add_argument(
        "--kv", help="URL of the key-value store (none: buckets are of Kafka topics only)"
    )
    found.add_argument(
        "--heartbeat-ms", type=within(10, 60_000), default=500, help="period of heartbeats (500)"
    )
    found.add_argument(
        "--sync-ms",
        type=within(1, 60_000),
        default=100,
        help="least time between two SYNCs of a vbucket (100)",
    )
    found.add_argument(
        "--repeat-ms",
        type=within(100, 3_600_000),
        default=20_000,
        help="how long without a change before a SYNC is repeated (20,000)",
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
