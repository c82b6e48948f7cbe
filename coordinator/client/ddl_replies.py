"""Replies to commands from the `ddl` topic, as they become visible on `ddl-replies`.

A thread reads all partitions, from their ends before the first command was published. It keeps only
replies to the request ids that a caller expects, and drops an expectation that no caller holds any
more. After a lost connection, or the loss of a broker, it resumes at its offsets.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from weakref import WeakValueDictionary

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator import codec
from coordinator.client.errors import error_of
from coordinator.client.kafka_contact import fault_of
from coordinator.core.model.records import DdlReply
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.readers import BEGINNING, available, bounds, consumer
from schemas.registry import SchemaError

GROUP = "publisher"
STALL_S = 10.0
"""A reader that hears nothing for so long, while a reply is due, connects again."""

PAUSE_S = 0.2
OUT_OF_PLACE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
"""What stood there is gone: replies are kept for an hour."""

log = logging.getLogger("coordinator.client")


class Expected:
    """The reply to one request, if it has come. `mark` is the fingerprint of the command."""

    def __init__(self, mark: int) -> None:
        self.mark = mark
        self.reply: Future[DdlReply] = Future()
        self.reply.set_running_or_notify_cancel()  # So nobody who stops waiting can cancel it.


class Replies:
    """Reads the replies of one cluster. `close` it."""

    def __init__(self, bootstrap_servers: str, topic: str, timeout_s: float) -> None:
        """Note where the topic ends. CoordinatorError `unreachable`, `kafka_error`."""
        self._servers = bootstrap_servers
        self._topic = topic
        self._lock = threading.Lock()
        self._expected: WeakValueDictionary[str, Expected] = WeakValueDictionary()
        self._stopping = threading.Event()
        try:
            self._positions = self._ends(timeout_s)
        except KafkaException as error:
            raise fault_of(error, bootstrap_servers) from None
        self._thread = threading.Thread(target=self._run, name="ddl-replies", daemon=True)
        self._thread.start()

    def expect(self, request: str, mark: int) -> Expected:
        """Return where the reply to a request will be. Call it before the request is published.

        CoordinatorError `request_mismatch`: something else is expected under this id.
        """
        with self._lock:
            found = self._expected.get(request)
            if found is None or (found.reply.done() and found.reply.exception() is not None):
                found = self._expected[request] = Expected(mark)
            elif found.mark != mark:
                text = f"another command is published under the request id {request}"
                raise error_of("request_mismatch", text, {"request": request})
            return found

    def close(self) -> None:
        """Stop reading. Callers that wait get `no_reply`."""
        self._stopping.set()
        self._thread.join()

    def _end(self) -> None:
        text = "the publisher has stopped reading before the reply came"
        with self._lock:
            for request, one in self._expected.items():
                if not one.reply.done():
                    one.reply.set_exception(error_of("no_reply", text, {"request": request}))

    def _ends(self, timeout_s: float) -> dict[int, int]:
        with closing(consumer(self._servers, GROUP)) as reader:
            partitions = reader.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
            return {
                number: bounds(reader, TopicPartition(self._topic, number), timeout_s)[1]
                for number in partitions.partitions
            }

    def _run(self) -> None:
        try:
            self._follow()
        finally:
            self._end()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(consumer(self._servers, GROUP)) as reader:
                    places = self._positions.items()
                    reader.assign([TopicPartition(self._topic, p, o) for p, o in places])
                    self._read(reader)
            except KafkaException as error:
                log.info("replies on %s are read again: %s", self._topic, error)
            self._stopping.wait(PAUSE_S)

    def _read(self, reader: Consumer) -> None:
        """Read on, until it takes another connection to do so."""
        heard_s = time.monotonic()
        while not self._stopping.is_set():
            messages = available(reader)
            for message in messages:
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.code() in OUT_OF_PLACE:
                    self._positions[int(message.partition() or 0)] = BEGINNING
                    return
                elif not passes_by_itself(error):
                    raise KafkaException(error)
            if messages or not self._is_due():
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > STALL_S:
                return

    def _is_due(self) -> bool:
        with self._lock:
            return any(not one.reply.done() for one in self._expected.values())

    def _take(self, message: Message) -> None:
        offset = message.offset()
        assert offset is not None
        self._positions[int(message.partition() or 0)] = offset + 1
        key = message.key()
        with self._lock:
            expected = self._expected.get(key.decode(errors="replace")) if key else None
        if expected is None or expected.reply.done():
            return
        try:
            expected.reply.set_result(_decoded(message))
        except SchemaError as error:
            text = f"the reply at {offset} of partition {message.partition()} is none: {error}"
            expected.reply.set_exception(error_of("bad_response", text))


def _decoded(message: Message) -> DdlReply:
    """Return the reply that a record is. SchemaError."""
    value = message.value()
    reply = codec.decode(value if isinstance(value, bytes) else b"")
    if not isinstance(reply, DdlReply):
        raise SchemaError("bad_body", f"a {type(reply).__name__}")
    return reply
