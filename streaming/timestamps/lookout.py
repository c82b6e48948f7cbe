"""Waiting for a record that says something, while ticks and heartbeats go on.

A micro-batch of Spark costs a tenth of a second of processor time, whatever is in it. So where
nothing happens batches are rare, and a consumer of our own tells when something has come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, TopicPartition

from coordinator.kafka.readers import TAIL_WAIT_MS, consumer

POLL_S = 0.25
"""So late it may be noticed that the application is to stop."""

FETCHED = {
    "fetch.wait.max.ms": TAIL_WAIT_MS,
    "fetch.message.max.bytes": 65_536,
    "queued.max.messages.kbytes": 64,
}
"""Nobody looks at what comes: the less of it, the better."""


class Lookout:
    """Waits for the first record behind where reading has got to. For one thread.

    The connection is made when it is first needed.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._reader: Consumer | None = None

    def wait(
        self, places: Mapping[tuple[str, int], int], timeout_s: float, stopping: threading.Event
    ) -> bool:
        """Return True as soon as something is at `places` or behind, which are offsets by topic and
        partition, or cannot be read there; False after `timeout_s`, or when told to stop.

        Where Kafka is away, nothing comes.
        """
        end_s = time.monotonic() + timeout_s
        reader = self._reader = self._reader or consumer(self._servers, "lookout", **FETCHED)
        reader.assign([TopicPartition(*where, offset) for where, offset in places.items()])
        try:
            while not stopping.is_set() and (left_s := end_s - time.monotonic()) > 0:
                if reader.poll(min(left_s, POLL_S)) is not None:
                    return True
            return False
        finally:
            reader.unassign()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
