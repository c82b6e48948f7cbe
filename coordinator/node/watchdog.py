"""A thread that ends the process when its event loop hangs.

A store or a library that blocks for ever raises no error, and a node that hangs cannot say so
itself. The thread looks once a second and counts its looks. It does not compare clocks, so a
process that was stopped as a whole does not count as hung.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable

log = logging.getLogger("coordinator")

LOOK_S = 1.0
EXIT_HUNG = 1


class Watchdog:
    """Ends the process once `turns` has not changed over `patience_s`, after saying where it is."""

    def __init__(
        self,
        turns: Callable[[], int],
        patience_s: float,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        self._turns = turns
        self._looks = max(2, round(patience_s / LOOK_S))
        self._end = end
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * LOOK_S)

    def _watch(self) -> None:
        seen, unchanged = -1, 0
        while not self._stopping.wait(LOOK_S):
            turns = self._turns()
            unchanged = unchanged + 1 if turns == seen else 0
            seen = turns
            if unchanged >= self._looks:
                log.error("the loop has not turned for %d s: ending [loop_stalled]", unchanged)
                sys.stderr.flush()
                faulthandler.dump_traceback(all_threads=True)
                self._end(EXIT_HUNG)
                return
