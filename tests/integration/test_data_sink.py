"""What a projector sends is in the log once and in its order, whatever answers get lost."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, TopicPartition

from coordinator import codec
from coordinator.core.model.stream_records import FailoverLog
from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    FAILOVER_LOG,
    MUTATIONS,
    STREAM_END,
    SYNC,
    ensure_topics,
    topic_name,
)
from projector_sim.projector.data_sink import DataSink
from tests.integration.cluster import delete_topics
from tests.integration.indexer_process import until
from tests.integration.kafka_proxy import (
    DELIVER_AND_CUT,
    PASS,
    KafkaProxy,
    as_answered,
    only_once,
)
from tests.support.indexes import make_key_versions, make_sync_vector
from tests.support.stability_bench import end

pytestmark = pytest.mark.integration

CLUSTER = "dropping"
PRODUCE, METADATA = 0, 3
RECORDS = 300
SLOW_S = 0.3
LOST_EVERY = 50


@pytest.fixture
def proxy(proxy: KafkaProxy) -> Iterator[KafkaProxy]:
    """A way to a broker that has the topics of this cluster, and no record there."""
    ensure_topics(proxy.bootstrap_servers, CLUSTER, durable=False)
    yield proxy
    proxy.reset()
    delete_topics(proxy.bootstrap_servers, CLUSTER)


def test_a_record_whose_acknowledgement_is_lost_is_in_the_log_once(proxy: KafkaProxy) -> None:
    servers = proxy.bootstrap_servers
    sink = DataSink(servers, CLUSTER, threading.Event(), lambda: None)
    for ordinal in range(1, RECORDS + 1):
        sink.items(0, 1, make_key_versions(ordinal))
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


@pytest.mark.parametrize("is_served", [True, False], ids=["is served", "is finished"])
def test_a_sink_whose_client_has_failed_for_good_says_so_and_goes_on_with_another(
    proxy: KafkaProxy, is_served: bool
) -> None:
    """The projector opens its streams again then; it need not end."""
    sink = DataSink(proxy.bootstrap_servers, CLUSTER, threading.Event(), lambda: None)
    code = KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    proxy.alter = as_answered(topic_name(CLUSTER, MUTATIONS), code)
    sink.items(0, 1, make_key_versions(1))
    if is_served:
        until("it hears of it", lambda: sink.failed or sink.serve())
    else:
        sink.finish(20)
    proxy.reset()
    sink.renew()
    sink.items(0, 1, make_key_versions(2))
    sink.finish(20)
    assert sink.failed == ""


def test_control_records_are_spread_over_as_many_partitions_as_sync_has(broker: Broker) -> None:
    """Those of one vbucket are in one partition, and so are the SYNCs of one connection."""
    servers, cluster = broker.bootstrap_servers, f"sink-{uuid.uuid4().hex[:8]}"
    ensure_topics(servers, cluster, durable=False, sync_partitions=8)
    sink = DataSink(servers, cluster, threading.Event(), lambda: None)
    for vbucket in range(16):
        sink.control(vbucket, FailoverLog("b", vbucket, (), 1))
        sink.control(vbucket, make_sync_vector([0], connection=vbucket))
        sink.control(vbucket, end(vbucket, 1, vbucket))
    sink.finish(20)
    assert sink.failed == ""
    evenly = {p: [p, p + 8] for p in range(8)}
    assert _spread(servers, topic_name(cluster, STREAM_END)) == evenly
    assert _spread(servers, topic_name(cluster, SYNC), "connection") == evenly
    histories = {p: list(range(p, 16, 4)) for p in range(4)}
    assert _spread(servers, topic_name(cluster, FAILOVER_LOG)) == histories


def test_a_kafka_that_answers_slowly_is_asked_how_many_partitions_sync_has_until_it_has_said_so(
    proxy: KafkaProxy,
) -> None:
    """Whoever asks again before it has answered makes it slower, and hears nothing for ever."""

    def slow(api: int) -> str:
        if api == METADATA:
            threading.Event().wait(SLOW_S)
        return PASS

    def while_waiting() -> None:
        assert time.monotonic() < end_s, "the sink still waits"

    proxy.rule = slow
    end_s = time.monotonic() + 20
    sink = DataSink(proxy.bootstrap_servers, CLUSTER, threading.Event(), while_waiting)
    sink.control(0, make_sync_vector([0]))
    assert (sink.failed, sink.sent) == ("", 1)
    proxy.reset()
    sink.finish(20)
    found = _spread(proxy.bootstrap_servers, topic_name(CLUSTER, SYNC), "projector")
    assert [projector for partition in found.values() for projector in partition] == [0]


def _spread(servers: str, topic: str, number: str = "vbucket") -> dict[int, list[int]]:
    """Return the vbuckets, or another number, of the records in each partition."""
    reader = consumer(servers, "spread", **{"enable.partition.eof": True})
    partitions = reader.list_topics(topic, timeout=10).topics[topic].partitions
    reader.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[int]] = {partition: [] for partition in partitions}
    ends = 0
    while ends < len(partitions):
        message = reader.poll(20)
        assert message is not None
        if message.error() is not None:
            ends += 1
        else:
            found[message.partition()].append(getattr(codec.decode(message.value()), number))
    reader.close()
    return found
