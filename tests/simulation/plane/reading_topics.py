"""A world whose documents are the records of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from coordinator.core.model.commands import AddBucket
from coordinator.core.model.entities import bucket_key
from projector_sim.protocol.failover import shared_seqno
from tests.simulation.actors import Client
from tests.simulation.kernel.faults import Fault, Table, at_large
from tests.simulation.plane.faults import ACTIONS, STORE_LOSES, TABLE
from tests.simulation.plane.moving import MovingWorld
from tests.simulation.plane.topics import TopicLog, TopicStore

LOST = (0, 1, 2, 4, 1_000)


def a_partition(world: TopicWorld) -> tuple[Iterable[tuple[str, int]], str]:
    name = world.clock.chance.choice(world.buckets)
    number = world.clock.chance.randrange(len(world.store.buckets[name]))
    return ((name, number),), f"{name}/{number}"


def _lose(world: TopicWorld) -> None:
    """A leader without the last records is elected, or the whole topic is made anew."""
    [(name, number)], _ = a_partition(world)
    if world.clock.hit(0.4):
        world.store.make_anew(name)
    else:
        world.store.crash(name, number, world.clock.chance.choice(LOST))


def _away(world: TopicWorld) -> None:
    """Nobody reads for so long that deletions are forgotten, perhaps."""
    for projector in world.projectors:
        projector.kill()
        world.clock.at(world.clock.chance.choice((1_500, 3_000, 5_000)), projector.start)


OF_TOPICS = {
    "nobody_reads": at_large(_away),
    "leader_elected": Fault(a_partition, lambda world, where: world.store.crash(*where, 0)),
}
"""What befalls topics, and no store; frames are not lost on the way from them."""

TOPIC_ACTIONS = {n: f for n, f in ACTIONS.items() if n != "frames_lost"} | OF_TOPICS


class Adder(Client):
    """Adds a bucket, until it is there."""

    reads = 0.0
    recorded = (AddBucket,)

    def __init__(self, world: TopicWorld, number: int, bucket: str) -> None:
        self.bucket = bucket
        super().__init__(world, number, 1)
        self.doomed = False

    def begin(self) -> None:
        self.left = 0 if bucket_key(self.bucket) in self.world.judge.entities else 1
        super().begin()

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        partitions = len(self.world.store.buckets[self.bucket])
        return AddBucket(self.bucket, self.bucket, partitions, "json"), None


class TopicWorld(MovingWorld):
    """All of a world in which slices move, above topics; half of them lose records."""

    option = "--topics "
    actions = TOPIC_ACTIONS
    table: ClassVar[Table] = {**TABLE, **OF_TOPICS, STORE_LOSES: at_large(_lose)}
    make_store = TopicStore
    store: TopicStore

    def _populate(self) -> None:
        super()._populate()
        for number, bucket in enumerate(self.buckets):
            self.join(Adder(self, 8 + number, bucket))

    def knows_buckets(self) -> bool:
        return all(bucket_key(name) in self.judge.entities for name in self.buckets)

    def _place(self, name: str, log: TopicLog) -> tuple[int, int]:
        """Return where a partition is, or where it was a moment ago: never before what was told."""
        before, reached = self._told.get((name, log.number), (0, 0))
        shared = shared_seqno(log.log, log.high, before) or 0
        seqno = log.high
        if self.clock.hit(0.3):
            seqno = max(seqno - 1, min(reached, shared), log.epochs[0].start)
        self._told[name, log.number] = log.vbuuid, seqno
        return log.vbuuid, seqno
