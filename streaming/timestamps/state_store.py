"""Where the query's state is kept: one Kafka transaction a batch, and reading back what it left.

A transaction has the outputs of a batch and all that they rest on, or nothing. What a call returns
is not taken for its outcome where that is in doubt: a new producer settles it, because opening it
ends the old one's transaction, and then the topic is read. Opening a producer also fences whoever
writes under the same id, so that of two applications of one cluster only the newer one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.timestamps.bucket_state import BucketState, TimestampState
from coordinator.core.timestamps.progress import (
    TimestampContext,
    TimestampProgress,
    TimestampWaiting,
)
from coordinator.kafka.errors import clients_error
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.producer_fencing import open_transactional
from coordinator.kafka.topics import RESTART, STABILITY, TIMESTAMP_STATE, topic_name
from schemas.registry import SchemaError
from streaming.spark.crash_points import AFTER, BEFORE, WITHIN, Crasher
from streaming.timestamps.bucket_states import from_record
from streaming.timestamps.outputs import outputs_of
from streaming.timestamps.query_state import OWN_KEYS, QueryState, Record, seeded

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

    def __init__(self, bootstrap_servers: str, cluster: str, crasher: Crasher) -> None:
        self._servers = bootstrap_servers
        self._cluster = cluster
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
        name = f"{self._cluster}.timestamps"
        self._producer = open_transactional(
            self._servers,
            name,
            topic_name(self._cluster, TIMESTAMP_STATE),
            OPEN_TIMEOUT_S,
            **{
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "compression.type": "lz4",
            },
        )
        return read_query_state(self._servers, self._cluster)

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
        while True:
            try:
                key = record.key.encode()
                producer.produce(topic, value, key, partition=0, on_delivery=self._delivered)
                return
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                self._refused_topic = topic
                raise error

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


def read_query_state(bootstrap_servers: str, cluster: str) -> QueryState:
    """Return what is written. Raises KafkaException, UnreadableError."""
    states: dict[str, BucketState] = {}
    query_state = QueryState(cluster)
    progress, context, waiting = query_state.progress, query_state.context, query_state.waiting
    newest: dict[str, bytes | None] = {}
    for message in read_to_end(bootstrap_servers, topic_name(cluster, TIMESTAMP_STATE), GROUP):
        newest[(message.key() or b"").decode(errors="replace")] = message.value()
    for key, value in newest.items():
        try:
            record = None if value is None else codec.decode(value)
            state = from_record(record) if isinstance(record, TimestampState) else None
        except ValueError as error:
            raise UnreadableError(
                f"{topic_name(cluster, TIMESTAMP_STATE)} has what this version cannot read under "
                f"{key!r}: {error}; upgrade, or delete the topic: numbers and positions go on from "
                "the outputs [state_unreadable]"
            ) from error
        if isinstance(record, TimestampProgress):
            progress = record
        elif isinstance(record, TimestampContext):
            context = record
        elif isinstance(record, TimestampWaiting):
            waiting = record.letters
        elif state is not None:
            states[state.bucket] = state
    assert not states.keys() & set(OWN_KEYS), "a bucket has the name of a key of ours"
    kept = QueryState(cluster, progress, context, waiting, states)
    outputs = outputs_of(
        _records(bootstrap_servers, cluster, STABILITY),
        _records(bootstrap_servers, cluster, RESTART),
    )
    return seeded(kept, outputs)


def _records(bootstrap_servers: str, cluster: str, topic: str) -> Iterator[object]:
    """Yield the records of an output; what cannot be decoded was not written here."""
    for message in read_to_end(bootstrap_servers, topic_name(cluster, topic), GROUP):
        with suppress(SchemaError):
            yield codec.decode(message.value() or b"")
