"""How much of a backfill is on its way to indexers that have not read it yet. Pure.

An indexer reads each partition in order: backfills, and maintenance behind them. So whoever has
read a maintenance record has read all of the backfill that was sent before it. A *mark* is the
ordinal that maintenance had when a step of the backfill had been sent; whatever has a higher one
came later. A backfill whose window is spent waits until its hosts have read the oldest mark.

How much may be on its way follows from how long it takes to get there, as in congestion control
by delay (LEDBAT, RFC 6817): maintenance waits behind what is on its way, so a backfill keeps that
short. Where indexers keep up, the window grows; where a mark takes longer than the goal, it
shrinks. So backfills have what maintenance leaves, and a write is seen soon while an index is
built. Where nobody writes nobody waits: then the window may be larger, for it costs less so.

Without this, a backfill runs ahead of its indexers for as long as Kafka takes it. In the end Kafka
deletes what was not read yet, and the backfill begins anew, for ever.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_BYTES = 16 * 1024 * 1024
"""At most so much may be on its way, about; a fourth of what may is a step."""

FIRST_BYTES, LEAST_BYTES = 1024 * 1024, 256 * 1024
"""What the window begins with, and what it does not shrink below."""

GOAL_MS = 200
"""So long a mark may be on its way: what a write waits for a backfill, about."""

QUIET_BYTES, QUIET_MS = 4 * 1024 * 1024, 5_000
"""So much may be on its way in any case, once a projector has had no document to maintain, of any
bucket, for so long."""

PATIENCE_MS = 10_000
"""A mark that is older counts as read: a host that reads nothing must not stop the others."""


class Mark(NamedTuple):
    """All of `size` bytes was sent before maintenance had a higher ordinal than this."""

    ordinal: int
    size: int
    since_ms: int


class Credit:
    """The window of one backfill or catch-up."""

    def __init__(self, window_bytes: int = FIRST_BYTES) -> None:
        self.window_bytes = window_bytes
        self._total = 0
        self._on_its_way = 0
        self._unmarked = 0
        self._marks: deque[Mark] = deque()
        self._connection = 0
        self._shrunk_ms = -1

    def spend(self, total_bytes: int) -> bool:
        """Note how much was sent in all; tell whether a mark is due."""
        more = total_bytes - self._total
        self._total = total_bytes
        self._on_its_way += more
        self._unmarked += more
        return self._unmarked >= self.window_bytes // 4

    def mark(self, connection: int, ordinal: int, now_ms: int) -> None:
        """Note the ordinal of the maintenance connection, behind which a record comes now."""
        self._follow(connection)
        self._marks.append(Mark(ordinal, self._unmarked, now_ms))
        self._unmarked = 0

    def settle(
        self, connection: int, read: int | None, now_ms: int, *, is_quiet: bool = False
    ) -> None:
        """Note up to which ordinal all hosts have read maintenance; None: there are none.

        `is_quiet`: for QUIET_MS nothing was to be maintained.
        """
        self._follow(connection)
        while self._marks and (
            read is None
            or self._marks[0].ordinal < read
            or now_ms - self._marks[0].since_ms >= PATIENCE_MS
        ):
            mark = self._marks.popleft()
            self._on_its_way -= mark.size
            if read is not None:
                self._adapt(mark, now_ms, QUIET_BYTES if is_quiet else LEAST_BYTES)

    def _adapt(self, mark: Mark, now_ms: int, least_bytes: int) -> None:
        """Let the window grow by what came in time; shrink it, once for all that was under way."""
        took_ms = now_ms - mark.since_ms
        if took_ms <= GOAL_MS or self.window_bytes < least_bytes:
            self.window_bytes = min(WINDOW_BYTES, self.window_bytes + mark.size // 2)
        elif mark.since_ms > self._shrunk_ms:
            self._shrunk_ms = now_ms
            wanted = max(self.window_bytes // 2, self.window_bytes * GOAL_MS // took_ms)
            self.window_bytes = max(least_bytes, wanted)

    def _follow(self, connection: int) -> None:
        """Marks in another connection mean nothing: nobody tells of them any more."""
        if connection != self._connection:
            self._connection = connection
            self._on_its_way = self._unmarked
            self._marks.clear()

    def clear(self) -> None:
        """Take all for read: it is not known any more."""
        self._on_its_way = self._unmarked = 0
        self._marks.clear()

    @property
    def is_waiting(self) -> bool:
        """Tell whether a mark is on its way."""
        return bool(self._marks)

    @property
    def is_spent(self) -> bool:
        return self._on_its_way >= self.window_bytes and self.is_waiting
