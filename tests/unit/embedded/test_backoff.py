"""The waits between the starts of a child that keeps dying."""

from __future__ import annotations

import pytest

from coordinator.embedded.backoff import Backoff, BackoffPolicy

POLICY = BackoffPolicy(first_s=1.0, factor=2.0, max_s=5.0, stable_s=10.0)


@pytest.mark.parametrize(
    ("lifetimes_s", "waits_s"),
    [
        ([0], [1]),
        ([0, 0, 0], [1, 2, 4]),
        ([0, 0, 0, 0, 0], [1, 2, 4, 5, 5]),
        ([9.9, 9.9], [1, 2]),
        ([0, 0, 10, 0], [1, 2, 1, 2]),
        ([0, 0, 0, 0, 60], [1, 2, 4, 5, 1]),
    ],
)
def test_waits_double_to_a_cap_and_begin_anew_after_a_stable_life(
    lifetimes_s: list[float], waits_s: list[float]
) -> None:
    now = 100.0
    backoff = Backoff(POLICY, now)
    waited = []
    for lifetime_s in lifetimes_s:
        now += lifetime_s
        wait_s = backoff.died(now)
        waited.append(wait_s)
        now += wait_s
        backoff.started(now)
    assert waited == waits_s
