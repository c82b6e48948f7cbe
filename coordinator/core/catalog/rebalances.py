"""Decisions about rebalances: copies of slices that move from one indexer to another.

Pure, like `ddl`, of which this is a part. A copy moves by a *part*: an index of its own, which has
this copy only, is built at the target as any index is, and answers scans of the index that it is a
part of. Then the copy at the source goes. So at each moment some indexer has all of a slice, and
what is there is exact, whoever dies. Copies of one index that move to one indexer are one part.

    start     planned
    pending   the part is being built at the target; the source serves
    catchup   the part is complete, and serves; the source has only the scans that it had
    done      the copy at the source is gone

What the master waits for between two steps, `leader.rebalance_coordinator` knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from coordinator.core.catalog.builds import begin_build
from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    Unchanged,
    accepted,
    moved,
)
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import (
    BeginRebalance,
    CancelRebalance,
    DropPart,
    Outcome,
    PlannedMove,
    ReleaseCopies,
    Request,
    StepMove,
    refused,
)
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    ERROR,
    INIT,
    MAINTENANCE,
    MOVE_CANCELLED,
    MOVE_CATCHUP,
    MOVE_DONE,
    MOVE_FAILED,
    MOVE_PENDING,
    MOVE_START,
    MOVES,
    NOWHERE,
    PENDING,
    READY,
    REBALANCE_CANCELLED,
    REBALANCE_CANCELLING,
    REBALANCE_DONE,
    REBALANCE_RUNNING,
    Index,
    Move,
    Origin,
    Rebalance,
    Slice,
    index_key,
)

MOVES_MAX = 256
"""So many moves one rebalance has: all of them are in one entity, which each step writes again."""

DRAIN_MAX = 64
"""So many indexers one rebalance empties."""

PARTS_MAX = 256
"""So many parts an index has: each of them is told of each mutation."""

PART_BYTES_MAX = 256 * 1024
HOLDER_BYTES = 2 * 1024
"""The copies that one part takes over are held by indexes that weigh so much together at most; one
may weigh more alone. Each counts for so much more: a transaction has 256 changes."""

KNOWN_MAX = 32
"""So many rebalances that are over are kept."""

REASON_MAX = 500

NOBODY_LEFT = "no indexer that is alive would be left: drain fewer"

UNBUILT = (READY, ERROR)
"""In these states an index has no entries: its copies move at once."""

BUILDING = (PENDING, BACKFILL)
"""Of an index that is being built, a copy whose indexer is lost moves at once: the build, which
would wait for that for ever, begins anew."""


def describe_rebalance(rebalance: Rebalance) -> dict[str, Any]:
    """Return a rebalance as clients see it, with its moves."""
    return {
        "id": str(rebalance.id),
        "state": rebalance.state,
        "drain": [str(indexer) for indexer in rebalance.drain],
        "began_ms": rebalance.began_ms,
        "ended_ms": rebalance.ended_ms if rebalance.is_over else None,
        "moves": [describe_move(move) for move in rebalance.moves],
        "load_before": json.loads(rebalance.load_before_json),
        "load_after": json.loads(rebalance.load_after_json),
    }


def describe_move(move: Move) -> dict[str, Any]:
    """Return a move as clients see it."""
    return {
        "index": str(move.index),
        "slice": move.slice,
        "from": None if move.source == NOWHERE else str(move.source),
        "to": str(move.target),
        "bytes": move.bytes,
        "state": move.state,
        "part": str(move.part) if move.part else None,
        "why": move.why or None,
        "reason": move.reason or None,
    }


# -- what clients ask for ------------------------------------------------------------------------


def is_everybody(alive: Collection[int], drain: Collection[int]) -> bool:
    """Tell whether no indexer that is alive would be left."""
    return bool(drain) and set(alive) <= set(drain)


def _begin_rebalance(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, BeginRebalance)
    if len(command.moves) > MOVES_MAX or len(command.drain) > DRAIN_MAX:
        text = f"a rebalance has at most {MOVES_MAX} moves, and drains {DRAIN_MAX} indexers"
        return Unchanged(refused("value_too_large", text, limit=MOVES_MAX))
    running = [one for one in state.rebalances() if not one.is_over]
    if running:
        text = f"rebalance {running[0].id} is under way: wait for it, or cancel it"
        return Unchanged(refused("rebalance_running", text, id=str(running[0].id)))
    alive = {candidate.id for candidate in given.indexers}
    if is_everybody(alive, command.drain):
        return Unchanged(refused("invalid_request", NOBODY_LEFT))
    for planned in command.moves:
        if problem := _problem_of(state, planned, alive):
            return Unchanged(refused("rebalance_outdated", f"{problem}: plan again"))
    if _is_twice(command.moves):
        return Unchanged(refused("invalid_request", "a copy of a slice is moved twice"))
    rebalance = Rebalance(
        id=given.fresh_id,
        state=REBALANCE_RUNNING if command.moves else REBALANCE_DONE,
        moves=tuple(map(begun, command.moves)),
        drain=command.drain,
        began_ms=given.wall_ms,
        ended_ms=0 if command.moves else given.wall_ms,
        load_before_json=command.load_before_json,
        load_after_json=command.load_after_json,
    )
    known = [one for one in state.rebalances() if one.is_over]
    changes = (
        Change("RebalanceBegun", rebalance.key, rebalance),
        *(Change("RebalanceForgotten", one.key, None) for one in known[KNOWN_MAX - 1 :]),
    )
    return accepted(request, changes, {"rebalance": _in_short(rebalance)})


def begun(planned: PlannedMove) -> Move:
    """Return a move as it begins."""
    return Move(
        index=planned.index,
        slice=planned.slice,
        source=planned.source,
        target=planned.target,
        bytes=planned.bytes,
        why=planned.why[:REASON_MAX],
    )


def _in_short(rebalance: Rebalance) -> dict[str, str]:
    """Return what is remembered of a rebalance as an answer: the moves are in the state."""
    return {"id": str(rebalance.id), "state": rebalance.state}


def _problem_of(state: StateContext, planned: Move | PlannedMove, alive: set[int]) -> str:
    """Say why a copy cannot move as planned, or return an empty text."""
    index = state.find_index(planned.index)
    if index is None or index.part_of or index.state == DROPPING:
        return f"there is no index {planned.index}"
    if planned.slice not in range(len(index.slices)):
        return f"there is no slice {planned.slice} of an index {planned.index}"
    if planned.source != NOWHERE and not _holder(state, index, planned.slice, planned.source):
        return f"indexer {planned.source} has no slice {planned.slice} of index {index.id}"
    if planned.target in _hosts(state, index, planned.slice):
        return f"indexer {planned.target} has slice {planned.slice} of index {index.id} already"
    if planned.target not in alive:
        return f"indexer {planned.target} is not alive"
    return ""


def _is_twice(moves: Iterable[PlannedMove]) -> bool:
    moves = tuple(moves)
    to = {(one.index, one.slice, one.target) for one in moves}
    given = [(one.index, one.slice, one.source) for one in moves if one.source != NOWHERE]
    return len(to) < len(moves) or len(set(given)) < len(given)


def _cancel_rebalance(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, CancelRebalance)
    held = state.rebalance(command.rebalance)
    if held is None:
        text = f"there is no rebalance {command.rebalance}"
        return Unchanged(refused("rebalance_not_found", text))
    if held.state != REBALANCE_RUNNING:
        return Unchanged(Outcome("ok", answer={"rebalance": _in_short(held)}))
    after = replace(held, state=REBALANCE_CANCELLING)
    change = Change("RebalanceCancelled", after.key, after)
    return accepted(request, (change,), {"rebalance": _in_short(after)})


# -- steps of the master -------------------------------------------------------------------------


def _step_move(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, StepMove)
    held = state.rebalance(command.rebalance)
    if held is None or held.is_over or command.move not in range(len(held.moves)):
        return Unchanged(Outcome("ok"))
    if command.to not in MOVES[held.moves[command.move].state]:
        return Unchanged(Outcome("ok"))
    places = _together(state, held, command)
    step = STEPS[command.to](state, [held.moves[place] for place in places], given)
    if step is None:
        return Unchanged(Outcome("ok"))
    part, changes = step
    reason = command.reason[:REASON_MAX]
    moves = tuple(
        replace(move, state=command.to, part=part, reason=reason) if place in places else move
        for place, move in enumerate(held.moves)
    )
    whole = _ended(replace(held, moves=moves), given)
    return Accepted((*changes, Change(_EVENTS[command.to], whole.key, whole)), {})


def _together(state: StateContext, rebalance: Rebalance, command: StepMove) -> list[int]:
    """Return the places of the moves that take a step as one: those that are, or become, one part.

    The first of them is the one that the command names.
    """
    move = rebalance.moves[command.move]
    if MOVE_PENDING not in (move.state, command.to):
        return [command.move]
    others = [
        place
        for place, one in enumerate(rebalance.moves)
        if one is not move and goes_with(one, move)
    ]
    if move.state == MOVE_PENDING:
        return [command.move, *others]
    return _within_bounds(state, rebalance, [command.move, *others])


def _within_bounds(state: StateContext, rebalance: Rebalance, places: list[int]) -> list[int]:
    """Leave out what cannot begin, and what would make the take-over too large a transaction.

    It changes each holder of a copy that leaves, and each has the definition of the index.
    """
    left = PART_BYTES_MAX
    found, holders = places[:1], set[int]()
    for place in places:
        move = rebalance.moves[place]
        index = state.find_index(move.index)
        if index is None or not may_begin(state, move):
            continue
        holder = _holder(state, index, move.slice, move.source)
        if holder is not None and holder.id not in holders:
            holders.add(holder.id)
            held = state.index_by_id(holder.id)
            left -= HOLDER_BYTES + (len(held.value) if held is not None else 0)
            if left < 0 and len(holders) > 1:
                break
        if place != places[0]:
            found.append(place)
    return found


def goes_with(one: Move, other: Move) -> bool:
    """Tell whether two moves are one part, or become one when they begin."""
    if one.state != other.state or one.state not in (MOVE_START, MOVE_PENDING):
        return False
    return (one.index, one.target, one.part) == (other.index, other.target, other.part)


Step = tuple[int, tuple[Change, ...]] | None
"""The part of moves after a step, with the changes beside; None: the step does not follow."""


def begin_move(state: StateContext, moves: Sequence[Move], given: Circumstances) -> Step:
    """Propose the part at the target."""
    move = moves[0]
    index = state.find_index(move.index)
    if index is None or index.state != MAINTENANCE or not may_begin(state, move):
        return None
    numbers = {one.slice for one in moves}
    origins = _origins(state, index, moves, {candidate.id for candidate in given.indexers})
    part = replace(
        index,
        id=given.fresh_id,
        state=INIT,
        reason=None,
        slices=tuple(
            Slice(piece.number, move.target if piece.number in numbers else NOWHERE)
            for piece in index.slices
        ),
        request="",
        request_fingerprint=0,
        by_topic=False,
        created_ms=given.wall_ms,
        shards=(),
        build=0,
        replaces=0,
        defer_build=False,
        part_of=index.id,
        origins=origins,
    )
    return part.id, (Change("MoveBegun", part.key, part),)


def _origins(
    state: StateContext, index: Index, moves: Sequence[Move], alive: set[int]
) -> tuple[Origin, ...]:
    """Return who has a complete copy of each slice: its source, if that is alive, or another one.

    Of one slice nobody may have any: then there is no origin at all.
    """
    found: list[Origin] = []
    for move in moves:
        held = [
            Origin(move.slice, host, holder.id, holder.shard_on(host), holder.build)
            for holder in state.keepers_of(index)
            for host in holder.slices[move.slice].serving
            if holder.state == MAINTENANCE and host in alive and holder.shard_on(host)
        ]
        if not held:
            return ()
        found.append(min(held, key=lambda origin: (origin.indexer != move.source, origin.indexer)))
    return tuple(sorted(found, key=lambda origin: origin.slice))


def take_over(state: StateContext, moves: Sequence[Move], given: Circumstances) -> Step:
    """The part is complete, and answers scans: the copies at the sources leave."""
    index, part = state.find_index(moves[0].index), _part(state, moves[0])
    if index is None or part is None or part.state != MAINTENANCE:
        return None
    left: dict[int, Index] = {}
    for move in moves:
        found = _holder(state, index, move.slice, move.source)
        if found is None:
            continue
        holder = left.get(found.id, found)
        slices = tuple(
            piece.left_by(move.source) if piece.number == move.slice else piece
            for piece in holder.slices
        )
        left[found.id] = replace(holder, slices=slices)
    return part.id, tuple(Change("MoveBuilt", holder.key, holder) for holder in left.values())


def finish_move(state: StateContext, moves: Sequence[Move], given: Circumstances) -> Step:
    """The copy at the source has gone."""
    (move,) = moves
    index = state.find_index(move.index)
    if index is None:
        return None
    if move.state == MOVE_START:
        return _move_unbuilt(state, move, index, given)
    return None if move.source in leaving_of(state, index, move.slice) else (move.part, ())


def _move_unbuilt(state: StateContext, move: Move, index: Index, given: Circumstances) -> Step:
    """Let another indexer hold a copy of an index that has no entries: it will allocate it."""
    at = index.slices[move.slice]
    is_possible = moves_at_once(index, move) and may_begin(state, move)
    if index.state not in (*UNBUILT, *BUILDING) or not is_possible:
        return None
    hosts = tuple(move.target if host == move.source else host for host in at.serving)
    hosts = (*hosts, move.target) if move.source == NOWHERE else hosts
    slices = tuple(
        piece.on(hosts, piece.leaving) if piece is at else piece for piece in index.slices
    )
    after = _with_its_shards(replace(index, slices=slices))
    if index.state in BUILDING:
        after = begin_build(after, given)
    return 0, (Change("MoveEnded", index.key, after),)


def moves_at_once(index: Index, move: Move) -> bool:
    """Tell whether a copy is one of the index itself, or one more: no part has it."""
    return move.source == NOWHERE or move.source in index.slices[move.slice].serving


def give_up(state: StateContext, moves: Sequence[Move], given: Circumstances) -> Step:
    named, part = moves[0].part, _part(state, moves[0])
    if part is None or part.state == DROPPING:
        return named, ()
    return named, (Change("MoveFailed", part.key, moved(part, DROPPING, "it is not moved")),)


STEPS: dict[str, Callable[[StateContext, Sequence[Move], Circumstances], Step]] = {
    MOVE_PENDING: begin_move,
    MOVE_CATCHUP: take_over,
    MOVE_DONE: finish_move,
    MOVE_FAILED: give_up,
    MOVE_CANCELLED: give_up,
}

_EVENTS = {
    MOVE_PENDING: "MoveBegun",
    MOVE_CATCHUP: "MoveBuilt",
    MOVE_DONE: "MoveEnded",
    MOVE_FAILED: "MoveFailed",
    MOVE_CANCELLED: "MoveCancelled",
}


def may_begin(state: StateContext, move: Move | PlannedMove) -> bool:
    """Tell whether a copy can still move as planned, and its index take another part."""
    index = state.find_index(move.index)
    if index is None or len(state.parts.get(index.id, ())) >= PARTS_MAX:
        return False
    return not _problem_of(state, move, {move.target})


def _ended(rebalance: Rebalance, given: Circumstances) -> Rebalance:
    """Return a rebalance that is over if all of its moves are."""
    if not all(move.is_over for move in rebalance.moves):
        return rebalance
    is_cancelled = rebalance.state == REBALANCE_CANCELLING
    to = REBALANCE_CANCELLED if is_cancelled else REBALANCE_DONE
    return replace(rebalance, state=to, ended_ms=given.wall_ms)


def _release_copies(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Let the copies go that are leaving; a part that has no other goes as a whole."""
    command = request.command
    assert isinstance(command, ReleaseCopies)
    index = state.find_index(command.index_id)
    if index is None or index.state == DROPPING or not index.has_leaving_copies:
        return Unchanged(Outcome("ok"))
    if command.slices and command.slices != index.slices:
        return Unchanged(Outcome("ok"))  # Another copy leaves since: it has scans.
    slices = tuple(piece.on(piece.serving) for piece in index.slices)
    after = _with_its_shards(replace(index, slices=slices))
    if index.part_of and not after.hosts:
        # Whoever holds it releases it as it does an index that is dropped.
        after = moved(index, DROPPING, "its copies have moved on")
    return Accepted((Change("CopiesReleased", after.key, after),), {})


def _drop_part(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Drop a part of an index that is gone, or going."""
    command = request.command
    assert isinstance(command, DropPart)
    part = state.find_index(command.index_id)
    if part is None or not part.part_of or part.state == DROPPING:
        return Unchanged(Outcome("ok"))
    whole = state.find_index(part.part_of)
    if whole is not None and whole.state != DROPPING:
        return Unchanged(Outcome("ok"))
    gone = moved(part, DROPPING, f"index {part.part_of} was dropped")
    return Accepted((Change("PartDropped", gone.key, gone),), {})


# -- who holds what ------------------------------------------------------------------------------


def _part(state: StateContext, move: Move) -> Index | None:
    return state.find_index(move.part) if move.part else None


def _holder(state: StateContext, index: Index, number: int, indexer: int) -> Index | None:
    """Return what has an indexer's copy of a slice: the index, or a part of it."""
    for holder in state.keepers_of(index):
        if indexer in holder.slices[number].serving:
            return holder
    return None


def _hosts(state: StateContext, index: Index, number: int) -> set[int]:
    """Return the indexers that have a copy of a slice, or are about to, or had it just now."""
    holders = [index, *state.parts_of(index.id)]
    return {host for holder in holders for host in holder.slices[number].hosts}


def leaving_of(state: StateContext, index: Index, number: int) -> set[int]:
    """Return the indexers whose copy of a slice is leaving, or has yet to be released."""
    holders = [index, *state.parts_of(index.id)]
    return {host for holder in holders for host in holder.slices[number].leaving}


def _with_its_shards(index: Index) -> Index:
    """Return an index without the shards of indexers that have nothing of it."""
    return replace(index, shards=tuple(s for s in index.shards if s.indexer in index.hosts))


def keys_of_move(state: StateContext, command: StepMove) -> set[str]:
    """Return the keys on which a step of a move rests."""
    held = state.rebalance(command.rebalance)
    if held is None or command.move not in range(len(held.moves)):
        return set()
    index_id = held.moves[command.move].index
    return {index_key(one) for one in (index_id, *state.parts.get(index_id, ()))}


REBALANCE_DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    BeginRebalance: _begin_rebalance,
    CancelRebalance: _cancel_rebalance,
    StepMove: _step_move,
    ReleaseCopies: _release_copies,
    DropPart: _drop_part,
}
