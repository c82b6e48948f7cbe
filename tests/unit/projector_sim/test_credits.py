"""A backfill's window: what may be on its way, and what is waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projector_sim.projector.credits import PATIENCE_MS, Credit

WINDOW, STEP = 400, 100
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
    credit.spend(5 * STEP)
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


@given(st.lists(st.tuples(st.integers(1, 3 * STEP), st.booleans()), max_size=60))
def test_what_is_on_its_way_stays_within_the_window_and_a_piece(
    steps: list[tuple[int, bool]],
) -> None:
    credit = Credit(WINDOW)
    total = ordinal = 0
    sent: list[tuple[int, int]] = []
    for size, reads in steps:
        if reads:
            credit.settle(HERE, ordinal + 1, 0)
            sent.clear()
        if credit.is_spent:
            continue
        total += size
        ordinal += 1
        sent.append((ordinal, size))
        if credit.spend(total):
            credit.mark(HERE, ordinal, 0)
            ordinal += 1
        assert sum(size for _, size in sent) < WINDOW + 3 * STEP + STEP
