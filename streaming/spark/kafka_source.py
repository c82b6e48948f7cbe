"""How Spark reads topics of Kafka: the options, and from which offset to which."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from confluent_kafka import TopicPartition

from coordinator.kafka.address import java_settings
from coordinator.kafka.readers import consumer

TIMEOUT_MS = 10_000

KAFKA: Mapping[str, str] = {
    "kafka.isolation.level": "read_committed",
    "kafka.fetch.max.wait.ms": "5",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "kafka.request.timeout.ms": str(TIMEOUT_MS),
    "kafka.default.api.timeout.ms": str(TIMEOUT_MS),
    "kafka.reconnect.backoff.max.ms": "1000",
    "kafkaConsumer.pollTimeoutMs": str(TIMEOUT_MS),
    "failOnDataLoss": "false",
}
"""Offsets that vanished are looked for and told of by the application: Spark would stop for good,
or go on in silence."""


def connection(bootstrap_servers: str) -> dict[str, str]:
    """Return the options that name Kafka, and log in there."""
    found = {"bootstrap.servers": str(bootstrap_servers), **java_settings(bootstrap_servers)}
    return {f"kafka.{name}": value for name, value in found.items()}


def starting_offsets(starting: Mapping[tuple[str, int], int]) -> str:
    """Return the option of Spark that names the first offset of each partition."""
    named: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(starting.items()):
        named.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(named)


def bounds(
    bootstrap_servers: str, topics: Iterable[str], timeout_s: float
) -> dict[tuple[str, int], tuple[int, int]] | None:
    """Return the first and the last offset of every partition; None if a topic is not there.

    Raises KafkaException.
    """
    reader = consumer(bootstrap_servers, "timestamps")
    try:
        there = reader.list_topics(timeout=timeout_s).topics
        found = {}
        for topic in topics:
            partitions = there[topic].partitions if topic in there else {}
            if not partitions:
                return None
            for partition in partitions:
                place = TopicPartition(topic, partition)
                low, end = reader.get_watermark_offsets(place, timeout_s)
                found[topic, partition] = int(low), int(end)
        return found
    finally:
        reader.close()
