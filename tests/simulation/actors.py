"""Those around the cluster: indexers, clients, operators, and producers of DDL on a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.core.consensus.inputs import MembershipRequested, ReadRequested, Requested
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    BuildIndexes,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Outcome,
    PutSetting,
    Request,
    SkipRecord,
)
from coordinator.core.model.entities import DROPPING, INIT, Index
from coordinator.core.model.records import ALLOCATED, RELEASED, Holding, HoldingsRequested
from coordinator.core.model.records import REFUSED as SLICES_REFUSED
from tests.simulation.data_plane import attend_to_builds
from tests.simulation.kernel.actor import Actor, Ear
from tests.simulation.voices import IndexerVoice

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

PERIOD_MS = 250

EFFECTS = (
    *("SettingWritten", "SettingDeleted", "IndexProposed", "IndexDropped", "IndexAltered"),
    *("RebalanceBegun", "RebalanceCancelled", "BucketAdded"),
)
"""Events by which a command of a client takes effect."""

NEVER = 2**52
"""A CAS that nothing has: a command that expects it only ever learns the actual one."""


class HoldsIndexes(Protocol):
    """An indexer as the judge sees it."""

    number: int

    @property
    def indexes(self) -> Mapping[Any, Index]: ...

    @property
    def held(self) -> Mapping[int, Holding]: ...


class Indexer(IndexerVoice):
    """Follows `statecontext`, holds what it says, and repeats itself until that moves on."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.incarnation = 1
        self.refusing = 0.0
        self.position = 0
        self.indexes: dict[str, Index] = {}
        self.held: dict[int, Holding] = {}
        self.refused: set[int] = set()
        world.clock.at(world.clock.chance.randrange(PERIOD_MS), self.period)

    def period(self) -> None:
        self.world.clock.at(PERIOD_MS, self.period)
        if not self.alive:
            return
        self._read()
        self.say_alive()
        for index in self.indexes.values():
            if self.number in index.hosts:
                self._attend(index)
        if self.world.projectors:
            attend_to_builds(self)

    def forget(self) -> None:
        """Lose all storage, in this incarnation or with it."""
        self.held.clear()
        self.incarnation += self.world.clock.hit(0.5)

    def heal(self) -> None:
        self.alive = True

    def ear(self, record: Any) -> Ear | None:
        return self.hear if isinstance(record, HoldingsRequested) else None

    def hear(self, topic: str, record: HoldingsRequested) -> None:
        """Report what is held, in parts."""
        if not self.alive or not self.is_asked(record):
            return
        if record.reread:
            self.position = 0
            self.indexes.clear()
        self._read()
        holdings = list(self.held.values())
        parts = [tuple(holdings[i : i + 2]) for i in range(0, len(holdings), 2)] or [()]
        self.say_holdings(record, self.position, parts)

    def _read(self) -> None:
        partition = self.world.broker["statecontext"]
        for record in partition.read(self.position):
            mutation = record.value.mutation
            if isinstance(mutation.entity, Index):
                self.indexes[mutation.key] = mutation.entity
            else:
                self.indexes.pop(mutation.key, None)
        self.position = partition.stable
        hosted = {i.id for i in self.indexes.values() if self.number in i.hosts}
        self.held = {i: h for i, h in self.held.items() if i in hosted}

    def _attend(self, index: Index) -> None:
        """Allocate or release, and answer while somebody waits for it."""
        slices = index.slices_on(self.number)
        if index.state == DROPPING:
            self.held.pop(index.id, None)
            self._answer(index, RELEASED, 0)
        elif index.state == INIT and self._refuses(index):
            self._answer(index, SLICES_REFUSED, 0)
        else:
            if index.id not in self.held:
                self.held[index.id] = Holding(index.id, self.world.token(), slices)
            shard = self.held[index.id].shard
            if not set(self.held[index.id].slices) <= set(slices):
                self.held[index.id] = Holding(index.id, shard, slices)
            if index.state == INIT or index.shard_on(self.number) != shard:
                self._answer(index, ALLOCATED, shard)

    def _refuses(self, index: Index) -> bool:
        if index.id not in self.held and self.world.clock.hit(self.refusing):
            self.refused.add(index.id)
        return index.id in self.refused

    def _answer(self, index: Index, answer: str, shard: int) -> None:
        slices = index.slices_on(self.number)
        self.say_slices(index.id, answer, "no space", slices, shard)


@dataclass(slots=True, eq=False)
class Op:
    """One operation of a client: all its tries under one request id, and what came of it."""

    request: Request
    invoked_ms: int
    outcome: Outcome | None = None
    done_ms: int = -1
    tries: int = 0


@dataclass(slots=True, eq=False)
class Reading:
    """One read of a client, linearizable or at a CAS; `state` is what the node showed it."""

    invoked_ms: int
    linearizable: bool
    at_least: int
    state: Any = None
    done_ms: int = -1


class Client(Actor):
    """Asks for one thing at a time, and repeats it under the same id while it is unknown."""

    reads = 0.15
    recorded: tuple[type, ...] = ()
    """Commands whose outcome is always to be remembered."""

    def __init__(self, world: Cluster, number: int, operations: int) -> None:
        self.world = world
        self.number = number
        self.left = operations
        self.target = world.clock.chance.choice(list(world.machines))
        self.op: Op | None = None
        self.reading: Reading | None = None
        self.known: dict[str, int] = {}
        self.doomed = world.clock.hit(0.1)
        self.wandering = 0.2
        self.think_ms = world.think_ms
        self._token = 0
        self._made = 0
        world.clock.at(world.clock.chance.randint(200, 2_500), self.begin)

    def unsettled(self) -> str:
        busy = self.left > 0 or self.op is not None or self.reading is not None
        return f"client {self.number}" if busy else ""

    def begin(self) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        if self.world.clock.hit(self.wandering):
            self.target = self.world.clock.chance.choice(list(self.world.machines))
        if self.world.clock.hit(self.reads):
            self._read()
            return
        request = self._choose()
        self.op = Op(request, self.world.clock.now)
        self.world.judge.ops.append(self.op)
        self._send()

    def _choose(self) -> Request:
        self._made += 1
        request_id, stale = self.world.request_id(f"c{self.number}-{self._made}")
        if stale:  # What is published may be of any age: it may have waited for a master.
            self.world.judge.stale.add(request_id)
        command, expected = self._command(request_id)
        recorded = (
            stale or isinstance(command, self.recorded) or (self.world.clock.chance.random() < 0.8)
        )
        return request_of(command, request_id, "client", expected, recorded)

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        """Return a random command, some of them with an expected CAS that this client knows."""
        world = self.world
        chance = world.clock.chance
        expected: int | None = None
        dice = chance.random()
        command: Any
        if self.doomed:
            name = f"k{chance.randrange(2)}"
            command, expected = PutSetting(name, '"never"'), NEVER
        elif dice < 0.65:
            name = f"k{chance.randrange(2)}"
            if chance.random() < 0.4:
                expected = self.known.get(name, 0)
            command = (
                PutSetting(name, f'"{request_id}"')
                if chance.random() < 0.75
                else DeleteSetting(name)
            )
        elif dice < 0.87:
            command = CreateIndex(
                name=f"i{chance.randrange(4)}",
                bucket=f"b{chance.randrange(2)}",
                expressions=("x",),
                slices=chance.randint(1, 2),
                replicas=chance.randint(0, 1),
                if_not_exists=chance.random() < 0.2,
                defer_build=bool(world.projectors) and chance.random() < 0.3,
            )
        elif dice < 0.92 and world.projectors:
            command = BuildIndexes(bucket=f"b{chance.randrange(2)}")
        else:
            command = DropIndex(
                0, f"b{chance.randrange(2)}", f"i{chance.randrange(4)}", chance.random() < 0.2
            )
        return command, expected

    def _send(self) -> None:
        assert self.op is not None
        world = self.world
        self._token = world.token()
        self.op.tries += 1
        deadline = world.clock.now + 2_500
        request = replace(self.op.request, token=self._token, deadline_ms=deadline)
        machine = world.machines[self.target]
        world.clock.at(world.clock.delay(), machine.ask, Requested(request), self._token, self)
        world.clock.at(3_000, self._silence, self._token)

    def _read(self) -> None:
        world = self.world
        linearizable = world.clock.hit(0.7)
        at_least = 0 if linearizable else world.judge.last_cas
        self.reading = Reading(world.clock.now, linearizable, at_least)
        self._token = world.token()
        event = ReadRequested(self._token, world.clock.now + 2_000, linearizable, at_least)
        machine = world.machines[self.target]
        world.clock.at(world.clock.delay(), machine.ask, event, self._token, self)
        world.clock.at(3_000, self._silence, self._token)

    def _silence(self, token: int) -> None:
        if token == self._token:
            self.heard(token, Outcome("unknown", "silence", "nothing was heard"))

    def heard(self, token: int, outcome: Outcome) -> None:
        """Take an answer; one that comes too late is no answer."""
        if token != self._token:
            return
        self._token = 0
        if self.reading is not None:
            reading, self.reading = self.reading, None
            if outcome.status == OK and reading.linearizable:
                reading.done_ms = self.world.clock.now
                self.world.judge.readings.append(reading)
            self._redirect(outcome)
            self._pause()
        elif outcome.status in (OK, REFUSED):
            self._finish(outcome)
        else:
            self._again(outcome)

    def _finish(self, outcome: Outcome) -> None:
        op = self.op
        assert op is not None
        op.outcome, op.done_ms = outcome, self.world.clock.now
        command = op.request.command
        if isinstance(command, PutSetting | DeleteSetting):
            gone = isinstance(command, DeleteSetting) and outcome.status == OK
            actual = outcome.details.get("actual", self.known.get(command.name, 0))
            known = outcome.cas if outcome.status == OK else actual
            self.known[command.name] = 0 if gone else known
        self.op = None
        self._pause()

    def _again(self, outcome: Outcome) -> None:
        op = self.op
        assert op is not None
        nowhere = outcome.code in ("not_master", "no_master")
        self._redirect(outcome)
        if not (op.request.recorded or nowhere) or op.tries > 60 or self._too_late(op):
            self.op = None
            self._pause()
            return
        self.world.clock.at(self.world.clock.chance.randint(20, 300), self._send)

    def _too_late(self, op: Op) -> bool:
        """Tell whether the outcome may be evicted before another try is decided."""
        world = self.world
        return world.evicting and not world.timed_ids and world.clock.now - op.invoked_ms > 700

    def _redirect(self, outcome: Outcome) -> None:
        if "node" in outcome.details and outcome.details["node"] in self.world.machines:
            self.target = outcome.details["node"]
        elif outcome.status == "unknown":
            self.target = self.world.clock.chance.choice(list(self.world.machines))

    def _pause(self) -> None:
        self.world.clock.at(self.world.clock.chance.randint(1, self.think_ms), self.begin)


class DdlWriter(Actor):
    """Writes commands to the `ddl` topic: some of them twice, some no commands at all."""

    def __init__(self, world: Cluster, commands: int) -> None:
        self.world = world
        self.commands = commands
        self._made = 0
        self._made_last: CreateIndex | None = None
        self.sent: list[Request] = []
        world.clock.at(world.clock.chance.randint(500, 1_500), self.write)

    def unsettled(self) -> str:
        return f"{self.commands} commands to publish" if self.commands > 0 else ""

    def write(self) -> None:
        if self.commands <= 0:
            return
        self.commands -= 1
        clock = self.world.clock
        chance = clock.chance
        dice = chance.random()
        request: Request
        if dice < 0.08:
            request = Request(command=SkipRecord("no command", b"?"))
        elif dice < 0.2 and self.sent and (self.world.timed_ids or not self.world.evicting):
            request = chance.choice(self.sent)
        else:
            request = self._new()
            if request.id:
                self.sent.append(request)
        chance.choice(self.world.broker.ddl).append(request, None, clock.now)
        clock.at(chance.randint(1, chance.choice((20, 1_200))), self.write)

    def _new(self) -> Request:
        chance = self.world.clock.chance
        self._made += 1
        request_id, _ = self.world.request_id(f"t-{self._made}")
        command: Any
        expected: int | None = None
        dice = chance.random()
        if dice < 0.3:
            filling = "x" * chance.choice((0, 0, 900))
            command = PutSetting(f"k{chance.randrange(3)}", f'"{request_id}{filling}"')
            expected = chance.choice((None, None, NEVER))
        elif dice < 0.75:
            name, bucket = f"i{chance.randrange(4)}", f"b{chance.randrange(2)}"
            command = CreateIndex(name=name, bucket=bucket, expressions=("y",))
            self._made_last = command
        elif self._made_last is not None and chance.random() < 0.7:
            command = DropIndex(0, self._made_last.bucket, self._made_last.name)
        else:
            command = DropIndex(0, f"b{chance.randrange(2)}", f"i{chance.randrange(4)}")
        return request_of(command, request_id, "topic", expected, True)


def request_of(
    command: Any, request_id: str, principal: str, expected: int | None, recorded: bool
) -> Request:
    return Request(
        command=command,
        id=request_id,
        principal=principal,
        expected_cas=expected,
        fingerprint=hash_of(command),
        recorded=recorded,
    )


def hash_of(command: Any) -> int:
    """Return a fingerprint that does not depend on the process."""
    total = 7
    for byte in repr(command).encode():
        total = (total * 131 + byte) % (2**61 - 1)
    return total


class Caller:
    """Asks one node for one thing, and keeps the answer."""

    op = None
    reading = None
    outcome: Outcome | None = None
    _token = 0

    def ask(self, world: Cluster, machine: Machine, make: Callable[[int], Any]) -> None:
        """Let a machine take what is made with the token of the answer."""
        self._token = world.token()
        machine.ask(make(self._token), self._token, self)

    def heard(self, token: int, outcome: Outcome) -> None:
        self.outcome = outcome


class Operator(Caller):
    """Asks for a change of the Authority, once."""

    def __init__(self, world: Cluster, machine: Machine, command: Any, patience_ms: int = 5_000):
        deadline_ms = world.clock.now + patience_ms
        self.ask(
            world,
            machine,
            lambda token: MembershipRequested(token, deadline_ms, command, "operator"),
        )


class LastCall(Caller):
    """One more command, when all is well again: it must succeed, if not at once."""

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.done = False
        self._send()

    def _send(self) -> None:
        world = self.world
        assert world.master is not None
        request = request_of(PutSetting("last", '"call"'), "last", "judge", None, True)
        request = replace(request, fingerprint=1, deadline_ms=world.clock.now + 3_000)
        self.ask(world, world.master, lambda token: Requested(replace(request, token=token)))
        world.clock.at(4_000, self._again, self._token)

    def _again(self, token: int) -> None:
        if token == self._token and not self.done:
            self._send()

    def heard(self, token: int, outcome: Outcome) -> None:
        self.done = self.done or (token == self._token and outcome.status == OK)
