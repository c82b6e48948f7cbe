"""A bucket of a Kafka topic for tests: documents are produced, indexes compared with an oracle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.core.model.topic_logs import vbuuid_of
from coordinator.kafka.topic_histories import TopicHistories
from tests.integration.cluster import DEADLINE_S, ORDERED, Cluster, wait_until
from tests.integration.data_plane import DataPlane
from tests.support.oracle import Document

COMPACTED = {"cleanup.policy": "compact"}


class TopicPlane(DataPlane):
    """One bucket of a cluster whose documents are in a topic of its own."""

    def __init__(
        self,
        cluster: Cluster,
        bucket: str,
        partitions: int,
        *,
        config: Mapping[str, str] = COMPACTED,
        source: Mapping[str, Any] | None = None,
        replicas: int = 1,
    ) -> None:
        self.cluster = cluster
        self.bucket = bucket
        self.topic = f"{cluster.name}-documents-{bucket}"
        self.specs = {}
        self.partitions = partitions
        self.held: dict[str, Document] = {}
        self.admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 2})
        self.make_topic(partitions, config, replicas)
        self.producer = Producer({"bootstrap.servers": cluster.servers, **ORDERED})
        with cluster.client() as client:
            client.add_bucket(bucket, topic=self.topic, **(source or {}))

    def make_topic(self, partitions: int, config: Mapping[str, str], replicas: int = 1) -> None:
        wanted = NewTopic(self.topic, partitions, replicas, config=dict(config))
        self.admin.create_topics([wanted])[self.topic].result(DEADLINE_S)

    def write(self, changes: Mapping[str, Document | None]) -> None:
        """Produce documents; those that are None are deleted."""
        self.produce({n: None if d is None else json.dumps(d) for n, d in changes.items()})
        for name, document in changes.items():
            if document is None:
                self.held.pop(name, None)
            else:
                self.held[name] = document

    def produce(self, records: Mapping[str, str | bytes | None]) -> dict[int, int]:
        """Produce records by key, and wait; return the last offset of each partition."""
        last: dict[int, int] = {}

        def delivered(error: KafkaError | None, message: Any) -> None:
            assert error is None, error
            last[message.partition()] = message.offset()

        for name, text in records.items():
            self.producer.produce(self.topic, text, key=name, on_delivery=delivered)
            self.producer.poll(0)
        assert self.producer.flush(DEADLINE_S) == 0
        return last

    def documents(self) -> dict[str, Document]:
        return dict(self.held)

    def vector(self) -> dict[str, list[int]]:
        asked = TopicHistories(self.cluster.servers)
        try:
            facts = asked.facts([self.topic])[self.topic]
            histories = asked.histories(facts, range(self.partitions))
        finally:
            asked.close()
        return {
            str(p): [vbuuid_of(facts.id, p, one.epochs[0].number, self.reading()), one.stable]
            for p, one in histories.items()
            if one.end
        }

    def reading(self) -> int:
        """Return how often the topic was read again from its beginning."""
        shown = self.cluster.get(self.cluster.running()[0], f"/v1/buckets/{self.bucket}")
        return int(shown["bucket"]["source"]["reading"])

    def owners(self) -> dict[int, int]:
        """Return how many partitions each projector that is alive reads."""
        shown = self.cluster.get(self.cluster.running()[0], f"/v1/buckets/{self.bucket}")
        return {p["projector"]: p["owned"] for p in shown["bucket"]["projectors"]}

    def all_owned(self) -> None:
        wait_until(
            lambda: sum(self.owners().values()) == self.partitions, "all partitions are read"
        )
