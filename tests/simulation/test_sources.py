"""A node without the state finds it wherever it still is, and no operator is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from coordinator.core.model.commands import OK, DeleteSetting, PutSetting
from coordinator.core.model.records import Event, SnapshotKept
from coordinator.core.model.types import TxnId
from tests.simulation.kernel.broker import COMMITTED, Session, Transaction
from tests.simulation.machine import Machine
from tests.simulation.scenes import ask, master_of, records, run_until, world_has_members
from tests.simulation.world import World


@pytest.fixture(params=[1, 2, 3])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Three nodes with some settings; at the end all of it is whole again, `statecontext` too."""
    world = World(request.param, plain=True, tracing=True)
    run_until(world, world_has_members(world, 3))
    for number in range(6):
        assert ask(world, PutSetting(f"k{number % 3}", f'"{number}"')).status == OK
    assert ask(world, DeleteSetting("k2")).status == OK
    run_until(world, world.settled)
    yield world
    run_until(world, world_has_members(world, 3), 60_000)
    assert ask(world, PutSetting("last", "1")).status == OK
    world.clock.run(world.clock.now + 2 * world.config["scrub_ms"])
    run_until(world, world.settled)
    world.judge.conclude()


def lose(world: World, machines: Iterable[Machine]) -> None:
    """The processes end, and their disks are empty when they come back."""
    for machine in list(machines):
        machine.crash("its disk is lost")
        machine.wipe()
    world.clock.run(world.clock.now + 100)


def stray(world: World, key: str) -> None:
    """Something that no transaction committed stands on `statecontext`."""
    newest = [r for r in world.broker["statecontext"].read(0) if r.value.mutation.key == key][-1]
    txn = Transaction(Session(9, 9), world.clock.now, COMMITTED)
    mutation = newest.value.mutation
    world.broker["statecontext"].append(Event(mutation, TxnId(9, 9), 0, 1), txn, world.clock.now)
    world.broker["statecontext"].mark()


def hole(world: World, topic: str, key: str) -> None:
    """The last record of an entity is not there."""
    partition = world.broker[topic]
    newest = [r for r in partition.records if r.value.mutation.key == key][-1]
    partition.records = [r for r in partition.records if r is not newest]


def synchronised_from(world: World, source: str) -> bool:
    return any(f"synchronised from {source}" in line for line in world.lines)


def test_all_disks_are_lost_and_the_log_brings_everything_back(world: World) -> None:
    machines = list(world.machines.values())
    lose(world, machines)
    for machine in machines:
        machine.start()
    run_until(world, world_has_members(world, 3), 30_000)
    assert synchronised_from(world, "statecontext")


@pytest.mark.thorough
@pytest.mark.parametrize("survivor", ["master", "replica"])
def test_two_wiped_nodes_and_a_stray_need_nobody_but_the_survivor(
    world: World, survivor: str
) -> None:
    """The survivor cannot write the entity again without them, nor they find it on the topic."""
    stray(world, "config/k0")
    assert ask(world, PutSetting("other", "1")).status == OK
    world.broker.compact(0)
    lost = [m for m in world.machines.values() if (m is master_of(world)) != (survivor == "master")]
    lose(world, lost[:2])
    for machine in lost[:2]:
        machine.start()
    run_until(world, world_has_members(world, 3), 30_000)
    assert synchronised_from(world, "history")


def test_a_stray_above_everything_committed_is_told_apart_without_a_further_commit(
    world: World,
) -> None:
    """The version before it may be compacted away, and nothing is committed meanwhile."""
    stray(world, "config/k0")
    machines = list(world.machines.values())
    lose(world, machines)
    world.broker.compact(0)
    for machine in machines:
        machine.start()
    run_until(world, world_has_members(world, 3), 30_000)


def test_a_hole_in_statecontext_is_filled_from_the_history(world: World) -> None:
    machines = list(world.machines.values())
    hole(world, "statecontext", "config/k1")
    lose(world, machines)
    for machine in machines:
        machine.start()
    run_until(world, world_has_members(world, 3), 30_000)
    assert synchronised_from(world, "history")


def test_where_no_topic_is_whole_a_peer_gives_a_copy(world: World) -> None:
    lost = [m for m in world.machines.values() if m is not master_of(world)]
    lose(world, lost)
    for topic in ("statecontext", "history"):
        hole(world, topic, "config/k1")
    for machine in lost:
        machine.start()
    run_until(world, lambda: synchronised_from(world, "copy"), 30_000)
    world.judge.replayed = False


def test_a_copy_with_its_tail_needs_no_older_history(world: World) -> None:
    config = master_of(world).node
    assert config is not None
    for machine in world.machines.values():
        assert machine.node is not None
        machine.node.copies.log_grew(10**9)
    assert ask(world, PutSetting("k0", '"copied"')).status == OK
    run_until(world, lambda: bool(records(world, SnapshotKept)))
    assert ask(world, PutSetting("k1", '"in the tail"')).status == OK
    run_until(world, world.settled)
    machines = list(world.machines.values())
    hole(world, "statecontext", "config/k1")
    kept = records(world, SnapshotKept)[-1][1]
    history = world.broker["history"]
    history.records = [r for r in history.records if r.value.cas > kept.cas]
    lose(world, machines)
    for machine in machines:
        machine.start()
    run_until(world, world_has_members(world, 3), 30_000)
    assert synchronised_from(world, "snapshot")
    world.judge.replayed = False
