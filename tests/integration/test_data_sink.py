"""What a projector sends is in the log once and in its order, whatever answers get lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from coordinator import codec
from coordinator.core.model.stream_records import MAINTENANCE, KeyVersions
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import MUTATIONS, ensure_topics, topic_name
from projector_sim.projector.data_sink import DataSink
from tests.integration.indexer_process import until
from tests.integration.kafka_proxy import DELIVER_AND_CUT, KafkaProxy, only_once, proxied_broker

pytestmark = pytest.mark.integration

CLUSTER = "dropping"
PRODUCE = 0
RECORDS = 300
LOST_EVERY = 50


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[KafkaProxy]:
    """A proxy through which alone clients reach a broker."""
    with proxied_broker(tmp_path / "kafka") as made:
        ensure_topics(made.bootstrap_servers, CLUSTER, durable=False)
        yield made


def test_a_record_whose_acknowledgement_is_lost_is_in_the_log_once(proxy: KafkaProxy) -> None:
    servers = proxy.bootstrap_servers
    sink = DataSink(servers, CLUSTER, threading.Event(), lambda: None)
    for ordinal in range(1, RECORDS + 1):
        record = KeyVersions(
            bucket="b",
            kind=MAINTENANCE,
            projector=0,
            connection=1,
            ordinal=ordinal,
            number=1,
            indexes=(),
            builds=(),
            items=b"",
            at_ms=0,
            previous=ordinal - 1,
        )
        sink.items(0, 1, record)
        if ordinal % LOST_EVERY == 0:
            before = len(proxy.times(PRODUCE))
            proxy.rule = only_once(PRODUCE, DELIVER_AND_CUT)
            until(
                "an answer is lost, and the record is sent again",
                lambda b=before: len(proxy.times(PRODUCE)) > b + 1 or sink.serve(),
            )
    sink.finish(20)
    assert sink.failed == ""
    reader = consumer(servers, "reader", **{"enable.partition.eof": True})
    reader.assign([TopicPartition(topic_name(CLUSTER, MUTATIONS), 0, 0)])
    found: list[int] = []
    while (message := reader.poll(20)) is not None and message.error() is None:
        found.append(codec.decode(message.value() or b"").ordinal)
    reader.close()
    assert found == list(range(1, RECORDS + 1))
