"""Who waits for a record on a real broker is told of it, and of nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import BEGINNING
from coordinator.kafka.topics import RESTART_REQUEST, SYNC, TICK, topic_name
from streaming.timestamps import lookout as lookouts
from streaming.timestamps.lookout import Lookout
from tests.integration.cluster import read_partition, wait_until
from tests.integration.kafka_proxy import FORGETFUL, KafkaProxy, as_without_brokers
from tests.integration.streaming import Topics

pytestmark = pytest.mark.integration

LONG_S = 60.0
"""Nobody waits for so long who is told."""

RUNNING = threading.Event()


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker.bootstrap_servers)


@pytest.fixture
def lookout(topics: Topics) -> Iterator[Lookout]:
    made = Lookout(topics.servers)
    yield made
    made.close()


def places(topics: Topics, sync: int = 0) -> dict[tuple[str, int], int]:
    named = {(topic_name(topics.name, SYNC), partition): sync for partition in range(4)}
    return {**named, (topic_name(topics.name, RESTART_REQUEST), 0): BEGINNING}


def test_what_is_there_already_and_what_comes_end_the_wait(
    topics: Topics, lookout: Lookout
) -> None:
    began_s = time.monotonic()
    coming = threading.Timer(0.5, lambda: topics.put(RESTART_REQUEST, b"a question"))
    coming.start()
    writing = threading.Timer(0.7, topics.flush)
    writing.start()
    assert lookout.wait(places(topics), LONG_S, RUNNING)
    coming.join()
    writing.join()
    lookout.close()
    assert lookout.wait(places(topics), LONG_S, RUNNING)
    assert time.monotonic() - began_s < LONG_S


def test_a_record_is_told_of_once_for_each_connection(topics: Topics, lookout: Lookout) -> None:
    """The query may have no use for it, and then its place stays where it is."""
    tells = 1
    for _ in range(3_000):
        topics.put(SYNC, b"a record" * 20, 1)
    topics.flush()
    assert lookout.wait(places(topics), LONG_S, RUNNING)
    # On a busy machine some of them come only after a look for more.
    while lookout.wait(places(topics), 1.0, RUNNING):
        tells += 1
        assert tells < 30
    topics.put(SYNC, b"another", 1)
    topics.flush()
    assert lookout.wait(places(topics), LONG_S, RUNNING)
    assert not lookout.wait(places(topics), 1.0, RUNNING)
    lookout.close()
    assert lookout.wait(places(topics), LONG_S, RUNNING), "a new one does not know"


def test_who_waits_does_so_no_longer_when_it_is_closed(topics: Topics, lookout: Lookout) -> None:
    threading.Timer(0.5, lookout.close).start()
    began_s = time.monotonic()
    assert not lookout.wait(places(topics), LONG_S, RUNNING)
    assert time.monotonic() - began_s < LONG_S


def test_what_was_read_or_is_on_other_topics_or_was_aborted_ends_no_wait(
    topics: Topics, lookout: Lookout
) -> None:
    topics.put(SYNC, b"read", 2)
    topics.put(TICK, b"a tick")
    topics.flush()
    producer = Producer(
        {"bootstrap.servers": topics.servers, "transactional.id": topics.name, "log_level": 2}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic_name(topics.name, SYNC), b"aborted", partition=1)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    after = {**places(topics), (topic_name(topics.name, SYNC), 2): 1}
    assert not lookout.wait(after, 2.0, RUNNING)
    lookout.close()
    assert lookout.wait(places(topics), LONG_S, RUNNING), "the same wait, from before the record"
    assert [m.value() for m in read_partition(topics.servers, topic_name(topics.name, SYNC), 2)]


def test_what_cannot_be_read_there_ends_the_wait(topics: Topics, lookout: Lookout) -> None:
    """The query has to look at it: perhaps records were deleted."""
    assert lookout.wait(places(topics, sync=99), LONG_S, RUNNING)


def test_who_is_told_to_stop_waits_no_longer(topics: Topics, lookout: Lookout) -> None:
    stopping = threading.Event()
    threading.Timer(0.5, stopping.set).start()
    began_s = time.monotonic()
    assert not lookout.wait(places(topics), LONG_S, stopping)
    assert time.monotonic() - began_s < LONG_S


def test_where_kafka_is_away_nothing_comes() -> None:
    made = Lookout("127.0.0.1:1")
    assert not made.wait({("c.sync", 0): 0}, 1.0, RUNNING)
    made.close()


def test_a_client_that_was_told_of_no_broker_is_replaced(
    proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was told of is not told of again."""
    monkeypatch.setattr(lookouts, "SILENCE_S", 1.0)
    monkeypatch.setattr(lookouts, "FETCHED", {**lookouts.FETCHED, **FORGETFUL})
    told: list[bytes] = []
    with closing(Lookout(proxy.bootstrap_servers)) as made:
        topics = Topics(proxy.bootstrap_servers)
        topics.put(SYNC, b"the first", 1)
        topics.flush()

        def is_told() -> bool:
            return made.wait(places(topics), 0.5, RUNNING)

        wait_until(is_told, "it is told of the first")
        proxy.alter = as_without_brokers(proxy, told)
        wait_until(lambda: not is_told() and told, "it was told of no broker")
        proxy.reset()
        assert not is_told()
        topics.put(SYNC, b"the second", 1)
        topics.flush()
        wait_until(is_told, "it is told of the second")
        assert not is_told()
