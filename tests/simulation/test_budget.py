"""No step of a node costs more than what it does: not what waits, and not what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.consensus.inputs import Requested
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader.group_commit import GroupCommit
from coordinator.core.leader.master import Master
from coordinator.core.model.commands import OK, Outcome, PutSetting, Request
from tests.simulation.judge import Judge
from tests.simulation.kernel.violation import Violation
from tests.simulation.meter import CALLS_PER_MS
from tests.simulation.scenes import master_of, run_until, serves, world_has_members
from tests.simulation.world import World

WAITING, FLOODS = 4_000, 3
VALUE = '"' + "x" * 4_000 + '"'
CALLS_MAX = 120_000
"""What a full group costs, and half as much again."""


class Flood:
    """Very many callers at once, each with a request of its own."""

    op = None
    reading = None

    def __init__(self, world: World, count: int, value: str = VALUE, name: str = "f") -> None:
        self.answers: list[Outcome] = []
        self._token = 0
        master = master_of(world)
        deadline_ms = world.clock.now + 600_000
        for number in range(count):
            token = world.token()
            request = Request(
                command=PutSetting(f"k{number % 100}" if name != "f" else f"k{number}", value),
                id=f"{name}{number}",
                fingerprint=1,
                recorded=True,
                token=token,
                deadline_ms=deadline_ms,
            )
            master.ask(Requested(request), token, self)

    def heard(self, token: int, outcome: Outcome) -> None:
        self.answers.append(outcome)


def a_world(**more: Any) -> World:
    world = World(1, plain=True, queue_max=10**6, **more)
    run_until(world, world_has_members(world, 3))
    world.calls_per_ms = CALLS_PER_MS
    world.judge.calls_max = CALLS_MAX
    return world


def flood() -> None:
    """Form groups while very many wait."""
    world = a_world()
    found = Flood(world, WAITING)
    run_until(world, lambda: len(found.answers) == WAITING, 600_000)
    assert {answer.status for answer in found.answers} == {OK}


def failover_with_many_outcomes() -> None:
    """Let another node take over while very much is remembered."""
    world = a_world()
    for number in range(FLOODS):
        found = Flood(world, WAITING, '"1"', name=f"{number}-")
        run_until(world, lambda found=found: len(found.answers) == WAITING, 600_000)  # type: ignore[misc]
    node = master_of(world).node
    assert node is not None
    assert len(node.outcomes) == FLOODS * WAITING
    world.judge.calls_max = CALLS_MAX // 10
    epoch = world.judge.truth.epoch
    master_of(world).crash()
    run_until(world, lambda: world.judge.truth.epoch > epoch)
    run_until(world, lambda: serves(master_of(world)))


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", [flood, failover_with_many_outcomes])
def test_no_step_is_long(scenario: Any) -> None:
    scenario()


@pytest.mark.thorough
def test_a_group_that_looks_at_all_that_waits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def thorough(self: GroupCommit, view: NodeView, group: Any) -> None:
        left, queue = [], self._requests.queue
        for _ in range(len(queue)):
            request = queue.pop()
            if not self._enlist(view, group, request):
                left.append(request)
        queue.push_front(left)

    monkeypatch.setattr(GroupCommit, "_enlist_waiting", thorough)
    with pytest.raises(Violation, match="a-step-is-short"):
        flood()


@pytest.mark.thorough
def test_a_claim_that_looks_at_all_that_is_remembered_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Master.begin

    def thorough(self: Master, view: NodeView) -> list[Result]:
        for request_id in list(view.outcomes._cas_of):
            view.outcomes._cas_of.get(request_id)
        return begin(self, view)

    monkeypatch.setattr(Master, "begin", thorough)
    with pytest.raises(Violation, match="a-step-is-short"):
        failover_with_many_outcomes()


def test_steps_that_take_time_delay_what_follows() -> None:
    """A machine that needs long for a step neither hears nor says anything meanwhile."""
    world = a_world()
    world.calls_per_ms = 20
    world.judge.calls_max = 10**9
    master = master_of(world)
    master.feed(Requested(Request(command=PutSetting("k", "1"), token=world.token())))
    assert master.paused
    before = world.steps
    run_until(world, lambda: not master.paused)
    assert world.steps > before
    assert isinstance(world.judge, Judge)
