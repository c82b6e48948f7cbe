"""The plan of a cluster as it is: what a rebalance would move, from the state and what is heard.

Pure. `planning` makes plans of slices and indexers; here these are taken from a StateContext. An
index that is being made or dropped, or of which a copy is leaving, is left alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from coordinator.core.catalog.layouts import Machine, Piece
from coordinator.core.catalog.loads import Load
from coordinator.core.catalog.planning import Move as PlanMove
from coordinator.core.catalog.planning import Plan, Unplaced, plan
from coordinator.core.catalog.rebalance_settings import rebalance_in
from coordinator.core.catalog.rebalances import PARTS_MAX, leaving_of
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import BeginRebalance, PlannedMove
from coordinator.core.model.entities import DROPPING, INIT, NOWHERE, Index

Loads = Mapping[tuple[int, int, int], Load]
"""What copies weigh: by the index or part that holds one, the slice, and the indexer."""

SHARE_DIGITS = 4

PARTS = "parts"
"""The rule that an index has so many parts at most."""


class Known(NamedTuple):
    """An indexer that is registered; `is_alive`: it was heard lately."""

    id: int
    zone: str
    is_alive: bool


class AwayError(Exception):
    """An indexer that holds something is not alive, and nobody says that it is to be emptied."""

    def __init__(self, indexers: Collection[int]) -> None:
        super().__init__(f"indexers {sorted(indexers)} are not alive")
        self.indexers = sorted(indexers)


def plan_rebalance(
    state: StateContext,
    indexers: Iterable[Known],
    loads: Loads,
    drain: Collection[int],
    moves_max: int,
    left_alone: Collection[int] = (),
) -> tuple[BeginRebalance, Plan]:
    """Return the rebalance that balances the load, and empties the indexers of `drain`.

    Slices with a copy on an indexer that is `left_alone` stay where they are. Raises AwayError.
    """
    known, settings = tuple(indexers), rebalance_in(state)
    alive = {one.id for one in known if one.is_alive}
    pieces = [one for one in _pieces(state, loads) if set(one.hosts).isdisjoint(left_alone)]
    away = {host for piece in pieces for host in piece.hosts} - alive - set(drain)
    if away:
        raise AwayError(away)
    machines = [
        Machine(one.id, one.zone, settings.capacity_of(one.id), takes=one.id not in drain)
        for one in known
        if one.is_alive or one.id in drain
    ]
    found = _within_parts(state, plan(pieces, machines, moves_max))
    moves = tuple(
        PlannedMove(
            index=move.index,
            slice=move.slice,
            source=NOWHERE if move.source is None else move.source,
            target=move.target,
            bytes=move.bytes,
            why=move.why,
        )
        for move in found.moves
        if move.target is not None
    )
    command = BeginRebalance(
        moves, tuple(sorted(drain)), _shares(found.load_before), _shares(found.load_after)
    )
    return command, found


def _within_parts(state: StateContext, found: Plan) -> Plan:
    """Leave out what would give an index more parts than it may have, and say so."""
    room: dict[int, int] = {}
    ways: set[tuple[int, int | None]] = set()
    moves: list[PlanMove] = []
    left_out: list[Unplaced] = []
    for move in found.moves:
        left = room.setdefault(move.index, PARTS_MAX - len(state.parts.get(move.index, ())))
        way = (move.index, move.target)
        if move.target is not None and way not in ways:
            if not left:
                text = f"{move.why}, but index {move.index} has {PARTS_MAX} parts: rebuild it"
                left_out.append(Unplaced(move.index, move.slice, PARTS, text))
                continue
            room[move.index] -= 1
            ways.add(way)
        moves.append(move)
    if not left_out:
        return found
    return replace(found, moves=tuple(moves), impossible=(*found.impossible, *left_out))


def _pieces(state: StateContext, loads: Loads) -> Iterable[Piece]:
    for index, _ in state.indexes():
        if index.state in (INIT, DROPPING):
            continue
        whole = state.whole(index)
        for piece in whole.slices:
            if not piece.serving or leaving_of(state, index, piece.number):
                continue
            yield Piece(
                index=index.id,
                number=piece.number,
                hosts=piece.serving,
                load=_load(state, index, piece.number, loads),
                copies=len(piece.serving),
                allowed=frozenset(index.nodes) if index.nodes else None,
            )


def _load(state: StateContext, index: Index, number: int, loads: Loads) -> Load:
    """Return what a copy of a slice weighs: the most that anybody says who has one."""
    said = [
        loads[holder.id, number, host]
        for holder in state.holders_of(index)
        for host in holder.slices[number].serving
        if (holder.id, number, host) in loads
    ]
    return max(said, default=Load())


def _shares(loads: Mapping[int, float]) -> str:
    shares = {str(i): round(load, SHARE_DIGITS) for i, load in sorted(loads.items())}
    return json.dumps(shares, separators=(",", ":"))
