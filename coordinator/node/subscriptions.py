"""What a node does for those who subscribe: it knows their positions, and who lags.

The master alone delivers changes to Kafka topics, and says which subscribers have expired.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Message
from immutables import Map

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import inputs
from coordinator.core.history.feed import Feed, Kept
from coordinator.core.history.subscribing import Selection, Silence, subscriptions
from coordinator.core.model.commands import ExpireSubscription, Outcome, Request
from coordinator.core.model.entities import Subscription
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.kafka.subscription_log import NotWrittenError
from coordinator.kafka.topics import is_own
from coordinator.node.deliveries import Deliveries
from coordinator.node.history import History
from coordinator.node.metrics import SubscriberRow
from coordinator.node.positions import PositionBook, now_ms

Ask = Callable[[Callable[[int], inputs.Input]], Awaitable[Outcome]]

LOOK_S = 0.2
EXPIRE_MS = 5_000
AT_ONCE_MAX = 32
FORGET_S = 600.0
"""Positions of a subscription that is gone are removed after so long: this node may be behind."""

log = logging.getLogger("coordinator")


class Lag(NamedTuple):
    """How far behind a subscriber is: in CAS, in changes that wait for it, and how long the oldest
    of them has. None: older than what this node has at hand."""

    cas: int
    changes: int | None
    ms: int | None


def lag_of(selection: Selection, position: Cas, newest: Cas, kept: Kept) -> Lag:
    """Return how far behind a subscriber is at a position, by the changes that a node has kept.

    It looks at all of them for each subscriber, so it belongs beside the loop.
    """
    if position >= newest:
        return Lag(0, 0, 0)
    if not kept or kept[0].before > position:
        return Lag(newest - position, None, None)
    changes = (published.change for one in kept for published in one.changes)
    waiting = [c for c in changes if position < c.event.cas <= newest and selection.wants(c)]
    if not waiting:
        return Lag(0, 0, 0)
    waits_ms = max(0, now_ms() - waiting[0].event.mutation.at_ms)
    return Lag(newest - position, len(waiting), waits_ms)


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
        self._cluster = cluster
        self._node, self._changes, self._ask = node, changes, ask
        self.book = PositionBook(bootstrap_servers, cluster, bury, failed)
        self.deliveries = Deliveries(
            bootstrap_servers,
            cluster,
            node=node,
            changes=changes,
            history=history,
            book=self.book,
        )
        self._silence = Silence()
        self._gone_since_s: dict[int, float] = {}
        self._is_closed = False

    def may_deliver_to(self, topic: str) -> bool:
        """Tell whether changes may be written to a topic: it must not be one of the cluster's."""
        return not is_own(self._cluster, topic)

    def rows(self) -> list[SubscriberRow]:
        """Return what the metrics of the master show, and nothing elsewhere."""
        state = self._node.state
        if not self._leads:
            return []
        return [
            SubscriberRow(
                one.topic,
                one.id,
                max(0, state.cas - self.book.positions.of(one)),
                one.number in self.deliveries.problems,
            )
            for _, one in subscriptions(state)
        ]

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
                self.book.listen()
            if leads and not led:
                self._silence = Silence()
            if of_kind is not seen or leads is not led:
                self.deliveries.arrange(state if leads else None)
                seen, led = of_kind, leads
            if leads and of_kind:
                await self._expire(state)
            if leads and self.book.is_listening:
                await self._forget(state)
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """End all deliveries, and let go of Kafka."""
        self._is_closed = True
        self.deliveries.arrange(None)
        await self.book.close()

    async def _expire(self, state: StateContext) -> None:
        """Ask for the end of subscriptions whose subscribers have been silent."""
        now_ms = time.monotonic_ns() // 1_000_000
        found = (subscription for _, subscription in subscriptions(state))
        overdue = self._silence.overdue(found, self.book.positions.heard_ms, now_ms)
        await asyncio.gather(*(self._end(one, now_ms + EXPIRE_MS) for one in overdue[:AT_ONCE_MAX]))

    async def _end(self, one: Subscription, deadline_ms: int) -> None:
        command = ExpireSubscription(one.topic, one.id, one.number)

        def make(token: int) -> inputs.Input:
            return inputs.Requested(Request(command=command, token=token, deadline_ms=deadline_ms))

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
        gone = self.book.positions.heard_ms.keys() - there
        self._gone_since_s = {n: self._gone_since_s.get(n, now_s) for n in gone}
        due = [n for n, since_s in self._gone_since_s.items() if now_s - since_s > FORGET_S]
        if due:
            with suppress(NotWrittenError):
                await self.book.forget(due)
