"""A consumer that stands still without a word is noticed; one that has nothing to read is not."""

from __future__ import annotations

import time
import uuid

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector

pytestmark = pytest.mark.integration

SILENCE_S = 0.6
"""Twice as long a reader may wait for a processor."""
PARTITIONS = 2


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"stall-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(20)
    return name


def write(broker: Broker, topic: str, partition: int, *, abort: bool = False) -> None:
    """Write one record in a transaction, which leaves a marker behind."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=partition)
    if abort:
        producer.flush(10)
        producer.abort_transaction(20)
    else:
        producer.commit_transaction(20)


def begin(broker: Broker, topic: str) -> tuple[Consumer, StallDetector]:
    reader = consumer(broker.bootstrap_servers, topic, **{"enable.partition.eof": True})
    places = [TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)]
    reader.assign(places)
    stall_detector = StallDetector(reader, SILENCE_S)
    stall_detector.assigned(places)
    return reader, stall_detector


def read(reader: Consumer, stall_detector: StallDetector, for_s: float) -> int:
    """Read for a while as processes do; return how many records came. Raises KafkaException."""
    found, end_s = 0, time.monotonic() + for_s
    while time.monotonic() < end_s:
        message = reader.poll(0.05)
        if message is not None:
            found += message.error() is None
            stall_detector.note(message)
        stall_detector.check()
    return found


def read_beside_writes(
    reader: Consumer, stall_detector: StallDetector, broker: Broker, topic: str
) -> None:
    for _ in range(20):
        write(broker, topic, 1)
        read(reader, stall_detector, SILENCE_S)


def test_silence_where_nothing_is_to_be_read_is_no_fault(broker: Broker, topic: str) -> None:
    write(broker, topic, 0)
    write(broker, topic, 0, abort=True)
    reader, stall_detector = begin(broker, topic)
    assert read(reader, stall_detector, 6 * SILENCE_S) == 1
    write(broker, topic, 0, abort=True)
    write(broker, topic, 1, abort=True)
    assert read(reader, stall_detector, 6 * SILENCE_S) == 0
    reader.close()


def test_a_partition_that_stands_still_beside_one_that_goes_on_is_noticed(
    broker: Broker, topic: str
) -> None:
    write(broker, topic, 0)
    reader, stall_detector = begin(broker, topic)
    assert read(reader, stall_detector, 3 * SILENCE_S) == 1
    reader.pause([TopicPartition(topic, 0)])
    write(broker, topic, 0)
    with pytest.raises(KafkaException) as raised:
        read_beside_writes(reader, stall_detector, broker, topic)
    error = raised.value.args[0]
    assert error.code() == KafkaError._STATE
    assert error.str() == f"reading of {topic} [0] stands still at offset 2"
    reader.close()
