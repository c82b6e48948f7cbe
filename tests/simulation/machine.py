"""A machine with a disk, and the shell that feeds a production `Node` and does what it asks.

The shell does what `coordinator.core.consensus.effects` says and nothing more. What can go wrong in
a real one goes wrong here: the process dies between two effects, is stopped and comes back as a
zombie, is cut off from the network; batches that were not synced are lost as a suffix; the disk is
full; the answer to an append or to the end of a transaction gets lost, on the way there or back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coordinator.core.catalog.snapshots import Assembly, chunks
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.full_sync import COMPACTED, COPY, HISTORY
from coordinator.core.consensus.liveness import START_PATIENCE
from coordinator.core.consensus.scrubber import Scrubber
from coordinator.core.history.feed import Feed
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.records import Event, ProposalAnswered
from coordinator.core.model.types import Instant
from coordinator.core.node import Node
from coordinator.kafka.topics import ACKS, HEARTBEAT, HW
from tests.simulation.coverage import STEPS_OF_EFFECT, steps_of_input
from tests.simulation.ddl_reader import DdlReader
from tests.simulation.disk import Batch, Disk
from tests.simulation.kernel.actor import Actor, Ear
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.meter import metered
from tests.simulation.producer import ProducerThread

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PROCESS_STOPS = frozenset({"pause", "zombie"})
"""The faults that stop a process as a whole, and end with it."""

TICK_MS = 50
AGAIN_MS = 60
"""After this what could not be read is tried again."""

PATIENCE_MS = 700
"""After this the shell reports a lost append."""

TAIL_WAIT_MS = 1_000
"""So long the shell waits for the last events of `history`."""

KEPT_MAX, WAITING_MAX = 8, 12
"""What a feed keeps, and what waits for a watcher: little, so that both are too little at times."""


class Machine(Actor):
    """One node of the cluster: disk, process, network connection."""

    def __init__(self, world: Cluster, number: int) -> None:
        self.world = world
        self.clock = world.clock
        self.broker = world.broker
        self.number = number
        self.disk = Disk()
        self.node: Node | None = None
        self.incarnation = 0
        self.paused = False
        self.deaf = False
        self.mute = False
        self.cut_topics: set[str] = set()
        self.lossy = False
        self.doubling = False
        self.slow_ms = 0
        self.fuse = -1
        self.skew_ms = world.clock.chance.randint(-200, 200)
        self.step = "start"
        self.active: dict[str, int] = {}
        self.flipped = False
        self.dead_reader = ""
        """The topic whose reader has stopped; the process does not know."""
        self.changes = Feed()
        self.inbox: deque[inp.Input] = deque()
        self.waiting: dict[int, Any] = {}
        self.producer = ProducerThread(self)
        self._rate = 1.0
        self._mono_ms = self._mono_since_ms = 0
        self._rest: list[fx.Effect] = []
        self._written = -1
        self._follow = -1
        self._following = False
        self.ddl = DdlReader(self)
        self.broker["commit"].listeners.append(self._commit_moved)

    # -- the clock ---------------------------------------------------------------------------

    @property
    def mono_ms(self) -> int:
        """The monotonic clock: it may run at another rate, and never goes back."""
        return self._mono_ms + int((self.clock.now - self._mono_since_ms) * self._rate)

    def run_at(self, rate: float) -> None:
        """Let the monotonic clock run at this rate from now on."""
        self._mono_ms, self._mono_since_ms, self._rate = self.mono_ms, self.clock.now, rate

    def after(self, pause_ms: int, call: Callable[[], None]) -> None:
        """Call after so long by this machine's own clock, whatever becomes of its rate."""
        until_ms = self.mono_ms + pause_ms

        def look() -> None:
            left_ms = until_ms - self.mono_ms
            if left_ms > 0:
                self.clock.at(max(1, int(left_ms / self._rate)), look)
            else:
                call()

        look()

    # -- the network -------------------------------------------------------------------------

    @property
    def cut(self) -> bool:
        """Whether the machine is cut off in both directions."""
        return self.deaf and self.mute

    @cut.setter
    def cut(self, cut: bool) -> None:
        self.deaf = self.mute = cut

    def slow(self) -> int:
        """Return how much longer a message takes to or from this machine."""
        if not self.slow_ms:
            return 0
        return self.clock.chance.randint(0, self.slow_ms)

    def loses(self, probability: float) -> bool:
        """Tell whether a message to or from this machine gets lost."""
        if self.lossy and self.clock.chance.random() < 0.5:
            return True
        if self.clock.hit(probability):
            self.met("message loss")
            return True
        return False

    def met(self, fault: str) -> None:
        """A fault of the network has struck this machine."""
        self.world.coverage.struck(fault, self.step)

    # -- what the faults do ------------------------------------------------------------------

    def begin(self, fault: str) -> None:
        """A fault that lasts begins to act on this machine."""
        self.active[fault] = self.active.get(fault, 0) + 1
        self.world.coverage.struck(fault, self.step)

    def end(self, fault: str) -> bool:
        """One such fault ends; tell whether it was the last of its kind."""
        left = self.active.get(fault, 0) - 1
        if left > 0:
            self.active[fault] = left
            return False
        self.active.pop(fault, None)
        return True

    def heal(self) -> None:
        self.cut = self.lossy = self.doubling = False
        self.cut_topics.clear()
        self.active.clear()
        self.slow_ms = self.skew_ms = 0
        self.run_at(1.0)
        self.fuse = -1
        self.disk.full = self.disk.next_sync_fails = False
        self.resume()
        self.tend()
        self.start()

    def tend(self) -> None:
        """Start a node again that has left."""
        if self.node is not None and self.node.admission.has_left:
            self.crash("restart")
            self.start()

    @property
    def patience_ms(self) -> int:
        """Who had read nothing before is found out last."""
        late = self.dead_reader and self.number not in self.world.dead
        return START_PATIENCE * self.config.stall_ms if late else 0

    def unsettled(self) -> str:
        """A machine rests whose node is a member, and has what the log has; nobody waits for it."""
        node, judge = self.node, self.world.judge
        if self.number in self.world.dead:
            return ""
        if node is None:
            return f"node {self.number} is down"
        if (
            node.is_member
            and not self.waiting
            and (node.state.cas, node.state.digest) == (judge.last_cas, judge.truth.digest)
            and {group.cas for group in node.outcomes.kept()} == judge.remembered.keys()
        ):
            return ""
        return (
            f"node {self.number}: {node.role} {node.phase} CAS {node.state.cas} "
            f"epoch {node.authority.epoch if node.authority else 0} "
            f"candidacy={node.election.candidacy and node.election.candidacy.step} "
            f"waiting={len(self.waiting)} {node.why_not_ready}"
        )

    # -- processes ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process, if it is not running."""
        world = self.world
        if self.node is not None or self.number in world.dead:
            return
        self.incarnation += 1
        self.dead_reader = ""
        self.producer.calls_lost = 0
        self.config = NodeConfig(
            node=self.number,
            incarnation=self.number * 1_000 + self.incarnation,
            address=f"node{self.number}",
            pid=self.incarnation,
            **world.config,
        )
        self.node = Node(self.config, world.codec)
        self.changes = Feed(kept_max=KEPT_MAX, waiting_max=WAITING_MAX)
        world.trace(f"node {self.number} starts, incarnation {self.incarnation}")
        restored = self.disk.restore()
        if restored is not None and not self.flipped:
            world.judge.restored(self.number, restored)
        commit = self.broker["commit"]
        self.feed(inp.Started(restored, commit.start, commit.stable))
        self.at(self.clock.chance.randrange(TICK_MS), self._tick)

    def crash(self, why: str = "crash", kept: int | None = None) -> None:
        """End the process here and now, with `kept` of the unsynced batches (None: by chance)."""
        if self.node is None:
            return
        self.world.trace(f"node {self.number} ends: {why}")
        self.node = None
        self.changes.close()
        self.incarnation += 1
        self.paused = False
        self.fuse = -1
        self.inbox.clear()
        self.waiting.clear()
        self._rest = []
        for fault in PROCESS_STOPS & self.active.keys():
            del self.active[fault]
        self.producer.drop()
        self._follow = -1
        self._following = False
        self.ddl.stop()
        unsynced = len(self.disk.unsynced)
        self.disk.crash(self.clock.chance.randint(0, unsynced) if kept is None else kept)
        self.disk.refusing = False
        self.world.judge.ended(self.number)

    def wipe(self) -> None:
        """Empty the folder of a node that is down."""
        assert self.node is None
        logs = self.disk.durable_prepared
        self.disk = Disk()
        self.disk.durable_prepared = logs

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Let the process go on where it stopped, perhaps between two effects."""
        if not self.paused:
            return
        self.paused = False
        self.producer.resume()
        rest, self._rest = self._rest, []
        self._carry_out(rest)
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
        instant = Instant(self.mono_ms, WALL_MS + now + self.skew_ms)
        steps = steps_of_input(self, event)
        incarnation = self.incarnation
        found, took_ms = self._timed_step(node, instant, event)
        world.stepped(self, event, found)
        for step in steps:
            world.take_step(self, step)
        if self.incarnation != incarnation:
            return
        if took_ms and not self.paused:
            self._rest += found
            self.pause()
            self.at(took_ms, self._step_ends)
        else:
            self._carry_out(found)

    def _timed_step(
        self, node: Node, instant: Instant, event: inp.Input
    ) -> tuple[list[fx.Effect], int]:
        """Take the step, and return how long it takes: 0 where steps take no time."""
        world = self.world
        if not world.calls_per_ms:
            return node.step(instant, event), 0
        found, calls = metered(lambda: node.step(instant, event))
        world.judge.step_took(self, event, calls)
        return found, calls // world.calls_per_ms

    def _step_ends(self) -> None:
        if not PROCESS_STOPS & self.active.keys():
            self.resume()

    def _carry_out(self, effects: list[fx.Effect]) -> None:
        """Carry effects out, unless the process ends or stops between two of them."""
        incarnation, world = self.incarnation, self.world
        for number, effect in enumerate(effects):
            if self.paused:
                self._rest += effects[number:]
                return
            if isinstance(effect, fx.Publish):
                # It stays in the process, and takes no time.
                self.changes.publish(effect.before, effect.events)
                continue
            if self.fuse >= 0:
                self.fuse -= 1
                if self.fuse < 0:
                    world.coverage.struck("crash between effects", self.step)
                    self.crash("crash between two effects")
                    self.clock.at(400 + 30 * self.clock.delay(), self.start)
                    return
            step = STEPS_OF_EFFECT.get(type(effect))
            name = step(self, effect) if step is not None else ""
            EFFECTS[type(effect)](self, effect)
            if name and self.incarnation == incarnation:
                world.take_step(self, name)
            if self.incarnation != incarnation:
                return

    def _tick(self) -> None:
        if not self.paused:
            self.feed(inp.Tick())
        self.at(TICK_MS + self.clock.chance.randint(-8, 8), self._tick)

    def at(self, delay_ms: int, what: Callable[..., None], *args: Any) -> None:
        """Have `what` called after a while, unless this process is over by then."""
        self.clock.at(delay_ms, self._in_incarnation, self.incarnation, what, args)

    def _in_incarnation(
        self, incarnation: int, what: Callable[..., None], args: tuple[Any, ...]
    ) -> None:
        if incarnation == self.incarnation:
            what(*args)

    def later(self, delay_ms: int, event: inp.Input) -> None:
        """Give an input to this incarnation of the node after a while."""
        self.at(delay_ms, self.feed, event)

    def when_it_reads(self, delay_ms: int, what: Callable[..., None], *args: Any) -> None:
        """Have `what` called after a while, and when the machine can read from the broker."""
        self.at(delay_ms, self._if_it_reads, what, args)

    def _if_it_reads(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self._cannot_read():
            self.when_it_reads(AGAIN_MS, what, *args)
        else:
            what(*args)

    # -- reading commit ----------------------------------------------------------------------

    def _do_follow(self, effect: fx.Follow) -> None:
        self._follow = effect.offset
        self._commit_moved()

    def _commit_moved(self) -> None:
        if self._follow < 0 or self._following or self.broker["commit"].stable <= self._follow:
            return
        self._following = True
        self.at(self.clock.delay() + self.slow(), self._deliver_commit)

    def _deliver_commit(self) -> None:
        if self.deaf or self.paused or self.dead_reader == "commit":
            self.at(AGAIN_MS, self._deliver_commit)
            return
        incarnation = self.incarnation
        limit = self.clock.chance.choice((1, 2, 3, 500))
        commit = self.broker["commit"]
        if self._follow < commit.start:
            self.crash("what it wants to read was trimmed")
            self.clock.at(500, self.start)
            return
        found = commit.read(self._follow, limit)
        self._following = False
        if len(found) < limit:
            self._follow = commit.stable
        else:
            self._follow = found[-1].offset + 1
        if found:
            event = inp.CommitRead(tuple(inp.Entry(r.offset, r.value) for r in found))
            if self.doubling:
                self.later(2 * self.clock.delay(), event)
            self.feed(event)
        if incarnation == self.incarnation:
            self._commit_moved()

    # -- plain records -----------------------------------------------------------------------

    def _do_append(self, effect: fx.Append) -> None:
        faults, clock = self.world.faults, self.clock
        failed = inp.AppendFailed(effect.token, "timed out")
        if self.mute or self.loses(faults.append_lost):
            self.later(PATIENCE_MS, failed)
            return
        if clock.hit(faults.append_unknown):
            self.met("delay")
            self.later(PATIENCE_MS, failed)
            clock.at(clock.chance.randint(1, 2_500), self._land, self.incarnation, effect)
            return
        if self.deaf:
            self.later(PATIENCE_MS, failed)
        clock.at(clock.delay() + self.slow(), self._land, self.incarnation, effect)
        if self.doubling or clock.hit(faults.append_doubled):
            self.met("duplication")
            clock.at(clock.chance.randint(1, 1_500), self._land, self.incarnation, effect)

    def _land(self, incarnation: int, effect: fx.Append) -> None:
        offset = self.broker["commit"].append(effect.record, None, self.clock.now)
        if incarnation == self.incarnation:
            self._written = max(self._written, offset)

    def _examine(self, effect: fx.Examine) -> None:
        cut = self.deaf or self.mute
        end = -1 if cut else self.broker["commit"].stable
        self.later(self.clock.delay(), inp.Examined(effect.token, end, self._written, "cut off"))

    def _do_answer(self, effect: fx.Answer) -> None:
        record = effect.record
        if isinstance(record, ProposalAnswered):
            self.world.judge.answered(self, record)
        if self._sends(ACKS, self.world.faults.ack_lost):
            self.world.network.send(ACKS, record, self.slow())
            if self.doubling:
                self.world.network.send(ACKS, record, self.clock.chance.randint(1, 1_500))

    def _do_beat(self, effect: fx.Beat) -> None:
        if self._sends(HEARTBEAT, 0.0):
            self.world.network.send(HEARTBEAT, effect.record, self.slow())

    def _do_ask(self, effect: fx.Ask) -> None:
        application = self.world.application
        if application is not None and self._sends("restart-request", 0.0):
            self.clock.at(5, application.asked, effect.record)

    def _do_close_connection(self, effect: fx.CloseConnection) -> None:
        """Whoever computes timestamps here does it from the store: it needs no connections."""

    def _sends(self, topic: str, probability: float) -> bool:
        return not (self.mute or topic in self.cut_topics or self.loses(probability))

    def ear(self, record: Any) -> Ear:
        return self.hear

    def hear(self, topic: str, record: Any) -> None:
        """A record of a topic that only members follow has come as far as this machine."""
        node = self.node
        if node is None or self.deaf or topic in self.cut_topics or topic == self.dead_reader:
            return
        if self.lossy and self.loses(0.0):
            return
        if topic == HEARTBEAT:
            self.feed(inp.BeatsRead((record,)))
        elif node.master is not None or self.paused:
            read = inp.StreamsRead if topic == HW else inp.AcksRead
            self.feed(read((record,)))

    # -- the store ---------------------------------------------------------------------------

    def _do_save(self, effect: fx.Save) -> None:
        disk = self.disk
        if disk.full or disk.refusing:
            disk.refusing = True
            self.world.coverage.struck("full disk", self.step)
            self.later(self.clock.delay(), inp.StoreFailed(effect.token, "the disk is full"))
            return
        if effect.authority is not None:
            self.world.judge.saved(self.number, effect)
        batch = disk.write(effect)
        if effect.sync and disk.next_sync_fails:
            disk.next_sync_fails = False
            disk.sync_failed()
            disk.refusing = True
            self.later(self.clock.delay(), inp.StoreFailed(effect.token, "the sync failed"))
        elif effect.sync:
            self.at(self.clock.delay(), self._synced, effect.token, batch)
        elif self.clock.hit(0.1) and not disk.next_sync_fails:
            disk.synced(batch)

    def _synced(self, token: int, batch: Batch) -> None:
        if not batch.doubtful:
            self.disk.synced(batch)
            self.feed(inp.Stored(token))

    def _do_probe(self, effect: fx.Probe) -> None:
        if self.disk.full:
            self.later(self.clock.delay(), inp.StoreFailed(effect.token, "the disk is full"))
        else:
            self.disk.refusing = False
            self.later(self.clock.delay(), inp.Stored(effect.token))

    # -- reading statecontext ----------------------------------------------------------------

    def _do_synchronise(self, effect: fx.Synchronise) -> None:
        if effect.source == COMPACTED:
            self.at(self.clock.delay(), self._synchronise, effect, 0, -1)
        else:
            self.when_it_reads(self.clock.delay(), self._read_source, effect, -1)

    def _synchronise(self, effect: fx.Synchronise, position: int, goal: int) -> None:
        """Read to the CAS or to the stable offset, then measure again and read to that."""
        partition = self.broker["statecontext"]
        stable = partition.stable
        again = self.clock.delay()
        if self._cannot_read() or stable + self.world.cas_base <= effect.cas:
            self.at(again + 20, self._synchronise, effect, position, goal)
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
        self.at(again, self._synchronise, effect, position, goal)
        if found:
            self.feed(inp.SyncRead(effect.token, self._dated(found), False))

    def _cannot_read(self) -> bool:
        return self.deaf or self.mute or self.paused

    def _read_source(self, effect: fx.Synchronise, gave_up_ms: int) -> None:
        """Read a copy, or the history, or the one and then the other."""
        held, above = self._copy(effect) if effect.source != HISTORY else ((), 0)
        events: list[Any] = []
        if effect.source != COPY:
            stored = self.broker["history"].read(0)
            events = [r.value for r in stored if r.value.cas > above]
            if gave_up_ms < 0:
                gave_up_ms = self.clock.now + TAIL_WAIT_MS
            if max((e.cas for e in events), default=0) < effect.cas > above and (
                self.clock.now < gave_up_ms
            ):
                self.when_it_reads(20, self._read_source, effect, gave_up_ms)
                return
        self.feed(inp.SyncRead(effect.token, (), False, held))
        half = len(events) // 2
        self.feed(inp.SyncRead(effect.token, tuple(events[:half]), False))
        self.feed(inp.SyncRead(effect.token, tuple(events[half:]), True))

    def _copy(self, effect: fx.Synchronise) -> tuple[tuple[Any, ...], int]:
        assembly = Assembly(effect.copy)
        held: list[Any] = []
        for stored in self.broker["snapshots"].read(effect.offset):
            held += assembly.add(stored.value)
        return tuple(held), assembly.cas

    def _take_snapshot(self, effect: fx.TakeSnapshot) -> None:
        """Write the copy; a process that ends meanwhile leaves a part of it."""
        if self._cannot_read() or self.loses(self.world.faults.call_lost):
            self.later(PATIENCE_MS, inp.SnapshotTaken(effect.token, -1, "the broker is away"))
            return
        partition = self.broker["snapshots"]
        offsets = [
            partition.append(chunk, None, self.clock.now)
            for chunk in chunks(effect.copy, effect.state)
        ]
        self.later(self.clock.delay(), inp.SnapshotTaken(effect.token, offsets[0]))

    def _scrub(self, effect: fx.Scrub) -> None:
        partition = self.broker["statecontext"]
        if partition.stable + self.world.cas_base <= effect.state.cas:
            self.when_it_reads(AGAIN_MS, self._scrub, effect)
            return
        scrubber = Scrubber(effect.state)
        scrubber.add(self._dated(partition.read(0)))
        self.later(self.clock.delay(), inp.Scrubbed(effect.token, scrubber.findings()))

    def _do_trim(self, effect: fx.Trim) -> None:
        if not self._cannot_read():
            self.world.judge.trimmed(self, effect.offset)
            self.broker.trim(effect.offset)

    def _dated(self, found: list[Any]) -> tuple[Event, ...]:
        base = self.world.cas_base
        return tuple(
            Event(r.value.mutation, r.value.txn, r.value.index, r.value.count, base + r.offset)
            for r in found
        )

    def _tail(self, effect: fx.ReadTail) -> None:
        first = effect.cas + 1 - self.world.cas_base
        found = self.broker["statecontext"].read(max(0, first))
        self.feed(inp.TailRead(effect.token, self._dated(found)))

    # -- the rest ----------------------------------------------------------------------------

    def ask(self, event: inp.Requested | inp.ReadRequested, token: int, who: Any) -> None:
        """A client's call has arrived."""
        if self.node is None:
            return
        self.waiting[token] = who
        ahead_ms = self.mono_ms - self.clock.now
        if ahead_ms and isinstance(event, inp.Requested):
            deadline_ms = event.request.deadline_ms + ahead_ms
            event = inp.Requested(replace(event.request, deadline_ms=deadline_ms))
        elif ahead_ms:
            event = replace(event, deadline_ms=event.deadline_ms + ahead_ms)
        self.feed(event)

    def _do_reply(self, effect: fx.Reply) -> None:
        who = self.waiting.pop(effect.token, None)
        self.world.judge.replied(self, effect, who)
        if who is not None:
            self.clock.at(self.clock.delay(), who.heard, effect.token, effect.outcome)

    def _do_send_dead_letter(self, effect: fx.SendDeadLetter) -> None:
        self.broker["dead-letter"].append(effect.dead_letter, None, self.clock.now)

    def _do_note(self, effect: fx.Note) -> None:
        self.world.trace(f"node {self.number}: {effect.message}")

    def _do_halt(self, effect: fx.Halt) -> None:
        self.world.trace(f"node {self.number} halts: {effect.code}: {effect.message}")
        self.world.judge.halted(self, effect)
        self.crash(f"halt {effect.code}")
        if effect.rebuild:
            self.flipped = False
            self.wipe()
        if not effect.final:
            self.clock.at(500, self.start)


EFFECTS: dict[type, Callable[[Machine, Any], None]] = {
    fx.Follow: Machine._do_follow,
    fx.Append: Machine._do_append,
    fx.Answer: Machine._do_answer,
    fx.Beat: Machine._do_beat,
    fx.Ask: Machine._do_ask,
    fx.CloseConnection: Machine._do_close_connection,
    fx.Save: Machine._do_save,
    fx.Probe: Machine._do_probe,
    fx.Examine: lambda machine, e: machine.clock.at(machine.clock.delay(), machine._examine, e),
    fx.OpenProducer: lambda machine, effect: machine.producer.open(effect),
    fx.CloseProducer: lambda machine, effect: machine.producer.drop(),
    fx.WriteEvents: lambda machine, effect: machine.producer.write_events(effect),
    fx.WriteHistory: lambda machine, effect: machine.producer.write_history(effect),
    fx.Conclude: lambda machine, effect: machine.producer.conclude(effect),
    fx.Abandon: lambda machine, effect: machine.producer.abandon(effect),
    fx.Synchronise: Machine._do_synchronise,
    fx.ReadTail: lambda machine, e: machine.when_it_reads(
        2 * machine.clock.delay(), machine._tail, e
    ),
    fx.TakeSnapshot: lambda machine, e: machine.at(
        machine.clock.delay() + machine.slow(), machine._take_snapshot, e
    ),
    fx.Scrub: lambda machine, e: machine.when_it_reads(machine.clock.delay(), machine._scrub, e),
    fx.Trim: Machine._do_trim,
    fx.ReadDdl: lambda machine, effect: machine.ddl.read(effect),
    fx.StopDdl: lambda machine, effect: machine.ddl.stop(),
    fx.Reply: Machine._do_reply,
    fx.SendDeadLetter: Machine._do_send_dead_letter,
    fx.Note: Machine._do_note,
    fx.Halt: Machine._do_halt,
}
