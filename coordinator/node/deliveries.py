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
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from coordinator.core.history import shown
from coordinator.core.history.changes import Change
from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Selector
from coordinator.core.history.subscribing import Selection, selection_of, told
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
PROBLEM_LENGTH_MAX = 300

log = logging.getLogger("coordinator")


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
        self.problems: dict[int, str] = {}
        """By the number of a subscription: why nothing is delivered, if that is so."""

    def arrange(self, found: Iterable[tuple[Topic, Subscription]] | None) -> None:
        """Begin what these subscriptions want delivered; None: this node does not lead, and ends
        all.

        What was ended for a moment is begun again by the next call: it has to end first.
        """
        wanted = {s.number: (t, s) for t, s in found or () if s.deliver_to}
        for number, (topic, subscription) in wanted.items():
            task = self._tasks.get(number)
            if task is None or task.done():
                delivering = self._deliver(selection_of(topic, subscription), subscription)
                self._tasks[number] = asyncio.create_task(delivering)
        if found is None:
            # Who was removed is still delivered what came before: that ends by itself.
            for task in self._tasks.values():
                task.cancel()
        self._tasks = {n: t for n, t in self._tasks.items() if not t.done()}
        self.problems = {n: p for n, p in self.problems.items() if n in wanted}

    async def _deliver(self, selection: Selection, subscription: Subscription) -> None:
        """Deliver until the subscription ends, whatever fails in between."""
        pause_s, patience = FIRST_PAUSE_S, Patience()
        while True:
            began_s = time.monotonic()
            try:
                await self._deliver_on(selection, subscription, patience)
                return
            except (DeliveryError, NotWrittenError, CompactedError, KafkaException) as error:
                self._failed(subscription, str(error))
            except Exception as error:
                # One subscription must not end the node, and must not end unheard either.
                log.exception("a delivery failed")
                self._failed(subscription, f"{type(error).__name__}: {error}")
            held = self._node.state.get(subscription.key)
            if held is None or held.entity != subscription:
                return
            pause_s = FIRST_PAUSE_S if time.monotonic() - began_s > PAUSE_MAX_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    def _failed(self, subscription: Subscription, why: str) -> None:
        self.problems[subscription.number] = why[:PROBLEM_LENGTH_MAX]
        log.warning("subscriber %s of %s: %s", subscription.id, subscription.topic, why)

    async def _deliver_on(
        self, selection: Selection, subscription: Subscription, patience: Patience
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
            async with aclosing(self._changes_above(after, selection)) as portions:
                async for changes, cas in portions:
                    found, end = told(selection, changes)
                    last = cas if end is None else end.event.cas
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
