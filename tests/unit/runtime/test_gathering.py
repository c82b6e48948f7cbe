"""Where little comes it is passed on soon, and where much comes it is gathered."""

from __future__ import annotations

import pytest

from coordinator.runtime.gathering import Gathering

LEAST_S, MOST_S, PER_S = 0.01, 0.1, 2_500


def after(rate: float, batches: int, gathering: Gathering) -> float:
    """Return the wait after so many batches of what comes at a rate."""
    for _ in range(batches):
        gathering.passed(round(rate * gathering.wait_s))
    return gathering.wait_s


@pytest.fixture
def gathering() -> Gathering:
    return Gathering(LEAST_S, MOST_S, PER_S)


@pytest.mark.parametrize(("rate", "wait_s"), [(0, 0.01), (2_000, 0.01), (4_000, 0.1), (10**6, 0.1)])
def test_the_wait_follows_the_rate(gathering: Gathering, rate: int, wait_s: float) -> None:
    assert after(rate, 20, gathering) == wait_s


def test_it_shrinks_again_once_less_comes(gathering: Gathering) -> None:
    assert after(10_000, 20, gathering) == MOST_S
    assert after(1_000, 3, gathering) == LEAST_S


def test_many_that_come_at_once_hold_up_what_follows_for_a_moment_only(
    gathering: Gathering,
) -> None:
    gathering.passed(100_000)
    assert gathering.wait_s == 2 * LEAST_S
    gathering.passed(1)
    assert gathering.wait_s == LEAST_S


def test_one_that_always_gathers_as_long_stays_at_that() -> None:
    assert after(10**6, 5, Gathering(0.1, 0.1, PER_S)) == 0.1
