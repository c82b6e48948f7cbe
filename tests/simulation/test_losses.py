"""A store that loses changes: indexes become what it still has, whatever else fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.conftest import BASE, BATCH, PLANE_SEEDS, portion, require_met
from tests.simulation.kernel.runs import SeedReport, hold
from tests.simulation.plane.faults import ACTIONS, STORE_LOSES
from tests.simulation.plane.losing import LosingWorld
from tests.simulation.plane.world import AT_ONCE
from tests.simulation.planted import rollbacks as r
from tests.simulation.planted.search import cases, search

pytestmark = pytest.mark.worlds

WORLDS_MAX = 60
MET = SeedReport()

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_every_index_is_what_the_store_still_has_under_every_schedule(first: int) -> None:
    hold(MET, LosingWorld, portion(first))


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_so_it_is_in_worlds_that_nobody_has_run(first: int) -> None:
    hold(MET, LosingWorld, portion(first, BASE))


def test_the_run_met_every_fault() -> None:
    require_met(MET, (*ACTIONS, STORE_LOSES))


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(129, id="a timestamp of a vbucket that has lost everything"),
        pytest.param(340, id="a stream that begins anew after everything was emptied"),
    ],
)
def test_worlds_that_have_shown_a_fault_hold(seed: int) -> None:
    LosingWorld(seed, **AT_ONCE).run()


WRONG = {
    "converges",
    "hw-holds-what-it-claims",
    "hw-is-of-the-store",
    "snapshots-are-exact",
    "an-entry-is-of-its-document",
    "no-entry-is-doubled",
}

SHOWN = {"no-scan-shows-what-is-lost"}

MUTANTS: list[tuple[Plant, tuple[str, ...], int, set[str]]] = [
    (r.indexers_keep_what_was_lost, (), 1, WRONG),
    (r.any_snapshot_will_do, (), 2, WRONG),
    (r.only_the_last_change_is_undone, (), 2, WRONG),
    (r.of_several_keys_one_is_put_back, (), 2, WRONG),
    (r.a_loss_during_a_rollback_is_overlooked, (), 2, WRONG),
    (r.histories_are_not_compared, (), 2, SHOWN),
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
        lambda number: LosingWorld(number, focus=faults).run(),
        first,
        WORLDS_MAX,
        names,
    )
