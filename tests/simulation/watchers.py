"""Those who watch the state: at one node after the other, and each sees every change once.

A watcher keeps the CAS that it saw last, and goes on from there at another node when its own has
died or has told it that it lagged. What a node's feed does not have any more it reads from the
history, as the node would for it. Chance of their own: a world is the same with and without them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import Change, fold, transactions
from coordinator.core.history.lines import Subscription
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.types import Cas
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.violation import require

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.judge import Judge
    from tests.simulation.machine import Machine

WATCHERS = 2
LIMIT = 3
TRIES = 10_000
PREDICATES = (
    Predicate(),
    Predicate(),
    Predicate(kinds=frozenset({"setting"})),
    Predicate(kinds=frozenset({"index"}), states=frozenset({"dropping", "ready"})),
)


class Watcher(Actor):
    """Subscribes, takes what there is now and then, and begins again where that has ended."""

    def __init__(self, world: Cluster, number: int) -> None:
        self.world = world
        self.number = number
        self.chance = random.Random(f"watcher {world.seed} {number}")
        self.predicate = self.chance.choice(PREDICATES)
        self.pace_ms = self.chance.choice((20, 200, 900))
        self.began: Cas | None = None
        self.position = Cas(0)
        self.told: list[Change] = []
        self.subscription: Subscription | None = None
        self.machine: Machine | None = None
        self.incarnation = 0
        world.clock.at(self.chance.randint(0, 3_000), self.look)

    def look(self) -> None:
        self.world.clock.at(1 + self.chance.randrange(2 * self.pace_ms), self.look)
        self.attend()

    def attend(self) -> None:
        """Take what has come; subscribe where there is no subscription."""
        machine = self.machine
        if machine is None or machine.node is None or machine.incarnation != self.incarnation:
            self._connect()
            return
        if machine.paused:
            return
        subscription = self.subscription
        assert subscription is not None
        found = subscription.take(LIMIT, machine.changes.newest)
        for published in found:
            self._hear(published.change)
        require(
            subscription.position >= self.position,
            "a-position-never-falls",
            f"watcher {self.number}: {subscription.position} after {self.position}",
        )
        self.position = subscription.position
        if not found and subscription.has_lagged:
            self.machine = self.subscription = None
        elif self.chance.random() < 0.02:
            machine.changes.unsubscribe(subscription)
            self.machine = self.subscription = None

    def _hear(self, change: Change) -> None:
        if self.told:
            last = self.told[-1].event.cas
            require(
                change.event.cas > last,
                "a-watcher-sees-cas-ascend",
                f"watcher {self.number}: {change.event.cas} after {last}",
            )
        self.told.append(change)

    def _connect(self) -> None:
        """Go on at any node that has what was seen already."""
        self.machine = self.subscription = None
        machine = self.chance.choice(list(self.world.machines.values()))
        node = machine.node
        if node is None or machine.paused or not node.is_following:
            return
        if node.state.cas < self.position:
            return
        if self.began is None:
            self.began = self.position = self.chance.choice((Cas(0), node.state.cas))
        made = machine.changes.subscribe(
            self.position, self.predicate, lambda: None, node.state.cas
        )
        if made is None:
            self._read(node.state.cas)
            return
        self.subscription, self.machine, self.incarnation = made, machine, machine.incarnation

    def _read(self, up_to: Cas) -> None:
        """Read from the history what is between the position and a node's CAS."""
        for change in above(self.world.judge, self.position, up_to):
            if self.predicate.fits(change):
                self._hear(change)
        self.position = up_to

    def conclude(self) -> None:
        """All is quiet: it has seen what fits, from where it began to the end, each once."""
        if self.began is None:
            return
        last = self.world.judge.last_cas
        for _ in range(TRIES):
            if self.position >= last:
                break
            if self.machine is not None and self.machine.paused:
                self.machine = self.subscription = None
            self.attend()
        require(
            self.position >= last,
            "a-watcher-comes-to-the-end",
            f"watcher {self.number} is at {self.position} of {last}",
        )
        expected = [
            change
            for change in above(self.world.judge, self.began, last)
            if self.predicate.fits(change)
        ]
        seen = [change.event for change in self.told]
        require(
            seen == [change.event for change in expected],
            "a-watcher-sees-every-change-once",
            f"watcher {self.number}: {_first_difference(seen, [c.event for c in expected])}",
        )
        befores = [(c.before.cas, c.before.value) if c.before else None for c in self.told]
        wanted = [(c.before.cas, c.before.value) if c.before else None for c in expected]
        require(
            befores == wanted,
            "a-change-has-the-value-before-it",
            f"watcher {self.number}: {_first_difference(befores, wanted)}",
        )


def above(judge: Judge, after: int, up_to: int) -> list[Change]:
    """Return the changes between two CAS, by what the log says."""
    return [change for change in changes_of_log(judge) if after < change.event.cas <= up_to]


def changes_of_log(judge: Judge) -> Iterator[Change]:
    state: StateContext = states.EMPTY
    for transaction in transactions(judge.events):
        state, changes = fold(state, transaction)
        yield from changes


def _first_difference(seen: list[object], expected: list[object]) -> str:
    """Say where two lists part."""
    for number, (one, other) in enumerate(zip(seen, expected, strict=False)):
        if one != other:
            return f"at {number}: {one} instead of {other}"
    return f"{len(seen)} instead of {len(expected)}"
