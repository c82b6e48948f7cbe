"""A world and its fate: built from a seed, run under faults, healed, and judged when it is at rest.

A seed decides everything: which kinds of faults there are at all (most seeds have a few of them,
often), when they strike, how long each message takes. All chance comes from one generator, so that
who draws, and in which order, is part of a world.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.broker import Broker
from tests.simulation.kernel.clock import Clock
from tests.simulation.kernel.coverage import Coverage
from tests.simulation.kernel.faults import Table
from tests.simulation.kernel.network import Network
from tests.simulation.kernel.violation import Violation

FAULTS_FROM_MS = 1_200
FAULTS_UNTIL_MS = 9_000
CONVERGED_BY_MS = 40_000

A = TypeVar("A", bound=Actor)


class World:
    """What all simulators share; one of them adds its actors, and a table of faults."""

    option = ""
    """With it, the command line runs worlds of this kind."""
    table: Table

    def __init__(self, seed: int, *, tracing: bool = False, focus: tuple[str, ...] = ()) -> None:
        """Build the world of a seed, with only the faults in `focus`, if there are any."""
        self.seed = seed
        self.focus = focus
        self.tracing = tracing
        self.lines: list[str] = []
        self.hash = 0
        self.steps = 0
        self.healed = False
        self.clock = Clock(seed)
        self.network = Network(self.clock)
        self.coverage = Coverage(worlds=1)
        self.actors: list[Actor] = []
        self.broker = self.join(Broker(self.clock))
        self._token = 0

    def join(self, actor: A, *topics: str) -> A:
        """Let an actor take part, and hear what is sent on these topics."""
        self.actors.append(actor)
        for topic in topics:
            self.network.listen(actor, topic)
        return actor

    def token(self) -> int:
        """Return a number that nobody has had."""
        self._token += 1
        return self._token

    def trace(self, line: str) -> None:
        self.hash = zlib.crc32(line.encode(), self.hash)
        if self.tracing:
            self.lines.append(f"{self.clock.now:>6} {line}")

    @property
    def repeat(self) -> str:
        """The command that runs this world again, with its trace."""
        return f"python -m tests.simulation {self.option}--from {self.seed} --seeds 1 --trace"

    # -- faults ------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Choose how slow messages and markers are, in this world."""
        self.clock.spread_ms = self.clock.chance.choice((4, 12, 12, 60))
        self.broker.marker_spread_ms = self.clock.chance.choice((3, 10, 150))

    def chosen(self, names: Iterable[str], share: float) -> list[str]:
        """Return the faults that this world has: those in focus, or of all a share."""
        focus, chance = self.focus, self.clock.chance
        return [n for n in names if (n in focus if focus else chance.random() < share)]

    def plan(self, names: Sequence[str], counts: Sequence[int]) -> None:
        """Choose when these faults strike: so often as one of the counts says."""
        chance = self.clock.chance
        for _ in range(chance.choice(counts) if names else 0):
            when_ms = chance.randint(FAULTS_FROM_MS, FAULTS_UNTIL_MS)
            self.clock.at(when_ms, self.strike, chance.choice(names))

    def strike(self, name: str) -> None:
        """Let a fault of the table happen."""
        if self.healed:
            return
        fault = self.table[name]
        victims, told = fault.whom(self)
        self.trace(f"fault: {name}{told}")
        self.coverage.strikes[name] += 1
        for victim in victims:
            fault.befall(self, victim)

    def down_ms(self) -> int:
        """Return how long a fault lasts."""
        return self.clock.chance.choice((100, 700, 2_500, 3_500))

    def heal(self) -> None:
        """End every fault; from now on all must come to rest."""
        self.trace("healed")
        self.healed = True
        self.clock.spread_ms = min(self.clock.spread_ms, 12)
        for actor in self.actors:
            actor.heal()

    # -- the end -----------------------------------------------------------------------------

    def waits(self) -> Iterator[str]:
        """Yield what anybody still waits for."""
        yield from filter(None, (actor.unsettled() for actor in self.actors))

    def settled(self) -> bool:
        """Tell whether everything is at rest."""
        return next(self.waits(), None) is None

    def unsettled(self) -> str:
        """Say what the world still waits for."""
        return "; ".join(self.waits())

    def run(self) -> None:
        """Run to the end of the faults, wait for rest, and compare everything."""
        self.clock.run(FAULTS_UNTIL_MS)
        self.until(self.settled, "converges")
        self.conclude()

    def conclude(self) -> None:
        """Compare everything."""
        raise NotImplementedError

    def until(self, done: Callable[[], bool], name: str) -> None:
        """Let time pass until it is done; it fails under this name where it takes too long."""
        patience_ms = CONVERGED_BY_MS + max(actor.patience_ms for actor in self.actors)
        limit, left = self.clock.now + patience_ms, self._left
        while not done():
            if self._left < left:
                # A client that reads at a node which stays down is slow, and not stuck.
                left, limit = self._left, max(limit, self.clock.now + CONVERGED_BY_MS)
            if self.clock.now >= limit:
                raise Violation(name, self.unsettled())
            for actor in self.actors:
                actor.tend()
            self.clock.run(self.clock.now + 100)

    @property
    def _left(self) -> int:
        """How many operations have still to begin."""
        return sum(actor.left for actor in self.actors)
