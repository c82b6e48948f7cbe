"""What takes the state back to how it was: the changes that an undo makes, and what it leaves.

Pure. An undo takes nothing out of the log: it makes ordinary changes, each guarded by the CAS of
what it replaces. Settings come back with their values, dropped indexes under their names, with new
ids; a renamed one gets its name back, and keeps its id. What the cluster keeps by itself (builds,
streams, positions) goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from operator import add, gt

from coordinator.core.catalog.alter import replicas_of
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.catalog.transactions import (
    COPIES_MAX,
    NAMES_LENGTH_MAX,
    copies_of,
    length_of_names,
)
from coordinator.core.model.commands import (
    AlterIndex,
    Comparison,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    Operation,
    PutSetting,
    Transact,
)
from coordinator.core.model.entities import DROPPING, READY, Index, Setting
from coordinator.core.model.types import Cas

STEP_OPERATIONS = 64
STEP_BYTES = 128 * 1024
"""So much goes into one of several transactions."""

BOUNDS = (STEP_OPERATIONS, STEP_BYTES, NAMES_LENGTH_MAX, COPIES_MAX)


@dataclass(frozen=True, slots=True)
class Step:
    """One change of an undo: what is there now, and what there was, None for nothing."""

    key: str
    now: Versioned | None
    then: Versioned | None
    operation: Operation
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class Kept:
    """Something that differs and that an undo leaves as it is, and why."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Undo:
    """All changes that lead back, in their order, and what stays."""

    steps: tuple[Step, ...]
    kept: tuple[Kept, ...]


def plan_undo(then: StateContext, now: StateContext, only: Collection[str] = ()) -> Undo:
    """Return what leads from the state of now to that of a moment.

    `only`: nothing but the entities under these keys.
    """
    renamed = _renamed(then, now)
    steps = (
        *_dropped(then, now, renamed.keys()),
        *renamed.values(),
        *_settings(then, now),
        *_created(then, now, renamed.keys()),
    )
    kept = tuple(_kept(then, now))
    if not only:
        return Undo(steps, kept)
    chosen = tuple(step for step in steps if step.key in only)
    left = {one.key: one for one in kept if one.key in only}
    changed = {step.key for step in chosen}
    alike = (Kept(key, "it is as it was") for key in only if key not in changed | left.keys())
    return Undo(chosen, (*left.values(), *alike))


def transactions_of(undo: Undo, to: Cas, in_steps: bool) -> list[Transact]:
    """Return the undo as one transaction, or as several of bounded size."""
    if not in_steps:
        return [_transact(undo.steps, to)]
    parts: list[list[Step]] = [[]]
    used = [0] * len(BOUNDS)
    for step in undo.steps:
        costs = _costs(step)
        if parts[-1] and any(map(gt, map(add, used, costs), BOUNDS)):
            parts.append([])
            used = [0] * len(BOUNDS)
        parts[-1].append(step)
        used = list(map(add, used, costs))
    return [_transact(tuple(part), to) for part in _guarded(parts)]


def _guarded(parts: list[list[Step]]) -> Iterator[list[Step]]:
    """Yield the parts; a name whose index an earlier part drops or renames is free by then."""
    dropped: set[tuple[str, str]] = set()
    for part in parts:
        names = ((step.comparison.bucket, step.comparison.name) for step in part)
        yield [
            replace(step, comparison=replace(step.comparison, cas=Cas(0)))
            if name in dropped
            else step
            for step, name in zip(part, names, strict=True)
        ]
        for step in part:
            index = step.now.entity if step.now is not None else None
            if isinstance(index, Index):
                dropped.add((index.bucket, index.name))


def _transact(steps: tuple[Step, ...], to: Cas) -> Transact:
    return Transact(
        compare=tuple(step.comparison for step in steps),
        then=tuple(step.operation for step in steps),
        undoes=to,
    )


def _costs(step: Step) -> tuple[int, ...]:
    """Return what a step takes of each of `BOUNDS`."""
    size = max(len(held.value) for held in (step.now, step.then) if held is not None)
    names = length_of_names(step.comparison) + length_of_names(step.operation)
    copies = copies_of(step.operation) if isinstance(step.operation, CreateIndex) else 0
    return 1, size, names, copies


def _settings(then: StateContext, now: StateContext) -> Iterator[Step]:
    """Yield the settings that were written or deleted since."""
    keys = {held.entity.key for state in (then, now) for held in state.of_kind("config")}
    for key in sorted(keys):
        old, new = then.get(key), now.get(key)
        if (old.value if old else None) == (new.value if new else None):
            continue
        comparison = Comparison(key=key, cas=new.cas if new else Cas(0))
        if old is not None and isinstance(old.entity, Setting):
            write = PutSetting(old.entity.name, old.entity.value_json)
            yield Step(key, new, old, write, comparison)
        elif new is not None and isinstance(new.entity, Setting):
            yield Step(key, new, None, DeleteSetting(new.entity.name), comparison)


def _renamed(then: StateContext, now: StateContext) -> dict[int, Step]:
    """Return the indexes that get the name back that they had, in an order in which it is free.

    Not those that have changed names with each other: they are dropped, and created again. Nor one
    that is being altered.
    """
    waiting: dict[int, tuple[Versioned, Versioned, Index]] = {}
    for index, _ in _indexes(now):
        old, new = then.get(index.key), now.get(index.key)
        before = old.entity if old else None
        if old is None or new is None or not isinstance(before, Index):
            continue
        stands = not any(one.is_unfinished or one.state == DROPPING for one in (before, index))
        if stands and before.name != index.name and index.id not in now.replacements:
            waiting[index.id] = (new, old, before)
    gone = {index.id for index, _ in _indexes(now) if not _was_there(then, index)}
    found: dict[int, Step] = {}
    while free := [i for i in waiting if _is_free(now, waiting[i][2], gone | found.keys())]:
        for index_id in free:
            new, old, before = waiting.pop(index_id)
            rename = AlterIndex(index_id=index_id, new_name=before.name)
            comparison = Comparison(key=before.key, cas=new.cas)
            found[index_id] = Step(before.key, new, old, rename, comparison)
    return found


def _indexes(state: StateContext) -> list[tuple[Index, Cas]]:
    """Return every index with its CAS, with all of its copies, wherever they were moved."""
    return [(state.whole(index), cas) for index, cas in state.indexes()]


def _was_there(then: StateContext, index: Index) -> bool:
    """Tell whether an index that is there was there before, under whatever name, or one like it."""
    return _has_alike(then, index) or then.get(index.key) is not None


def _is_free(now: StateContext, index: Index, leaving: Collection[int]) -> bool:
    """Tell whether nobody has the name of an index, but those that leave it."""
    name = (index.bucket, index.name)
    holder = now.names.get(name, now.claims.get(name))
    return holder is None or holder in leaving


def _dropped(then: StateContext, now: StateContext, renamed: Collection[int]) -> Iterator[Step]:
    """Yield the indexes that were created since: they are dropped, before their names are used.

    What is to replace one that is dropped goes with it.
    """
    gone: set[int] = set()
    for index, cas in sorted(_indexes(now), key=lambda pair: pair[0].replaces):
        held = now.get(index.key)
        if index.state == DROPPING or index.id in renamed or index.replaces in gone:
            continue
        if not _has_alike(then, index):
            gone.add(index.id)
            comparison = Comparison(key=index.key, cas=cas)
            yield Step(index.key, held, None, DropIndex(index.id), comparison)


def _created(then: StateContext, now: StateContext, renamed: Collection[int]) -> Iterator[Step]:
    """Yield the indexes that were dropped since: they are created again.

    An ALTER that was under way is not taken up.
    """
    for index, _ in _indexes(then):
        held = then.get(index.key)
        if index.is_unfinished or index.state == DROPPING or index.id in renamed:
            continue
        if _has_alike(now, index, renamed):
            continue
        there = now.index_named(index.bucket, index.name)
        comparison = Comparison(
            bucket=index.bucket, name=index.name, cas=there.cas if there else Cas(0)
        )
        yield Step(index.key, None, held, definition_of(index), comparison)


def _has_alike(state: StateContext, index: Index, leaving: Collection[int] = ()) -> bool:
    """Tell whether a state has this index, or another one of its name with its definition.

    One that is to replace another is like itself only. Those that are `leaving` their names are
    like no other.
    """
    if index.is_replacement:
        same = state.get(index.key)
        return same is not None and isinstance(same.entity, Index) and same.entity.is_replacement
    held = state.index_named(index.bucket, index.name)
    other = held.entity if held else None
    if not isinstance(other, Index):
        return False
    if other.id == index.id:
        return True
    return other.id not in leaving and _built_like(state.whole(other)) == _built_like(index)


def _built_like(index: Index) -> CreateIndex:
    return replace(definition_of(index), defer_build=False)


def definition_of(index: Index) -> CreateIndex:
    """Return what creates an index like this one; it is placed anew."""
    return CreateIndex(
        name=index.name,
        bucket=index.bucket,
        expressions=index.expressions,
        where=index.where,
        primary=index.primary,
        using=index.using,
        slices=len(index.slices),
        replicas=replicas_of(index),
        defer_build=index.defer_build and index.state == READY,
        partitioning=index.partitioning,
        bounds_json=index.bounds_json,
    )


def _has_fewer_replicas(state: StateContext, there: Versioned, index: Index) -> bool:
    now = there.entity
    if not isinstance(now, Index) or now.state == DROPPING:
        return False
    return replicas_of(state.whole(now)) < replicas_of(index)


def _kept(then: StateContext, now: StateContext) -> Iterator[Kept]:
    """Yield what differs and stays."""
    for held in now.of_kind("bucket"):
        key = held.entity.key
        if then.get(key) is None:
            yield Kept(key, "the cluster does not forget a bucket")
    for kind in ("topic", "subscription"):
        keys = {held.entity.key for state in (then, now) for held in state.of_kind(kind)}
        for key in sorted(keys):
            old, new = then.get(key), now.get(key)
            if (old.value if old else None) != (new.value if new else None):
                yield Kept(key, "an undo leaves topics and subscriptions as they are")
    for index, _ in _indexes(then):
        there = now.get(index.key)
        if there is not None and _has_fewer_replicas(now, there, index):
            yield Kept(index.key, "its replicas were taken away since: alter it to add some")
        if index.state == READY and index.defer_build and there is not None:
            built = there.entity
            if isinstance(built, Index) and built.state not in (READY, DROPPING):
                yield Kept(index.key, "its build was begun since, and is not taken back")
