"""Whether a connection to a topic sees each deletion, where Kafka forgets them after a while.

Kafka keeps a deletion for some time after the document is gone (`delete.retention.ms`). So who
reads on within that time misses none. Who begins at an older position may: the times of the records
above it tell. And so may who is held back for longer. So it is looked now and then where the
partitions end, and whether they have got to where they ended that time ago: the times of records
say nothing then, they may be those of events long past.

Who began with nothing sees each deletion for that time, whatever the age of the records: what was
forgotten before, its document was gone before, too. If that is not long enough to read all that
there is, something may be missed that reading anew would miss again.

Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from coordinator.core.model.topic_logs import Cleaning, History

LOOKS = 20
"""So often it is looked within the time that deletions are kept, at least."""

LOOK_MS = range(1_000, 60_000 + 1)
"""So often at most, and at least. Where that is too seldom, only the beginning counts."""


class DeletionWatch:
    """What the partitions of a connection may have missed, each by its number."""

    def __init__(self, cleaning: Cleaning, read_from_ms: int, look_ms: range = LOOK_MS) -> None:
        """The bucket's reading has begun at `read_from_ms` or later."""
        self._cleaning = cleaning
        self._read_from_ms = read_from_ms
        kept_ms = cleaning.delete_retention_ms
        self._period_ms = min(max(kept_ms // LOOKS, look_ms[0]), look_ms[-1])
        self._is_looked = cleaning.is_compacted and 4 * self._period_ms <= kept_ms
        self._looked_ms = 0
        self._ends: deque[tuple[int, Mapping[int, int]]] = deque()
        """When it was looked, and where the partitions ended then."""
        self._old_ends: Mapping[int, int] = {}
        """Where they ended so long ago that all of that has to be read by now."""
        self._whole: dict[int, int] = {}
        """Up to where nothing was missed in the partitions, as seqnos."""
        self._first: dict[int, int] = {}
        """Those that have not read all yet that there was when they began: where they ended."""

    def kept_since_ms(self, now_ms: int) -> int | None:
        """Return since when no deletion may have been forgotten that a beginning would miss; None:
        none at all."""
        return self._cleaning.kept_since_ms(now_ms, self._read_from_ms)

    def begin(
        self,
        p: int,
        history: History,
        start: tuple[int, int] | None,
        kept_from: int | None,
        now_ms: int,
    ) -> bool:
        """Begin a partition after a position (vbuuid, seqno), None: at its end; tell whether
        deletions may have been missed.

        `kept_from` is the first offset since `kept_since_ms`, None where that is.
        """
        seqno = history.stable if start is None else start[1]
        self._looked_ms = self._looked_ms or now_ms
        self._whole[p] = seqno
        if not seqno or now_ms < self._read_from_ms + self._cleaning.delete_retention_ms:
            self._first[p] = history.stable
        return history.may_hide_deletions(seqno, kept_from)

    def reach_end(self, p: int, seqno: int, now_ms: int) -> None:
        """All was read that there was, up to this seqno."""
        self._first.pop(p, None)
        if self._is_in_time(now_ms):
            self._whole[p] = max(self._whole.get(p, 0), seqno)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether it is time to look."""
        return self._is_looked and now_ms >= self._looked_ms + self._period_ms

    def look(
        self, places: Mapping[int, int], ends: Mapping[int, int], now_ms: int
    ) -> tuple[AbstractSet[int], AbstractSet[int]]:
        """Look whether partitions that are at these places, and end there, have missed something.

        Returns those that may have, and those of them that reading anew would not help: their first
        reading takes too long.
        """
        whole = places
        if not self._is_in_time(now_ms):
            whole = {p: self._whole.get(p, at) for p, at in places.items()}
        self._first = {p: end for p, end in self._first.items() if whole.get(p, end) < end}
        old_ms = now_ms - self._cleaning.delete_retention_ms + 2 * self._period_ms
        while self._ends and self._ends[0][0] <= old_ms:
            _, self._old_ends = self._ends.popleft()
        self._ends.append((now_ms, dict(ends)))
        self._looked_ms, self._whole = now_ms, dict(places)
        old = self._old_ends
        # A leader without the last records may have made a log shorter since.
        missed = {p for p, at in whole.items() if at < min(old.get(p, 0), ends.get(p, 0))}
        return missed - self._first.keys(), missed & self._first.keys()

    def _is_in_time(self, now_ms: int) -> bool:
        """Tell whether what was read since the last look is whole, where it was then."""
        return now_ms <= self._looked_ms + 2 * self._period_ms
