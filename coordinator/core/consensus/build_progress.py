"""The progress and the rate of builds, as projectors and indexers report them. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.core.model.entities import Index
from coordinator.core.model.records import ProjectorHeartbeat, SliceLoads

WINDOW_MS = 10_000
"""The rate is that of so long a time."""

BUILDS_MAX = 1_000


class Progress(NamedTuple):
    """How many mutations of a backfill were sent, of how many, and how many a second."""

    sent: int
    total: int
    per_s: float

    @property
    def percent(self) -> float:
        """What part was sent; nothing to send is all of it."""
        return 100.0 if not self.total else 100.0 * min(self.sent, self.total) / self.total

    @property
    def remaining_s(self) -> float | None:
        """How long the rest takes at this rate; None: nobody can tell."""
        rest = max(0, self.total - self.sent)
        if not rest:
            return 0.0
        return rest / self.per_s if self.per_s > 0 else None


@dataclass(slots=True)
class _Build:
    shares: dict[int, tuple[int, int]] = field(default_factory=dict)
    seen: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def sent(self) -> int:
        return sum(sent for sent, _ in self.shares.values())


class Progresses:
    """The progress of all builds that projectors speak of."""

    def __init__(self) -> None:
        self._builds: dict[tuple[int, int], _Build] = {}

    def note(self, beat: ProjectorHeartbeat, now_ms: int) -> None:
        """Take what a projector says."""
        for part in beat.backfills:
            key = (part.index_id, part.build)
            if key not in self._builds and len(self._builds) >= BUILDS_MAX:
                del self._builds[next(iter(self._builds))]
            build = self._builds.setdefault(key, _Build())
            build.shares[beat.projector] = (part.sent, part.total)
            build.seen.append((now_ms, build.sent))
            while build.seen[0][0] < now_ms - WINDOW_MS:
                build.seen.popleft()

    def of(self, index_id: int, build: int) -> Progress | None:
        """Return how far a build has got; None: no projector has spoken of it."""
        found = self._builds.get((index_id, build))
        if found is None:
            return None
        total = sum(total for _, total in found.shares.values())
        (first_ms, first), (last_ms, last) = found.seen[0], found.seen[-1]
        rate = 1000.0 * (last - first) / (last_ms - first_ms) if last_ms > first_ms else 0.0
        return Progress(found.sent, total, max(0.0, rate))

    def all(self) -> dict[tuple[int, int], Progress]:
        """Return all that is known, by index and build."""
        found = ((key, self.of(*key)) for key in self._builds)
        return {key: progress for key, progress in found if progress is not None}


Entries = Mapping[tuple[int, int, int], int]
"""How many entries an indexer has of an index in a slice."""


def entries_told(loads: Mapping[int, SliceLoads]) -> Entries:
    """Return how many entries there are in each slice, as indexers tell now and then."""
    return {
        (indexer, load.index_id, load.slice): load.entries
        for indexer, beat in loads.items()
        for load in beat.loads
    }


def of_filling(part: Index, entries: Entries) -> Progress | None:
    """Return how far a part is that is filled from other indexers, by the entries that it and its
    origins have; None: it is not, or they have told nothing."""
    total = sum(entries.get((one.indexer, one.index, one.slice), 0) for one in part.origins)
    if not total:
        return None
    held = ((host, part.id, piece.number) for piece in part.slices for host in piece.serving)
    return Progress(min(sum(entries.get(place, 0) for place in held), total), total, 0.0)
