"""Documents come from topics: whatever Kafka does to a log, an index is what can be read of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.conftest import BASE, BATCH, PLANE_SEEDS, portion, require_met
from tests.simulation.kernel.runs import SeedReport, hold
from tests.simulation.plane.faults import STORE_LOSES
from tests.simulation.plane.reading_topics import TOPIC_ACTIONS, TopicWorld
from tests.simulation.planted import topics as t
from tests.simulation.planted.search import cases, search

pytestmark = pytest.mark.worlds

WORLDS_MAX = 60
MET = SeedReport()

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_an_index_is_what_can_be_read_under_every_schedule(first: int) -> None:
    hold(MET, TopicWorld, portion(first))


@pytest.mark.parametrize("first", range(0, PLANE_SEEDS, BATCH))
def test_so_it_is_in_worlds_that_nobody_has_run(first: int) -> None:
    hold(MET, TopicWorld, portion(first, BASE))


def test_the_run_met_every_fault() -> None:
    require_met(MET, (*TOPIC_ACTIONS, STORE_LOSES))


@pytest.mark.thorough
def test_logs_have_all_that_a_log_of_kafka_may_have() -> None:
    """Else the other tests would show nothing."""
    worlds = [TopicWorld(seed) for seed in range(48)]
    for world in worlds:
        world.run()
    logs = [log for world in worlds for topic in world.store.buckets.values() for log in topic]
    for has in (
        lambda log: log.epochs[0].number > 0,
        lambda log: len(log.epochs) > 1,
        lambda log: log.superseded,
        lambda log: log.garbage,
        lambda log: any(m.document and not m.key for m in log.history),
        lambda log: log.branches.topic_id not in ("topic 1", "topic 2"),
        lambda log: log.forgotten,
        lambda log: log.reading > 0,
    ):
        assert sum(bool(has(log)) for log in logs) >= 3
    assert sum(world.store.cut > 0 for world in worlds) >= 3


WRONG = {"hw-holds-what-it-claims", "snapshots-are-exact", "an-entry-is-of-its-document"}
LOST = {*WRONG, "hw-is-of-the-store", "converges", "index-equals-oracle"}

MUTANTS: list[tuple[Plant, tuple[str, ...], int, set[str]]] = [
    (t.a_compacted_topic_has_snapshots_anywhere, ("projector_killed",), 7, WRONG),
    (t.a_lost_end_is_nobodys_concern, (STORE_LOSES,), 2, LOST),
    (t.a_topic_made_anew_is_the_same, (STORE_LOSES,), 4, LOST),
    (t.a_topic_is_taken_for_a_store, (), 0, WRONG),
    (t.what_has_no_record_is_waited_for, (), 0, {"converges"}),
    (t.a_leader_is_noticed_by_its_records_only, (), 1, {"converges"}),
    (t.what_is_forgotten_is_nobodys_concern, ("nobody_reads",), 14, LOST),
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
        lambda number: TopicWorld(number, focus=faults).run(),
        first,
        WORLDS_MAX,
        names,
    )
