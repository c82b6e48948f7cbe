"""What is made of the client's complaints while a broker is away."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator import codec
from coordinator.core.consensus import effects, inputs
from coordinator.core.model.records import DeadLetter, HoldingsRequested, ReadBarrier
from coordinator.kafka import end_txn, producers
from coordinator.kafka.errors import never_connected
from coordinator.kafka.producers import DeadLetters, PlainProducer
from coordinator.kafka.settings import plain_settings
from tests.support.kafka_errors import while_a_callback_is_due

TRANSPORT = KafkaError._TRANSPORT


@pytest.mark.parametrize(
    ("code", "text", "harmless"),
    [
        (
            TRANSPORT,
            "k:1/2: Connect to k:1 failed: refused (after 0ms in state CONNECT)",
            True,
        ),
        (TRANSPORT, "k:1/2: Disconnected (after 5ms in state UP)", False),
        (TRANSPORT, "k:1/2: Receive failed: Connection reset by peer", False),
        (TRANSPORT, "", False),
        (KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down (in state CONNECT)", False),
        (KafkaError._TIMED_OUT, "1 request(s) timed out", False),
    ],
)
def test_only_a_connection_that_never_was_leaves_nothing_in_doubt(
    code: int, text: str, harmless: bool
) -> None:
    assert never_connected(KafkaError(code, text)) is harmless


class Client:
    """A client whose broker is away: every record fails. Like the real one it cannot bear a poll
    inside of a callback."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.due: list[Callable[[KafkaError, Any], None]] = []
        self.polling = False

    def produce(self, *_: Any, on_delivery: Callable[[KafkaError, Any], None], **__: Any) -> None:
        self.due.append(on_delivery)

    def poll(self, timeout_s: float) -> None:
        assert not self.polling, "the client aborts the process here"
        self.polling = True
        due, self.due = self.due, []
        for delivered in due:
            delivered(KafkaError(KafkaError._MSG_TIMED_OUT), None)
        self.polling = False


def test_a_failed_append_may_be_sent_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "Producer", Client)
    seen: list[int] = []

    def feed(event: inputs.Input) -> None:
        assert isinstance(event, inputs.AppendFailed)
        seen.append(event.token)
        if event.token < 3:
            plain.append(effects.Append(event.token + 2, ReadBarrier(1, 1)))

    plain = PlainProducer("", "c", feed)
    plain.append(effects.Append(1, ReadBarrier(1, 1)))
    plain.append(effects.Append(2, ReadBarrier(1, 1)))
    plain.serve()
    assert sorted(seen) == [1, 2, 3, 4]


class Delivered:
    """A record, where Kafka did not say at which offset it is."""

    def offset(self) -> None:
        """Return none."""


class Away(Client):
    """A client whose broker is away until it `is_back`, with room for `room` records."""

    room = 3
    code = KafkaError._MSG_TIMED_OUT

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.is_back = False
        self.arrived: list[bytes] = []
        self.waiting: list[tuple[bytes, Callable[[KafkaError | None, Any], None]]] = []

    def produce(self, topic: str, value: bytes, **more: Any) -> None:
        if len(self.waiting) >= self.room:
            raise BufferError
        self.waiting.append((value, more["on_delivery"]))

    def poll(self, timeout_s: float) -> None:
        waiting, self.waiting = self.waiting, []
        for value, delivered in waiting:
            if self.is_back:
                self.arrived.append(value)
            delivered(None if self.is_back else KafkaError(self.code), Delivered())

    def flush(self, timeout_s: float) -> None:
        """Nothing comes back in this time."""

    def purge(self) -> None:
        self.code = KafkaError._PURGE_QUEUE


class Broken(Away):
    """A client that has failed for good, and says so whenever it is to let go of something."""

    def flush(self, timeout_s: float) -> None:
        raise while_a_callback_is_due(KafkaError._FATAL)

    def purge(self) -> None:
        super().purge()
        raise KafkaException(KafkaError(KafkaError._FATAL))


def test_a_client_that_has_failed_for_good_says_so_in_kafkas_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An indexer makes another producer then; of an error of Python's it would end."""
    monkeypatch.setattr(producers, "Producer", Broken)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    monkeypatch.setattr(client, "poll", client.flush)
    for call in (plain.serve, partial(plain.flush, 1.0)):
        with pytest.raises(KafkaException):
            call()


def send_dead_letters(plain: PlainProducer, numbers: range) -> list[bytes]:
    """Send a dead letter for each of these offsets; return what is to be on the topic then."""
    dead_letters = [DeadLetter("c.hw", 0, number, "why", b"", 5) for number in numbers]
    for letter in dead_letters:
        plain.send_dead_letter(effects.SendDeadLetter(replace(letter, topic="hw")))
    return [codec.encode(letter) for letter in dead_letters]


def test_a_dead_letter_waits_for_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "Producer", Away)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    wanted = send_dead_letters(plain, range(8))
    for _ in range(3):
        plain.serve()
    assert not client.arrived
    client.is_back = True
    for _ in range(8):
        plain.serve()
    assert sorted(client.arrived) == sorted(wanted), "each of them, and once"


class Refusing(Away):
    """A client that refuses records at once with `refusal`, while there is one."""

    refusal: int | None = KafkaError.UNKNOWN_TOPIC_OR_PART

    def produce(self, topic: str, value: bytes, **more: Any) -> None:
        if self.refusal is not None:
            raise KafkaException(KafkaError(self.refusal))
        super().produce(topic, value, **more)


def test_a_broker_that_does_not_know_its_topics_yet_stops_no_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Right after its start. An append counts as lost; a dead letter waits."""
    monkeypatch.setattr(producers, "Producer", Refusing)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    plain.append(effects.Append(1, ReadBarrier(1, 1)))
    wanted = send_dead_letters(plain, range(3))
    client.refusal, client.is_back = None, True
    for _ in range(3):
        plain.serve()
    assert sorted(client.arrived) == sorted(wanted)


def test_a_letter_whose_topic_has_gone_from_the_broker_meanwhile_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Away, "code", KafkaError._UNKNOWN_TOPIC)
    monkeypatch.setattr(producers, "Producer", Away)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    wanted = send_dead_letters(plain, range(3))
    plain.serve()
    client.is_back = True
    for _ in range(3):
        plain.serve()
    assert sorted(client.arrived) == sorted(wanted)


def test_what_else_the_client_refuses_is_raised_and_loses_no_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Refusing, "refusal", KafkaError._FATAL)
    monkeypatch.setattr(producers, "Producer", Refusing)
    waiting = DeadLetters("c")
    plain = PlainProducer("", "c", lambda _: None, waiting)
    with pytest.raises(KafkaException):
        plain.append(effects.Append(1, ReadBarrier(1, 1)))
    with pytest.raises(KafkaException):
        send_dead_letters(plain, range(1))
    assert len(waiting) == 1


def test_a_producer_tells_since_when_something_waits_and_nothing_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [10.0]
    monkeypatch.setattr(producers.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(producers, "Producer", Away)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    assert plain.waiting_since_s is None
    for now_s[0] in (11.0, 12.0):
        plain.append(effects.Append(1, ReadBarrier(1, 1)))
        assert plain.waiting_since_s == 11.0
    client.is_back = True
    plain.append(effects.Append(1, ReadBarrier(1, 1)))
    assert plain.waiting_since_s is None
    client.is_back = False
    now_s[0] = 20.0
    plain.beat(effects.Beat(HoldingsRequested(1, 1, 1, 1, False)))
    assert plain.waiting_since_s == 20.0


def test_letters_that_no_room_is_for_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        producers, "DEAD_LETTERS_BYTES_MAX", 20 * producers.DEAD_LETTER_OVERHEAD_BYTES
    )
    monkeypatch.setattr(producers, "Producer", Away)
    plain = PlainProducer("", "c", lambda _: None)
    client: Any = plain._producer
    send_dead_letters(plain, range(50))
    client.is_back = True
    for _ in range(50):
        plain.serve()
    assert len(client.arrived) + len(caplog.records) == 50
    assert 10 < len(client.arrived) <= 20 + client.room


@pytest.mark.parametrize("lost", [Away, Broken])
def test_letters_outlive_the_producer_that_could_not_send_them(
    monkeypatch: pytest.MonkeyPatch, lost: type[Away]
) -> None:
    monkeypatch.setattr(producers, "Producer", lost)
    waiting = DeadLetters("c")
    first = PlainProducer("", "c", lambda _: None, waiting)
    wanted = send_dead_letters(first, range(8))
    first.close(0.1)
    assert len(waiting) == 8
    monkeypatch.setattr(producers, "Producer", Away)
    second = PlainProducer("", "c", lambda _: None, waiting)
    client: Any = second._producer
    client.is_back = True
    for _ in range(8):
        second.serve()
    assert sorted(client.arrived) == sorted(wanted)


def test_several_threads_add_and_send_and_each_letter_goes_once() -> None:
    class Sink:
        def __init__(self) -> None:
            self.got: list[bytes] = []

        def produce(self, topic: str, value: bytes, **_: Any) -> None:
            self.got.append(value)

    waiting, sink, number = DeadLetters("c"), Sink(), 2_000
    client: Any = sink
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(first: int) -> None:
        for offset in range(first, first + number):
            waiting.add(DeadLetter("hw", 0, offset, "why", b"", 5))
            waiting.send(client)

    try:
        threads = [threading.Thread(target=work, args=(n * number,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    waiting.send(client)
    assert len(sink.got) == len(set(sink.got)) == 3 * number


def test_a_letter_that_kafka_refuses_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producers, "Producer", Away)
    monkeypatch.setattr(Away, "code", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    plain = PlainProducer("", "c", lambda _: None)
    send_dead_letters(plain, range(7, 8))
    plain.serve()
    assert "the dead letter for c.hw-0 at 7 is lost" in caplog.text
    client: Any = plain._producer
    client.is_back = True
    plain.serve()
    assert not client.arrived


def test_what_durability_rests_on_is_set() -> None:
    settings = plain_settings("k:1")
    assert settings["acks"] == "all"
    assert settings["socket.timeout.ms"] > producers.END_TIMEOUT_S * 1_000, (
        "a request that times out in the client is repeated by it"
    )
    assert end_txn.REPEATED_AFTER_S < producers.END_TIMEOUT_S


@pytest.mark.parametrize(
    ("took_s", "doubtful"), [(0.0, False), (0.399, False), (0.4, True), (2.0, True)]
)
def test_an_end_that_took_as_long_as_the_shortest_pause_may_have_been_repeated(
    took_s: float, doubtful: bool
) -> None:
    assert end_txn.may_be_repeated(took_s) is doubtful


def test_patience_with_ends_doubles_and_falls_again() -> None:
    patience = end_txn.Patience()
    assert patience.begin() == end_txn.RETRY_BACKOFF_MS
    for expected in (1_000, 2_000, 2_000):
        took_s = patience.pause_ms / 1000
        assert patience.ended(took_s), "as long as the pause"
        assert patience.begin() == expected
    assert not patience.ended(1.5)
    for _ in range(end_txn.QUICK_ENDS):
        assert not patience.ended(0.01)
    assert patience.pause_ms == 2_000, "of the producer that is"
    assert patience.begin() == end_txn.RETRY_BACKOFF_MS
    assert end_txn.RETRY_BACKOFF_MS_MAX * (1 - end_txn.JITTER) / 1_000 < producers.END_TIMEOUT_S


def test_a_dead_letter_fits_on_its_topic_however_long_the_record_was() -> None:
    letter = DeadLetter("c.stability", 0, 3, "x" * 5_000, b"y" * (4 * 1024 * 1024), 5)
    kept = producers.bounded(letter)
    assert (kept.topic, kept.partition, kept.offset) == ("c.stability", 0, 3)
    assert kept.value == b"y" * producers.DEAD_LETTER_BYTES_MAX
    assert kept.reason == "x" * producers.DEAD_LETTER_REASON_LENGTH_MAX
    short = DeadLetter("c.stability", 0, 3, "why", b"y", 5)
    assert producers.bounded(short) == short
