"""Random schedules: every seed is a cluster with its own faults, and all invariants must hold.

Beside the seeds that every run has, there are as many that no run had before: from a base that is
drawn anew, and printed. SIMULATION_BASE runs those of another run again.
"""

from __future__ import annotations

import os

import pytest

from coordinator.core.catalog.outcomes import AHEAD_MS_MAX
from tests.simulation.conftest import BASE, ENOUGH_FOR_EACH
from tests.simulation.kernel.runs import SeedReport, ends_in_processes, run_seeds
from tests.simulation.requirements import ENOUGH_FOR_PAIRS, meet_pairs, shortcomings
from tests.simulation.world import World

pytestmark = pytest.mark.worlds

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "300"))
BATCH = 50

MET = SeedReport()
"""What all seeds of this run met together."""


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_all_invariants_hold_under_every_schedule(first: int) -> None:
    hold(range(first, min(first + BATCH, SEEDS)))


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_all_invariants_hold_in_worlds_that_nobody_has_run(first: int) -> None:
    hold(range(BASE + first, BASE + min(first + BATCH, SEEDS)))


def hold(seeds: range) -> None:
    found = run_seeds(World, seeds)
    MET.coverage.add(found.coverage)
    found.require_all()


@pytest.mark.timeout(1_200)
def test_the_run_met_every_fault_every_step_and_all_pairs_of_them() -> None:
    """A run of fewer seeds is held to less: to every fault and every step at all. `make simulate`
    is held to all pairs.

    What the worlds have missed is made here, in worlds that are bounded in number: a busy machine
    takes minutes for them.
    """
    if MET.coverage.worlds < 2 * SEEDS or SEEDS < ENOUGH_FOR_EACH:
        pytest.skip("too few seeds")
    every_pair = SEEDS >= ENOUGH_FOR_PAIRS
    if every_pair:
        meet_pairs(MET)
    MET.require_all()
    assert not shortcomings(MET.coverage, every_pair=every_pair)


def test_in_some_worlds_the_clocks_of_clients_are_ahead_within_the_bound_and_beyond() -> None:
    ahead_ms = {world.ahead_ms for world in map(World, range(60)) if world.timed_ids}
    assert 0 in ahead_ms
    assert any(0 < some_ms <= AHEAD_MS_MAX for some_ms in ahead_ms)
    assert any(some_ms > AHEAD_MS_MAX for some_ms in ahead_ms)


@pytest.mark.parametrize("seed", [3959141, 3959462])
def test_a_command_that_was_too_far_ahead_may_be_repeated_when_that_is_forgotten(seed: int) -> None:
    """A clock steps by hours: the refusal is older than the window, and the repeat is none."""
    World(seed).run()


@pytest.mark.parametrize("seed", [3, 17, 42])
def test_a_seed_gives_the_same_trace_every_time(seed: int) -> None:
    hashes = set()
    for _ in range(2):
        world = World(seed)
        world.run()
        hashes.add((world.hash, world.steps, world.clock.now))
    assert len(hashes) == 1


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    assert len(ends_in_processes(World, 17)) == 1
