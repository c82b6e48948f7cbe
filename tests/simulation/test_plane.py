"""Documents become entries whatever fails: every seed is a cluster with a data plane of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from coordinator.core.keys.key_versions import ABSENT, END, SYNC, Item, begin
from coordinator.core.model.stream_records import BACKFILL, MAINTENANCE, NOT_SAID, KeyVersions
from indexer_sim.bucket.tracker import Tracker
from projector_sim.projector.router import Router
from tests.simulation.conftest import BASE, BATCH, PLANE_SEEDS, portion, require_met
from tests.simulation.kernel.runs import SeedReport, ends_in_processes, hold
from tests.simulation.plane.faults import ACTIONS
from tests.simulation.plane.world import AT_ONCE, PlaneWorld
from tests.simulation.planted import streams as s
from tests.simulation.planted.search import cases, search
from tests.support.indexes import make_key_versions

pytestmark = pytest.mark.worlds

WORLDS_MAX = 60

MET = SeedReport()
"""What all seeds of this run met together."""

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_every_index_is_what_the_store_says_under_every_schedule(first: int) -> None:
    hold(MET, PlaneWorld, portion(first))


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_so_it_is_in_worlds_that_nobody_has_run(first: int) -> None:
    hold(MET, PlaneWorld, portion(first, BASE))


def test_the_run_met_every_fault() -> None:
    require_met(MET, ACTIONS)
    assert MET.coverage.checks > 50 * MET.coverage.worlds


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [3, 17])
def test_a_seed_gives_the_same_trace_in_every_process(seed: int) -> None:
    assert len(ends_in_processes(PlaneWorld, seed)) == 1


LOST_BUILDS = ("away_for_retention", "indexer_loses_storage")


@pytest.mark.parametrize(
    ("seed", "faults"), [(1041, ()), (62168, ()), (27, LOST_BUILDS), (59, LOST_BUILDS)]
)
def test_a_build_ends_though_retention_took_what_an_indexer_was_sent_of_it(
    seed: int, faults: tuple[str, ...]
) -> None:
    """An indexer is away while an index that it has whole begins another build.

    What retention takes of one partition is the ATTACH of that build, and all of its backfill. If
    nothing else is sent of these vbuckets, only who asks learns that something is missing. The
    first two worlds found that, before there were more faults; the others show it without the rule.
    """
    PlaneWorld(seed, focus=faults, **AT_ONCE).run()


def test_a_stream_that_began_under_a_number_that_nobody_takes_any_more_begins_again() -> None:
    """A projector reads the state late, and gets back vbuckets that another had meanwhile."""
    PlaneWorld(8590164, **AT_ONCE).run()


TAKEN_OVER = "stray_events", "projector_paused", "projector_replaced", "vbuckets_moved"


def test_of_two_streams_under_one_number_the_one_that_owns_the_vbucket_goes_on() -> None:
    """What the other one sent while it owned it arrives last."""
    PlaneWorld(772312, focus=(*TAKEN_OVER, "master_crashes"), **AT_ONCE).run()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(5))
def test_a_stream_that_others_found_lost_is_taken_over_by_another_connection(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each renewal says so of a vbucket, which most often goes on."""
    chance, given_up = Random(seed), Counter[int]()
    s.renewed_with(monkeypatch, lambda command: replace(command, vbuckets=(chance.randrange(4),)))
    give_up = Router.give_up

    def counted(self: Router, vbuckets: Any) -> None:
        given_up.update(vbuckets)
        give_up(self, vbuckets)

    monkeypatch.setattr(Router, "give_up", counted)
    for world in range(100 * seed, 100 * seed + 40):
        PlaneWorld(world, focus=("connections_closed", "vbuckets_moved", "frames_lost")).run()
        if given_up and world >= 100 * seed + 5:
            return
    pytest.fail("none was taken over")


def test_a_build_ends_though_a_stream_began_anew_below_where_it_was_attached() -> None:
    """One indexer heard where the first stream began, at 5; the next begins for others at 3.

    The backfill of the projector then ends at 3, where maintenance is, and is not sent again.
    """

    def record(kind: str, connection: int, number: int, *items: Item) -> tuple[KeyVersions, Any]:
        fields = {"kind": kind, "connection": connection, "number": number, "previous": NOT_SAID}
        return make_key_versions(1, indexes=(7,), builds=(1,), **fields), items

    tracker = Tracker(1)
    tracker.begin_build(7, 1)
    for head, items in (
        record(MAINTENANCE, 1, 1, begin(0, 5, 9, [0])),
        record(MAINTENANCE, 2, 2, begin(0, 3, 9, [0])),
        record(BACKFILL, 3, 2, begin(0, 0, 9, [0]), Item(END, 0, 3)),
        record(MAINTENANCE, 2, 2, Item(ABSENT, 0, 4, document=b"d"), Item(SYNC, 0, 6)),
    ):
        tracker.apply(head, items)
    assert tracker.indexes[7].state.complete


def test_a_moment_before_a_seqno_of_which_only_a_part_is_here_is_not_told_after_a_restart() -> None:
    """A power cut has kept the first of two records of a mutation."""
    PlaneWorld(725726424, **AT_ONCE).run()


CLAIMS = {"hw-holds-what-it-claims", "snapshots-are-exact"}

MUTANTS: list[tuple[Plant, tuple[str, ...], int, set[str]]] = [
    (s.high_watermark_passes_over_a_gap, ("generation_without_an_indexer",), 34, CLAIMS),
    (s.absence_leaves_no_tombstone, (), 0, CLAIMS),
    (s.of_several_keys_one_is_held, (), 0, CLAIMS),
    (s.what_indexers_ignore_goes_on, (*TAKEN_OVER, "master_crashes"), 772312, {"converges"}),
    (s.catch_up_ends_early, ("away_for_retention", "retention"), 0, CLAIMS),
    (s.build_is_complete_in_some_vbuckets, (), 2, {"a-build-ends-when-it-is-complete"}),
    (s.backfill_ends_too_low, (), 0, CLAIMS),
    (s.number_is_used_again, ("connections_closed",), 2, {"one-connection-a-number"}),
    (
        s.streams_begin_at_the_largest,
        ("projector_killed", "indexer_slow"),
        12,
        {"nobody-alive-is-left-behind"},
    ),
    (s.offsets_are_written_first, ("indexer_crashes_in_a_write",), 0, CLAIMS),
    (s.what_retention_took_is_not_missed, ("away_for_retention",), 0, CLAIMS),
    (s.what_a_build_lacks_is_not_sent_again, LOST_BUILDS, 2, {"converges"}),
    (s.what_is_missing_of_a_connection_is_not_noticed, ("records_lost",), 2, CLAIMS),
    (s.part_of_a_seqno_counts_for_all_of_it, ("projector_killed",), 6, CLAIMS),
    (s.older_build_is_kept, ("indexer_loses_storage",), 9, CLAIMS),
]
"""A mutant, the faults of worlds that can show it (none: any), one that does, who may name it."""

SLOW = {s.what_indexers_ignore_goes_on}
"""A world that never comes to rest takes long."""


@pytest.mark.thorough
@pytest.mark.parametrize(("plant", "faults", "first", "names"), cases(MUTANTS, SLOW))
def test_a_planted_bug_is_caught(
    plant: Plant,
    faults: tuple[str, ...],
    first: int,
    names: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    more = AT_ONCE if plant is s.what_indexers_ignore_goes_on else {}
    search(
        plant.__name__,
        lambda number: PlaneWorld(number, focus=faults, **more).run(),
        first,
        WORLDS_MAX,
        names,
    )
