"""A world in which documents are indexed: the coordinator's world, and the data plane around it.

A seed decides everything, as there. Most worlds have one node only: of the coordinator it is what
it decides that matters here, and that it is a new master now and then.
"""

from __future__ import annotations

from typing import Any

from coordinator.core.model.stream_records import CatchUpRequested, HwHeartbeat
from projector_sim.projector.router import RECORD_BYTES_MAX
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.plane.clients import IndexClient, Writer
from tests.simulation.plane.disk import installed
from tests.simulation.plane.faults import ACTIONS, STORE_LOSES, strike
from tests.simulation.plane.indexer import Indexer
from tests.simulation.plane.mutations import PARTITIONS, Partition
from tests.simulation.plane.projector import Projector
from tests.simulation.plane.store import NODES, Store
from tests.simulation.plane.witness import Witness
from tests.simulation.world import FAULTS_FROM_MS, FAULTS_UNTIL_MS, World

VBUCKETS = 4
INDEXERS = 3
LIKELY = 0.25


class PlaneWorld(World):
    """All of it."""

    option = "--plane "

    def __init__(
        self,
        seed: int,
        *,
        tracing: bool = False,
        focus: tuple[str, ...] = (),
        store_loses: bool = False,
        **more: Any,
    ) -> None:
        """Build the world of a seed, with the faults in `focus` only, if there are any."""
        more.setdefault("roster", (1, 2, 3) if seed % 5 == 0 else (1,))
        self.indexers_were_hurt = False
        self.store_loses = store_loses
        with installed():
            super().__init__(seed, tracing=tracing, focus=focus, **more)

    def _populate(self) -> None:
        chance = self.clock.chance
        self.buckets = chance.choice((("b0",), ("b0", "b1")))
        self.mutations = [Partition() for _ in range(PARTITIONS)]
        self.store = Store(self, self.buckets, VBUCKETS)
        self.witness = Witness(self)
        self.shells = [Indexer(self, number) for number in range(INDEXERS)]
        self.indexers = self.shells  # type: ignore[assignment]
        self.projectors_ = [Projector(self, number) for number in NODES]
        self.projectors = self.projectors_  # type: ignore[assignment]
        self.record_bytes_max = chance.choice((RECORD_BYTES_MAX, RECORD_BYTES_MAX, 1, 90))
        """In some worlds a record holds one item, or two."""
        self.think_ms = chance.choice((300, 700, 2_000))
        self.clients += [IndexClient(self, n, chance.randint(2, 6)) for n in range(2)]
        self.writer = Writer(self, FAULTS_UNTIL_MS + chance.choice((-3_000, 0, 1_500)))

    def _make_indexers(self) -> list[Any]:
        return []

    # -- faults ------------------------------------------------------------------------------

    def _plan(self) -> None:
        chance = self.clock.chance
        self.clock.spread_ms = chance.choice((4, 12, 12, 60))
        self.broker.marker_spread_ms = chance.choice((3, 10, 150))
        names = [
            n for n in ACTIONS if (n in self.focus if self.focus else chance.random() < LIKELY)
        ]
        if self.store_loses:
            names.append(STORE_LOSES)
        for _ in range(chance.choice((0, 2, 4, 8, 16)) if names else 0):
            when = chance.randint(FAULTS_FROM_MS, FAULTS_UNTIL_MS)
            self.clock.at(when, strike, self, chance.choice(names))
        self.clock.at(FAULTS_UNTIL_MS, self.heal)

    def heal(self) -> None:
        super().heal()
        self.store.dropping = 0.0
        for projector in self.projectors_:
            projector.slow_ms = 0
            projector.start()
            assert projector.life is not None
            projector.life.producer.slow_ms = 0
            projector.life.go_on()
        for indexer in self.shells:
            indexer.slow_ms = 0
            for disk in indexer.disks.values():
                disk.fuse, disk.failing = -1, 0
            indexer.start()

    # -- what travels ------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return WALL_MS + self.clock.now

    def mutations_moved(self) -> None:
        for indexer in self.shells:
            if indexer.life is not None:
                indexer.life.apply_soon()

    def owners_changed(self) -> None:
        for projector in self.projectors_:
            if projector.life is not None:
                self.clock.at(self.clock.delay(), projector.life.see)

    def tell_everybody(self, record: HwHeartbeat) -> None:
        """Send a record on `hw`: masters and projectors read it."""
        self.tell_streams(record)
        self.tell_projectors(record)

    def tell_projectors(self, record: HwHeartbeat | CatchUpRequested) -> None:
        for projector in self.projectors_:
            if projector.life is not None:
                self.clock.at(self.clock.delay(), projector.life.hear, record)

    def knows_buckets(self) -> bool:
        """Tell whether the master has heard a projector."""
        machine = self.machines.get(self.judge.truth.master)
        return (
            machine is not None and machine.node is not None and bool(machine.node.peers.projectors)
        )

    # -- the end -----------------------------------------------------------------------------

    def settled(self) -> bool:
        if self.writer.busy or not super().settled() or self.witness.unsettled():
            return False
        lives = [p.life for p in self.projectors_] + [i.life for i in self.shells]
        return all(life is not None and life.is_settled() for life in lives)

    def unsettled(self) -> str:
        lives = [p.life for p in self.projectors_] + [i.life for i in self.shells]
        stands = "\n  ".join(life.stands() if life else "not there" for life in lives)
        streams = [v[2] for k, v in self.judge.entities.items() if k.startswith("stream/")]
        return f"{super().unsettled()}\n  {self.witness.unsettled()}\n  {streams}\n  {stands}"

    def run(self) -> None:
        with installed():
            super().run()
            self.witness.conclude()
