"""A backfill's window: what may be on its way, and what is waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projector_sim.projector.credits import (
    GOAL_MS,
    LEAST_BYTES,
    PATIENCE_MS,
    QUIET_BYTES,
    WINDOW_BYTES,
    Credit,
)

WINDOW, STEP = 4 * LEAST_BYTES, LEAST_BYTES
HERE = 7


def spent(at_ms: int = 0) -> Credit:
    """Return a credit of which all is on its way: marks behind the ordinals 10, 20, 30 and 40."""
    credit = Credit(WINDOW)
    for number in range(1, 5):
        assert credit.spend(number * STEP)
        credit.mark(HERE, number * 10, at_ms)
    return credit


def test_a_mark_is_due_after_each_step() -> None:
    credit = Credit(WINDOW)
    assert not credit.spend(STEP - 1)
    assert credit.spend(STEP)
    credit.mark(HERE, 10, 0)
    assert not credit.spend(2 * STEP - 1)
    assert not credit.is_spent


def test_a_spent_window_waits_until_the_oldest_step_is_read_by_all() -> None:
    credit = spent()
    assert credit.is_spent
    credit.settle(HERE, 10, 0)
    assert credit.is_spent, "the record behind it was not read yet"
    credit.settle(HERE, 11, 0)
    assert not credit.is_spent
    credit.spend(6 * STEP)
    assert credit.is_spent


def test_where_nobody_reads_nobody_is_waited_for() -> None:
    credit = spent()
    credit.settle(HERE, None, 0)
    assert not credit.is_spent


def test_a_host_that_reads_nothing_holds_a_backfill_up_for_a_while_only() -> None:
    credit = spent()
    credit.settle(HERE, 0, PATIENCE_MS - 1)
    assert credit.is_spent
    credit.settle(HERE, 0, PATIENCE_MS)
    assert not credit.is_spent


def test_marks_of_another_maintenance_connection_mean_nothing() -> None:
    credit = spent()
    credit.settle(HERE + 1, 5, 0)
    assert not credit.is_spent
    credit = spent()
    credit.mark(HERE + 1, 5, 0)
    assert not credit.is_spent


def test_the_window_grows_while_marks_come_in_time() -> None:
    credit, now_ms, total = Credit(WINDOW), 0, 0
    for ordinal in range(100):
        total += credit.window_bytes // 4
        assert credit.spend(total)
        credit.mark(HERE, ordinal, now_ms)
        now_ms += GOAL_MS
        credit.settle(HERE, ordinal + 1, now_ms)
    assert credit.window_bytes == WINDOW_BYTES


def test_a_mark_that_takes_too_long_shrinks_the_window_once_for_all_that_was_under_way() -> None:
    credit = spent()
    credit.settle(HERE, 41, GOAL_MS * 4)
    assert credit.window_bytes == WINDOW // 2
    credit.spend(5 * STEP)
    credit.mark(HERE, 50, GOAL_MS * 4 + 1)
    credit.settle(HERE, 51, GOAL_MS * 5 + 101)
    assert credit.window_bytes == WINDOW // 2 * GOAL_MS // (GOAL_MS + 100)


def test_the_window_has_a_least_size_and_none_shrinks_it_where_nobody_reads() -> None:
    credit, total = Credit(WINDOW), 0
    for ordinal in range(10):
        total += WINDOW
        credit.spend(total)
        now_ms = ordinal * (PATIENCE_MS + 1)
        credit.mark(HERE, ordinal, now_ms)
        credit.settle(HERE, 0 if ordinal < 5 else None, now_ms + PATIENCE_MS)
        assert not credit.is_waiting
        assert credit.window_bytes == max(LEAST_BYTES, WINDOW >> (ordinal + 1))
    credit = spent()
    credit.settle(HERE, None, PATIENCE_MS)
    assert credit.window_bytes == WINDOW


def late(credit: Credit, number: int, *, is_quiet: bool) -> None:
    """Send all that may be on its way; it comes far too late."""
    credit.spend(credit._total + credit.window_bytes)
    since_ms = number * 20 * GOAL_MS
    credit.mark(HERE, number, since_ms)
    assert credit.is_spent
    credit.settle(HERE, number + 1, since_ms + 10 * GOAL_MS, is_quiet=is_quiet)


def test_where_nobody_writes_the_window_grows_to_a_size_whatever_that_takes() -> None:
    credit = Credit()
    for number in range(10):
        before = credit.window_bytes
        late(credit, number, is_quiet=True)
        assert credit.window_bytes > before or before >= QUIET_BYTES
    assert QUIET_BYTES <= credit.window_bytes < WINDOW_BYTES


def test_once_somebody_writes_the_window_is_as_small_as_ever() -> None:
    credit = Credit(QUIET_BYTES)
    for number in range(1, 5):
        late(credit, number, is_quiet=False)
        assert credit.window_bytes == max(LEAST_BYTES, QUIET_BYTES >> number)


@given(st.lists(st.tuples(st.integers(1, 3 * STEP), st.booleans()), max_size=60))
def test_what_is_on_its_way_stays_within_the_window_and_a_piece(
    steps: list[tuple[int, bool]],
) -> None:
    """Whoever reads does so late: so the window does not grow."""
    credit = Credit(WINDOW)
    total = ordinal = now_ms = 0
    sent: list[tuple[int, int]] = []
    for size, reads in steps:
        if reads:
            now_ms += GOAL_MS + 1
            credit.settle(HERE, ordinal + 1, now_ms)
            sent.clear()
        if credit.is_spent:
            continue
        total += size
        ordinal += 1
        sent.append((ordinal, size))
        if credit.spend(total):
            credit.mark(HERE, ordinal, now_ms)
            ordinal += 1
        assert sum(size for _, size in sent) < WINDOW + 3 * STEP + STEP


def test_what_was_under_way_when_it_shrank_does_not_shrink_it_again() -> None:
    credit = Credit(WINDOW)
    for number in range(1, 5):
        credit.spend(number * STEP)
        credit.mark(HERE, number * 10, number)
    late_ms = 2 * GOAL_MS + 1
    credit.settle(HERE, 25, late_ms)
    shrunk = credit.window_bytes
    assert shrunk == WINDOW // 2
    credit.settle(HERE, 45, late_ms + 1)
    assert credit.window_bytes == shrunk
