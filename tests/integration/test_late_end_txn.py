"""What the client does in silence, on a real broker: it repeats requests, and may lose offsets.

The request that ends a Kafka transaction is repeated when its connection is lost. A proxy holds the
first copy back, cuts the connection, and lets the copy go when the next transaction is open. A
record that is repeated is acknowledged without an offset where the broker does not know it any
more; the proxy makes it say so.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator import codec
from coordinator.core.catalog.state import EMPTY
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.records import ReadBarrier, TransactionCommitted
from coordinator.core.model.types import TxnId
from coordinator.kafka import end_txn
from coordinator.kafka.producers import PlainProducer, TransactionalProducer
from coordinator.kafka.state_sources import SnapshotLost, Sources
from coordinator.kafka.topics import (
    COMMIT,
    SNAPSHOTS,
    STATECONTEXT,
    ensure_topics,
    topic_name,
)
from tests.integration.cluster import Cluster, read_partition, value_of, wait_until
from tests.integration.kafka_proxy import (
    CREATE_TOPICS,
    DELIVER_AND_CUT,
    DESCRIBE_CONFIGS,
    END_TXN,
    HOLD,
    HOLD_AND_CUT,
    KafkaProxy,
    as_answered,
    as_duplicates,
    only_once,
)
from tests.integration.ports import event

WAIT_S = 90.0


class Writer:
    """The shell's transactional producer, and what it feeds."""

    def __init__(self, servers: str) -> None:
        self.cluster = f"late-{uuid.uuid4().hex[:8]}"
        ensure_topics(servers, self.cluster)
        self._heard: queue.SimpleQueue[inp.Input] = queue.SimpleQueue()
        self._producer = TransactionalProducer(servers, self.cluster, self._heard.put)

    def order(self, effect: fx.Effect) -> inp.Input:
        """Have an effect carried out, and return what comes back for it."""
        self.begin_order(effect)
        return self.heard()

    def begin_order(self, effect: fx.Effect) -> None:
        self._producer.order(effect)

    def heard(self) -> inp.Input:
        return self._heard.get(timeout=WAIT_S)

    def begin(self, number: int) -> None:
        """Open a transaction, with an event on `statecontext`."""
        written = self.order(fx.WriteEvents(number, (event(number),)))
        assert isinstance(written, inp.Written), written

    def close(self) -> None:
        self._producer.close()


def end_of(number: int, kind: str) -> fx.Effect:
    """Return the order to end a transaction."""
    if kind == "abort":
        return fx.Abandon(number)
    verdict = TransactionCommitted(
        txn=TxnId(1, number),
        proposal_offset=0,
        accepted=(1,),
        cas=(number,),
        state_digest=0,
        at_ms=0,
    )
    return fx.Conclude(number, (verdict,))


@pytest.fixture
def writer(proxy: KafkaProxy) -> Iterator[Writer]:
    made = Writer(proxy.bootstrap_servers)
    assert isinstance(made.order(fx.OpenProducer(1)), inp.ProducerOpened)
    yield made
    made.close()


def seen(proxy: KafkaProxy, writer: Writer) -> tuple[list[int], list[int]]:
    """Return the numbers of the transactions that `statecontext` and `commit` show."""

    def read(name: str) -> list[Any]:
        messages = read_partition(proxy.bootstrap_servers, topic_name(writer.cluster, name))
        return [codec.decode(value_of(message)) for message in messages]

    return [e.txn.seq for e in read("statecontext")], [v.txn.seq for v in read("commit")]


def test_without_a_new_initialisation_a_late_abort_takes_the_next_events_away(
    proxy: KafkaProxy, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rule is for: the broker takes the old request for the new transaction."""
    monkeypatch.setattr(end_txn, "may_be_repeated", lambda *_: False)
    writer.begin(1)
    proxy.rule = only_once(END_TXN, HOLD_AND_CUT)
    assert isinstance(writer.order(end_of(1, "abort")), inp.Ended)
    writer.begin(2)
    proxy.release()
    assert isinstance(writer.order(end_of(2, "commit")), inp.Ended)
    assert seen(proxy, writer) == ([], [2]), "the verdict stands there without its event"


def test_without_a_new_initialisation_a_late_commit_shows_events_of_no_verdict(
    proxy: KafkaProxy, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_txn, "may_be_repeated", lambda *_: False)
    writer.begin(1)
    proxy.rule = only_once(END_TXN, HOLD_AND_CUT)
    assert isinstance(writer.order(end_of(1, "commit")), inp.Ended)
    writer.begin(2)
    proxy.release()
    assert seen(proxy, writer) == ([1, 2], [1])


@pytest.mark.parametrize("kind", ["commit", "abort"])
@pytest.mark.parametrize("how", [HOLD_AND_CUT, DELIVER_AND_CUT])
def test_a_producer_that_may_have_ended_twice_is_given_up_and_the_next_is_unharmed(
    proxy: KafkaProxy, writer: Writer, how: str, kind: str
) -> None:
    writer.begin(1)
    proxy.rule = only_once(END_TXN, how)
    assert isinstance(writer.order(end_of(1, kind)), inp.ProducerFailed)
    assert isinstance(writer.order(fx.OpenProducer(2)), inp.ProducerOpened)
    writer.begin(2)
    proxy.release()
    assert isinstance(writer.order(end_of(2, "commit")), inp.Ended)
    events, verdicts = seen(proxy, writer)
    first = [1] if kind == "commit" else []
    assert (events, verdicts) == ([*first, 2], [*first, 2])


@pytest.mark.parametrize("kind", ["commit", "abort"])
def test_an_end_that_takes_longer_than_the_clients_pause_gives_the_producer_up(
    proxy: KafkaProxy, writer: Writer, kind: str
) -> None:
    writer.begin(1)
    proxy.rule = only_once(END_TXN, HOLD)
    writer.begin_order(end_of(1, kind))
    held = proxy.wait_for_held()
    wait_until(
        lambda: time.monotonic() - held.since_s > end_txn.REPEATED_AFTER_S, "the request is late"
    )
    proxy.release()
    assert isinstance(writer.heard(), inp.ProducerFailed)


def test_where_every_end_is_slow_a_later_producer_is_patient_enough(
    proxy: KafkaProxy, writer: Writer
) -> None:
    """Else nobody could lead for as long as a broker takes that long."""
    slow_s = 1.5 * end_txn.REPEATED_AFTER_S
    answers = []
    for number in (1, 2):
        writer.begin(number)
        proxy.reset()
        proxy.rule = only_once(END_TXN, HOLD)
        writer.begin_order(end_of(number, "commit"))
        held = proxy.wait_for_held()
        wait_until(lambda since=held.since_s: time.monotonic() - since > slow_s, "it is late")
        proxy.release()
        answers.append(type(writer.heard()))
        if number == 1:
            assert isinstance(writer.order(fx.OpenProducer(2)), inp.ProducerOpened)
    assert answers == [inp.ProducerFailed, inp.Ended]


def test_the_client_waits_as_long_before_a_repeat_as_the_rule_assumes(proxy: KafkaProxy) -> None:
    """Measured at the broker's door: the rule rests on the shortest pause that there is."""
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    admin.create_topics([NewTopic("pauses", 1, 1)])["pauses"].result(WAIT_S)
    pauses: list[float] = []
    for number in range(6):
        producer = Producer(
            {
                "bootstrap.servers": proxy.bootstrap_servers,
                "transactional.id": f"pause-{number}",
                "retry.backoff.ms": end_txn.RETRY_BACKOFF_MS,
                "retry.backoff.max.ms": end_txn.RETRY_BACKOFF_MS,
                "log_level": 0,
            }
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        producer.produce("pauses", b"x")
        producer.flush(WAIT_S)
        proxy.reset()
        proxy.rule = only_once(END_TXN, DELIVER_AND_CUT)
        producer.commit_transaction(WAIT_S)
        first, second = proxy.times(END_TXN)[:2]
        pauses.append(second - first)
    assert min(pauses) >= end_txn.REPEATED_AFTER_S, pauses


@pytest.mark.parametrize("how", [HOLD_AND_CUT, DELIVER_AND_CUT])
def test_a_cluster_loses_nothing_when_an_end_is_late_or_doubled(
    proxy: KafkaProxy, make_cluster: Callable[..., Cluster], how: str
) -> None:
    """The master claims anew; what it was asked for is there, once, for everybody."""
    cluster = make_cluster(proxy.bootstrap_servers, indexers=0).start()
    epoch = cluster.settled()["epoch"]
    with cluster.client() as client:
        client.put_config("first", 1)
        proxy.rule = only_once(END_TXN, how)
        client.put_config("second", 2)
        wait_until(lambda: cluster.get(1, "/v1/members")["epoch"] > epoch, "a new claim")
        proxy.release()
        client.put_config("third", 3)
    shown = cluster.settled()
    assert {k: v["value"] for k, v in shown["config"].items() if k != "started"} == {
        "first": 1,
        "second": 2,
        "third": 3,
    }
    said = (shown["cas"], shown["digest"])
    assert cluster.digest_by_statecontext(shown["cas"]) == said == cluster.digest_by_history()


# -- acknowledged without an offset ----------------------------------------------------------------


def test_events_without_offsets_are_not_taken_for_written(
    proxy: KafkaProxy, writer: Writer
) -> None:
    proxy.alter = as_duplicates(topic_name(writer.cluster, STATECONTEXT))
    failed = writer.order(fx.WriteEvents(1, (event(1),)))
    assert isinstance(failed, inp.ProducerFailed)
    assert "no offset was reported" in failed.reason
    proxy.reset()
    assert isinstance(writer.order(fx.OpenProducer(2)), inp.ProducerOpened)
    writer.begin(2)
    assert isinstance(writer.order(end_of(2, "commit")), inp.Ended)
    assert seen(proxy, writer) == ([2], [2])


def test_a_plain_record_may_be_acknowledged_without_an_offset(proxy: KafkaProxy) -> None:
    """A node that sends it goes on: only the place of the newest one is not known."""
    cluster = f"plain-{uuid.uuid4().hex[:8]}"
    ensure_topics(proxy.bootstrap_servers, cluster)
    fed: list[inp.Input] = []
    producer = PlainProducer(proxy.bootstrap_servers, cluster, fed.append)

    def append(number: int) -> None:
        producer.append(fx.Append(number, ReadBarrier(1, number)))
        producer.flush(WAIT_S)
        producer.serve()

    append(1)
    assert producer.written == 0
    proxy.alter = as_duplicates(topic_name(cluster, COMMIT))
    append(2)
    assert producer.written == 0
    proxy.reset()
    append(3)
    assert producer.written == 2
    assert fed == []
    producer.close(WAIT_S)


def test_a_producer_that_has_failed_for_good_can_be_closed(proxy: KafkaProxy) -> None:
    """So it is for the client where the broker has lost count of its records."""
    cluster = f"plain-{uuid.uuid4().hex[:8]}"
    ensure_topics(proxy.bootstrap_servers, cluster)
    producer = PlainProducer(proxy.bootstrap_servers, cluster, lambda event: None)
    proxy.alter = as_answered(topic_name(cluster, COMMIT), KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    producer.append(fx.Append(1, ReadBarrier(1, 1)))
    with pytest.raises(KafkaException) as raised:
        producer.flush(WAIT_S)
    assert raised.value.args[0].fatal()
    producer.close(WAIT_S)
    proxy.reset()
    again = PlainProducer(proxy.bootstrap_servers, cluster, lambda event: None)
    again.append(fx.Append(1, ReadBarrier(1, 2)))
    again.close(WAIT_S)
    assert again.written == 1


def test_a_copy_of_the_state_without_an_offset_is_not_kept(proxy: KafkaProxy) -> None:
    cluster = f"copy-{uuid.uuid4().hex[:8]}"
    ensure_topics(proxy.bootstrap_servers, cluster)
    sources = Sources(proxy.bootstrap_servers, cluster, threading.Event(), lambda *_: None)
    proxy.alter = as_duplicates(topic_name(cluster, SNAPSHOTS))
    with pytest.raises(SnapshotLost, match="where it begins is not known"):
        sources.write_copy(1, EMPTY)
    proxy.reset()
    assert sources.write_copy(2, EMPTY) == 1


@pytest.mark.parametrize("api", [CREATE_TOPICS, DESCRIBE_CONFIGS])
def test_topics_are_made_though_a_connection_is_cut_meanwhile(proxy: KafkaProxy, api: int) -> None:
    """Their first node would end for good, and nobody would start it again."""
    cluster = f"cut-{uuid.uuid4().hex[:8]}"
    proxy.rule = only_once(api, DELIVER_AND_CUT)
    ensure_topics(proxy.bootstrap_servers, cluster)
    assert proxy.times(api)
    assert ensure_topics(proxy.bootstrap_servers, cluster)
