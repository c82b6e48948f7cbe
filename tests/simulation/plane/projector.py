"""A projector's shell: it feeds the real desk and router, and can be killed or stopped.

It does what `projector_sim.projector.process` does. While it stands still nothing of it goes on,
and nothing is forgotten: it goes on with the records that lay in its queues.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.core.model.entities import Bucket
from coordinator.core.model.stream_records import (
    BACKFILL,
    CATCHUP,
    MAINTENANCE,
    CatchUpRequested,
    FailoverBranch,
    FailoverLog,
    HwHeartbeat,
)
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.evaluation_plan import Route, Routes
from projector_sim.projector.router import Router
from projector_sim.projector.stream_planner import (
    Action,
    Carry,
    Close,
    GiveUp,
    Open,
    Probe,
    SourceBucket,
    StreamPlanner,
)
from projector_sim.protocol.frames import Kind
from tests.simulation.kernel.actor import Ear
from tests.simulation.kernel.violation import require
from tests.simulation.plane.connection import SourceConnection
from tests.simulation.plane.mutations import PARTITIONS, Producer
from tests.simulation.plane.shell import Shell
from tests.simulation.voices import ProjectorVoice

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld

PERIOD_MS = 250
PLAN_MS = 20
REPEAT_PERIODS = 8
PRIORITY = {MAINTENANCE: 0, CATCHUP: 1, BACKFILL: 2}


@dataclass(slots=True, eq=False)
class Line:
    """A connection that runs."""

    run: Run
    stream: SourceConnection
    router: Router


class ProjectorProcess:
    """One process of a projector: everything that a kill takes."""

    def __init__(self, shell: Projector) -> None:
        self.shell = shell
        self.world = world = shell.world
        self.number = shell.number
        self.incarnation = shell.incarnation
        self.routes = Routes()
        self.planner = StreamPlanner(
            shell.number, shell.incarnation, world.token, self.routes.why_not, world.clock.now
        )
        self.producer = Producer(world)
        self.producer.slow_ms = shell.slow_ms
        self.lines: list[Line] = []
        self.dead = False
        self.paused = False
        self.inbox: deque[Any] = deque()
        self.forgotten: dict[str, tuple[Bucket, int]] = {}
        """Buckets of which deletions may have been missed, each as it was then, and since when."""
        self._position = 0
        self._end = world.broker["statecontext"].stable
        self._plan_due = self._turn_due = False
        self._answers: set[tuple[int, int, str]] = set()
        self._periods = 0
        world.clock.at(world.clock.delay() + 1, self.read_state)
        world.clock.at(world.clock.delay() + 1, self.see)
        self._period()

    # -- what is heard -----------------------------------------------------------------------

    def hear(self, topic: str, note: Any) -> None:
        """Take what was read, in its order; when it stands still, later."""
        if self.dead:
            return
        self.inbox.append(note)
        if not self.paused:
            self._take_notes()

    def _take_notes(self) -> None:
        while self.inbox:
            note = self.inbox.popleft()
            if isinstance(note, HwHeartbeat):
                self.planner.note_heartbeat(note)
            elif isinstance(note, CatchUpRequested):
                self.planner.request(note)
            elif isinstance(note, dict):
                self.world.store.tell(self.planner, note)
            self._plan_soon()

    def see(self) -> None:
        """The store tells who owns what."""
        seen: dict[str, SourceBucket] = self.world.store.seen_by(self.number, self.planner.buckets)
        self.hear("", seen)

    def read_state(self) -> None:
        """Read on in `statecontext`, a part of what there is at a time."""
        if self.dead or self.paused:
            return
        partition = self.world.broker["statecontext"]
        limit = self.world.clock.chance.choice((3, 1_000))
        found = partition.read(self._position, limit)
        for record in found:
            mutation = record.value.mutation
            self.planner.observe(mutation.key, mutation.entity)
            if mutation.key.startswith("bucket/"):
                self._follow()
            if mutation.key.startswith("index/") and mutation.entity is None:
                self.routes.forget(int(mutation.key.partition("/")[2]))
        self._position = found[-1].offset + 1 if len(found) == limit else partition.stable
        if not self.planner.complete and self._position >= self._end:
            self.planner.caught_up()
        if len(found) == limit:
            self.world.clock.at(self.world.clock.delay(), self.read_state)
        self._plan_soon()

    def _follow(self) -> None:
        """Hear of other buckets, or of other readings of them."""
        self.see()
        for line in self.lines:
            line.stream.wake()

    # -- what is done ------------------------------------------------------------------------

    def _plan_soon(self) -> None:
        if not self._plan_due and not self.dead:
            self._plan_due = True
            delay_ms = self.world.clock.chance.randint(1, PLAN_MS)
            self.world.clock.at(delay_ms, self._plan)

    def _plan(self) -> None:
        self._plan_due = False
        if self.dead or self.paused:
            return
        now = self.world.clock.now
        for action in self.planner.plan(now):
            self._carry_out(action)
        for bucket, runs in self.planner.maintenance.items():
            begun = Counter(v for run in runs for v in run.positions.keys() - run.given_up)
            twice = [vbucket for vbucket, count in begun.items() if count > 1]
            require(not twice, "one-connection-a-vbucket", f"{bucket}: {twice}")
        answers = {(index.id, index.build, reason) for index, reason in self.planner.routed()}
        for answer in sorted(answers - self._answers):
            self.shell.say_routed(*answer)
        self._answers = answers

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Open):
            self._open(action.run)
        elif isinstance(action, Close | Carry | Probe | GiveUp):
            line = next((line for line in self.lines if line.run is action.run), None)
            if line is None:
                return
            if isinstance(action, Close):
                self._finish(line, action.reason)
            elif isinstance(action, Probe):
                line.router.probe(action.vbuckets)
            elif isinstance(action, GiveUp):
                line.router.give_up(action.vbuckets)
            else:
                line.router.carry(self._routes_of(line.run), action.attached, action.vbuckets)

    def _routes_of(self, run: Run) -> list[Route]:
        return [self.routes.of(index) for index in run.carried.values()]

    def _open(self, run: Run) -> None:
        world = self.world
        world.trace(
            f"projector {self.number}: {run.kind} of {run.bucket} {run.vbuckets} number "
            f"{run.number} from {run.starts} to {run.until}, connection {run.connection}"
        )
        if run.kind == MAINTENANCE:
            world.witness.connected(self, run)
        router = Router(
            *(run, self._routes_of(run), self.producer, self.number, PARTITIONS),
            *(world.wall_ms, world.record_bytes_max),
            is_topic=world.store.is_topic,
        )
        stream = world.store.open(run, self, self._turn_soon)
        self.lines.append(Line(run, stream, router))
        self.lines.sort(key=lambda line: PRIORITY[line.run.kind])

    def _finish(self, line: Line, reason: str, *, lost: bool = False) -> None:
        line.stream.abandon()
        line.router.close(reason, lost=lost)
        self.lines.remove(line)
        self._plan_soon()

    def lose_kafka(self) -> None:
        """Kafka has refused a record: end all connections."""
        self.producer.purge()
        for line in tuple(self.lines):
            self._finish(line, "Kafka", lost=True)
            self.planner.closed(line.run, self.world.clock.now)

    # -- frames ------------------------------------------------------------------------------

    def _turn_soon(self) -> None:
        if not self._turn_due and not self.dead:
            self._turn_due = True
            self.world.clock.at(1, self._turn)

    def _turn(self) -> None:
        """Turn frames into items, some of each connection."""
        self._turn_due = False
        if self.dead or self.paused:
            return
        chance = self.world.clock.chance
        for line in tuple(self.lines):
            first = line.run.kind == MAINTENANCE
            if line.stream.inbox and (first or chance.random() < 0.5):
                self._drain(line, chance.randint(1, 6 if first else 2))
            if line.stream.is_over and line in self.lines:
                self._break_off(line)
            elif line.stream.inbox:
                self._turn_soon()

    def _drain(self, line: Line, count: int) -> None:
        frames = line.stream.inbox[:count]
        del line.stream.inbox[:count]
        refused = len(line.run.refused)
        for kind, body in frames:
            line.router.route(kind, body)
            if kind not in (Kind.MUTATIONS, Kind.SYNC):
                self._plan_soon()
        for vbucket in tuple(line.run.refused)[refused:]:
            log = self.world.store.log_of(line.run.bucket, vbucket, self.planner.buckets)
            branches = tuple(FailoverBranch(*branch) for branch in log)
            self.producer.control(vbucket, FailoverLog(line.run.bucket, vbucket, branches, 0))
        if not line.stream.inbox or self.world.clock.hit(0.5):
            line.router.flush()
        line.stream.wake()

    def _break_off(self, line: Line) -> None:
        run = line.run
        over = not run.positions and len(run.ended) == len(run.vbuckets)
        self.world.trace(f"projector {self.number}: {run.connection} is over: {over}")
        self._finish(line, "done" if over else line.stream.reason)
        self.planner.closed(run, self.world.clock.now)

    # -- what is told ------------------------------------------------------------------------

    def _period(self) -> None:
        if self.dead:
            return
        self.world.clock.at(PERIOD_MS, self._period)
        if self.paused:
            return
        self._plan_soon()
        self._periods += 1
        if self._periods % REPEAT_PERIODS == 0:
            for line in self.lines:
                line.router.repeat()
        for answer in sorted(self._answers):
            self.shell.say_routed(*answer)
        self.shell.say_alive(
            self.planner.seen(),
            self.planner.waiting(self.world.clock.now),
            backfills=self.planner.progress(),
            topics=self.world.store.status(self),
        )

    # -- its end -----------------------------------------------------------------------------

    def die(self) -> None:
        self.dead = True
        for line in self.lines:
            line.stream.abandon()
        self.producer.die()

    def pause(self) -> None:
        self.paused = True
        self.producer.stop()

    def go_on(self) -> None:
        if self.paused and not self.dead:
            self.paused = False
            self.producer.go_on()
            self._take_notes()
            self._turn_soon()
            self._plan_soon()
            self.read_state()

    def is_settled(self) -> bool:
        """Tell whether it has sent all that there is, and waits for nothing."""
        planner = self.planner
        if self.paused or not planner.complete or planner.waiting(self.world.clock.now):
            return False
        if planner.catchups or planner.passes or not self.producer.is_empty:
            return False
        for bucket, runs in planner.maintenance.items():
            vbuckets = self.world.store.buckets[bucket]
            owned = {v.number for v in vbuckets if v.owner == self.number}
            positions = {v: run.positions[v] for run in runs for v in run.begun()}
            if any(positions.get(v) != vbuckets[v].high for v in owned):
                return False
        return all(not line.stream.inbox for line in self.lines)

    def stands(self) -> str:
        planner = self.planner
        runs = {
            b: [(run.number, run.positions, sorted(run.carried)) for run in runs]
            for b, runs in planner.maintenance.items()
        }
        return (
            f"projector {self.number}: paused {self.paused} complete {planner.complete} "
            f"waiting {planner.waiting(self.world.clock.now)} maintenance {runs} "
            f"passes {[(r.connection, r.positions) for r in planner.passes.values()]} "
            f"catch-ups {[(r.connection, r.positions) for r in planner.catchups]} "
            f"unsent {not self.producer.is_empty}"
        )


class Projector(Shell[ProjectorProcess], ProjectorVoice):
    """A projector, and its processes."""

    kind = "projector"

    def __init__(self, world: PlaneWorld, number: int) -> None:
        super().__init__(world, number, ProjectorProcess)
        world.clock.at(world.clock.delay() + 50, self.start)

    def heal(self) -> None:
        super().heal()
        assert self.process is not None
        self.process.producer.slow_ms = 0
        self.process.go_on()

    def ear(self, record: Any) -> Ear | None:
        heeded = isinstance(record, HwHeartbeat | CatchUpRequested)
        return self.process.hear if self.process is not None and heeded else None
