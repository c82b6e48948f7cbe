"""Passes each change to the watchers as it is installed: to each watcher those that it wants.

Pure. A subscription begins at a CAS that the feed still has. The changes that match its predicate
wait until the watcher takes them, up to a bound. A watcher that exceeds the bound has lagged: it
gets what waits, and no more. It may subscribe again from the last CAS that it got.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import changes_of
from coordinator.core.history.groups import Groups
from coordinator.core.history.lines import (
    WAITING_BYTES_MAX,
    WAITING_MAX,
    Bound,
    Line,
    Published,
    Subscription,
)
from coordinator.core.history.predicates import Selector
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas

KEPT_MAX, KEPT_BYTES_MAX = 1_000, 16 * 1024 * 1024
"""So many transactions are kept for those who come back, and so many bytes of them."""

EXAMINED_MAX = 4_096
"""So many kept changes are looked at for one subscription. Whoever is further behind reads the
history: thousands that come back at once would hold up everything else."""


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


class Feed:
    """The changes of one node's state, as they are installed."""

    def __init__(self, *, kept_max: int = KEPT_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._bound = Bound(waiting_max, WAITING_BYTES_MAX)
        self._kept_max = kept_max
        self._kept: deque[KeptTransaction] = deque()
        self._kept_bytes = 0
        self.lines: dict[Selector, Line] = {}
        """Of those who subscribe, by what they want."""

        self._wanting: Groups[Line] = Groups()
        self._count = 0
        self.newest = Cas(0)
        """Up to here all that happened was published to those who subscribe now. A state may be
        further on: it is found anew, or its changes are about to be published."""
        self.is_closed = False

    def __len__(self) -> int:
        return self._count

    def publish(self, before: StateContext, events: Sequence[Event]) -> None:
        """A transaction was installed on `before`."""
        if self.newest != before.cas:
            self._begin_anew(before.cas)
        changes = tuple(Published(change) for change in changes_of(before, events))
        self._keep(KeptTransaction(before.cas, changes, sum(change.weight for change in changes)))
        self.newest = changes[-1].cas
        for lines, places in self._wanting.wanting(one.change for one in changes):
            found = [changes[place] for place in places]
            for line in lines:
                self._gone(line, line.add(found))

    def _begin_anew(self, newest: Cas) -> None:
        """The node found the state anew, and was not told how it came about: all have lagged."""
        self._kept.clear()
        self._kept_bytes = 0
        for line in self._wanting:
            self._gone(line, line.give_up())
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
        made = Subscription(predicate, wake, after)
        for kept in missed:
            made.hold((one for one in kept.changes if predicate.fits(one.change)), self._bound)
        if not made.has_lagged:
            self._line_of(predicate).join(made)
            self._count += 1
        return made

    def _line_of(self, selector: Selector) -> Line:
        line = self.lines.get(selector)
        if line is None:
            line = self.lines[selector] = Line(selector, self._bound)
            self._wanting.add(selector, line)
        return line

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
        """Hand it nothing more; what waits for it, it keeps."""
        line = subscription.line
        if line is not None:
            line.leave(subscription)
            self._gone(line, 1)

    def _gone(self, line: Line, count: int) -> None:
        """So many subscriptions have left a line."""
        self._count -= count
        if count and not line:
            del self.lines[line.selector]
            self._wanting.discard(line.selector, line)

    def close(self) -> None:
        """Tell all that nothing more will come from here."""
        self.is_closed = True
        for line in self._wanting:
            for subscription in line:
                self.unsubscribe(subscription)
                subscription.wake()
