"""A world in which the coordinator matters: real nodes; what is around them is made to vex them."""

from __future__ import annotations

from typing import Any

from coordinator.kafka.topics import HEARTBEAT
from tests.simulation.actors import Client, DdlWriter, Indexer
from tests.simulation.alters import Alterer, AlterWriter, alters_in
from tests.simulation.cluster import Cluster
from tests.simulation.data_plane import Application, Projector
from tests.simulation.faults import ACTIONS, KINDS, LIKELY
from tests.simulation.kernel.world import FAULTS_FROM_MS, FAULTS_UNTIL_MS
from tests.simulation.machine import Machine
from tests.simulation.schedule import Arm, arm, pair_of
from tests.simulation.subscribers import (
    Board,
    Delivering,
    Expiring,
    Listening,
    Subscribing,
    subscribers_in,
)
from tests.simulation.transactions import TransactionWriter, Transactor, transactions_in
from tests.simulation.watchers import WATCHERS, Watcher


class World(Cluster):
    """All of it."""

    table = ACTIONS
    indexers: list[Indexer]
    projectors: list[Projector]
    clients: list[Client]
    writers: list[DdlWriter]

    def __init__(self, seed: int, *, plain: bool = False, **more: Any) -> None:
        """Build the world of a seed: `plain` without faults and clients, or with only the faults
        in `focus`; `more` goes into every node's configuration."""
        super().__init__(seed, plain=plain, **more)
        self.arms: dict[str, list[Arm]] = {}
        self.indexers = [self.join(Indexer(self, number), HEARTBEAT) for number in (0, 1, 2)]
        self.projectors, self.clients, self.writers = [], [], []
        self.watchers = [self.join(Watcher(self, number)) for number in range(WATCHERS)]
        self.power_on()
        if not plain:
            self._populate()
            self._plan()

    def _populate(self) -> None:
        chance = self.clock.chance
        quietly = chance.random() < 0.12 and pair_of(self.seed) is None
        if quietly or "few_writes" in self.focus:
            self._populate_quietly()
            return
        if streams_in(self.seed):
            self.projectors = [self.join(Projector(self, number)) for number in (0, 1)]
            for projector in self.projectors:
                projector.refusing = chance.choice((0.0, 0.0, 0.05))
            if self.seed % 2 == 0:
                self.application = self.join(Application(self))
        self.think_ms = chance.choice((200, 700, 700, 2_000))
        for number in range(chance.randint(2, 4)):
            self.clients.append(self.join(Client(self, number, chance.randint(4, 12))))
        if transactions_in(self.seed):
            for number in (10, 11):
                self.clients.append(self.join(Transactor(self, number, chance.randint(4, 12))))
        if subscribers_in(self.seed):
            for number in (30, 31):
                self.clients.append(self.join(Subscribing(self, number, chance.randint(4, 12))))
            self.board = Board()
            for machine in self.machines.values():
                self.join(Delivering(self, self.board, machine))
                self.join(Expiring(self, self.board, machine))
            self.join(Listening(self, self.board))
        if alters_in(self.seed):
            for number in (20, 21):
                self.clients.append(self.join(Alterer(self, number, chance.randint(6, 16))))
        writer = TransactionWriter if transactions_in(self.seed) else DdlWriter
        writer = AlterWriter if alters_in(self.seed) else writer
        self.writers.append(self.join(writer(self, chance.choice((0, 4, 8, 16)))))
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
            client = self.join(Client(self, number, 5 if number == 0 else 30))
            client.doomed = number != 0
            client.think_ms = 2_500 if number == 0 else 300
            client.wandering = 1.0 if number == 0 else chance.choice((0.0, 0.2))
            self.clients.append(client)

    # -- faults ------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Choose which faults this seed has, and when they strike."""
        chance = self.clock.chance
        directed = pair_of(self.seed) is not None
        kinds = self.chosen(LIKELY, 0.25)
        for name in () if directed else kinds:
            self.clock.at(FAULTS_FROM_MS, setattr, self.faults, name, LIKELY[name])
        self.damaged = "end_late" in kinds and not directed
        self.disturb()
        self.broker.transaction_timeout_ms = chance.choice((2_500, 6_000, 20_000))
        actions = self.chosen(ACTIONS, 0.3)
        self.plan(() if directed else actions, (0, 2, 4, 8, 12))
        if not self.focus:
            arm(self)
        if not directed and not self.focus and chance.random() < 0.08:
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

    def take_step(self, machine: Machine, step: str) -> None:
        """What is armed for the step strikes the machine here."""
        super().take_step(machine, step)
        armed = self.arms.get(step)
        if armed and machine.node is not None:
            arm = armed[0]
            arm.wait -= 1
            if arm.wait < 0 and KINDS[arm.fault](self, machine):
                # Some strike within the next moments, when the node has gone on to another step.
                self.coverage.pairs[step, arm.fault] += 1
                self.trace(f"fault: {arm.fault} at {step!r}, node {machine.number}")
                self.arms[step] = [a for a in self.arms.get(step, ()) if a is not arm]

    def heal(self) -> None:
        self.arms.clear()
        super().heal()


def streams_in(seed: int) -> bool:
    """Tell whether the world of a seed has projectors: of three worlds, two.

    Of those made for one step, where that is a step of a build: others would be met more seldom.
    """
    pair = pair_of(seed)
    return seed % 3 != 0 if pair is None else pair[0] == "step of a build proposed"
