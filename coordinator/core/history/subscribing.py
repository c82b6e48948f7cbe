"""Which changes a subscription brings, where it ends, and how far its subscriber has come. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history.changes import Change
from coordinator.core.history.predicates import Predicate, predicate_of
from coordinator.core.model import json_text
from coordinator.core.model.entities import (
    ACTIVE,
    Entity,
    Subscription,
    Topic,
    topic_key,
)
from coordinator.core.model.subscription_records import (
    SubscriptionAcknowledged,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas


@dataclass(frozen=True, slots=True)
class Selection:
    """The changes of one subscription: those that fit its topic's filter and its own; and its end.

    Whoever reads with this is handed the end also where no filter fits it.
    """

    key: str
    number: int
    of_topic: Predicate
    own: Predicate

    def fits(self, change: Change) -> bool:
        """Tell whether a reader is to be handed this change."""
        return self.wants(change) or self.ends(change)

    def fits_held(self, key: str, held: Versioned) -> bool:
        """Tell whether the subscriber wants an entity that is there."""
        return self.of_topic.fits_held(key, held) and self.own.fits_held(key, held)

    def wants(self, change: Change) -> bool:
        """Tell whether the subscriber is to be told of this change."""
        return self.of_topic.fits(change) and self.own.fits(change)

    def ends(self, change: Change) -> bool:
        """Tell whether this change removes the subscription, or lets it expire."""
        if change.key != self.key:
            return False
        before = change.before.entity if change.before is not None else None
        return self._is_this(before) and not self._is_this(change.event.mutation.entity)

    def _is_this(self, entity: Entity | None) -> bool:
        return (
            isinstance(entity, Subscription)
            and entity.state == ACTIVE
            and entity.number == self.number
        )


def selection_of(topic: Topic, subscription: Subscription) -> Selection:
    """Return what a subscription brings."""
    return Selection(
        subscription.key,
        subscription.number,
        predicate_of(json_text.parse(topic.filter_json)),
        predicate_of(json_text.parse(subscription.filter_json)),
    )


def told(selection: Selection, changes: Iterable[Change]) -> tuple[list[Change], Change | None]:
    """Return what the subscriber is told of, in order, and what ends the subscription.

    Nothing above the end is told.
    """
    found: list[Change] = []
    for change in changes:
        if selection.wants(change):
            found.append(change)
        if selection.ends(change):
            return found, change
    return found, None


def subscriptions(state: StateContext) -> Iterator[tuple[Topic, Subscription]]:
    """Yield every subscription that is active, with its topic."""
    for held in state.of_kind("subscription"):
        subscription = held.entity
        if not isinstance(subscription, Subscription) or subscription.state != ACTIVE:
            continue
        topic = state.get(topic_key(subscription.topic))
        if topic is not None and isinstance(topic.entity, Topic):
            yield topic.entity, subscription


class Positions:
    """How far each subscriber has come, and when it was heard of last, as the log tells it."""

    def __init__(self) -> None:
        self._acknowledged: dict[int, SubscriptionAcknowledged] = {}
        self._heard_ms: dict[int, int] = {}

    def take(self, record: SubscriptionRecord, mono_ms: int) -> None:
        """Fold a record that was read at this time. A position never goes back."""
        self._heard_ms[record.number] = mono_ms
        if isinstance(record, SubscriptionAcknowledged):
            held = self._acknowledged.get(record.number)
            if held is None or held.cas < record.cas:
                self._acknowledged[record.number] = record

    def of(self, subscription: Subscription) -> Cas:
        """Return up to where the subscriber has all changes."""
        held = self._acknowledged.get(subscription.number)
        return subscription.after if held is None else max(held.cas, subscription.after)

    def acknowledged_ms(self, subscription: Subscription) -> int | None:
        """Return when it acknowledged something last; None: it never did."""
        held = self._acknowledged.get(subscription.number)
        return None if held is None else held.at_ms

    @property
    def heard_ms(self) -> Mapping[int, int]:
        """When something of each subscription was read last, by this process's clock."""
        return self._heard_ms

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget what is known of subscriptions that are gone."""
        for number in numbers:
            self._heard_ms.pop(number, None)
            self._acknowledged.pop(number, None)


STEP_MAX_MS = 1_000
"""Time that the process did not run, or its loop, does not count: it may not have read yet what
subscribers said meanwhile."""


class Silence:
    """For how long each subscriber has been silent, as one master sees it.

    It counts from when the master began to listen: a new master gives everybody their time again,
    and no clock of another machine matters.
    """

    def __init__(self) -> None:
        self._looked_ms: int | None = None
        self._silent: dict[int, tuple[int, int]] = {}
        """By number: when it was heard of last, and for how long it was silent since."""

    def overdue(
        self, found: Iterable[Subscription], heard_ms: Mapping[int, int], now_ms: int
    ) -> list[Subscription]:
        """Return those that have expired; `heard_ms` says when each was heard of last."""
        listed = [one for one in found if one.expires_after_ms]
        looked_ms = now_ms if self._looked_ms is None else self._looked_ms
        step_ms = min(now_ms - looked_ms, STEP_MAX_MS)
        silent: dict[int, tuple[int, int]] = {}
        for one in listed:
            heard = heard_ms.get(one.number, 0)
            before = self._silent.get(one.number)
            goes_on = before is not None and before[0] == heard
            silent[one.number] = (heard, before[1] + step_ms if before and goes_on else 0)
        self._looked_ms, self._silent = now_ms, silent
        return [one for one in listed if silent[one.number][1] > one.expires_after_ms]
