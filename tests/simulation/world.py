"""One simulated cluster and its fate: built from a seed, run, healed, and judged.

A seed decides everything: which kinds of faults there are at all (most seeds have a few of them,
often), when they strike, what clients ask for, how long each message takes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from coordinator import codec
from coordinator.client.request_ids import uuid7
from coordinator.core.catalog.state import DEFERRED, StateContext
from coordinator.core.consensus.effects import Effect
from coordinator.core.consensus.inputs import (
    AcksRead,
    BeatsRead,
    CommitRead,
    Input,
    Requested,
    Started,
    SyncRead,
)
from coordinator.core.consensus.liveness import START_PATIENCE
from coordinator.core.model.commands import OK, Outcome, PutSetting, Request
from coordinator.core.model.entities import READY, STREAMED, Index
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import HoldingsRequested, Unreadable
from tests.simulation.actors import Client, DdlWriter, Indexer, Operator
from tests.simulation.data_plane import Application, Projector, is_built
from tests.simulation.disk import ReprCodec
from tests.simulation.faults import ACTIONS, KINDS, LIKELY, Faults, strike
from tests.simulation.judge import Judge
from tests.simulation.kernel.broker import Broker, unchanged
from tests.simulation.kernel.clock import WALL_MS, Clock
from tests.simulation.kernel.coverage import Coverage
from tests.simulation.kernel.violation import require
from tests.simulation.machine import ACKS, HEARTBEAT, HW, Machine
from tests.simulation.meter import CALLS_PER_MS
from tests.simulation.schedule import Arm, arm, pair_of

JUDGED = (CommitRead, SyncRead, Started)
"""After these inputs a node is looked at."""
DAY_MS = 24 * 3_600_000
CODEC_SHARE, CODEC_REST = 8, 3
"""Of so many worlds, the one with this rest has the codec of production."""

METER_SHARE, METER_REST = 16, 7
"""Of so many worlds, the one with this rest has steps that take time, on machines of any speed."""

FAULTS_FROM_MS = 1_200
FAULTS_UNTIL_MS = 9_000
CONVERGED_BY_MS = 40_000


class World:
    """All of it."""

    option = ""
    """With it, the command line runs worlds of this kind."""

    def __init__(
        self,
        seed: int,
        *,
        plain: bool = False,
        tracing: bool = False,
        focus: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Build the world of a seed: `plain` without faults and clients, or with only the faults
        in `focus`; `more` goes into every node's configuration."""
        self.seed = seed
        self.focus = focus
        self.clock = Clock(seed)
        chance = self.clock.chance
        self.tracing = tracing
        self.lines: list[str] = []
        self.hash = 0
        self.steps = 0
        self.calls_per_ms = 0
        """How many calls of a step take 1 ms; 0: steps take no time."""
        self.travels: Callable[[Any], Any] = unchanged
        """What a record goes through on its way."""
        self.codec: EntityCodec = ReprCodec()
        self.evicting = False
        self.timed_ids = False
        self.healed = False
        self.coverage = Coverage(worlds=1)
        self.arms: dict[str, list[Arm]] = {}
        self.cas_base = chance.choice((1, 1_000))
        self.config = self._config(chance, plain, **more)
        self.broker = Broker(self.clock)
        if seed % CODEC_SHARE == CODEC_REST:
            self._use_the_real_codec()
        self.machines: dict[int, Machine] = {}
        self.faults = Faults()
        self.clocks_were_set = False
        self.dead: set[int] = set()
        """Nodes that died for good, also when all is healed."""
        self.ahead_ms = 0
        """By how much the clocks of clients are ahead."""
        self.damaged = False
        """Transactions end as no client of ours could end them."""
        self.think_ms = 700
        self.alarms_expected: set[str] = set()
        self.judge = Judge(self)
        self._token = 0
        self._last: LastCall | None = None
        for number in self.config["roster"]:
            self.machines[number] = Machine(self, number)
        self.projectors: list[Projector] = []
        self.application: Application | None = None
        self.indexers = self._make_indexers()
        self.clients: list[Client] = []
        self.writers: list[DdlWriter] = []
        if seed % METER_SHARE == METER_REST and not plain:
            self.calls_per_ms = CALLS_PER_MS // chance.choice((1, 10, 40))
        for machine in self.machines.values():
            self.clock.at(chance.randint(0, 150), machine.start)
        if not plain:
            self._populate()
            self._plan()

    def _use_the_real_codec(self) -> None:
        """Everything that travels or is kept is encoded and decoded, as in production."""
        self.codec = codec.Codec()
        self.travels = encoded_and_decoded
        for partition in self.broker.partitions.values():
            partition.through = encoded_and_decoded

    def _config(self, chance: Any, plain: bool, **more: Any) -> dict[str, Any]:
        config = {
            "roster": (1, 2, 3),
            "cluster_id": "simulated",
            "cas_base": self.cas_base,
            "election_timeout_ms": 1_000,
            "election_stagger_ms": 300,
            "ack_timeout_ms": 200,
            "verdict_timeout_ms": 3_000,
            "open_timeout_ms": 3_000,
            "ddl_timeout_ms": 2_000,
            "probe_ms": 400,
            "restart_wait_ms": 500,
            "restart_pause_ms": 1_500,
            "scrub_ms": 4_000,
            "copy_wait_ms": 1_500,
        }
        if not plain:
            config["group_mutations_max"] = chance.choice((256, 256, 6))
            config["snapshot_bytes"] = chance.choice((1 << 30, 64 * 15))
            # Short ones let candidates fence each other, which a real stagger avoids.
            config["election_stagger_ms"] = chance.choice((50, 300))
            config["look_ms"] = chance.choice((100, 500))
            config["log_capacity"] = chance.choice((1_000, 4))
            self.evicting = chance.random() < 0.15
            self.timed_ids = chance.random() < 0.3
            self.ahead_ms = chance.choice((0, 0, 0, 60_000, 400_000))
            config["request_window_ms"] = 4_000 if self.evicting else 7 * DAY_MS
            config["group_bytes_max"] = chance.choice((512 * 1024, 512 * 1024, 512 * 1024, 4_000))
            if chance.random() < 0.1:
                config["roster"] = (1, 2, 3, 4, 5)
        config.update(more)
        return config

    def _make_indexers(self) -> list[Indexer]:
        return [Indexer(self, number) for number in (0, 1, 2)]

    def _populate(self) -> None:
        chance = self.clock.chance
        quietly = chance.random() < 0.12 and pair_of(self.seed) is None
        if quietly or "few_writes" in self.focus:
            self._populate_quietly()
            return
        if streams_in(self.seed):
            self.projectors = [Projector(self, number) for number in (0, 1)]
            for projector in self.projectors:
                projector.refusing = chance.choice((0.0, 0.0, 0.05))
            if self.seed % 2 == 0:
                self.application = Application(self)
        self.think_ms = chance.choice((200, 700, 700, 2_000))
        for number in range(chance.randint(2, 4)):
            self.clients.append(Client(self, number, chance.randint(4, 12)))
        self.writers.append(DdlWriter(self, chance.choice((0, 4, 8, 16))))
        refusing = chance.choice((0.0, 0.0, 0.2))
        for indexer in self.indexers:
            indexer.refusing = refusing

    def _populate_quietly(self) -> None:
        """One client that writes now and then, at any node; the others are always refused.

        Only so does a deposed master that does not know it get to refuse anything: the first
        command that it would accept takes it into a transaction that never ends.
        """
        chance = self.clock.chance
        for number in range(4):
            client = Client(self, number, 5 if number == 0 else 30)
            client.doomed = number != 0
            client.think_ms = 2_500 if number == 0 else 300
            client.wandering = 1.0 if number == 0 else chance.choice((0.0, 0.2))
            self.clients.append(client)

    # -- faults ------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Choose which faults this seed has, and when they strike."""
        chance = self.clock.chance
        focus = self.focus
        directed = pair_of(self.seed) is not None
        kinds = [n for n in LIKELY if (n in focus if focus else chance.random() < 0.25)]
        kinds = [] if directed else kinds
        for name in kinds:
            self.clock.at(FAULTS_FROM_MS, setattr, self.faults, name, LIKELY[name])
        self.damaged = "end_late" in kinds
        self.clock.spread_ms = chance.choice((4, 12, 12, 60))
        self.broker.marker_spread_ms = chance.choice((3, 10, 150))
        self.broker.transaction_timeout_ms = chance.choice((2_500, 6_000, 20_000))
        actions = [n for n in ACTIONS if (n in focus if focus else chance.random() < 0.3)]
        for _ in range(chance.choice((0, 2, 4, 8, 12)) if actions and not directed else 0):
            when = chance.randint(FAULTS_FROM_MS, FAULTS_UNTIL_MS)
            self.clock.at(when, strike, self, chance.choice(actions))
        if not focus:
            arm(self)
        if not directed and not focus and chance.random() < 0.08:
            self._plan_a_death()
        self.clock.at(FAULTS_UNTIL_MS, self.heal)

    def _plan_a_death(self) -> None:
        """Some nodes die and never come back; enough are left to go on without them."""
        chance = self.clock.chance
        minority = (len(self.machines) - 1) // 2
        for machine in chance.sample(list(self.machines.values()), minority):
            self.clock.at(chance.randint(300, 6_000), self._die, machine)

    def _die(self, machine: Machine) -> None:
        self.dead.add(machine.number)
        machine.crash("for good")

    @property
    def living(self) -> list[Machine]:
        """The machines that are there in the end."""
        return [m for m in self.machines.values() if m.number not in self.dead]

    def down_ms(self) -> int:
        """Return how long a fault lasts."""
        return self.clock.chance.choice((100, 700, 2_500, 3_500))

    def end_late(self) -> None:
        """The broker ends what is open, of which nobody had said so."""
        if not self.healed:
            kind = self.clock.chance.choice(("late commit", "late abort"))
            KINDS[kind](self, next(iter(self.machines.values())))

    def take_step(self, machine: Machine, step: str) -> None:
        """A machine takes a step of the protocol: what is armed for that strikes it here."""
        machine.step = step
        coverage = self.coverage
        coverage.steps[step] += 1
        for fault in machine.active:
            coverage.pairs[step, fault] += 1
        armed = self.arms.get(step)
        if armed and machine.node is not None:
            arm = armed[0]
            arm.wait -= 1
            if arm.wait < 0 and KINDS[arm.fault](self, machine):
                # Some strike within the next moments, when the node has gone on to another step.
                coverage.pairs[step, arm.fault] += 1
                self.trace(f"fault: {arm.fault} at {step!r}, node {machine.number}")
                self.arms[step] = [a for a in self.arms.get(step, ()) if a is not arm]

    def operate(self, command: Any) -> None:
        """An operator asks the master for a change of the Authority."""
        master = self.machines.get(self.judge.truth.master)
        if master is not None:
            Operator(self, master, command, 2_000)

    def come_back(self, machine: Machine) -> None:
        """A node that has left is started again."""
        if machine.node is not None and machine.node.admission.has_left:
            machine.crash("restart")
            machine.start()

    def heal(self) -> None:
        """End every fault; from now on the cluster must come to rest."""
        self.trace("healed")
        self.healed = True
        self.arms.clear()
        self.faults = Faults()
        self.clock.spread_ms = min(self.clock.spread_ms, 12)
        self.broker.marker_spread_ms = 5
        for machine in self.machines.values():
            machine.cut = machine.lossy = machine.doubling = False
            machine.cut_topics.clear()
            machine.active.clear()
            machine.slow_ms = machine.skew_ms = 0
            machine.run_at(1.0)
            machine.fuse = -1
            machine.disk.full = machine.disk.next_sync_fails = False
            if machine.paused:
                machine.resume()
            self.come_back(machine)
            machine.start()
        for other in (*self.indexers, *self.projectors):
            other.alive = True

    # -- what travels ------------------------------------------------------------------------

    def token(self) -> int:
        self._token += 1
        return self._token

    def acknowledge(self, record: Any, extra_ms: int) -> None:
        """Send a record on `acks`; only masters heed it."""
        record = self.travels(record)
        for machine in self.machines.values():
            self.clock.at(
                self.clock.delay() + extra_ms + machine.slow(), machine.hear, ACKS, record
            )

    def tell_streams(self, record: Any) -> None:
        """Send a record on `hw`; only masters read it."""
        record = self.travels(record)
        for machine in self.machines.values():
            self.clock.at(self.clock.delay() + machine.slow(), machine.hear, HW, record)

    def beat(self, record: Any, extra_ms: int) -> None:
        """Send a record on `heartbeat`."""
        self._spread(HEARTBEAT, record, extra_ms)

    def _spread(self, topic: str, record: Any, extra_ms: int) -> None:
        record = self.travels(record)
        for machine in self.machines.values():
            delay_ms = self.clock.delay() + extra_ms + machine.slow()
            self.clock.at(delay_ms, machine.hear, topic, record)
        if isinstance(record, HoldingsRequested):
            for indexer in self.indexers:
                self.clock.at(self.clock.delay() + extra_ms, indexer.asked, record)

    def request_id(self, plain: str) -> tuple[str, bool]:
        """Return a new request id, and whether it is older than the window of outcomes.

        In some worlds they are UUIDs of version 7, which carry the time at which they were made.
        """
        if not self.timed_ids:
            return plain, False
        stale = self.clock.chance.random() < 0.1
        born_ms = WALL_MS + self.clock.now + self.ahead_ms
        if stale:
            born_ms -= self.ahead_ms + self.config["request_window_ms"]
            born_ms -= 2_000 if self.evicting else 4 * DAY_MS
        made = uuid7(born_ms, self.token())
        if stale:
            self.judge.stale.add(made)
        return made, stale

    @property
    def repeat(self) -> str:
        """The command that runs this world again, with its trace."""
        return f"python -m tests.simulation {self.option}--from {self.seed} --seeds 1 --trace"

    # -- the trace ---------------------------------------------------------------------------

    def trace(self, line: str) -> None:
        self.hash = zlib.crc32(line.encode(), self.hash)
        if self.tracing:
            self.lines.append(f"{self.clock.now:>6} {line}")

    def stepped(self, machine: Machine, event: Input, found: list[Effect]) -> None:
        """A node has taken an input: note it, and look at the node."""
        self.steps += 1
        name = type(event).__name__
        text = f"{self.clock.now}{machine.number}{name}{len(found)}"
        self.hash = zlib.crc32(text.encode(), self.hash)
        if self.tracing and (found or not isinstance(event, BeatsRead | AcksRead)):
            self._trace_step(machine, event, found)
        if isinstance(event, JUDGED):
            self.judge.stepped(machine, event)

    def _trace_step(self, machine: Machine, event: Input, found: list[Effect]) -> None:
        quiet = type(event).__name__ == "Tick"
        shown = [brief(e) for e in found if type(e).__name__ not in ("Beat", "Note")]
        if quiet and not shown:
            return
        outcome = f" -> {'; '.join(shown)}" if shown else ""
        self.lines.append(f"{self.clock.now:>6} node {machine.number} < {brief(event)}{outcome}")

    # -- the end -----------------------------------------------------------------------------

    def settled(self) -> bool:
        """Tell whether everything is at rest: all members, equal, and nobody waits."""
        if any(c.busy for c in self.clients) or any(w.busy for w in self.writers):
            return False
        truth = self.judge.truth
        for machine in self.living:
            node = machine.node
            if node is None or not node.is_member or machine.waiting:
                return False
            if (node.state.cas, node.state.digest) != (truth.last_cas, truth.digest):
                return False
            if {group.cas for group in node.outcomes.kept()} != self.judge.remembered.keys():
                return False
        if not truth.master or self.broker.current or self.judge.indexer_differences():
            return False
        master = self.machines[truth.master].node
        if (
            set(truth.members) & self.dead
            or master is None
            or master.master is None
            or not master.master.active
        ):
            return False
        leader = master.master
        return not (
            leader.committer.attempt
            or leader.requests.queue
            or leader.requests.upkeep
            or leader.requests.parked
            or leader.requests.creators
            or len(leader.prepares)
            or (self.projectors and not all(map(is_built, streamed_or_ready(master.state))))
            or (self.application is not None and self.application.unanswered())
            or not self.machines[truth.master].ddl.is_at_the_end
        )

    def unsettled(self) -> str:
        """Say what the cluster still waits for."""
        parts = [f"clients {[c.number for c in self.clients if c.busy]}"]
        parts.append(self.judge.indexer_differences() or "indexers agree")
        if self.application is not None:
            parts.append(self.application.unanswered() or "nothing told is unanswered")
        for machine in self.machines.values():
            node = machine.node
            if node is None:
                parts.append(f"node {machine.number} is down")
                continue
            leader = node.master
            held = ""
            if leader is not None:
                attempt, requests = leader.committer.attempt, leader.requests
                held = (
                    f" {leader.substate} attempt={attempt and attempt.state}"
                    f" queue={len(requests.queue)} upkeep={list(requests.upkeep)}"
                    f" parked={list(requests.parked)} prepares={len(leader.prepares)}"
                    f" building={[(i.id, i.state) for i in streamed_or_ready(node.state)]}"
                    f" writing={leader.committer.is_writing}"
                )
            parts.append(
                f"node {machine.number}: {node.role} {node.phase} CAS {node.state.cas} "
                f"epoch {node.authority.epoch if node.authority else 0} "
                f"candidacy={node.election.candidacy and node.election.candidacy.step} "
                f"waiting={len(machine.waiting)} {node.why_not_ready}{held}"
            )
        return "; ".join(parts)

    def run(self) -> None:
        """Run to the end of the faults, heal, wait for rest, and compare everything."""
        self.clock.run(FAULTS_UNTIL_MS)
        self._until(self.settled, "converges")
        if self.damaged:
            # What ended as nobody asked for is mended by then.
            self.clock.run(self.clock.now + 2 * self.config["scrub_ms"])
        self._last = LastCall(self)
        self._until(lambda: self._last is not None and self._last.done, "a-new-command-succeeds")
        self._until(self.settled, "converges")
        self.judge.conclude()
        self.coverage.operations = len(self.judge.ops) + len(self.judge.readings)
        self.coverage.events = self.steps

    @property
    def _left(self) -> int:
        """How many operations clients have still to begin."""
        return sum(client.left for client in self.clients)

    def _until(self, done: Any, name: str) -> None:
        limit = self.clock.now + CONVERGED_BY_MS
        for machine in self.living:
            if machine.dead_reader:
                # Who had read nothing before is found out last.
                limit = self.clock.now + CONVERGED_BY_MS + START_PATIENCE * machine.config.stall_ms
        left = self._left
        while not done():
            if self._left < left:
                # A client that reads at a node which stays down is slow, and not stuck.
                left, limit = self._left, max(limit, self.clock.now + CONVERGED_BY_MS)
            require(self.clock.now < limit, name, self.unsettled())
            for machine in self.living:
                self.come_back(machine)
            self.clock.run(self.clock.now + 100)


def encoded_and_decoded(record: Any) -> Any:
    """Return a record as its reader gets it."""
    return record if isinstance(record, Unreadable) else codec.decode(codec.encode(record))


def streamed_or_ready(state: StateContext) -> list[Index]:
    """Return the indexes that are built, are being built, or may be."""
    return list(state.in_phase(READY, DEFERRED, *STREAMED))


def streams_in(seed: int) -> bool:
    """Tell whether the world of a seed has projectors: of three worlds, two.

    Of those made for one step, where that is a step of a build: others would be met more seldom.
    """
    pair = pair_of(seed)
    return seed % 3 != 0 if pair is None else pair[0] == "step of a build proposed"


class LastCall:
    """One more command, when all is well again: it must succeed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done = False
        self.op = None
        self.reading = None
        self._token = 0
        self._send()

    def _send(self) -> None:
        world = self.world
        self._token = world.token()
        deadline = world.clock.now + 3_000
        command = PutSetting("last", '"call"')
        request = Request(
            command=command,
            id="last",
            principal="judge",
            expected_cas=None,
            fingerprint=1,
            recorded=True,
            token=self._token,
            position=None,
            deadline_ms=deadline,
        )
        machine = world.machines[world.judge.truth.master]
        machine.ask(Requested(request), self._token, self)
        world.clock.at(4_000, self._again, self._token)

    def _again(self, token: int) -> None:
        if token == self._token and not self.done:
            self._send()

    def heard(self, token: int, outcome: Outcome) -> None:
        if token == self._token and outcome.status == OK:
            self.done = True


def brief(value: Any) -> str:
    """Return an input or effect on one short line."""
    if isinstance(value, CommitRead):
        inner = ", ".join(f"{e.offset}:{brief(e.record)}" for e in value.entries)
        return f"CommitRead[{inner}]"
    parts = []
    for name in getattr(type(value), "__slots__", ()):
        held = getattr(value, name)
        if name in ("snapshot", "authority", "rows", "changes", "raw", "mutations", "restored"):
            if held is not None and hasattr(held, "__len__"):
                parts.append(f"{name}:{len(held)}")
            continue
        if hasattr(held, "__dataclass_fields__"):
            held = brief(held)
        elif isinstance(held, tuple) and held and hasattr(held[0], "__dataclass_fields__"):
            held = "[" + ", ".join(brief(h) for h in held) + "]"
        text = str(held)
        parts.append(f"{name}={text if len(text) < 160 else text[:160] + '…'}")
    return f"{type(value).__name__}({', '.join(parts)})"
