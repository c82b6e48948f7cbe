"""Which changes a subscription brings, where it ends, and how far its subscriber has come. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history.changes import Change
from coordinator.core.history.feed import Kept
from coordinator.core.history.groups import Groups
from coordinator.core.history.predicates import NO_FIELD, Predicate, Value, predicate_of
from coordinator.core.model import json_text
from coordinator.core.model.entities import (
    ACTIVE,
    Entity,
    Subscription,
    Topic,
    topic_key,
)
from coordinator.core.model.subscription_records import (
    NOBODY,
    PositionRead,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionForgotten,
)
from coordinator.core.model.types import Cas, Epoch, epoch_of


@dataclass(frozen=True, slots=True)
class Filters:
    """The changes that fit the filter of a topic and that of a subscription to it."""

    of_topic: Predicate
    own: Predicate

    def fits(self, change: Change) -> bool:
        """Tell whether a change fits both."""
        return self.of_topic.fits(change) and self.own.fits(change)

    def fits_held(self, key: str, held: Versioned) -> bool:
        """Tell whether an entity that is there fits both."""
        return self.of_topic.fits_held(key, held) and self.own.fits_held(key, held)

    def marks(self) -> Mapping[str, Set[Value]]:
        """Return what a change must have that fits: `Filter.marks`."""
        own = self.own.marks()
        return self.of_topic.marks() if NO_FIELD in own else own


@dataclass(frozen=True, slots=True)
class Selection:
    """The changes of one subscription: those that fit its topic's filter and its own; and its end.

    Whoever reads with this is handed the end also where no filter fits it.
    """

    key: str
    number: int
    filters: Filters

    def fits(self, change: Change) -> bool:
        """Tell whether a reader is to be handed this change."""
        return self.wants(change) or self.ends(change)

    def fits_held(self, key: str, held: Versioned) -> bool:
        """Tell whether the subscriber wants an entity that is there."""
        return self.filters.fits_held(key, held)

    def wants(self, change: Change) -> bool:
        """Tell whether the subscriber is to be told of this change."""
        return self.filters.fits(change)

    def ends(self, change: Change) -> bool:
        """Tell whether this change removes the subscription, or lets it expire."""
        if change.key != self.key:
            return False
        before = change.before.entity if change.before is not None else None
        return self._is_this(before) and not self._is_this(change.event.mutation.entity)

    def marks(self) -> Mapping[str, Set[Value]]:
        """Return what a change must have that is wanted, or that ends this: `Filter.marks`."""
        found = dict(self.filters.marks())
        found["keys"] = {self.key, *found.get("keys", ())}
        return found

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
        Filters(
            predicate_of(json_text.parse(topic.filter_json)),
            predicate_of(json_text.parse(subscription.filter_json)),
        ),
    )


def events_for(
    selection: Selection, changes: Iterable[Change]
) -> tuple[list[Change], Change | None]:
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


class Ended(NamedTuple):
    """A subscription as it was before it ended, its topic of then, and the CAS of its end."""

    topic: Topic
    subscription: Subscription
    cas: Cas


def ended_deliveries(state: StateContext, kept: Kept) -> list[Ended]:
    """Return the subscriptions with a delivery that the kept changes end, the last first.

    `state` is the one after all of these changes.
    """
    found: list[Ended] = []
    topics: dict[str, Entity | None] = {}
    for transaction in reversed(kept):
        changes = [published.change for published in reversed(transaction.changes)]
        # A topic may go together with its subscriptions, before them or after.
        topics |= {one.key: one.sides[0] for one in changes if one.kind == "topic" and one.sides}
        for change in changes:
            before = change.before.entity if change.before is not None else None
            if not isinstance(before, Subscription) or not before.deliver_to:
                continue
            key = topic_key(before.topic)
            held = state.get(key)
            topic = topics.get(key, held.entity if held is not None else None)
            if isinstance(topic, Topic) and selection_of(topic, before).ends(change):
                found.append(Ended(topic, before, change.event.cas))
    return found


def gone(state: StateContext, numbers: Iterable[int], epoch: Epoch) -> set[int]:
    """Return the numbers under which there will never be a subscription again.

    By what the master of `epoch` knows: one that was deposed and does not know it yet has not seen
    the subscriptions that were made after it.
    """
    there = {
        held.entity.number
        for held in state.of_kind("subscription")
        if isinstance(held.entity, Subscription)
    }
    return {number for number in numbers if epoch_of(number) <= epoch} - there


class Positions:
    """How far each subscriber has come, and when it was heard of last, as the log tells it.

    All times are of this process's monotonic clock, in ms.
    """

    def __init__(self) -> None:
        self._acknowledged: dict[int, SubscriptionAcknowledged] = {}
        self._heard_ms: dict[int, int] = {}
        self._marks: dict[int, int] = {}
        self.read_up_to_ms = 0
        """All that was in the log at this time was read; 0: that is not known."""

    def expect(self, mark: int, mono_ms: int) -> None:
        """A mark is written from this time on."""
        self._marks[mark] = mono_ms

    def give_up(self, mark: int) -> None:
        """A mark is not waited for any more."""
        self._marks.pop(mark, None)

    def take(self, record: PositionRead, mono_ms: int) -> None:
        """Fold a record that was read at this time. A position never goes back."""
        if isinstance(record, SubscriptionForgotten):
            self.forget([record.number])
            return
        if record.number != NOBODY:
            self._heard_ms[record.number] = mono_ms
        if isinstance(record, SubscriberSeen):
            written_ms = self._marks.pop(record.mark, 0)
            self.read_up_to_ms = max(self.read_up_to_ms, written_ms)
        elif self.reached(record.number) < record.cas:
            self._acknowledged[record.number] = record

    def reached(self, number: int) -> Cas:
        """Return the highest CAS that was acknowledged under a number, 0 if none was."""
        held = self._acknowledged.get(number)
        return Cas(0) if held is None else held.cas

    def of(self, subscription: Subscription) -> Cas:
        """Return up to where the subscriber has all changes."""
        return max(self.reached(subscription.number), subscription.after)

    def acknowledged_ms(self, subscription: Subscription) -> int | None:
        """Return when it acknowledged something last, by the wall clock; None: it never did."""
        held = self._acknowledged.get(subscription.number)
        return None if held is None else held.at_ms

    @property
    def heard_ms(self) -> Mapping[int, int]:
        """When something of each subscription was read last."""
        return self._heard_ms

    def forget(self, numbers: Iterable[int]) -> None:
        """Forget what is known of subscriptions that are gone."""
        for number in numbers:
            self._heard_ms.pop(number, None)
            self._acknowledged.pop(number, None)


class Backlog:
    """Up to where nothing waits for each subscriber, although it acknowledged less.

    Who wants few changes may acknowledge one in a day. Nobody is asked about a change twice, so
    what is known here may be more than the changes at hand tell.
    """

    def __init__(self) -> None:
        self._clear: dict[int, Cas] = {}

    def behind(
        self,
        found: Iterable[tuple[Topic, Subscription]],
        positions: Positions,
        newest: Cas,
        kept: Kept,
    ) -> dict[int, int]:
        """Return by how many CAS each subscriber is behind, 0 where no change waits for it.

        By number. It counts from the oldest change that waits, or from the position where that
        change is older than what is kept. Costs one pass over the changes since the last time.
        """
        places = [
            (selection_of(topic, one), max(positions.of(one), self._clear.get(one.number, Cas(0))))
            for topic, one in found
        ]
        self._clear = clear_up_to(places, newest, kept)
        return {number: max(0, newest - at) for number, at in self._clear.items()}


Place = tuple[Selection, Cas]
"""A subscription, and up to where its subscriber has all changes."""


def clear_up_to(places: Sequence[Place], newest: Cas, kept: Kept) -> dict[int, Cas]:
    """Return for each number the last CAS up to which the kept changes have none that is wanted
    above its place.

    All are looked for in one pass: each joins it at its place, and leaves it at what it wants.
    """
    clear = {selection.number: at for selection, at in places}
    if not kept or kept[-1].last < newest:
        return clear
    coming = sorted(
        ((at, selection) for selection, at in places if kept[0].before <= at < newest),
        key=lambda one: one[0],
        reverse=True,
    )
    clear |= {selection.number: newest for _, selection in coming}
    looking: Groups[Selection] = Groups()
    for change in _changes(kept, coming[-1][0], newest) if coming else ():
        cas = change.event.cas
        while coming and coming[-1][0] < cas:
            selection = coming.pop()[1]
            looking.add(selection.filters, selection)
        for group, _ in looking.wanting([change]):
            for selection in group:
                clear[selection.number] = Cas(cas - 1)
                looking.discard(selection.filters, selection)
    return clear


class Waits(NamedTuple):
    """How many changes wait for a subscriber, and when the oldest of them was made, in ms since
    1970; 0: none waits."""

    changes: int
    since_ms: int


def waits(places: Iterable[Place], newest: Cas, kept: Kept) -> dict[int, Waits | None]:
    """Return what waits above each place, by number; None: older than what is kept.

    All are looked for in one pass over what is kept.
    """
    found: dict[int, Waits | None] = {}
    asking: Groups[tuple[int, Cas]] = Groups()
    begin = newest
    for selection, at in places:
        is_known = at >= newest or (bool(kept) and kept[0].before <= at)
        found[selection.number] = Waits(0, 0) if is_known else None
        if is_known and at < newest:
            asking.add(selection.filters, (selection.number, at))
            begin = min(begin, at)
    changes = [*_changes(kept, begin, newest)] if len(asking) else []
    for members, wanted in asking.wanting(changes):
        for number, at in members:
            first = bisect_right(wanted, at, key=lambda place: changes[place].event.cas)
            if first < len(wanted):
                oldest = changes[wanted[first]].event.mutation
                found[number] = Waits(len(wanted) - first, oldest.at_ms)
    return found


def _changes(kept: Kept, after: Cas, newest: Cas) -> Iterator[Change]:
    """Yield the kept changes above a CAS, up to the newest."""
    for number in range(bisect_right(kept, after, key=lambda one: one.last), len(kept)):
        for published in kept[number].changes:
            if after < published.cas <= newest:
                yield published.change


STEP_MAX_MS = 1_000
"""So much silence is counted from one moment up to which all was read to the next. Time in which
the process, or the log, stood still does not count: nobody could say anything then."""


class _Quiet(NamedTuple):
    """Since when nothing was heard of a subscriber, without the time that does not count."""

    heard_ms: int | None
    since_ms: int


class Silence:
    """For how long each subscriber has been silent, as one master sees it.

    It counts from when the master began to listen: a new master gives everybody their time again,
    and no clock of another machine matters. It counts up to where the log was read: who has written
    a sign of life that the master has not read yet is not silent.
    """

    def __init__(self, began_ms: int) -> None:
        self._read_ms = began_ms
        self._quiet: dict[int, _Quiet] = {}

    def overdue(
        self, found: Iterable[Subscription], positions: Positions, now_ms: int
    ) -> list[Subscription]:
        """Return those that have expired, by what was read until now."""
        read_ms = max(self._read_ms, positions.read_up_to_ms)
        unheard_ms = max(0, read_ms - self._read_ms - STEP_MAX_MS)
        listed = [one for one in found if one.expires_after_ms]
        quiet: dict[int, _Quiet] = {}
        for one in listed:
            heard_ms = positions.heard_ms.get(one.number)
            before = self._quiet.get(one.number)
            if before is None:
                quiet[one.number] = _Quiet(heard_ms, now_ms)
            elif heard_ms is not None and before.heard_ms != heard_ms:
                quiet[one.number] = _Quiet(heard_ms, heard_ms)
            else:
                quiet[one.number] = _Quiet(before.heard_ms, before.since_ms + unheard_ms)
        self._read_ms, self._quiet = read_ms, quiet
        return [
            one for one in listed if read_ms - quiet[one.number].since_ms > one.expires_after_ms
        ]
