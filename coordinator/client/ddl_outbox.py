"""Records on their way to `ddl`: Kafka acknowledges each, or its sender gets an error.

The order of the records of a bucket is kept. The producer is idempotent, so a partition always has
a prefix of what was sent to it. If the producer has failed for good, or gets no delivery report for
`STALL_S`, the outbox makes another producer, which sends all open records again, in the same order.
So a record may arrive twice. But no record arrives for the first time before an earlier one that is
still open.

Threads may share an outbox. It has no thread of its own: a caller that waits for a delivery polls
the client of Kafka.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator.client.errors import CoordinatorError, error_of
from coordinator.client.kafka_contact import fault_of
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.errors import TRANSIENT
from coordinator.kafka.settings import plain_settings

STALL_S = 10.0
"""So long no delivery may be reported while some are due; the client can lose a broker for good."""

POLL_S = 0.1
KIB_MAX = 16 * 1024
"""What the client may hold of records that are not acknowledged."""

DONE_FOR = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
"""A delivery fails so where its producer can send nothing more."""

log = logging.getLogger("coordinator.client")


class Delivery:
    """One record: where it is, once Kafka has it, or why it may not have it."""

    def __init__(self, key: str, value: bytes, until_s: float) -> None:
        self.key = key
        self.value = value
        self.until_s = until_s
        self.is_done = False
        self.partition: int | None = None
        self.offset: int | None = None
        """None although it is delivered: Kafka did not say."""

        self.error: CoordinatorError | None = None


class Outbox:
    """Sends records to one topic."""

    def __init__(self, bootstrap_servers: str, topic: str, deadline_s: float) -> None:
        """`deadline_s`: no delivery may take longer."""
        self._servers = bootstrap_servers
        self._topic = topic
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._open: dict[int, Delivery] = {}
        self._sent = 0
        self._moved_s = 0.0
        self._turn = 0
        self._is_done_for = False
        self._is_closed = False
        self._producer = self._connected()

    def _connected(self) -> Producer:
        return Producer(
            plain_settings(
                self._servers,
                **{
                    "enable.idempotence": True,
                    "message.timeout.ms": int(self._deadline_s * 1000),
                    "queue.buffering.max.kbytes": KIB_MAX,
                },
            )
        )

    def send(self, key: str, value: bytes, until_s: float) -> Delivery:
        """Hand a record over, and return at once, unless too many are open."""
        delivery = Delivery(key, value, until_s)
        while not delivery.is_done:
            with self._lock:
                if self._take(delivery):
                    break
            self._wait(delivery)
        return delivery

    def settle(self, delivery: Delivery) -> None:
        """Wait until a record is delivered or has an error: at most until its deadline."""
        while not delivery.is_done:
            self._wait(delivery)

    def close(self) -> None:
        """Stop. Records without an acknowledgement get an error, and waiting callers return."""
        with self._lock:
            self._is_closed = True
            self._turn += 1
            self._producer.purge()
            for delivery in self._open.values():
                self._end(delivery, self._closed())
            self._open.clear()

    def _take(self, delivery: Delivery) -> bool:
        """Give a record to the client; False: it has no room, or is done for."""
        if self._is_closed:
            self._end(delivery, self._closed())
            return True
        number = self._sent
        try:
            self._produce(number, delivery)
        except BufferError:
            return False
        except KafkaException as error:
            if error.args[0].fatal():
                self._is_done_for = True
                return False
            self._end(delivery, fault_of(error, self._servers))
            return True
        if not self._open:
            self._moved_s = time.monotonic()
        self._open[number] = delivery
        self._sent += 1
        return True

    def _produce(self, number: int, delivery: Delivery) -> None:
        report = partial(self._reported, number, delivery, self._turn)
        self._producer.produce(self._topic, delivery.value, delivery.key, on_delivery=report)

    def _wait(self, delivery: Delivery) -> None:
        """Wait a moment for what the client reports, and do what it leaves to do."""
        self._producer.poll(POLL_S)
        now_s = time.monotonic()
        with self._lock:
            if not delivery.is_done and now_s > delivery.until_s:
                self._open = {n: one for n, one in self._open.items() if one is not delivery}
                self._end(delivery, self._unreachable())
            is_stalled = bool(self._open) and now_s - self._moved_s > STALL_S
            if (is_stalled or self._is_done_for) and not self._is_closed:
                self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        """Send all that is open again, in its order, by another producer."""
        log.info("%d commands are published again", len(self._open))
        self._producer.purge()
        self._turn += 1
        self._is_done_for = False
        self._moved_s = now_s
        self._producer = self._connected()
        for number, delivery in self._open.items():
            self._produce(number, delivery)

    def _reported(
        self,
        number: int,
        delivery: Delivery,
        turn: int,
        error: KafkaError | None,
        message: Message,
    ) -> None:
        """Take a report of the client, which another thread may be polling."""
        with self._lock:
            if error is not None and turn != self._turn:
                return  # It was sent again.
            if error is not None and (error.fatal() or error.code() in DONE_FOR):
                self._is_done_for = True
                return
            self._moved_s = time.monotonic()
            self._open.pop(number, None)
            if error is None:
                offset = offset_of(message)
                delivery.partition = message.partition()
                delivery.offset = None if offset == UNKNOWN else int(offset)
                self._end(delivery, None)
            else:
                self._end(delivery, self._failure(error))

    def _end(self, delivery: Delivery, error: CoordinatorError | None) -> None:
        if not delivery.is_done:
            delivery.error = error
            delivery.value = b""
            delivery.is_done = True

    def _failure(self, error: KafkaError) -> CoordinatorError:
        if error.code() in TRANSIENT or error.code() == KafkaError._MSG_TIMED_OUT:
            return self._unreachable()
        return fault_of(KafkaException(error), self._servers)

    def _unreachable(self) -> CoordinatorError:
        text = f"Kafka at {self._servers} has not acknowledged a command: it may have it or not"
        return error_of("unreachable", text, {"bootstrap_servers": self._servers})

    @staticmethod
    def _closed() -> CoordinatorError:
        text = (
            "the publisher was closed before Kafka acknowledged the command: it may have it or not"
        )
        return error_of("publisher_closed", text)
