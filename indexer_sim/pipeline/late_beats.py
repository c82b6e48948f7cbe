"""Heartbeats of an indexer whose control loop is late.

The loop sends them. One step of it may take seconds: RocksDB lets nobody write while it gives back
what a large index held, say. Scans are answered meanwhile, and mutations applied. So another thread
repeats the last heartbeat, until the loop has done nothing for so long that it may be stuck.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from coordinator.core.model.records import IndexerHeartbeat

STUCK_S = 10.0


class LateBeats:
    """The last heartbeat, and when it is to be repeated; two threads share it."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._last: IndexerHeartbeat | None = None
        self._sent_s = self._due_s = 0.0

    def sent(self, beat: IndexerHeartbeat, now_s: float) -> None:
        """The loop has sent this one."""
        with self._lock:
            self._last, self._sent_s, self._due_s = beat, now_s, now_s + 1.5 * self._period_s

    def due(self, now_s: float, wall_ms: int) -> IndexerHeartbeat | None:
        """Return what is to be sent in its place now; None: nothing."""
        with self._lock:
            if self._last is None or not self._due_s <= now_s < self._sent_s + STUCK_S:
                return None
            self._due_s = now_s + self._period_s
            return replace(self._last, at_ms=wall_ms)
