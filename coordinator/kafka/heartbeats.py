"""Listens to `heartbeat` for a moment: which nodes of a cluster are alive."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing

from coordinator.core.model.records import NodeHeartbeat
from coordinator.kafka.log_reader import LogReader, decoded
from coordinator.kafka.topics import HEARTBEAT, topic_name

LISTEN_S = 1.2
"""Nodes send four heartbeats a second."""

HEARD_MIN = 2
"""The last heartbeat of a node that was just killed may still be on its way; no second one is."""


def live_nodes(
    bootstrap_servers: str, cluster: str, listen_s: float = LISTEN_S
) -> list[NodeHeartbeat]:
    """Return a heartbeat of each node that is alive now, by number. Raises KafkaException."""
    heard: Counter[tuple[int, int]] = Counter()
    last: dict[int, NodeHeartbeat] = {}
    with closing(LogReader(bootstrap_servers, topic_name(cluster, HEARTBEAT), "heartbeats")) as log:
        _, end = log.bounds()
        until_s = time.monotonic() + listen_s
        for found in log.read(end):
            for _, beat in decoded(found.records, NodeHeartbeat):
                heard[beat.node, beat.incarnation] += 1
                last[beat.node] = beat
            if time.monotonic() > until_s:
                break
    alive = {node for (node, _), count in heard.items() if count >= HEARD_MIN}
    return [last[node] for node in sorted(alive)]
