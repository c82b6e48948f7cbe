"""Scenes in which members come and go."""

from __future__ import annotations

from typing import Any

from coordinator.core.model.commands import (
    Outcome,
    PutSetting,
)
from tests.simulation.actors import Operator
from tests.simulation.machine import Machine
from tests.simulation.scenes import (
    run_until,
)
from tests.simulation.world import World

PUT = PutSetting("k", '"v"')


def operate(world: World, machine: Machine, command: Any) -> Outcome:
    operator = Operator(world, machine, command)
    run_until(world, lambda: operator.outcome is not None)
    assert operator.outcome is not None
    return operator.outcome


def standing(machine: Machine) -> Any:
    assert machine.node is not None
    return machine.node.mastership
