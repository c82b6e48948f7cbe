"""What a node does for those who subscribe: it keeps their positions, and delivers to Kafka.

Every node reads `subscription-positions` while there are subscriptions, and takes acknowledgements.
The master alone delivers changes to Kafka topics, and says which subscribers have expired. Nothing
here is needed to go on after a crash: positions are in the log, subscriptions in the state.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import KafkaException, Message
from immutables import Map

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import inputs
from coordinator.core.history import shown
from coordinator.core.history.changes import Change
from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Selector
from coordinator.core.history.subscribing import (
    Positions,
    Selection,
    Silence,
    selection_of,
    subscriptions,
    told,
)
from coordinator.core.model.commands import ExpireSubscription, Outcome, Request
from coordinator.core.model.entities import Subscription, Topic
from coordinator.core.model.subscription_records import (
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.kafka.subscription_log import (
    Delivered,
    Delivery,
    DeliveryError,
    NotWrittenError,
    PositionReader,
    PositionWriter,
)
from coordinator.kafka.topics import is_own
from coordinator.node.history import CompactedError, History, StillReadingError

T = TypeVar("T")
Ask = Callable[[Callable[[int], inputs.Input]], Awaitable[Outcome]]

LOOK_S = 0.2
SETTLE_S = 10.0
EXPIRE_MS = 5_000
BATCH_MAX = 500
IDLE_S = 5.0
"""A position moves on after so long where no change fits: else who wants few would look late."""

FIRST_PAUSE_S, PAUSE_MAX_S = 0.2, 30.0
FORGET_S = 600.0
"""Positions of a subscription that is gone are removed after so long: this node may be behind."""

log = logging.getLogger("coordinator")


class Lag(NamedTuple):
    """How far behind a subscriber is: in CAS, in changes that wait for it, and how long the oldest
    of them has. None: older than what this node has at hand."""

    cas: int
    changes: int | None
    ms: int | None


class Subscriptions:
    """The subscriptions of one node. The loop owns it; `run` is its task, and `close` ends it."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        *,
        node: Node,
        changes: Feed,
        history: History,
        ask: Ask,
        bury: Callable[[Message, str], None],
        failed: Callable[[str], None],
    ) -> None:
        """`bury` and `failed` may be called in another thread."""
        self._servers, self._cluster = bootstrap_servers, cluster
        self._node, self._changes, self._history = node, changes, history
        self._ask, self._bury, self._failed = ask, bury, failed
        self.positions = Positions()
        self.problems: dict[int, str] = {}
        """By the number of a subscription: why nothing is delivered to Kafka, if that is so."""

        self._loop = asyncio.get_running_loop()
        self._marks: dict[int, asyncio.Future[None]] = {}
        self._writing = ThreadPoolExecutor(1, "positions")
        self._writer: PositionWriter | None = None
        self._reader: PositionReader | None = None
        self._deliveries: dict[int, asyncio.Task[None]] = {}
        self._silence = Silence()
        self._gone_since_s: dict[int, float] = {}
        self._is_closed = False

    # -- for the API -------------------------------------------------------------------------

    def may_deliver_to(self, topic: str) -> bool:
        """Tell whether changes may be written to a topic: it must not be one of the cluster's."""
        return not is_own(self._cluster, topic)

    async def acknowledge(self, subscription: Subscription, cas: Cas) -> Cas:
        """Note that a subscriber has all changes up to a CAS; return how far it is then.

        Raises NotWrittenError.
        """
        if cas > self.positions.of(subscription):
            await self._write(SubscriptionAcknowledged(subscription.number, cas, _now_ms()))
        else:
            await self.note_presence(subscription)
        return self.positions.of(subscription)

    async def note_presence(self, subscription: Subscription) -> None:
        """Note that a subscriber is there, where it matters. Raises NotWrittenError."""
        if subscription.expires_after_ms:
            await self._write(SubscriberSeen(subscription.number, _now_ms(), 0))

    async def settle(self, subscription: Subscription) -> Cas:
        """Return how far a subscriber is, knowing all that any node has written of it before.

        Raises NotWrittenError.
        """
        self._listen()
        mark = secrets.randbits(62) + 1
        read = self._marks[mark] = self._loop.create_future()
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._write(SubscriberSeen(subscription.number, _now_ms(), mark))
                await read
        except TimeoutError:
            raise NotWrittenError("the positions of subscribers cannot be read") from None
        finally:
            del self._marks[mark]
        return self.positions.of(subscription)

    def lag(self, state: StateContext, subscription: Subscription, selection: Selection) -> Lag:
        """Return how far behind a subscriber is, as far as this node knows."""
        position = self.positions.of(subscription)
        if position >= state.cas:
            return Lag(0, 0, 0)
        above = self._changes.above(position, state.cas)
        if above is None:
            return Lag(state.cas - position, None, None)
        waiting = [change for change in above if selection.wants(change)]
        if not waiting:
            return Lag(0, 0, 0)
        waits_ms = max(0, _now_ms() - waiting[0].event.mutation.at_ms)
        return Lag(state.cas - position, len(waiting), waits_ms)

    # -- the task ----------------------------------------------------------------------------

    @property
    def _leads(self) -> bool:
        master = self._node.master
        return master is not None and master.active

    async def run(self) -> None:
        """Look at the state now and then, until this is closed."""
        seen: Map[str, Any] = Map()
        led = False
        while not self._is_closed:
            state, leads = self._node.state, self._leads
            of_kind = state.kinds.get("subscription", Map())
            if of_kind:
                self._listen()
            if leads and not led:
                self._silence = Silence()
            if of_kind is not seen or leads is not led:
                self._arrange(state if leads else None)
                seen, led = of_kind, leads
            if leads and of_kind:
                await self._expire(state)
            if leads and self._reader is not None:
                await self._forget(state)
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """End all deliveries, and let go of Kafka."""
        self._is_closed = True
        self._arrange(None)
        if self._reader is not None:
            await asyncio.to_thread(self._reader.stop)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._writing.shutdown(wait=False)

    def _arrange(self, state: StateContext | None) -> None:
        """Deliver what this state says, and nothing else; None: this node does not lead."""
        wanted: dict[int, tuple[Topic, Subscription]] = {}
        if state is not None:
            wanted = {s.number: (t, s) for t, s in subscriptions(state) if s.deliver_to}
        for number, (topic, subscription) in wanted.items():
            task = self._deliveries.get(number)
            if task is None or task.done():
                delivering = self._deliver(selection_of(topic, subscription), subscription)
                self._deliveries[number] = self._loop.create_task(delivering)
        if state is None:
            # Who was removed is still delivered what came before: that ends by itself.
            for task in self._deliveries.values():
                task.cancel()
        self._deliveries = {n: t for n, t in self._deliveries.items() if not t.done()}
        self.problems = {n: p for n, p in self.problems.items() if n in wanted}

    async def _expire(self, state: StateContext) -> None:
        """Ask for the end of subscriptions whose subscribers have been silent."""
        now_ms = time.monotonic_ns() // 1_000_000
        found = (subscription for _, subscription in subscriptions(state))
        for one in self._silence.overdue(found, self.positions.heard_ms, now_ms):
            command = ExpireSubscription(one.topic, one.id, one.number)
            deadline_ms = now_ms + EXPIRE_MS

            def make(
                token: int, command: ExpireSubscription = command, deadline_ms: int = deadline_ms
            ) -> inputs.Input:
                return inputs.Requested(
                    Request(command=command, token=token, deadline_ms=deadline_ms)
                )

            outcome = await self._ask(make)
            if outcome.status == "ok":
                log.info("subscriber %s of %s has expired", one.id, one.topic)

    async def _forget(self, state: StateContext) -> None:
        """Remove the positions of subscriptions that are gone."""
        there = {
            held.entity.number
            for held in state.of_kind("subscription")
            if isinstance(held.entity, Subscription)
        }
        now_s = time.monotonic()
        gone = self.positions.heard_ms.keys() - there
        self._gone_since_s = {n: self._gone_since_s.get(n, now_s) for n in gone}
        due = [n for n, since_s in self._gone_since_s.items() if now_s - since_s > FORGET_S]
        if due:
            with suppress(NotWrittenError):
                await self._in_writer(lambda writer: writer.forget(due))
                self.positions.forget(due)

    # -- positions ---------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._reader is None and not self._is_closed:
            self._reader = PositionReader(
                self._servers, self._cluster, self._hand_over, self._bury, self._failed
            )

    @property
    def has_died(self) -> bool:
        """Tell whether positions are not read any more, although they should be."""
        return self._reader is not None and self._reader.has_died

    def _hand_over(self, records: list[SubscriptionRecord]) -> None:
        with suppress(RuntimeError):  # The loop is being closed.
            self._loop.call_soon_threadsafe(self._take, records)

    def _take(self, records: Sequence[SubscriptionRecord]) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        for record in records:
            self.positions.take(record, now_ms)
            if isinstance(record, SubscriberSeen):
                read = self._marks.get(record.mark)
                if read is not None and not read.done():
                    read.set_result(None)

    async def _write(self, record: SubscriptionRecord) -> None:
        await self._in_writer(lambda writer: writer.write(record))
        if isinstance(record, SubscriptionAcknowledged):
            self._take([record])

    async def _in_writer(self, work: Callable[[PositionWriter], T]) -> T:
        def in_thread() -> T:
            if self._writer is None:
                self._writer = PositionWriter(self._servers, self._cluster)
            return work(self._writer)

        if self._is_closed:
            raise NotWrittenError("this node is stopping")
        return await self._loop.run_in_executor(self._writing, in_thread)

    # -- deliveries to Kafka -----------------------------------------------------------------

    async def _deliver(self, selection: Selection, subscription: Subscription) -> None:
        """Deliver until the subscription ends, whatever fails in between."""
        pause_s = FIRST_PAUSE_S
        while not self._is_closed:
            began_s = time.monotonic()
            try:
                await self._deliver_on(selection, subscription)
                return
            except (DeliveryError, NotWrittenError, CompactedError, KafkaException) as error:
                self.problems[subscription.number] = str(error)
                log.warning("subscriber %s of %s: %s", subscription.id, subscription.topic, error)
            pause_s = FIRST_PAUSE_S if time.monotonic() - began_s > PAUSE_MAX_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    async def _deliver_on(self, selection: Selection, subscription: Subscription) -> None:
        """Deliver over one producer until the subscription ends. Raises what `_deliver` catches."""
        if not self.may_deliver_to(subscription.deliver_to):
            raise DeliveryError(f"{subscription.deliver_to} is a topic of the cluster itself")
        thread = ThreadPoolExecutor(1, "delivery")
        run = partial(self._loop.run_in_executor, thread)
        opening = run(
            Delivery,
            self._servers,
            self._cluster,
            subscription.number,
            subscription.deliver_to,
        )
        try:
            delivery = await opening
            after = await self.settle(subscription)
            async for changes, cas in self.changes_above(after, selection):
                found, end = told(selection, changes)
                last = cas if end is None else end.event.cas
                position = SubscriptionAcknowledged(subscription.number, last, _now_ms())
                await run(delivery.write, [*map(_delivered, found)], position)
                self._take([position])
                self.problems.pop(subscription.number, None)
                if end is not None:
                    return
        finally:
            opening.add_done_callback(partial(_close_aside, thread))

    async def changes_above(
        self, after: Cas, selector: Selector
    ) -> AsyncIterator[tuple[Sequence[Change], Cas]]:
        """Yield the changes above a CAS as they come, and up to where that is all that fit.

        The changes of a transaction come together. Raises CompactedError, KafkaException.
        """
        wake = asyncio.Event()
        while not self._changes.is_closed:
            newest = self._node.state
            place = self._changes.subscribe(after, selector, wake.set, newest.cas)
            if place is None:
                read = partial(self._history.page, after, None, selector, BATCH_MAX, newest)
                try:
                    page = await asyncio.to_thread(read)
                except StillReadingError:
                    continue
                changes: Sequence[Change] = page.changes
                if page.next is not None:
                    changes = _whole(changes)
                last = changes[-1].event.cas if changes else page.next
                after = newest.cas if page.next is None else Cas(last or page.next)
                yield changes, after
                continue
            try:
                told_s = time.monotonic()
                while True:
                    wake.clear()
                    found = [*place.take(BATCH_MAX, self._node.state.cas)]
                    while place.waiting and place.waiting[0].change.event.txn == _txn(found):
                        found += place.take(1, self._node.state.cas)
                    if found or (place.position > after and time.monotonic() - told_s > IDLE_S):
                        after, told_s = place.position, time.monotonic()
                        yield [published.change for published in found], after
                    elif place.has_lagged:
                        after = place.position
                        break
                    elif self._changes.is_closed:
                        return
                    else:
                        with suppress(TimeoutError):
                            async with asyncio.timeout(IDLE_S):
                                await wake.wait()
            finally:
                self._changes.unsubscribe(place)


def _txn(found: Sequence[Any]) -> object:
    return found[-1].change.event.txn if found else None


def _whole(changes: Sequence[Change]) -> Sequence[Change]:
    """Return changes without the beginning of a transaction at their end, if anything is left."""
    last = changes[-1].event if changes else None
    if last is None or last.index + 1 == last.count:
        return changes
    whole = [change for change in changes if change.event.txn != last.txn]
    return whole or changes


def _delivered(change: Change) -> Delivered:
    return Delivered(change.key, shown.change(change).encode(), change.event.cas)


def _close_aside(thread: ThreadPoolExecutor, opening: asyncio.Future[Delivery]) -> None:
    """Close a delivery in its thread, behind what that still does."""
    if not opening.cancelled() and opening.exception() is None:
        thread.submit(opening.result().close)
    thread.shutdown(wait=False)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
