"""Slices move between indexers: whatever fails, each is served, and what is served is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.conftest import BASE, BATCH, PLANE_SEEDS, portion, require_met
from tests.simulation.kernel.runs import SeedReport, hold
from tests.simulation.plane.faults import ACTIONS, STORE_LOSES
from tests.simulation.plane.moving import MovingWorld
from tests.simulation.plane.world import AT_ONCE
from tests.simulation.planted import moves as m
from tests.simulation.planted.search import cases, search

pytestmark = pytest.mark.worlds

WORLDS_MAX = 60
MET = SeedReport()

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_slices_move_and_nothing_is_wrong_under_every_schedule(first: int) -> None:
    hold(MET, MovingWorld, portion(first))


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_so_it_is_in_worlds_that_nobody_has_run(first: int) -> None:
    hold(MET, MovingWorld, portion(first, BASE))


def test_the_run_met_every_fault() -> None:
    require_met(MET, (*ACTIONS, STORE_LOSES))


@pytest.mark.thorough
def test_copies_take_over_in_many_worlds() -> None:
    """Else the other tests would show nothing."""
    worlds = [MovingWorld(seed) for seed in range(24)]
    for world in worlds:
        world.run()
    assert sum(world.moves.taken_over > 0 for world in worlds) >= 6
    assert sum(world.witness.fillings > 0 for world in worlds) >= 4


@pytest.mark.parametrize(
    ("seed", "more"),
    [
        pytest.param(3_238_849, {}, id="a catch-up that was asked for before the loss"),
        pytest.param(4_100_020, {}, id="a disk that refuses a checkpoint that takes its place"),
        pytest.param(4_232_626, AT_ONCE, id="an older item of a slice that has been released"),
        pytest.param(1_219_580, AT_ONCE, id="a rollback between two messages of one mutation"),
        pytest.param(1_248_074, AT_ONCE, id="a rollback within a snapshot of the store"),
        pytest.param(70_039, AT_ONCE, id="a part that is attached nowhere else, and nobody fills"),
        pytest.param(70_082, AT_ONCE, id="the same, with another vbucket"),
        pytest.param(
            80_212, AT_ONCE, id="a copy that took over loses its storage while others move"
        ),
        pytest.param(7_101_083, {}, id="an answer that comes when the next origin is asked"),
        pytest.param(
            4_607_637, {}, id="one of several origins has given what it has, and no other"
        ),
    ],
)
def test_worlds_that_have_shown_a_fault_hold(seed: int, more: dict[str, Any]) -> None:
    MovingWorld(seed, **more).run()


SERVED = {"each-slice-has-its-copies"}
WRONG = {"hw-holds-what-it-claims", "snapshots-are-exact", "an-entry-is-of-its-document"}

MUTANTS: list[tuple[Plant, tuple[str, ...], int, set[str]]] = [
    (m.a_copy_takes_over_before_it_is_built, (), 1, SERVED),
    (m.a_part_has_all_copies_of_its_index, (), 5, SERVED),
    (m.the_source_leaves_twice, (), 1, SERVED),
    (m.a_copy_goes_without_leaving, (), 51, {"hw-holds-what-it-claims"}),
    (m.a_move_that_is_given_up_keeps_its_part, (), 0, {"a-part-is-of-something"}),
    (m.what_is_released_stays_in_the_back_index, (), 25, {"nothing-is-left-over"}),
    (m.an_origin_is_asked_before_it_is_that_far, ("indexer_slow",), 61, WRONG),
    (m.what_is_given_counts_before_it_is_held_here, ("indexer_slow",), 5, WRONG),
    (m.what_was_deleted_comes_back, (), 27, WRONG),
    (m.who_is_not_whole_gives_too, ("indexer_loses_storage", "vbucket_crashes"), 130, WRONG),
    (m.a_transfer_ends_with_its_first_page, (), 1, WRONG),
    (m.one_origin_is_taken_for_all, (), 117, WRONG),
]
"""A mutant, the faults of worlds that can show it (none: any), one that does, who may name it."""


@pytest.mark.thorough
@pytest.mark.parametrize(("plant", "faults", "first", "names"), cases(MUTANTS, ()))
def test_a_planted_bug_is_caught(
    plant: Plant,
    faults: tuple[str, ...],
    first: int,
    names: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    search(
        plant.__name__,
        lambda number: MovingWorld(number, focus=faults).run(),
        first,
        WORLDS_MAX,
        names,
    )
