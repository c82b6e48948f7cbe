"""Where the copies of all slices lie while a plan is made, and what the hard rules say of it.

Pure. The rules: two copies of a slice never lie on one indexer; they lie in different zones for as
long as there are unused ones; no indexer has more bytes than it has room for; an index that names
its indexers lies on these; one that is drained or lost takes nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coordinator.core.catalog.loads import Load, weigh

TAKES, ALLOWED, COPIES, ZONES, CAPACITY = RULES = (
    "takes",
    "allowed",
    "copies",
    "zones",
    "capacity",
)
"""What can stand in the way of a copy: the last is the one that could be cured by moving others."""


class Machine(NamedTuple):
    """An indexer. `zone` is empty where zones are not used, `capacity_bytes` 0 without a bound.

    One that does not take slices is being drained: all that it has is to leave it.
    """

    id: int
    zone: str = ""
    capacity_bytes: int = 0
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of an index, and the indexers that have it now, the master first.

    `copies` is how many there are to be. `allowed` are the indexers that the index names; None
    stands for all. A host that is none of the machines is lost.
    """

    index: int
    number: int
    hosts: tuple[int, ...]
    load: Load
    copies: int
    allowed: frozenset[int] | None = None

    @property
    def name(self) -> str:
        return f"slice {self.number} of index {self.index}"


class Change(NamedTuple):
    """A copy of a piece that lies elsewhere than before; None: it is added, or dropped."""

    piece: int
    source: int | None
    target: int | None
    why: str


class Layout:
    """The copies as they lie at the moment. Pieces go by their place in `pieces`.

    Nothing moves once `moves_max` copies lie elsewhere than before: one that moves twice counts
    once, and one that is back where it was does not count.

    Large because each rule is one method, and all of them look at the same few tables.
    """

    def __init__(
        self, pieces: Iterable[Piece], machines: Iterable[Machine], moves_max: int | None
    ) -> None:
        self.pieces = sorted(pieces, key=lambda piece: (piece.index, piece.number))
        self.machines = {machine.id: machine for machine in sorted(machines)}
        self.takers = [machine.id for machine in self.machines.values() if machine.takes]
        self._zones = {i: self.machines[i].zone for i in self.takers}
        self.weight = weigh([p.load for p in self.pieces], [p.copies for p in self.pieces])
        self.before = [tuple(dict.fromkeys(piece.hosts)) for piece in self.pieces]
        self.hosts = [list(hosts) for hosts in self.before]
        self.load = dict.fromkeys(self.machines, 0)
        self.used = dict.fromkeys(self.machines, 0)
        self.version = dict.fromkeys(self.machines, 0)
        """Another number for each change of what lies on it."""
        self._by_weight: dict[int, list[tuple[int, int]]] = {i: [] for i in self.machines}
        self._cheapest: dict[int, list[tuple[float, int, int]]] = {i: [] for i in self.machines}
        self._why: list[dict[int, tuple[int, str]]] = [{} for _ in self.pieces]
        self._why_dropped: dict[int, tuple[int, str]] = {}
        self._moves_max = moves_max
        self._moves = [0] * len(self.pieces)
        self._moves_total = 0
        self.was_cut = False
        """A move was left out because there were as many as there may be."""
        self.steps = 0
        for piece, hosts in enumerate(self.hosts):
            for host in hosts:
                self._count_in(piece, host)

    # -- what there is ---------------------------------------------------------------------------

    def mean(self) -> int:
        """What each indexer that takes slices would bear if all bore the same."""
        return sum(self.load[i] for i in self.takers) // max(1, len(self.takers))

    def by_weight(self, machine: int) -> Sequence[tuple[int, int]]:
        """The weights and the pieces that lie there, ascending."""
        return self._by_weight[machine]

    def cheapest(self, machine: int) -> Iterator[int]:
        """The pieces that lie there: those that relieve it most for each byte that moves first."""
        return (piece for *_, piece in self._cheapest[machine])

    def bytes(self, piece: int) -> int:
        return self.pieces[piece].load.bytes

    def cost(self, piece: int, host: int) -> int:
        """The bytes that are copied if it leaves `host`: none if it was not there before."""
        return self.bytes(piece) if host in self.before[piece] else 0

    def takes(self, machine: int) -> bool:
        return machine in self._zones

    def is_allowed(self, piece: int, machine: int) -> bool:
        allowed = self.pieces[piece].allowed
        return allowed is None or machine in allowed

    def may_stay(self, piece: int, machine: int) -> bool:
        return self.takes(machine) and self.is_allowed(piece, machine)

    def lacking(self, machine: int, more: int = 0) -> int:
        """The bytes for which there is no room there, if `more` of them come; 0 if all fit."""
        room = self.machines[machine].capacity_bytes
        return max(0, self.used[machine] + more - room) if room else 0

    def zone(self, machine: int) -> str:
        """The zone in which a copy there counts; those that are to leave count nowhere."""
        return self._zones.get(machine, "")

    def clashes(self, hosts: Iterable[int]) -> int:
        """How many of these copies lie in a zone that another of them is in already."""
        zones = [zone for zone in map(self.zone, hosts) if zone]
        return len(zones) - len(set(zones))

    def unavoidable_clashes(self, piece: int) -> int:
        """How many copies clash however they lie: there are not enough zones for them."""
        able = [machine for machine in self.takers if self.is_allowed(piece, machine)]
        apart = len(able) - self.clashes(able)
        return max(0, self.pieces[piece].copies - apart)

    # -- what may be -----------------------------------------------------------------------------

    def obstacle(self, piece: int, target: int, source: int | None = None, freed: int = 0) -> str:
        """Return the rule that keeps a copy from going to `target`; an empty text if none does.

        `source` is where it leaves, and `freed` are bytes that leave the target at the same time.
        Copies that lie in one zone already may go on doing so.
        """
        zone = self._zones.get(target)
        if zone is None:
            return TAKES
        if not self.is_allowed(piece, target):
            return ALLOWED
        hosts = self.hosts[piece]
        if target in hosts:
            return COPIES
        if zone and len(hosts) > 1 and self._is_used(zone, hosts, source):
            left = "" if source is None else self.zone(source)
            if not left or not self._is_used(left, hosts, source):
                return ZONES
        return CAPACITY if self.lacking(target, self.bytes(piece) - freed) else ""

    def _is_used(self, zone: str, hosts: list[int], source: int | None) -> bool:
        """Tell whether one of the hosts is in this zone, without `source`."""
        for host in hosts:  # noqa: SIM110 - the loop is half of what a plan takes.
            if host != source and self._zones.get(host) == zone:
                return True
        return False

    def affords(self, *changes: tuple[int, int | None, int | None]) -> bool:
        """Tell whether so many may move still; each change is a piece, its source, its target."""
        if self._moves_max is None:
            return True
        after: dict[int, list[int]] = {}
        for piece, source, target in changes:
            hosts = after.setdefault(piece, list(self.hosts[piece]))
            if source is not None:
                hosts.remove(source)
            if target is not None:
                hosts.append(target)
        more = sum(self._moved(p, hosts) - self._moves[p] for p, hosts in after.items())
        if self._moves_total + more <= self._moves_max:
            return True
        self.was_cut = True
        return False

    # -- what changes ----------------------------------------------------------------------------

    def move(self, piece: int, source: int | None, target: int | None, why: str) -> None:
        """Move a copy; without a source there is one more, without a target one fewer."""
        self.steps += 1
        hosts, reasons = self.hosts[piece], self._why[piece]
        because = self.steps, why
        if source is not None:
            because = reasons.pop(source, because)
        if source is None:
            assert target is not None
            hosts.append(target)
        elif target is None:
            hosts.remove(source)
            reasons[source] = self._why_dropped[piece] = self.steps, why
        else:
            hosts[hosts.index(source)] = target
        if target is not None:
            reasons[target] = because
            self._count_in(piece, target)
        if source is not None:
            self._count_out(piece, source)
        self._moves_total -= self._moves[piece]
        self._moves[piece] = self._moved(piece, hosts)
        self._moves_total += self._moves[piece]

    def changes(self) -> list[Change]:
        """Return what lies elsewhere than before, in the order in which it was decided."""
        found: list[tuple[int, Change]] = []
        for piece, hosts in enumerate(self.hosts):
            before, reasons = self.before[piece], self._why[piece]
            gone = sorted((host for host in before if host not in hosts), key=reasons.__contains__)
            new = [host for host in hosts if host not in before]
            for place, target in enumerate(new):
                step, why = reasons[target]
                source = gone[place] if place < len(gone) else None
                found.append((step, Change(piece, source, target, why)))
            for source in gone[len(new) :]:
                step, why = self._why_dropped[piece]
                found.append((step, Change(piece, source, None, why)))
        found.sort(key=lambda one: (one[0], one[1].piece, one[1].source or -1))
        return [change for _, change in found]

    def _moved(self, piece: int, hosts: Collection[int]) -> int:
        kept = sum(host in self.before[piece] for host in hosts)
        return max(len(hosts), len(self.before[piece])) - kept

    def _count_in(self, piece: int, host: int) -> None:
        if host not in self.machines:
            return
        weight, size = self.weight[piece], self.bytes(piece)
        self.load[host] += weight
        self.used[host] += size
        self.version[host] += 1
        insort(self._by_weight[host], (weight, piece))
        insort(self._cheapest[host], (self.cost(piece, host) / weight, -weight, piece))

    def _count_out(self, piece: int, host: int) -> None:
        if host not in self.machines:
            return
        weight, size = self.weight[piece], self.bytes(piece)
        self.load[host] -= weight
        self.used[host] -= size
        self.version[host] += 1
        held, cheapest = self._by_weight[host], self._cheapest[host]
        del held[bisect_left(held, (weight, piece))]
        del cheapest[bisect_left(cheapest, (self.cost(piece, host) / weight, -weight, piece))]
