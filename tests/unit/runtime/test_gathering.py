"""Where little comes it is passed on soon, and where much comes it is gathered."""

from __future__ import annotations

import pytest

from coordinator.runtime.gathering import Gathering

LEAST_S, MOST_S, PER_S = 0.01, 0.1, 2_500


class Stream:
    """What comes at a rate, and is passed on after each wait."""

    def __init__(self, least_s: float = LEAST_S) -> None:
        self.gathering = Gathering(least_s, MOST_S, PER_S)
        self.now_s = 50.0

    def come(self, rate: float, batches: int) -> float:
        """Let so many batches come, one wait after the other; return the wait behind the last."""
        for _ in range(batches):
            self.after(self.gathering.wait_s, round(rate * self.gathering.wait_s))
        return self.gathering.wait_s

    def after(self, pause_s: float, count: int) -> float:
        """Let so many come together after a pause; return the wait behind them."""
        self.now_s += pause_s
        self.gathering.passed(count, self.now_s)
        return self.gathering.wait_s


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.mark.parametrize(("rate", "wait_s"), [(1, 0.01), (2_000, 0.01), (4_000, 0.1), (10**6, 0.1)])
def test_the_wait_follows_the_rate(stream: Stream, rate: int, wait_s: float) -> None:
    assert stream.come(rate, 20) == wait_s


def test_it_shrinks_again_once_less_comes(stream: Stream) -> None:
    assert stream.come(10_000, 20) == MOST_S
    assert stream.come(1_000, 3) == LEAST_S


def test_many_that_come_at_once_hold_up_what_follows_for_a_moment_only(stream: Stream) -> None:
    stream.after(1.0, 1)
    assert stream.after(LEAST_S, 100_000) == 2 * LEAST_S
    assert stream.after(2 * LEAST_S, 1) == LEAST_S


@pytest.mark.parametrize(("count", "pause_s"), [(250, 60.0), (100, 0.05), (1_000, 0.5)])
def test_many_that_come_now_and_then_are_few(stream: Stream, count: int, pause_s: float) -> None:
    assert [stream.after(pause_s, count) for _ in range(20)] == [LEAST_S] * 20


def test_a_batch_of_none_says_nothing_of_the_others(stream: Stream) -> None:
    for _ in range(20):
        stream.after(0.05, 0)
        stream.after(0.05, 1_000)
    assert stream.gathering.wait_s == MOST_S


def test_one_that_always_gathers_as_long_stays_at_that() -> None:
    assert Stream(MOST_S).come(10**6, 5) == MOST_S
    assert Stream(MOST_S).come(1, 5) == MOST_S


def test_a_clock_that_stands_still_is_no_fault(stream: Stream) -> None:
    stream.after(1.0, 10)
    assert stream.after(0.0, 10) == 2 * LEAST_S
