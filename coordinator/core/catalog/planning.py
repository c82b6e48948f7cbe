"""The plan of a rebalance: which copies of which slices move where, and why.

Pure and deterministic: the same slices and indexers, in whatever order they are given, have the
same plan. Hard rules come first (`layouts` has them): what breaks one moves. First what is lost,
then what is missing, what is drained or lies where it is not named, zones, and capacity. What
remains is balance. The largest load of an indexer is to be as small as it can be, then the next
largest, and so on; loads are those of `loads`. With that, few bytes are to move.

That is a local search. From the indexer with the largest load to that with the smallest goes the
copy that relieves it most for each byte, if there is one after which neither bears more than the
first did; otherwise two copies change places; if none can, a copy goes by way of a third indexer,
or a few indexers are rearranged in the best way there is. Whether there is such a step depends on
the layout alone, and the search ends where there is none: to plan again after a plan was carried
out gives nothing. Loads that differ by less than a part of the mean are equal (`TOLERANCE`).

The rules hold after all moves of a plan, not after each: who carries it out has an eye on room.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from coordinator.core.catalog.layouts import (
    ALLOWED,
    CAPACITY,
    COPIES,
    TAKES,
    ZONES,
    Layout,
    Machine,
    Piece,
)
from coordinator.core.catalog.loads import WHOLE
from coordinator.core.catalog.rearranging import placed_anew, rearranged

TOLERANCE = 50
"""No copy moves between two indexers whose loads differ by less than a 50th of the mean."""

GAIN = 100
"""What costs more than one move is worth it if it relieves by a 100th of the mean at least."""

ROUNDS = 16
"""How often balance may make what no rule could be kept for possible. Once is enough for most."""

LOWS = 8
"""How many of those that bear least are looked at when another passes something on."""

NEIGHBOURS = 3
"""How many copies of about the right weight are tried for an exchange, on either side."""


@dataclass(frozen=True, slots=True)
class Move:
    """A copy of a slice goes from `source` to `target`.

    Without a source there is one copy more, made from those there are; without a target one fewer.
    """

    index: int
    slice: int
    source: int | None
    target: int | None
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, order=True)
class Unplaced:
    """A slice for which a hard rule cannot be kept: which one, and why."""

    index: int
    slice: int
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What moves, what each indexer bears before and after, and what cannot be put right.

    Loads are shares of all there is. `is_cut`: there were more moves than there may be; planning
    goes on where this plan ends.
    """

    moves: tuple[Move, ...]
    load_before: Mapping[int, float]
    load_after: Mapping[int, float]
    impossible: tuple[Unplaced, ...]
    is_cut: bool

    @property
    def bytes(self) -> int:
        """How much is copied."""
        return sum(move.bytes for move in self.moves if move.target is not None)


def plan(
    pieces: Iterable[Piece], machines: Iterable[Machine], moves_max: int | None = None
) -> Plan:
    """Return the plan of a rebalance, of at most `moves_max` moves."""
    layout = Layout(pieces, machines, moves_max)
    before = _shares(layout)
    steps, impossible = -1, _repair(layout)
    for _ in range(ROUNDS):
        stuck = not impossible or layout.steps == steps or layout.was_cut
        if not _balance(layout) and stuck:
            break
        steps, impossible = layout.steps, _repair(layout)
        if any(one.rule in (ZONES, CAPACITY) for one in impossible) and _place_anew(layout):
            impossible = []
    moves = [
        Move(one.index, one.number, source, target, one.load.bytes, why)
        for piece, source, target, why in layout.changes()
        for one in (layout.pieces[piece],)
    ]
    return Plan(tuple(moves), before, _shares(layout), tuple(sorted(impossible)), layout.was_cut)


def carry_out(pieces: Iterable[Piece], moves: Iterable[Move]) -> list[Piece]:
    """Return the slices as they lie after these moves.

    Whoever takes the place of a master is the master.
    """
    by_name = {(piece.index, piece.number): piece for piece in pieces}
    for move in moves:
        name = (move.index, move.slice)
        hosts = list(by_name[name].hosts)
        if move.source is None:
            hosts += [move.target] if move.target is not None else []
        elif move.target is None:
            hosts.remove(move.source)
        else:
            hosts[hosts.index(move.source)] = move.target
        by_name[name] = replace(by_name[name], hosts=tuple(hosts))
    return list(by_name.values())


def _shares(layout: Layout) -> dict[int, float]:
    whole = sum(w * len(h) for w, h in zip(layout.weight, layout.hosts, strict=True)) or WHOLE
    return {machine: load / whole for machine, load in layout.load.items()}


# -- hard rules ----------------------------------------------------------------------------------


def _repair(layout: Layout) -> list[Unplaced]:
    """Put right what breaks a hard rule, and return what cannot be."""
    heaviest = sorted(range(len(layout.pieces)), key=lambda piece: (-layout.weight[piece], piece))
    impossible: list[Unplaced] = []
    for piece in heaviest:
        _drop_surplus(layout, piece)
    for step in (_replace_lost, _add_missing, _leave, _part):
        for piece in heaviest:
            impossible += step(layout, piece)
    for machine in layout.takers:
        impossible += _relieve(layout, machine)
    return impossible


def _drop_surplus(layout: Layout, piece: int) -> None:
    """Drop the copies that are too many: those that break a rule first, the master last."""
    one = layout.pieces[piece]
    while len(hosts := layout.hosts[piece]) > one.copies:

        def worth(host: int, hosts: list[int] = hosts) -> tuple[bool, int, bool, int, int]:
            others = [other for other in hosts if other != host]
            return (
                layout.may_stay(piece, host),
                layout.clashes(others) - layout.clashes(hosts),
                host == hosts[0],
                -layout.load.get(host, 0),
                -host,
            )

        source = min(hosts, key=worth)
        if not layout.affords((piece, source, None)):
            return
        why = f"{one.name} has {len(hosts)} copies and is to have {one.copies}"
        layout.move(piece, source, None, why)


def _add_missing(layout: Layout, piece: int) -> Iterator[Unplaced]:
    one = layout.pieces[piece]
    while (there := len(layout.hosts[piece])) < one.copies:
        why = f"{one.name} has {there} copies and is to have {one.copies}"
        if not _place(layout, piece, None, why):
            yield from _unplaced(layout, piece, why)
            return


def _replace_lost(layout: Layout, piece: int) -> Iterator[Unplaced]:
    for host in list(layout.hosts[piece]):
        why = f"indexer {host} is lost"
        if host not in layout.machines and not _place(layout, piece, host, why):
            yield from _unplaced(layout, piece, why)


def _leave(layout: Layout, piece: int) -> Iterator[Unplaced]:
    """Move what lies where it may not stay."""
    one = layout.pieces[piece]
    for host in list(layout.hosts[piece]):
        if host not in layout.machines:
            continue
        if not layout.machines[host].takes:
            why = f"indexer {host} is being drained"
        elif not layout.is_allowed(piece, host):
            why = f"index {one.index} is to lie on {_named(one.allowed or ())}"
        else:
            continue
        if not _place(layout, piece, host, why):
            yield from _unplaced(layout, piece, why)


def _part(layout: Layout, piece: int) -> Iterator[Unplaced]:
    """Move copies out of a zone that has another, if there is a zone that has none."""
    stuck = ""
    for host in reversed(layout.hosts[piece][:]):
        hosts = layout.hosts[piece]
        others = [other for other in hosts if other != host]
        if layout.clashes(hosts) == layout.clashes(others):
            continue
        targets, _ = _apart(layout, _targets(layout, piece), others)
        if not targets or not layout.may_stay(piece, host):
            continue
        why = f"{layout.pieces[piece].name} has two copies in zone {layout.zone(host)}"
        if not _place_on(layout, piece, host, targets, why):
            stuck = why
    if stuck:
        yield from _unplaced(layout, piece, stuck, ZONES)


def _relieve(layout: Layout, machine: int) -> Iterator[Unplaced]:
    """Move away what an indexer has no room for: as few copies as can be."""
    room = layout.machines[machine].capacity_bytes
    while excess := layout.lacking(machine):
        why = f"indexer {machine} has {layout.used[machine]} bytes, and room for {room}"
        held = [piece for _, piece in layout.by_weight(machine) if layout.bytes(piece)]
        held.sort(key=lambda p: (layout.bytes(p) < excess, abs(layout.bytes(p) - excess), p))
        for piece in held:
            others = [host for host in layout.hosts[piece] if host != machine]
            now = layout.clashes(layout.hosts[piece])
            targets = (
                target
                for target in _targets(layout, piece)
                if layout.clashes([*others, target]) <= now
            )
            if _place_on(layout, piece, machine, targets, why):
                break
        else:
            if held:
                yield from _unplaced(layout, held[0], why, CAPACITY)
            return


def _place(layout: Layout, piece: int, source: int | None, why: str) -> bool:
    """Move or add a copy, into an unused zone if there is one with room."""
    others = [host for host in layout.hosts[piece] if host != source]
    apart, rest = _apart(layout, _targets(layout, piece), others)
    return _place_on(layout, piece, source, apart, why) or _place_on(
        layout, piece, source, rest, why
    )


def _place_on(
    layout: Layout, piece: int, source: int | None, targets: Iterable[int], why: str
) -> bool:
    """Move a copy to the first of these that has room, or to one where room can be made."""
    able = [target for target in targets if layout.affords((piece, source, target))]
    for target in able:
        if not layout.lacking(target, layout.bytes(piece)):
            layout.move(piece, source, target, why)
            return True
    return any(_make_room(layout, piece, source, target, why) for target in able)


def _make_room(layout: Layout, piece: int, source: int | None, target: int, why: str) -> bool:
    """Move the smallest copy away that is large enough, and put this one in its place."""
    lacking = layout.lacking(target, layout.bytes(piece))
    name = layout.pieces[piece].name
    held = (other for _, other in layout.by_weight(target) if layout.bytes(other) >= lacking)
    for other in sorted(held, key=lambda other: (layout.bytes(other), other)):
        for refuge in _by_load(layout):
            if refuge == source or layout.obstacle(other, refuge, target):
                continue
            if not layout.affords((other, target, refuge), (piece, source, target)):
                return False
            layout.move(other, target, refuge, f"makes room on indexer {target} for {name}")
            layout.move(piece, source, target, why)
            return True
    return False


def _targets(layout: Layout, piece: int) -> Iterator[int]:
    """Yield the indexers that could take a copy if they had room, the least loaded first."""
    hosts = layout.hosts[piece]
    return (
        target
        for target in _by_load(layout)
        if target not in hosts and layout.is_allowed(piece, target)
    )


def _by_load(layout: Layout) -> list[int]:
    return sorted(layout.takers, key=lambda machine: (layout.load[machine], machine))


def _apart(
    layout: Layout, targets: Iterable[int], others: Iterable[int]
) -> tuple[list[int], list[int]]:
    """Return the targets in zones that none of the `others` is in, and the rest."""
    used = {zone for zone in map(layout.zone, others) if zone}
    apart: list[int] = []
    rest: list[int] = []
    for target in targets:
        (rest if layout.zone(target) in used else apart).append(target)
    return apart, rest


def _unplaced(layout: Layout, piece: int, why: str, rule: str = "") -> Iterator[Unplaced]:
    """Say which rule stands in the way of a copy; nothing if it may be one move too many."""
    if layout.was_cut:
        return
    one = layout.pieces[piece]
    able = [t for t in layout.takers if layout.is_allowed(piece, t)]
    free = [t for t in able if t not in layout.hosts[piece]]
    if not layout.takers:
        rule, but = TAKES, "no indexer takes slices"
    elif not able:
        rule, but = ALLOWED, f"none of {_named(one.allowed or ())} takes slices"
    elif not free:
        rule, but = rule or COPIES, f"all of {_named(able)} have a copy"
    else:
        rule, but = rule or CAPACITY, f"there is no room for {one.load.bytes} bytes on another"
    yield Unplaced(one.index, one.number, rule, f"{why}, but {but}")


NAMED_MAX = 16


def _named(machines: Iterable[int]) -> str:
    """Name indexers, so many of them that a person still reads it."""
    names = sorted(machines)
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"indexers {', '.join(map(str, names[:NAMED_MAX]))}{more}"


def _place_anew(layout: Layout) -> bool:
    """Place everything anew, where there is so little that all ways can be tried."""
    found = placed_anew(layout)
    if found is None or not layout.affords(*found.changes):
        return False
    for piece, source, target in found.changes:
        layout.move(piece, source, target, "there is room for all only if all are placed anew")
    return True


# -- balance -------------------------------------------------------------------------------------


def _balance(layout: Layout) -> bool:
    """Improve the balance until no step does; tell whether one did."""
    improved = False
    while any(step(layout) for step in (_all_pairs, _relay, _rearrange)):
        improved = True
    return improved


def _all_pairs(layout: Layout) -> bool:
    """Move and exchange copies between two indexers until no pair is left that gains by it."""
    improved = False
    settled: dict[tuple[int, int], tuple[int, int]] = {}
    while True:
        looked_at = bool(settled)
        while _one_pair(layout, settled):
            improved = True
        if not looked_at:
            return improved
        settled = {}


def _one_pair(layout: Layout, settled: dict[tuple[int, int], tuple[int, int]]) -> bool:
    """Take one step: from those that bear most, to those that bear least.

    `settled` are the pairs that were looked at in vain, and how they were then.
    """
    mean, order, version = layout.mean(), _by_load(layout), layout.version
    small = mean // TOLERANCE
    for high in reversed(order):
        load = layout.load[high]
        lows = [
            low
            for low in order
            if load - layout.load[low] > small
            and settled.get((high, low)) != (version[high], version[low])
        ]
        if any(_shift(layout, high, low, mean) for low in lows):
            return True
        if any(_exchange(layout, high, low, mean) for low in lows):
            return True
        for low in lows:
            settled[high, low] = (version[high], version[low])
    return False


def _shift(layout: Layout, high: int, low: int, mean: int) -> bool:
    """Move one copy, the best of those after which `high` still bears more than `low`.

    That is one that goes into what `high` has above the mean; otherwise the smallest. If all are
    larger than that, the smallest that still leaves the larger of both loads smaller than before.
    """
    gap = layout.load[high] - layout.load[low]
    room = min(gap // 2, layout.load[high] - mean)
    fitting = (piece for piece in layout.cheapest(high) if layout.weight[piece] <= room)
    others = (piece for weight, piece in layout.by_weight(high) if room < weight <= gap // 2)
    larger = (
        piece for weight, piece in layout.by_weight(high) if gap // 2 < weight < gap - mean // GAIN
    )
    for piece in chain(fitting, others, larger):
        if not layout.obstacle(piece, low, high):
            if not layout.affords((piece, high, low)):
                continue
            layout.move(piece, high, low, _compared(layout, high, low))
            return True
    return False


def _exchange(layout: Layout, high: int, low: int, mean: int) -> bool:
    """Let two copies change places, those after which the loads differ least."""
    gap = layout.load[high] - layout.load[low]
    held = layout.by_weight(low)
    best: tuple[int, int, int, int] | None = None
    for weight, piece in reversed(layout.by_weight(high)):
        middle = bisect_left(held, (weight - gap // 2, 0))
        for other_weight, other in held[max(0, middle - NEIGHBOURS) : middle + NEIGHBOURS]:
            relief = min(weight - other_weight, gap - weight + other_weight)
            if relief <= mean // GAIN:
                continue
            size = layout.cost(piece, high) + layout.cost(other, low)
            found = (-relief, size, piece, other)
            if (best is None or found < best) and _may_change_places(
                layout, piece, high, other, low
            ):
                best = found
    if best is None:
        return False
    *_, piece, other = best
    why = _compared(layout, high, low)
    name = layout.pieces[piece].name
    layout.move(piece, high, low, why)
    layout.move(other, low, high, f"in exchange for {name}: {why}")
    return True


def _may_change_places(layout: Layout, piece: int, high: int, other: int, low: int) -> bool:
    return (
        piece != other
        and not layout.obstacle(piece, low, high, layout.bytes(other))
        and not layout.obstacle(other, high, low, layout.bytes(piece))
        and layout.affords((piece, high, low), (other, low, high))
    )


def _relay(layout: Layout) -> bool:
    """Move a copy off the largest load to an indexer that passes another one on, the smallest pair.

    That helps where a rule keeps all that could leave from where there is room.
    """
    if not _is_uneven(layout):
        return False
    order, gain = _by_load(layout), layout.mean() // GAIN
    high, lows = order[-1], order[:LOWS]
    bound = layout.load[high] - gain
    best: tuple[int, int, int, int, int, int] | None = None
    for middle in order[:-1]:
        held = layout.by_weight(middle)
        for weight, piece in layout.by_weight(high):
            if weight <= gain or layout.obstacle(piece, middle, high) not in ("", CAPACITY):
                continue
            first = bisect_left(held, (layout.load[middle] + weight - bound + 1, 0))
            for passed, other in held[first : first + NEIGHBOURS]:
                size = layout.cost(piece, high) + layout.cost(other, middle)
                if piece == other or (best is not None and size >= best[0]):
                    continue
                if layout.obstacle(piece, middle, high, layout.bytes(other)):
                    continue
                for low in lows:
                    if low == middle or layout.load[low] + passed >= bound:
                        continue
                    moves = (piece, high, middle), (other, middle, low)
                    if not layout.obstacle(other, low, middle) and layout.affords(*moves):
                        best = (size, piece, middle, other, low, passed)
                        break
    if best is None:
        return False
    _, piece, middle, other, low, _ = best
    why = _compared(layout, high, low)
    name = layout.pieces[piece].name
    layout.move(other, middle, low, f"makes room on indexer {middle} for {name}: {why}")
    layout.move(piece, high, middle, f"by way of indexer {middle}: {why}")
    return True


def _rearrange(layout: Layout) -> bool:
    """Spread what lies on a few indexers in the best way, where that relieves the largest."""
    if not _is_uneven(layout):
        return False
    order = _by_load(layout)
    found = rearranged(layout, order, layout.mean() // GAIN)
    if not found or not layout.affords(*found.changes):
        return False
    before, after = layout.load[order[-1]], found.largest
    why = f"with others: the largest load goes from {_share(before)} to {_share(after)} of all"
    for piece, source, target in found.changes:
        layout.move(piece, source, target, why)
    return True


def _is_uneven(layout: Layout) -> bool:
    """Tell whether the largest load is above the mean by more than is tolerated."""
    mean = layout.mean()
    largest = max((layout.load[machine] for machine in layout.takers), default=0)
    return largest - mean > mean // TOLERANCE


def _compared(layout: Layout, high: int, low: int) -> str:
    return (
        f"indexer {high} has {_share(layout.load[high])} of the load, "
        f"indexer {low} has {_share(layout.load[low])}"
    )


def _share(load: int) -> str:
    percent = 100 * load / WHOLE
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"
