"""What a mastership was about to write dies with it."""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest

from coordinator.core.consensus import effects, inputs
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, MemberExpired, Mutation
from coordinator.core.model.types import TxnId
from coordinator.kafka import producers
from coordinator.kafka.producers import TransactionalProducer

LOST = Event(
    Mutation("SettingWritten", "config/lost", b"", Setting("lost", "1")), TxnId(1, 4), 0, 1, 10
)
CLAIM = MemberExpired(2, 3, "stands for any record", 0)


class Client:
    """A transactional client that keeps what it was given."""

    written: list[str]
    fails = False

    def __init__(self, settings: dict[str, Any]) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> None:
        pass

    def init_transactions(self, timeout_s: float) -> None:
        pass

    def begin_transaction(self) -> None:
        if self.fails:
            raise RuntimeError("a client that is done for")

    def produce(self, topic: str, *_: Any, **__: Any) -> None:
        Client.written.append(topic)

    def commit_transaction(self, timeout_s: float) -> None:
        pass

    def purge(self) -> None:
        pass


@pytest.mark.parametrize("how", ["closed", "opened again", "failed"])
def test_the_history_of_a_given_up_transaction_is_not_written_by_the_next(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(producers, "Producer", Client)
    monkeypatch.setattr(producers, "end_open_transaction", lambda *given: None)
    monkeypatch.setattr(Client, "written", [], raising=False)
    fed: queue.SimpleQueue[inputs.Input] = queue.SimpleQueue()
    writer = TransactionalProducer("", "c", fed.put)
    writer.order(effects.OpenProducer(1))
    writer.order(effects.WriteHistory((LOST,)))
    if how == "closed":
        writer.order(effects.CloseProducer())
    elif how == "failed":
        monkeypatch.setattr(Client, "fails", True)
        writer.order(effects.WriteEvents(2, (LOST,)))
        assert isinstance(fed.get(timeout=60), inputs.ProducerOpened)
        assert isinstance(fed.get(timeout=60), inputs.ProducerFailed)
        monkeypatch.setattr(Client, "fails", False)
    writer.order(effects.OpenProducer(3))
    writer.order(effects.Conclude(4, (CLAIM,)))
    writer.close()
    assert Client.written == ["c.commit"]


def test_an_opening_that_was_given_up_while_it_waited_fences_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka was slow: openings wait in line, and another node is master by now."""
    fenced: list[str] = []
    connected, released = threading.Event(), threading.Event()

    def connect(*_: Any, **__: Any) -> None:
        connected.set()
        released.wait(60)

    monkeypatch.setattr(producers, "Producer", Client)
    monkeypatch.setattr(producers, "end_open_transaction", lambda *given: fenced.append("ahead"))
    monkeypatch.setattr(producers, "connect", connect)
    monkeypatch.setattr(Client, "init_transactions", lambda *given: fenced.append("now"))
    fed: queue.SimpleQueue[inputs.Input] = queue.SimpleQueue()
    writer = TransactionalProducer("", "c", fed.put)
    writer.order(effects.OpenProducer(1))
    assert connected.wait(60)
    for token in (2, 3):
        writer.order(effects.CloseProducer())
        writer.order(effects.OpenProducer(token))
    writer.order(effects.CloseProducer())
    released.set()
    writer.close()
    assert fenced == ["ahead"]
    assert fed.empty()


def told(monkeypatch: pytest.MonkeyPatch, *orders: effects.Effect) -> list[str]:
    """Return what a producer without a broker says to these orders."""
    monkeypatch.setattr(producers, "Producer", Client)
    monkeypatch.setattr(producers, "end_open_transaction", lambda *given: None)
    monkeypatch.setattr(Client, "written", [], raising=False)
    monkeypatch.setattr(Client, "flush", lambda *given: 0, raising=False)
    fed: Any = queue.SimpleQueue()
    writer = TransactionalProducer("", "c", fed.put)
    said: list[str] = []
    for order in orders:
        writer.order(order)
        if not isinstance(order, effects.WriteHistory):
            said.append(type(fed.get(timeout=60)).__name__)
    writer.close()
    return said


def test_what_was_abandoned_does_not_go_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    told(
        monkeypatch,
        *(effects.OpenProducer(1), effects.WriteHistory((LOST,))),
        *(effects.Abandon(2), effects.Conclude(3, (CLAIM,))),
    )
    assert Client.written == ["c.commit"]


@pytest.mark.thorough
def test_where_every_end_is_slow_the_next_producer_gives_none_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a slow broker would leave a cluster without any master."""
    monkeypatch.setattr(Client, "commit_transaction", lambda *given: time.sleep(0.5))
    said = told(
        monkeypatch,
        *(effects.OpenProducer(1), effects.Conclude(2, (CLAIM,))),
        *(effects.OpenProducer(3), effects.Conclude(4, (CLAIM,))),
    )
    assert said == ["ProducerOpened", "ProducerFailed", "ProducerOpened", "Ended"]
