"""Leases: a snapshot that scans page through stays, though newer ones have come.

Each page that is read of a snapshot renews its lease. A snapshot keeps files and memory that could
be given back: so leases end by themselves, and there are few. Any thread may use them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

LEASE_S = 30.0
"""So long after its last page a scan finds its snapshot."""

LEASES_MAX = 8


class Numbered(Protocol):
    """What can be leased."""

    @property
    def number(self) -> int: ...


Snapshot = TypeVar("Snapshot", bound=Numbered)


@dataclass(slots=True)
class _Lease(Generic[Snapshot]):
    snapshot: Snapshot
    pages: int
    until_s: float


class Leases(Generic[Snapshot]):
    """Snapshots by number, each until nobody has read it for a while.

    If there are too many, those go first of which one page only was read: most scans have one.
    """

    def __init__(
        self,
        lease_s: float = LEASE_S,
        leases_max: int = LEASES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease_s, self._leases_max, self._clock = lease_s, leases_max, clock
        self._lock = threading.Lock()
        self._leases: dict[int, _Lease[Snapshot]] = {}
        self.revision = 0
        """Another one after a snapshot was taken back, or is not what it was."""

    def renew(self, snapshot: Snapshot, revision: int) -> bool:
        """A page of a snapshot is being read that was found under this revision; False: it must be
        looked for again."""
        with self._lock:
            if revision != self.revision:
                return False
            now_s = self._clock()
            known = self._leases.get(snapshot.number)
            pages = known.pages + 1 if known is not None and known.snapshot is snapshot else 1
            self._leases[snapshot.number] = _Lease(snapshot, pages, now_s + self._lease_s)
            self._expire(now_s)
            while len(self._leases) > self._leases_max:
                weakest = min(
                    self._leases.items(), key=lambda pair: (pair[1].pages > 1, pair[1].until_s)
                )
                del self._leases[weakest[0]]
        return True

    def held(self) -> dict[int, Snapshot]:
        """Return the snapshots whose leases have not ended."""
        with self._lock:
            self._expire(self._clock())
            return {number: lease.snapshot for number, lease in self._leases.items()}

    def give_back(self, number: int) -> None:
        """Nobody reads this snapshot any more."""
        with self._lock:
            self._leases.pop(number, None)

    def expire(self) -> None:
        """Give back what has not been read for too long."""
        with self._lock:
            self._expire(self._clock())

    def forget_above(self, number: int) -> None:
        """What came after this snapshot is not to be seen any more."""
        with self._lock:
            self.revision += 1
            for above in [n for n in self._leases if n > number]:
                del self._leases[above]

    def revise(self, change: Callable[[Snapshot], Snapshot]) -> None:
        """Snapshots are not what they were."""
        with self._lock:
            self.revision += 1
            for lease in self._leases.values():
                lease.snapshot = change(lease.snapshot)

    def _expire(self, now_s: float) -> None:
        for number in [n for n, lease in self._leases.items() if lease.until_s <= now_s]:
            del self._leases[number]
