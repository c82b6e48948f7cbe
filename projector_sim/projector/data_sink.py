"""The producer of a projector's data: it drops nothing, and sends nothing after a gap.

Records of a partition arrive in the order in which they were passed. If Kafka refuses one, the
client sends none of those behind it. `failed` then has the reason, and every connection with a
record on the way must end. A broker that is away is no failure: records wait for it, and so does
whoever passes more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from coordinator import codec
from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverLog,
    KeyVersions,
    StreamBegin,
    StreamEnd,
    SyncVector,
)
from coordinator.kafka.address import client_settings
from coordinator.kafka.errors import as_meant, may_pass
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.topics import (
    FAILOVER_LOG,
    MUTATIONS,
    STREAM_BEGIN,
    STREAM_END,
    STREAM_PARTITIONS,
    SYNC,
    SYNC_PARTITIONS,
    describe_sync,
    topic_name,
)

LINGER_MS = 0.2
"""What belongs together is handed over at once: Kafka's client need not wait for more of it."""

QUEUE_KBYTES = 64 * 1024
WAIT_S = 0.05
INDEXER_HEADER = "indexer"
STOPS = "the projector stops"

TOPICS: dict[type, str] = {
    StreamBegin: STREAM_BEGIN,
    StreamEnd: STREAM_END,
    ConnectionClosed: STREAM_END,
    SyncVector: SYNC,
    FailoverLog: FAILOVER_LOG,
}


class DataSink:
    """A `Sink` on Kafka. For one thread."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        stopping: threading.Event,
        while_waiting: Callable[[], None],
    ) -> None:
        """`while_waiting` is called now and then as long as Kafka takes no more."""
        self.failed = ""
        self.sent = 0
        self._servers = bootstrap_servers
        self._stopping = stopping
        self._while_waiting = while_waiting
        self._settings = plain_settings(
            bootstrap_servers,
            **{
                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
                "message.timeout.ms": 0,
                "linger.ms": LINGER_MS,
                "compression.type": "lz4",
                "queue.buffering.max.kbytes": QUEUE_KBYTES,
                "delivery.report.only.error": True,
                "error_cb": self._on_error,
                "on_delivery": self._on_delivery,
            },
        )
        self._mutations = topic_name(cluster, MUTATIONS)
        self._cluster = cluster
        self._sync_partitions = 0
        self._topics = {kind: topic_name(cluster, name) for kind, name in TOPICS.items()}
        self._producer = Producer(self._settings)

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None:
        """Send items to an indexer."""
        headers = [(INDEXER_HEADER, str(indexer).encode())]
        self._produce(
            self._mutations, codec.encode(record), record.bucket.encode(), partition, headers
        )

    def control(
        self,
        place: int,
        record: StreamBegin | StreamEnd | SyncVector | ConnectionClosed | FailoverLog,
    ) -> None:
        """Send a control record; `place` is its vbucket, or says where one of several goes."""
        partitions = STREAM_PARTITIONS if isinstance(record, FailoverLog) else self._of_sync()
        key = record.bucket
        if not isinstance(record, SyncVector | ConnectionClosed):
            key = f"{key}/{place}"
        topic = self._topics[type(record)]
        self._produce(topic, codec.encode(record), key.encode(), place % partitions, None)

    def _of_sync(self) -> int:
        """Return how many partitions `sync` has: Kafka is asked until it has said so.

        It is asked once at a time. Asked again before it has answered, a slow one gets slower.
        """
        if self._sync_partitions:
            return self._sync_partitions
        admin = AdminClient({**client_settings(self._servers), "log_level": 2})
        asked = describe_sync(admin, self._cluster)
        while not self.failed:
            try:
                self._sync_partitions = len(asked.result(WAIT_S).partitions)
                return self._sync_partitions
            except TimeoutError:
                pass
            except KafkaException as error:
                if not may_pass(error):
                    self.failed = error.args[0].str()
                    break
                self._stopping.wait(WAIT_S)
                asked = describe_sync(admin, self._cluster)
            if self._stopping.is_set():
                self.failed = STOPS
                break
            self._while_waiting()
        return SYNC_PARTITIONS

    def serve(self) -> None:
        """Hear what has become of what was sent; never blocks."""
        self._poll(0)

    def _poll(self, timeout_s: float) -> None:
        """Run the callbacks that are due. A client that has failed for good says so here, too."""
        try:
            with as_meant():
                self._producer.poll(timeout_s)
        except KafkaException as error:
            self.failed = self.failed or error.args[0].str()

    def renew(self) -> None:
        """Forget what was not sent, and begin with a new client."""
        with suppress(KafkaException):
            self._producer.purge()
        self._producer = Producer(self._settings)
        self.failed = ""

    def finish(self, timeout_s: float) -> None:
        """Wait for what was handed over, not longer; what is left then, is lost."""
        with suppress(KafkaException), as_meant():
            if self._producer.flush(timeout_s):
                self._producer.purge()

    def _produce(self, topic: str, value: bytes, key: bytes, partition: int, headers: Any) -> None:
        while not self.failed:
            try:
                self._producer.produce(topic, value, key, partition, headers=headers)
                self.sent += 1
                return
            except BufferError:
                if self._stopping.is_set():
                    self.failed = STOPS
                    return
                self._poll(WAIT_S)
                self._while_waiting()
            except KafkaException as error:
                self.failed = self.failed or error.args[0].str()

    def _on_delivery(self, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.failed = self.failed or error.str()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.failed = self.failed or error.str()
