"""Time as ticks tell it: wherever clocks step and whoever writes, it goes on, and not too fast."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import Tick
from streaming.timestamps.clock import (
    SLOWER,
    STEP_MS,
    SWITCH_MS,
    TICK_MS_MAX,
    UNWATCHED_MS,
    Clock,
    after,
    fault,
)

NOW_MS, HOUR_MS, PERIOD_MS = 1_790_000_000_000, 3_600_000, 250


class Writer:
    """One application: what its clocks show."""

    def __init__(self, number: int, wall_ms: int) -> None:
        self.number, self.wall_ms, self.elapsed_ms = number, wall_ms, 0

    def tick(self, after_ms: int = PERIOD_MS, step_ms: int = 0) -> Tick:
        """Return a tick after some time, in which the wall clock has also stepped."""
        self.elapsed_ms += after_ms
        self.wall_ms = max(1, self.wall_ms + after_ms + step_ms)
        return Tick(self.wall_ms, self.number, self.elapsed_ms)


@pytest.mark.thorough
def test_time_goes_on_at_seven_eighths_after_the_wall_clock_went_back() -> None:
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    begun_ms = clock.now_ms
    clock = after(clock, writer.tick(step_ms=-HOUR_MS)).clock
    for _ in range(4 * 60):
        clock = after(clock, writer.tick()).clock
    assert 52_000 < clock.now_ms - begun_ms <= 61_000
    for _ in range(4 * 3_600 * 9):
        clock = after(clock, writer.tick()).clock
    assert abs(clock.now_ms - writer.wall_ms) <= PERIOD_MS, "they agree again"


@pytest.mark.parametrize(("ahead_ms", "followed_ms"), [(STEP_MS, 0), (STEP_MS + 1, STEP_MS + 1)])
def test_the_wall_clock_is_followed_only_where_it_is_far_ahead(
    ahead_ms: int, followed_ms: int
) -> None:
    """Each time that it is, all states change."""
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    done = after(clock, writer.tick(step_ms=ahead_ms))
    assert done.clock.now_ms - clock.now_ms == PERIOD_MS + followed_ms
    assert done.stepped_ms == followed_ms


@pytest.mark.parametrize("behind_ms", [1, 10, PERIOD_MS // SLOWER])
def test_the_wall_clock_is_waited_for_no_longer_than_it_is_behind(behind_ms: int) -> None:
    """Time would be behind in turn, tick after tick."""
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    clock = after(clock, writer.tick(step_ms=-behind_ms)).clock
    assert clock.now_ms == writer.wall_ms
    for _ in range(3):
        clock = after(clock, writer.tick()).clock
        assert clock.now_ms == writer.wall_ms


def test_a_step_ahead_has_not_passed() -> None:
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    done = after(clock, writer.tick(step_ms=HOUR_MS))
    assert done.clock.now_ms == writer.wall_ms
    assert (done.unwatched_ms, done.stepped_ms) == (HOUR_MS, HOUR_MS)
    assert after(done.clock, writer.tick())[1:] == (0, 0)


@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, -10, 10, 2_900, HOUR_MS])
def test_another_writer_is_believed_no_more_than_a_tick(ahead_ms: int) -> None:
    """Its clock may be another one; and nobody knows how long there was no application."""
    clock = after(Clock(), Writer(1, NOW_MS).tick()).clock
    done = after(clock, Writer(2, NOW_MS + PERIOD_MS + ahead_ms).tick(0))
    passed_ms = done.clock.now_ms - clock.now_ms
    assert passed_ms == max(0, ahead_ms)
    assert passed_ms - done.unwatched_ms <= SWITCH_MS
    assert done.stepped_ms == 0


def test_who_was_away_for_long_has_watched_nothing() -> None:
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    assert after(clock, writer.tick(UNWATCHED_MS))[1:] == (0, 0)
    writer = Writer(1, NOW_MS)
    clock = after(Clock(), writer.tick()).clock
    assert after(clock, writer.tick(UNWATCHED_MS + 1))[1:] == (UNWATCHED_MS + 1, 0)


def test_ticks_of_older_writers_say_the_wall_clock_only() -> None:
    clock = after(Clock(), Tick(NOW_MS, 1)).clock
    clock = after(clock, Tick(NOW_MS - HOUR_MS, 1)).clock
    assert clock.now_ms == NOW_MS
    clock = after(clock, Tick(NOW_MS - HOUR_MS + 1_000, 1)).clock
    assert clock.now_ms == NOW_MS + 875
    done = after(clock, Tick(NOW_MS + HOUR_MS, 1))
    assert done[1:] == (done.clock.now_ms - clock.now_ms, 0), "none of it was watched"


@pytest.mark.parametrize("tick", [Tick(0, 1), Tick(-1, 1), Tick(2**62, 1), Tick(1, 1, -2)])
def test_what_is_no_time_has_a_fault(tick: Tick) -> None:
    assert fault(tick)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from((0, 1, 100, PERIOD_MS, 250, 2_999, 3_001, 60_000)),
        st.sampled_from((0, 0, 0, 1, 99, 101, -5_000, 2_900, HOUR_MS, -HOUR_MS, -(10**12), 10**12)),
    ),
    max_size=40,
)


@given(STEPS)
def test_time_never_goes_back_and_no_more_is_watched_than_has_passed(
    steps: list[tuple[int, int, int]],
) -> None:
    writers = [Writer(7 + n, NOW_MS + n * HOUR_MS) for n in range(3)]
    clock = after(Clock(), writers[0].tick()).clock
    watched_ms, allowed_ms, last = 0, 0, 0
    nows = [clock.now_ms]
    for number, after_ms, step_ms in steps:
        for writer in writers:
            if writer is not writers[number]:
                writer.tick(after_ms)
        tick = writers[number].tick(after_ms, step_ms)
        assert not fault(tick)
        assert tick.at_ms <= TICK_MS_MAX
        done = after(clock, tick)
        passed_ms = done.clock.now_ms - clock.now_ms
        assert 0 <= done.stepped_ms <= done.unwatched_ms <= passed_ms
        watched_ms += passed_ms - done.unwatched_ms
        allowed_ms += SWITCH_MS if number != last else after_ms
        assert watched_ms <= allowed_ms
        if number == last and after_ms <= UNWATCHED_MS:
            assert passed_ms - done.unwatched_ms >= after_ms - after_ms // SLOWER
        clock, last = done.clock, number
        nows.append(clock.now_ms)
    assert all(a <= b for a, b in pairwise(nows))
