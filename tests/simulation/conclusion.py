"""What must hold at the end, when everything is healed and quiet: all that is held agrees."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from coordinator.core.catalog import state as states
from coordinator.core.consensus.synchroniser import Synchroniser
from coordinator.core.model.commands import OK, REFUSED, AlterIndex, Request
from coordinator.core.model.entities import MAINTENANCE
from tests.simulation.histories import EXPIRED, passing, violation_of
from tests.simulation.kernel.violation import require
from tests.simulation.subscribers import conclude_subscriptions
from tests.simulation.truth import digest_of
from tests.simulation.watchers import Watcher

if TYPE_CHECKING:
    from tests.simulation.judge import Judge


def conclude(judge: Judge) -> None:
    """Everything is healed and quiet: compare what all of them hold."""
    _compare_nodes(judge)
    for actor in judge.world.actors:
        if isinstance(actor, Watcher):
            actor.conclude()
    if judge.world.board is not None:
        conclude_subscriptions(judge.world, judge.world.board)
    _compare_statuses(judge)
    if judge.replayed:
        _replay_history(judge)
    _synchronise(judge)
    _check_ddl(judge)
    differences = judge.indexer_differences()
    require(not differences, "indexers-agree", differences)
    _check_builds(judge)
    violation = violation_of(judge)
    require(not violation, "linearizable-history", violation)


def _check_builds(judge: Judge) -> None:
    """What takes scans was built in the storage that is there."""
    for indexer in judge.world.indexers:
        for index in indexer.indexes.values():
            held = indexer.held.get(index.id)
            if index.state != MAINTENANCE or held is None:
                continue
            require(
                (indexer.number, index.id, index.build, held.shard) in judge.built,
                "what-takes-scans-was-built",
                f"index {index.id} on indexer {indexer.number}, build {index.build}",
            )


def _compare_nodes(judge: Judge) -> None:
    whole = {key: (v[0], v[1]) for key, v in judge.entities.items()}
    for machine in judge.world.living:
        node = machine.node
        assert node is not None
        held = {key: (v.cas, v.value) for key, v in node.state.entities.items()}
        require(held == whole, "nodes-agree", f"node {machine.number}")
        plain = {key: (v.cas, v.value, None) for key, v in node.state.entities.items()}
        require(
            digest_of(plain) == node.state.digest == judge.truth.digest,
            "digest-recomputed",
            f"node {machine.number}",
        )
        require(
            {one.cas: one.value for one in node.outcomes.kept()} == judge.remembered,
            "outcomes-agree",
            f"node {machine.number} remembers {[one.cas for one in node.outcomes.kept()]}",
        )
        names = dict(node.state.names.items())
        require(names == judge.names, "names-agree", f"node {machine.number}")


def _compare_statuses(judge: Judge) -> None:
    """Each node's rolling log of transactions says what the log said first."""
    for machine in judge.world.living:
        assert machine.node is not None
        assert machine.node.authority is not None
        for row in machine.node.authority.log.values():
            require(
                judge.statuses.get(row.txn) == row.status,
                "statuses-agree",
                f"node {machine.number}: {row.txn} is {row.status}, "
                f"it was {judge.statuses.get(row.txn)}",
            )


def _replay_history(judge: Judge) -> None:
    entities: dict[str, tuple[int, bytes, Any]] = {}
    last = 0
    for stored in judge.world.broker["history"].read(0):
        event = stored.value
        if judge.statuses.get(event.txn) != "commit":
            continue
        last = event.cas
        entities.pop(event.mutation.key, None)
        if event.mutation.value is not None:
            entities[event.mutation.key] = (last, event.mutation.value, None)
    require(
        (last, digest_of(entities)) == (judge.truth.last_cas, judge.truth.digest),
        "history-replays",
        f"history gives CAS {last}, truth is {judge.truth.last_cas}",
    )


def _synchronise(judge: Judge) -> None:
    judge.world.broker.compact(0)
    machine = judge.world.living[0]
    events = machine._dated(judge.world.broker["statecontext"].read(0))
    synchroniser = Synchroniser(base_cas=judge.truth.last_cas, base_digest=judge.truth.digest)
    synchroniser.add_events(events, True)
    state = synchroniser.resolve()
    require(
        isinstance(state, states.StateContext)
        and (state.cas, state.digest) == (judge.truth.last_cas, judge.truth.digest),
        "compacted-state-suffices",
        f"{state}",
    )


def _check_ddl(judge: Judge) -> None:
    """Each command on the topic has one effect, and replies that agree with it."""
    replies: dict[str, list[Any]] = {}
    for stored in judge.world.broker["ddl-replies"].read(0):
        replies.setdefault(stored.value.request, []).append(stored.value)
    skipped = 0
    published = [s.value for partition in judge.world.broker.ddl for s in partition.read(0)]
    copies = Counter(request.id for request in published)
    for request in published:
        if not request.id:
            skipped += 1
            continue
        found = replies.get(request.id, [])
        require(bool(found), "ddl-is-answered", f"{request.id} has no reply")
        passed = (EXPIRED, *passing(copies[request.id]))
        lasting = [reply for reply in found if reply.error_code not in passed]
        same = {_said(judge, reply) for reply in lasting}
        require(len(same) <= 1, "ddl-replies-agree", f"{request.id}: {found}")
        _check_ddl_effect(judge, request, (lasting or found)[0])
    letters = [
        (s.value.partition, s.value.offset) for s in judge.world.broker["dead-letter"].read(0)
    ]
    require(len(letters) == len(set(letters)) == skipped, "one-dead-letter-each", f"{letters}")


def _said(judge: Judge, reply: Any) -> tuple[Any, ...]:
    """Return what every repeat is told alike; an index is shown as it is by then.

    Of what changed nothing, a repeat names the transaction that recorded it.
    """
    answer = json.loads(reply.answer_json)
    shown = answer.get("indexes") or [answer.get("index") or {}]
    ids = tuple(index.get("id") for index in shown)
    if "succeeded" in answer:
        # The CAS of an index that was created is the one that it has by then.
        keys = tuple(result["key"] for result in answer["results"])
        return reply.status, reply.txn, answer["succeeded"], keys
    txn = reply.txn if judge.effects.get(reply.request) else ""
    return reply.status, reply.error_code, reply.cas, txn, answer.get("existed"), ids


def _check_ddl_effect(judge: Judge, request: Request, reply: Any) -> None:
    request_id = request.id
    effects = judge.effects.get(request_id, [])
    if isinstance(request.command, AlterIndex) and reply.status == OK and not effects:
        return
    if request_id in judge.transacts and reply.error_code == EXPIRED:
        return
    if reply.status == OK and request_id in judge.transacts:
        told = [result["key"] for result in json.loads(reply.answer_json)["results"]]
        done = [judge.done[cas].mutation.key for _, cas in effects]
        require(told == done, "ddl-takes-effect-once", f"{request_id}: {done}, {reply}")
    elif reply.status == OK and '"existed"' not in reply.answer_json:
        require(len(effects) == 1, "ddl-takes-effect-once", f"{request_id}: {effects}")
        require(reply.cas in judge.done, "ddl-takes-effect-once", f"{request_id}: {reply}")
    elif reply.status == REFUSED:
        lasting = [e for e in effects if e[0] != "IndexProposed" or not judge.is_undone(e[1])]
        require(not lasting, "refused-never-takes-effect", f"{request_id}: {effects}")
