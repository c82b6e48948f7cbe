"""What clients are told, against what the log says: each answer at the moment it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.core.consensus import effects as fx
from coordinator.core.model.commands import (
    OK,
    REFUSED,
    AlterIndex,
    BuildIndexes,
    CancelRebalance,
    CreateIndex,
    DeleteSetting,
    DropIndex,
    ExpireSubscription,
    PutSetting,
    Transact,
)
from coordinator.core.model.entities import Index
from tests.simulation.actors import EFFECTS, Client, Op
from tests.simulation.alters import is_as_asked, refused_about
from tests.simulation.histories import AHEAD, EXPIRED
from tests.simulation.kernel.violation import require
from tests.simulation.subscribers import TOPIC_EFFECTS
from tests.simulation.transactions import check_answer
from tests.simulation.truth import Version

if TYPE_CHECKING:
    from tests.simulation.judge import Judge
    from tests.simulation.machine import Machine

BUILD_EFFECT = "BuildRequested"


def replied(judge: Judge, machine: Machine, effect: fx.Reply, who: Client | None) -> None:
    require(who is not None, "one-answer-a-call", f"token {effect.token} twice")
    assert who is not None
    outcome = effect.outcome
    if effect.token != who._token:
        return
    if who.reading is not None:
        if outcome.status == OK:
            assert machine.node is not None
            who.reading.state = machine.node.state
            _check_reading(judge, who.reading.invoked_ms, who.reading.at_least, outcome.cas)
            if who.reading.linearizable:
                _check_fresh(judge, who.reading.invoked_ms, outcome.cas)
    elif who.op is not None and outcome.status == OK:
        _check_ok(judge, who.op, outcome)
    elif who.op is not None and outcome.status == REFUSED:
        _check_refused(judge, who.op, outcome)


def _check_reading(judge: Judge, invoked_ms: int, at_least: int, cas: int) -> None:
    known = cas == 0 or cas in judge.digests
    require(known and cas >= at_least, "reads-are-committed", f"read CAS {cas}")


def _check_fresh(judge: Judge, invoked_ms: int, cas: int) -> None:
    newest = max((c for at, c in judge.commits if at < invoked_ms), default=0)
    require(cas >= newest, "linearizable-reads", f"read CAS {cas}, {newest} stood before")


def _check_ok(judge: Judge, op: Op, outcome: Any) -> None:
    require(
        op.request.id not in judge.stale or judge.world.clocks_were_set,
        "an-expired-id-is-never-executed",
        op.request.id,
    )
    command = op.request.command
    if isinstance(command, Transact):
        check_answer(judge, op, outcome)
        return
    if outcome.answer.get("existed") in (True, False):
        return
    may_do_nothing = BuildIndexes | AlterIndex | ExpireSubscription | CancelRebalance
    if isinstance(command, may_do_nothing) and not outcome.txn:
        return
    done = judge.done.get(outcome.cas)
    name = "acknowledged-is-effective-once"
    require(done is not None, name, f"{op.request.id} at CAS {outcome.cas}: nothing there")
    assert done is not None
    entity = done.mutation.entity
    if isinstance(command, CreateIndex):
        right = (
            done.mutation.event == "IndexReady"
            and isinstance(entity, Index)
            and (entity.bucket, entity.name, entity.request)
            == (command.bucket, command.name, op.request.id)
        )
    elif isinstance(command, AlterIndex):
        right = is_as_asked(done.mutation, op.request)
    else:
        effects = (*EFFECTS, BUILD_EFFECT, *TOPIC_EFFECTS)
        right = done.mutation.request == op.request.id and done.mutation.event in effects
    require(right, name, f"{op.request.id} at CAS {outcome.cas}: {done.mutation}")
    require(str(done.txn) == outcome.txn, name, f"{op.request.id}: {done.txn}, {outcome.txn}")
    require(
        op.invoked_ms <= done.decided_ms <= judge.world.clock.now,
        "linearizable",
        f"{op.request.id} took effect at {done.decided_ms}, was asked at {op.invoked_ms}",
    )
    if op.request.expected_cas is not None and isinstance(command, PutSetting | DeleteSetting):
        before = _before(judge, done.mutation.key, outcome.cas)
        require(
            before == op.request.expected_cas,
            "compare-and-set",
            f"{op.request.id} replaced {before}, expected {op.request.expected_cas}",
        )


def _before(judge: Judge, key: str, cas: int) -> int:
    older = [v for v in judge.versions[key] if v.cas < cas]
    return older[-1].cas if older and older[-1].value is not None else 0


def _check_refused(judge: Judge, op: Op, outcome: Any) -> None:
    request_id = op.request.id
    if outcome.code in (EXPIRED, AHEAD) and op.tries > 1:
        return
    require(
        outcome.code in (EXPIRED, AHEAD)
        or request_id not in judge.stale
        or judge.world.clocks_were_set,
        "an-expired-id-is-refused-as-such",
        f"{request_id}: {outcome.code}",
    )
    judge.refused.add(request_id)
    for event, cas in judge.effects.get(request_id, ()):
        undone = event == "IndexProposed" and is_undone(judge, cas)
        require(undone, "refused-never-takes-effect", f"{request_id}: {event} at CAS {cas}")
    command = op.request.command
    key: Any = None
    wanted: int | None = None
    if isinstance(command, PutSetting | DeleteSetting):
        key = f"config/{command.name}"
        wanted = {"cas_mismatch": outcome.details.get("actual"), "config_not_found": 0}.get(
            outcome.code
        )
    elif isinstance(command, CreateIndex | DropIndex):
        key = (command.bucket, command.name)
        wanted = {"index_exists": int(outcome.details.get("id", 0)), "index_not_found": 0}.get(
            outcome.code
        )
    elif isinstance(command, AlterIndex):
        key, wanted = refused_about(command, outcome)
    if wanted is not None:
        require(
            was_at(judge, key, wanted, op.invoked_ms),
            "linearizable",
            f"{request_id} was refused by {outcome.code} of {key} at {wanted}, "
            f"which it never was since {op.invoked_ms}: {judge.versions.get(key)}",
        )


def is_undone(judge: Judge, cas: int) -> bool:
    """Tell whether the index that was proposed there never became ready."""
    index = judge.done[cas].mutation.entity
    assert isinstance(index, Index)
    return index.id not in judge.ready


def was_at(judge: Judge, key: Any, wanted: int, since_ms: int) -> bool:
    """Tell whether `key` was at `wanted` (0: absent) at some time from `since_ms` to now."""
    versions = [Version(-1, 0, None), *judge.versions.get(key, ())]
    for number, version in enumerate(versions):
        last = number + 1 == len(versions)
        until = judge.world.clock.now if last else versions[number + 1].since_ms
        if until < since_ms:
            continue
        if version.value is None:
            held = 0
        else:
            held = version.value if isinstance(version.value, int) else version.cas
        if held == wanted:
            return True
    return False


def indexer_differences(judge: Judge) -> str:
    """Say which indexer does not hold what the state says, in the storage that it says."""
    for indexer in judge.world.indexers:
        wanted = {
            v[2].id: (v[2].slices_on(indexer.number), v[2].shard_on(indexer.number))
            for v in judge.entities.values()
            if isinstance(v[2], Index) and indexer.number in v[2].hosts
        }
        held = {i: (h.slices, h.shard) for i, h in indexer.held.items()}
        if held != wanted:
            return f"indexer {indexer.number} holds {held}, should {wanted}"
    return ""
