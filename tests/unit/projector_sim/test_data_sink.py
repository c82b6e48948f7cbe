"""What a projector's client must be set to, so that nothing is lost and the order stays."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import TopicDescription

from coordinator.core.model.stream_records import FailoverLog, StreamEnd, SyncVector
from projector_sim.projector import data_sink
from projector_sim.projector.data_sink import DataSink
from tests.support.indexes import make_key_versions, make_sync_vector
from tests.support.stability_bench import end


def test_what_was_handed_over_is_tried_until_it_is_there_in_order() -> None:
    settings = DataSink("127.0.0.1:1", "c", threading.Event(), lambda: None)._settings
    assert settings["message.timeout.ms"] == 0, "a broker that is away ends no stream"
    assert settings["enable.idempotence"]
    assert settings["enable.gapless.guarantee"]


def test_a_sink_that_was_renewed_sends_again() -> None:
    sink = DataSink("127.0.0.1:1", "c", threading.Event(), lambda: None)
    sink._on_delivery(KafkaError(KafkaError._FATAL, "fenced"), None)
    assert sink.failed
    sink.renew()
    assert sink.failed == ""
    sink.items(0, 1, make_key_versions(1))
    assert sink.sent == 1


def test_nobody_waits_for_kafka_while_the_projector_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked how many partitions `sync` has, and does not answer."""
    stopping, waited = threading.Event(), 0

    def away(*_: object) -> Future[TopicDescription]:
        return Future()

    def while_waiting() -> None:
        nonlocal waited
        waited += 1
        assert waited < 10
        if waited == 3:
            stopping.set()

    monkeypatch.setattr(data_sink, "describe_sync", away)
    sink = DataSink("127.0.0.1:1", "c", stopping, while_waiting)
    sink.control(0, make_sync_vector([0]))
    assert (sink.failed, sink.sent, waited) == (data_sink.STOPS, 0, 3)


def test_kafka_is_asked_again_once_it_has_answered_with_what_may_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Future[Any]] = []

    def ask(*_: object) -> Future[Any]:
        assert all(one.done() for one in asked), "it is asked while it has not answered"
        asked.append(Future())
        return asked[-1]

    def while_waiting() -> None:
        """It has answered twice that it does not know the topic yet, and then that it does."""
        code = KafkaError.UNKNOWN_TOPIC_OR_PART
        if len(asked) < 3:
            asked[-1].set_exception(KafkaException(KafkaError(code, "not yet")))
        else:
            asked[-1].set_result(SimpleNamespace(partitions=range(8)))

    monkeypatch.setattr(data_sink, "describe_sync", ask)
    sink = DataSink("127.0.0.1:1", "c", threading.Event(), while_waiting)
    sink.control(0, make_sync_vector([0]))
    assert (sink.failed, sink.sent, len(asked)) == ("", 1, 3)


def test_a_refusal_that_will_not_pass_ends_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: Future[Any] = Future()
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    refused.set_exception(KafkaException(KafkaError(code, "not for you")))
    monkeypatch.setattr(data_sink, "describe_sync", lambda *_: refused)
    sink = DataSink("127.0.0.1:1", "c", threading.Event(), lambda: None)
    sink.control(0, make_sync_vector([0]))
    assert (sink.failed, sink.sent) == ("not for you", 0)


@pytest.mark.parametrize(
    ("record", "partition"),
    [
        (make_sync_vector([4, 7]), 5),
        (end(13, 1, 1), 5),
        (FailoverLog("travel", 13, (), 1), 1),
    ],
)
def test_a_record_goes_to_the_partition_that_its_topic_has_for_its_vbucket(
    monkeypatch: pytest.MonkeyPatch, record: SyncVector | StreamEnd | FailoverLog, partition: int
) -> None:
    """`sync` has as many as the cluster was formed with, `failover-log` always as many."""
    described: Future[Any] = Future()
    described.set_result(SimpleNamespace(partitions=range(8)))
    monkeypatch.setattr(data_sink, "describe_sync", lambda *_: described)
    sink = DataSink("127.0.0.1:1", "c", threading.Event(), lambda: None)
    produced: list[int] = []
    monkeypatch.setattr(sink, "_produce", lambda *given: produced.append(given[3]))
    sink.control(13, record)
    assert produced == [partition]
