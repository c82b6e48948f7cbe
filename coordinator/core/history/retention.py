"""What of `history` may go: how its records are divided, and up to where a copy leads on.

Pure. A portion of the log ends where a transaction ends, never inside one, and never with the
newest one: so the topic always has a transaction, and a copy of the state can be above what goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.core.history.changes import Joining
from coordinator.core.model.authority_state import SnapshotInfo
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of the log: when it was written, its size, and its event; None: it has none."""

    at_ms: int
    size: int
    event: Event | None


class Archived(Protocol):
    """A portion of the log that stands in the archive."""

    @property
    def begin(self) -> Offset: ...

    @property
    def end(self) -> Offset: ...

    @property
    def last_cas(self) -> Cas: ...


class Portion:
    """Records that follow each other, as many as may leave the log together.

    What no master has committed, such as a stranger's record, goes with the transaction after it.
    """

    def __init__(self, above: Cas, newest: Cas, before_ms: int, size_max: int) -> None:
        """`above`: the CAS with which the portion before ends. `newest`: the last committed CAS.

        Only what was written before `before_ms` goes.
        """
        self._joining = Joining(above)
        self._newest = newest
        self._before_ms = before_ms
        self._size_max = size_max
        self._count = 0
        self._size = 0
        self.whole = 0
        """So many records, from the first on, end where a transaction ends."""
        self.first_cas = Cas(0)
        self.last_cas = Cas(0)
        """The CAS of the first event in them, and that of the last."""

    @property
    def is_full(self) -> bool:
        """Tell whether it ends here: it is large enough, and a transaction ends."""
        return self._size >= self._size_max and self.whole == self._count

    def takes(self, seen: Seen) -> bool:
        """Add the next record; False: neither it may go, nor what follows it."""
        if seen.at_ms >= self._before_ms:
            return False
        event = seen.event
        if event is not None and self._joining.cas < event.cas <= self._newest:
            ends = self._joining.add_whole(event) is not None
            if event.cas == self._newest:
                return False
            self.first_cas = self.first_cas or event.cas
            if ends:
                self.whole, self.last_cas = self._count + 1, event.cas
        self._count += 1
        self._size += seen.size
        return True


def left_by(
    archived: Iterable[Archived], low: Offset, copy: SnapshotInfo | None
) -> Sequence[Archived]:
    """Return the portions that may go: still in the log, which begins at `low`, and below a copy.

    What is left after them begins at or below the copy: whoever has it can follow the log on.
    """
    if copy is None:
        return ()
    return [one for one in archived if one.end > low and one.last_cas < copy.cas]
