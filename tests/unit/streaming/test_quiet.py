"""Until when a tick alone changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.bucket_state import BucketState
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.fold import fold
from streaming.stability.quiet import ALWAYS, quiet_until
from tests.support.stability_bench import (
    A,
    B,
    Bench,
    asked,
    batch,
    begin,
    end,
    heartbeat,
    hurried,
    log,
    sync,
)

VECTORS = st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 9)), min_size=2, max_size=2)
V, C, N = st.integers(0, 1), st.sampled_from([11, 12]), st.integers(0, 9)
RECORDS = st.one_of(
    st.builds(begin, V, C, N, N, number=st.integers(0, 2), projector=st.integers(0, 1)),
    st.builds(end, V, C, N, reason=st.sampled_from(["moved", "rollback"])),
    st.builds(sync, V, C, N, N, st.sampled_from([A, B])),
    st.builds(log, V, st.tuples(st.sampled_from([A, B]), st.just(0))),
    st.builds(
        heartbeat,
        st.integers(1, 2),
        VECTORS.map(lambda pairs: Vector([v for v, _ in pairs], [s for _, s in pairs])),
        indexes=st.sampled_from(((), (7,))),
    ),
    st.builds(asked, st.integers(1, 2), st.sampled_from(((), (1,))), st.just(2)),
    st.builds(hurried, st.integers(0, 9_000), st.just(0)),
)
BATCHES = st.lists(
    st.tuples(st.lists(RECORDS, max_size=6), st.sampled_from([0, 0, 250, 3_000, 61_000])),
    min_size=1,
    max_size=8,
)


@pytest.mark.thorough
@given(BATCHES, st.sampled_from(("promotion", "heartbeat")), st.lists(st.integers(1, 200_000)))
def test_a_tick_before_that_changes_nothing(
    batches: list[tuple[list[Any], int]], algorithm: str, later: list[int]
) -> None:
    settings = TimestampSettings(algorithm=algorithm)
    state, now_ms = BucketState.new("b", 2), 1_000_000
    for records, after_ms in batches:
        now_ms += after_ms
        state = fold(state, batch(records, now_ms, after_ms > 0), settings).state
        until_ms = quiet_until(state, settings)
        times = [now_ms + ms for ms in (0, 1, *later)]
        times += [until_ms - 1] if now_ms < until_ms < ALWAYS else []
        for at_ms in times:
            if now_ms <= at_ms < until_ms:
                done = fold(state, batch([], at_ms, True), settings)
                assert done.state is state
                assert done.outputs == []


def test_a_bucket_of_which_all_is_told_is_quiet_until_an_owner_is_silent_for_too_long() -> None:
    bench = Bench(1)
    assert quiet_until(bench.state, bench.settings) == ALWAYS
    bench.read(log(0, (A, 0)), begin(0, 11, 1), sync(0, 11, 2, 5))
    published_ms = bench.now_ms
    assert quiet_until(bench.state, bench.settings) <= published_ms
    bench.tick(1_000)
    heard_ms = published_ms
    assert quiet_until(bench.state, bench.settings) == heard_ms + bench.settings.sync_missing_ms
    bench.tick(bench.settings.sync_missing_ms)
    assert quiet_until(bench.state, bench.settings) == ALWAYS


OWNED = (log(0, (A, 0)), begin(0, 11, 1), sync(0, 11, 2, 5))
LIMITS: dict[str, tuple[list[Any], int]] = {
    "an owner that is silent": ([], 60_000),
    "a BEGIN that is held": ([begin(0, 12, 1, projector=1)], 3_000),
    "an END without its BEGIN": ([end(0, 12, 1, projector=1)], 3_000),
    "a vbucket without an owner": ([end(0, 11, 3)], 3_000),
    "a SYNC without its BEGIN": ([end(0, 11, 3), sync(0, 12, 2, 9)], 3_000),
    "a branch that nobody names": ([sync(0, 11, 3, 9, B)], 3_000),
    "a question": ([asked(1, (4,), 1)], 5_000),
}


@pytest.mark.parametrize("case", LIMITS)
def test_each_limit_ends_the_quiet_when_it_is_over_and_not_before(case: str) -> None:
    records, limit_ms = LIMITS[case]
    bench = Bench(1)
    bench.fold(OWNED)
    bench.tick(1_000)
    bench.fold(OWNED[2:])  # It is heard again, and nothing advances.
    bench.fold(records)
    until_ms = quiet_until(bench.state, bench.settings)
    assert until_ms == bench.now_ms + limit_ms
    before = bench.state
    bench.tick(limit_ms - 1)
    assert bench.state is before
    assert bench.tick(1) != [] or bench.state is not before


def test_a_restart_is_asked_for_again_after_twice_as_long() -> None:
    bench = Bench(1)
    bench.fold([*OWNED, end(0, 11, 3)])
    lost_ms = bench.now_ms
    bench.tick(3_000)
    assert quiet_until(bench.state, bench.settings) == bench.now_ms + 60_000
    bench.tick(60_000)
    asked_ms = bench.now_ms
    bench.tick(60_000)
    pause_ms = max(60_000, asked_ms - lost_ms)
    assert quiet_until(bench.state, bench.settings) == asked_ms + pause_ms


def test_what_has_advanced_is_due_when_the_period_is_over_or_sooner_in_a_hurry() -> None:
    bench = Bench(1, TimestampSettings(period_ms=4_000))
    bench.read(log(0, (A, 0)), begin(0, 11, 1), sync(0, 11, 2, 5))
    assert len(bench.tick(4_000)) == 1
    published_ms = bench.now_ms
    bench.read(sync(0, 11, 3, 6))
    assert quiet_until(bench.state, bench.settings) == published_ms + 4_000
    bench.read(hurried(3_000, 0))
    assert quiet_until(bench.state, bench.settings) == published_ms + 500


@pytest.mark.parametrize("since_ms", [0])
def test_what_was_read_before_the_first_tick_is_due_at_once(since_ms: int) -> None:
    state = fold(
        BucketState.new("b", 1), batch([begin(0, 11, 1)], since_ms), TimestampSettings()
    ).state
    assert quiet_until(state, TimestampSettings()) == 0
