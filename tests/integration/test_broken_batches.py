"""A batch that Kafka has taken, and that its client cannot unpack, on a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import available, consumer
from tests.support.raw_batches import batch, produce, zstd_bomb

pytestmark = pytest.mark.integration

WAIT_S = 30.0


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"broken-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
    return name


@pytest.fixture
def reader(broker: Broker, topic: str) -> Iterator[Consumer]:
    with closing(
        consumer(broker.bootstrap_servers, "broken", **{"enable.partition.eof": True})
    ) as c:
        c.assign([TopicPartition(topic, 0, 0)])
        yield c


def write(servers: str, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(WAIT_S) == 0


def read(reader: Consumer, end: int) -> list[tuple[int, bytes]]:
    """Return all that is there, once it has been read to this end."""
    found: list[tuple[int, bytes]] = []
    while True:
        for message in available(reader):
            error = message.error()
            if error is None:
                found.append((message.offset(), message.value()))
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                return found


@pytest.mark.parametrize("count", [1, 3, 40])
def test_it_is_stepped_over_and_told_of(
    broker: Broker, topic: str, reader: Consumer, count: int
) -> None:
    servers = broker.bootstrap_servers
    write(servers, topic, b"before")
    assert produce(servers, topic, 0, batch(zstd_bomb(count), count)) == 1
    write(servers, topic, b"behind")
    before, broken, behind = read(reader, 2 + count)
    assert (before, behind) == ((0, b"before"), (1 + count, b"behind"))
    offset, text = broken
    assert offset == count, "the last one of the batch: who goes on behind it is behind all of it"
    assert text.startswith(f"the batch at the offsets 1 to {count} cannot be unpacked".encode())


def test_so_it_is_where_nothing_follows(broker: Broker, topic: str, reader: Consumer) -> None:
    produce(broker.bootstrap_servers, topic, 0, batch(zstd_bomb(2), 2))
    assert [offset for offset, _ in read(reader, 2)] == [1]
    write(broker.bootstrap_servers, topic, b"later")
    assert read(reader, 3) == [(2, b"later")]
