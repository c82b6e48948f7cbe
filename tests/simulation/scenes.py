"""Scenes of the simulator: a world, and what is waited for in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.consensus.inputs import Requested
from coordinator.core.model.commands import OK, Command, Outcome, PutSetting, Request
from tests.simulation import actors
from tests.simulation.machine import Machine
from tests.simulation.world import World

PUT = PutSetting("k", '"v"')


class Caller(actors.Caller):
    """Asks the master for one thing."""

    def __init__(self, world: World, command: Command, patience_ms: int = 5_000, **more: Any):
        request = Request(command=command, deadline_ms=world.clock.now + patience_ms)

        def made(token: int) -> Requested:
            return Requested(replace(request, **{"id": f"r{token}", "token": token, **more}))

        self.ask(world, master_of(world), made)


def master_of(world: World) -> Machine:
    return world.machines[world.judge.truth.master]


def serves(machine: Machine) -> bool:
    """Tell whether the machine is a master that takes commands."""
    node = machine.node
    return node is not None and node.master is not None and node.master.active


def replicas_of(world: World) -> list[Machine]:
    return [m for m in world.machines.values() if m.number != world.judge.truth.master]


def run_until(
    world: World, done: Callable[[], bool], limit_ms: int = 15_000, step_ms: int = 20
) -> None:
    limit = world.clock.now + limit_ms
    while not done():
        assert world.clock.now < limit, world.unsettled()
        world.clock.run(world.clock.now + step_ms)


def ask(world: World, command: Command, **more: Any) -> Outcome:
    caller = Caller(world, command, **more)
    run_until(world, lambda: caller.outcome is not None)
    assert caller.outcome is not None
    return caller.outcome


def records(world: World, *kinds: type) -> list[tuple[int, Any]]:
    found = world.broker["commit"].read(0)
    return [(r.offset, r.value) for r in found if isinstance(r.value, kinds)]


@pytest.fixture(params=[1, 2, 3])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Three nodes at rest, one setting written; afterwards all is healed and compared."""
    world = World(request.param, plain=True, tracing=True)
    run_until(world, world_has_members(world, 3))
    run_until(world, lambda: len(master_of(world).node.authority.indexers) == 3)  # type: ignore
    assert ask(world, PutSetting("first", "1")).status == OK
    run_until(world, world.settled)
    yield world
    world.heal()
    run_until(world, world.settled)
    world.judge.conclude()


def world_has_members(world: World, count: int) -> Callable[[], bool]:
    return lambda: len(world.judge.truth.members) == count and world.settled()


def operate(world: World, machine: Machine, command: Any) -> Outcome:
    operator = actors.Operator(world, machine, command)
    run_until(world, lambda: operator.outcome is not None)
    assert operator.outcome is not None
    return operator.outcome


def standing(machine: Machine) -> Any:
    assert machine.node is not None
    return machine.node.mastership
