"""What a node does for those who subscribe: it knows their positions, and who lags.

The master alone delivers changes to Kafka topics, and says which subscribers have expired.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from confluent_kafka import Message

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import inputs
from coordinator.core.history.feed import Feed, Kept
from coordinator.core.history.subscribing import (
    Backlog,
    Place,
    Silence,
    Waits,
    ended_deliveries,
    gone,
    subscriptions,
    waits,
)
from coordinator.core.model.commands import ExpireSubscription, Outcome, Request
from coordinator.core.model.entities import Subscription
from coordinator.core.model.types import Cas, Epoch
from coordinator.core.node import Node
from coordinator.kafka.subscription_log import NotWrittenError
from coordinator.kafka.topics import is_own
from coordinator.node.deliveries import Deliveries
from coordinator.node.history import History
from coordinator.node.metrics import SubscriberRow
from coordinator.node.positions import PositionBook, monotonic_ms, now_ms

Ask = Callable[[Callable[[int], inputs.Input]], Awaitable[Outcome]]

LOOK_S = 0.2
CATCH_UP_MS = 500
"""A master that may have to let somebody expire makes sure so often that it has read everything."""

EXPIRE_MS = 5_000
AT_ONCE_MAX = 32
FORGET_S = 600.0
"""Positions of a subscription that is gone are removed after so long: this node may be behind."""

LOOK_MAX = 10_000
"""So many numbers are looked at, at once: there are far fewer subscriptions, but a stranger may
write any number of positions, and the loop looks five times a second."""

log = logging.getLogger("coordinator")


class Lag(NamedTuple):
    """How far behind a subscriber is: in CAS, in changes that wait for it, and how long the oldest
    of them has. None: older than what this node has at hand."""

    cas: int
    changes: int | None
    ms: int | None


def lags_of(places: Sequence[Place], newest: Cas, kept: Kept) -> dict[int, Lag]:
    """Return how far behind subscribers are at their places, by number, from the changes that a
    node has kept.

    It looks once at all of them, so it belongs beside the loop.
    """
    waiting, now = waits(places, newest, kept), now_ms()
    return {
        selection.number: _lag(waiting[selection.number], Cas(newest - at), now)
        for selection, at in places
    }


def _lag(waiting: Waits | None, cas: int, now: int) -> Lag:
    if waiting is None:
        return Lag(cas, None, None)
    if not waiting.changes:
        return Lag(0, 0, 0)
    return Lag(cas, waiting.changes, max(0, now - waiting.since_ms))


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
        dead_letter: Callable[[Message, str], None],
        failed: Callable[[str], None],
    ) -> None:
        """`dead_letter` and `failed` may be called in another thread."""
        self._cluster = cluster
        self._node, self._changes, self._ask = node, changes, ask
        self.book = PositionBook(bootstrap_servers, cluster, dead_letter, failed)
        self.deliveries = Deliveries(
            bootstrap_servers,
            cluster,
            node=node,
            changes=changes,
            history=history,
            book=self.book,
        )
        self._led: Epoch | None = None
        self._silence = Silence(monotonic_ms())
        self._backlog = Backlog()
        self._rows: Sequence[SubscriberRow] = ()
        self._catching_up: asyncio.Task[None] | None = None
        self._catch_up_ms = 0
        self._gone_since_s: dict[int, float] = {}
        self._unlooked: Iterator[int] = iter(())
        """The numbers that were not looked at yet, in this pass."""
        self._is_closed = False

    def may_deliver_to(self, topic: str) -> bool:
        """Tell whether changes may be written to a topic: it must not be one of the cluster's."""
        return not is_own(self._cluster, topic)

    def measuring(self) -> Callable[[], None]:
        """Return what looks how far behind subscribers are, for the metrics: it belongs beside the
        loop, in one thread at a time."""
        state, kept = self._node.state, self._changes.kept()
        problems = {*self.deliveries.problems}
        leads = self._epoch is not None

        def measure() -> None:
            found = [*subscriptions(state)] if leads else []
            behind = self._backlog.behind(found, self.book.positions, state.cas, kept)
            self._rows = [
                SubscriberRow(one.topic, one.id, behind[one.number], one.number in problems)
                for _, one in found
            ]

        return measure

    def rows(self) -> Sequence[SubscriberRow]:
        """Return what was measured last: what the metrics of the master show, nothing elsewhere."""
        return self._rows

    # -- the task ----------------------------------------------------------------------------

    @property
    def _epoch(self) -> Epoch | None:
        """The epoch in which this node leads, None where it does not."""
        master = self._node.master
        return master.epoch if master is not None and master.active else None

    async def run(self) -> None:
        """Look at the state now and then, until this is closed."""
        # With the feed the node ends: no delivery may begin then, and fence the next master's.
        while not self._is_closed and not self._changes.is_closed:
            await self._look()
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> None:
        state, epoch = self._node.state, self._epoch
        if epoch != self._led:
            # Another may have led in between: what this node does as the master begins anew.
            self.deliveries.arrange(None)
            self._silence, self._led = Silence(monotonic_ms()), epoch
            if epoch is not None:
                self.deliveries.finish(ended_deliveries(state, self._changes.kept()))
        if state.kinds.get("subscription"):
            self.book.listen()
        if epoch is None:
            return
        found = [*subscriptions(state)]
        self.deliveries.arrange(found)
        await self._expire([one for _, one in found if one.expires_after_ms])
        if self.book.is_listening:
            await self._forget(state, epoch)

    async def close(self) -> None:
        """End all deliveries, and let go of Kafka."""
        self._is_closed = True
        self.deliveries.arrange(None)
        if self._catching_up is not None:
            self._catching_up.cancel()
        await self.book.close()

    async def _expire(self, found: Sequence[Subscription]) -> None:
        """Ask for the end of subscriptions whose subscribers have been silent."""
        now_ms = monotonic_ms()
        if found and now_ms >= self._catch_up_ms:
            self._catch_up_ms = now_ms + CATCH_UP_MS
            if self._catching_up is None or self._catching_up.done():
                self._catching_up = asyncio.create_task(self._catch_up())
        overdue = self._silence.overdue(found, self.book.positions, now_ms)
        await asyncio.gather(*(self._end(one, now_ms + EXPIRE_MS) for one in overdue[:AT_ONCE_MAX]))

    async def _catch_up(self) -> None:
        """Have it known that all was read; where that fails, nobody is silent meanwhile."""
        with suppress(NotWrittenError):
            await self.book.catch_up()

    async def _end(self, one: Subscription, deadline_ms: int) -> None:
        command = ExpireSubscription(one.topic, one.id, one.number)

        def make(token: int) -> inputs.Input:
            return inputs.Requested(Request(command=command, token=token, deadline_ms=deadline_ms))

        outcome = await self._ask(make)
        if outcome.status == "ok":
            log.info("subscriber %s of %s has expired", one.id, one.topic)

    async def _forget(self, state: StateContext, epoch: Epoch) -> None:
        """Remove the positions of subscriptions that are gone, of those that are looked at now."""
        now_s, heard_ms = time.monotonic(), self.book.positions.heard_ms
        looked_at = [n for n in islice(self._unlooked, LOOK_MAX) if n in heard_ms]
        if not looked_at:
            self._unlooked = iter([*heard_ms])
            looked_at = [*islice(self._unlooked, LOOK_MAX)]
        without = gone(state, looked_at, epoch)
        since_s = self._gone_since_s
        due: list[int] = []
        for number in looked_at:
            if number not in without:
                since_s.pop(number, None)
            elif now_s - since_s.setdefault(number, now_s) > FORGET_S:
                due.append(number)
        due = [*{*due} - self.deliveries.numbers]
        if due:
            with suppress(NotWrittenError):
                await self.book.forget(due)
                for number in due:
                    since_s.pop(number, None)
