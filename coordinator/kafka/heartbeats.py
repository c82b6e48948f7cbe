"""Listens to `heartbeat` for a moment: which nodes of a cluster are alive."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing

from confluent_kafka import TopicPartition

from coordinator import codec
from coordinator.core.model.records import NodeHeartbeat
from coordinator.kafka import readers
from coordinator.kafka.topics import HEARTBEAT, topic_name
from schemas.registry import SchemaError

LISTEN_S = 1.2
"""Nodes send four heartbeats a second."""

HEARD_MIN = 2
"""The last heartbeat of a node that was just killed may still be on its way; no second one is."""


def live_nodes(
    bootstrap_servers: str, cluster: str, listen_s: float = LISTEN_S
) -> list[NodeHeartbeat]:
    """Return a heartbeat of each node that is alive now, by number. Raises KafkaException."""
    topic = topic_name(cluster, HEARTBEAT)
    heard: Counter[tuple[int, int]] = Counter()
    last: dict[int, NodeHeartbeat] = {}
    with closing(readers.consumer(bootstrap_servers, "heartbeats")) as reader:
        _, end = readers.bounds(reader, TopicPartition(topic, 0))
        reader.assign([TopicPartition(topic, 0, end)])
        until_s = time.monotonic() + listen_s
        while time.monotonic() < until_s:
            for message in readers.available(reader):
                if message.error() is not None:
                    continue
                try:
                    beat = codec.decode(message.value() or b"")
                except SchemaError:
                    continue
                if isinstance(beat, NodeHeartbeat):
                    heard[beat.node, beat.incarnation] += 1
                    last[beat.node] = beat
    alive = {node for (node, _), count in heard.items() if count >= HEARD_MIN}
    return [last[node] for node in sorted(alive)]
