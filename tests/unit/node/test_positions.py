"""What a node writes of the positions of subscribers, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.history.subscribing import Positions
from coordinator.core.model.subscription_records import (
    NOBODY,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas
from coordinator.kafka import subscription_log
from coordinator.kafka.subscription_log import NotWrittenError
from coordinator.node import positions
from coordinator.node.positions import PositionBook, ascending
from tests.support.subscriptions import make_subscription

SUBSCRIPTION = make_subscription(after=Cas(2))


def acknowledged(cas: int, number: int = 7) -> SubscriptionAcknowledged:
    return SubscriptionAcknowledged(number, Cas(cas), at_ms=0)


class SlowBook(PositionBook):
    """A book whose log takes records only when it is let go, and that reads nothing by itself."""

    def __init__(self) -> None:
        super().__init__("", "slow", lambda *_: None, lambda _: None)
        self.log: list[SubscriptionRecord] = []
        self.let_go = asyncio.Event()

    def listen(self) -> None:
        """There is no broker."""

    async def _in_writer(self, work: Callable[[Any], Any]) -> Any:
        await self.let_go.wait()
        return work(self)

    def write(self, records: Sequence[SubscriptionRecord]) -> None:
        self.log += records

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                await asyncio.sleep(0)


def run(story: Callable[[SlowBook], Awaitable[None]]) -> SlowBook:
    async def told() -> SlowBook:
        book = SlowBook()
        await story(book)
        return book

    return asyncio.run(told())


def written(book: SlowBook) -> list[int]:
    return [record.cas for record in book.log if isinstance(record, SubscriptionAcknowledged)]


def test_what_is_lower_is_not_written_after_what_is_higher() -> None:
    """It is asked for while the higher one is being written: the log would end with the lower."""

    async def story(book: SlowBook) -> None:
        first = asyncio.create_task(book.acknowledge(SUBSCRIPTION, Cas(100)))
        await book.until(lambda: book._draining is not None and not book._waiting)
        second = asyncio.create_task(book.acknowledge(SUBSCRIPTION, Cas(90)))
        await book.until(lambda: len(book._waiting) == 1)
        book.let_go.set()
        assert (await first, await second) == (100, 100)

    book = run(story)
    assert written(book) == [100]
    assert book.log[-1] == replace(SubscriberSeen(7, 0, 0), at_ms=book.log[-1].at_ms)


def test_a_batch_ascends_for_each_subscription_and_what_is_lower_is_a_sign_of_life() -> None:
    known = Positions()
    known.take(acknowledged(50), 0)
    batch = [acknowledged(40), acknowledged(60), acknowledged(5, 8), acknowledged(55)]
    seen = SubscriberSeen(7, 0, 0)
    assert ascending(batch, known) == [seen, acknowledged(60), acknowledged(5, 8), seen]


def test_marks_are_written_as_they_are() -> None:
    mark = SubscriberSeen(NOBODY, 3, 9)
    assert ascending([mark], Positions()) == [mark]


def test_who_waits_for_a_mark_hears_that_the_node_stops() -> None:
    async def story(book: SlowBook) -> None:
        book.let_go.set()
        settling = asyncio.create_task(book.settle(SUBSCRIPTION))
        await book.until(lambda: bool(book.log))
        await book.close()
        with pytest.raises(NotWrittenError, match="stopping"):
            await settling

    run(story)


def test_up_to_when_all_was_read_is_known_once_a_mark_is_read_back() -> None:
    async def story(book: SlowBook) -> None:
        book.let_go.set()
        catching_up = asyncio.create_task(book.catch_up())
        await book.until(lambda: bool(book.log))
        assert book.positions.read_up_to_ms == 0
        book.take(book.log)
        await catching_up
        assert book.positions.read_up_to_ms > 0

    run(story)


def test_a_mark_tells_of_the_time_before_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while the mark is on its way may come after it."""
    now_ms = 1_000
    monkeypatch.setattr(positions, "monotonic_ms", lambda: now_ms)

    async def story(book: SlowBook) -> None:
        nonlocal now_ms
        catching_up = asyncio.create_task(book.catch_up())
        await book.until(lambda: book._draining is not None and not book._waiting)
        now_ms = 5_000
        book.let_go.set()
        await book.until(lambda: bool(book.log))
        for _ in range(5):  # Whoever has written it goes on.
            await asyncio.sleep(0)
        now_ms = 9_000
        book.take(book.log)
        await catching_up
        assert book.positions.read_up_to_ms == 1_000

    run(story)


def test_a_mark_that_is_not_read_back_in_time_says_so_and_nothing_when_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(positions, "SETTLE_S", 0.0)

    async def story(book: SlowBook) -> None:
        with pytest.raises(NotWrittenError, match="cannot be read"):
            await book.catch_up()
        book.let_go.set()
        await book.until(lambda: bool(book.log))
        book.take(book.log)
        assert book.positions.read_up_to_ms == 0

    run(story)


def test_a_mark_that_is_read_while_the_node_stops_ends_nothing() -> None:
    async def story(book: SlowBook) -> None:
        book.let_go.set()
        settling = asyncio.create_task(book.settle(SUBSCRIPTION))
        await book.until(lambda: bool(book.log))
        await book.close()
        book.take(book.log)
        with pytest.raises(NotWrittenError, match="stopping"):
            await settling

    run(story)


def test_who_acknowledges_what_it_has_is_seen_where_silence_matters() -> None:
    async def story(book: SlowBook) -> None:
        book.let_go.set()
        book.take([acknowledged(100)])
        assert await book.acknowledge(SUBSCRIPTION, Cas(90)) == 100
        assert [type(record) for record in book.log] == [SubscriberSeen]
        await book.acknowledge(replace(SUBSCRIPTION, expires_after_ms=0), Cas(90))
        assert len(book.log) == 1

    run(story)


def test_who_does_not_wait_any_more_holds_up_nobody_of_its_batch() -> None:
    async def story(book: SlowBook) -> None:
        tasks = [asyncio.create_task(book._write(acknowledged(9, n))) for n in range(3)]
        await book.until(lambda: book._draining is not None and not book._waiting)
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        book.let_go.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks[1:])

    run(story)


def test_whatever_fails_in_the_writer_is_told_to_who_waits() -> None:
    async def story(book: SlowBook) -> None:
        def fails(records: Sequence[SubscriptionRecord]) -> None:
            raise ValueError("a record of no kind")

        book.let_go.set()
        book.write = fails  # type: ignore[method-assign]
        async with asyncio.timeout(60):
            with pytest.raises(NotWrittenError, match="a record of no kind"):
                await book.acknowledge(SUBSCRIPTION, Cas(9))
        assert book.positions.reached(7) == 0

    run(story)


def test_only_so_many_records_wait_to_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positions, "WAITING_MAX", 2)

    async def story(book: SlowBook) -> None:
        first = asyncio.create_task(book._write(acknowledged(9)))
        await book.until(lambda: book._draining is not None and not book._waiting)
        waiting = [asyncio.create_task(book._write(acknowledged(9, n))) for n in range(2)]
        await book.until(lambda: len(book._waiting) == 2)
        async with asyncio.timeout(60):
            with pytest.raises(NotWrittenError, match="retry"):
                await book._write(acknowledged(9, 3))
        book.let_go.set()
        await asyncio.gather(first, *waiting)

    run(story)


def test_what_is_removed_from_the_log_is_forgotten_here_too() -> None:
    """Else it would be removed again and again."""

    async def story(book: SlowBook) -> None:
        async def removed(work: Callable[[Any], Any]) -> None:
            """As if Kafka had taken it."""

        book._in_writer = removed  # type: ignore[assignment]
        book.take([acknowledged(9), acknowledged(9, 8)])
        await book.forget([7])
        assert {*book.positions.heard_ms} == {8}

    run(story)


def test_a_book_that_is_closed_makes_no_client_any_more() -> None:
    async def story() -> None:
        book = PositionBook("127.0.0.1:1", "none", lambda *_: None, lambda _: None)
        await book.close()
        with pytest.raises(NotWrittenError, match="stopping"):
            await book.forget([7])
        with pytest.raises(NotWrittenError, match="stopping"):
            await book.acknowledge(SUBSCRIPTION, Cas(9))

    asyncio.run(story())


def test_a_client_that_cannot_be_made_writes_nothing_and_ends_no_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_client(*_: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE, "no threads are left"))

    async def story() -> None:
        book = PositionBook("127.0.0.1:1", "none", lambda *_: None, lambda _: None)
        with pytest.raises(NotWrittenError, match="no threads are left"):
            await book.forget([7])
        with pytest.raises(NotWrittenError, match="no threads are left"):
            await book.acknowledge(SUBSCRIPTION, Cas(9))
        await book.close()

    monkeypatch.setattr(subscription_log, "Producer", no_client)
    asyncio.run(story())


class FatalClient:
    """A client in memory: the first has a fatal error, as where its idempotence is lost."""

    made = 0

    def __init__(self, how: str) -> None:
        FatalClient.made += 1
        self.how = how if FatalClient.made == 1 else ""
        self.due: list[Callable[[KafkaError | None, Any], None]] = []
        self.has_purged = False

    def produce(self, *_: Any, on_delivery: Callable[..., None]) -> None:
        if self.how == "produce":
            raise KafkaException(FATAL)
        self.due.append(on_delivery)

    def flush(self, timeout_s: float) -> int:
        if self.how == "flush":
            raise KafkaException(FATAL)
        for delivered in self.due:
            delivered(FATAL if self.how == "delivery" else TIMED_OUT if self.how else None, None)
        self.due.clear()
        return 0

    def purge(self) -> None:
        self.has_purged = True


FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "a sequence is lost", fatal=True)
TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT, "too late")


@pytest.mark.parametrize(
    ("how", "clients"), [("produce", 2), ("flush", 2), ("delivery", 2), ("once", 1)]
)
def test_a_client_that_can_write_no_more_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, how: str, clients: int
) -> None:
    """No other error makes another client: the one that there is may still write what it has."""
    made: list[FatalClient] = []

    def client(_: Any) -> FatalClient:
        made.append(FatalClient(how))
        return made[-1]

    async def story() -> None:
        book = PositionBook("127.0.0.1:1", "none", lambda *_: None, lambda _: None)
        with pytest.raises(NotWrittenError):
            await book.acknowledge(SUBSCRIPTION, Cas(9))
        made[0].how = made[0].how if clients > 1 else ""
        assert await book.acknowledge(SUBSCRIPTION, Cas(9)) == 9
        assert len(made) == clients
        assert made[0].has_purged == (clients > 1)
        await book.close()

    monkeypatch.setattr(FatalClient, "made", 0)
    monkeypatch.setattr(subscription_log, "Producer", client)
    asyncio.run(story())
