"""Where the query's state is kept: one Kafka transaction a batch, and reading back what it left.

A transaction has the outputs of a batch and all that they rest on, or nothing. What a call returns
is not taken for its outcome where that is in doubt: a new producer settles it, because opening it
ends the old one's transaction, and then the topic is read. Opening a producer also fences whoever
writes under the same id, so that of two applications of one cluster only the newer one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from coordinator import codec
from coordinator.core.timestamps.bucket_state import BucketState, TimestampState
from coordinator.core.timestamps.progress import (
    TimestampContext,
    TimestampProgress,
    TimestampWaiting,
)
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

    def open(self) -> QueryState:
        """Fence any older writer, and return what is written. Raises KafkaException."""
        self.close()
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
        """Write the records in one transaction. Raises FencedError, DoubtError."""
        producer = self._producer
        assert producer is not None, "the state store is not open"
        self._crasher.passes(BEFORE)
        try:
            producer.begin_transaction()
            for record in records:
                self._write(producer, record)
            if producer.flush(COMMIT_TIMEOUT_S):
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not all was delivered"))
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
                producer.produce(topic, value, record.key.encode(), partition=0)
                return
            except BufferError:
                producer.poll(0.1)

    def _failure(self, error: Exception) -> Exception:
        """Return what an error means; the producer is done for in any case."""
        self.close()
        cause = error.args[0] if error.args else error
        text = cause.str() if isinstance(cause, KafkaError) else str(cause)
        if isinstance(cause, KafkaError) and cause.code() in FENCED:
            return FencedError(text)
        return DoubtError(text)

    def close(self) -> None:
        """Give the producer up; what it had open is ended by the next one, or by Kafka."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(KafkaException, SystemError):
                producer.purge()


# -- reading ---------------------------------------------------------------------------------------


def read_query_state(bootstrap_servers: str, cluster: str) -> QueryState:
    """Return what is written. Raises KafkaException, SchemaError, ValueError."""
    states: dict[str, BucketState] = {}
    query_state = QueryState(cluster)
    progress, context, waiting = query_state.progress, query_state.context, query_state.waiting
    newest: dict[str, bytes | None] = {}
    for message in read_to_end(bootstrap_servers, topic_name(cluster, TIMESTAMP_STATE), GROUP):
        newest[(message.key() or b"").decode()] = message.value()
    for value in newest.values():
        record = None if value is None else codec.decode(value)
        if isinstance(record, TimestampProgress):
            progress = record
        elif isinstance(record, TimestampContext):
            context = record
        elif isinstance(record, TimestampWaiting):
            waiting = record.letters
        elif isinstance(record, TimestampState):
            states[record.bucket] = from_record(record)
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
