"""One simulated cluster and its fate: built from a seed, run, healed, and judged.

A seed decides everything: which kinds of faults there are at all (most seeds have a few of them,
often), when they strike, what clients ask for, how long each message takes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, fields
from typing import Any

from coordinator.core.commands import OK, Leave, Outcome, PutSetting, Request, StepDown
from coordinator.core.effects import Effect
from coordinator.core.inputs import (
    AcksRead,
    BeatsRead,
    CommitRead,
    Input,
    MembershipRequested,
    Requested,
    Started,
    SyncRead,
)
from coordinator.core.records import AuthoritySnapshot, HoldingsRequested, MasterClaimed
from tests.simulation.actors import Client, DdlWriter, Indexer
from tests.simulation.broker import Broker
from tests.simulation.clock import Clock
from tests.simulation.judge import Judge, Violation, require
from tests.simulation.machine import Machine, ReprCodec

FAULTS_FROM_MS = 1_200
FAULTS_UNTIL_MS = 9_000
CONVERGED_BY_MS = 40_000


@dataclass(slots=True)
class Faults:
    """How likely each message meets each fault."""

    append_lost: float = 0.0
    append_unknown: float = 0.0
    append_doubled: float = 0.0
    ack_lost: float = 0.0
    call_lost: float = 0.0
    call_slow: float = 0.0
    answer_lost: float = 0.0
    end_late: float = 0.0


LIKELY = {
    "append_lost": 0.05,
    "append_unknown": 0.1,
    "append_doubled": 0.3,
    "ack_lost": 0.15,
    "call_lost": 0.04,
    "call_slow": 0.08,
    "answer_lost": 0.06,
    "end_late": 0.02,
}

ACTIONS = (
    "crash",
    "crash_in_step",
    "crash_and_wipe",
    "pause",
    "cut",
    "full_disk",
    "slow_network",
    "indexer_dies",
    "compact",
    "trim",
    "crash_the_master",
    "pause_the_master",
    "crash_the_master_in_step",
    "cut_the_master",
    "crash_all",
    "step_down",
    "leave",
    "indexer_forgets",
)


class World:
    """All of it."""

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
        self.codec = ReprCodec()
        self.evicting = False
        self.cas_base = chance.choice((1, 1_000))
        self.config = self._config(chance, plain, **more)
        self.broker = Broker(self.clock)
        self.machines: dict[int, Machine] = {}
        self.faults = Faults()
        self.strays = False
        self.think_ms = 700
        self.alarms_expected: set[str] = set()
        self.judge = Judge(self)
        self._token = 0
        self._last: LastCall | None = None
        for number in self.config["roster"]:
            self.machines[number] = Machine(self, number)
        self.indexers = [Indexer(self, number) for number in (0, 1, 2)]
        self.clients: list[Client] = []
        self.writers: list[DdlWriter] = []
        for machine in self.machines.values():
            self.clock.at(chance.randint(0, 150), machine.start)
        if not plain:
            self._populate()
            self._plan()

    def _config(self, chance: Any, plain: bool, **more: Any) -> dict[str, Any]:
        config = {
            "roster": (1, 2, 3),
            "cluster_id": "simulated",
            "cas_base": self.cas_base,
            "election_timeout_ms": 1_000,
            "election_stagger_ms": 300,
            "ack_timeout_ms": 200,
            "verdict_timeout_ms": 3_000,
            "ddl_timeout_ms": 2_000,
            "probe_ms": 400,
        }
        if not plain:
            config["group_mutations_max"] = chance.choice((256, 256, 6))
            config["snapshot_bytes"] = chance.choice((1 << 30, 64 * 15))
            # Short ones let candidates fence each other, which a real stagger avoids.
            config["election_stagger_ms"] = chance.choice((50, 300))
            config["look_ms"] = chance.choice((100, 500))
            config["log_capacity"] = chance.choice((1_000, 4))
            self.evicting = chance.random() < 0.1
            config["request_window_ms"] = 4_000 if self.evicting else 600_000
            if chance.random() < 0.1:
                config["roster"] = (1, 2, 3, 4, 5)
        config.update(more)
        return config

    def _populate(self) -> None:
        chance = self.clock.chance
        if chance.random() < 0.12 or "few_writes" in self.focus:
            self._populate_quietly()
            return
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
        kinds = [n for n in LIKELY if (n in focus if focus else chance.random() < 0.25)]
        for name in kinds:
            self.clock.at(FAULTS_FROM_MS, setattr, self.faults, name, LIKELY[name])
        self.strays = "end_late" in kinds
        self.clock.spread_ms = chance.choice((4, 12, 12, 60))
        self.broker.marker_spread_ms = chance.choice((3, 10, 150))
        actions = [n for n in ACTIONS if (n in focus if focus else chance.random() < 0.3)]
        for _ in range(chance.choice((0, 2, 4, 8, 12)) if actions else 0):
            when = chance.randint(FAULTS_FROM_MS, FAULTS_UNTIL_MS)
            self.clock.at(when, self._strike, chance.choice(actions))
        self.clock.at(FAULTS_UNTIL_MS, self.heal)

    def _strike(self, action: str) -> None:
        chance = self.clock.chance
        machine = self.machines[chance.choice(list(self.machines))]
        if "the_master" in action:
            machine = self.machines.get(self.judge.truth.master, machine)
        self.trace(f"fault: {action}, node {machine.number}")
        down_ms = chance.choice((100, 700, 2_500, 3_500))
        match action:
            case "crash" | "crash_the_master":
                machine.crash()
                self.clock.at(down_ms, machine.start)
            case "crash_in_step" | "crash_the_master_in_step":
                machine.fuse = chance.randint(0, 12)
            case "crash_and_wipe":
                if self._may_wipe():
                    machine.crash()
                    machine.wipe()
                    self.clock.at(down_ms, machine.start)
            case "pause" | "pause_the_master":
                machine.pause()
                self.clock.at(down_ms, machine.resume)
            case "cut" | "cut_the_master":
                machine.cut = True
                self.clock.at(down_ms, setattr, machine, "cut", False)
            case "full_disk":
                machine.disk.full = True
                self.clock.at(down_ms, setattr, machine.disk, "full", False)
            case "slow_network":
                machine.slow_ms = chance.choice((150, 600))
                self.clock.at(down_ms, setattr, machine, "slow_ms", 0)
            case "indexer_dies":
                indexer = chance.choice(self.indexers)
                indexer.alive = False
                self.clock.at(2 * down_ms, setattr, indexer, "alive", True)
            case "indexer_forgets":
                chance.choice(self.indexers).forget()
            case "step_down":
                self._operate(StepDown(chance.choice((0, machine.number))))
            case "leave":
                self._operate(Leave(machine.number))
                self.clock.at(down_ms, self._return, machine)
            case "compact":
                self.broker.compact(1_500)
            case "trim":
                self._trim()
            case "crash_all":
                for each in self.machines.values():
                    each.crash()
                    self.clock.at(chance.randint(50, down_ms), each.start)

    def _operate(self, command: Any) -> None:
        """An operator asks the master for a change of the Authority."""
        master = self.machines.get(self.judge.truth.master)
        if master is not None:
            operator = Operator(self)
            deadline = self.clock.now + 2_000
            event = MembershipRequested(operator.token, deadline, command, "operator")
            master.ask(event, operator.token, operator)

    def _return(self, machine: Machine) -> None:
        """A node that has left is started again."""
        if machine.node is not None and machine.node.has_left:
            machine.crash("restart")
            machine.start()

    def _may_wipe(self) -> bool:
        """A wiped disk loses copies: not more of them at a time than the cluster can stand."""
        return all(m.node is not None and m.node.is_member for m in self.machines.values())

    def _trim(self) -> None:
        """Retention takes the head of `commit`, up to a snapshot that all live nodes have read."""
        read = [m.node.applied for m in self.machines.values() if m.node is not None]
        begins = [
            r.offset
            for r in self.broker["commit"].read(0)
            if isinstance(r.value, MasterClaimed | AuthoritySnapshot)
            and r.value.epoch <= self.judge.truth.epoch
        ]
        safe = [c for c in begins if all(c <= applied for applied in read)]
        if safe and len(read) == len(self.machines):
            self.broker.trim(safe[-1])

    def heal(self) -> None:
        """End every fault; from now on the cluster must come to rest."""
        self.trace("healed")
        self.faults = Faults()
        self.clock.spread_ms = min(self.clock.spread_ms, 12)
        self.broker.marker_spread_ms = 5
        for machine in self.machines.values():
            machine.cut = False
            machine.slow_ms = 0
            machine.fuse = -1
            machine.disk.full = False
            if machine.paused:
                machine.resume()
            self._return(machine)
            machine.start()
        for indexer in self.indexers:
            indexer.alive = True

    # -- what travels ------------------------------------------------------------------------

    def token(self) -> int:
        self._token += 1
        return self._token

    def acknowledge(self, record: Any, extra_ms: int) -> None:
        """Send a record on `acks`; only masters heed it."""
        for machine in self.machines.values():
            self.clock.at(self.clock.delay() + extra_ms, self._ack, machine, record)

    def _ack(self, machine: Machine, record: Any) -> None:
        node = machine.node
        if node is not None and not machine.cut and (node.master is not None or machine.paused):
            machine.feed(AcksRead((record,)))

    def beat(self, record: Any, extra_ms: int) -> None:
        for machine in self.machines.values():
            self.clock.at(self.clock.delay() + extra_ms, self._beat, machine, record)
        if isinstance(record, HoldingsRequested):
            for indexer in self.indexers:
                self.clock.at(self.clock.delay() + extra_ms, indexer.asked, record)

    def _beat(self, machine: Machine, record: Any) -> None:
        if machine.node is not None and not machine.cut:
            machine.feed(BeatsRead((record,)))

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
        if isinstance(event, CommitRead | SyncRead | Started):
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
        for machine in self.machines.values():
            node = machine.node
            if node is None or not node.is_member or machine.waiting:
                return False
            if (node.state.cas, node.state.digest) != (truth.last_cas, truth.digest):
                return False
        if not truth.master or self.broker.current or self.judge.indexer_differences():
            return False
        master = self.machines[truth.master].node
        if master is None or master.master is None or not master.master.active:
            return False
        leader = master.master
        return not (
            leader.attempt
            or leader.queue
            or leader.upkeep
            or leader.parked
            or leader.creators
            or len(leader.prepares)
            or self.machines[truth.master]._ddl_at != self.broker["ddl"].end
        )

    def unsettled(self) -> str:
        """Say what the cluster still waits for."""
        parts = [f"clients {[c.number for c in self.clients if c.busy]}"]
        parts.append(self.judge.indexer_differences() or "indexers agree")
        for machine in self.machines.values():
            node = machine.node
            if node is None:
                parts.append(f"node {machine.number} is down")
                continue
            leader = node.master
            held = ""
            if leader is not None:
                held = (
                    f" {leader.substate} attempt={leader.attempt and leader.attempt.state}"
                    f" queue={len(leader.queue)} upkeep={list(leader.upkeep)}"
                    f" parked={list(leader.parked)} prepares={len(leader.prepares)}"
                    f" writing={leader._writing}"
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
        self._last = LastCall(self)
        self._until(lambda: self._last is not None and self._last.done, "a-new-command-succeeds")
        self._until(self.settled, "converges")
        self.judge.conclude()

    def _until(self, done: Any, name: str) -> None:
        limit = self.clock.now + CONVERGED_BY_MS
        while not done():
            require(self.clock.now < limit, name, self.unsettled())
            for machine in self.machines.values():
                self._return(machine)
            self.clock.run(self.clock.now + 100)


class Operator:
    """Asks for something once, and does not insist."""

    op = None
    reading = None

    def __init__(self, world: World) -> None:
        self.token = self._token = world.token()

    def heard(self, token: int, outcome: Outcome) -> None:
        self._token = 0


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
        request = Request(command, "last", "judge", None, 1, True, self._token, None, deadline)
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


def run_seed(seed: int, *, tracing: bool = False) -> World:
    """Run one seed; a `Violation` carries the world in its `world`."""
    world = World(seed, tracing=tracing)
    try:
        world.run()
    except Violation as violation:
        violation.world = world  # type: ignore[attr-defined]
        raise
    return world


assert {f.name for f in fields(Faults)} == set(LIKELY)
