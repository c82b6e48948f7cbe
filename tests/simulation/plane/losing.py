"""A world whose store loses changes, and in which indexers make snapshots at timestamps.

The timestamps are what the application on Spark would tell: places of the store, which only ascend
on one branch. Each indexer hears of them in its own time, or not at all.
"""

from __future__ import annotations

from typing import Any

from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import HW
from tests.simulation.plane.store import Vbucket
from tests.simulation.plane.world import PlaneWorld

PERIODS_MS = (200, 500, 1_500)


class LosingWorld(PlaneWorld):
    """All of a world with a data plane, and a store that loses changes."""

    option = "--losses "

    def __init__(self, seed: int, *, store_loses: bool = True, **more: Any) -> None:
        super().__init__(seed, store_loses=store_loses, **more)
        self._number = 0
        self._told: dict[tuple[str, int], tuple[int, int]] = {}
        self.clock.at(self.clock.delay(), self._tell_stability)

    def _tell_stability(self) -> None:
        chance = self.clock.chance
        self.clock.at(chance.choice(PERIODS_MS), self._tell_stability)
        for history in self.histories:
            self.network.send(HW, history)  # A new master reads the topic from its start.
        for name, vbuckets in self.store.buckets.items():
            self._number += 1
            places = [self._place(name, vbucket) for vbucket in vbuckets]
            vector = Vector([vbuuid for vbuuid, _ in places], [seqno for _, seqno in places])
            told = StabilityTimestamp(name, self._number, *vector.to_bytes(), at_ms=0)
            for indexer in self.indexers:
                if indexer.process is not None and self.clock.hit(0.9):
                    self.clock.at(self.clock.delay(), indexer.process.hear, told)

    def _place(self, name: str, vbucket: Vbucket) -> tuple[int, int]:
        """Return where a vbucket is, or where it was a moment ago."""
        vbuuid, seqno = vbucket.vbuuid, vbucket.high
        before, reached = self._told.get((name, vbucket.number), (0, 0))
        if self.clock.hit(0.3):
            seqno = max(seqno - 1, reached if before == vbuuid else 0)
        self._told[name, vbucket.number] = vbuuid, seqno
        return vbuuid, seqno
