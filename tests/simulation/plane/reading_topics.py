"""A world whose documents are the records of topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from projector_sim.protocol.failover import shared_seqno
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


OF_TOPICS = {
    "leader_elected": Fault(a_partition, lambda world, where: world.store.crash(*where, 0)),
}
"""What befalls topics, and no store; frames are not lost on the way from them."""

TOPIC_ACTIONS = {n: f for n, f in ACTIONS.items() if n != "frames_lost"} | OF_TOPICS


class TopicWorld(MovingWorld):
    """All of a world in which slices move, above topics; half of them lose records."""

    option = "--topics "
    actions = TOPIC_ACTIONS
    table: ClassVar[Table] = {**TABLE, **OF_TOPICS, STORE_LOSES: at_large(_lose)}
    make_store = TopicStore
    store: TopicStore

    def _place(self, name: str, log: TopicLog) -> tuple[int, int]:
        """Return where a partition is, or where it was a moment ago: never before what was told."""
        before, reached = self._told.get((name, log.number), (0, 0))
        shared = shared_seqno(log.log, log.high, before) or 0
        seqno = log.high
        if self.clock.hit(0.3):
            seqno = max(seqno - 1, min(reached, shared), log.epochs[0].start)
        self._told[name, log.number] = log.vbuuid, seqno
        return log.vbuuid, seqno
