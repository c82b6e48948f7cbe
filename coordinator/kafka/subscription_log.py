"""The topic `subscription-positions`, and the writing of changes to the topics of subscribers.

A node reads all of the topic while there are subscriptions. Positions are written by the node that
a subscriber talks to, and, where changes are delivered to Kafka, in the transaction of a delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.model.subscription_records import (
    PositionRead,
    SubscriptionAcknowledged,
    SubscriptionForgotten,
    SubscriptionRecord,
)
from coordinator.kafka.end_txn import Patience
from coordinator.kafka.errors import clients_error, never_connected
from coordinator.kafka.log_reader import BadRecord, decoded
from coordinator.kafka.producer_fencing import open_transactional
from coordinator.kafka.readers import BEGINNING, TailReader
from coordinator.kafka.settings import is_number, plain_settings
from coordinator.kafka.topics import SUBSCRIPTION_POSITIONS, delivery_id, topic_name

TRANSACTION_TIMEOUT_MS = 20_000
FLUSH_S = 5.0
FLUSH_CHANGES_S = 10.0
OPEN_S = 8.0
END_S = 2.5
"""Below the socket's timeout, after which the client repeats the end of a transaction."""

KIND: Any = SubscriptionRecord


class NotWrittenError(Exception):
    """Kafka has not acknowledged a record."""


FORGOTTEN_MAX = 10_000
"""So many subscriptions are forgotten at once: the client's queue has a bound."""


class DeliveryError(Exception):
    """Changes could not be delivered; the message says why."""


class PositionReader:
    """Reads all records of the topic, and what comes then, in a thread."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        take: Callable[[list[PositionRead]], None],
        dead_letter: BadRecord,
        failed: Callable[[str], None],
    ) -> None:
        """`take`, `dead_letter` and `failed` are called in the thread."""
        self._take = take
        self._dead_letter = dead_letter
        place = (topic_name(cluster, SUBSCRIPTION_POSITIONS), 0)
        self._reader = TailReader(
            bootstrap_servers, f"{cluster}.positions", {place: BEGINNING}, self._read, failed
        )

    @property
    def has_died(self) -> bool:
        return self._reader.has_died

    def stop(self) -> None:
        self._reader.stop()

    def _read(self, messages: list[Message]) -> None:
        found: list[PositionRead] = []
        for message in messages:
            if message.value() is None:
                found += self._forgotten(message)
            else:
                found += (record for _, record in decoded([message], KIND, self._dead_letter))
        if found:
            self._take(found)

    def _forgotten(self, message: Message) -> Iterator[SubscriptionForgotten]:
        key = message.key() or b""
        number, _, _ = (key if isinstance(key, bytes) else key.encode()).partition(b"/")
        if is_number(number):
            yield SubscriptionForgotten(int(number))
        else:
            self._dead_letter(message, "its key is no number of a subscription")


class PositionWriter:
    """Writes records of the topic. It blocks, and belongs to one thread."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        self._topic = topic_name(cluster, SUBSCRIPTION_POSITIONS)
        self._producer = Producer(
            plain_settings(
                bootstrap_servers,
                **{"enable.idempotence": True, "message.timeout.ms": int(FLUSH_S * 1000)},
            )
        )
        self.is_done_for = False
        """Whether the client can write nothing more: another writer has to take its place."""

    def write(self, records: Sequence[SubscriptionRecord]) -> None:
        """Write records; all are there when this returns. Raises NotWrittenError."""
        self._send([(record.key, codec.encode(record)) for record in records])

    def forget(self, numbers: Sequence[int]) -> None:
        """Have compaction remove what there is of subscriptions. Raises NotWrittenError."""
        for begin in range(0, len(numbers), FORGOTTEN_MAX):
            portion = numbers[begin : begin + FORGOTTEN_MAX]
            keys = (key for number in portion for key in (str(number), f"{number}/seen"))
            self._send([(key, None) for key in keys])

    def _send(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        try:
            for key, value in records:
                self._producer.produce(self._topic, value, key, on_delivery=delivered)
            left = self._producer.flush(FLUSH_S + 1)
        except (KafkaException, BufferError, SystemError) as error:
            meant = clients_error(error)
            self._note(meant.args[0] if isinstance(meant, KafkaException) else None)
            raise NotWrittenError(str(meant)) from error
        for failure in failures:
            self._note(failure)
        if left or failures:
            raise NotWrittenError(failures[0].str() if failures else "no broker answers")

    def _note(self, error: KafkaError | None) -> None:
        """Take note of an error after which the client writes nothing more."""
        if error is not None and (error.fatal() or error.code() == KafkaError._FATAL):
            self.is_done_for = True
            self._producer.purge()

    def close(self) -> None:
        self._producer.flush(1.0)


class Delivered(NamedTuple):
    """A change as it is written for a subscriber: JSON, keyed by its entity."""

    key: str
    value: bytes
    cas: int


class Delivery:
    """Writes the changes of one subscription, each exactly once. It blocks: one thread owns it.

    What is written and the position after it are one Kafka transaction. Whoever opens the next
    delivery of the same subscription fences this one. After an error it has to be closed; the next
    one begins at the position that was read after its opening.

    The position is written when all changes are there: nobody can read positions that come after it
    before the transaction ends, and the topic of a subscriber may keep changes waiting for long.
    """

    def __init__(
        self, bootstrap_servers: str, cluster: str, number: int, topic: str, patience: Patience
    ) -> None:
        """Open it: what an earlier delivery had under way is ended. Raises DeliveryError.

        `patience` is that of all deliveries of the subscription, one after the other.
        """
        self._topic = topic
        self._positions = topic_name(cluster, SUBSCRIPTION_POSITIONS)
        self._patience = patience
        self._disconnected = False
        pause_ms = patience.begin()
        try:
            self._producer = open_transactional(
                bootstrap_servers,
                delivery_id(cluster, number),
                (self._positions, topic),
                OPEN_S,
                **{
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "message.timeout.ms": 10_000,
                    "topic.metadata.propagation.max.ms": 1_000,
                    "retry.backoff.ms": pause_ms,
                    "retry.backoff.max.ms": pause_ms,
                    "error_cb": self._on_error,
                },
            )
            self._find()
        except KafkaException as error:
            raise DeliveryError(f"{topic}: {error.args[0].str()}") from error

    def _find(self) -> None:
        """Raises DeliveryError: the topic is not there, nor made by the broker."""
        found = self._producer.list_topics(self._topic, timeout=OPEN_S).topics.get(self._topic)
        if found is None or found.error is not None or not found.partitions:
            what = found.error.str() if found is not None and found.error else "it is not there"
            raise DeliveryError(f"{self._topic}: {what}")

    def _on_error(self, error: KafkaError) -> None:
        if not never_connected(error):
            self._disconnected = True

    def write(self, changes: Sequence[Delivered], position: SubscriptionAcknowledged) -> None:
        """Write changes and the position after them, or neither.

        Raises DeliveryError: which of it, the position will tell. The client may have sent the end
        of the transaction twice then.
        """
        self._disconnected = False
        failures: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error.str())

        try:
            self._producer.begin_transaction()
            for change in changes:
                headers: dict[str, str | bytes | None] = {"cas": str(change.cas)}
                self._producer.produce(
                    self._topic, change.value, change.key, headers=headers, on_delivery=delivered
                )
            self._flush(failures, FLUSH_CHANGES_S)
            self._producer.produce(
                self._positions, codec.encode(position), position.key, on_delivery=delivered
            )
            self._flush(failures, FLUSH_S)
            began_s = time.monotonic()
            self._producer.commit_transaction(END_S)
        except (KafkaException, BufferError, SystemError) as error:
            meant = clients_error(error)
            text = meant.args[0].str() if isinstance(meant, KafkaException) else str(meant)
            raise DeliveryError(f"{self._topic}: {text}") from error
        if self._patience.ended(time.monotonic() - began_s) or self._disconnected:
            raise DeliveryError(f"{self._topic}: the end of a transaction is in doubt")

    def _flush(self, failures: Sequence[str], timeout_s: float) -> None:
        """Wait until all is there that was produced. Raises DeliveryError."""
        if self._producer.flush(timeout_s) or failures:
            reason = failures[0] if failures else "no broker answers"
            raise DeliveryError(f"{self._topic}: {reason}")

    def close(self) -> None:
        """Let go of it; what is under way is ended by the next delivery, or by Kafka in time."""
        self._producer.purge()
