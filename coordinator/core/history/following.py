"""Follows a log of transactions: which changes a reader is told of, and when nothing is told.

Pure. Whoever reads `history` for itself, and not through a node, keeps the state of where it is: so
it knows what was before each change, and a predicate may ask for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.catalog.state import StateContext
from coordinator.core.history.changes import Change, fold
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas

BOOKMARK_S, BOOKMARK_SOON_S = 5.0, 0.2
"""A bookmark is told when nothing was for so long; sooner after changes, whose transaction is known
to be whole then."""


class Following:
    """One reader: the state after the last transaction that it has read."""

    def __init__(self, state: StateContext, after: Cas, predicate: Predicate) -> None:
        """It is told of what is above `after`, which is at or above the CAS of the state."""
        self.state = state
        self._after = after
        self._predicate = predicate

    @property
    def position(self) -> Cas:
        """All up to here was told, or does not fit."""
        return max(self.state.cas, self._after)

    def take(self, transaction: Sequence[Event]) -> list[Change]:
        """Fold the next transaction, and return what is told of it, in order."""
        if not transaction:
            return []
        self.state, changes = fold(self.state, transaction)
        return [
            change
            for change in changes
            if change.event.cas > self._after and self._predicate.fits(change)
        ]


class Bookmarks:
    """When the next bookmark is due."""

    def __init__(self, now_s: float) -> None:
        self._due_s = now_s + BOOKMARK_S

    def expect(self, now_s: float) -> None:
        """Changes were told of, or all that was missed has been read: one is due soon."""
        self._due_s = now_s + BOOKMARK_SOON_S

    def is_due(self, now_s: float) -> bool:
        """Tell whether a bookmark is to be told of; the next one takes its time."""
        if now_s < self._due_s:
            return False
        self._due_s = now_s + BOOKMARK_S
        return True
