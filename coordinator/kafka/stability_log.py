"""Reads `stability-history` backwards: the timestamps that a bucket had, newest first.

All buckets share the topic. One consumer is kept for all questions, so only one thread may ask at
a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Offset
from coordinator.kafka.history_log import SHORT_READS
from coordinator.kafka.log_reader import LogReader, decoded, stopped
from coordinator.kafka.topics import STABILITY_HISTORY, topic_name

FIRST_WINDOW, WINDOW_MAX = 64, 1_000
"""So many records are read at a time: each may have thousands of vbuckets."""

SCAN_S = 2.0
SILENCE_S = 5.0
LATE_MS = 60_000
"""So much later than its time a timestamp may have been written."""


class TimestampPage(NamedTuple):
    """Timestamps, newest first, and the offset below which the next page begins; None: no more."""

    timestamps: tuple[StabilityTimestamp, ...]
    next: int | None


class StabilityLog:
    """The topic `stability-history` of one cluster. The caller closes it."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._servers = bootstrap_servers
        self._topic = topic_name(cluster, STABILITY_HISTORY)
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._log: LogReader | None = None

    def close(self) -> None:
        """End what is asked, and let go of the consumer."""
        self._stopping.set()
        with self._turn:
            if self._log is not None:
                self._log.close()

    def page(
        self,
        bucket: str,
        *,
        before: int | None = None,
        limit: int,
        from_ms: int = 0,
        to_ms: int | None = None,
    ) -> TimestampPage:
        """Return timestamps of a bucket below offset `before` and within times, newest first.

        Raises KafkaException.
        """
        with self._turn:
            if self._log is None:
                self._log = LogReader(self._servers, self._topic, "history", **SHORT_READS)
            log = self._log
            low, end = log.bounds()
            if before is not None:
                end = Offset(min(end, before))
            if to_ms is not None:
                end = Offset(min(end, log.offset_at(to_ms + LATE_MS)))
            found: list[StabilityTimestamp] = []
            window, deadline_s = FIRST_WINDOW, time.monotonic() + SCAN_S
            while end > low:
                begin = Offset(max(low, end - window))
                for offset, record in reversed(list(self._read(log, bucket, begin, end))):
                    if record.at_ms < from_ms:
                        return TimestampPage(tuple(found), None)
                    if to_ms is None or record.at_ms <= to_ms:
                        found.append(record)
                        if len(found) == limit:
                            return TimestampPage(tuple(found), offset)
                end, window = begin, min(WINDOW_MAX, 2 * window)
                if time.monotonic() > deadline_s:
                    break
            return TimestampPage(tuple(found), end if end > low else None)

    def _read(
        self, log: LogReader, bucket: str, begin: Offset, end: Offset
    ) -> Iterator[tuple[int, StabilityTimestamp]]:
        """Yield a bucket's timestamps between two offsets, oldest first."""
        key = bucket.encode()
        for found in log.read(begin, self._stopping, SILENCE_S):
            # Of another bucket it need not be decoded.
            own = [m for m in found.records if m.key() == key and int(m.offset() or 0) < end]
            for message, record in decoded(own, StabilityTimestamp):
                if record.bucket == bucket:
                    yield int(message.offset() or 0), record
            if found.position >= end or found.at_end:
                return
        raise stopped()
