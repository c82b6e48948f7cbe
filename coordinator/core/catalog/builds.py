"""Decisions about the building of indexes and the streams that carry them.

Pure, like `ddl`, of which this is a part. A build of an index is one number of it, `build`: what
is said of another number is of no interest any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from coordinator.core.catalog.buckets import is_of_topic
from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    Parked,
    Unchanged,
    accepted,
    describe_index,
    index_in,
    mismatch,
    moved,
)
from coordinator.core.catalog.state import DEFERRED, StateContext, Versioned
from coordinator.core.model.commands import (
    AdoptBucket,
    BuildIndexes,
    MarkBuilt,
    MarkFailed,
    MarkRouted,
    Outcome,
    RenewStream,
    Request,
    refused,
)
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    ERROR,
    INIT,
    MAINTENANCE,
    PENDING,
    READY,
    Bucket,
    Index,
    Source,
    Stream,
)

BUILT_AT_ONCE_MAX = 200
"""So many indexes one command builds: they must fit into a transaction."""

RESTARTED_MAX = 256
"""Of so many vbuckets a source tells under which number each was lost; of more, all begin again."""


def named(state: StateContext, command: BuildIndexes) -> list[Versioned | str]:
    """Return the indexes that are to be built; a text stands for one that is not there."""
    if command.indexes:
        by_id = ((i, state.index_by_id(i)) for i in command.indexes)
        return [held or str(index_id) for index_id, held in by_id]
    if command.names:
        by_name = ((n, state.index_named(command.bucket, n)) for n in command.names)
        return [held or f"{command.bucket}.{name}" for name, held in by_name]
    of_bucket = (i.id for i in state.in_phase(DEFERRED) if i.bucket == command.bucket)
    deferred = (state.index_by_id(index_id) for index_id in sorted(of_bucket))
    return [held for held in deferred if held is not None]


def begin_build(index: Index, given: Circumstances) -> Index:
    """Return `index` at the beginning of its next build.

    The origins of a part are those of its first build: they may have been released since.
    """
    origins = () if index.build else index.origins
    return replace(moved(index, PENDING, None), build=given.number, origins=origins)


def _build_indexes(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, BuildIndexes)
    if not (command.indexes or command.bucket):
        return Unchanged(refused("invalid_request", "name indexes by id, or a bucket"))
    found = named(state, command)
    if len(found) > BUILT_AT_ONCE_MAX:
        return Unchanged(
            refused(
                "value_too_large",
                f"{len(found)} indexes: at most {BUILT_AT_ONCE_MAX} are built by one command",
                limit=BUILT_AT_ONCE_MAX,
            )
        )
    missing = [held for held in found if isinstance(held, str)]
    indexes = [h.entity for h in found if not isinstance(h, str) and isinstance(h.entity, Index)]
    missing += [str(i.id) for i in indexes if i.state == DROPPING]
    if not request.key:
        missing += [str(i.id) for i in indexes if i.part_of]  # Only the master knows of parts.
    if missing:
        return Unchanged(refused("index_not_found", f"there is no index {missing[0][:300]}"))
    for index in indexes:
        if index.state == INIT:
            return Parked(index.id)
    if request.expected_cas is not None and len(indexes) == 1:
        cas = state.cas_of(indexes[0].key)
        if cas != request.expected_cas:
            return Unchanged(mismatch(request.expected_cas, cas))
    return _begun(state, request, given, indexes)


def _begun(
    state: StateContext, request: Request, given: Circumstances, indexes: Iterable[Index]
) -> Decision:
    """Begin what is not being built, or built, already; so with the parts that failed."""
    changes: list[Change] = []
    after: list[Index] = []
    for index in indexes:
        if index.state in (READY, ERROR):
            index = begin_build(index, given)
            changes.append(Change("BuildRequested", index.key, index))
        after.append(index)
        failed = (part for part in state.parts_of(index.id) if part.state == ERROR)
        parts = [begin_build(part, given) for part in failed]
        changes += (Change("BuildRequested", part.key, part) for part in parts)
    answer = {"indexes": [describe_index(state.whole(index)) for index in after]}
    if not changes:
        return Unchanged(Outcome("ok", answer=answer))
    return accepted(request, tuple(changes), answer)


def _step(event: str, state: str, to: str) -> Callable[..., Decision]:
    """Return the decider of a step of one build, from one state to the next."""

    def decide(context: StateContext, request: Request, given: Circumstances) -> Decision:
        command = request.command
        assert isinstance(command, MarkRouted | MarkBuilt)
        index = index_in(context, command.index_id, state)
        if index is None or index.build != command.build:
            return Unchanged(Outcome("ok"))
        return Accepted((Change(event, index.key, moved(index, to, None)),), {})

    return decide


def _mark_failed(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, MarkFailed)
    index = index_in(state, command.index_id, PENDING, BACKFILL)
    if index is None or index.build != command.build:
        return Unchanged(Outcome("ok"))
    failed = moved(index, ERROR, command.reason)
    return Accepted((Change("BuildFailed", index.key, failed),), {})


def _adopt_bucket(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Take the store's number of vbuckets, as long as nothing was ever streamed under another."""
    command = request.command
    assert isinstance(command, AdoptBucket)
    held = state.bucket(command.name)
    if held is None or is_of_topic(held) or state.stream(command.name) is not None:
        return Unchanged(Outcome("ok"))
    adopted = Bucket(command.name, command.vbuckets)
    if adopted == held.entity:
        return Unchanged(Outcome("ok"))
    return Accepted((Change("BucketAdopted", adopted.key, adopted),), {})


def _renew_stream(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Give projectors a new number; the sources that are not named keep theirs."""
    command = request.command
    assert isinstance(command, RenewStream)
    held = state.stream(command.bucket)
    stream = held.entity if held else None
    number, sources = (stream.number, stream.sources) if isinstance(stream, Stream) else (0, ())
    if number != command.number or state.streams_are_stopped:
        return Unchanged(Outcome("ok"))
    table = {source.projector: source for source in sources}
    for process_id in command.projectors:
        projector = process_id[0]
        table[projector] = _renewed(command, process_id, table.get(projector), given.number)
    renewed = Stream(
        bucket=command.bucket,
        number=given.number,
        sources=tuple(table[projector] for projector in sorted(table)),
        vbuuids=command.vbuuids,
        seqnos=command.seqnos,
        reason=command.reason,
        restart=max(command.restart, stream.restart if isinstance(stream, Stream) else 0),
    )
    return Accepted((Change("StreamRenewed", renewed.key, renewed),), {})


def _renewed(
    command: RenewStream, process_id: tuple[int, int], held: Source | None, number: int
) -> Source:
    """Return a source under its new number: all of its streams begin, or those that are lost."""
    projector, incarnation = process_id
    whole = Source(projector, incarnation, number, began=number)
    if held is None or held.incarnation != incarnation or not held.began:
        return whole
    restarted = dict(zip(held.restarted, held.under, strict=True))
    restarted.update(dict.fromkeys(command.vbuckets, number))
    if process_id in command.whole or len(restarted) > RESTARTED_MAX:
        return whole
    vbuckets = tuple(sorted(restarted))
    under = tuple(restarted[vbucket] for vbucket in vbuckets)
    return Source(projector, incarnation, number, held.began, vbuckets, under)


BUILD_DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    BuildIndexes: _build_indexes,
    MarkRouted: _step("BuildRouted", PENDING, BACKFILL),
    MarkBuilt: _step("IndexBuilt", BACKFILL, MAINTENANCE),
    MarkFailed: _mark_failed,
    AdoptBucket: _adopt_bucket,
    RenewStream: _renew_stream,
}
