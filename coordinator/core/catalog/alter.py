"""Decisions about an index that is altered: at once, or by a second index that takes its place.

Pure, like `ddl`, of which this is a part. A name, and fewer replicas, are changes of the index
itself. All else needs other entries, or entries elsewhere: a second index is made beside the first,
which is left as it is. The second names the first in `replaces`. It holds no name, and is allocated
and built like any other. When it is as far as the first, one transaction gives it the name and
drops the first.

What is under way is in the state alone: each master finds it there.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    EndedAlter,
    Parked,
    Unchanged,
    accepted,
    clash,
    compact,
    describe_index,
    moved,
    placed,
    refusal,
    takers,
)
from coordinator.core.catalog.placement import Impossible
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.model import json_text
from coordinator.core.model.commands import AlterIndex, CreateIndex, Outcome, Request, refused
from coordinator.core.model.entities import (
    DROPPING,
    ERROR,
    INIT,
    MAINTENANCE,
    RANGE,
    READY,
    Index,
    Slice,
)
from coordinator.core.model.outcome_records import DONE, INDEX, RecordedOutcome
from coordinator.core.model.types import Cas

NOTHING, IN_PLACE, REBUILD = "none", "in_place", "rebuild"
"""How an index becomes what is asked for."""

T = TypeVar("T")
Validate = Callable[[CreateIndex], str]
"""Says what is wrong with a definition, or returns an empty text."""


@dataclass(frozen=True, slots=True)
class AlterPlan:
    """How an index is altered, and what it is then; one that is rebuilt has no new id yet."""

    change: str
    index: Index


def altered(state: StateContext, command: AlterIndex) -> Versioned | None:
    """Return the index that is to be altered, if it is there."""
    if command.index_id:
        return state.named_by_id(command.index_id)
    return state.index_named(command.bucket, command.name)


def decide_alter(
    state: StateContext, request: Request, given: Circumstances, validate: Validate
) -> Decision:
    """Return what an ALTER yields: a change of the index, or a second one to take its place."""
    command = request.command
    assert isinstance(command, AlterIndex)
    held = altered(state, command)
    index = held.entity if held else None
    if held is None or not isinstance(index, Index) or index.state == DROPPING:
        which = str(command.index_id) if command.index_id else f"{command.bucket}.{command.name}"
        return Unchanged(refused("index_not_found", f"there is no index {which[:300]}"))
    if index.is_replacement or index.id in state.replacements:
        return Unchanged(_under_way(state, index))
    if index.state == INIT:
        return Parked(index.id)
    if other := clash(request, held):
        return Unchanged(other)
    if problem := validate(definition_after(state.whole(index), command)):
        return Unchanged(refused("invalid_request", problem))
    plan = plan_alter(index, command, state, given)
    if isinstance(plan, Outcome):
        return Unchanged(plan)
    if taken := holder_of(state, index, plan.index.name):
        return Parked(taken) if _is_being_made(state, taken) else Unchanged(_exists(state, taken))
    if command.dry_run or plan.change == NOTHING:
        change = {"change": plan.change} if command.dry_run else {}
        answer = {"index": describe_index(state.whole(plan.index)), **change}
        return Unchanged(Outcome("ok", answer=answer, cas=held.cas))
    if plan.change == IN_PLACE:
        change_of_index = Change("IndexAltered", index.key, plan.index)
        answer = {"index": describe_index(state.whole(plan.index))}
        return accepted(request, (change_of_index,), answer)
    second = _second(plan.index, index, request, given)
    return Accepted((Change("IndexProposed", second.key, second),), {}, waits_for=(second.id,))


def _second(planned: Index, first: Index, request: Request, given: Circumstances) -> Index:
    """Return the index that is to take the place of the first, as it begins."""
    return replace(
        planned,
        id=given.fresh_id,
        state=INIT,
        reason=None,
        shards=(),
        build=0,
        request=request.id,
        request_fingerprint=request.fingerprint if request.recorded else 0,
        by_topic=request.position is not None,
        created_ms=given.wall_ms,
        replaces=first.id,
    )


def _under_way(state: StateContext, index: Index) -> Outcome:
    """Refuse to alter what is being altered."""
    second = index.id if index.is_replacement else state.replacements[index.id]
    first = index.replaces or index.id
    text = f"index {index.name} on {index.bucket} is being altered: {second} is to replace {first}"
    return refused("index_altering", text, id=str(second), replaces=str(first))


# -- the names -----------------------------------------------------------------------------------


def holder_of(state: StateContext, index: Index, name: str) -> int:
    """Return another index that has a name, or is to have it; 0 if there is none."""
    key = (index.bucket, name)
    holder = state.names.get(key, state.claims.get(key, index.id))
    return 0 if holder == index.id else holder


def _is_being_made(state: StateContext, index_id: int) -> bool:
    held = state.index_by_id(index_id)
    index = held.entity if held else None
    return isinstance(index, Index) and index.state == INIT and not index.replaces


def _exists(state: StateContext, index_id: int) -> Outcome:
    held = state.index_by_id(index_id)
    assert held is not None
    assert isinstance(held.entity, Index)
    return exists(held.entity, held.cas)


def exists(index: Index, cas: int) -> Outcome:
    """Refuse a name that an index has, or is to have when it takes the place of another."""
    if index.is_replacement:
        text = f"the name {index.name} on {index.bucket} is promised to an index that is altered"
        return refused("index_altering", text, id=str(index.id), replaces=str(index.replaces))
    text = f"index {index.name} on {index.bucket} exists"
    return refused("index_exists", text, id=str(index.id), cas=cas)


# -- what is asked for ---------------------------------------------------------------------------


def definition_after(index: Index, command: AlterIndex) -> CreateIndex:
    """Return what would create the index as it is asked for.

    An index that is to be hashed has no bounds; with new bounds, each partition has as many slices
    as before.
    """
    partitioning = _or(command.partitioning, index.partitioning)
    bounds = index.bounds_json if partitioning == index.partitioning else "[]"
    bounds = _or(command.bounds_json, bounds)
    slices = len(index.slices)
    if partitioning == RANGE and command.bounds_json is not None:
        slices = (
            len(index.slices) // max(1, _partitions_of(index)) * _partitions(command.bounds_json)
        )
    where = None if command.drops_where else _or(command.where, index.where)
    return CreateIndex(
        name=_or(command.new_name, index.name),
        bucket=index.bucket,
        expressions=_or(command.expressions, index.expressions),
        where=where,
        primary=index.primary,
        using=index.using,
        slices=_or(command.slices, slices),
        replicas=_or(command.replicas, replicas_of(index)),
        nodes=command.nodes or index.nodes,
        defer_build=index.defer_build,
        partitioning=partitioning,
        bounds_json=bounds,
    )


def _partitions_of(index: Index) -> int:
    """Return how many partitions the keys of an index have."""
    is_ranged = index.partitioning == RANGE
    return _partitions(index.bounds_json) if is_ranged else len(index.slices)


def _partitions(bounds_json: str) -> int:
    """Return how many partitions bounds make; 0 if they are none."""
    try:
        bounds = json_text.parse(bounds_json)
    except ValueError:
        return 0
    return len(bounds) + 1 if isinstance(bounds, list) else 0


def _or(given: T | None, known: T) -> T:
    return known if given is None else given


def replicas_of(index: Index) -> int:
    """Return how many replicas each slice has beside its master copy."""
    return max((len(piece.replicas) for piece in index.slices), default=0)


def plan_alter(
    index: Index, command: AlterIndex, state: StateContext, given: Circumstances
) -> AlterPlan | Outcome:
    """Return how an index becomes what is asked for, or why it cannot.

    Of one with copies that were moved, only the name changes in place.
    """
    whole = state.whole(index)
    after = definition_after(whole, command)
    bounds = json.loads(after.bounds_json)
    count = after.slices or _partitions(after.bounds_json)
    target = replace(
        index,
        name=after.name,
        expressions=after.expressions,
        where=after.where,
        partitioning=after.partitioning,
        bounds_json=compact(bounds),
    )
    most, has_parts = replicas_of(whole), index.id in state.parts
    fewer = index if has_parts else _with_fewer_replicas(index, after.replicas)
    alike = replace(target, name=index.name) == index and count == len(index.slices)
    is_placed = not command.nodes or set(command.nodes) == state.whole(fewer).hosts
    is_in_place = after.replicas == most if has_parts else after.replicas <= most
    if alike and is_in_place and is_placed:
        target = replace(fewer, name=after.name)
        return AlterPlan(NOTHING if target == index else IN_PLACE, target)
    slices = _placed(whole, after, count, state, given, is_named=bool(command.nodes))
    if isinstance(slices, Impossible):
        return refused("placement_impossible", slices.message, **slices.details)
    return AlterPlan(REBUILD, replace(target, slices=slices, nodes=tuple(sorted(set(after.nodes)))))


def _with_fewer_replicas(index: Index, replicas: int) -> Index:
    """Return an index whose replicas that are too many leave; it is the same where none are.

    Those that were placed last go: the first ones lie in different zones.
    """
    if replicas >= replicas_of(index):
        return index
    slices = tuple(
        piece.on(
            (piece.master, *piece.replicas[:replicas]),
            (*piece.leaving, *piece.replicas[replicas:]),
        )
        for piece in index.slices
    )
    return replace(index, slices=slices)


def _placed(
    index: Index,
    after: CreateIndex,
    count: int,
    state: StateContext,
    given: Circumstances,
    *,
    is_named: bool,
) -> tuple[Slice, ...] | Impossible:
    """Return where a second index lies: where the first does, if nothing speaks against it."""
    is_like = count == len(index.slices) and after.replicas == replicas_of(index)
    candidates = takers(state, given)
    alive = {one.id for one in candidates}
    is_there = all(piece.hosts and alive.issuperset(piece.hosts) for piece in index.slices)
    if is_like and not is_named and is_there:
        return index.slices
    return placed(state, given, count, after.replicas, after.nodes)


# -- the end of it -------------------------------------------------------------------------------


def takes_place(state: StateContext, second: Index) -> bool:
    """Tell whether an index may take the place of the one that it replaces: it is as far as that.

    Where the first is not built, nobody scans it, and nothing is lost if the second is not either.
    """
    held = state.index_by_id(second.replaces)
    first = held.entity if held else None
    assert isinstance(first, Index)
    return second.state == MAINTENANCE or (second.state == READY and first.state in (READY, ERROR))


def switched(state: StateContext, event: str, second: Index) -> tuple[Change, Change]:
    """Return the changes by which an index takes the place of another, which is dropped.

    In this order: at each CAS one of them has the name.
    """
    held = state.index_by_id(second.replaces)
    first = held.entity if held else None
    assert isinstance(first, Index)
    after = replace(second, replaces=0)
    gone = moved(first, DROPPING, f"replaced by index {second.id}")
    return Change(event, after.key, after), Change("IndexReplaced", gone.key, gone)


def given_up(second: Index, reason: str) -> Change:
    """Return the change by which an index goes that was to take the place of another."""
    return Change("IndexUndone", second.key, moved(second, DROPPING, reason))


def ended(second: Index, reason: str) -> EndedAlter:
    """Return the end of the ALTER that has made an index, which somebody drops."""
    outcome = refused("alter_abandoned", reason, id=str(second.id), replaces=str(second.replaces))
    return EndedAlter(second, outcome, outcome_of(second, outcome))


def outcome_of(index: Index, outcome: Outcome) -> RecordedOutcome | None:
    """Return what is to be remembered of the request that has made an index, but for its CAS."""
    if not index.request_fingerprint:
        return None
    if outcome.code:
        return refusal(index.request, index.request_fingerprint, index.by_topic, outcome)
    return RecordedOutcome(
        id=index.request,
        status=DONE,
        fingerprint=index.request_fingerprint,
        answer=INDEX,
        index_ids=(index.id,),
        cas=Cas(0),
        by_topic=index.by_topic,
    )
