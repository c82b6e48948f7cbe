"""Readers on a real broker: silence is not the end of a log, and no reader dies unheard."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator import codec
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka import log_reader, readers
from tests.integration.cluster import wait_until
from tests.integration.kafka_proxy import FORGETFUL, KafkaProxy, as_without_brokers


def write_transactions(servers: str, topic: str, aborted_last: bool = False) -> None:
    """Write two transactions of two events each; the last record of each is a marker."""
    producer = Producer(
        {"bootstrap.servers": servers, "transactional.id": topic, "linger.ms": 0, "log_level": 2}
    )
    producer.init_transactions(20)
    entity = Setting("k", "1")
    mutation = Mutation("SettingPut", "setting/k", codec.encode(entity), entity, "", "", 0)
    for number in range(2):
        producer.begin_transaction()
        for index in range(2):
            event = Event(mutation, TxnId(1, number), index, 2, 0)
            producer.produce(topic, codec.encode(event), partition=0)
        if aborted_last and number == 1:
            producer.flush(10)
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def read(servers: str, topic: str, above: int = 0, at_least: int = 0) -> list[int]:
    batches = log_reader.read_events(
        servers,
        topic,
        cas_base=1,
        above_cas=above,
        at_least_cas=at_least,
        bad=lambda message, reason: None,
    )
    return [event.cas for batch in batches for event in batch]


def make_topic(servers: str) -> str:
    name = f"read-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    return name


@pytest.fixture
def topic(broker: Broker) -> str:
    return make_topic(broker.bootstrap_servers)


def test_events_are_read_to_the_end_although_the_log_ends_with_a_marker(
    broker: Broker, topic: str
) -> None:
    servers = broker.bootstrap_servers
    write_transactions(servers, topic)
    assert read(servers, topic) == [1, 2, 4, 5]
    assert read(servers, topic, above=2, at_least=5) == [4, 5]
    assert read(servers, topic, above=5) == []


def test_aborted_events_at_the_end_are_stepped_over(broker: Broker, topic: str) -> None:
    write_transactions(broker.bootstrap_servers, topic, aborted_last=True)
    assert read(broker.bootstrap_servers, topic) == [1, 2]


class Halting:
    """A consumer to which the broker says nothing at first, as when it is slow to answer."""

    def __init__(self, real: Consumer, answers: list[list[Any]]) -> None:
        self._real = real
        self._answers = answers

    def poll(self, timeout_s: float) -> Any:
        if not self._answers:
            return self._real.poll(timeout_s)
        answer = self._answers.pop(0)
        return answer[0] if answer else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Disconnected:
    """What the client hands out in place of a message while it connects again."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._TRANSPORT)


@pytest.mark.parametrize("answer", [[], [Disconnected()]])
def test_silence_is_not_the_end_of_the_log(
    broker: Broker, topic: str, answer: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_transactions(broker.bootstrap_servers, topic)
    real = readers.consumer
    monkeypatch.setattr(readers, "consumer", lambda *a, **k: Halting(real(*a, **k), [answer] * 3))
    assert read(broker.bootstrap_servers, topic) == [1, 2, 4, 5]


# -- tails ---------------------------------------------------------------------------------------


def produce(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 2, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0


class Stumble(Exception):
    """What nobody foresaw."""


@pytest.mark.parametrize("error", [Stumble("odd"), IndexError(), RecursionError("deep")])
def test_whatever_ends_a_reader_is_told(broker: Broker, topic: str, error: Exception) -> None:
    told: list[str] = []

    def stumble(messages: list[Message]) -> None:
        raise error

    reader = readers.TailReader(
        broker.bootstrap_servers, "tail", {(topic, 0): 0}, stumble, told.append
    )
    produce(broker.bootstrap_servers, topic, b"x")
    wait_until(lambda: reader.has_died, "the reader has ended")
    assert told == [f"{type(error).__name__}: {error}"]
    reader.stop()


def test_a_reader_whose_failure_cannot_be_told_is_seen_to_have_died(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def stumble(anything: object) -> None:
        raise Stumble

    reader = readers.TailReader(broker.bootstrap_servers, "tail", {(topic, 0): 0}, stumble, stumble)
    assert not reader.has_died
    produce(broker.bootstrap_servers, topic, b"x")
    wait_until(lambda: reader.has_died, "the reader has ended")


def test_a_reader_that_is_stopped_has_not_died_and_has_nothing_to_tell(
    broker: Broker, topic: str
) -> None:
    told: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def hand_over(messages: list[Message]) -> None:
        begun.set()
        go_on.wait(20)
        raise Stumble

    reader = readers.TailReader(
        broker.bootstrap_servers, "tail", {(topic, 0): 0}, hand_over, told.append
    )
    produce(broker.bootstrap_servers, topic, b"x")
    assert begun.wait(20)
    reader.stop(timeout_s=0)
    go_on.set()
    reader.stop()
    assert not reader._thread.is_alive()
    assert not reader.has_died
    assert told == []


def test_a_reader_whose_client_was_told_of_no_broker_goes_on_where_it_was(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So says a broker that is about to stop. The client forgets all addresses without a word."""
    monkeypatch.setattr(readers, "SILENCE_S", 1.0)
    read: list[bytes] = []
    failures: list[str] = []

    def hand_over(messages: list[Message]) -> None:
        read.extend(bytes(message.value() or b"") for message in messages)

    servers = proxy.bootstrap_servers
    name = make_topic(servers)
    produce(servers, name, b"1")
    reader = readers.TailReader(
        servers, "tail", {(name, 0): 0}, hand_over, failures.append, **FORGETFUL
    )
    wait_until(lambda: read == [b"1"], "the first is read")
    told: list[bytes] = []
    proxy.alter = as_without_brokers(proxy, told)
    wait_until(lambda: len(told) > 0, "it was told")
    proxy.reset()
    produce(servers, name, b"2", b"3")
    wait_until(lambda: len(read) >= 3, "the others are read")
    produce(servers, name, b"4")
    wait_until(lambda: len(read) >= 4, "it goes on")
    reader.stop()
    assert read == [b"1", b"2", b"3", b"4"]
    assert failures == []
