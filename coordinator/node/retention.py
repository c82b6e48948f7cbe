"""When a master lets old records of `history` go, and what is told of that.

What is done is in `kafka.history_retention`; it blocks, so it runs in a thread beside the loop.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from confluent_kafka import KafkaException

from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.types import Cas
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.history_retention import HistoryRetention

PERIOD_SHARE = 20
"""A master looks so many times within the retention, but for these bounds."""

PERIOD_MIN_S, PERIOD_MAX_S = 1.0, 3_600.0
RETRY_MAX_S = 60.0

log = logging.getLogger("coordinator")


@dataclass(slots=True)
class RetentionStatus:
    """What the metrics and `GET /v1/members` show, since the process began."""

    archived: int = 0
    failures: int = 0
    error: str = ""
    """Why the last pass has failed; empty: it has not, or there was none."""
    oldest_cas: Cas | None = None
    """The first CAS in the topic, as the last pass has left it."""


class Retention:
    """The retention of one node. The loop asks what is due, and a thread does it."""

    def __init__(
        self, passes: HistoryRetention, retention_ms: int, stopping: threading.Event
    ) -> None:
        self.status = RetentionStatus()
        self.retention_ms = retention_ms
        self._passes = passes
        self._stopping = stopping
        share_s = retention_ms / 1_000 / PERIOD_SHARE
        self._period_s = min(max(share_s, PERIOD_MIN_S), PERIOD_MAX_S)
        self._next_s = 0.0
        self._is_running = False

    def is_due(self) -> bool:
        """Tell whether a master is to look now."""
        return not self._is_running and time.monotonic() >= self._next_s

    def begun(self) -> None:
        """A pass is on its way: there is one at a time."""
        self._is_running = True

    def run(self, authority: AuthorityState) -> bool:
        """Let go what may go; return whether a copy of the state is wanted for more."""
        pause_s, wants_copy = self._period_s, False
        try:
            passed = self._passes.run(authority, time.time_ns() // 1_000_000)
        except (ArchiveError, KafkaException, TimeoutError) as error:
            pause_s = min(pause_s, RETRY_MAX_S)
            if not self._stopping.is_set():
                self.status.failures += 1
                self.status.error = str(error) or type(error).__name__
                log.error("old history stays in the topic: %s", error)
        else:
            self.status.error = ""
            self.status.archived += passed.archived
            self.status.oldest_cas = passed.oldest
            wants_copy = passed.wants_copy
        finally:
            self._next_s = time.monotonic() + pause_s
            self._is_running = False
        return wants_copy
