"""Whether each deletion is seen, where Kafka forgets them after a while."""

from __future__ import annotations

import pytest

from coordinator.core.model.topic_logs import Cleaning, Epoch, History
from projector_sim.sources.deletions import LOOK_MS, LOOKS, DeletionWatch

KEPT_MS = 100_000
PERIOD_MS = KEPT_MS // LOOKS
NOW_MS = 10**12
HISTORY = History(0, 90, 95, (Epoch(0, 0),))
OLD_MS = KEPT_MS - 2 * PERIOD_MS
"""What was there so long ago has to be read by now."""


def watch(read_from_ms: int = 0, kept_ms: int = KEPT_MS) -> DeletionWatch:
    return DeletionWatch(Cleaning(True, False, kept_ms), read_from_ms)


def begun(start: int, read_from_ms: int = 0) -> DeletionWatch:
    """Return the watch of one partition that has begun, and has hidden nothing."""
    made = watch(read_from_ms)
    assert not made.begin(0, HISTORY, (7, start), None, NOW_MS)
    return made


def look(made: DeletionWatch, at: int, end: int, after_ms: int) -> tuple[bool, bool]:
    """Return whether something may be missed, and whether it would be again."""
    missed, slow = made.look({0: at}, {0: end}, NOW_MS + after_ms)
    return 0 in missed, 0 in slow


def looks(made: DeletionWatch, at: int, end: int, until_ms: int) -> list[tuple[bool, bool]]:
    """Look each period, while the partition stays where it is; return what was found."""
    times = range(PERIOD_MS, until_ms + 1, PERIOD_MS)
    return [look(made, at, end, after_ms) for after_ms in times]


@pytest.mark.parametrize(
    ("start", "kept_from", "hides"),
    [
        *[((7, 3), 5, True), ((7, 5), 5, False), ((7, 0), 5, False), ((7, 3), None, False)],
        *[((7, 90), 93, False), (None, 93, False)],
    ],
)
def test_who_begins_below_what_may_be_forgotten_may_miss_something(
    start: tuple[int, int] | None, kept_from: int | None, hides: bool
) -> None:
    """Nothing can be above the last stable offset, where who has no position begins."""
    assert watch().begin(0, HISTORY, start, kept_from, NOW_MS) == hides


@pytest.mark.parametrize(
    ("kept_ms", "period_ms"),
    [(KEPT_MS, PERIOD_MS), (86_400_000, LOOK_MS[-1]), (10_000, LOOK_MS[0])],
)
def test_it_is_not_looked_too_often_nor_too_seldom(kept_ms: int, period_ms: int) -> None:
    made = watch(kept_ms=kept_ms)
    made.begin(0, HISTORY, (7, 3), None, NOW_MS)
    for _ in range(2):
        assert not made.is_due(NOW_MS + period_ms - 1)
        assert made.is_due(NOW_MS + period_ms)
        made.look({0: 3}, {0: 3}, NOW_MS)


@pytest.mark.parametrize("cleaning", [Cleaning(True, False, 3_999), Cleaning(False, True, KEPT_MS)])
def test_it_is_not_looked_where_that_would_tell_nothing(cleaning: Cleaning) -> None:
    made = DeletionWatch(cleaning, 0)
    made.begin(0, HISTORY, (7, 3), None, NOW_MS)
    assert not made.is_due(NOW_MS + 10**9)


def test_who_is_held_back_for_too_long_may_miss_something() -> None:
    made = begun(3)
    *before, last = looks(made, 3, 4, OLD_MS + PERIOD_MS)
    assert not any(map(any, before))
    assert last == (True, False)


def test_who_follows_misses_nothing_however_long_it_takes() -> None:
    """Though it is never at the end, and whatever the times of the records say."""
    made = begun(3)
    for number in range(1, 5 * LOOKS):
        assert look(made, 10 * number, 10 * number + 15, number * PERIOD_MS) == (False, False)


def test_who_was_at_the_end_in_time_misses_nothing_though_nobody_has_looked_since() -> None:
    made = begun(3)
    look(made, 3, 8, PERIOD_MS)
    made.reach_end(0, 8, NOW_MS + 3 * PERIOD_MS)
    assert look(made, 9, 9, 10 * KEPT_MS) == (False, False)


def test_who_has_read_on_too_late_may_have_missed_something() -> None:
    """Where it stands now says nothing then, nor that it was at the end."""
    made = begun(3)
    look(made, 3, 8, PERIOD_MS)
    made.reach_end(0, 9, NOW_MS + 3 * PERIOD_MS + 1)
    assert look(made, 9, 9, 10 * KEPT_MS) == (True, False)


@pytest.mark.parametrize(("start", "read_from_ms"), [(0, 0), (3, NOW_MS - 50_000)])
def test_a_first_reading_that_takes_too_long_is_told_and_would_be_again(
    start: int, read_from_ms: int
) -> None:
    """Also one that goes on elsewhere."""
    made = begun(start, read_from_ms)
    *before, last = looks(made, 4, 90, OLD_MS + PERIOD_MS)
    assert not any(map(any, before))
    assert last == (False, True)


def test_what_was_read_to_where_it_ended_once_is_read_again_where_it_misses_something() -> None:
    made = begun(0)
    look(made, HISTORY.stable, 95, PERIOD_MS)
    found = [look(made, 91, 95, n * PERIOD_MS) for n in range(2, LOOKS + 2)]
    assert found[-1] == (True, False)


def test_a_log_that_is_shorter_by_now_hides_nothing() -> None:
    made = begun(3)
    look(made, 5, 9, PERIOD_MS)
    assert not any(map(any, (look(made, 5, 5, n * PERIOD_MS) for n in range(2, 2 * LOOKS))))


def test_a_partition_that_is_over_is_nobodys_concern() -> None:
    made = begun(3)
    assert made.look({}, {}, NOW_MS + PERIOD_MS) == (set(), set())
