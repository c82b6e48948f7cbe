"""A world in which documents are indexed: a cluster of nodes, and a data plane around it.

Most worlds have one node only: of the coordinator it is what it decides that matters here, and
that it is a new master now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coordinator.core.model.stream_records import FailoverLog
from coordinator.kafka.topics import HEARTBEAT, HW, STREAM_REQUEST
from projector_sim.projector.router import RECORD_BYTES_MAX
from tests.simulation.cluster import Cluster
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.kernel.world import FAULTS_UNTIL_MS
from tests.simulation.plane.clients import IndexClient, Writer
from tests.simulation.plane.disk import installed
from tests.simulation.plane.faults import ACTIONS, STORE_LOSES, TABLE
from tests.simulation.plane.indexer import Indexer
from tests.simulation.plane.mutations import PARTITIONS, Partition
from tests.simulation.plane.projector import Projector
from tests.simulation.plane.store import NODES, Store
from tests.simulation.plane.witness import Witness

VBUCKETS = 4
INDEXERS = 3
LIKELY = 0.25


AT_ONCE: dict[str, Any] = {"first_handshakes_ms": 0}
"""New masters wait for nobody. Worlds that are kept were found so, and show what they showed."""


class PlaneWorld(Cluster):
    """All of it."""

    option = "--plane "
    table = TABLE
    actions = ACTIONS
    make_store: Callable[..., Any] = Store
    indexers: list[Indexer]
    projectors: list[Projector]

    def __init__(self, seed: int, *, store_loses: bool = False, **more: Any) -> None:
        """Build the world of a seed, with the faults in `focus` only, if there are any."""
        more.setdefault("roster", (1, 2, 3) if seed % 5 == 0 else (1,))
        super().__init__(seed, **more)
        self.ahead_ms = 0  # What a client's clock does to its ids is the other worlds' matter.
        self.indexers_were_hurt = False
        self.failover_log: list[FailoverLog] = []
        self.whispers = Random(seed)
        """When indexers read it. Of its own, so that worlds that are kept stay as they were."""
        self.transfers = seed % 4 != 0
        """Indexers give each other what they hold; else projectors send all of it again."""
        self.power_on()
        self._populate()
        self.disturb()
        names = self.chosen(self.actions, LIKELY)
        self.plan([*names, STORE_LOSES] if store_loses else names, (0, 2, 4, 8, 16))
        self.clock.at(FAULTS_UNTIL_MS, self.heal)

    def _populate(self) -> None:
        chance = self.clock.chance
        self.buckets = chance.choice((("b0",), ("b0", "b1")))
        self.mutations = [Partition() for _ in range(PARTITIONS)]
        self.store = self.join(self.make_store(self, self.buckets, VBUCKETS))
        self.witness = self.join(Witness(self))
        self.indexers = [Indexer(self, number) for number in range(INDEXERS)]
        self.projectors = [
            self.join(Projector(self, number), HW, STREAM_REQUEST) for number in NODES
        ]
        for indexer in self.indexers:
            self.join(indexer, HEARTBEAT)
        self.record_bytes_max = chance.choice((RECORD_BYTES_MAX, RECORD_BYTES_MAX, 1, 90))
        """In some worlds a record holds one item, or two."""
        self.think_ms = chance.choice((300, 700, 2_000))
        for number in range(2):
            self.join(IndexClient(self, number, chance.randint(2, 6)))
        self.writer = self.join(Writer(self, FAULTS_UNTIL_MS + chance.choice((-3_000, 0, 1_500))))

    # -- what travels ------------------------------------------------------------------------

    def wall_ms(self) -> int:
        return WALL_MS + self.clock.now

    def mutations_moved(self) -> None:
        for indexer in self.indexers:
            if indexer.process is not None:
                indexer.process.apply_soon()

    @property
    def histories(self) -> list[FailoverLog]:
        """The last of each vbucket, as the topic has them."""
        return [*{(one.bucket, one.vbucket): one for one in self.failover_log}.values()]

    def branched(self, record: FailoverLog) -> None:
        """The history of a vbucket can be read."""
        self.failover_log.append(record)
        for indexer in self.indexers:
            if indexer.process is not None:
                indexer.process.hear_histories_soon()

    def owners_changed(self) -> None:
        for projector in self.projectors:
            if projector.process is not None:
                self.clock.at(self.clock.delay(), projector.process.see)

    def knows_buckets(self) -> bool:
        """Tell whether the master has heard a projector."""
        node = self.master.node if self.master is not None else None
        return node is not None and bool(node.peers.projectors)

    # -- the end -----------------------------------------------------------------------------

    def run(self) -> None:
        with installed():
            super().run()

    def conclude(self) -> None:
        super().conclude()
        self.witness.conclude()
