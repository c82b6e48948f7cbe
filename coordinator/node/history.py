"""What a node tells of the past: the changes of the state, and the state at any moment.

The topic `history` has every event; copies of past states make the way to any of them short. All
of it blocks, and of several threads that ask, one is answered at a time.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.history import shown
from coordinator.core.history.changes import Change, fold
from coordinator.core.history.predicates import Selector
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas
from coordinator.node.state_copies import StateCopies

REMEMBERED_MAX = 8
READ_S = 8.0
"""So long one question about a moment may read; copies of states make the next one shorter."""

SCAN_S = 2.0
"""A page ends after this time, however little it has found: who asks goes on from there."""

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""So many bytes of JSON the changes of a page have; one that has more is a page of its own."""


class Log(Protocol):
    """The log of all events, as `kafka.history_log` reads it."""

    def oldest(self, newest: Cas) -> Cas: ...

    def oldest_in_topic(self, newest: Cas) -> Cas: ...

    def base(self) -> StateContext | None: ...

    def transactions(self, above: Cas, up_to: Cas) -> Iterator[tuple[Event, ...]]: ...

    def cas_at(self, at_ms: int, newest: Cas) -> Cas: ...

    def close(self) -> None: ...


class CompactedError(Exception):
    """What is asked for is gone; `oldest` is the first CAS that can be told of."""

    def __init__(self, oldest: Cas) -> None:
        super().__init__(f"the history begins with CAS {oldest}: older records are gone")
        self.oldest = oldest


class StillReadingError(Exception):
    """The way to a moment is long, and was not gone to its end; the next try goes on from there."""

    def __init__(self, at: Cas, wanted: Cas) -> None:
        super().__init__(f"this node reads the history: it is at CAS {at} of {wanted}")


class Page(NamedTuple):
    """Changes in order of CAS, and the CAS after which the next page begins; None: that is all.

    `texts` has each change as JSON: a page is measured by them.
    """

    changes: tuple[Change, ...]
    texts: tuple[bytes, ...]
    next: Cas | None


class _Found:
    """What a page has so far, and how many bytes that is."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.texts: list[bytes] = []
        self.size = 0

    def has_room(self, text: bytes) -> bool:
        """Tell whether one more belongs on the page: the first does, whatever its size."""
        return not self.changes or self.size + len(text) <= PAGE_BYTES_MAX

    def add(self, change: Change, text: bytes) -> None:
        self.changes.append(change)
        self.texts.append(text)
        self.size += len(text)

    def page(self, following: Cas | None) -> Page:
        return Page(tuple(self.changes), tuple(self.texts), following)


class History:
    """The past of a cluster, as one node has it. The caller closes it."""

    def __init__(self, open_log: Callable[[threading.Event], Log], folder: Path) -> None:
        """`open_log` is called with the first question, and given what stops a reading."""
        self._open_log = open_log
        self._copies = StateCopies(folder)
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._log: Log | None = None
        self._remembered: OrderedDict[Cas, StateContext] = OrderedDict()

    def close(self) -> None:
        """End what is asked, and let go of the consumer."""
        self._stopping.set()
        with self._turn:
            if self._log is not None:
                self._log.close()

    def is_due(self, state: StateContext) -> bool:
        """Tell whether a copy of the state of now is wanted; this does not block."""
        return self._copies.is_due(state)

    def keep(self, state: StateContext) -> None:
        """Keep a copy of the state of now, if it is due."""
        with self._turn:
            self._note(state)

    def _note(self, state: StateContext) -> None:
        if self._copies.is_due(state):
            self._copies.add(state)

    def state_at(self, cas: Cas, newest: StateContext) -> StateContext:
        """Return the state that the last transaction at or below a CAS led to.

        `newest` is the state of now. Raises CompactedError, StillReadingError, KafkaException.
        """
        with self._turn:
            return self._state_at(cas, newest)

    def _state_at(self, cas: Cas, newest: StateContext) -> StateContext:
        if cas >= newest.cas:
            return newest
        held = self._remembered.get(cas)
        if held is not None:
            self._remembered.move_to_end(cas)
            return held
        state = self._nearest(cas, newest.cas)
        deadline_s = time.monotonic() + READ_S
        for after, changes in self._folded(state, newest.cas):
            if changes[-1].event.cas > cas:
                break
            state = after
            if time.monotonic() > deadline_s:
                self._remember(state.cas, state)
                raise StillReadingError(state.cas, cas)
        return self._remember(cas, state)

    def cas_at(self, at_ms: int, newest: Cas) -> Cas:
        """Return the CAS of the last event that was made at this time or before, else 0.

        `newest` is the CAS of now. Raises KafkaException.
        """
        with self._turn:
            return self._open().cas_at(at_ms, newest)

    def page(
        self, after: Cas, until: Cas | None, predicate: Selector, limit: int, newest: StateContext
    ) -> Page:
        """Return the changes above `after`, to `until` (default: now), that fit, `limit` at most.

        They have PAGE_BYTES_MAX at most, unless it is one. Raises CompactedError,
        StillReadingError, KafkaException.
        """
        last = newest.cas if until is None else min(until, newest.cas)
        if after >= last:
            return Page((), (), None)
        with self._turn:
            return self._page(after, last, predicate, limit, newest)

    def whole_page(self, after: Cas, predicate: Selector, limit: int, newest: StateContext) -> Page:
        """Return the changes above `after` that fit, to the end of the transaction with which they
        are `limit`, or PAGE_BYTES_MAX. No transaction is divided. Raises as `page` does.
        """
        if after >= newest.cas:
            return Page((), (), None)
        with self._turn:
            return self._whole_page(after, predicate, limit, newest)

    def missed(self, after: Cas, predicate: Selector, limit: int, newest: StateContext) -> Page:
        """Return the same for a watcher, from the topic alone.

        Who is so far behind that it is in the archive begins anew: from there, nobody could tell
        when the rest comes. Whoever follows the topic by itself is told the same. Raises likewise.
        """
        if after < newest.cas:
            with self._turn:
                oldest = self._open().oldest_in_topic(newest.cas)
            if after < oldest:
                raise CompactedError(oldest)
        return self.page(after, None, predicate, limit, newest)

    def _page(
        self, after: Cas, last: Cas, predicate: Selector, limit: int, newest: StateContext
    ) -> Page:
        found = _Found()
        deadline_s = time.monotonic() + SCAN_S
        before = self._state_at(after, newest)
        for state, changes in self._folded(before, newest.cas):
            end = changes[-1].event.cas
            for change in changes:
                cas = change.event.cas
                if not after < cas <= last or not predicate.fits(change):
                    continue
                text = shown.as_bytes(change)
                if not found.has_room(text):
                    # Up to the CAS below it everything is told, and nothing of this is folded.
                    self._remember(Cas(cas - 1), before)
                    return found.page(Cas(cas - 1))
                found.add(change, text)
                if len(found.changes) == limit:
                    self._remember(cas, state if cas == end else before)
                    return found.page(cas if cas < last else None)
            if end >= last:
                break
            if time.monotonic() > deadline_s:
                self._remember(end, state)
                return found.page(end)
            before = state
        return found.page(None)

    def _whole_page(
        self, after: Cas, predicate: Selector, limit: int, newest: StateContext
    ) -> Page:
        found = _Found()
        deadline_s = time.monotonic() + SCAN_S
        for state, changes in self._folded(self._state_at(after, newest), newest.cas):
            for change in changes:
                if change.event.cas > after and predicate.fits(change):
                    found.add(change, shown.as_bytes(change))
            is_full = len(found.changes) >= limit or found.size >= PAGE_BYTES_MAX
            if state.cas < newest.cas and (is_full or time.monotonic() > deadline_s):
                self._remember(state.cas, state)
                return found.page(state.cas)
        return found.page(None)

    def _folded(
        self, state: StateContext, up_to: Cas
    ) -> Iterator[tuple[StateContext, tuple[Change, ...]]]:
        """Yield each transaction above a state with the state after it, keeping copies that are
        due. Raises CompactedError, also where what follows left the log as it was being read."""
        if state.cas >= up_to:
            return
        for number, transaction in enumerate(self._open().transactions(state.cas, up_to)):
            if number == 0:
                self._confirm(state, up_to)
            if not transaction:
                continue
            state, changes = fold(state, transaction)
            self._note(state)
            yield state, changes

    def _nearest(self, cas: Cas, newest: Cas) -> StateContext:
        """Return the newest state at hand at or below a CAS, from which nothing is gone."""
        near = [state for state in self._remembered.values() if state.cas <= cas]
        state = max(near, key=lambda state: state.cas, default=EMPTY)
        if self._copies.newest(cas) > state.cas:
            state = max(state, self._copies.at(cas), key=lambda state: state.cas)
        oldest = self._open().oldest(newest)
        return state if state.cas >= oldest else self._restored(cas, oldest)

    def _confirm(self, state: StateContext, newest: Cas) -> None:
        """Raise CompactedError unless the log has all that follows a state."""
        oldest = self._open().oldest(newest)
        if state.cas < oldest:
            self._restored(state.cas, oldest)

    def _restored(self, cas: Cas, oldest: Cas) -> StateContext:
        """Return the state that a restored history begins with, if a CAS is not before it."""
        base = self._open().base()
        if base is None or base.cas > cas:
            raise CompactedError(oldest)
        return base

    def _remember(self, cas: Cas, state: StateContext) -> StateContext:
        self._remembered[cas] = state
        self._remembered.move_to_end(cas)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
        return state

    def _open(self) -> Log:
        if self._log is None:
            self._log = self._open_log(self._stopping)
        return self._log
