"""What a master does for subscribers, look by look: whom it lets expire, and what it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.codec import encode
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.history.changes import changes_of, fold
from coordinator.core.history.feed import Feed, Kept, KeptTransaction
from coordinator.core.history.lines import Published
from coordinator.core.history.subscribing import gone, selection_of
from coordinator.core.model.commands import ExpireSubscription, Outcome
from coordinator.core.model.entities import Entity, Subscription, Topic
from coordinator.core.model.records import Mutation
from coordinator.core.model.subscription_records import SubscriberSeen, SubscriptionRecord
from coordinator.core.model.types import Cas, Epoch
from coordinator.kafka.subscription_log import NotWrittenError
from coordinator.node import positions, subscriptions
from coordinator.node.positions import PositionBook
from coordinator.node.subscriptions import (
    AT_ONCE_MAX,
    CATCH_UP_MS,
    EXPIRE_MS,
    Lag,
    Subscriptions,
    lags_of,
)
from tests.support.changes import a_transaction, written
from tests.support.subscriptions import make_subscription

TOPIC = Topic("settings", "{}", 0)
SUBSCRIPTION = make_subscription()


def state_of(*entities: Entity) -> StateContext:
    written = [Mutation("Written", e.key, encode(e), e) for e in entities]
    return fold(EMPTY, a_transaction(1, 1, *written))[0]


class MemoryBook(PositionBook):
    """A book on a log in memory, which can stand still."""

    def __init__(self) -> None:
        super().__init__("", "memory", lambda *_: None, lambda _: None)
        self.stands_still = False
        self.log: list[SubscriptionRecord] = []

    def listen(self) -> None:
        """There is no broker."""

    async def _write(self, record: SubscriptionRecord) -> None:
        self.log.append(record)
        self.read()

    def read(self) -> None:
        if not self.stands_still:
            found, self.log = self.log, []
            self.take(found)


class Bench:
    """A node's subscriptions, in a time that the test tells."""

    def __init__(self, *found: Subscription) -> None:
        self.now_ms = 0
        self.asked: list[ExpireSubscription] = []
        self.deadlines_ms: list[int] = []
        master = SimpleNamespace(epoch=3, active=True)
        self.node: Any = SimpleNamespace(state=state_of(TOPIC, *found), master=master)
        self.subscriptions = Subscriptions(
            "",
            "memory",
            node=self.node,
            changes=Feed(),
            history=SimpleNamespace(),  # type: ignore[arg-type]
            ask=self._ask,
            dead_letter=lambda *_: None,
            failed=lambda _: None,
        )
        self.book = self.subscriptions.book = MemoryBook()

    async def _ask(self, make: Callable[[int], Any]) -> Outcome:
        request = make(1).request
        self.asked.append(request.command)
        self.deadlines_ms.append(request.deadline_ms - self.now_ms)
        return Outcome("unavailable")

    async def look(self, for_ms: int) -> None:
        """Look every half second of a while."""
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.now_ms += 500
            await self.subscriptions._look()
            for _ in range(5):  # What was begun is written, and read back.
                await asyncio.sleep(0)

    def hear(self, one: Subscription = SUBSCRIPTION) -> None:
        self.book.log.append(SubscriberSeen(one.number, 0, 0))
        self.book.read()


Story = Callable[[Bench], Awaitable[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bench]:
    def told(story: Story, *found: Subscription) -> Bench:
        async def tell() -> Bench:
            bench = Bench(*found)
            for module in (positions, subscriptions):
                monkeypatch.setattr(module, "monotonic_ms", lambda: bench.now_ms)
            await story(bench)
            return bench

        return asyncio.run(tell())

    return told


def test_who_is_silent_is_let_expire(run: Callable[..., Bench]) -> None:
    async def story(bench: Bench) -> None:
        await bench.look(10_000)
        assert bench.asked == []
        await bench.look(1_500)

    bench = run(story, SUBSCRIPTION)
    assert set(bench.asked) == {ExpireSubscription("settings", "a", 7)}
    assert set(bench.deadlines_ms) == {EXPIRE_MS}, "the node would not begin what is late"


def test_only_so_many_are_let_expire_at_once(run: Callable[..., Bench]) -> None:
    """Each look ends some: the master has other requests, too."""
    many = [replace(SUBSCRIPTION, id=f"s{n}", number=100 + n) for n in range(AT_ONCE_MAX + 1)]

    async def story(bench: Bench) -> None:
        while not bench.asked:
            await bench.look(500)

    assert len(run(story, *many).asked) == AT_ONCE_MAX


def test_nobody_expires_while_the_log_stands_still(run: Callable[..., Bench]) -> None:
    """As when a transaction is open on it: it was heard of, and that cannot be read yet."""

    async def story(bench: Bench) -> None:
        bench.book.stands_still = True
        for _ in range(10):
            await bench.look(5_000)
            bench.hear()
        bench.book.stands_still = False
        bench.book.read()
        await bench.look(9_000)

    assert run(story, SUBSCRIPTION).asked == []


def test_nobody_expires_while_nothing_can_be_written(run: Callable[..., Bench]) -> None:
    async def story(bench: Bench) -> None:
        async def fails(record: SubscriptionRecord) -> None:
            raise NotWrittenError("no broker answers")

        bench.book._write = fails  # type: ignore[method-assign]
        await bench.look(60_000)

    assert run(story, SUBSCRIPTION).asked == []


def test_a_master_that_is_elected_again_between_two_looks_gives_everybody_their_time_again(
    run: Callable[..., Bench],
) -> None:
    async def story(bench: Bench) -> None:
        await bench.look(9_000)
        bench.node.master = SimpleNamespace(epoch=5, active=True)
        await bench.look(9_000)
        assert bench.asked == []
        await bench.look(3_000)
        assert bench.asked != []

    run(story, SUBSCRIPTION)


def test_a_delivery_begins_anew_with_each_mastership(run: Callable[..., Bench]) -> None:
    delivered = replace(SUBSCRIPTION, deliver_to="out", expires_after_ms=0)

    async def story(bench: Bench) -> None:
        begun: list[int] = []

        async def deliver(*_: Any) -> None:
            begun.append(bench.node.master.epoch)
            await asyncio.Event().wait()

        bench.subscriptions.deliveries._deliver = deliver  # type: ignore[method-assign]
        await bench.look(2_000)
        bench.node.master = SimpleNamespace(epoch=5, active=True)
        await bench.look(2_000)
        bench.node.master = None
        await bench.look(500)
        assert begun == [3, 5]
        assert all(task.done() for task in bench.subscriptions.deliveries._tasks.values())
        await bench.subscriptions.close()

    run(story, delivered)


def test_a_master_that_has_not_begun_to_lead_does_nothing_for_subscribers(
    run: Callable[..., Bench],
) -> None:
    delivered = replace(SUBSCRIPTION, id="b", number=8, deliver_to="out")

    async def story(bench: Bench) -> None:
        bench.node.master = SimpleNamespace(epoch=5, active=False)
        await bench.look(30_000)
        assert bench.asked == []
        assert bench.subscriptions.deliveries._tasks == {}

    run(story, SUBSCRIPTION, delivered)


def test_a_new_master_looks_for_deliveries_that_ended_under_the_one_before(
    run: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have died before it had delivered what came before the end."""
    monkeypatch.setattr(subscriptions, "FORGET_S", -1.0)
    delivered = replace(SUBSCRIPTION, deliver_to="out", expires_after_ms=0)

    async def story(bench: Bench) -> None:
        begun: list[tuple[int, Cas]] = []
        forgotten: list[int] = []

        async def deliver(_: Any, one: Subscription, end: Cas) -> None:
            begun.append((one.number, end))
            await asyncio.Event().wait()

        async def forget(numbers: Sequence[int]) -> None:
            forgotten.extend(numbers)

        bench.subscriptions.deliveries._deliver = deliver  # type: ignore[method-assign]
        bench.book.forget = forget  # type: ignore[method-assign]
        bench.book._reader = SimpleNamespace(stop=lambda: None)  # type: ignore[assignment]
        bench.hear(delivered)
        gone = a_transaction(2, 9, Mutation("Unsubscribed", delivered.key, None, None))
        bench.subscriptions._changes.publish(bench.node.state, gone)
        bench.node.state, _ = fold(bench.node.state, gone)
        await bench.look(2_000)
        assert begun == [(7, 9)]
        assert forgotten == [], "the position is still needed"
        bench.node.master = SimpleNamespace(epoch=5, active=True)
        await bench.look(2_000)
        assert begun == [(7, 9)] * 2
        await bench.subscriptions.close()

    run(story, delivered)


def test_no_delivery_begins_while_the_node_ends(run: Callable[..., Bench]) -> None:
    """It would fence the one of the next master, who may lead by now."""
    delivered = replace(SUBSCRIPTION, deliver_to="out", expires_after_ms=0)

    async def story(bench: Bench) -> None:
        bench.subscriptions._changes.close()
        async with asyncio.timeout(60):
            await bench.subscriptions.run()
        assert bench.subscriptions.deliveries._tasks == {}

    run(story, delivered)


def test_nobody_writes_marks_where_nobody_can_expire(run: Callable[..., Bench]) -> None:
    async def story(bench: Bench) -> None:
        bench.book.stands_still = True
        await bench.look(5_000)
        assert bench.book.log == []

    run(story, replace(SUBSCRIPTION, expires_after_ms=0))


def test_marks_are_written_now_and_then_and_not_with_each_look(run: Callable[..., Bench]) -> None:
    async def story(bench: Bench) -> None:
        marks: list[int] = []

        async def mark() -> None:
            marks.append(bench.now_ms)

        bench.book.catch_up = mark  # type: ignore[method-assign]
        for bench.now_ms in range(0, 2 * CATCH_UP_MS, 100):
            await bench.subscriptions._look()
            await asyncio.sleep(0)
        assert marks == [0, CATCH_UP_MS]

    run(story, SUBSCRIPTION)


def test_no_mark_is_written_while_another_is_waited_for(run: Callable[..., Bench]) -> None:
    """Where the log stands still there would be more of them with each look."""

    async def story(bench: Bench) -> None:
        begun: list[int] = []

        async def mark() -> None:
            begun.append(bench.now_ms)
            await asyncio.Event().wait()

        bench.book.catch_up = mark  # type: ignore[method-assign]
        await bench.look(10 * CATCH_UP_MS)
        assert len(begun) == 1

    run(story, SUBSCRIPTION)


def test_a_master_alone_shows_subscribers_and_who_of_them_has_a_problem(
    run: Callable[..., Bench],
) -> None:
    other = replace(SUBSCRIPTION, id="b", number=8)

    async def story(bench: Bench) -> None:
        bench.subscriptions.deliveries.problems[8] = "why"
        bench.subscriptions.measuring()()
        rows = bench.subscriptions.rows()
        assert {(row.subscriber, row.has_problem) for row in rows} == {("a", False), ("b", True)}
        bench.node.master = None
        bench.subscriptions.measuring()()
        assert bench.subscriptions.rows() == []

    run(story, SUBSCRIPTION, other)


def test_what_is_known_of_a_subscription_is_removed_once_that_is_gone_for_long(
    run: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is kept while it is there, however silent."""
    monkeypatch.setattr(subscriptions, "FORGET_S", 0.0)
    forever = replace(SUBSCRIPTION, expires_after_ms=0)

    async def story(bench: Bench) -> None:
        forgotten: list[int] = []

        async def forget(numbers: Sequence[int]) -> None:
            forgotten.extend(numbers)
            bench.book.positions.forget(numbers)

        bench.book.forget = forget  # type: ignore[method-assign]
        bench.subscriptions.book._reader = SimpleNamespace()  # type: ignore[assignment]
        bench.hear(forever)
        bench.hear(replace(forever, number=8))
        await bench.look(2_000)
        assert forgotten == [8]
        assert {*bench.book.positions.heard_ms} == {7}

    run(story, forever)


def test_who_was_gone_and_came_back_is_gone_anew(
    run: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was behind did not know the subscription yet."""
    forever = replace(SUBSCRIPTION, expires_after_ms=0)

    async def story(bench: Bench) -> None:
        monkeypatch.setattr(
            subscriptions, "time", SimpleNamespace(monotonic=lambda: bench.now_ms / 1_000)
        )

        async def forget(numbers: Sequence[int]) -> None:
            bench.book.positions.forget(numbers)

        bench.book.forget = forget  # type: ignore[method-assign]
        bench.subscriptions.book._reader = SimpleNamespace()  # type: ignore[assignment]
        bench.hear(forever)
        there, without = bench.node.state, state_of(TOPIC)
        for state in (without, there, without):
            bench.node.state = state
            await bench.look(int(subscriptions.FORGET_S) * 400)
            assert {*bench.book.positions.heard_ms} == {forever.number}
        await bench.look(int(subscriptions.FORGET_S) * 700)
        assert {*bench.book.positions.heard_ms} == set()

    run(story, forever)


def test_a_look_costs_the_same_however_many_positions_strangers_have_written(
    run: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """300,000 of them held the loop for half a second, five times a second. All go in time."""
    monkeypatch.setattr(subscriptions, "FORGET_S", 0.0)
    monkeypatch.setattr(subscriptions, "LOOK_MAX", 10)
    forever = replace(SUBSCRIPTION, expires_after_ms=0)
    later = 2**62
    looked_at: list[int] = []

    def looking(state: StateContext, numbers: Sequence[int], epoch: Epoch) -> set[int]:
        looked_at.append(len([*numbers]))
        return gone(state, numbers, epoch)

    monkeypatch.setattr(subscriptions, "gone", looking)

    async def story(bench: Bench) -> None:
        async def forget(numbers: Sequence[int]) -> None:
            bench.book.positions.forget(numbers)

        bench.book.forget = forget  # type: ignore[method-assign]
        bench.subscriptions.book._reader = SimpleNamespace()  # type: ignore[assignment]
        for number in (forever.number, *range(100, 200), *range(later, later + 5)):
            bench.hear(replace(forever, number=number))
        await bench.look(20_000)
        assert max(looked_at) == 10
        # Of a later epoch this master knows nothing.
        kept = {forever.number, *range(later, later + 5)}
        assert {*bench.book.positions.heard_ms} == kept
        assert not bench.subscriptions._gone_since_s

    run(story, forever)


# -- how far behind it is ------------------------------------------------------------------------


def kept_of(*names: str) -> Kept:
    """Return transactions of one setting each, from CAS 11 on; that of CAS n was made at n ms."""
    found = []
    for number, name in enumerate(names):
        cas = Cas(11 + number)
        (event,) = a_transaction(cas, cas, replace(written(name, "1"), at_ms=cas))
        changes = tuple(map(Published, changes_of(EMPTY, [event])))
        found.append(KeptTransaction(Cas(cas - 1), changes, 0))
    return tuple(found)


@pytest.mark.parametrize(
    ("position", "lag"),
    [
        (9, Lag(5, None, None)),
        (10, Lag(4, 2, 1_000 - 11)),
        (11, Lag(3, 1, 1_000 - 13)),
        (12, Lag(2, 1, 1_000 - 13)),
        (13, Lag(0, 0, 0)),
        (14, Lag(0, 0, 0)),
    ],
)
def test_a_lag_tells_what_waits_above_the_position_and_since_when(
    monkeypatch: pytest.MonkeyPatch, position: int, lag: Lag
) -> None:
    """It is not known where not all changes above the position are at hand."""
    monkeypatch.setattr(subscriptions, "now_ms", lambda: 1_000)
    wanted = selection_of(TOPIC, replace(SUBSCRIPTION, filter_json='{"key":["config/a"]}'))
    kept = kept_of("a", "b", "a", "b", "a")
    assert lags_of([(wanted, Cas(position))], Cas(14), kept) == {7: lag}
    assert lags_of([(wanted, Cas(9))], Cas(14), ()) == {7: Lag(5, None, None)}


def test_a_clock_that_is_behind_the_one_of_the_change_makes_no_negative_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "now_ms", lambda: 5)
    place = (selection_of(TOPIC, SUBSCRIPTION), Cas(10))
    assert lags_of([place], Cas(11), kept_of("a"))[7].ms == 0


def test_the_lags_of_many_are_those_that_each_has_alone() -> None:
    kept = kept_of(*"abcabcab")
    places = [
        (selection_of(TOPIC, replace(SUBSCRIPTION, number=n, filter_json=text)), Cas(at))
        for n, (text, at) in enumerate(
            product(["{}", '{"key":["config/a"]}', '{"kind":["index"]}'], range(9, 20))
        )
    ]
    alone = {n: lags_of([place], Cas(18), kept)[n] for n, place in enumerate(places)}
    many = lags_of(places, Cas(18), kept)
    assert {n: lag[:2] for n, lag in many.items()} == {n: lag[:2] for n, lag in alone.items()}
