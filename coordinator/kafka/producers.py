"""The two producers of a node: a plain one, and the cluster's one transactional producer.

The plain one sends proposals, barriers, answers and heartbeats. The transactional one writes all
that is authoritative; it runs in a thread of its own, because its calls block. Nobody takes the
result of a call for the outcome of a transaction: only the log tells the outcome.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coordinator import codec
from coordinator.core.consensus import effects, inputs
from coordinator.core.model.records import DeadLetter, Event
from coordinator.core.model.types import Offset
from coordinator.kafka import end_txn
from coordinator.kafka.commit_pacing import Pacing
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.errors import (
    TRANSIENT,
    UNKNOWN_TOPIC,
    as_meant,
    may_pass,
    never_connected,
)
from coordinator.kafka.producer_fencing import connect, end_open_transaction
from coordinator.kafka.settings import (
    EVENT_HEADER,
    plain_settings,
)
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DDL_REPLIES,
    DEAD_LETTER,
    HEARTBEAT,
    HISTORY,
    RESTART_REQUEST,
    STATECONTEXT,
    STREAM_END,
    topic_name,
    transactional_id,
)

TRANSACTION_TIMEOUT_MS = 20_000

DEAD_LETTER_BYTES_MAX = 256 * 1024
DEAD_LETTER_REASON_LENGTH_MAX = 1_000
"""What a dead letter keeps of a record, and of what is wrong with it. A letter that does not fit
on its topic would be refused, and whoever wrote it could not go on."""

DEAD_LETTERS_BYTES_MAX = 32 * 1024 * 1024
"""So much of dead letters waits for a broker that is away; then the oldest go."""

DEAD_LETTER_OVERHEAD_BYTES = 500
"""What a letter weighs besides the record and the reason."""

EVENT_TIMEOUT_MS = 10_000
FLUSH_TIMEOUT_S = 8.0
END_TIMEOUT_S = 2.5
"""For the end of a Kafka transaction. Below the socket's timeout: a request that times out there is
repeated by the client, and both copies may arrive."""

OPEN_TIMEOUT_S = 8.0

Feed = Callable[[inputs.Input], None]

log = logging.getLogger(__name__)


OF_PLAIN = (COMMIT, ACKS, HEARTBEAT, RESTART_REQUEST, STREAM_END)


class PlainProducer:
    """Sends records whose loss the protocol survives; feeds failures of appends to the node.

    It feeds them after the client's callbacks have returned: the node may send again at once, and
    the client aborts the process if a callback polls. `written` is the offset of the last record of
    `commit` that Kafka acknowledged, or `UNKNOWN`. Nobody would send a dead letter again, so it
    waits in `dead_letters`. `waiting_since_s` is since when something of the rest waits and nothing
    has arrived, by the monotonic clock; None if nothing does.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        feed: Feed,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        """`dead_letters` are those that wait, where they are to outlive this producer."""
        self._feed = feed
        self._dead_letters = dead_letters if dead_letters is not None else DeadLetters(cluster)
        self.written = UNKNOWN
        self.waiting_since_s: float | None = None
        self._failed: list[inputs.AppendFailed] = []
        self._producer = Producer(
            plain_settings(
                bootstrap_servers, **{"enable.idempotence": True, "message.timeout.ms": 5_000}
            )
        )
        self._topics = {name: topic_name(cluster, name) for name in OF_PLAIN}

    def append(self, effect: effects.Append) -> None:
        """Send a plain record to `commit`."""
        token = effect.token

        def delivered(error: KafkaError | None, message: Any) -> None:
            self._delivered(error, message)
            if error is None:
                self.written = max(self.written, offset_of(message))
            elif token:
                self._failed.append(inputs.AppendFailed(token, error.str()))

        self._send(COMMIT, codec.encode(effect.record), on_delivery=delivered)

    def answer(self, effect: effects.Answer) -> None:
        self._send(ACKS, codec.encode(effect.record), key=_sender(effect.record))

    def beat(self, effect: effects.Beat) -> None:
        self._send(HEARTBEAT, codec.encode(effect.record), key=_sender(effect.record))

    def ask(self, effect: effects.Ask) -> None:
        record = effect.record
        self._send(RESTART_REQUEST, codec.encode(record), key=record.bucket.encode())

    def close_connection(self, effect: effects.CloseConnection) -> None:
        """Say it where the projector would: its records of a whole connection go to partition 0."""
        record = effect.record
        self._send(STREAM_END, codec.encode(record), key=record.bucket.encode())

    def send_dead_letter(self, effect: effects.SendDeadLetter) -> None:
        self._dead_letters.add(effect.dead_letter)
        self.serve()

    def dead_letter_message(self, message: Message, reason: str) -> None:
        """Send a record that could not be used to `dead-letter`, as it came."""
        self._dead_letters.add_message(message, reason)
        self.serve()

    def serve(self) -> None:
        """Run the delivery callbacks that are due; call it often, it never blocks. Raises
        KafkaException: the client has failed for good."""
        self._poll()
        self._dead_letters.send(self._producer)
        failed, self._failed = self._failed, []
        for failure in failed:
            self._feed(failure)

    def _poll(self) -> None:
        with as_meant():
            self._producer.poll(0)

    def flush(self, timeout_s: float) -> None:
        """Send what can be sent in time. Raises KafkaException: the client has failed for good."""
        self._dead_letters.send(self._producer)
        with as_meant():
            self._producer.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send what can be sent in time; dead letters that cannot wait again."""
        for step in (partial(self.flush, timeout_s), self._producer.purge, self._poll):
            with suppress(KafkaException):
                step()

    def _send(self, topic: str, value: bytes, **more: Any) -> None:
        """Send what its sender sends again: it is lost where a broker is away and too much waits,
        or does not know its topics, as right after its start. Raises KafkaException otherwise.
        """
        if self.waiting_since_s is None:
            self.waiting_since_s = time.monotonic()
        settings = {"on_delivery": self._delivered, **more}
        try:
            self._producer.produce(self._topics[topic], value, partition=0, **settings)
        except BufferError:
            pass
        except KafkaException as error:
            if not may_pass(error):
                raise
        self.serve()

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        if error is None:
            self.waiting_since_s = None


class DeadLetters:
    """Dead letters that are not sent yet: they wait while the broker is away.

    They outlive producers, which are made anew with each connection. Any thread may add a letter;
    the thread that serves a producer sends it.
    """

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._topic = topic_name(cluster, DEAD_LETTER)
        self._waiting: deque[DeadLetter] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, letter: DeadLetter) -> None:
        """Take a letter of the core, which knows topics by their short names."""
        self._wait(bounded(full(letter, self._cluster)))

    def add_message(self, message: Message, reason: str) -> None:
        """Take a record that could not be used, as it came."""
        offset = Offset(int(message.offset() or 0))
        where = (str(message.topic()), int(message.partition() or 0), offset)
        value = message.value()
        at_ms = time.time_ns() // 1_000_000
        self.add_foreign(
            DeadLetter(*where, reason, value if isinstance(value, bytes) else b"", at_ms)
        )

    def add_foreign(self, letter: DeadLetter) -> None:
        """Take a letter about a topic with its full name, of the cluster or of others."""
        self._wait(bounded(letter))

    def send(self, producer: Producer) -> None:
        """Send what waits; a letter that does not arrive waits again, until Kafka refuses it."""
        for _ in range(len(self._waiting)):
            letter = self._oldest()
            if letter is None:
                return  # Another thread was quicker.
            try:
                producer.produce(
                    self._topic,
                    codec.encode(letter),
                    partition=0,
                    key=dead_letter_key(letter),
                    on_delivery=partial(self._sent, letter),
                )
            except (BufferError, KafkaException) as error:
                self._wait(letter)
                if isinstance(error, BufferError) or may_pass(error):
                    return
                raise

    def _sent(self, letter: DeadLetter, error: KafkaError | None, _: Any) -> None:
        if error is not None and error.code() in LATE:
            self._wait(letter)
        elif error is not None:
            _lost(letter, error.str())

    def _wait(self, letter: DeadLetter) -> None:
        with self._lock:
            self._waiting.append(letter)
            self._bytes += _weight(letter)
        while self._bytes > DEAD_LETTERS_BYTES_MAX and (oldest := self._oldest()) is not None:
            _lost(oldest, "too many wait")

    def _oldest(self) -> DeadLetter | None:
        """Take the oldest out."""
        with self._lock:
            if not self._waiting:
                return None
            letter = self._waiting.popleft()
            self._bytes -= _weight(letter)
            return letter


def _weight(letter: DeadLetter) -> int:
    return len(letter.value) + len(letter.reason) + DEAD_LETTER_OVERHEAD_BYTES


def _lost(letter: DeadLetter, why: str) -> None:
    where = f"{letter.topic}-{letter.partition} at {letter.offset}"
    log.error("the dead letter for %s is lost: %s", where, why)


LATE = (
    TRANSIENT
    | UNKNOWN_TOPIC
    | {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._QUEUE_FULL,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    }
)
"""What a delivery fails with while a broker is away; what else there is, is a refusal."""


def _sender(record: Any) -> bytes:
    """Return the key of an answer or a heartbeat: the number of who sends it, or hears it."""
    numbers = (getattr(record, kind, None) for kind in ("node", "indexer", "projector"))
    return str(next((number for number in numbers if number is not None), 0)).encode()


def full(letter: DeadLetter, cluster: str) -> DeadLetter:
    """Return a letter of the core, which knows topics by their short names, with the full one."""
    return replace(letter, topic=topic_name(cluster, letter.topic))


def bounded(letter: DeadLetter) -> DeadLetter:
    """Return a letter that fits on its topic: of a long record it keeps the beginning.

    The place that it names tells where the rest is.
    """
    return replace(
        letter,
        value=letter.value[:DEAD_LETTER_BYTES_MAX],
        reason=letter.reason[:DEAD_LETTER_REASON_LENGTH_MAX],
    )


def dead_letter_key(letter: DeadLetter) -> bytes:
    """Return the key of a dead letter: where the record stood."""
    return f"{letter.topic}-{letter.partition}-{letter.offset}".encode()


class TransactionalProducer:
    """Carries out the effects that need the cluster's one transactional producer, in order."""

    def __init__(self, bootstrap_servers: str, cluster: str, feed: Feed) -> None:
        self._patience = end_txn.Patience()
        self._bootstrap_servers = bootstrap_servers
        self._cluster = cluster
        self._feed = feed
        self._orders: queue.SimpleQueue[tuple[effects.Effect | None, int]] = queue.SimpleQueue()
        self._closings = 0
        self._producer: Producer | None = None
        self._open = False
        self._disconnected = False
        self._pacing = Pacing()
        self._history: tuple[Event, ...] = ()
        self._names = {
            name: topic_name(cluster, name)
            for name in (COMMIT, STATECONTEXT, HISTORY, DDL_REPLIES, DEAD_LETTER)
        }
        self._thread = threading.Thread(target=self._run, name="transactions", daemon=True)
        self._thread.start()

    def order(self, effect: effects.Effect) -> None:
        """Take an effect; it is carried out after all that were ordered before.

        An opening is not, once the end of it was ordered: it would fence who is master by then.
        """
        self._closings += isinstance(effect, effects.CloseProducer)
        self._orders.put((effect, self._closings))

    def close(self, timeout_s: float = 5.0) -> None:
        self._orders.put((None, 0))
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            effect, closings = self._orders.get()
            if effect is None:
                return
            try:
                self._carry_out(effect, closings)
            except Exception as error:
                # Whatever it is, the client's SystemError after a fatal error included: this
                # producer is done for, and the node must hear of it.
                self._fail(getattr(effect, "token", 0), _text(error))

    def _fail(self, token: int, reason: str) -> None:
        self._producer = None
        self._open = False
        self._history = ()
        self._feed(inputs.ProducerFailed(token, reason))

    def _carry_out(self, effect: effects.Effect, closings: int) -> None:
        if isinstance(effect, effects.OpenProducer):
            self._init(effect.token, closings)
        elif isinstance(effect, effects.CloseProducer):
            self._give_up()
        elif self._producer is None:
            self._feed(inputs.ProducerFailed(getattr(effect, "token", 0), "no producer is open"))
        elif isinstance(effect, effects.WriteEvents):
            self._write_events(self._producer, effect)
        elif isinstance(effect, effects.WriteHistory):
            self._history = effect.events
        elif isinstance(effect, effects.Conclude):
            self._conclude(self._producer, effect)
        elif isinstance(effect, effects.Abandon):
            self._history = ()
            if self._open:
                self._end(effect.token, self._producer.abort_transaction)
            else:
                self._feed(inputs.Ended(effect.token))

    def _init(self, token: int, closings: int) -> None:
        """Make a new producer: Kafka fences the one before it, and ends its transaction."""
        self._give_up()
        if closings != self._closings:
            return
        self._disconnected = False
        name = transactional_id(self._cluster)
        names = [*self._names.values()]
        end_open_transaction(self._bootstrap_servers, name, TRANSACTION_TIMEOUT_MS, names)
        pause_ms = self._patience.begin()
        producer = Producer(
            plain_settings(
                self._bootstrap_servers,
                **{
                    "transactional.id": name,
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "message.timeout.ms": EVENT_TIMEOUT_MS,
                    "retry.backoff.ms": pause_ms,
                    "retry.backoff.max.ms": pause_ms,
                    "error_cb": self._on_error,
                },
            )
        )
        connect(producer, self._names[COMMIT], OPEN_TIMEOUT_S)
        if closings != self._closings:
            return
        producer.init_transactions(OPEN_TIMEOUT_S)
        self._producer = producer
        self._feed(inputs.ProducerOpened(token))

    def _give_up(self) -> None:
        if self._producer is not None:
            self._producer.purge()
        self._producer = None
        self._open = False
        # Else the next claim would write the history of a transaction that never was.
        self._history = ()

    def _on_error(self, error: KafkaError) -> None:
        if not never_connected(error):
            self._disconnected = True

    def _begin(self, producer: Producer) -> None:
        if not self._open:
            time.sleep(self._pacing.wait_s(time.monotonic()))
            producer.begin_transaction()
            self._open = True

    def _write_events(self, producer: Producer, effect: effects.WriteEvents) -> None:
        self._begin(producer)
        self._history = ()
        began = time.monotonic()
        offsets = [UNKNOWN] * len(effect.events)
        failures: list[str] = []

        def delivered_as(number: int) -> Callable[[KafkaError | None, Any], None]:
            def delivered(error: KafkaError | None, message: Any) -> None:
                if error is not None:
                    failures.append(error.str())
                else:
                    offsets[number] = offset_of(message)

            return delivered

        topic = self._names[STATECONTEXT]
        for number, event in enumerate(effect.events):
            value, headers = statecontext_record(event)
            producer.produce(
                topic,
                value,
                event.mutation.key.encode(),
                partition=0,
                headers=headers,
                on_delivery=delivered_as(number),
            )
        left = producer.flush(FLUSH_TIMEOUT_S)
        self._pacing.began(time.monotonic() - began)
        if failures or left or UNKNOWN in offsets:
            # A report without an offset is as bad as none: the CAS would be a guess.
            reason = failures[0] if failures else "no offset was reported"
            raise KafkaException(KafkaError(KafkaError._FAIL, reason))
        self._feed(inputs.Written(effect.token, tuple(offsets)))

    def _conclude(self, producer: Producer, effect: effects.Conclude) -> None:
        """Write the rest and commit. All partitions that are new to the transaction come at once:
        each registration is a round trip, and librdkafka makes one for all that wait."""
        self._begin(producer)
        history, self._history = self._history, ()
        for event in history:
            key = event.mutation.key.encode()
            producer.produce(self._names[HISTORY], codec.encode(event), key, partition=0)
        for record in effect.records:
            producer.produce(self._names[COMMIT], codec.encode(record), partition=0)
        for reply in effect.replies:
            key = reply.request.encode()
            producer.produce(self._names[DDL_REPLIES], codec.encode(reply), key)
        for letter in (bounded(full(one, self._cluster)) for one in effect.dead_letters):
            topic = self._names[DEAD_LETTER]
            producer.produce(topic, codec.encode(letter), dead_letter_key(letter), partition=0)
        # What is left for the commit is its one request: only so does its time say anything.
        producer.flush(FLUSH_TIMEOUT_S)
        self._end(effect.token, producer.commit_transaction)

    def _end(self, token: int, end: Callable[[float], None]) -> None:
        """Commit or abort, and give the producer up where the request may have been sent twice.

        The client repeats EndTxn in silence. A copy that arrives late ends whatever this producer
        has open by then; only a new initialisation fences it.
        """
        self._disconnected = False
        began_s = time.monotonic()
        try:
            end(END_TIMEOUT_S)
        finally:
            took_s = time.monotonic() - began_s
            doubtful = self._patience.ended(took_s)
        self._pacing.committed(began_s + took_s)
        self._open = False
        if self._disconnected:
            self._fail(token, "the broker was disconnected during the end of a transaction")
        elif doubtful:
            self._fail(token, f"the end of a transaction took {took_s:.3f} s: it may arrive again")
        else:
            self._feed(inputs.Ended(token))


def statecontext_record(event: Event) -> tuple[bytes | None, dict[str, Any] | None]:
    """Return value and headers of an event on `statecontext`; a drop is a tombstone."""
    encoded = codec.encode(event)
    if event.mutation.value is None:
        return None, {EVENT_HEADER: encoded}
    return encoded, None


def _text(error: BaseException) -> str:
    cause = error.args[0] if error.args else error
    if isinstance(cause, KafkaError):
        return f"{cause.name()}: {cause.str()}"
    return f"{type(error).__name__}: {error}"
