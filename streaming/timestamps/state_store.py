"""Where the query's state is kept: one Kafka transaction a batch, and reading back what it left.

A transaction has the outputs of a batch and all that they rest on, or nothing. What a call returns
is not taken for its outcome where that is in doubt: a new producer settles it, because opening it
ends the old one's transaction, and then the topic is read. Opening a producer also fences whoever
writes under the same id, so that of two applications of one cluster only the newer one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.timestamps.bucket_state import BucketState, TimestampState
from coordinator.core.timestamps.progress import (
    TimestampContext,
    TimestampProgress,
    TimestampWaiting,
)
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.kafka.delivery import produce_when_there_is_room
from coordinator.kafka.errors import clients_error
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.producer_fencing import open_transactional
from coordinator.kafka.topics import (
    DEAD_LETTER,
    RESTART,
    STABILITY,
    STABILITY_HISTORY,
    TIMESTAMP_STATE,
    topic_name,
)
from schemas.registry import SchemaError
from streaming.spark.crash_points import AFTER, BEFORE, WITHIN, Crasher
from streaming.timestamps.bucket_states import from_record
from streaming.timestamps.outputs import outputs_of
from streaming.timestamps.query_state import (
    EVERY_BUCKET,
    QueryState,
    Record,
    adopted,
    keys_of,
    seeded,
    shard_of_progress,
)

OUTPUTS = (TIMESTAMP_STATE, STABILITY, STABILITY_HISTORY, RESTART, DEAD_LETTER)
"""The topics that one transaction writes."""

TRANSACTION_TIMEOUT_MS = 20_000
MESSAGE_TIMEOUT_MS = 10_000
COMMIT_TIMEOUT_S = 15.0
OPEN_TIMEOUT_S = 10.0

GROUP = "timestamps"

FENCED = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }
)


REFUSED = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
"""What Kafka says of records that it will not take, however often they are written."""


class RefusedError(Exception):
    """Kafka refuses the records of a batch, and will again: an operator has to help."""


class UnreadableError(Exception):
    """What is written on `timestamp-state` is no state that this version knows."""


class FencedError(Exception):
    """Kafka takes nothing of this producer any more: there is a newer one, or it took too long."""


class DoubtError(Exception):
    """Whether the transaction was committed is not known; only reading tells."""


class StateStore:
    """The one writer of a cluster's timestamps. Each `open` makes a new producer."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        crasher: Crasher,
        shard: BucketShard = WHOLE,
    ) -> None:
        self._servers = bootstrap_servers
        self._cluster = cluster
        self._shard = shard
        self._crasher = crasher
        self._producer: Producer | None = None
        self._undelivered: KafkaError | None = None
        self._refused_topic = ""

    def open(self) -> QueryState:
        """Fence any older writer, and return what is written.

        Raises KafkaException, RefusedError, UnreadableError.
        """
        self.close()
        try:
            return self._open()
        except KafkaException as error:
            if isinstance(failure := self._failure(error), RefusedError):
                raise failure from error
            raise

    def _open(self) -> QueryState:
        self._producer = self._fence(self._shard)
        kept = read_kept(self._servers, self._cluster)
        if others := kept.divided_otherwise(self._shard):
            for other in others:
                self._fence(other)
            kept = read_kept(self._servers, self._cluster)
        return kept.query_state(self._servers, self._shard)

    def _fence(self, shard: BucketShard) -> Producer:
        """Return a new producer of a shard, which ends all older ones. Raises KafkaException."""
        own = f"{self._cluster}.timestamps"
        return open_transactional(
            self._servers,
            f"{own}.{shard.number}-of-{shard.parts}" if shard.name else own,
            [topic_name(self._cluster, name) for name in OUTPUTS],
            OPEN_TIMEOUT_S,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "compression.type": "lz4",
            },
        )

    def commit(self, records: Sequence[Record]) -> None:
        """Write the records in one transaction. Raises FencedError, RefusedError, DoubtError."""
        producer = self._producer
        assert producer is not None, "the state store is not open"
        self._undelivered = None
        self._crasher.passes(BEFORE)
        try:
            producer.begin_transaction()
            for record in records:
                self._write(producer, record)
            if producer.flush(COMMIT_TIMEOUT_S):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not all was delivered"))
            if self._undelivered is not None:
                raise KafkaException(self._undelivered)
            self._crasher.passes(WITHIN)
            producer.commit_transaction(COMMIT_TIMEOUT_S)
        except (KafkaException, SystemError) as error:
            raise self._failure(error) from error
        self._crasher.passes(AFTER)

    def _write(self, producer: Producer, record: Record) -> None:
        topic = topic_name(self._cluster, record.topic)
        value = None if record.value is None else codec.encode(record.value)
        key, more = record.key.encode(), {"partition": 0, "on_delivery": self._delivered}
        try:
            produce_when_there_is_room(producer, topic, value, key, **more)
        except KafkaException:
            self._refused_topic = topic
            raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._undelivered is None:
            self._undelivered, self._refused_topic = error, message.topic() or ""

    def _failure(self, error: Exception) -> Exception:
        """Return what an error means; the producer is done for in any case."""
        self.close()
        meant = clients_error(error)
        cause = meant.args[0] if meant.args else meant
        text = cause.str() if isinstance(cause, KafkaError) else str(cause)
        if isinstance(cause, KafkaError) and cause.code() in FENCED:
            return FencedError(text)
        if isinstance(cause, KafkaError) and cause.code() in REFUSED:
            topic = self._refused_topic or "the topics of timestamps"
            return RefusedError(
                f"Kafka refuses what is to be written to {topic}: {cause.name()}, {text}; nothing "
                "of this batch was written, and it is computed again at the next start "
                "[output_refused]"
            )
        return DoubtError(text)

    def close(self) -> None:
        """Give the producer up; what it had open is ended by the next one, or by Kafka."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException, SystemError):
                producer.purge()


# -- reading ---------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """What `timestamp-state` has: the last record of each key."""

    cluster: str
    newest: Mapping[str, bytes]

    def divided_otherwise(self, shard: BucketShard) -> list[BucketShard]:
        """Return the shards among which the buckets were divided in another way."""
        found = (shard_of_progress(key) for key in self.newest)
        return [one for one in found if one is not None and one.parts != shard.parts]

    def query_state(self, bootstrap_servers: str, shard: BucketShard) -> QueryState:
        """Return what a shard goes on with. Raises KafkaException, UnreadableError."""
        others = self.divided_otherwise(shard)
        own = self._own(shard)
        if keys_of(shard).progress not in self.newest and others:
            own = adopted(shard, map(self._own, others))
        divided = (BucketShard(number, shard.parts) for number in range(1, shard.parts + 1))
        obsolete = [key for other in others for key in keys_of(other) if key in self.newest]
        if not all(keys_of(one).progress in self.newest for one in divided):
            obsolete = []  # Another shard has yet to begin with what is there.
        states = {}
        for key in self.newest:
            if not key.startswith(EVERY_BUCKET) and shard.owns(key):
                state = self._read(key)
                if isinstance(state, BucketState):
                    states[state.bucket] = state
        outputs = outputs_of(
            _records(bootstrap_servers, self.cluster, STABILITY),
            _records(bootstrap_servers, self.cluster, RESTART),
        )
        return seeded(replace(own, states=states, obsolete=tuple(obsolete)), outputs)

    def _own(self, shard: BucketShard) -> QueryState:
        """Return what a shard has kept beside the states of its buckets."""
        query_state = QueryState(self.cluster, shard=shard)
        for key in keys_of(shard):
            record = self._read(key) if key in self.newest else None
            if isinstance(record, TimestampProgress):
                query_state = replace(query_state, progress=record)
            elif isinstance(record, TimestampContext):
                query_state = replace(query_state, context=record)
            elif isinstance(record, TimestampWaiting):
                query_state = replace(query_state, waiting=record.letters)
        return query_state

    def _read(self, key: str) -> Any:
        try:
            record = codec.decode(self.newest[key])
            return from_record(record) if isinstance(record, TimestampState) else record
        except ValueError as error:
            raise UnreadableError(
                f"{topic_name(self.cluster, TIMESTAMP_STATE)} has what this version cannot read "
                f"under {key!r}: {error}; upgrade, or delete the topic: numbers and positions go "
                "on from the outputs [state_unreadable]"
            ) from error


def read_kept(bootstrap_servers: str, cluster: str) -> Kept:
    """Return what is written. Raises KafkaException."""
    newest: dict[str, bytes] = {}
    for message in read_to_end(bootstrap_servers, topic_name(cluster, TIMESTAMP_STATE), GROUP):
        key, value = (message.key() or b"").decode(errors="replace"), message.value()
        if value is None:
            newest.pop(key, None)
        else:
            newest[key] = value
    return Kept(cluster, newest)


def _records(bootstrap_servers: str, cluster: str, topic: str) -> Iterator[object]:
    """Yield the records of an output; what cannot be decoded was not written here."""
    for message in read_to_end(bootstrap_servers, topic_name(cluster, topic), GROUP):
        with suppress(SchemaError):
            yield codec.decode(message.value() or b"")
