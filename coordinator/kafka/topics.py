"""The topics of a cluster: their names, how they are made, and how they are checked.

A topic that exists with another number of partitions, cleanup policy, replication factor or
durability is refused: the protocol rests on these, so the coordinator does not start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

from coordinator.core.model.types import Offset
from coordinator.kafka.address import client_settings
from coordinator.kafka.errors import KafkaRefusal, LoginRefusals, explain, may_pass

COMMIT, STATECONTEXT, HISTORY = "commit", "statecontext", "history"
SNAPSHOTS = "snapshots"
ACKS, HEARTBEAT = "acks", "heartbeat"
DDL, DDL_REPLIES, DEAD_LETTER = "ddl", "ddl-replies", "dead-letter"
SYNC, STREAM_BEGIN, STREAM_END = "sync", "stream-begin", "stream-end"
MUTATIONS, HW, FAILOVER_LOG = "mutations", "hw", "failover-log"
STREAM_REQUEST, STABILITY = "stream-request", "stability"
STABILITY_HISTORY, TICK = "stability-history", "tick"
SUBSCRIPTION_POSITIONS = "subscription-positions"
RESTART, RESTART_REQUEST, TIMESTAMP_STATE = "restart", "restart-request", "timestamp-state"
TRANSACTION_STATE = "__transaction_state"
OF_SYNC = frozenset({SYNC, STREAM_BEGIN, STREAM_END})

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DDL_PARTITIONS = 3
STREAM_PARTITIONS = 4
SYNC_PARTITIONS = 4
"""Of `sync`, `stream-begin` and `stream-end`, unless the cluster is formed with another number."""
MESSAGE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic as it must be. `config` is checked value by value."""

    name: str
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    authoritative: bool = False


FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(HOUR_MS),
    "delete.retention.ms": str(DAY_MS),
}
BRIEF = {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS)}
LARGE = {"max.message.bytes": str(MESSAGE_BYTES_MAX)}
LATEST = {"cleanup.policy": "compact"}
MUTATIONS_BYTES = 2 * 1024**3
"""So much of each partition of `mutations` is kept: an indexer that is away for longer than that
has it streamed again."""

STATE_SEGMENT_BYTES = 16 * 1024 * 1024
"""Each batch writes the state of the buckets that it changed anew, and each period writes their
timestamps: it has to be cleaned often, for who reads it from its start."""
SMALL_SEGMENTS = {"segment.bytes": str(STATE_SEGMENT_BYTES)}

TOPICS: tuple[Topic, ...] = (
    Topic(COMMIT, config={**FOREVER, **LARGE}, authoritative=True),
    Topic(STATECONTEXT, config={**COMPACTED, **LARGE}, authoritative=True),
    Topic(HISTORY, config={**FOREVER, **LARGE}, authoritative=True),
    Topic(SNAPSHOTS, config={**FOREVER, **LARGE}),
    Topic(ACKS, config=BRIEF),
    Topic(HEARTBEAT, config=BRIEF),
    Topic(DDL, DDL_PARTITIONS, {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}),
    Topic(DDL_REPLIES, DDL_PARTITIONS, BRIEF),
    Topic(DEAD_LETTER, config={"cleanup.policy": "delete", "retention.ms": str(30 * DAY_MS)}),
    Topic(SYNC, SYNC_PARTITIONS, BRIEF),
    Topic(STREAM_BEGIN, SYNC_PARTITIONS, BRIEF),
    Topic(STREAM_END, SYNC_PARTITIONS, BRIEF),
    Topic(
        MUTATIONS,
        STREAM_PARTITIONS,
        {**BRIEF, **LARGE, "retention.bytes": str(MUTATIONS_BYTES)},
    ),
    Topic(HW, STREAM_PARTITIONS, BRIEF),
    Topic(FAILOVER_LOG, STREAM_PARTITIONS, LATEST),
    Topic(STREAM_REQUEST, config=BRIEF),
    Topic(STABILITY, config={**LATEST, **LARGE, **SMALL_SEGMENTS}),
    Topic(STABILITY_HISTORY, config={"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}),
    Topic(TICK, config=BRIEF),
    Topic(RESTART, config=BRIEF),
    Topic(RESTART_REQUEST, config=BRIEF),
    Topic(TIMESTAMP_STATE, config={**LATEST, **LARGE, **SMALL_SEGMENTS}),
    Topic(SUBSCRIPTION_POSITIONS, config=LATEST),
)
"""Those that this version uses, in the order in which they are made."""

REFUSED = frozenset(
    {
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICA_ASSIGNMENT,
        KafkaError.INVALID_REQUEST,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
    }
)
"""What Kafka says of a topic that it will never make like that."""

BUSY = frozenset(
    {
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.UNKNOWN,
    }
)
"""What it says of a topic that it cannot make now, while brokers are lacking or busy."""

BROKERS_COME_S = 10.0
"""Brokers that start together are all there by then. If not, there are too few of them."""

DESCRIBE_S = 30.0

TUNABLE = ("min.compaction.lag.ms", "delete.retention.ms")


def topic_name(cluster: str, name: str) -> str:
    """Return the name that a cluster's topic has on the broker."""
    return f"{cluster}.{name}"


def delivery_id(cluster: str, number: int) -> str:
    """Return the id under which the changes of one subscription are delivered."""
    return f"{cluster}.delivery.{number}"


def is_own(cluster: str, topic: str) -> bool:
    """Tell whether a topic on the broker is one of the cluster's own, or of Kafka's."""
    return topic.startswith((f"{cluster}.", "__"))


def transactional_id(cluster: str) -> str:
    """Return the one id under which masters write; Kafka fences by it."""
    return f"{cluster}.master"


class Ensured(NamedTuple):
    """What is known of Kafka once the topics are there."""

    kafka_id: str
    """The id of the Kafka cluster."""
    sync_partitions: int
    """How many partitions `sync`, `stream-begin` and `stream-end` have."""


def ensure_topics(
    bootstrap_servers: str,
    cluster: str,
    *,
    replication_factor: int = 1,
    min_insync_replicas: int = 0,
    durable: bool = True,
    one_machine: bool = False,
    sync_partitions: int | None = None,
    deadline_s: float = 30,
) -> Ensured:
    """Make the topics that are missing, and check all of them.

    `min_insync_replicas` of 0 means one less than the replication factor, at least 1. If `durable`,
    and if all replicas are on `one_machine`, so that they lose power together, the authoritative
    topics are flushed at every message; a single replica always counts so. `sync_partitions` are
    wanted of `sync`, `stream-begin` and `stream-end`; None means as many as `sync` has, or 4. What
    may pass, as while brokers start or change, is tried again until `deadline_s`; that there are
    too few of them, for `BROKERS_COME_S` at most. Raises KafkaRefusal, whose `code` is
    `topic_mismatch`, `kafka_unavailable`, `kafka_login_refused` or `kafka_error`; only the first is
    final.
    """
    flushed = durable and (one_machine or replication_factor == 1)
    wanted = [
        _complete(topic, replication_factor, min_insync_replicas, flushed) for topic in TOPICS
    ]
    attempts = Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_exponential(multiplier=0.02, max=0.5),
        stop=_Deadline(deadline_s),
        reraise=True,
    )
    with _admin(bootstrap_servers) as admin:
        try:
            return attempts(
                _make_and_check,
                admin,
                cluster,
                wanted,
                replication_factor,
                deadline_s,
                sync_partitions=sync_partitions,
            )
        except KafkaException as error:
            if _lacks_brokers(error):
                raise KafkaRefusal("topic_mismatch", error.args[0].str()) from error
            raise


@contextmanager
def _admin(bootstrap_servers: str) -> Iterator[AdminClient]:
    """Yield a client; a KafkaException within is raised as the KafkaRefusal that explains it."""
    refusals = LoginRefusals()
    settings = {**client_settings(bootstrap_servers), "log_level": 2, "error_cb": refusals}
    admin = AdminClient(settings)
    try:
        yield admin
    except KafkaException as error:
        admin.poll(0)
        raise explain(error, bootstrap_servers, refusals) from error


def _lacks_brokers(error: BaseException) -> bool:
    """Tell whether Kafka has not as many brokers as a topic is to have copies, or not yet."""
    refused = isinstance(error, KafkaException)
    return refused and error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def _may_pass(error: BaseException) -> bool:
    return may_pass(error) or (isinstance(error, KafkaException) and error.args[0].code() in BUSY)


class _Deadline:
    """When to give up: after `deadline_s`, or `BROKERS_COME_S` after brokers were lacking first."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s

    def __call__(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        since_s = state.seconds_since_start or 0.0
        if error is not None and _lacks_brokers(error):
            self._deadline_s = min(self._deadline_s, since_s + BROKERS_COME_S)
        return since_s >= self._deadline_s


def _make_and_check(
    admin: AdminClient,
    cluster: str,
    topics: list[Topic],
    replicas: int,
    deadline_s: float,
    *,
    sync_partitions: int | None,
) -> Ensured:
    metadata = admin.list_topics(timeout=deadline_s)
    there = metadata.topics.get(topic_name(cluster, SYNC))
    partitions = sync_partitions or (len(there.partitions) if there else 0) or SYNC_PARTITIONS
    wanted = [
        replace(topic, partitions=partitions) if topic.name in OF_SYNC else topic
        for topic in topics
    ]
    missing = [t for t in wanted if topic_name(cluster, t.name) not in metadata.topics]
    _create(admin, cluster, missing, replicas, deadline_s)
    _check(admin, cluster, wanted, replicas, deadline_s)
    return Ensured(str(metadata.cluster_id or ""), partitions)


def sync_partitions(bootstrap_servers: str, cluster: str) -> int:
    """Return how many partitions `sync` has. Raises KafkaRefusal."""
    with _admin(bootstrap_servers) as admin:
        try:
            return len(describe_sync(admin, cluster).result(2 * DESCRIBE_S).partitions)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            name = topic_name(cluster, SYNC)
            raise KafkaRefusal("topic_mismatch", f"{name} is not there") from error


def describe_sync(admin: AdminClient, cluster: str) -> Future[TopicDescription]:
    """Ask what `sync` is, and do not wait; the answer raises KafkaException, also if it lacks."""
    name = topic_name(cluster, SYNC)
    asked: dict[str, Future[TopicDescription]] = admin.describe_topics(
        TopicCollection([name]), request_timeout=DESCRIBE_S
    )
    return asked[name]


def delete_records(
    bootstrap_servers: str, topic: str, offset: Offset, timeout_s: float = 30
) -> None:
    """Delete what partition 0 of a topic holds below `offset`. Raises KafkaException."""
    admin = AdminClient({**client_settings(bootstrap_servers), "log_level": 2})
    place = TopicPartition(topic, 0, offset)
    for future in admin.delete_records([place], operation_timeout=timeout_s).values():
        future.result(timeout_s)


def _complete(topic: Topic, replicas: int, min_insync: int, flushed: bool) -> Topic:
    """Return the topic with what depends on the deployment."""
    config = dict(topic.config)
    config["min.insync.replicas"] = str(min_insync or max(1, replicas - 1))
    if topic.authoritative:
        config["unclean.leader.election.enable"] = "false"
        if flushed:
            config["flush.messages"] = "1"
    return Topic(topic.name, topic.partitions, config, topic.authoritative)


def _create(
    admin: AdminClient, cluster: str, topics: list[Topic], replicas: int, deadline_s: float
) -> None:
    if not topics:
        return
    new = [
        NewTopic(
            topic_name(cluster, topic.name), topic.partitions, replicas, config=dict(topic.config)
        )
        for topic in topics
    ]
    answers = admin.create_topics(new, operation_timeout=deadline_s, request_timeout=deadline_s)
    for name, future in answers.items():
        try:
            future.result()
        except KafkaException as error:
            code = error.args[0].code()
            if code in REFUSED:
                raise KafkaRefusal("topic_mismatch", f"{name}: {error.args[0].str()}") from error
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _metadata_of(admin: AdminClient, names: list[str], deadline_s: float) -> Any:
    """Return metadata that has all topics with their leaders.

    Raises KafkaException where one is not there yet: a new topic takes a moment.
    """
    metadata = admin.list_topics(timeout=deadline_s)
    for name in names:
        topic = metadata.topics.get(name)
        if topic is None or topic.error is not None:
            raise KafkaException(topic.error if topic else _not_yet(name, "is not there"))
        if any(p.leader < 0 for p in topic.partitions.values()):
            raise KafkaException(_not_yet(name, "has no leader"))
    return metadata


def _not_yet(name: str, what: str) -> KafkaError:
    return KafkaError(KafkaError.LEADER_NOT_AVAILABLE, f"{name} {what}")


def _check(
    admin: AdminClient, cluster: str, topics: list[Topic], replicas: int, deadline_s: float
) -> None:
    """Compare every topic with what it must be, and the broker's transaction state with it."""
    names = [topic_name(cluster, topic.name) for topic in topics]
    metadata = _metadata_of(admin, names, deadline_s)
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    answers = admin.describe_configs(resources, request_timeout=deadline_s)
    configs = {resource.name: future.result() for resource, future in answers.items()}
    problems: list[str] = []
    for topic, name in zip(topics, names, strict=True):
        seen = metadata.topics[name]
        if len(seen.partitions) != topic.partitions:
            problems.append(f"{name} has {len(seen.partitions)} partitions, not {topic.partitions}")
        copies = min(len(p.replicas) for p in seen.partitions.values())
        if copies < replicas:
            problems.append(f"{name} has replication factor {copies}, not {replicas}")
        for key in topic.config:
            if key in TUNABLE:
                continue
            value = configs[name][key].value
            if value != topic.config[key]:
                problems.append(f"{name} has {key}={value}, not {topic.config[key]}")
    state = metadata.topics.get(TRANSACTION_STATE)
    if state is not None and state.partitions:
        copies = min(len(p.replicas) for p in state.partitions.values())
        if copies < replicas:
            problems.append(f"{TRANSACTION_STATE} has replication factor {copies}, not {replicas}")
    if problems:
        raise KafkaRefusal("topic_mismatch", "; ".join(problems))
