"""An outbox that is closed: whoever waits hears so at once. The client of Kafka is a real one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from coordinator.client.ddl_outbox import Delivery, Outbox
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
