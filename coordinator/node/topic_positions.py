"""Which branches the partitions of a topic are on: what turns an offset into a position.

Whoever writes to a topic knows the offset of a record, and nothing of leader epochs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from coordinator.core.model.entities import Bucket
from coordinator.core.model.topic_logs import vbuuid_of
from coordinator.core.model.types import Vbuuid
from coordinator.kafka.document_topics import TopicError
from coordinator.kafka.topic_histories import TopicHistories


class TopicPositions:
    """Asks Kafka when it is asked itself; threads may share it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        self._making = threading.Lock()
        self._kafka: TopicHistories | None = None

    def branches(self, bucket: Bucket, partitions: Sequence[int]) -> dict[int, Vbuuid]:
        """Return the branch that each partition of a bucket's topic is on.

        Raises KafkaException, TopicError `topic_unavailable`.
        """
        kafka = self._connected()
        facts = kafka.facts([bucket.topic]).get(bucket.topic)
        if facts is None:
            raise TopicError("topic_unavailable", f"there is no topic {bucket.topic}")
        newest = kafka.newest(facts, partitions)
        return {p: vbuuid_of(facts.id, p, epoch, bucket.reading) for p, epoch in newest.items()}

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def _connected(self) -> TopicHistories:
        with self._making:
            if self._kafka is None:
                self._kafka = TopicHistories(self._servers)
            return self._kafka
