"""A machine with a disk, and the shell that feeds a production `Node` and does what it asks.

The shell does what `coordinator.core.effects` says and nothing more. What can go wrong in a real
one goes wrong here: the process dies between two effects, is stopped and comes back as a zombie,
is cut off from the network; batches that were not synced are lost as a suffix; the disk is full;
the answer to an append or to the end of a transaction gets lost, on the way there or back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from immutables import Map

from coordinator.core import effects as fx
from coordinator.core import inputs as inp
from coordinator.core import state as states
from coordinator.core.authority_state import AuthorityState
from coordinator.core.commands import Position
from coordinator.core.config import NodeConfig
from coordinator.core.node import Node
from coordinator.core.records import Event, ProposalAnswered
from coordinator.core.types import Instant
from tests.simulation.broker import ABORTED, COMMITTED, Fenced, Session
from tests.simulation.clock import WALL_MS

if TYPE_CHECKING:
    from tests.simulation.world import World

TICK_MS = 50
PATIENCE_MS = 700
"""After this the shell reports a lost append or a silent producer."""


class ReprCodec:
    """A deterministic encoding that needs no schema."""

    def encode_entity(self, entity: Any) -> bytes:
        return repr(entity).encode()


class Content(NamedTuple):
    """What is on a disk after some batch."""

    finished: bool = False
    applied: int = -1
    authority: AuthorityState | None = None
    rows: Map[int, Any] = Map()
    log: inp.LocalLog | None = None
    cas: int = 0
    digest: int = 0
    entities: Map[str, Any] = Map()


class Disk:
    """A store of atomic batches: those after the last sync may be lost, the newest first."""

    def __init__(self) -> None:
        self.contents: list[Content] = [Content()]
        self.full = False
        self.refusing = False
        self.durable_logs: set[int] = set()

    @property
    def newest(self) -> Content:
        return self.contents[-1]

    def write(self, save: fx.Save) -> Content:
        """Apply a batch in memory and return the content after it."""
        old = Content() if save.wipe else self.newest
        entities = old.entities.mutate()
        for key, versioned in save.changes:
            if versioned is not None:
                entities[key] = versioned
            elif key in entities:
                del entities[key]
        rows = old.rows
        for number, row in save.rows:
            rows = rows.set(number, row)
        authority = None if save.authority is None else replace(save.authority, log=Map())
        content = Content(
            save.authority is not None,
            save.applied,
            authority,
            rows,
            save.log,
            save.cas,
            save.digest,
            entities.finish(),
        )
        self.contents.append(content)
        return content

    def synced(self, content: Content) -> None:
        """Everything up to `content` survives from now on."""
        position = next((i for i, c in enumerate(self.contents) if c is content), None)
        if position is None:
            return
        del self.contents[:position]
        if content.log is not None:
            self.durable_logs.add(content.log.offset)

    def crash(self, kept: int) -> None:
        """Lose all but `kept` of the batches that were not synced."""
        del self.contents[1 + kept :]
        if self.newest.log is not None:
            self.durable_logs.add(self.newest.log.offset)

    def restore(self) -> inp.Restored | None:
        """Return what a starting node finds."""
        content = self.newest
        del self.contents[:-1]
        if not content.finished or content.authority is None:
            return None
        authority = content.authority
        first = max(0, authority.log_next - authority.log_capacity)
        rows = {n: content.rows[n] for n in range(first, authority.log_next) if n in content.rows}
        authority = replace(authority, log=Map(rows))
        state = states.restore(content.cas, content.entities.items())
        return inp.Restored(content.applied, authority, state, content.log)


class Machine:
    """One node of the cluster: disk, process, network connection."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.clock = world.clock
        self.broker = world.broker
        self.number = number
        self.disk = Disk()
        self.node: Node | None = None
        self.life = 0
        self.paused = False
        self.cut = False
        self.fuse = -1
        self.skew_ms = world.clock.chance.randint(-200, 200)
        self.slow_ms = 0
        self.inbox: deque[inp.Input] = deque()
        self.waiting: dict[int, Any] = {}
        self._work: deque[Callable[[], None]] = deque()
        self._working = False
        self._producer = 0
        self._session: Session | None = None
        self._written = -1
        self._follow = -1
        self._following = False
        self._ddl_at = -1
        self._ddl_reader = 0
        self._ddl_busy = False
        self.broker["commit"].listeners.append(self._commit_moved)
        self.broker["ddl"].listeners.append(self._ddl_moved)

    @property
    def up(self) -> bool:
        return self.node is not None

    # -- life --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, if it is not running."""
        if self.node is not None:
            return
        world = self.world
        self.life += 1
        config = NodeConfig(
            node=self.number,
            incarnation=self.number * 1_000 + self.life,
            address=f"node{self.number}",
            pid=self.life,
            **world.config,
        )
        self.node = Node(config, world.codec)
        world.trace(f"node {self.number} starts, life {self.life}")
        restored = self.disk.restore()
        if restored is not None:
            world.judge.restored(self.number, restored)
        commit = self.broker["commit"]
        self.feed(inp.Started(restored, commit.start, commit.stable))
        self.clock.at(self.clock.chance.randrange(TICK_MS), self._tick, self.life)

    def crash(self, why: str = "crash") -> None:
        """End the process here and now."""
        if self.node is None:
            return
        self.world.trace(f"node {self.number} ends: {why}")
        self.node = None
        self.life += 1
        self.paused = False
        self.fuse = -1
        self.inbox.clear()
        self.waiting.clear()
        self._drop_producer()
        self._follow = -1
        self._following = False
        self._ddl_reader += 1
        self._ddl_at = -1
        self._ddl_busy = False
        unsynced = len(self.disk.contents) - 1
        self.disk.crash(self.clock.chance.randint(0, unsynced))
        self.disk.refusing = False
        self.world.judge.ended(self.number)

    def wipe(self) -> None:
        """Empty the folder of a node that is down."""
        assert self.node is None
        logs = self.disk.durable_logs
        self.disk = Disk()
        self.disk.durable_logs = logs

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        while self.inbox and self.node is not None and not self.paused:
            self._step(self.inbox.popleft())

    def feed(self, event: inp.Input) -> None:
        """Give the node an input, at once or when it is awake again."""
        if self.node is None:
            return
        if self.paused:
            self.inbox.append(event)
        else:
            self._step(event)

    def _step(self, event: inp.Input) -> None:
        node = self.node
        assert node is not None
        world = self.world
        now = self.clock.now
        life = self.life
        instant = Instant(now, WALL_MS + now + self.skew_ms)
        found = node.step(instant, event)
        world.stepped(self, event, found)
        for effect in found:
            if self.fuse >= 0:
                self.fuse -= 1
                if self.fuse < 0:
                    self.crash("crash between two effects")
                    self.clock.at(400 + 30 * self.clock.delay(), self.start)
                    return
            EFFECTS[type(effect)](self, effect)
            if self.life != life:
                return

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        if not self.paused:
            self.feed(inp.Tick())
        self.clock.at(TICK_MS + self.clock.chance.randint(-8, 8), self._tick, self.life)

    def later(self, delay_ms: int, event: inp.Input) -> None:
        """Give an input to this life of the node after a while."""
        self.clock.at(delay_ms, self._later, self.life, event)

    def _later(self, life: int, event: inp.Input) -> None:
        if life == self.life:
            self.feed(event)

    # -- reading commit ----------------------------------------------------------------------

    def _do_follow(self, effect: fx.Follow) -> None:
        self._follow = effect.offset
        self._commit_moved()

    def _commit_moved(self) -> None:
        if self._follow < 0 or self._following or self.broker["commit"].stable <= self._follow:
            return
        self._following = True
        self.clock.at(self.clock.delay(), self._deliver_commit, self.life)

    def _deliver_commit(self, life: int) -> None:
        if life != self.life:
            return
        if self.cut or self.paused:
            self.clock.at(60, self._deliver_commit, life)
            return
        limit = self.clock.chance.choice((1, 2, 3, 500))
        commit = self.broker["commit"]
        found = commit.read(self._follow, limit)
        self._following = False
        if len(found) < limit:
            self._follow = commit.stable
        else:
            self._follow = found[-1].offset + 1
        if found:
            self.feed(inp.CommitRead(tuple(inp.Entry(r.offset, r.value) for r in found)))
        if life == self.life:
            self._commit_moved()

    # -- plain records -----------------------------------------------------------------------

    def _do_append(self, effect: fx.Append) -> None:
        faults, clock = self.world.faults, self.clock
        life = self.life
        failed = inp.AppendFailed(effect.token, "timed out")
        if self.cut or clock.hit(faults.append_lost):
            self.later(PATIENCE_MS, failed)
            return
        if clock.hit(faults.append_unknown):
            self.later(PATIENCE_MS, failed)
            clock.at(clock.chance.randint(1, 2_500), self._land, life, effect)
            return
        clock.at(clock.delay(), self._land, life, effect)
        if clock.hit(faults.append_doubled):
            clock.at(clock.chance.randint(1, 1_500), self._land, life, effect)

    def _land(self, life: int, effect: fx.Append) -> None:
        offset = self.broker["commit"].append(effect.record, None, self.clock.now)
        if life == self.life:
            self._written = max(self._written, offset)

    def _do_examine(self, effect: fx.Examine) -> None:
        self.clock.at(self.clock.delay(), self._examine, self.life, effect.token)

    def _examine(self, life: int, token: int) -> None:
        end = -1 if self.cut else self.broker["commit"].stable
        self.later(self.clock.delay(), inp.Examined(token, end, self._written, "cut off"))

    def _do_answer(self, effect: fx.Answer) -> None:
        record = effect.record
        if isinstance(record, ProposalAnswered):
            self.world.judge.answered(self, record)
        if not self.cut and not self.clock.hit(self.world.faults.ack_lost):
            self.world.acknowledge(record, self.slow_ms)

    def _do_beat(self, effect: fx.Beat) -> None:
        if not self.cut:
            self.world.beat(effect.record, self.slow_ms)

    # -- the store ---------------------------------------------------------------------------

    def _do_save(self, effect: fx.Save) -> None:
        disk = self.disk
        if disk.full or disk.refusing:
            disk.refusing = True
            self.later(self.clock.delay(), inp.StoreFailed(effect.token, "the disk is full"))
            return
        if effect.authority is not None:
            self.world.judge.saved(self.number, effect)
        content = disk.write(effect)
        if effect.sync:
            self.clock.at(self.clock.delay(), self._synced, self.life, effect.token, content)
        elif self.clock.hit(0.1):
            disk.synced(content)

    def _synced(self, life: int, token: int, content: Content) -> None:
        if life == self.life:
            self.disk.synced(content)
            self.feed(inp.Stored(token))

    def _do_probe(self, effect: fx.Probe) -> None:
        if self.disk.full:
            self.later(self.clock.delay(), inp.StoreFailed(effect.token, "the disk is full"))
        else:
            self.disk.refusing = False
            self.later(self.clock.delay(), inp.Stored(effect.token))

    # -- the transactional producer ----------------------------------------------------------

    def _enqueue(self, work: Callable[[], None]) -> None:
        """Have the producer's thread do this after all before it."""
        self._work.append(work)
        if not self._working:
            self._working = True
            self._next()

    def _next(self) -> None:
        if self._work:
            self._work.popleft()()
        else:
            self._working = False

    def _go_on(self, producer: int) -> None:
        if producer == self._producer:
            self._next()

    def _call(
        self,
        token: int,
        what: Callable[[Callable[[Any], None]], None],
        answer: Callable[[Any], None],
    ) -> None:
        """Make one call to the broker over a network that may lose it, or its answer.

        `what` runs at the broker and calls back with its result; a fault or `Fenced` ends in
        `ProducerFailed`, after which the thread goes on with what comes next.
        """
        producer, clock, faults = self._producer, self.clock, self.world.faults
        settled = False

        def fail(reason: str) -> None:
            nonlocal settled
            if not settled and producer == self._producer:
                settled = True
                self._session = None
                self.feed(inp.ProducerFailed(token, reason))
                self._go_on(producer)

        def back(result: Any) -> None:
            if lost_back:
                if clock.hit(0.5):
                    clock.at(clock.delay(), fail, "disconnected")
                return
            clock.at(clock.delay(), arrive, result)

        def arrive(result: Any) -> None:
            nonlocal settled
            if not settled and producer == self._producer:
                settled = True
                answer(result)
                self._go_on(producer)

        def there() -> None:
            if self.cut:
                return
            try:
                what(back)
            except Fenced as error:
                clock.at(clock.delay(), fail, str(error))

        lost_there = self.cut or clock.hit(faults.call_lost)
        lost_back = clock.hit(faults.answer_lost)
        if not lost_there:
            slow = clock.chance.randint(1, 1_500) if clock.hit(faults.call_slow) else 0
            clock.at(clock.delay() + slow, there)
        clock.at(4 * PATIENCE_MS, fail, "the broker does not answer")

    def _do_open(self, effect: fx.OpenProducer) -> None:
        def opened(session: Session) -> None:
            self._session = session
            self.feed(inp.ProducerOpened(effect.token))

        self._enqueue(
            lambda: self._call(
                effect.token, lambda back: self.broker.initialise(self.number, back), opened
            )
        )

    def _do_close(self, effect: fx.CloseProducer) -> None:
        self._drop_producer()

    def _drop_producer(self) -> None:
        """Forget the producer; calls under way may still reach the broker."""
        self._producer += 1
        self._session = None
        self._work.clear()
        self._working = False

    def _in_transaction(
        self,
        token: int,
        what: Callable[[Session, Callable[[Any], None]], None],
        answer: Callable[[Any], None],
    ) -> None:
        def work() -> None:
            session = self._session
            if session is None:
                self.later(1, inp.ProducerFailed(token, "there is no producer"))
                self._next()
                return
            self._call(token, lambda back: what(session, back), answer)

        self._enqueue(work)

    def _do_write_events(self, effect: fx.WriteEvents) -> None:
        def write(session: Session, back: Callable[[Any], None]) -> None:
            send = self.broker.send
            back(tuple(send(session, "statecontext", event) for event in effect.events))
            if self.clock.hit(self.world.faults.end_late):
                self.clock.at(self.clock.delay(), self.broker.end_late)

        def written(offsets: tuple[int, ...]) -> None:
            self.feed(inp.Written(effect.token, offsets))

        self._in_transaction(effect.token, write, written)

    def _do_write_history(self, effect: fx.WriteHistory) -> None:
        def write(session: Session, back: Callable[[Any], None]) -> None:
            for event in effect.events:
                self.broker.send(session, "history", event)
            back(None)

        self._in_transaction(0, write, lambda result: None)

    def _do_conclude(self, effect: fx.Conclude) -> None:
        def conclude(session: Session, back: Callable[[Any], None]) -> None:
            self.broker.check(session)
            self.world.judge.concluding(self, session, effect)
            for record in effect.records:
                self.broker.send(session, "commit", record)
            for reply in effect.replies:
                self.broker.send(session, "ddl-replies", reply)
            for letter in effect.dead_letters:
                self.broker.send(session, "dead-letter", letter)
            self.broker.end(session, COMMITTED, lambda: back(None))

        self._in_transaction(
            effect.token, conclude, lambda result: self.feed(inp.Ended(effect.token))
        )

    def _do_abandon(self, effect: fx.Abandon) -> None:
        def abandon(session: Session, back: Callable[[Any], None]) -> None:
            self.broker.end(session, ABORTED, lambda: back(None))

        self._in_transaction(
            effect.token, abandon, lambda result: self.feed(inp.Ended(effect.token))
        )

    # -- reading statecontext ----------------------------------------------------------------

    def _do_synchronise(self, effect: fx.Synchronise) -> None:
        self.clock.at(self.clock.delay(), self._synchronise, self.life, effect, 0, -1)

    def _synchronise(self, life: int, effect: fx.Synchronise, position: int, goal: int) -> None:
        """Read to the CAS or to the stable offset, then measure again and read to that."""
        if life != self.life:
            return
        partition = self.broker["statecontext"]
        stable = partition.stable
        again = self.clock.delay()
        if self.cut or self.paused or stable + self.world.cas_base <= effect.cas:
            self.clock.at(again + 20, self._synchronise, life, effect, position, goal)
            return
        target = stable if goal < 0 else goal
        limit = self.clock.chance.choice((2, 50))
        found = [r for r in partition.read(position, limit) if r.offset < target]
        whole = len(found) < limit
        if whole and goal < 0:
            goal = partition.stable
        elif whole:
            self.feed(inp.SyncRead(effect.token, self._dated(found), True))
            return
        position = found[-1].offset + 1 if found else position
        self.clock.at(again, self._synchronise, life, effect, position, goal)
        if found:
            self.feed(inp.SyncRead(effect.token, self._dated(found), False))

    def _dated(self, found: list[Any]) -> tuple[Event, ...]:
        base = self.world.cas_base
        return tuple(
            Event(r.value.mutation, r.value.txn, r.value.index, r.value.count, base + r.offset)
            for r in found
        )

    def _do_read_tail(self, effect: fx.ReadTail) -> None:
        self.clock.at(2 * self.clock.delay(), self._tail, self.life, effect)

    def _tail(self, life: int, effect: fx.ReadTail) -> None:
        if life != self.life:
            return
        if self.cut or self.paused:
            self.clock.at(60, self._tail, life, effect)
            return
        first = effect.cas + 1 - self.world.cas_base
        found = self.broker["statecontext"].read(max(0, first))
        self.feed(inp.TailRead(effect.token, self._dated(found)))

    # -- ddl ---------------------------------------------------------------------------------

    def _do_read_ddl(self, effect: fx.ReadDdl) -> None:
        self._ddl_reader += 1
        self._ddl_busy = False
        self._ddl_at = dict(effect.consumed).get(0, -1) + 1
        self._ddl_moved()

    def _do_stop_ddl(self, effect: fx.StopDdl) -> None:
        self._ddl_reader += 1
        self._ddl_busy = False
        self._ddl_at = -1

    def _ddl_moved(self) -> None:
        if self._ddl_at < 0 or self._ddl_busy or self.broker["ddl"].end <= self._ddl_at:
            return
        self._ddl_busy = True
        self.clock.at(self.clock.delay(), self._deliver_ddl, self._ddl_reader)

    def _deliver_ddl(self, reader: int) -> None:
        if reader != self._ddl_reader:
            return
        if self.cut or self.paused:
            self.clock.at(60, self._deliver_ddl, reader)
            return
        found = self.broker["ddl"].read(self._ddl_at, self.clock.chance.choice((1, 3, 50)))
        self._ddl_busy = False
        if found:
            self._ddl_at = found[-1].offset + 1
            requests = tuple(replace(r.value, position=Position(0, r.offset)) for r in found)
            self.feed(inp.DdlRead(requests))
        if reader == self._ddl_reader:
            self._ddl_moved()

    # -- the rest ----------------------------------------------------------------------------

    def ask(self, event: inp.Requested | inp.ReadRequested, token: int, who: Any) -> None:
        """A client's call has arrived."""
        if self.node is None:
            return
        self.waiting[token] = who
        self.feed(event)

    def _do_reply(self, effect: fx.Reply) -> None:
        who = self.waiting.pop(effect.token, None)
        self.world.judge.replied(self, effect, who)
        if who is not None:
            self.clock.at(self.clock.delay(), who.heard, effect.token, effect.outcome)

    def _do_bury(self, effect: fx.Bury) -> None:
        self.broker["dead-letter"].append(effect.letter, None, self.clock.now)

    def _do_note(self, effect: fx.Note) -> None:
        self.world.trace(f"node {self.number}: {effect.message}")

    def _do_halt(self, effect: fx.Halt) -> None:
        self.world.trace(f"node {self.number} halts: {effect.code}: {effect.message}")
        self.world.judge.halted(self, effect)
        self.crash(f"halt {effect.code}")
        if effect.rebuild:
            self.wipe()
        if not effect.final:
            self.clock.at(500, self.start)


EFFECTS: dict[type, Callable[[Machine, Any], None]] = {
    fx.Follow: Machine._do_follow,
    fx.Append: Machine._do_append,
    fx.Answer: Machine._do_answer,
    fx.Beat: Machine._do_beat,
    fx.Save: Machine._do_save,
    fx.Probe: Machine._do_probe,
    fx.Examine: Machine._do_examine,
    fx.OpenProducer: Machine._do_open,
    fx.CloseProducer: Machine._do_close,
    fx.WriteEvents: Machine._do_write_events,
    fx.WriteHistory: Machine._do_write_history,
    fx.Conclude: Machine._do_conclude,
    fx.Abandon: Machine._do_abandon,
    fx.Synchronise: Machine._do_synchronise,
    fx.ReadTail: Machine._do_read_tail,
    fx.ReadDdl: Machine._do_read_ddl,
    fx.StopDdl: Machine._do_stop_ddl,
    fx.Reply: Machine._do_reply,
    fx.Bury: Machine._do_bury,
    fx.Note: Machine._do_note,
    fx.Halt: Machine._do_halt,
}
