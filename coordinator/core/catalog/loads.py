"""How much a copy of a slice weighs: one number, made of what it holds and what it is sent.

Pure. The entries, the bytes and the mutations a second of a copy are each a share of what the
whole cluster has; its weight is the mean of these shares. So weights add up: what an indexer bears
is the sum over its copies, all indexers together bear 1, and "indexer 1 has 62 % of the load" means
just that. The price: an indexer with all mutations and another with all bytes count as equal.
Whole numbers, in parts of `WHOLE`: sums are the same in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from operator import sub
from typing import NamedTuple

WHOLE = 10**12
"""The weight of everything in the cluster together."""

LEAST = 100
"""A copy weighs a hundredth of the mean copy at least: empty slices are spread, too."""


class Load(NamedTuple):
    """What one copy of a slice holds, and the mutations that it is sent each second."""

    entries: int = 0
    bytes: int = 0
    mutations: int = 0


KINDS = range(len(Load._fields))

WORTH = Load(entries=1, bytes=1024 * 1024 * 1024, mutations=50)
"""What the whole cluster has at least where a dimension counts. Of less, shares say nothing: the
same entries may take 1 MB or 5 MB until they are compacted, and one writer for a moment has all
mutations."""

SLICE = 10**6
"""What a slice weighs of which nothing is known: as much as the mean of those that are."""


class Reported(NamedTuple):
    """The slices of which an indexer has told what they weigh, and what all of them weigh; also
    those of each index alone."""

    slices: int
    load: Load
    of_index: Mapping[int, Reported] = {}

    def without(self, indexes: Set[int]) -> Reported:
        """Return what is left of it together without these indexes."""
        gone = together({index: self.of_index[index] for index in self.of_index.keys() & indexes})
        return Reported(self.slices - gone.slices, Load(*map(sub, self.load, gone.load)))


NOTHING = Reported(0, Load())


def together(of_index: Mapping[int, Reported]) -> Reported:
    """Return what an indexer has told of indexes, and what that is together."""
    slices = sum(one.slices for one in of_index.values())
    loads = [one.load for one in of_index.values()]
    return Reported(slices, Load(*map(sum, zip(*loads, strict=True))), of_index)


class Reports(Mapping[int, Reported]):
    """What each indexer has told last; and of which indexes any has told, so that a decision need
    not go through all of it to find what is not there any more."""

    def __init__(self, reports: Mapping[int, Reported] | None = None) -> None:
        self._of_indexer: dict[int, Reported] = {}
        self._tellers: Counter[int] = Counter()
        for indexer, reported in (reports or {}).items():
            self.note(indexer, reported)

    def __getitem__(self, indexer: int) -> Reported:
        return self._of_indexer[indexer]

    def __iter__(self) -> Iterator[int]:
        return iter(self._of_indexer)

    def __len__(self) -> int:
        return len(self._of_indexer)

    def note(self, indexer: int, reported: Reported) -> None:
        """An indexer tells, of all that it holds."""
        before = self._of_indexer.get(indexer, NOTHING).of_index
        self._of_indexer[indexer] = reported
        self._tellers.update(reported.of_index.keys() - before.keys())
        for index in before.keys() - reported.of_index.keys():
            self._tellers[index] -= 1
            if not self._tellers[index]:
                del self._tellers[index]

    def of_existing(self, exists: Callable[[int], bool]) -> Mapping[int, Reported]:
        """Return what indexers have told of indexes that exist.

        Each tells every few seconds, and until then of what was dropped. If it counted, who has
        told already that it holds nothing would get all slices of the next indexes.
        """
        gone = {index for index in self._tellers if not exists(index)}
        if not gone:
            return self
        return {
            indexer: one if one.of_index.keys().isdisjoint(gone) else one.without(gone)
            for indexer, one in self._of_indexer.items()
        }


def weigh(loads: Sequence[Load], copies: Sequence[int]) -> list[int]:
    """Return what one copy of each slice weighs; `copies` says how many there are of it."""
    totals = [
        sum(load[kind] * count for load, count in zip(loads, copies, strict=True)) for kind in KINDS
    ]
    kinds = _counting(totals)
    least = WHOLE // (LEAST * max(1, sum(copies)))
    return [
        max(least, sum(load[kind] * WHOLE // totals[kind] for kind in kinds) // max(1, len(kinds)))
        for load in loads
    ]


def borne(
    indexers: Iterable[int],
    held: Mapping[int, int],
    more: Mapping[int, int],
    reported: Mapping[int, Reported],
) -> dict[int, int]:
    """Return what each of these indexers bears, in parts of `SLICE`.

    `held` is the number of slices that each has, and `more` of those that are about to come. Those
    that it has not told of weigh as much as the mean of all that are told of: where nothing is,
    each slice counts as one.
    """
    slices = sum(one.slices for one in reported.values())
    totals = [sum(one.load[kind] for one in reported.values()) for kind in KINDS]
    kinds = _counting(totals)
    found: dict[int, int] = {}
    for indexer in indexers:
        count, load, _ = reported.get(indexer, NOTHING)
        shares = sum(load[kind] * slices * SLICE // totals[kind] for kind in kinds)
        unknown = max(0, held.get(indexer, 0) - count) + more.get(indexer, 0)
        found[indexer] = shares // max(1, len(kinds)) + unknown * SLICE
    return found


def _counting(totals: Sequence[int]) -> list[int]:
    """A dimension in which there is hardly anything does not count."""
    return [kind for kind, total in enumerate(totals) if total >= WORTH[kind]]
