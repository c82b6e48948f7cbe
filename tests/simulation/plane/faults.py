"""What can go wrong with the data plane: with projectors, indexers, the store and the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.faults import KINDS
from tests.simulation.plane.store import NODES

if TYPE_CHECKING:
    from tests.simulation.plane.projector import Projector
    from tests.simulation.plane.world import PlaneWorld


def _projector_killed(world: PlaneWorld) -> None:
    projector = world.clock.chance.choice(world.projectors_)
    projector.kill()
    world.clock.at(world.clock.chance.choice((1, 100, 1_500)), projector.start)


def _projector_paused(world: PlaneWorld) -> None:
    """It stands still, for longer than it counts as alive, perhaps, and goes on."""
    life = world.clock.chance.choice(world.projectors_).life
    if life is not None and not life.paused:
        life.pause()
        world.clock.at(world.clock.chance.choice((150, 700, 2_500, 4_000)), life.go_on)


def _projector_replaced(world: PlaneWorld) -> None:
    """It stands still, its vbuckets move to another node, and it goes on with what it had."""
    projector = world.clock.chance.choice(world.projectors_)
    life = projector.life
    if life is None or life.paused:
        return
    life.pause()
    for name, vbuckets in world.store.buckets.items():
        for vbucket in vbuckets:
            if world.clock.hit(0.7):
                world.store.move(name, vbucket.number, 1 - projector.number)
    world.clock.at(world.clock.chance.choice((700, 2_500)), life.go_on)


def _projector_slow(world: PlaneWorld) -> None:
    projector = world.clock.chance.choice(world.projectors_)
    projector.slow_ms = world.clock.chance.choice((50, 400, 1_500))
    if projector.life is not None:
        projector.life.producer.slow_ms = projector.slow_ms


def _kafka_refuses(world: PlaneWorld) -> None:
    life = world.clock.chance.choice(world.projectors_).life
    if life is not None and not life.paused:
        life.lose_kafka()


def _indexer_killed(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    indexer.kill()
    world.clock.at(world.clock.chance.choice((1, 100, 800)), indexer.start)


def _indexer_away(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    indexer.kill()
    world.clock.at(world.clock.chance.choice((2_500, 6_000)), indexer.start)


def _indexer_crashes_in_a_write(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    if indexer.disks:
        name = world.clock.chance.choice(sorted(indexer.disks))
        indexer.disks[name].fuse = world.clock.chance.randint(0, 4)


def _indexer_cut_power(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    indexer.cut_power()
    indexer.restart_later()


def _indexer_loses_storage(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    indexer.lose_storage()
    world.clock.at(world.clock.chance.choice((1, 500)), indexer.start)


def _indexer_slow(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    indexer.slow_ms = world.clock.chance.choice((30, 200))


def _disk_full(world: PlaneWorld) -> None:
    indexer = world.clock.chance.choice(world.shells)
    for disk in indexer.disks.values():
        disk.failing = world.clock.chance.randint(1, 2)


def _retention(world: PlaneWorld) -> None:
    """The head of `mutations` goes, up to somewhere; who is behind, is out of range."""
    log = world.clock.chance.choice(world.mutations)
    world.indexers_were_hurt = True
    world.trace("retention cuts mutations")
    log.trim(log.end - world.clock.chance.choice((0, 2, 10)))


def _away_for_retention(world: PlaneWorld) -> None:
    """An indexer is away for so long that retention takes what it has not read."""
    indexer = world.clock.chance.choice(world.shells)
    world.indexers_were_hurt = True
    indexer.kill()
    for wait_ms in (500, 1_200):
        world.clock.at(wait_ms, _retention, world)
    world.clock.at(1_300, indexer.start)


def _records_lost(world: PlaneWorld) -> None:
    """Some records of a partition are gone, and those behind them are not."""
    log, chance = world.clock.chance.choice(world.mutations), world.clock.chance
    world.indexers_were_hurt = True
    begin = log.end - chance.choice((1, 3, 10, 30))
    world.trace(f"records of mutations are lost, from {begin} on")
    log.hole(begin, chance.choice((1, 1, 3, 20)))


def _log_truncated(world: PlaneWorld) -> None:
    """A leader without the last records is elected; what is sent next takes their place."""
    log, chance = world.clock.chance.choice(world.mutations), world.clock.chance
    world.indexers_were_hurt = True
    world.trace("the end of mutations is cut off")
    log.truncate(chance.choice((1, 3, 10)))


def _generation_without_an_indexer(world: PlaneWorld) -> None:
    """While an indexer is away, a projector dies with what it had for it; the others go on."""
    indexer, clock = world.clock.chance.choice(world.shells), world.clock
    projector = clock.chance.choice(world.projectors_)
    world.indexers_were_hurt = True
    indexer.kill()
    if projector.life is not None:
        projector.life.producer.slow_ms = 300
    clock.at(clock.chance.choice((300, 1_100)), _kill_for_a_moment, projector)
    clock.at(clock.chance.choice((2_000, 3_500)), indexer.start)


def _kill_for_a_moment(projector: Projector) -> None:
    projector.kill()
    projector.world.clock.at(1, projector.start)


def _connections_closed(world: PlaneWorld) -> None:
    for connection in list(world.store.connections):
        if world.clock.hit(0.5):
            connection.close("closed by an operator")


def _frames_lost(world: PlaneWorld) -> None:
    world.store.dropping = world.clock.chance.choice((0.02, 0.1))


def _vbuckets_moved(world: PlaneWorld) -> None:
    for name, vbuckets in world.store.buckets.items():
        for vbucket in vbuckets:
            if world.clock.hit(0.3):
                world.store.move(name, vbucket.number, world.clock.chance.choice(NODES))


def _vbucket_crashes(world: PlaneWorld) -> None:
    name = world.clock.chance.choice(world.buckets)
    number = world.clock.chance.randrange(len(world.store.buckets[name]))
    world.store.crash(name, number, world.clock.chance.randint(1, 4))


def _of_coordinator(kind: str) -> Callable[[PlaneWorld], None]:
    def strike(world: PlaneWorld) -> None:
        machine = world.machines.get(world.judge.truth.master)
        if machine is not None and machine.node is not None:
            KINDS[kind](world, machine)

    return strike


ACTIONS: dict[str, Callable[[PlaneWorld], None]] = {
    "projector_killed": _projector_killed,
    "projector_paused": _projector_paused,
    "projector_replaced": _projector_replaced,
    "projector_slow": _projector_slow,
    "kafka_refuses": _kafka_refuses,
    "indexer_killed": _indexer_killed,
    "indexer_away": _indexer_away,
    "indexer_crashes_in_a_write": _indexer_crashes_in_a_write,
    "indexer_cut_power": _indexer_cut_power,
    "indexer_loses_storage": _indexer_loses_storage,
    "indexer_slow": _indexer_slow,
    "disk_full": _disk_full,
    "retention": _retention,
    "away_for_retention": _away_for_retention,
    "records_lost": _records_lost,
    "log_truncated": _log_truncated,
    "generation_without_an_indexer": _generation_without_an_indexer,
    "connections_closed": _connections_closed,
    "frames_lost": _frames_lost,
    "vbuckets_moved": _vbuckets_moved,
    "master_crashes": _of_coordinator("crash"),
    "master_pauses": _of_coordinator("pause"),
    "stray_events": _of_coordinator("late commit"),
    "transaction_timeout": _of_coordinator("transaction timeout"),
}

STORE_LOSES = "vbucket_crashes"
"""Needs a rollback, which there is not yet: only worlds that ask for it have it."""


def strike(world: PlaneWorld, name: str) -> None:
    """Let a fault happen."""
    if not world.healed:
        world.trace(f"fault: {name}")
        world.coverage.strikes[name] += 1
        (_vbucket_crashes if name == STORE_LOSES else ACTIONS[name])(world)
