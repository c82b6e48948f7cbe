"""What of a subscription's log and deliveries counts as written, and what its keys say."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from coordinator import codec
from coordinator.core.model.subscription_records import (
    PositionRead,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionForgotten,
)
from coordinator.core.model.types import Cas
from coordinator.kafka import subscription_log
from coordinator.kafka.end_txn import Patience
from coordinator.kafka.subscription_log import (
    FORGOTTEN_MAX,
    Delivered,
    Delivery,
    DeliveryError,
    NotWrittenError,
    PositionReader,
    PositionWriter,
)

POSITION = SubscriptionAcknowledged(7, Cas(12), at_ms=0)
CHANGES = [Delivered("config/a", b"{}", 11), Delivered("config/b", b"{}", 12)]
LOST = KafkaError(KafkaError._TRANSPORT, "k:1/2: Disconnected (after 5ms in state UP)")


class Client:
    """A client in memory: it says of each record what it is told to, when it is flushed."""

    def __init__(self, settings: dict[str, Any] | None = None, **more: Any) -> None:
        self.sent: list[tuple[str, bytes | None, Any]] = []
        self.due: list[Callable[[KafkaError | None, Any], None]] = []
        self.stuck = 0
        self.error: KafkaError | None = None
        self.on_error: Callable[[KafkaError], None] = more.get("error_cb", lambda _: None)
        self.at_commit: Callable[[], None] = lambda: None
        self.commits = 0

    def produce(self, topic: str, value: bytes | None, key: Any, **more: Any) -> None:
        self.sent.append((topic, value, key))
        self.due.append(more["on_delivery"])

    def flush(self, timeout_s: float) -> int:
        due, self.due = self.due, []
        for delivered in due[self.stuck :]:
            delivered(self.error, None)
        return self.stuck

    def begin_transaction(self) -> None:
        self.sent.clear()

    def commit_transaction(self, timeout_s: float) -> None:
        self.at_commit()
        self.commits += 1

    def list_topics(self, topic: str, timeout: float) -> Any:
        found = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: found})


# -- positions -----------------------------------------------------------------------------------


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> tuple[PositionWriter, Client]:
    client = Client()
    monkeypatch.setattr(subscription_log, "Producer", lambda _: client)
    return PositionWriter("", "c"), client


def test_what_is_forgotten_goes_with_every_key_that_it_was_written_under(
    writer: tuple[PositionWriter, Client],
) -> None:
    writing, client = writer
    writing.write([POSITION, SubscriberSeen(7, 0, 0)])
    written = {key for _, _, key in client.sent}
    client.sent.clear()
    writing.forget([7])
    assert {key for _, value, key in client.sent if value is None} == written


def test_any_number_is_forgotten_in_portions_that_the_queue_has_room_for(
    writer: tuple[PositionWriter, Client],
) -> None:
    writing, client = writer
    longest = 0
    flush = client.flush

    def flushed(timeout_s: float) -> int:
        nonlocal longest
        longest = max(longest, len(client.due))
        return flush(timeout_s)

    client.flush = flushed  # type: ignore[method-assign]
    numbers = range(5 * FORGOTTEN_MAX // 2)
    writing.forget([*numbers])
    assert longest == 2 * FORGOTTEN_MAX
    assert {int(key) for _, _, key in client.sent if key.isdecimal()} == set(numbers)


def test_a_record_that_kafka_has_not_answered_is_not_written(
    writer: tuple[PositionWriter, Client],
) -> None:
    writing, client = writer
    client.stuck = 1
    with pytest.raises(NotWrittenError, match="no broker answers"):
        writing.write([POSITION])


def test_a_record_that_kafka_has_refused_is_not_written(
    writer: tuple[PositionWriter, Client],
) -> None:
    writing, client = writer
    client.error = KafkaError(KafkaError._MSG_TIMED_OUT, "too late")
    with pytest.raises(NotWrittenError, match="too late"):
        writing.write([POSITION])


class Read:
    """A record as the client hands it over."""

    def __init__(self, key: bytes | str, value: bytes | None) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | str:
        return self._key

    def value(self) -> bytes | None:
        return self._value


def test_a_key_without_value_forgets_its_subscription_or_is_put_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription_log, "TailReader", lambda *_: None)
    taken: list[PositionRead] = []
    dead_letters: list[bytes | str | None] = []
    reader = PositionReader(
        "", "c", taken.extend, lambda message, _: dead_letters.append(message.key()), lambda _: None
    )
    records: list[Any] = [
        Read(b"7", codec.encode(POSITION)),
        Read(b"7", None),
        Read(b"8/seen", None),
        Read("9", None),
        Read(b"x/seen", None),
        Read(b"", None),
        Read(b"9" * 5_000, None),
        Read(b"7", b"no"),
    ]
    reader._read(records)
    assert taken == [POSITION, *map(SubscriptionForgotten, (7, 8, 9))]
    assert dead_letters == [b"x/seen", b"", b"9" * 5_000, b"7"]


# -- deliveries ----------------------------------------------------------------------------------


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> tuple[Delivery, Client]:
    clients: list[Client] = []

    def opened(*_: Any, **settings: Any) -> Client:
        clients.append(Client(**settings))
        return clients[-1]

    monkeypatch.setattr(subscription_log, "open_transactional", opened)
    return Delivery("", "c", 7, "out", Patience()), clients[0]


def test_what_is_delivered_is_there_before_its_position(delivery: tuple[Delivery, Client]) -> None:
    delivering, client = delivery
    delivering.write(CHANGES, POSITION)
    assert [topic for topic, _, _ in client.sent] == ["out", "out", "c.subscription-positions"]
    assert client.commits == 1


@pytest.mark.parametrize(
    ("stuck", "error"),
    [(1, None), (0, KafkaError(KafkaError._MSG_TIMED_OUT, "too late"))],
    ids=["unanswered", "refused"],
)
def test_a_position_is_not_written_after_changes_that_are_not_there(
    delivery: tuple[Delivery, Client], stuck: int, error: KafkaError | None
) -> None:
    delivering, client = delivery
    client.stuck, client.error = stuck, error
    with pytest.raises(DeliveryError):
        delivering.write(CHANGES, POSITION)
    assert [topic for topic, _, _ in client.sent] == ["out", "out"]
    assert client.commits == 0


def test_an_end_during_which_the_connection_was_lost_is_in_doubt(
    delivery: tuple[Delivery, Client],
) -> None:
    """The client may have sent it twice: the second one would end the next transaction."""
    delivering, client = delivery
    client.on_error(LOST)
    delivering.write(CHANGES, POSITION)
    client.at_commit = lambda: client.on_error(LOST)
    with pytest.raises(DeliveryError, match="in doubt"):
        delivering.write(CHANGES, POSITION)


def test_a_connection_that_never_was_leaves_no_doubt(delivery: tuple[Delivery, Client]) -> None:
    delivering, client = delivery
    refused = "k:1/2: Connect to k:1 failed: refused (after 0ms in state CONNECT)"
    client.at_commit = lambda: client.on_error(KafkaError(KafkaError._TRANSPORT, refused))
    delivering.write(CHANGES, POSITION)
    assert client.commits == 1
