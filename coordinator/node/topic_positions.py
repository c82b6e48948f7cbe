"""Which branches the partitions of a topic are on: what turns an offset into a position.

Whoever writes to a topic knows the offset of a record, and nothing of leader epochs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from coordinator.core.model.types import Vbuuid
from coordinator.kafka.document_topics import TopicError, TopicFacts
from coordinator.kafka.topic_histories import TopicHistories, vbuuid_of

KNOWN_S = 1.0
"""So long it is not asked again which topic has a name."""


class TopicPositions:
    """Asks Kafka when it is asked itself; threads may share it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._making = threading.Lock()
        self._kafka: TopicHistories | None = None
        self._known: dict[str, tuple[float, TopicFacts]] = {}

    def branches(self, topic: str, partitions: Sequence[int]) -> dict[int, Vbuuid]:
        """Return the branch that each partition is on.

        Raises KafkaException, TopicError `topic_unavailable`.
        """
        kafka = self._connected()
        facts = self._facts(kafka, topic)
        newest = kafka.newest(facts, partitions)
        return {p: vbuuid_of(facts.id, p, epoch) for p, epoch in newest.items()}

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def _connected(self) -> TopicHistories:
        with self._making:
            if self._kafka is None:
                self._kafka = TopicHistories(self._servers)
            return self._kafka

    def _facts(self, kafka: TopicHistories, topic: str) -> TopicFacts:
        known = self._known.get(topic)
        if known is not None and time.monotonic() < known[0] + KNOWN_S:
            return known[1]
        facts = kafka.facts([topic]).get(topic)
        if facts is None:
            raise TopicError("topic_unavailable", f"there is no topic {topic}")
        self._known[topic] = (time.monotonic(), facts)
        return facts
