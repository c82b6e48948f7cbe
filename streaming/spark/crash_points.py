"""Named points of a batch at which a process kills itself, for tests."""

from __future__ import annotations

import os
import signal

BEFORE, WITHIN, AFTER = CRASH_POINTS = ("before", "within", "after")
"""Of a transaction: before it begins, when all is written, when it is committed."""


class Crasher:
    """Kills this process at a named point of a batch, for tests; `POINT:N` is the N-th time."""

    def __init__(self, point: str = "") -> None:
        self._point, _, count = point.partition(":")
        self._left = int(count or 1)

    def passes(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
