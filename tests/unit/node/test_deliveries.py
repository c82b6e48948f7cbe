"""What a delivery reads and has written, and when it begins and ends, without a broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.codec import encode
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import Change, changes_of, fold
from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Predicate
from coordinator.core.history.subscribing import (
    Ended,
    Positions,
    ended_deliveries,
    selection_of,
)
from coordinator.core.model.entities import Subscription, Topic
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.subscription_records import SubscriptionAcknowledged
from coordinator.core.model.types import Cas
from coordinator.kafka.subscription_log import Delivered, DeliveryError
from coordinator.node import deliveries as module
from coordinator.node import history as histories
from coordinator.node.deliveries import Deliveries, _delivered
from coordinator.node.history import History, Page
from tests.support.changes import MemoryLog, a_transaction, flat, written
from tests.support.indexes import make_index
from tests.support.subscriptions import make_subscription
from tests.support.views import a_state_of

STATE = a_state_of(50)
MANY = 64
"""More than there are threads for whatever is done beside the loop."""


class SlowHistory:
    """A history of which a page is read only when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.pages = 0

    def whole_page(self, *asked: Any) -> Page:
        assert self.let_go.wait(30)
        self.pages += 1
        return Page((), (), None)


@asynccontextmanager
async def reading(history: SlowHistory) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Have many deliveries begin far behind."""
    deliveries = Deliveries(
        "",
        "none",
        node=SimpleNamespace(state=STATE),  # type: ignore[arg-type]
        changes=Feed(),
        history=history,  # type: ignore[arg-type]
        book=SimpleNamespace(),  # type: ignore[arg-type]
    )

    async def first() -> tuple[Any, Cas]:
        return await anext(deliveries._changes_above(Cas(1), Predicate()))

    begun = [asyncio.create_task(first()) for _ in range(MANY)]
    await asyncio.sleep(0)
    try:
        yield begun
    finally:
        history.let_go.set()
        await asyncio.wait(begun)


def test_deliveries_that_read_the_past_leave_threads_to_the_node() -> None:
    async def story(history: SlowHistory) -> None:
        async with reading(history):
            async with asyncio.timeout(60):
                assert await asyncio.to_thread(lambda: "done") == "done"

    asyncio.run(story(SlowHistory()))


def test_each_of_them_gets_its_turn() -> None:
    async def story(history: SlowHistory) -> None:
        async with reading(history) as begun:
            history.let_go.set()
            assert [*await asyncio.gather(*begun)] == [((), Cas(50))] * MANY
        assert history.pages == MANY

    asyncio.run(story(SlowHistory()))


# -- which changes, and how many together --------------------------------------------------------

TOPIC = Topic("settings", "{}", 0)
SUBSCRIPTION = make_subscription(
    filter_json='{"kind":["setting"]}', after=Cas(50), deliver_to="out", expires_after_ms=0
)


def some(seq: int, cas: int, *names: str) -> tuple[Event, ...]:
    return a_transaction(seq, cas, *(written(name, "1") for name in names))


def changes(*transactions: Sequence[Event]) -> tuple[Change, ...]:
    return tuple(change for one in transactions for change in changes_of(STATE, one))


class Bench:
    """Deliveries on a feed, a past and positions in memory."""

    def __init__(self, state: StateContext = STATE) -> None:
        self.node: Any = SimpleNamespace(state=state)
        self.feed = Feed()
        self.pages: list[Page] = []
        self.asked: list[Cas] = []
        self.positions = Positions()
        self.deliveries = Deliveries(
            "",
            "own",
            node=self.node,
            changes=self.feed,
            history=SimpleNamespace(whole_page=self._page),  # type: ignore[arg-type]
            book=SimpleNamespace(  # type: ignore[arg-type]
                settle=self._settle,
                take=self._take,
                catch_up=self._catch_up,
                positions=self.positions,
            ),
        )

    async def _catch_up(self) -> None:
        """All that was written is known."""

    def _page(self, after: Cas, *_: Any) -> Page:
        self.asked.append(after)
        return self.pages.pop(0)

    async def _settle(self, subscription: Subscription) -> Cas:
        return self.positions.of(subscription)

    def _take(self, records: Sequence[SubscriptionAcknowledged]) -> None:
        for record in records:
            self.positions.take(record, 0)

    def install(self, events: Sequence[Event]) -> None:
        self.feed.publish(self.node.state, events)
        self.node.state, _ = fold(self.node.state, events)

    async def portions(self, after: int, count: int) -> list[tuple[list[int], Cas]]:
        """Return the CAS of the changes of some portions above a CAS, and up to where each is."""
        found: list[tuple[list[int], Cas]] = []
        selector = selection_of(TOPIC, SUBSCRIPTION)
        async with (
            asyncio.timeout(60),
            aclosing(self.deliveries._changes_above(Cas(after), selector)) as portions,
        ):
            async for portion, cas in portions:
                found.append(([change.event.cas for change in portion], cas))
                if len(found) == count:
                    break
        return found


def test_a_transaction_is_one_portion_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_MAX", 2)

    async def story(bench: Bench) -> None:
        bench.install(some(1, 51, "a", "b", "c"))
        bench.install(some(2, 54, "a"))
        assert await bench.portions(50, 2) == [([51, 52, 53], 53), ([54], 54)]
        assert len(bench.feed) == 0, "it left its place"

    asyncio.run(story(Bench()))


def test_pages_of_the_past_follow_each_other_up_to_now() -> None:
    first, second = changes(some(1, 11, "a")), changes(some(2, 12, "a", "b"))

    async def story(bench: Bench) -> None:
        bench.pages = [Page(first, (b"",), Cas(11)), Page(second, (b"", b""), None)]
        assert await bench.portions(10, 2) == [([11], 11), ([12, 13], 50)]
        assert bench.asked == [10, 11]

    asyncio.run(story(Bench()))


def test_the_past_is_delivered_in_whole_transactions_whatever_bound_a_page_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that has more changes, and more bytes, than any page may have."""
    monkeypatch.setattr(module, "BATCH_MAX", 2)
    monkeypatch.setattr(histories, "PAGE_BYTES_MAX", 100)
    made = [some(1, 11, "a"), some(2, 12, "a", "b", "c"), some(3, 48, "a"), some(4, 49, "a", "b")]
    log = MemoryLog(lambda: flat(*made))

    async def story(bench: Bench) -> None:
        past = History(lambda _: log, tmp_path)
        bench.deliveries._history = past
        found = [([11], 11), ([12, 13, 14], 14), ([48], 48), ([49, 50], 50)]
        assert await bench.portions(10, 4) == found

    asyncio.run(story(Bench()))


def test_a_position_moves_on_where_no_change_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    other = Topic("other", "{}", 0)

    async def story(bench: Bench) -> None:
        bench.install(a_transaction(1, 51, Mutation("TopicAdded", other.key, encode(other), other)))
        assert await bench.portions(50, 1) == [([], 51)]

    asyncio.run(story(Bench()))


# -- what is written -----------------------------------------------------------------------------


class MemoryDelivery:
    """Writes to a list; it can be told to fail."""

    def __init__(self) -> None:
        self.written: list[tuple[list[int], Cas]] = []
        self.fails_with: list[Exception] = []
        self.at_writing: Callable[[], None] = lambda: None
        self.opened = 0
        self.closed = threading.Event()

    def open(self, *_: Any) -> MemoryDelivery:
        self.opened += 1
        return self

    def write(self, found: Sequence[Delivered], position: SubscriptionAcknowledged) -> None:
        self.at_writing()
        if self.fails_with:
            raise self.fails_with.pop(0)
        self.written.append(([one.cas for one in found], position.cas))

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def delivery(monkeypatch: pytest.MonkeyPatch) -> MemoryDelivery:
    made = MemoryDelivery()
    monkeypatch.setattr(module, "Delivery", made.open)
    return made


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long there was a pause each time: it takes no time here."""
    found: list[float] = []
    sleep = asyncio.sleep

    async def pause(for_s: float) -> None:
        if for_s:
            found.append(for_s)
        await sleep(0)

    monkeypatch.setattr(module.asyncio, "sleep", pause)
    return found


def subscribed() -> Bench:
    """Return a bench whose state has the subscription, at CAS 50."""
    return Bench(a_state_of(50, TOPIC, SUBSCRIPTION))


def unsubscribed(cas: int) -> tuple[Event, ...]:
    return a_transaction(cas, cas, Mutation("Unsubscribed", SUBSCRIPTION.key, None, None))


async def deliver(bench: Bench) -> None:
    async with asyncio.timeout(60):
        selection = selection_of(TOPIC, SUBSCRIPTION)
        await bench.deliveries._deliver(selection, SUBSCRIPTION)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0)


def tell(story: Callable[[Bench], Awaitable[None]]) -> None:
    async def told() -> None:
        await story(subscribed())

    asyncio.run(told())


def test_a_delivery_writes_what_fits_up_to_the_end_and_ends_there(
    delivery: MemoryDelivery,
) -> None:
    """It closes what it has opened, and opens nothing more."""

    async def story(bench: Bench) -> None:
        bench.install(some(1, 51, "a", "b"))
        bench.install(unsubscribed(53))
        bench.install(some(2, 54, "a"))
        await deliver(bench)
        assert delivery.written == [([51, 52], 53)]
        assert await asyncio.to_thread(delivery.closed.wait, 10)
        assert delivery.opened == 1

    tell(story)


def test_a_position_is_known_when_it_is_written_and_not_before(
    delivery: MemoryDelivery, pauses: list[float]
) -> None:
    """What failed is delivered again; and then it has no problem any more."""

    async def story(bench: Bench) -> None:
        known: list[int] = []
        delivery.at_writing = lambda: known.append(bench.positions.reached(7))
        delivery.fails_with = [DeliveryError("no broker")]
        bench.install(some(1, 51, "a"))
        delivering = asyncio.create_task(deliver(bench))
        await until(lambda: bool(bench.deliveries.problems))
        await until(lambda: bench.positions.reached(7) == 51)
        assert known == [0, 0]
        assert delivery.written == [([51], 51)]
        await until(lambda: bench.deliveries.problems == {})
        bench.install(unsubscribed(52))
        await delivering

    tell(story)


def test_a_delivery_that_fails_pauses_longer_each_time_up_to_a_bound(
    delivery: MemoryDelivery, pauses: list[float]
) -> None:
    """Whatever fails: one subscription must not end the node."""

    async def story(bench: Bench) -> None:
        delivery.fails_with = [DeliveryError("no broker"), *map(ValueError, "123456789")]
        bench.install(some(1, 51, "a"))
        delivering = asyncio.create_task(deliver(bench))
        await until(lambda: bool(delivery.written))
        bench.install(unsubscribed(52))
        await delivering

    tell(story)
    first, most = module.FIRST_PAUSE_S, module.PAUSE_MAX_S
    assert pauses == [min(most, first * 2**n) for n in range(10)]


def test_a_delivery_that_has_gone_well_for_long_pauses_briefly_again(
    delivery: MemoryDelivery, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))

    def writing() -> None:
        nonlocal now_s
        now_s += module.PAUSE_MAX_S + 1 if len(pauses) == 3 else 0

    async def story(bench: Bench) -> None:
        delivery.at_writing = writing
        delivery.fails_with = [DeliveryError("no broker")] * 5
        bench.install(some(1, 51, "a"))
        bench.install(unsubscribed(52))
        await deliver(bench)

    tell(story)
    first = module.FIRST_PAUSE_S
    assert pauses == [first, 2 * first, 4 * first, first, 2 * first]


def test_a_problem_is_shown_up_to_a_length(delivery: MemoryDelivery, pauses: list[float]) -> None:
    """Each heartbeat and page of metrics would carry it, and a broker says what it likes."""

    async def story(bench: Bench) -> None:
        shown: list[str] = []
        delivery.fails_with = [DeliveryError("x" * 10_000)] * 2
        delivery.at_writing = lambda: shown.extend(bench.deliveries.problems.values())
        bench.install(some(1, 51, "a"))
        bench.install(unsubscribed(52))
        await deliver(bench)
        assert {*map(len, shown)} == {module.PROBLEM_LENGTH_MAX}

    tell(story)


GONE = pytest.mark.parametrize(
    "after", [None, replace(SUBSCRIPTION, number=8)], ids=["gone", "another"]
)


@GONE
def test_what_came_before_the_end_is_tried_again_although_the_subscription_is_gone(
    delivery: MemoryDelivery, pauses: list[float], after: Subscription | None
) -> None:
    async def story(bench: Bench) -> None:
        delivery.fails_with = [DeliveryError("no broker")] * 2
        bench.install(some(1, 51, "a"))
        bench.install(unsubscribed(52))
        bench.node.state = a_state_of(52, TOPIC, *([after] if after else []))
        await deliver(bench)
        assert delivery.written == [([51], 52)]
        assert bench.deliveries._ending_s == {}

    tell(story)


@GONE
@pytest.mark.parametrize("bound", ["ENDING_S", "ENDING_MAX"])
def test_a_delivery_that_fails_is_given_up_in_the_end_once_the_subscription_is_gone(
    delivery: MemoryDelivery,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    after: Subscription | None,
    bound: str,
) -> None:
    """Its topic may be gone as well; and not too many are tried again at a time."""
    monkeypatch.setattr(module, bound, -1)

    async def story(bench: Bench) -> None:
        delivery.fails_with = [DeliveryError("no broker")] * 2
        bench.install(some(1, 51, "a"))
        bench.node.state = a_state_of(51, TOPIC, *([after] if after else []))
        await deliver(bench)

    tell(story)
    assert (delivery.opened, pauses) == (1, [])


def test_a_master_that_leads_again_gives_what_came_before_an_end_all_of_its_time_again(
    delivery: MemoryDelivery, pauses: list[float]
) -> None:
    """What it tried before it was deposed counts neither as time nor as one of so many."""

    async def story(bench: Bench) -> None:
        delivery.fails_with = [DeliveryError("no broker")] * 1_000
        bench.install(some(1, 51, "a"))
        bench.install(unsubscribed(52))
        bench.node.state = a_state_of(52, TOPIC)
        delivering = asyncio.create_task(deliver(bench))
        await until(lambda: len(pauses) > 1)
        delivering.cancel()
        await asyncio.wait([delivering])
        assert bench.deliveries._ending_s == {}

    tell(story)


def test_a_delivery_of_which_the_last_part_was_in_doubt_ends_where_that_is_there(
    delivery: MemoryDelivery, pauses: list[float]
) -> None:
    """Nothing comes after the end: it would wait for ever."""

    async def story(bench: Bench) -> None:
        def in_doubt() -> None:
            bench.positions.take(SubscriptionAcknowledged(7, Cas(52), 0), 0)

        delivery.at_writing, delivery.fails_with = in_doubt, [DeliveryError("in doubt")]
        bench.install(some(1, 51, "a"))
        bench.install(unsubscribed(52))
        await deliver(bench)
        assert (delivery.written, delivery.opened) == ([], 2)

    tell(story)


def test_nothing_is_delivered_to_a_topic_of_the_cluster(
    delivery: MemoryDelivery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads it would take the changes for its own records."""
    monkeypatch.setattr(module, "ENDING_S", -1.0)

    async def story(bench: Bench) -> None:
        forbidden = replace(SUBSCRIPTION, deliver_to="own.commit")
        async with asyncio.timeout(60):
            await bench.deliveries._deliver(selection_of(TOPIC, forbidden), forbidden)
        assert "of the cluster itself" in bench.deliveries.problems[7]

    tell(story)
    assert delivery.opened == 0


def test_who_was_removed_is_still_delivered_what_came_before() -> None:
    """A master that leads no more ends it."""

    async def story(bench: Bench) -> None:
        ended: list[bool] = []

        async def deliver_for_ever(*_: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        bench.deliveries._deliver = deliver_for_ever  # type: ignore[method-assign]
        bench.deliveries.arrange([(TOPIC, SUBSCRIPTION)])
        await asyncio.sleep(0)
        bench.deliveries.arrange([])
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == []
        bench.deliveries.arrange(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ended == [True]

    tell(story)


# -- a subscription that ended under another master ----------------------------------------------


async def lead(bench: Bench) -> None:
    """Have a master find what has ended, and deliver all that it has to."""
    deliveries = bench.deliveries
    deliveries.finish(ended_deliveries(bench.node.state, bench.feed.kept()))
    deliveries.arrange([])
    async with asyncio.timeout(60):
        await asyncio.gather(*deliveries._tasks.values())


def end(bench: Bench) -> None:
    """Let two settings be written, and then the subscription end, and a setting be written."""
    bench.install(some(1, 51, "a", "b"))
    bench.install(unsubscribed(53))
    bench.install(some(2, 54, "a"))


def at(cas: int) -> SubscriptionAcknowledged:
    return SubscriptionAcknowledged(SUBSCRIPTION.number, Cas(cas), 0)


@pytest.mark.parametrize(
    ("reached", "written"),
    [(50, [([51, 52], 53)]), (51, [([52], 53)]), (52, [([], 53)]), (53, []), (None, [])],
    ids=["nothing was", "a part", "all but the end", "all", "nobody knows"],
)
def test_the_next_master_delivers_what_came_before_an_end_unless_it_is_there(
    delivery: MemoryDelivery, reached: int | None, written: list[tuple[list[int], int]]
) -> None:
    """Where no position is known, all of it may have been delivered, and forgotten since."""

    async def story(bench: Bench) -> None:
        end(bench)
        if reached is not None:
            bench.positions.take(at(reached), 0)
        await lead(bench)
        assert delivery.written == written
        assert delivery.opened == bool(written)
        assert bench.deliveries.numbers == set()

    tell(story)


def test_no_more_that_have_ended_are_begun_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic may have gone with hundreds of subscriptions at once."""
    monkeypatch.setattr(module, "ENDING_MAX", 2)

    async def story(bench: Bench) -> None:
        many = (replace(SUBSCRIPTION, number=number) for number in range(7, 12))
        bench.deliveries.finish(Ended(TOPIC, one, Cas(52)) for one in many)
        assert bench.deliveries.numbers == {7, 8}

    tell(story)


def test_its_positions_are_needed_until_it_is_delivered(delivery: MemoryDelivery) -> None:
    async def story(bench: Bench) -> None:
        end(bench)
        bench.positions.take(at(50), 0)
        bench.deliveries.finish(ended_deliveries(bench.node.state, bench.feed.kept()))
        assert bench.deliveries.numbers == {7}
        bench.deliveries.arrange([])
        assert bench.deliveries.numbers == {7}
        bench.deliveries.arrange(None)
        await asyncio.wait(bench.deliveries._tasks.values())
        assert bench.deliveries.numbers == set()

    tell(story)


def test_a_master_that_leads_no_more_finishes_nothing(delivery: MemoryDelivery) -> None:
    async def story(bench: Bench) -> None:
        end(bench)
        bench.positions.take(at(50), 0)
        bench.deliveries.finish(ended_deliveries(bench.node.state, bench.feed.kept()))
        bench.deliveries.arrange(None)
        bench.deliveries.arrange([])
        assert bench.deliveries._tasks == {}

    tell(story)


def test_half_a_surrogate_pair_is_delivered_as_the_escape_that_json_has() -> None:
    """An index bound may have one; a change that could not be delivered would stop all others."""
    (change,) = changes(a_transaction(1, 51, odd_index()))
    delivered = _delivered(change)
    assert rb"\ud800" in delivered.value
    assert json.loads(delivered.value)["cas"] == 51


def odd_index() -> Mutation:
    index = make_index(1, bounds_json='[["\\ud800"]]')
    return Mutation("IndexProposed", index.key, encode(index), index)
