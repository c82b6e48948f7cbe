"""Passes each change to the watchers as it is installed: to each watcher those that it wants.

Pure. A subscription begins at a CAS that the feed still has. It buffers the changes that match its
predicate until the watcher takes them, up to a bound. A watcher that exceeds the bound has lagged:
it gets what is buffered, and no more. It may subscribe again from the last CAS that it got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import Change, changes_of
from coordinator.core.history.groups import Groups
from coordinator.core.history.predicates import Selector
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas

KEPT_MAX, KEPT_BYTES_MAX = 1_000, 16 * 1024 * 1024
"""So many transactions are kept for those who come back, and so many bytes of them."""

WAITING_MAX, WAITING_BYTES_MAX = 10_000, 16 * 1024 * 1024
"""So many changes wait for one subscription, and so many bytes."""

EXAMINED_MAX = 4_096
"""So many kept changes are looked at for one subscription. Whoever is further behind reads the
history: thousands that come back at once would hold up everything else."""

CHANGE_BYTES = 512
"""What a change weighs beside the two values."""


@dataclass(eq=False, slots=True)
class Published:
    """A change; `frame` is what the outside made of it, so that it is made once for all."""

    change: Change
    frame: bytes = b""

    @property
    def cas(self) -> Cas:
        return self.change.event.cas

    @property
    def weight(self) -> int:
        """What it takes in memory, in bytes, before it has a frame."""
        before, after = self.change.before, self.change.event.mutation.value
        return CHANGE_BYTES + len(before.value if before else b"") + len(after or b"")


@dataclass(frozen=True, slots=True)
class KeptTransaction:
    """A transaction that was installed on a state with this CAS."""

    before: Cas
    changes: tuple[Published, ...]
    weight: int

    @property
    def last(self) -> Cas:
        """The CAS of its last change."""
        return self.changes[-1].cas


Kept = tuple[KeptTransaction, ...]


@dataclass(eq=False, slots=True)
class Subscription:
    """One watcher's place in the feed. `wake` is called when there is something new to take."""

    predicate: Selector
    wake: Callable[[], None]
    position: Cas
    """All up to here was handed over, or does not fit."""

    waiting_max: int = WAITING_MAX
    waiting_bytes: int = 0
    waiting: deque[Published] = field(default_factory=deque)
    has_lagged: bool = False

    def add(self, changes: Iterable[Published]) -> None:
        """Hold what is new of changes that fit, all of them of one transaction.

        Too much, and it has lagged: nothing is added then.
        """
        if self.has_lagged:
            return
        found = [published for published in changes if published.cas > self.position]
        weight = self.waiting_bytes + sum(published.weight for published in found)
        count = len(self.waiting) + len(found)
        # A transaction that is too much waits alone: who comes back for it would lag for ever.
        if self.waiting and (count > self.waiting_max or weight > WAITING_BYTES_MAX):
            self.has_lagged = True
        elif found:
            self.waiting.extend(found)
            self.waiting_bytes = weight
        if found:
            self.wake()

    def take(self, limit: int, newest: Cas) -> Sequence[Published]:
        """Take at most `limit` changes, the oldest first; `newest` is that of the feed."""
        found = [self.waiting.popleft() for _ in range(min(limit, len(self.waiting)))]
        self.waiting_bytes -= sum(published.weight for published in found)
        if found:
            self.position = found[-1].cas
        elif not self.has_lagged:
            self.position = max(self.position, newest)
        return found


class Feed:
    """The changes of one node's state, as they are installed."""

    def __init__(self, *, kept_max: int = KEPT_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._kept_max = kept_max
        self._kept: deque[KeptTransaction] = deque()
        self._kept_bytes = 0
        self._subscriptions: Groups[Subscription] = Groups()
        self.newest = Cas(0)
        """Up to here all that happened was published to those who subscribe now. A state may be
        further on: it is found anew, or its changes are about to be published."""
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._subscriptions)

    def publish(self, before: StateContext, events: Sequence[Event]) -> None:
        """A transaction was installed on `before`."""
        if self.newest != before.cas:
            self._begin_anew(before.cas)
        changes = tuple(Published(change) for change in changes_of(before, events))
        self._keep(KeptTransaction(before.cas, changes, sum(change.weight for change in changes)))
        self.newest = changes[-1].cas
        for group, places in self._subscriptions.wanting(one.change for one in changes):
            found = [changes[place] for place in places]
            for subscription in group:
                subscription.add(found)
                if subscription.has_lagged:
                    self.unsubscribe(subscription)

    def _begin_anew(self, newest: Cas) -> None:
        """The node found the state anew, and was not told how it came about: all have lagged."""
        self._kept.clear()
        self._kept_bytes = 0
        for subscription in [*self._subscriptions]:
            subscription.has_lagged = True
            self.unsubscribe(subscription)
            subscription.wake()
        self.newest = newest

    def _keep(self, kept: KeptTransaction) -> None:
        """Keep a transaction, and no more of the older ones than there is room for."""
        self._kept.append(kept)
        self._kept_bytes += kept.weight
        while len(self._kept) > 1 and (
            len(self._kept) > self._kept_max or self._kept_bytes > KEPT_BYTES_MAX
        ):
            self._kept_bytes -= self._kept.popleft().weight

    def subscribe(
        self, after: Cas, predicate: Selector, wake: Callable[[], None], newest: Cas
    ) -> Subscription | None:
        """Return a subscription to the changes above a CAS.

        None: the feed has not all of them, or more than EXAMINED_MAX to look at. `newest` is the
        CAS of the state, up to which everything was published.
        """
        if not self._kept and self.newest != newest:
            self._begin_anew(newest)
        if not self._has_all_above(after, newest):
            return None
        missed = self._missed(after)
        if sum(len(kept.changes) for kept in missed) > EXAMINED_MAX:
            return None
        made = Subscription(predicate, wake, after, self._waiting_max)
        for kept in missed:
            made.add(one for one in kept.changes if predicate.fits(one.change))
        if not made.has_lagged:
            self._subscriptions.add(predicate, made)
        return made

    def _missed(self, after: Cas) -> Sequence[KeptTransaction]:
        """Return the kept transactions with changes above a CAS, the oldest first."""
        newest_first = takewhile(lambda kept: kept.last > after, reversed(self._kept))
        return [*newest_first][::-1]

    def kept(self) -> Kept:
        """Return the transactions that the feed has, the oldest first."""
        return tuple(self._kept)

    def _has_all_above(self, after: Cas, newest: Cas) -> bool:
        return after >= newest or (bool(self._kept) and self._kept[0].before <= after)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Hand it nothing more."""
        self._subscriptions.discard(subscription.predicate, subscription)

    def close(self) -> None:
        """Tell all that nothing more will come from here."""
        self.is_closed = True
        for subscription in [*self._subscriptions]:
            self.unsubscribe(subscription)
            subscription.wake()
