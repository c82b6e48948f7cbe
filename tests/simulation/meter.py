"""What a step costs: counted in calls, which are the same in every run, and turned into time.

In some worlds a step takes as long as its calls say, so that a node which does too much at once is
late for everything that follows: heartbeats, answers, its own deadlines. In all of those no step
may cost more than a bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

CALLS_PER_MS = 10_000
"""Calls and returns, of Python's and of C's functions, that a machine gets through in 1 ms."""

STEP_MS_MAX = 100
"""No step takes longer on a machine of ordinary speed: a tenth of an election's timeout."""


def metered(work: Callable[[], T]) -> tuple[T, int]:
    """Return what `work` returns, and how many calls that took."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        result = work()
    finally:
        sys.setprofile(before)
    return result, count
