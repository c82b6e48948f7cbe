"""What can go wrong with the data plane: with projectors, indexers, the store and the topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.faults import KINDS
from tests.simulation.kernel.faults import Fault, at_large, one_of
from tests.simulation.plane.store import NODES

if TYPE_CHECKING:
    from tests.simulation.machine import Machine
    from tests.simulation.plane.indexer import Indexer
    from tests.simulation.plane.mutations import Partition
    from tests.simulation.plane.projector import Projector, ProjectorProcess
    from tests.simulation.plane.shell import Shell
    from tests.simulation.plane.world import PlaneWorld

# -- whom they strike ----------------------------------------------------------------------------

a_projector = one_of("projectors")
an_indexer = one_of("indexers")


def an_indexer_that_is_hurt(world: PlaneWorld) -> tuple[Iterable[Indexer], str]:
    world.indexers_were_hurt = True
    return an_indexer(world)


def a_log_that_loses(world: PlaneWorld) -> tuple[Iterable[Partition], str]:
    world.indexers_were_hurt = True
    return (world.clock.chance.choice(world.mutations),), ""


def a_process(world: PlaneWorld) -> tuple[Iterable[ProjectorProcess], str]:
    """A projector's, if it is up and does not stand still."""
    process = world.clock.chance.choice(world.projectors).process
    return (() if process is None or process.paused else (process,)), ""


def the_acting_master(world: PlaneWorld) -> tuple[Iterable[Machine], str]:
    machine = world.master
    return (() if machine is None or machine.node is None else (machine,)), ""


# -- what befalls them ---------------------------------------------------------------------------


def _away(*pauses_ms: int) -> Callable[[PlaneWorld, Shell[Any]], None]:
    """Return the fault of a process that is killed, and started again after one of these."""

    def kill(world: PlaneWorld, shell: Shell[Any]) -> None:
        shell.kill()
        world.clock.at(world.clock.chance.choice(pauses_ms), shell.start)

    return kill


def _pause(world: PlaneWorld, process: ProjectorProcess) -> None:
    """It stands still, for longer than it counts as alive, perhaps, and goes on."""
    process.pause()
    world.clock.at(world.clock.chance.choice((150, 700, 2_500, 4_000)), process.go_on)


def _replace(world: PlaneWorld, process: ProjectorProcess) -> None:
    """It stands still, its vbuckets move to another node, and it goes on with what it had."""
    process.pause()
    _move(world, 0.7, lambda: 1 - process.number)
    world.clock.at(world.clock.chance.choice((700, 2_500)), process.go_on)


def _slow_down(world: PlaneWorld, projector: Projector) -> None:
    projector.slow_ms = world.clock.chance.choice((50, 400, 1_500))
    if projector.process is not None:
        projector.process.producer.slow_ms = projector.slow_ms


def _crash_in_a_write(world: PlaneWorld, indexer: Indexer) -> None:
    if indexer.disks:
        name = world.clock.chance.choice(sorted(indexer.disks))
        indexer.disks[name].troubles.fuse = world.clock.chance.randint(0, 4)


def _cut_power(world: PlaneWorld, indexer: Indexer) -> None:
    indexer.cut_power()
    indexer.restart_later()


def _lose_storage(world: PlaneWorld, indexer: Indexer) -> None:
    indexer.lose_storage()
    world.clock.at(world.clock.chance.choice((1, 500)), indexer.start)


def _slow_indexer(world: PlaneWorld, indexer: Indexer) -> None:
    indexer.slow_ms = world.clock.chance.choice((30, 200))


def _fill_disks(world: PlaneWorld, indexer: Indexer) -> None:
    for disk in indexer.disks.values():
        disk.troubles.failing = world.clock.chance.randint(1, 2)


def _trim(world: PlaneWorld, log: Partition) -> None:
    """The head of `mutations` goes, up to somewhere; who is behind, is out of range."""
    world.trace("retention cuts mutations")
    log.trim(log.end - world.clock.chance.choice((0, 2, 10)))


def _trim_any(world: PlaneWorld) -> None:
    _trim(world, world.clock.chance.choice(world.mutations))


def _away_for_retention(world: PlaneWorld, indexer: Indexer) -> None:
    """An indexer is away for so long that retention takes what it has not read."""
    indexer.kill()
    for wait_ms in (500, 1_200):
        world.clock.at(wait_ms, _trim_any, world)
    world.clock.at(1_300, indexer.start)


def _lose_records(world: PlaneWorld, log: Partition) -> None:
    """Some records of a partition are gone, and those behind them are not."""
    chance = world.clock.chance
    begin = log.end - chance.choice((1, 3, 10, 30))
    world.trace(f"records of mutations are lost, from {begin} on")
    log.hole(begin, chance.choice((1, 1, 3, 20)))


def _truncate(world: PlaneWorld, log: Partition) -> None:
    """A leader without the last records is elected; what is sent next takes their place."""
    world.trace("the end of mutations is cut off")
    log.truncate(world.clock.chance.choice((1, 3, 10)))


def _generation_without(world: PlaneWorld, indexer: Indexer) -> None:
    """While an indexer is away, a projector dies with what it had for it; the others go on."""
    clock = world.clock
    projector = clock.chance.choice(world.projectors)
    indexer.kill()
    if projector.process is not None:
        projector.process.producer.slow_ms = 300
    clock.at(clock.chance.choice((300, 1_100)), _kill_for_a_moment, projector)
    clock.at(clock.chance.choice((2_000, 3_500)), indexer.start)


def _kill_for_a_moment(projector: Projector) -> None:
    projector.kill()
    projector.world.clock.at(1, projector.start)


def _close_connections(world: PlaneWorld) -> None:
    for connection in list(world.store.connections):
        if world.clock.hit(0.5):
            connection.close("closed by an operator")


def _lose_frames(world: PlaneWorld) -> None:
    world.store.dropping = world.clock.chance.choice((0.02, 0.1))


def _move(world: PlaneWorld, share: float, whither: Callable[[], int]) -> None:
    for name, vbuckets in world.store.buckets.items():
        for vbucket in vbuckets:
            if world.clock.hit(share):
                world.store.move(name, vbucket.number, whither())


def _move_vbuckets(world: PlaneWorld) -> None:
    _move(world, 0.3, lambda: world.clock.chance.choice(NODES))


def _crash_vbucket(world: PlaneWorld) -> None:
    name = world.clock.chance.choice(world.buckets)
    number = world.clock.chance.randrange(len(world.store.buckets[name]))
    world.store.crash(name, number, world.clock.chance.choice((0, 1, 2, 4, 1_000)))


ACTIONS: dict[str, Fault] = {
    "projector_killed": Fault(a_projector, _away(1, 100, 1_500)),
    "projector_paused": Fault(a_process, _pause),
    "projector_replaced": Fault(a_process, _replace),
    "projector_slow": Fault(a_projector, _slow_down),
    "kafka_refuses": Fault(a_process, lambda world, process: process.lose_kafka()),
    "indexer_killed": Fault(an_indexer_that_is_hurt, _away(1, 100, 800)),
    "indexer_away": Fault(an_indexer_that_is_hurt, _away(2_500, 6_000)),
    "indexer_crashes_in_a_write": Fault(an_indexer_that_is_hurt, _crash_in_a_write),
    "indexer_cut_power": Fault(an_indexer_that_is_hurt, _cut_power),
    "indexer_loses_storage": Fault(an_indexer_that_is_hurt, _lose_storage),
    "indexer_slow": Fault(an_indexer, _slow_indexer),
    "disk_full": Fault(an_indexer, _fill_disks),
    "retention": Fault(a_log_that_loses, _trim),
    "away_for_retention": Fault(an_indexer_that_is_hurt, _away_for_retention),
    "records_lost": Fault(a_log_that_loses, _lose_records),
    "log_truncated": Fault(a_log_that_loses, _truncate),
    "generation_without_an_indexer": Fault(an_indexer_that_is_hurt, _generation_without),
    "connections_closed": at_large(_close_connections),
    "frames_lost": at_large(_lose_frames),
    "vbuckets_moved": at_large(_move_vbuckets),
    "master_crashes": Fault(the_acting_master, KINDS["crash"]),
    "master_pauses": Fault(the_acting_master, KINDS["pause"]),
    "stray_events": Fault(the_acting_master, KINDS["late commit"]),
    "transaction_timeout": Fault(the_acting_master, KINDS["transaction timeout"]),
}

STORE_LOSES = "vbucket_crashes"
"""Only worlds that ask for it have it: it needs rollbacks, and these hide what others show."""

TABLE = {**ACTIONS, STORE_LOSES: at_large(_crash_vbucket)}
