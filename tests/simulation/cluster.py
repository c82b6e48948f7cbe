"""A cluster of nodes in a world: machines, broker and judge, which every simulator here has.

Around it are indexers, projectors and clients: simulated ones in `world.py`, where the coordinator
is what matters, and real ones in `plane/world.py`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
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
    Started,
    SyncRead,
)
from coordinator.core.model.entities import READY, STREAMED, Index
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import Unreadable
from coordinator.kafka.topics import ACKS, HEARTBEAT, HW
from tests.simulation.actors import DdlWriter, HoldsIndexes, LastCall, Operator
from tests.simulation.data_plane import Application, is_built
from tests.simulation.disk import ReprCodec
from tests.simulation.faults import KINDS, Faults
from tests.simulation.judge import Judge
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.kernel.world import World
from tests.simulation.machine import Machine
from tests.simulation.meter import CALLS_PER_MS
from tests.simulation.subscribers import Board

JUDGED = (CommitRead, SyncRead, Started)
"""After these inputs a node is looked at."""
DAY_MS = 24 * 3_600_000
CODEC_SHARE, CODEC_REST = 8, 3
"""Of so many worlds, the one with this rest has the codec of production."""

METER_SHARE, METER_REST = 16, 7
"""Of so many worlds, the one with this rest has steps that take time, on machines of any speed."""


class Cluster(World):
    """Nodes, and what is known of them."""

    indexers: Sequence[HoldsIndexes]
    projectors: Sequence[Actor]
    application: Application | None = None
    writers: Sequence[DdlWriter] = ()
    board: Board | None = None
    """What subscriptions are brought, where there are any."""

    def __init__(
        self,
        seed: int,
        *,
        plain: bool = False,
        tracing: bool = False,
        focus: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        """Build the nodes, in a `plain` world for ever unhurt; `more` goes into their
        configuration."""
        super().__init__(seed, tracing=tracing, focus=focus)
        self.plain = plain
        self.calls_per_ms = 0
        """How many calls of a step take 1 ms; 0: steps take no time."""
        self.codec: EntityCodec = ReprCodec()
        self.evicting = False
        self.timed_ids = False
        self.ahead_ms = 0
        """By how much the clocks of clients are ahead."""
        self.cas_base = self.clock.chance.choice((1, 1_000))
        self.config = self._config(self.clock.chance, more)
        if seed % CODEC_SHARE == CODEC_REST:
            self._use_the_real_codec()
        self.faults = Faults()
        self.clocks_were_set = False
        self.dead: set[int] = set()
        """Nodes that died for good, also when all is healed."""
        self.damaged = False
        """Transactions end as no client of ours could end them."""
        self.think_ms = 700
        self.alarms_expected: set[str] = set()
        self.judge = Judge(self)
        self.machines = {
            number: self.join(Machine(self, number), ACKS, HEARTBEAT, HW)
            for number in self.config["roster"]
        }

    def _use_the_real_codec(self) -> None:
        """Everything that travels or is kept is encoded and decoded, as in production."""
        self.codec = codec.Codec()
        self.network.through = encoded_and_decoded
        for partition in self.broker.partitions.values():
            partition.through = encoded_and_decoded

    def _config(self, chance: Any, more: dict[str, Any]) -> dict[str, Any]:
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
        if not self.plain:
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

    def power_on(self) -> None:
        """Start the machines, each of them soon."""
        if self.seed % METER_SHARE == METER_REST and not self.plain:
            self.calls_per_ms = CALLS_PER_MS // self.clock.chance.choice((1, 10, 40))
        for machine in self.machines.values():
            self.clock.at(self.clock.chance.randint(0, 150), machine.start)

    @property
    def master(self) -> Machine | None:
        """The machine of the node that the log says is master."""
        return self.machines.get(self.judge.truth.master)

    @property
    def living(self) -> list[Machine]:
        """The machines that are there in the end."""
        return [m for m in self.machines.values() if m.number not in self.dead]

    def end_late(self) -> None:
        """The broker ends what is open, of which nobody had said so."""
        if not self.healed:
            kind = self.clock.chance.choice(("late commit", "late abort"))
            KINDS[kind](self, next(iter(self.machines.values())))

    def take_step(self, machine: Machine, step: str) -> None:
        """A machine takes a step of the protocol."""
        machine.step = step
        coverage = self.coverage
        coverage.steps[step] += 1
        for fault in machine.active:
            coverage.pairs[step, fault] += 1

    def operate(self, command: Any) -> None:
        """An operator asks the master for a change of the Authority."""
        if self.master is not None:
            Operator(self, self.master, command, 2_000)

    def heal(self) -> None:
        self.faults = Faults()
        super().heal()

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
        return uuid7(born_ms, self.token()), stale

    # -- the trace ---------------------------------------------------------------------------

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

    def waits(self) -> Iterator[str]:
        yield from super().waits()
        if self.judge.indexer_differences():
            yield self.judge.indexer_differences()
        node = self.master.node if self.master is not None else None
        if node is None or node.master is None or self.judge.truth.members.keys() & self.dead:
            yield "nobody is master, or a dead node is a member"
            return
        leader, building = node.master, streamed_or_ready(node.state)
        committer, requests = leader.committer, leader.requests
        busy = {
            "not active": "" if leader.active else leader.substate,
            "attempt": committer.attempt and committer.attempt.state,
            "queue": len(requests.queue),
            "upkeep": list(requests.upkeep),
            "parked": list(requests.parked),
            "creators": list(requests.creators),
            "prepares": len(leader.prepares),
            "building": [i.id for i in building if self.projectors and not is_built(i)],
            "reading DDL": not self.machines[node.config.node].ddl.is_at_the_end,
        }
        if any(busy.values()):
            yield f"the master: {busy}"

    def conclude(self) -> None:
        """See that a new command succeeds, and compare everything."""
        if self.damaged:
            # What ended as nobody asked for is mended by then.
            self.clock.run(self.clock.now + 2 * self.config["scrub_ms"])
        last = LastCall(self)
        self.until(lambda: last.done, "a-new-command-succeeds")
        self.until(self.settled, "converges")
        self.judge.conclude()
        self.coverage.operations = len(self.judge.ops) + len(self.judge.readings)
        self.coverage.events = self.steps


def encoded_and_decoded(record: Any) -> Any:
    """Return a record as its reader gets it."""
    return record if isinstance(record, Unreadable) else codec.decode(codec.encode(record))


def streamed_or_ready(state: StateContext) -> list[Index]:
    """Return the indexes that are built, are being built, or may be."""
    return list(state.in_phase(READY, DEFERRED, *STREAMED))


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
