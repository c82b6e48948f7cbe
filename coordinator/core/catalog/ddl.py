"""Which changes a command yields against a committed StateContext, or why it is refused.

Pure: no clock, no randomness, no memory. `decide` leaves the state alone; only mutations read
back from the log change it. A decision says which keys it rests on (`footprint`), so that the
commands of one group can be decided independently against the same committed state: two commands
whose footprints meet never share a group.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from coordinator.core.catalog import alter, buckets, rebalance_settings
from coordinator.core.catalog.buckets import BUCKET_DECIDERS
from coordinator.core.catalog.builds import BUILD_DECIDERS, begin_build, named
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
    describe_gone,
    describe_index,
    index_in,
    moved,
    placed,
)
from coordinator.core.catalog.outcomes import AHEAD_MS_MAX, RememberedOutcome, time_of_uuid7
from coordinator.core.catalog.placement import Impossible
from coordinator.core.catalog.rebalances import REBALANCE_DECIDERS, keys_of_move
from coordinator.core.catalog.rollbacks import ROLLBACK_DECIDERS
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.catalog.subscriptions import SUBSCRIPTION_DECIDERS
from coordinator.core.catalog.subscriptions import footprint_of as footprint_of_subscription
from coordinator.core.catalog.transactions import (
    decide_transaction,
    end_of,
    footprint_of,
    pending_of,
    with_error,
)
from coordinator.core.keys.key_order import PRIMARY, order_of_expressions
from coordinator.core.keys.topology import read_bounds
from coordinator.core.model import json_text
from coordinator.core.model.commands import (
    AddBucket,
    AdoptBucket,
    AlterIndex,
    BeginRebalance,
    BuildIndexes,
    CancelRebalance,
    Command,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    DropPart,
    ForgetIndex,
    MarkBuilt,
    MarkFailed,
    MarkReady,
    MarkRouted,
    MoveRollback,
    MoveShards,
    Outcome,
    PutSetting,
    ReadTopicAgain,
    ReleaseCopies,
    RemoveBucket,
    RenewStream,
    Request,
    RewriteEntities,
    SkipRecord,
    StepMove,
    Transact,
    UndoIndex,
    refused,
)
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    INIT,
    MAINTENANCE,
    PARTITIONINGS,
    PENDING,
    RANGE,
    READY,
    Bucket,
    Index,
    Setting,
    bucket_key,
    index_key,
    rebalance_key,
    request_key,
    rollback_key,
    setting_key,
    stream_key,
)
from coordinator.core.model.names import NAME_RULE, SETTING_NAME, is_name
from coordinator.core.model.outcome_records import (
    EXISTED,
    INDEXES,
    LITERAL,
    REFUSED,
    SETTING,
    TRANSACTION,
    RecordedOutcome,
)
from coordinator.core.timestamps import settings as timestamp_settings

EXPRESSIONS_MAX = 32
EXPRESSION_LENGTH_MAX = 4_096
SLICES_MAX = 256
REPLICAS_MAX = 16
SETTING_BYTES_MAX = 64 * 1024
REQUEST_ID_LENGTH_MAX = 128
PRINCIPAL_LENGTH_MAX = 256
PROBLEM_LENGTH_MAX = 300
VBUCKETS = 1_024

BELIEVED_MS_MAX = 24 * 3_600_000
"""What was forgotten says how old an id may be, also to a clock that is behind. From further ahead
than this it says that a clock was wrong then, for which nobody shall be refused for ever."""

GROWTH_BYTES = 1_536
SHARD_BYTES = 24
"""An index grows by this much at most after its creation, and by this much for each host: shards, a
reason, numbers. It is let in only if it can then still be changed, and dropped."""
ANSWER_DEPTH_MAX = json_text.DEPTH_MAX + 8
"""An answer, or the details of a refusal, may have a setting's value inside."""


def decide(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Return what `request` yields against `state`."""
    if request.recorded:
        remembered = _remembered(state, request, given)
        if remembered is not None:
            return remembered
    if request.objection:
        return Unchanged(refused("invalid_request", request.objection))
    return DECIDERS[type(request.command)](state, request, given)


def footprint(state: StateContext, command: Command, request_id: str = "") -> frozenset[str]:
    """Return the keys on which the decision about `command` rests, or which it would change."""
    keys = {f"request/{request_id}"} if request_id else set()
    match command:
        case CreateIndex():
            keys.add(name_key(command.bucket, command.name))
            if buckets.may_change(state, command.bucket):
                keys.add(bucket_key(command.bucket))
        case DropIndex():
            found = _dropped(state, command)
            if found is not None:
                keys |= _keys_of_index(state, found)
            if command.index_id:
                keys.add(index_key(command.index_id))
            else:
                keys.add(name_key(command.bucket, command.name))
        case AlterIndex():
            found = alter.altered(state, command)
            if found is not None:
                keys |= _keys_of_index(state, found)
                assert isinstance(found.entity, Index)
                keys.add(name_key(found.entity.bucket, command.new_name or found.entity.name))
            keys.add(
                index_key(command.index_id)
                if command.index_id
                else name_key(command.bucket, command.name)
            )
        case PutSetting() | DeleteSetting():
            keys.add(setting_key(command.name))
        case BuildIndexes():
            for one in named(state, command):
                keys |= set() if isinstance(one, str) else _keys_of_index(state, one)
            keys |= {index_key(one) for one in command.indexes}
            keys |= {name_key(command.bucket, one) for one in command.names}
        case RenewStream():
            keys |= {stream_key(command.bucket), bucket_key(command.bucket)}
            keys |= {rollback.key for rollback in state.rollbacks()}
        case MoveRollback():
            keys |= {rollback_key(command.bucket), bucket_key(command.bucket)}
        case BeginRebalance():
            keys |= {rebalance.key for rebalance in state.rebalances()} | {rebalance_key(0)}
            keys |= {index_key(move.index) for move in command.moves}
        case CancelRebalance():
            keys.add(rebalance_key(command.rebalance))
        case StepMove():
            keys |= {rebalance_key(command.rebalance)} | keys_of_move(state, command)
        case AdoptBucket() | AddBucket() | RemoveBucket() | ReadTopicAgain():
            keys |= {stream_key(command.name), bucket_key(command.name)}
            keys.add(rollback_key(command.name))
        case MarkReady():
            held = state.index_by_id(command.index_id)
            keys |= _keys_of_ready(state, held) if held else {index_key(command.index_id)}
        case (
            MoveShards()
            | UndoIndex()
            | ForgetIndex()
            | MarkRouted()
            | MarkBuilt()
            | MarkFailed()
            | ReleaseCopies()
            | DropPart()
        ):
            held = state.index_by_id(command.index_id)
            keys |= _keys_of_index(state, held) if held else {index_key(command.index_id)}
        case RewriteEntities():
            keys.update(command.keys)
        case Transact():
            keys |= footprint_of(state, command, footprint)
        case SkipRecord():
            pass
        case _:
            keys |= footprint_of_subscription(state, command)
    return frozenset(keys)


def name_key(bucket: str, name: str) -> str:
    """Return what stands for a name, whether or not an index has it."""
    return f"name/{bucket}/{name}"


def _keys_of_index(state: StateContext, held: Versioned) -> set[str]:
    """Return the keys of an index, and of the one that is to take its place, or whose place it is
    to take: they end together."""
    index = held.entity
    assert isinstance(index, Index)
    other = state.replacement_of(index.id)
    if index.is_replacement:
        other = state.index_by_id(index.replaces)
    found = [one.entity for one in (held, other) if one is not None]
    keys: set[str] = {index_key(index.part_of)} if index.part_of else set()
    for one in found:
        assert isinstance(one, Index)
        keys |= {one.key, name_key(one.bucket, one.name)}
        keys |= {request_key(one.request)} if one.request else set()
    return keys


def _keys_of_ready(state: StateContext, held: Versioned) -> set[str]:
    """READY of an index that a transaction made says nothing of its request: more go together."""
    index = held.entity
    assert isinstance(index, Index)
    keys = _keys_of_index(state, held)
    return keys if index.request_fingerprint else keys - {request_key(index.request)}


# -- repeats -------------------------------------------------------------------------------------


def _remembered(state: StateContext, request: Request, given: Circumstances) -> Decision | None:
    """Return the recorded outcome of a repeat, or None for a request that is new."""
    if not request.id or len(request.id) > REQUEST_ID_LENGTH_MAX:
        return Unchanged(
            refused("invalid_request", f"a request id has 1 to {REQUEST_ID_LENGTH_MAX} characters")
        )
    if given.remembered is not None:
        waiting = pending_of(state, given.remembered.outcome)
        return Parked(waiting) if waiting else _repeated(state, request, given.remembered)
    pending = state.pending.get(request.id)
    held = state.index_by_id(pending) if pending is not None else None
    if held is not None and isinstance(held.entity, Index):
        if held.entity.request_fingerprint not in (0, request.fingerprint):
            return Unchanged(MISMATCH)
        return _repeated_under_way(request, held.entity)
    return _out_of_time(request, given)


def _repeated_under_way(request: Request, index: Index) -> Decision:
    """Decide a repeat of a request whose index is not made, or has not taken the other's place.

    A build takes as long as it takes. A published repeat does not hold its partition up for that:
    the reply at the end is the reply to it, too.
    """
    if index.state == INIT or request.position is None:
        return Parked(index.id)
    promised = Change("IndexAltered", index.key, replace(index, by_topic=True))
    changes = () if index.by_topic else (promised,)
    return Accepted(changes, {}, subject=-1, waits_for=(index.id,))


MISMATCH = refused("request_mismatch", "this request id was used for another command")


def _out_of_time(request: Request, given: Circumstances) -> Decision | None:
    """Refuse an id that is too old to be remembered, or that comes from the future.

    A published command may have waited for a master for longer than the window. No outcome of an
    id later than `forgotten_ms` was ever forgotten. So nothing has become of it yet, however old
    it is: what is not remembered is not a repeat.
    """
    born_ms = time_of_uuid7(request.id)
    if born_ms is None:
        return None
    is_believed = given.forgotten_ms <= given.wall_ms + BELIEVED_MS_MAX
    may_be_old = request.position is not None and is_believed
    oldest_ms = 0 if may_be_old else given.wall_ms - given.request_window_ms
    if is_believed:
        oldest_ms = max(oldest_ms, given.forgotten_ms + 1)
    if born_ms < oldest_ms:
        return Unchanged(
            refused(
                "request_expired",
                "this request id is older than the window in which outcomes are kept",
                window_ms=given.request_window_ms,
            )
        )
    if born_ms > given.wall_ms + AHEAD_MS_MAX:
        return Unchanged(
            refused(
                "clock_ahead",
                f"this request id was made {born_ms - given.wall_ms} ms in the future: "
                "set the clock of the client",
                ahead_ms=born_ms - given.wall_ms,
                limit_ms=AHEAD_MS_MAX,
            )
        )
    return None


def _repeated(state: StateContext, request: Request, found: RememberedOutcome) -> Decision:
    """Answer a repeat: the first outcome, with what it is about as that is now."""
    recorded = found.outcome
    if recorded.fingerprint != request.fingerprint:
        return Unchanged(MISMATCH)
    if recorded.status == REFUSED:
        details = _object(recorded.error_details_json)
        return Unchanged(Outcome("refused", recorded.error_code, recorded.error_message, details))
    if recorded.answer == TRANSACTION:
        return Unchanged(end_of(state, found))
    answer = _answer_again(state, request, recorded)
    return Unchanged(Outcome("ok", answer=answer, cas=recorded.cas, txn=str(found.txn)))


def _answer_again(
    state: StateContext, request: Request, recorded: RecordedOutcome
) -> dict[str, Any]:
    command = request.command
    if recorded.answer == SETTING and isinstance(command, PutSetting):
        return {"key": command.name, "value": json_text.parse(command.value_json)}
    if recorded.answer == SETTING and isinstance(command, DeleteSetting):
        return {"key": command.name, "value": None}
    if recorded.answer == LITERAL:
        return _object(recorded.answer_json)
    shown = [_shown(state, request, index_id) for index_id in recorded.index_ids]
    if recorded.answer == INDEXES:
        return {"indexes": shown}
    answer: dict[str, Any] = {"index": shown[0] if shown else None}
    if recorded.answer == EXISTED:
        answer["existed"] = bool(shown)
    return answer


def _object(recorded_json: str) -> dict[str, Any]:
    """Return a recorded object; an empty one if it was written before depth had a bound."""
    try:
        found: dict[str, Any] = json_text.parse(recorded_json, ANSWER_DEPTH_MAX)
    except ValueError:
        return {}
    return found


def _shown(state: StateContext, request: Request, index_id: int) -> dict[str, Any]:
    held = state.index_by_id(index_id)
    if held is not None and isinstance(held.entity, Index):
        return describe_index(state.whole(held.entity))
    return describe_gone(index_id, request)


# -- indexes -------------------------------------------------------------------------------------


def _create_index(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, CreateIndex)
    if problem := _invalid_create(command):
        return Unchanged(refused("invalid_request", problem))
    existing = state.index_named(command.bucket, command.name)
    if existing is not None:
        return _already_there(state, existing, command, request)
    promised = state.claims.get((command.bucket, command.name))
    if promised is not None and (held := state.index_by_id(promised)) is not None:
        assert isinstance(held.entity, Index)
        return Unchanged(alter.exists(held.entity, held.cas))
    if other := clash(request, None):
        return Unchanged(other)
    topology = placed(state, given, _slices(command), command.replicas, command.nodes)
    if isinstance(topology, Impossible):
        return Unchanged(refused("placement_impossible", topology.message, **topology.details))
    index = Index(
        id=given.fresh_id,
        name=command.name,
        bucket=command.bucket,
        expressions=command.expressions,
        where=command.where,
        primary=command.primary,
        using=command.using,
        defer_build=command.defer_build,
        state=INIT,
        reason=None,
        slices=topology,
        request=request.id,
        created_ms=given.wall_ms,
        partitioning=command.partitioning,
        bounds_json=compact(json.loads(command.bounds_json)),
        request_fingerprint=request.fingerprint if request.recorded else 0,
        by_topic=request.position is not None,
        nodes=tuple(sorted(set(command.nodes))),
    )
    changes = [Change("IndexProposed", index.key, index)]
    if state.bucket(command.bucket) is None:
        vbuckets = given.vbuckets.get(command.bucket, VBUCKETS)
        bucket = Bucket(command.bucket, vbuckets)
        changes.append(Change("BucketCreated", bucket.key, bucket))
    return Accepted(tuple(changes), {}, waits_for=(index.id,))


def _already_there(
    state: StateContext, existing: Versioned, command: CreateIndex, request: Request
) -> Decision:
    """Answer a CREATE whose name is taken."""
    index = existing.entity
    assert isinstance(index, Index)
    if index.state == INIT:
        return Parked(index.id)
    if command.if_not_exists:
        answer = {"index": describe_index(state.whole(index)), "existed": True}
        return Unchanged(Outcome("ok", answer=answer, cas=existing.cas))
    if other := clash(request, existing):
        return Unchanged(other)
    return Unchanged(alter.exists(index, existing.cas))


def _invalid_create(command: CreateIndex) -> str:
    """Say what is wrong with the definition, or return an empty text."""
    for what, name in (("index", command.name), ("bucket", command.bucket)):
        if not is_name(name):
            return f"{what} name {name[:40]!r}: {NAME_RULE}"
    if command.primary == bool(command.expressions):
        return "a primary index has no expressions, any other has at least one"
    if len(command.expressions) > EXPRESSIONS_MAX:
        return f"at most {EXPRESSIONS_MAX} expressions"
    texts = (*command.expressions, *((command.where,) if command.where is not None else ()))
    if any(not text.strip() or len(text) > EXPRESSION_LENGTH_MAX for text in texts):
        return f"an expression has 1 to {EXPRESSION_LENGTH_MAX} characters"
    if command.using != "gsi":
        return f"USING {command.using[:40]!r}: only gsi is known"
    if problem := _invalid_partitioning(command):
        return problem
    if not 1 <= _slices(command) <= SLICES_MAX:
        return f"slices range from 1 to {SLICES_MAX}"
    if not 0 <= command.replicas <= REPLICAS_MAX:
        return f"replicas range from 0 to {REPLICAS_MAX}"
    return ""


def _invalid_partitioning(command: CreateIndex) -> str:
    """Say what is wrong with how the keys are spread, or return an empty text."""
    if command.partitioning not in PARTITIONINGS:
        return f"partitioning {command.partitioning[:40]!r}: {' or '.join(PARTITIONINGS)}"
    order = PRIMARY if command.primary else order_of_expressions(command.expressions)
    try:
        bounds = len(read_bounds(command.bounds_json, order))
    except ValueError as error:
        return str(error)
    if (command.partitioning == RANGE) != bool(bounds):
        return "range partitioning needs bounds, and nothing else has them"
    if bounds and _slices(command) % (bounds + 1):
        return (
            f"{bounds} bounds make {bounds + 1} partitions, each with as many slices as the others:"
            f" {command.slices} slices cannot be divided so"
        )
    return ""


def _slices(command: CreateIndex) -> int:
    """Return the number of slices: where 0 is given, as many as the bounds make."""
    if command.slices == 0 and command.partitioning == RANGE:
        return len(json.loads(command.bounds_json)) + 1
    return command.slices


def _drop_index(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, DropIndex)
    held = _dropped(state, command)
    if held is None or (isinstance(held.entity, Index) and held.entity.state == DROPPING):
        if command.if_exists:
            return Unchanged(Outcome("ok", answer={"index": None, "existed": False}))
        which = str(command.index_id) if command.index_id else f"{command.bucket}.{command.name}"
        return Unchanged(refused("index_not_found", f"there is no index {which[:300]}"))
    index = held.entity
    assert isinstance(index, Index)
    if index.state == INIT and not index.is_replacement:
        return Parked(index.id)
    if other := clash(request, held):
        return Unchanged(other)
    dropping = moved(index, DROPPING, None)
    answer = {"index": describe_index(state.whole(dropping))}
    changes = [Change("IndexDropped", index.key, dropping)]
    second = index if index.is_replacement else second_of(state, index)
    ends: tuple[EndedAlter, ...] = ()
    if second is not None:
        reason = f"index {index.id} was dropped"
        ends = (alter.ended(second, reason),)
        if second is not index:
            changes.append(alter.given_up(second, reason))
    return replace(accepted(request, tuple(changes), answer), ends=ends)


def second_of(state: StateContext, index: Index) -> Index | None:
    """Return the index that is to take the place of this one, if there is one."""
    held = state.replacement_of(index.id)
    second = held.entity if held else None
    return second if isinstance(second, Index) else None


def _alter_index(state: StateContext, request: Request, given: Circumstances) -> Decision:
    return alter.decide_alter(state, request, given, _invalid_create)


def _dropped(state: StateContext, command: DropIndex) -> Versioned | None:
    if command.index_id:
        return state.named_by_id(command.index_id)
    return state.index_named(command.bucket, command.name)


def _mark_ready(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, MarkReady)
    index = index_in(state, command.index_id, INIT)
    if index is None:
        return Unchanged(Outcome("ok"))
    ready = replace(moved(index, READY, None), shards=command.shards)
    if not index.is_replacement:
        change = Change("IndexReady", index.key, ready)
        return _ended(index, (change,), Outcome("ok", answer={"index": describe_index(ready)}))
    if not alter.takes_place(state, ready):
        return Accepted((Change("IndexReady", index.key, ready),), {})
    return _switched(state, "IndexReady", ready)


def _switched(state: StateContext, event: str, second: Index) -> Decision:
    """Let an index take the place of another: that ends the ALTER that has made it."""
    changes = alter.switched(state, event, second)
    after = changes[0].entity
    assert isinstance(after, Index)
    return _ended(second, changes, Outcome("ok", answer={"index": describe_index(after)}))


def _mark_built(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Let an index take scans; if it is to replace another, that one goes."""
    decision = BUILD_DECIDERS[MarkBuilt](state, request, given)
    built = decision.changes[0].entity if isinstance(decision, Accepted) else None
    if isinstance(built, Index) and built.is_replacement:
        return _switched(state, "IndexBuilt", built)
    return decision


def _mark_failed(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """End a build; an index that was to replace another goes, and the other one stays."""
    decision = BUILD_DECIDERS[MarkFailed](state, request, given)
    failed = decision.changes[0].entity if isinstance(decision, Accepted) else None
    if isinstance(failed, Index) and failed.is_replacement:
        held = state.index_by_id(failed.id)
        assert held is not None
        assert isinstance(held.entity, Index)
        reason = failed.reason or ""
        change = alter.given_up(held.entity, reason)
        return _ended(held.entity, (change,), refused("index_failed", reason))
    return decision


def _move_shards(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, MoveShards)
    held = state.index_by_id(command.index_id)
    index = held.entity if held else None
    if not isinstance(index, Index) or index.state in (INIT, DROPPING):
        return Unchanged(Outcome("ok"))
    hosts = index.hosts
    shards = {s.indexer: s for s in (*index.shards, *command.shards) if s.indexer in hosts}
    after = replace(index, shards=tuple(shards[i] for i in sorted(shards)))
    if after == index:
        return Unchanged(Outcome("ok"))
    is_needed = any(index.needed_on(s.indexer) for s in set(after.shards) - set(index.shards))
    if is_needed and index.state in (PENDING, BACKFILL, MAINTENANCE):
        after = begin_build(after, given)  # What the other storage held is lost.
    return Accepted((Change("ShardsMoved", index.key, after),), {})


def _undo_index(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, UndoIndex)
    index = index_in(state, command.index_id, INIT)
    if index is None:
        return Unchanged(Outcome("ok"))
    gone = moved(index, DROPPING, command.reason)
    change = Change("IndexUndone", index.key, gone)
    made_by = given.remembered
    if made_by is not None and made_by.outcome.answer == TRANSACTION:
        return Accepted((change,), {}, record=with_error(made_by, index, command.reason))
    return _ended(index, (change,), refused("indexer_refused", command.reason))


def _ended(index: Index, changes: tuple[Change, ...], outcome: Outcome) -> Decision:
    """End the request that made an index, and remember what became of it, with what ended it."""
    return Accepted(changes, outcome.answer, record=alter.outcome_of(index, outcome))


def _forget_index(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, ForgetIndex)
    index = index_in(state, command.index_id, DROPPING)
    if index is None:
        return Unchanged(Outcome("ok"))
    return Accepted((Change("IndexForgotten", index.key, None),), {})


# -- settings ------------------------------------------------------------------------------------


def _put_setting(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, PutSetting)
    if not SETTING_NAME.fullmatch(command.name):
        return Unchanged(
            refused("invalid_request", "a key has 1 to 256 letters, digits, _ . - / :")
        )
    if len(command.value_json.encode()) > SETTING_BYTES_MAX:
        return Unchanged(
            refused(
                "value_too_large",
                f"a value has at most {SETTING_BYTES_MAX} bytes of JSON",
                limit=SETTING_BYTES_MAX,
            )
        )
    try:
        value = json_text.parse(command.value_json)
    except ValueError as error:
        return Unchanged(refused("invalid_request", f"the value is no JSON: {error}"))
    if problem := _invalid_setting(command):
        return Unchanged(refused("invalid_request", problem, key=command.name))
    held = state.setting(command.name)
    if other := clash(request, held):
        return Unchanged(other)
    setting = Setting(command.name, command.value_json)
    answer = {"key": command.name, "value": value}
    change = Change("SettingWritten", setting.key, setting)
    return accepted(request, (change,), answer)


def _invalid_setting(command: PutSetting) -> str:
    """Say what is wrong with a value that the cluster itself reads, or return an empty text."""
    try:
        if timestamp_settings.is_setting(command.name):
            timestamp_settings.parse(command.value_json)
        elif parse := rebalance_settings.PARSERS.get(command.name):
            parse(command.value_json)
    except ValueError as error:
        return f"{command.name}: {str(error)[:PROBLEM_LENGTH_MAX]}"
    return ""


def _delete_setting(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, DeleteSetting)
    held = state.setting(command.name)
    if other := clash(request, held):
        return Unchanged(other)
    if held is None:
        return Unchanged(refused("config_not_found", f"there is no setting {command.name!r}"))
    change = Change("SettingDeleted", setting_key(command.name), None)
    return accepted(request, (change,), {"key": command.name, "value": None})


# -- upkeep --------------------------------------------------------------------------------------


def _rewrite_entities(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, RewriteEntities)
    changes = tuple(
        Change("EntityRewritten", key, held.entity if (held := state.get(key)) else None)
        for key in command.keys
    )
    return Accepted(changes, {}) if changes else Unchanged(Outcome("ok"))


def _skip_record(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, SkipRecord)
    return Unchanged(refused("invalid_request", command.reason))


def _transact(state: StateContext, request: Request, given: Circumstances) -> Decision:
    return decide_transaction(state, request, given, DECIDERS)


DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    CreateIndex: _create_index,
    DropIndex: _drop_index,
    AlterIndex: _alter_index,
    PutSetting: _put_setting,
    DeleteSetting: _delete_setting,
    MarkReady: _mark_ready,
    MoveShards: _move_shards,
    UndoIndex: _undo_index,
    ForgetIndex: _forget_index,
    RewriteEntities: _rewrite_entities,
    SkipRecord: _skip_record,
    Transact: _transact,
    **BUILD_DECIDERS,
    **ROLLBACK_DECIDERS,
    **REBALANCE_DECIDERS,
    **SUBSCRIPTION_DECIDERS,
    **BUCKET_DECIDERS,
    MarkBuilt: _mark_built,
    MarkFailed: _mark_failed,
}
