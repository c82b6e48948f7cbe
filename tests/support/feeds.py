"""A state, and a feed that is told of its transactions."""

from __future__ import annotations

from typing import Any

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.feed import Feed
from coordinator.core.history.lines import Subscription
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas

ALL = Predicate()


class Publisher:
    """A state, and a feed that is told of its transactions."""

    def __init__(self, **limits: int) -> None:
        self.feed = Feed(**limits)
        self.state: StateContext = states.EMPTY
        self.woken = 0

    def commit(self, *transactions: tuple[Event, ...], unheard: bool = False) -> None:
        for events in transactions:
            before = self.state
            self.state = states.evolve(before, [(event.mutation, event.cas) for event in events])
            if not unheard:
                self.feed.publish(before, events)

    def subscribe(self, after: int, predicate: Predicate = ALL) -> Any:
        return self.feed.subscribe(Cas(after), predicate, self._wake, self.state.cas)

    def _wake(self) -> None:
        self.woken += 1

    def cas_of(self, subscription: Subscription, limit: int = 100) -> list[int]:
        return [published.cas for published in subscription.take(limit, self.feed.newest)]
