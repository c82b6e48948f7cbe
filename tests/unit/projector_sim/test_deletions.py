"""Whether each deletion is seen, where Kafka forgets them after a while."""

from __future__ import annotations

import pytest

from coordinator.core.model.topic_logs import Cleaning, Epoch, History
from projector_sim.sources.deletions import LOOK_MS, LOOKS, DeletionWatch

KEPT_MS = 100_000
PERIOD_MS = KEPT_MS // LOOKS
NOW_MS = 10**12
HISTORY = History(0, 90, 95, (Epoch(0, 0),))
FIRST_MS = NOW_MS - 50_000
"""A reading that has begun so recently misses nothing yet."""


def watch(read_from_ms: int = 0, kept_ms: int = KEPT_MS) -> DeletionWatch:
    return DeletionWatch(Cleaning(True, False, kept_ms), read_from_ms)


def begun(start: int, read_from_ms: int = 0) -> DeletionWatch:
    """Return the watch of one partition that has begun, and has hidden nothing."""
    made = watch(read_from_ms)
    assert not made.begin(0, HISTORY, (7, start), None, NOW_MS)
    return made


def look(made: DeletionWatch, at: int, kept_from: int, after_ms: int) -> tuple[bool, bool]:
    """Return whether something may be missed, and whether it would be again."""
    missed, slow = made.look({0: at}, {0: kept_from}, NOW_MS + after_ms)
    return 0 in missed, 0 in slow


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


def test_it_is_looked_in_time_and_for_what_stays_until_the_next_look() -> None:
    made = begun(3)
    assert made.due_ms(NOW_MS + PERIOD_MS - 1) is None
    due_ms = NOW_MS + PERIOD_MS
    assert made.due_ms(due_ms) == due_ms - KEPT_MS + 2 * PERIOD_MS
    look(made, 3, 0, PERIOD_MS)
    assert made.due_ms(due_ms + PERIOD_MS - 1) is None


@pytest.mark.parametrize(
    ("kept_ms", "period_ms"), [(86_400_000, LOOK_MS[-1]), (10_000, LOOK_MS[0])]
)
def test_it_is_not_looked_too_often_nor_too_seldom(kept_ms: int, period_ms: int) -> None:
    made = watch(kept_ms=kept_ms)
    made.begin(0, HISTORY, (7, 3), None, NOW_MS)
    assert made.due_ms(NOW_MS + period_ms - 1) is None
    assert made.due_ms(NOW_MS + period_ms) is not None


@pytest.mark.parametrize("cleaning", [Cleaning(True, False, 3_999), Cleaning(False, True, KEPT_MS)])
def test_it_is_not_looked_where_that_would_tell_nothing(cleaning: Cleaning) -> None:
    made = DeletionWatch(cleaning, 0)
    made.begin(0, HISTORY, (7, 3), None, NOW_MS)
    assert made.due_ms(NOW_MS + 10**9) is None


def test_who_is_held_back_for_too_long_may_miss_something() -> None:
    made = begun(3)
    made.reach_end(0, 3, NOW_MS + 1)
    assert look(made, 3, 3, PERIOD_MS) == (False, False)
    assert look(made, 3, 4, 2 * PERIOD_MS) == (True, False)


def test_who_was_at_the_end_in_time_misses_nothing_though_nobody_has_looked_since() -> None:
    made = begun(3)
    made.reach_end(0, 8, NOW_MS + 2 * PERIOD_MS)
    assert look(made, 9, 8, 5 * PERIOD_MS) == (False, False)


def test_who_has_read_on_too_late_may_have_missed_something() -> None:
    """Where it stands now says nothing then, nor that it was at the end."""
    made = begun(3)
    made.reach_end(0, 3, NOW_MS + 1)
    look(made, 3, 0, PERIOD_MS)
    made.reach_end(0, 9, NOW_MS + 3 * PERIOD_MS + 1)
    assert look(made, 9, 9, 4 * PERIOD_MS) == (True, False)


def test_a_first_reading_sees_all_for_a_while_and_is_too_slow_then() -> None:
    made = begun(0)
    enough_ms = KEPT_MS - 2 * PERIOD_MS
    assert look(made, 3, 9, enough_ms) == (False, False)
    assert look(made, 4, 9, enough_ms + 1) == (False, True)


def test_a_first_reading_that_goes_on_elsewhere_has_begun_when_it_did() -> None:
    made = begun(3, read_from_ms=FIRST_MS)
    enough_ms = KEPT_MS - 2 * PERIOD_MS - 50_000
    assert look(made, 3, 9, enough_ms) == (False, False)
    assert look(made, 3, 9, enough_ms + 1) == (False, True)


def test_what_was_read_to_its_end_once_is_read_again_where_it_misses_something() -> None:
    made = begun(0)
    made.reach_end(0, 3, NOW_MS + 1)
    assert look(made, 3, 9, PERIOD_MS) == (True, False)


def test_a_partition_that_is_over_is_nobodys_concern() -> None:
    made = begun(3)
    assert made.look({}, {}, NOW_MS + PERIOD_MS) == (set(), set())
