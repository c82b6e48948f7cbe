"""Topics that are not the cluster's own: those whose records are the documents of a bucket.

A bucket is all documents that there are. So its topic must keep the last record of each key: it is
compacted, or kept for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from coordinator.core.model.names import KAFKA_TOPIC
from coordinator.core.model.topic_logs import Cleaning
from coordinator.kafka.address import client_settings
from coordinator.kafka.errors import UNANSWERED, KafkaRefusal
from coordinator.kafka.topics import is_own

T = TypeVar("T")

TIMEOUT_S = 10.0
JUST_MADE_S, LOOK_AGAIN_S = 1.0, 0.1
"""A broker may hear of a topic a moment after Kafka has told its maker that it is there."""

DELETE_RETENTION_MS = 24 * 3_600_000
"""What Kafka has, unless a topic says otherwise."""


class TopicError(Exception):
    """A topic cannot be read as the source of a bucket."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic: made anew under the same name, it has another id."""

    topic: str
    id: str
    partitions: int


def answer_of(asked: Future[T]) -> T:
    """Return what Kafka answers. Raises KafkaException, also if it does not answer at all."""
    try:
        return asked.result(2 * TIMEOUT_S)
    except TimeoutError:
        said = "nobody answers"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, said)) from None


class DocumentTopics:
    """Asks Kafka about topics; every call waits for its answer. Threads may share it."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._settings = {**client_settings(bootstrap_servers), "log_level": 2}
        self.admin = AdminClient(self._settings)

    def renew(self, given_up: AdminClient) -> None:
        """Have another client from now on, unless somebody has seen to that."""
        if self.admin is given_up:
            self.admin = AdminClient(self._settings)

    @contextmanager
    def asking(self) -> Iterator[AdminClient]:
        """Lend the client for a question. Where nobody answers, the next one goes to another.

        One that was told of no broker, by one that is just stopping, may never find one again; and
        of a leader that hangs it looks for no other.
        """
        admin = self.admin
        try:
            yield admin
        except KafkaException as error:
            if error.args[0].code() in UNANSWERED:
                self.renew(admin)
            raise

    def facts(self, topics: Iterable[str]) -> dict[str, TopicFacts]:
        """Return those of these topics that are there. Raises KafkaException."""
        names = sorted(set(topics))
        found: dict[str, TopicFacts] = {}
        if not names:
            return found
        with self.asking() as admin:
            asked = admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_S)
            for name, future in asked.items():
                try:
                    said = answer_of(future)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    continue
                found[name] = TopicFacts(name, str(said.topic_id), len(said.partitions))
        return found

    def cleaning(self, topic: str) -> Cleaning:
        """Return what Kafka removes from a topic. Raises KafkaException."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        with self.asking() as admin:
            asked = admin.describe_configs([resource], request_timeout=TIMEOUT_S)
            said = {name: one.value for name, one in answer_of(asked[resource]).items()}
        policies = said["cleanup.policy"].split(",")
        is_bounded = any(int(said[name]) >= 0 for name in ("retention.ms", "retention.bytes"))
        return Cleaning(
            is_compacted="compact" in policies,
            is_truncated="delete" in policies and is_bounded,
            delete_retention_ms=int(said.get("delete.retention.ms", DELETE_RETENTION_MS)),
        )


def examined(bootstrap_servers: str, cluster: str, topic: str) -> TopicFacts:
    """Return a topic that can be a bucket.

    Raises KafkaRefusal `invalid_request`, `kafka_topic_not_found`, `kafka_topic_unfit` and
    `kafka_unreachable`.
    """
    if not KAFKA_TOPIC.fullmatch(topic):
        raise KafkaRefusal("invalid_request", f"topic {topic[:40]!r}: Kafka takes no such name")
    if is_own(cluster, topic):
        raise KafkaRefusal("kafka_topic_unfit", f"{topic} is a topic of the cluster itself")
    topics = DocumentTopics(bootstrap_servers)
    try:
        look = Retrying(
            retry=retry_if_result(lambda found: found is None),
            stop=stop_after_delay(JUST_MADE_S),
            wait=wait_fixed(LOOK_AGAIN_S),
            retry_error_callback=lambda state: None,
        )
        facts: TopicFacts | None = look(lambda: topics.facts([topic]).get(topic))
        if facts is None:
            raise KafkaRefusal("kafka_topic_not_found", f"Kafka has no topic {topic}")
        cleaning = topics.cleaning(topic)
    except KafkaException as error:
        text = f"Kafka does not say what topic {topic} is: {error.args[0].str()}"
        raise KafkaRefusal("kafka_unreachable", text) from error
    if cleaning.is_truncated:
        text = (
            f"topic {topic} forgets documents: Kafka deletes what is old. "
            "Have it compacted (cleanup.policy=compact), or kept for ever (retention.ms=-1, "
            "retention.bytes=-1)"
        )
        raise KafkaRefusal("kafka_topic_unfit", text)
    return facts
