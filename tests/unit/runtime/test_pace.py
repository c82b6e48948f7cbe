"""A connection is not read faster than it may be."""

from __future__ import annotations

import pytest

from coordinator.runtime.pace import BURST_S, Pace


def test_so_many_documents_a_second_are_read() -> None:
    pace, now, read = Pace(), 100.0, 0
    while now < 110.0:
        if pace.due_s <= now:
            pace.took(30, 1_000, now)
            read += 30
        now += 0.001
    assert read == pytest.approx(10_000, rel=0.02)


def test_after_a_pause_only_a_little_is_made_up_for() -> None:
    pace = Pace()
    pace.took(10, 100, 50.0)
    pace.took(1_000, 1_000, 500.0)
    assert pace.due_s == pytest.approx(500.0 - BURST_S + 1.0)


def test_without_a_bound_there_is_no_pause() -> None:
    pace = Pace()
    pace.took(10**9, 1, 50.0)
    pace.took(10**9, 0, 50.0)
    assert pace.due_s == 0.0
