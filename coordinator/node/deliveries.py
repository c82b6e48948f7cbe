"""Delivers changes to the Kafka topics of those who subscribed: the work of the master alone.

Each subscription has a task and a producer of its own, so none holds up another. The position after
what was delivered is in the same Kafka transaction: whoever is master next goes on there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from confluent_kafka import KafkaException

from coordinator.core.history import shown
from coordinator.core.history.changes import Change
from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Selector
from coordinator.core.history.subscribing import Ended, Selection, events_for, selection_of
from coordinator.core.model.entities import Subscription, Topic
from coordinator.core.model.subscription_records import SubscriptionAcknowledged
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.kafka.end_txn import Patience
from coordinator.kafka.subscription_log import (
    Delivered,
    Delivery,
    DeliveryError,
    NotWrittenError,
)
from coordinator.kafka.topics import is_own
from coordinator.node.history import CompactedError, History, StillReadingError
from coordinator.node.positions import PositionBook, now_ms

BATCH_MAX = 500
IDLE_S = 5.0
"""A position moves on after so long where no change fits: else who wants few would look late."""

FIRST_PAUSE_S, PAUSE_MAX_S = 0.2, 30.0

ENDING_S, ENDING_MAX = 300.0, 32
"""So long what came before the end of a subscription is tried to be delivered, and so many that
have ended: Kafka may have no topic for them any more. Positions are kept for longer than that."""

PROBLEM_LENGTH_MAX = 300

log = logging.getLogger("coordinator")


@dataclass(slots=True)
class _End:
    """Where a subscription ends, as far as that was seen."""

    cas: Cas | None


class Deliveries:
    """What one node delivers. The loop owns it."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        *,
        node: Node,
        changes: Feed,
        history: History,
        book: PositionBook,
    ) -> None:
        self._servers, self._cluster = bootstrap_servers, cluster
        self._node, self._changes, self._history, self._book = node, changes, history, book
        self._reading = asyncio.Lock()
        """Held by the one that reads the history: there is one history, and few threads."""

        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._ending_s: dict[int, float] = {}
        """By number: when a delivery failed first although its subscription has ended."""

        self._ended: dict[int, Ended] = {}
        """By number: what ended under an earlier master, and is not begun yet."""

        self.problems: dict[int, str] = {}
        """By the number of a subscription: why nothing is delivered, if that is so."""

    def arrange(self, found: Iterable[tuple[Topic, Subscription]] | None) -> None:
        """Begin what these subscriptions want delivered; None: this node does not lead, and ends
        all.

        What was ended for a moment is begun again by the next call: it has to end first.
        """
        wanted = {s.number: (t, s) for t, s in found or () if s.deliver_to}
        for topic, subscription in wanted.values():
            self._begin(topic, subscription, None)
        for ended in [*self._ended.values()] if found is not None else ():
            if self._begin(*ended):
                del self._ended[ended.subscription.number]
        if found is None:
            # Who was removed is still delivered what came before: that ends by itself.
            for task in self._tasks.values():
                task.cancel()
            self._ended.clear()
        self._tasks = {n: t for n, t in self._tasks.items() if not t.done()}
        self.problems = {n: p for n, p in self.problems.items() if n in wanted}

    def finish(self, ended: Iterable[Ended]) -> None:
        """Have the next calls of `arrange` deliver what came before these ends, and is not there:
        an earlier master may have died in between."""
        self._ended = {one.subscription.number: one for one in islice(ended, ENDING_MAX)}

    @property
    def numbers(self) -> set[int]:
        """The numbers of what is delivered, or still to be: their positions are needed."""
        return {number for number, task in self._tasks.items() if not task.done()} | {*self._ended}

    def _begin(self, topic: Topic, subscription: Subscription, end: Cas | None) -> bool:
        """Begin a delivery, unless there is one under this number; tell whether it began."""
        task = self._tasks.get(subscription.number)
        if task is not None and not task.done():
            return False
        delivering = self._deliver(selection_of(topic, subscription), subscription, end)
        self._tasks[subscription.number] = asyncio.create_task(delivering)
        return True

    async def _deliver(
        self, selection: Selection, subscription: Subscription, end: Cas | None = None
    ) -> None:
        """Deliver until the subscription ends, whatever fails in between.

        `end` is its CAS, where it has ended already.
        """
        try:
            await self._deliver_to_its_end(selection, subscription, end)
        finally:
            self._ending_s.pop(subscription.number, None)

    async def _deliver_to_its_end(
        self, selection: Selection, subscription: Subscription, end: Cas | None
    ) -> None:
        pause_s, patience = FIRST_PAUSE_S, Patience()
        seen = _End(end)
        while True:
            began_s = time.monotonic()
            try:
                if end is None or await self._is_behind(subscription, end):
                    await self._deliver_on(selection, subscription, patience, seen)
                break
            except (DeliveryError, NotWrittenError, CompactedError, KafkaException) as error:
                self._failed(subscription, str(error))
            except Exception as error:
                # One subscription must not end the node, and must not end unheard either.
                log.exception("a delivery failed")
                self._failed(subscription, f"{type(error).__name__}: {error}")
            if self._has_ended(subscription) and not self._may_try_again(subscription.number):
                break
            pause_s = FIRST_PAUSE_S if time.monotonic() - began_s > PAUSE_MAX_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    async def _is_behind(self, subscription: Subscription, end: Cas) -> bool:
        """Tell whether an earlier master began a delivery, and did not come to its end.

        Of one of which no position is known nobody can tell: it may have been removed since.
        """
        await self._book.catch_up()
        positions = self._book.positions
        is_known = subscription.number in positions.heard_ms
        return is_known and positions.of(subscription) < end

    def _has_ended(self, subscription: Subscription) -> bool:
        held = self._node.state.get(subscription.key)
        return held is None or held.entity != subscription

    def _may_try_again(self, number: int) -> bool:
        """Tell whether what came before an end is to be tried again, for so long and so many."""
        if number not in self._ending_s and len(self._ending_s) >= ENDING_MAX:
            return False
        now_s = time.monotonic()
        return now_s - self._ending_s.setdefault(number, now_s) <= ENDING_S

    def _failed(self, subscription: Subscription, why: str) -> None:
        self.problems[subscription.number] = why[:PROBLEM_LENGTH_MAX]
        log.warning("subscriber %s of %s: %s", subscription.id, subscription.topic, why)

    async def _deliver_on(
        self, selection: Selection, subscription: Subscription, patience: Patience, seen: _End
    ) -> None:
        """Deliver over one producer until the subscription ends. Raises what `_deliver` catches."""
        if is_own(self._cluster, subscription.deliver_to):
            raise DeliveryError(f"{subscription.deliver_to} is a topic of the cluster itself")
        thread = ThreadPoolExecutor(1, "delivery")
        run = partial(asyncio.get_running_loop().run_in_executor, thread)
        opening = run(
            Delivery,
            self._servers,
            self._cluster,
            subscription.number,
            subscription.deliver_to,
            patience,
        )
        try:
            delivery = await opening
            after = await self._book.settle(subscription)
            if seen.cas is not None and after >= seen.cas:
                return  # It was in doubt whether the last of it is there.
            async with aclosing(self._changes_above(after, selection)) as portions:
                async for changes, cas in portions:
                    found, end = events_for(selection, changes)
                    last = cas if end is None else end.event.cas
                    if end is not None:
                        seen.cas = last
                    position = SubscriptionAcknowledged(subscription.number, last, now_ms())
                    await run(_write, delivery, found, position)
                    self._book.take([position])
                    self.problems.pop(subscription.number, None)
                    if end is not None:
                        return
        finally:
            opening.add_done_callback(partial(_close_aside, thread))

    async def _changes_above(
        self, after: Cas, selector: Selector
    ) -> AsyncGenerator[tuple[Sequence[Change], Cas], None]:
        """Yield the changes above a CAS as they come, and up to where that is all that fit.

        The changes of a transaction come together. Raises CompactedError, KafkaException.
        """
        wake = asyncio.Event()
        while not self._changes.is_closed:
            newest = self._node.state
            place = self._changes.subscribe(after, selector, wake.set, newest.cas)
            if place is None:
                read = partial(self._history.whole_page, after, selector, BATCH_MAX, newest)
                try:
                    async with self._reading:
                        page = await asyncio.to_thread(read)
                except StillReadingError:
                    continue
                after = newest.cas if page.next is None else page.next
                yield page.changes, after
                continue
            try:
                told_s = time.monotonic()
                while True:
                    wake.clear()
                    found = [*place.take(BATCH_MAX, self._changes.newest)]
                    while (more := place.following) and more.change.event.txn == _txn(found):
                        found += place.take(1, self._changes.newest)
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


def _write(delivery: Delivery, found: Sequence[Change], position: SubscriptionAcknowledged) -> None:
    """Write what may be large: in the thread of the delivery."""
    delivery.write([*map(_delivered, found)], position)


def _delivered(change: Change) -> Delivered:
    return Delivered(change.key, shown.as_bytes(change), change.event.cas)


def _close_aside(thread: ThreadPoolExecutor, opening: asyncio.Future[Delivery]) -> None:
    """Close a delivery in its thread, behind what that still does."""
    if not opening.cancelled() and opening.exception() is None:
        thread.submit(opening.result().close)
    thread.shutdown(wait=False)
