"""An outbox that is closed: whoever waits hears so at once. The client of Kafka is a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from coordinator.client import ddl_outbox
from coordinator.client.ddl_outbox import STALL_S, Delivery, Outbox
from coordinator.client.errors import UnavailableError

FAR_S = 3_600.0
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def outbox() -> Iterator[Outbox]:
    made = Outbox(NOWHERE, "ddl", FAR_S)
    yield made
    made.close()


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def is_closed(delivery: Delivery) -> bool:
    error = delivery.error
    return isinstance(error, UnavailableError) and error.code == "publisher_closed"


def test_who_waits_for_kafka_hears_that_the_outbox_is_closed(outbox: Outbox) -> None:
    """Not at its deadline, which may be far."""
    sent = [outbox.send(f"b{n}", b"x", time.monotonic() + FAR_S) for n in range(3)]
    waiting = [in_thread(lambda one=one: outbox.settle(one)) for one in sent]  # type: ignore[misc]
    outbox.close()
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
    assert all(map(is_closed, sent))


def test_who_waits_for_room_hears_that_the_outbox_is_closed(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_asked = threading.Event()

    def no_room(*_: object) -> None:
        has_asked.set()
        raise BufferError

    monkeypatch.setattr(outbox, "_produce", no_room)
    found: list[Delivery] = []
    thread = in_thread(lambda: found.append(outbox.send("b", b"x", time.monotonic() + FAR_S)))
    assert has_asked.wait(60)
    outbox.close()
    thread.join(60)
    assert [is_closed(one) for one in found] == [True]


def test_nothing_is_sent_any_more_once_it_is_closed(outbox: Outbox) -> None:
    outbox.close()
    delivery = outbox.send("b", b"x", time.monotonic() + FAR_S)
    outbox.settle(delivery)
    assert is_closed(delivery)
    assert outbox._sent == 0


class Silent:
    """A client of Kafka that reports nothing."""

    made = 0

    def __init__(self) -> None:
        Silent.made += 1
        self.sent: list[str] = []

    def produce(self, topic: str, value: bytes, key: str, on_delivery: object) -> None:
        self.sent.append(key)

    def poll(self, _: float) -> None:
        pass

    def purge(self) -> None:
        pass


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> tuple[Outbox, list[float]]:
    """Return an outbox whose client reports nothing, and what time it is."""
    now_s = [1_000.0]
    monkeypatch.setattr(Outbox, "_connected", lambda self: Silent())
    monkeypatch.setattr(ddl_outbox.time, "monotonic", lambda: now_s[0])
    Silent.made = 0
    return Outbox(NOWHERE, "ddl", FAR_S), now_s


def test_a_stalled_client_is_replaced_once_until_the_next_one_has_stalled(
    silent: tuple[Outbox, list[float]],
) -> None:
    outbox, now_s = silent
    delivery = outbox.send("b", b"x", now_s[0] + FAR_S)
    now_s[0] += STALL_S + 1
    for _ in range(3):
        outbox._wait(delivery)
    assert Silent.made == 2
    now_s[0] += STALL_S + 1
    outbox._wait(delivery)
    assert Silent.made == 3
    assert outbox._producer.sent == ["b"]  # type: ignore[attr-defined]


def test_the_first_command_after_a_quiet_time_has_not_stalled(
    silent: tuple[Outbox, list[float]],
) -> None:
    outbox, now_s = silent
    now_s[0] += 10 * STALL_S
    outbox._wait(outbox.send("b", b"x", now_s[0] + FAR_S))
    assert Silent.made == 1
