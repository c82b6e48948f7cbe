"""Which connection owns which vbucket, while one batch is folded into a bucket's state.

Pure, but for the object itself, which lives for one batch. A connection sends on three topics, and
records on different topics have no common order; the ordinals of the connection are the order. The
rules:

- A BEGIN takes a vbucket that has no owner. If it has one, the BEGIN is held until the owner's END,
  or until the owner's connection is closed. To close a connection ends just the vbuckets that it
  still owns.
- Numbers of generations ascend. A BEGIN with a lower number than the owner's is late and ignored. A
  BEGIN with a higher number of the same projector takes over at once, since a projector streams a
  vbucket by one connection at a time. The number 0 says nothing.
- After its END a connection may still be heard with what it sent before the END, until the next
  owner comes. A connection that has lost a vbucket in any other way is not heard any more.
- An END that is read before its BEGIN is kept, and ends the BEGIN when it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import ConnectionClosed, StreamBegin, StreamEnd
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.timestamps.bucket_state import (
    NEVER,
    NOBODY,
    OPEN,
    BucketState,
    Connection,
    EarlyEnd,
    Held,
    frozen,
)
from streaming.stability.vbuckets import Rows, Vbuckets

CONNECTIONS_MAX = 32
"""So many connections are remembered, and as many again as own or wait for anything, up to:"""
OWNING_MAX = 1_024
HELD_MAX = 4
"""So many BEGINs of a vbucket are held: the newest generations."""
EARLY_ENDS_PER_VBUCKET_MAX = 4
ROLLBACK = "rollback"
"""The reason of an END that says that the store refuses a stream."""


class Claim(Enum):
    """What a BEGIN does to a vbucket."""

    TAKES = "takes"
    WAITS = "waits"
    LATE = "late"


class Refusal(NamedTuple):
    """A store refused a vbucket's stream from this position."""

    vbucket: int
    vbuuid: Vbuuid
    seqno: Seqno
    projector: int
    connection: int


class Link:
    """A connection, while its marks may change; see `bucket_state.Connection`."""

    __slots__ = ("closed", "marks", "number", "projector")

    def __init__(self, projector: int, number: int, closed: int, marks: NDArray[np.int64]) -> None:
        self.projector, self.number, self.closed, self.marks = projector, number, closed, marks

    def mark(self, vbucket: int, ordinal: int, *, ended: bool) -> None:
        """Note the last BEGIN or END of a vbucket."""
        if not self.marks.flags.writeable:
            self.marks = self.marks.copy()
        self.marks[vbucket] = 2 * ordinal + ended

    def last(self, vbucket: int) -> tuple[int, bool]:
        """Return the ordinal of a vbucket's last BEGIN or END, or NEVER, and whether it ended."""
        mark = int(self.marks[vbucket])
        return (NEVER, False) if mark < 0 else (mark >> 1, bool(mark & 1))


class Ownership:
    """Who owns the vbuckets of a bucket, and who waits for them."""

    def __init__(self, state: BucketState, rows: Vbuckets) -> None:
        self.now_ms, self.rows = rows.now_ms, rows
        self.held = dict(state.held)
        self.ends = dict(state.early_ends)
        self.links = {
            c: Link(known.projector, known.number, known.closed, known.marks)
            for c, known in state.connections.items()
        }
        self.refusals: list[Refusal] = []

    # -- records ---------------------------------------------------------------------------------

    def begin(self, record: StreamBegin) -> None:
        """A vbucket's stream begins."""
        vbucket, connection, ordinal = record.vbucket, record.connection, record.ordinal
        link = self._link(connection, record.projector, record.number)
        owns = self.rows.connection[vbucket] == connection
        before = max(link.last(vbucket)[0], int(self.rows.begun[vbucket]) if owns else NEVER)
        if ordinal <= before:
            return
        end = self._end_of(link, connection, vbucket, ordinal)
        link.mark(vbucket, ordinal if end == OPEN else end, ended=end != OPEN)
        self._unhold(vbucket, connection)
        offer = Held(
            record.projector,
            connection,
            record.number,
            ordinal,
            record.vbuuid,
            record.seqno,
            self.now_ms,
        )
        claim = self._claim(vbucket, offer)
        if claim is Claim.TAKES:
            self.own(vbucket, offer, end)
        elif claim is Claim.WAITS and end == OPEN:
            waiting = sorted((*self.held.get(vbucket, ()), offer), key=lambda h: -h.number)
            self.held[vbucket] = tuple(waiting[:HELD_MAX])

    def end(self, record: StreamEnd) -> None:
        """A vbucket's stream ends, or the store refuses it."""
        vbucket, connection, ordinal = record.vbucket, record.connection, record.ordinal
        link = self.links.get(connection)
        refused = record.reason == ROLLBACK
        if refused and not self._is_past(vbucket, connection, link):
            self.refusals.append(
                Refusal(vbucket, record.vbuuid, record.seqno, record.projector, connection)
            )
        if self._matches(vbucket, connection, ordinal, link) or refused:
            return
        if self._is_past(vbucket, connection, link):
            return
        key, early = (connection, vbucket), EarlyEnd(ordinal, record.projector, self.now_ms)
        self.ends[key] = tuple(sorted({*self.ends.get(key, ()), early}))[-HELD_MAX:]
        while len(self.ends) > EARLY_ENDS_PER_VBUCKET_MAX * len(self.rows):
            del self.ends[next(iter(self.ends))]

    def close(self, record: ConnectionClosed) -> None:
        """A connection is gone: an END of exactly what it still owned."""
        connection, ordinal = record.connection, record.ordinal
        link = self._link(connection, record.projector, 0)
        link.closed = max(link.closed, ordinal)
        rows = self.rows
        mine = (rows.connection == connection) & (rows.ended == OPEN) & (rows.begun < ordinal)
        for vbucket in [v for v, waiting in self.held.items() if _of(waiting, connection)]:
            self._unhold(vbucket, connection)
        for vbucket in np.flatnonzero(mine).tolist():
            self._vacate(vbucket, ordinal)

    # -- changes of owners -----------------------------------------------------------------------

    def own(self, vbucket: int, offer: Held, end: int = OPEN) -> None:
        """Give a vbucket to a connection; with `end`, what that said until then still counts."""
        self.rows.own(vbucket, offer, end)
        self._settle(vbucket)

    def give(self, vbucket: int) -> None:
        """Give a vbucket to the newest that waits for it, although its owner has not ended."""
        newest = self.held[vbucket][0]
        self._unhold(vbucket, newest.connection)
        self.own(vbucket, newest)

    def _vacate(self, vbucket: int, ordinal: int) -> None:
        self.rows.vacate(vbucket, ordinal)
        self._settle(vbucket)

    def _settle(self, vbucket: int) -> None:
        """Let the newest of those that wait own the vbucket, if it can; forget who is late."""
        claims = [(self._claim(vbucket, held), held) for held in self.held.pop(vbucket, ())]
        waiting = tuple(held for claim, held in claims if claim is not Claim.LATE)
        taking = next((held for claim, held in claims if claim is Claim.TAKES), None)
        if left := tuple(held for held in waiting if held is not taking):
            self.held[vbucket] = left
        if taking is not None:
            self.own(vbucket, taking)

    def _claim(self, vbucket: int, offer: Held) -> Claim:
        rows = self.rows
        owner, number = rows.connection[vbucket], rows.number[vbucket]
        if owner in (NOBODY, offer.connection):
            return Claim.TAKES
        if 0 < offer.number < number:
            return Claim.LATE
        succeeds = offer.number > number and offer.projector == rows.projector[vbucket]
        return Claim.TAKES if succeeds or rows.ended[vbucket] != OPEN else Claim.WAITS

    # -- what belongs to what --------------------------------------------------------------------

    def _link(self, connection: int, projector: int, number: int) -> Link:
        link = self.links.get(connection)
        if link is None:
            marks = np.full(len(self.rows), NEVER, np.int64)
            link = self.links[connection] = Link(projector, number, OPEN, marks)
        link.number = link.number or number
        return link

    def _end_of(self, link: Link, connection: int, vbucket: int, ordinal: int) -> int:
        """Return the ordinal of the END of this BEGIN if it was read already, or OPEN."""
        ends = self.ends.pop((connection, vbucket), ())
        later = [end for end in ends if end.ordinal > ordinal]
        if later[1:]:
            self.ends[connection, vbucket] = tuple(later[1:])
        found = [end.ordinal for end in later[:1]]
        if link.closed > ordinal:
            found.append(link.closed)
        return min(found, default=OPEN)

    def _matches(self, vbucket: int, connection: int, ordinal: int, link: Link | None) -> bool:
        """Apply an END to the BEGIN that it belongs to; False: that was not read yet."""
        if link is None:
            return False
        last, is_over = link.last(vbucket)
        if last == NEVER:
            return False
        if ordinal <= last:
            return True  # Of a BEGIN that another one has followed on the same connection.
        if is_over:
            return False
        link.mark(vbucket, ordinal, ended=True)
        self._unhold(vbucket, connection)
        if self.rows.connection[vbucket] == connection and self.rows.ended[vbucket] == OPEN:
            self._vacate(vbucket, ordinal)
        return True

    def _is_past(self, vbucket: int, connection: int, link: Link | None) -> bool:
        """Tell whether a connection is of an older generation than the vbucket's."""
        return (
            link is not None
            and 0 < link.number < self.rows.number[vbucket]
            and self.rows.connection[vbucket] != connection
        )

    def _unhold(self, vbucket: int, connection: int) -> None:
        """Forget what a connection waits for."""
        waiting = self.held.get(vbucket, ())
        left = tuple(held for held in waiting if held.connection != connection)
        if left:
            self.held[vbucket] = left
        else:
            self.held.pop(vbucket, None)

    # -- SYNC ------------------------------------------------------------------------------------

    def counts(self, vbuckets: Rows, connections: Rows, ordinals: Rows) -> NDArray[np.bool_]:
        """Tell which SYNCs come from owners, or from the last ones, before their END."""
        ended = self.rows.ended[vbuckets]
        return np.asarray(
            (self.rows.connection[vbuckets] == connections)
            & (ordinals > self.rows.begun[vbuckets])
            & ((ended == OPEN) | (ordinals < ended))
        )

    def may_count(self, vbuckets: Rows, connections: Rows, ordinals: Rows) -> NDArray[np.bool_]:
        """Tell which SYNCs, of those that do not count, may do so when another record is read."""
        may = np.ones(len(vbuckets), np.bool_)
        for connection, link in self.links.items():
            rows = np.flatnonzero(connections == connection)
            if not len(rows):
                continue
            named, marks = vbuckets[rows], link.marks[vbuckets[rows]]
            waits = np.zeros(len(self.rows), np.bool_)
            waits[[v for v, held in self.held.items() if _of(held, connection)]] = True
            later = (ordinals[rows] > marks >> 1) & ((marks & 1 == 1) | waits[named])
            past = (self.rows.number[named] > link.number) & (link.number > 0)
            past &= self.rows.connection[named] != connection
            may[rows] = ((marks == NEVER) | later) & ~past
        return may

    # -- time ------------------------------------------------------------------------------------

    def set_on(self, later: Callable[[Any], Any]) -> None:
        """Set on since when BEGINs and ENDs wait."""
        for vbucket, waiting in self.held.items():
            self.held[vbucket] = tuple(later(held) for held in waiting)
        for key, ends in self.ends.items():
            self.ends[key] = tuple(later(end) for end in ends)

    def unmatched(self, due: Callable[[int], bool]) -> list[tuple[int, EarlyEnd]]:
        """Forget ENDs that have waited long enough for their BEGIN.

        Return the last of each connection and vbucket, but where the owner was heard since.
        """
        found: list[tuple[int, EarlyEnd]] = []
        for (connection, vbucket), ends in list(self.ends.items()):
            old = [end for end in ends if due(end.since_ms)]
            if not old:
                continue
            del self.ends[connection, vbucket]
            if left := tuple(end for end in ends if end not in old):
                self.ends[connection, vbucket] = left
            last = max(old, key=lambda end: end.since_ms)
            if not self.rows.owned[vbucket] or self.rows.heard_ms[vbucket] <= last.since_ms:
                found.append((vbucket, last))
        return found

    # -- the end of a batch ----------------------------------------------------------------------

    def remembered(self, before: BucketState) -> dict[int, Connection]:
        """Return the connections that are kept; those that did not change are the same objects."""
        kept = dict(self.links)
        if len(kept) > CONNECTIONS_MAX:
            owning = self.rows.connection[self.rows.ended == OPEN]
            owners = set(owning.tolist())
            active = owners | set(self._waiting())
            idle = [c for c in kept if c not in active]
            for connection in idle[: max(0, len(idle) - CONNECTIONS_MAX)]:
                del kept[connection]
            # Who only waits goes first: a BEGIN that is held may take over without it.
            by_use = sorted(kept, key=owners.__contains__)
            for connection in by_use[: max(0, len(kept) - OWNING_MAX)]:
                del kept[connection]
        return {c: _as_it_is(link, before.connections.get(c)) for c, link in kept.items()}

    def _waiting(self) -> Iterator[int]:
        return (held.connection for waiting in self.held.values() for held in waiting)


def _of(waiting: tuple[Held, ...], connection: int) -> bool:
    return any(held.connection == connection for held in waiting)


def _as_it_is(link: Link, before: Connection | None) -> Connection:
    after = Connection(link.projector, link.number, link.closed, frozen(link.marks))
    return before if before is not None and before == after else after
