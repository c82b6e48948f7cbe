"""Virtual time and chance: one queue of events, one seeded generator, nothing else.

Everything that happens in a simulation is an event of this queue. Time is in whole milliseconds;
events of the same instant run in the order in which they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

WALL_MS = 1_700_000_000_000
"""What the wall clock shows when the simulation begins."""


class Clock:
    """A queue of events in virtual time, with the generator that all chance comes from."""

    def __init__(self, seed: int) -> None:
        self.now = 0
        self.chance = Random(seed)
        self.spread_ms = 12
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def at(self, delay_ms: int, what: Callable[..., None], *args: Any) -> None:
        """Have `what` called after `delay_ms`."""
        self._number += 1
        heappush(self._queue, (self.now + delay_ms, self._number, what, args))

    def delay(self) -> int:
        """Return how long a message takes: mostly short, with a long tail."""
        dice = self.chance.random()
        return 1 + int(dice * dice * dice * self.spread_ms)

    def hit(self, probability: float) -> bool:
        return probability > 0 and self.chance.random() < probability

    def run(self, until_ms: int, done: Callable[[], bool] | None = None) -> bool:
        """Run events up to `until_ms`, or until `done`; tell whether `done` became true."""
        queue = self._queue
        while queue and queue[0][0] <= until_ms:
            at, _, what, args = heappop(queue)
            self.now = at
            what(*args)
            if done is not None and done():
                return True
        self.now = max(self.now, until_ms)
        return False
