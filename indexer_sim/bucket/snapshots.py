"""Snapshots of a bucket at exactly the stability timestamps, though later changes were applied.

All indexers get the same vectors, and each keeps a snapshot at them. When a vector comes, an
indexer may have applied later changes. So it keeps the last changes for a while, each with the
value before. A snapshot is a moment of the database (a view at one instant), together with the
changes to undo. Pure, but for the moments, which are only kept.

A snapshot at a vector is exact if each vbucket had the end of a snapshot of the store there, and if
all later changes can be undone. Otherwise the timestamp is left out: another one comes soon.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Seqno
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.database import Moment
from indexer_sim.bucket.entries import PIECE, SEVERAL, places_in
from indexer_sim.bucket.leases import Leases
from indexer_sim.bucket.progress import ORPHANED, WHOLE
from indexer_sim.bucket.tracker import NEVER, Tracker

UNDO_BYTES_MAX = 16 * 1024 * 1024
"""So many bytes of changes can be taken back, about."""

UNDO_BYTES = 288
"""What a change takes in memory, but for its document's id and its places before and after."""

OVERLAID_BYTES = 170
"""What an entry takes in an overlay, but for its key."""

KEPT_MAX = 6
WANTED_MAX = 8
NOT_YET, REACHED, MISSED = range(3)

Overlay = Mapping[tuple[int, int], list[tuple[bytes, bool]]]
"""By index and slice: entries in order, and whether they are there."""


class Undo(NamedTuple):
    """How to undo one change of a document: its place in the back-index before and after."""

    vbucket: int
    seqno: Seqno
    index_id: int
    document: bytes
    before: bytes | None
    after: bytes | None


def sizes_of(changes: Iterable[Undo]) -> list[int]:
    """Return the bytes that each change takes, about; each of several keys takes more in an
    overlay."""
    found: list[int] = []
    for _, _, _, document, before, after in changes:
        size = UNDO_BYTES + len(document)
        for side in (before, after):
            if side is not None:
                size += len(side)
                if side[PIECE] == SEVERAL:
                    size += OVERLAID_BYTES * len(places_in(side))
        found.append(size)
    return found


@dataclass(frozen=True, slots=True)
class Stable:
    """A bucket at a stability timestamp. `builds` has the builds that are complete there."""

    number: int
    vector: Vector
    digest: int
    moment: Moment
    overlay: Overlay
    builds: Mapping[int, int]


class Wanted(NamedTuple):
    """A timestamp at which a snapshot is wanted."""

    number: int
    vector: Vector


class Timeline:
    """The last changes of a bucket, and the snapshots that were made of them. For one thread.

    Any thread may read `kept`, the snapshots in ascending order, and `available`.
    """

    def __init__(self, undo_bytes_max: int = UNDO_BYTES_MAX, kept_max: int = KEPT_MAX) -> None:
        self.kept: tuple[Stable, ...] = ()
        self.leases: Leases[Stable] = Leases()
        """Older snapshots that scans still page through, and newer ones."""
        self._undo_bytes_max, self._kept_max = undo_bytes_max, kept_max
        self._changes: deque[Undo] = deque()
        self._sizes: deque[int] = deque()
        """How many bytes each of these changes takes."""
        self._bytes = 0
        self._passed: dict[int, list[Undo]] = {}
        """By snapshot: the changes between the one before it and it, in order."""
        self._floors: dict[int, int] = {}
        self._wanted: list[Wanted] = []
        self._last: tuple[int, list[int]] = (0, [])
        self._heard = 0

    def add(self, changes: Iterable[Undo]) -> None:
        """Note what was applied; the oldest is forgotten if it is too much."""
        made = tuple(changes)
        sizes = sizes_of(made)
        self._changes.extend(made)
        self._sizes.extend(sizes)
        self._bytes += sum(sizes)
        floors = self._floors
        while self._bytes > self._undo_bytes_max:
            vbucket, seqno, *_ = self._changes.popleft()
            self._bytes -= self._sizes.popleft()
            if seqno > floors.get(vbucket, 0):
                floors[vbucket] = seqno

    def forget(self, indexes: Collection[int]) -> None:
        """These indexes begin from nothing: what was in them before is not to come back, nor to be
        read in a snapshot."""
        self._keep(c for c in self._changes if c.index_id not in indexes)
        for number, passed in self._passed.items():
            self._passed[number] = [c for c in passed if c.index_id not in indexes]

        def without(stable: Stable) -> Stable:
            if stable.builds.keys().isdisjoint(indexes):
                return stable
            builds = {i: build for i, build in stable.builds.items() if i not in indexes}
            return replace(stable, builds=builds)

        self.kept = tuple(map(without, self.kept))
        self.leases.revise(without)

    def want(self, timestamp: StabilityTimestamp) -> None:
        """Note a timestamp, once."""
        if timestamp.number > self._heard:
            self._heard = timestamp.number
            vector = Vector.from_bytes(timestamp.vbuuids, timestamp.seqnos)
            if len(self._wanted) == WANTED_MAX:
                del self._wanted[1]  # Never the first: else one that is behind would reach none.
            self._wanted.append(Wanted(timestamp.number, vector))

    def reached(self, tracker: Tracker) -> Wanted | None:
        """Return the first timestamp that can be told now; those that never can are forgotten."""
        for wanted in list(self._wanted):
            verdict = self.judge(wanted.vector, tracker)
            if verdict != NOT_YET:
                self._wanted.remove(wanted)
            if verdict == REACHED:
                return wanted
        return None

    def again(self, tracker: Tracker) -> Wanted | None:
        """Return the newest snapshot's timestamp, if an index has become whole that it lacks.

        Where nothing changes any more, no other timestamp comes.
        """
        if not self.kept:
            return None
        newest = self.kept[-1]
        complete = {i: t.state.build for i, t in tracker.indexes.items() if t.state.complete}
        if complete.items() <= newest.builds.items():
            return None
        if self.judge(newest.vector, tracker) != REACHED:
            return None
        whole = whole_at(newest.vector.seqnos.tolist(), tracker).items()
        kept = newest.builds.items() & complete.items()
        if whole <= newest.builds.items() or not kept <= whole:
            return None
        return Wanted(newest.number, newest.vector)

    def judge(self, vector: Vector, tracker: Tracker) -> int:
        """Tell whether a vector can be told now. While it is not covered, that costs nothing."""
        if len(vector) != tracker.vbuckets:
            return MISSED
        if not tracker.covers(vector):
            return NOT_YET
        if _has_others(tracker, vector):
            return MISSED
        _, before = self._last
        verdict = REACHED
        wanted = zip(vector.vbuuids.tolist(), vector.seqnos.tolist(), strict=True)
        for vbucket, (vbuuid, seqno) in enumerate(wanted):
            progress = tracker.progress.get(vbucket)
            floor = self._floors.get(vbucket, 0)
            if progress is None:
                verdict = verdict if seqno == 0 else NOT_YET
            elif seqno < max(progress.floor, floor, before[vbucket] if before else 0):
                return MISSED  # Below the last snapshot nothing can be undone.
            elif seqno == 0 or (before and before[vbucket] == seqno):
                continue
            elif progress.condition not in (WHOLE, ORPHANED) or progress.vbuuid != vbuuid:
                verdict = NOT_YET
            elif seqno not in (ends := tracker.boundaries.get(vbucket, [])):
                if ends and ends[-1] > seqno:
                    return MISSED
                verdict = NOT_YET
        return verdict

    def keep(self, timestamp: Wanted, moment: Moment, tracker: Tracker) -> Stable:
        """Keep a moment as it was at a timestamp that was `reached`."""
        vector = timestamp.vector
        seqnos: list[int] = vector.seqnos.tolist()
        passed = [c for c in self._changes if c.seqno <= seqnos[c.vbucket]]
        self._keep(c for c in self._changes if c.seqno > seqnos[c.vbucket])
        self._passed.setdefault(timestamp.number, []).extend(passed)
        self._last = (timestamp.number, seqnos)
        for vbucket, ends in tracker.boundaries.items():
            del ends[: bisect_left(ends, seqnos[vbucket])]
        made = Stable(
            timestamp.number,
            vector,
            vector.digest(),
            moment,
            taken_back(self._changes),
            whole_at(seqnos, tracker),
        )
        others = [kept for kept in self.kept if kept.number != made.number]
        self.kept = (*others, made)[-self._kept_max :]
        self.leases.expire()
        self._forget_passed()
        return made

    def _keep(self, changes: Iterable[Undo]) -> None:
        """These changes are left."""
        self._changes = deque(changes)
        self._sizes = deque(sizes_of(self._changes))
        self._bytes = sum(self._sizes)

    def available(self) -> dict[int, Stable]:
        """Return the snapshots that can be read, by number."""
        return self.leases.held() | {stable.number: stable for stable in self.kept}

    def _forget_passed(self) -> None:
        """Forget what led to a snapshot that is not kept any more, or too long ago."""
        kept = {stable.number for stable in self.kept}
        left = self._undo_bytes_max
        for number in sorted(self._passed, reverse=True):
            left -= sum(sizes_of(self._passed[number]))
            if number not in kept or left < 0:
                del self._passed[number]

    def way_back(
        self, left: Mapping[int, int], tracker: Tracker
    ) -> tuple[Stable, list[Undo]] | None:
        """Return the newest snapshot that has nothing of these vbuckets beyond what is left of
        them, and the changes since, in order; None: there is none to which they can be undone."""
        undone: list[list[Undo]] = [list(self._changes)]
        for stable in reversed(self.kept):
            seqnos = stable.vector.seqnos
            if not self.can_undo_to(stable, tracker):
                return None
            if all(seqnos[vbucket] <= seqno for vbucket, seqno in left.items()):
                return stable, [change for part in reversed(undone) for change in part]
            if stable.number not in self._passed:
                return None
            undone.append(self._passed[stable.number])
        return None

    def can_undo_to(self, stable: Stable, tracker: Tracker) -> bool:
        """Tell whether each change above a snapshot's seqnos can be undone."""
        seqnos: list[int] = stable.vector.seqnos.tolist()
        if len(seqnos) != tracker.vbuckets or _has_others(tracker, stable.vector):
            return False
        return all(
            max(progress.floor, self._floors.get(vbucket, 0)) <= seqnos[vbucket]
            for vbucket, progress in tracker.progress.items()
        )

    def go_back(self, to: Stable | None) -> None:
        """Everything is as it was at a snapshot; None: nothing is here any more."""
        self._keep(())
        self._floors.clear()
        self._wanted.clear()
        self._heard = to.number if to is not None else 0
        self.kept = tuple(s for s in self.kept if to is not None and s.number <= to.number)
        self.leases.forget_above(to.number if to is not None else 0)
        self._last = (to.number, to.vector.seqnos.tolist()) if to is not None else (0, [])
        self._forget_passed()

    def changes_since(self, timestamp: int) -> list[Undo]:
        """Return what was applied after the newest snapshot, if that is its number."""
        return list(self._changes) if timestamp and timestamp == self._last[0] else []


def _has_others(tracker: Tracker, vector: Vector) -> bool:
    """Tell whether something is held of vbuckets that a vector does not have: the bucket was made
    anew with fewer of them, and what was held of the former one has yet to go."""
    return max(tracker.progress, default=-1) >= len(vector)


def whole_at(seqnos: list[int], tracker: Tracker) -> dict[int, int]:
    """Return the builds of the indexes of which everything was here at these seqnos, exactly."""
    found: dict[int, int] = {}
    for index_id, tracked in tracker.indexes.items():
        marks = tracked.marks.items()
        if tracked.state.complete and all(
            mark.done != NEVER and mark.done <= seqnos[vbucket] for vbucket, mark in marks
        ):
            found[index_id] = tracked.state.build
    return found


def taken_back(changes: Iterable[Undo]) -> Overlay:
    """Return what is to be seen of entries once these changes, in order, are taken back."""
    found: dict[tuple[int, int], dict[bytes, bool]] = {}
    for change in reversed(list(changes)):
        for raw, present in ((change.after, False), (change.before, True)):
            if raw is not None:
                for piece, key in places_in(raw):
                    entries = found.setdefault((change.index_id, piece), {})
                    entries[key + change.document] = present
    return {where: sorted(entries.items()) for where, entries in found.items()}


def overlaid(
    entries: Iterable[bytes], changes: list[tuple[bytes, bool]], backwards: bool
) -> Iterator[bytes]:
    """Yield entries as they are with changes laid over them; both in the order that is wanted."""
    waiting = iter(changes)
    change = next(waiting, None)
    for entry in entries:
        while change is not None and (change[0] > entry if backwards else change[0] < entry):
            if change[1]:
                yield change[0]
            change = next(waiting, None)
        if change is not None and change[0] == entry:
            if change[1]:
                yield entry
            change = next(waiting, None)
        else:
            yield entry
    while change is not None:
        if change[1]:
            yield change[0]
        change = next(waiting, None)
