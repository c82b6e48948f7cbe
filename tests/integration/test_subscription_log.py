"""Positions and deliveries on a real broker: a delivery that fails holds up nobody else."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.core.model.subscription_records import (
    NOBODY,
    PositionRead,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionForgotten,
)
from coordinator.core.model.types import Cas
from coordinator.embedded.broker import Broker
from coordinator.kafka.end_txn import Patience
from coordinator.kafka.subscription_log import (
    Delivered,
    Delivery,
    DeliveryError,
    PositionReader,
    PositionWriter,
)
from coordinator.kafka.topics import SUBSCRIPTION_POSITIONS, topic_name
from tests.integration.cluster import wait_until

pytestmark = pytest.mark.integration

CHANGE = Delivered("config/a", b"{}", 9)
READ_S = 60.0
TRIES = 5
"""A refusal may come before or after the position would be on its way."""


class Log:
    """What a reader has read of `subscription-positions`."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self.records: list[PositionRead] = []

    def take(self, found: list[PositionRead]) -> None:
        with self._came:
            self.records += found
            self._came.notify_all()

    def wait_for(self, record: PositionRead, timeout_s: float = READ_S) -> bool:
        """Tell whether a record was read in time."""
        with self._came:
            return self._came.wait_for(lambda: record in self.records, timeout_s)


class Place(NamedTuple):
    """A cluster that has only the topic of positions, and a name for its subscribers' topics."""

    servers: str
    cluster: str

    def make(self, name: str, **config: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(20)
        # The controller has made it; the broker may be a moment behind.
        wait_until(lambda: name in admin.list_topics(timeout=10).topics, f"{name} is there")
        return name


@pytest.fixture
def place(broker: Broker) -> Place:
    made = Place(broker.bootstrap_servers, f"positions-{uuid.uuid4().hex[:8]}")
    made.make(topic_name(made.cluster, SUBSCRIPTION_POSITIONS))
    return made


@pytest.fixture
def log(place: Place) -> Iterator[Log]:
    made = Log()
    reader = PositionReader(
        place.servers, place.cluster, made.take, lambda *_: None, lambda reason: None
    )
    yield made
    reader.stop()


def mark(number: int) -> SubscriberSeen:
    return SubscriberSeen(NOBODY, 0, number)


def test_positions_are_read_after_a_delivery_could_not_write_its_changes(
    place: Place, log: Log
) -> None:
    """Its transaction is open until the next try: no position of others may come after it."""
    out = place.make(f"out-{place.cluster}", **{"max.message.bytes": "100"})
    large = Delivered("config/a", b"x" * 1_000, 9)
    position = SubscriptionAcknowledged(7, Cas(9), 0)
    with closing(PositionWriter(place.servers, place.cluster)) as writer:
        for number in range(1, TRIES + 1):
            with closing(Delivery(place.servers, place.cluster, 7, out, Patience())) as delivery:
                with pytest.raises(DeliveryError, match=out):
                    delivery.write([large], position)
                writer.write([mark(number)])
                assert log.wait_for(mark(number)), f"after try {number}"
    assert position not in log.records


@pytest.mark.parametrize("with_callback", [False, True], ids=["alone", "with a callback"])
def test_a_delivery_that_another_node_has_taken_over_fails(
    place: Place, log: Log, monkeypatch: pytest.MonkeyPatch, with_callback: bool
) -> None:
    """Python makes a SystemError of what the client says, if a callback is due in the same call."""
    out = place.make(f"out-{place.cluster}")
    flush = Delivery._flush

    def flush_with_callback(delivery: Delivery, *given: Any) -> None:
        try:
            flush(delivery, *given)
        except DeliveryError as error:
            fenced = KafkaException(KafkaError(KafkaError._FENCED, str(error)))
            raise SystemError("returned a result with an exception set") from fenced

    if with_callback:
        monkeypatch.setattr(Delivery, "_flush", flush_with_callback)
    position = SubscriptionAcknowledged(7, Cas(9), 0)
    with (
        closing(Delivery(place.servers, place.cluster, 7, out, Patience())) as first,
        closing(Delivery(place.servers, place.cluster, 7, out, Patience())) as second,
    ):
        with pytest.raises(DeliveryError, match=out):
            first.write([CHANGE], SubscriptionAcknowledged(7, Cas(8), 0))
        monkeypatch.undo()
        second.write([CHANGE], position)
    assert log.wait_for(position)
    assert SubscriptionAcknowledged(7, Cas(8), 0) not in log.records


def test_what_was_delivered_and_the_position_after_it_are_there_together(
    place: Place, log: Log
) -> None:
    out = place.make(f"out-{place.cluster}")
    position = SubscriptionAcknowledged(7, Cas(9), 0)
    with closing(Delivery(place.servers, place.cluster, 7, out, Patience())) as delivery:
        delivery.write([CHANGE], position)
    assert log.wait_for(position)


def test_what_one_node_forgets_every_node_is_told_of(place: Place, log: Log) -> None:
    with closing(PositionWriter(place.servers, place.cluster)) as writer:
        writer.write([SubscriptionAcknowledged(7, Cas(9), 0), SubscriberSeen(8, 0, 0)])
        writer.forget([7])
    assert log.wait_for(SubscriptionForgotten(7))
    assert SubscriptionForgotten(8) not in log.records


def test_a_record_without_value_that_belongs_to_nobody_is_put_aside(place: Place) -> None:
    topic = topic_name(place.cluster, SUBSCRIPTION_POSITIONS)
    producer = Producer(
        {"bootstrap.servers": place.servers, "log_level": 2, "enable.idempotence": True}
    )
    for key in ("x", "", "7"):
        producer.produce(topic, None, key)
    producer.flush(10)
    log, put_aside = Log(), []
    reader = PositionReader(
        place.servers,
        place.cluster,
        log.take,
        lambda message, reason: put_aside.append(message.key()),
        lambda reason: None,
    )
    assert log.wait_for(SubscriptionForgotten(7))
    reader.stop()
    assert put_aside == [b"x", b""]
