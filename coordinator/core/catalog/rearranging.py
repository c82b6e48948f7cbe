"""The best way to spread what lies on a few indexers, or all that there is, over them.

Pure: branch and bound, from the heaviest copy to the lightest, and never more than `NODES` of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.core.catalog.layouts import Layout
from coordinator.core.catalog.loads import WHOLE

COPIES_MAX = 16
"""So many copies are spread at once."""

NODES = 6_000


class Rearranged(NamedTuple):
    """The largest load after it, and who moves from where to where."""

    largest: int
    changes: list[tuple[int, int | None, int]]


def rearranged(layout: Layout, order: list[int], gain: int) -> Rearranged | None:
    """Relieve the last of `order`, that of the largest load, by more than `gain`; None if it fails.

    Of all ways to within half of that gain, the one that moves the fewest bytes.
    """
    machines = _few(layout, order)
    if len(machines) < 2:
        return None
    copies = [(piece, m) for m in machines for _, piece in layout.by_weight(m)]
    search = _Search(
        layout, machines, copies, {p: layout.clashes(layout.hosts[p]) for p, _ in copies}
    )
    best = layout.load[order[-1]] - gain
    if not search.run(best, by_bytes=False):
        return None
    largest = search.largest
    search.run(largest + gain // 2, by_bytes=True)
    return Rearranged(search.largest, search.changes())


def placed_anew(layout: Layout) -> Rearranged | None:
    """Place all copies that there are to be so that every rule is kept; None if it fails.

    None, too, if there are too many to try.
    """
    copies: list[tuple[int, int | None]] = []
    for piece, hosts in enumerate(layout.hosts):
        missing = max(0, layout.pieces[piece].copies - len(hosts))
        copies += [*((piece, host) for host in hosts), *[(piece, None)] * missing]
    if len(copies) > COPIES_MAX:
        return None
    clashes = {piece: layout.unavoidable_clashes(piece) for piece, _ in copies}
    search = _Search(layout, layout.takers, copies, clashes)
    if not search.run(WHOLE, by_bytes=False):
        return None
    search.run(search.largest, by_bytes=True)
    return Rearranged(search.largest, search.changes())


def _few(layout: Layout, order: list[int]) -> list[int]:
    """The one with the largest load, and as many of the least loaded as can be spread at once."""
    chosen = [order[-1]]
    copies = len(layout.by_weight(order[-1]))
    for machine in order[:-1]:
        copies += len(layout.by_weight(machine))
        if copies > COPIES_MAX:
            break
        chosen.append(machine)
    return sorted(chosen)


class _Search:
    """Depth first: each copy goes to where least lies, or, to save bytes, first where it lies."""

    def __init__(
        self,
        layout: Layout,
        machines: list[int],
        copies: Sequence[tuple[int, int | None]],
        clashes: Mapping[int, int],
    ) -> None:
        """`copies` are the pieces and where they lie; `clashes` is how many each may have."""
        self._layout = layout
        self._machines = machines
        copies = sorted(copies, key=lambda copy: (-layout.weight[copy[0]], copy[0]))
        self._copies = copies
        kinds = [self._kind(piece) for piece, _ in copies]
        self._is_twin = [place > 0 and kinds[place - 1] == kind for place, kind in enumerate(kinds)]
        """The copy before it could as well lie where this one does."""
        self._clashes = clashes
        self._left = [0] * (len(copies) + 1)
        for place in range(len(copies) - 1, -1, -1):
            self._left[place] = self._left[place + 1] + layout.weight[copies[place][0]]
        self.largest = 0
        self._found: list[int] | None = None
        self._nodes = 0

    def run(self, limit: int, *, by_bytes: bool) -> bool:
        """Look for the smallest largest load below `limit`, or for the fewest bytes within it."""
        layout = self._layout
        self._by_bytes = by_bytes
        self._nodes = NODES
        self._limit = limit
        if self._copies and limit < layout.weight[self._copies[0][0]]:
            return False
        self._size = 1 + sum(layout.bytes(p) for p, _ in self._copies)
        self._load = dict.fromkeys(self._machines, 0)
        self._used = dict.fromkeys(self._machines, 0)
        self._hosts = {
            piece: set(layout.hosts[piece]).difference(m for p, m in self._copies if p == piece)
            for piece, _ in self._copies
        }
        self._chosen: list[int] = []
        known = self._found
        self._descend(0, 0)
        return self._found is not known

    def changes(self) -> list[tuple[int, int | None, int]]:
        """Return what moves: pairs of the same piece that change places do not."""
        assert self._found is not None
        sources: dict[int, list[int | None]] = {}
        targets: dict[int, list[int]] = {}
        for (piece, source), target in zip(self._copies, self._found, strict=True):
            sources.setdefault(piece, []).append(source)
            targets.setdefault(piece, []).append(target)
        return [
            (piece, source, target)
            for piece in sorted(sources)
            for source, target in zip(
                [m for m in sources[piece] if m not in targets[piece]],
                [m for m in targets[piece] if m not in sources[piece]],
                strict=True,
            )
        ]

    def _kind(self, piece: int) -> tuple[object, ...]:
        one = self._layout.pieces[piece]
        name = () if one.copies == 1 == len(self._layout.hosts[piece]) else (piece,)
        return (self._layout.weight[piece], one.load.bytes, one.allowed, name)

    def _descend(self, place: int, size: int) -> None:
        if place == len(self._copies):
            self._take(size)
            return
        layout, load = self._layout, self._load
        room = sum(self._limit - load[m] for m in self._machines)
        if room < self._left[place]:
            return
        piece, source = self._copies[place]
        weight, own = layout.weight[piece], layout.bytes(piece)
        before, hosts = layout.before[piece], self._hosts[piece]
        stays = source if self._by_bytes else None
        first = self._chosen[-1] if self._is_twin[place] and not self._by_bytes else -1
        for machine in sorted(self._machines, key=lambda m: (m != stays, load[m], m)):
            more = size + (0 if machine in before else own)
            if load[machine] + weight > self._limit or (self._by_bytes and more >= self._size):
                continue
            if machine < first or machine in hosts or not layout.is_allowed(piece, machine):
                continue
            room = layout.machines[machine].capacity_bytes
            if room and self._used[machine] + own > room:
                continue
            if layout.clashes([*hosts, machine]) > self._clashes[piece]:
                continue
            self._nodes -= 1
            if self._nodes < 0:
                return
            load[machine] += weight
            self._used[machine] += own
            hosts.add(machine)
            self._chosen.append(machine)
            self._descend(place + 1, more)
            self._chosen.pop()
            hosts.remove(machine)
            self._used[machine] -= own
            load[machine] -= weight

    def _take(self, size: int) -> None:
        self._found = list(self._chosen)
        self.largest = max(self._load.values())
        if self._by_bytes:
            self._size = size
        else:
            self._limit = self.largest - 1
