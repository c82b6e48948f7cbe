"""The exact optimum of a small cluster, found by looking at every layout that could be better."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from coordinator.core.catalog.layouts import Machine, Piece
from coordinator.core.catalog.loads import weigh


def clashes(hosts: Sequence[int], zone_of: dict[int, str]) -> int:
    """How many copies lie in a zone that has another."""
    zones = [zone_of[host] for host in hosts if zone_of[host]]
    return len(zones) - len(set(zones))


def weights(pieces: Sequence[Piece]) -> list[int]:
    return weigh([piece.load for piece in pieces], [piece.copies for piece in pieces])


def largest(pieces: Sequence[Piece], machines: Sequence[Machine]) -> int:
    """The largest load that one of the machines bears."""
    weight = weights(pieces)
    return max(
        sum(w for w, piece in zip(weight, pieces, strict=True) if machine.id in piece.hosts)
        for machine in machines
    )


def smallest_below(limit: int, pieces: Sequence[Piece], machines: Sequence[Machine]) -> int | None:
    """Return the smallest largest load of any layout that keeps the rules, if below `limit`."""
    weight = weights(pieces)
    order = sorted(range(len(pieces)), key=lambda i: -weight[i])
    options = [_options(pieces[i], machines) for i in order]
    left = [sum(weight[i] * pieces[i].copies for i in order[at:]) for at in range(len(order) + 1)]
    load = {machine.id: 0 for machine in machines}
    used = {machine.id: 0 for machine in machines}
    room = {machine.id: machine.capacity_bytes or 2**62 for machine in machines}
    takers = [machine.id for machine in machines if machine.takes]
    best: list[int | None] = [None]

    def descend(at: int, bound: int) -> int:
        if at == len(order):
            best[0] = max(load.values())
            return best[0]
        if sum(bound - 1 - load[taker] for taker in takers) < left[at]:
            return bound
        own, size = weight[order[at]], pieces[order[at]].load.bytes
        for hosts in options[at]:
            if any(load[h] + own >= bound or used[h] + size > room[h] for h in hosts):
                continue
            for host in hosts:
                load[host] += own
                used[host] += size
            bound = descend(at + 1, bound)
            for host in hosts:
                load[host] -= own
                used[host] -= size
        return bound

    descend(0, limit)
    return best[0]


def _options(piece: Piece, machines: Sequence[Machine]) -> list[tuple[int, ...]]:
    """All sets of indexers that may have the slice, with as few copies in one zone as can be."""
    zone_of = {machine.id: machine.zone for machine in machines}
    able = [m.id for m in machines if m.takes and (not piece.allowed or m.id in piece.allowed)]
    found = list(combinations(able, piece.copies))
    fewest = min((clashes(hosts, zone_of) for hosts in found), default=0)
    return [hosts for hosts in found if clashes(hosts, zone_of) == fewest]
