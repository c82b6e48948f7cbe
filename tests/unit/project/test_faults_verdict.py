"""The checks behind the fault tests: each accepts a right history, and sees a forged one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator import codec
from coordinator.core.catalog import state as states
from coordinator.core.consensus import authority as authorities
from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.entities import Index, Setting, Shard, Slice
from coordinator.core.model.records import (
    ClusterFormed,
    DeadLetter,
    Event,
    MasterClaimed,
    Mutation,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.types import TxnId
from tests.faults import cluster
from tests.faults.load import Ack, Record, Seen, Sent, name_of, value_named
from tests.faults.nemesis import BROKER, KINDS, MASTER, OTHER, Strike, plan
from tests.faults.rounds import recoveries
from tests.faults.verdict import CHECKS, Evidence, replayed, violations
from tests.support.indexes import make_index
from tests.support.linearizability import UNKNOWN, Ok, Operation, Refused

EAST, KEY = ("bucket", "east"), ("setting", "k")


def an_event(
    name: str, key: str, entity: Any, txn: TxnId, cas: int, request: str = "", place: Any = (0, 1)
) -> Event:
    value = None if entity is None else codec.encode(entity)
    return Event(Mutation(name, key, value, entity, request), txn, *place, cas)


def an_index(state: str) -> Index:
    return make_index(
        7,
        name="n",
        bucket="east",
        state=state,
        slices=(Slice(0, 1, (2,)),),
        request="r2",
        shards=() if state == "init" else (Shard(1, 5), Shard(2, 6)),
    )


T1, T2, T3 = TxnId(1, 1), TxnId(1, 2), TxnId(2, 1)
WRITTEN = an_event("SettingWritten", "config/k", Setting("k", '"a"'), T1, 10, "r1")
PROPOSED = an_event("IndexProposed", "index/7", an_index("init"), T2, 12, "r2")
READY = an_event("IndexReady", "index/7", an_index("ready"), T3, 14)
HISTORY = [WRITTEN, PROPOSED, READY]

PUT = Sent(Operation("s0", KEY, "put", "a", Ok(cas=10), 1.0, 2.0), "r1", 10, "1-1")
READ = Sent(Operation("s1", KEY, "read", None, Ok("a", 10), 3.0, 4.0))
MISMATCH = Sent(
    Operation("s1", KEY, "put", "b", Refused("cas_mismatch", 10), 5.0, 6.0, 9),
    "r9",
    code="cas_mismatch",
)
CREATE = Sent(Operation("d0", EAST, "create", "n", Ok(7), 1.0, 8.0), "r2", 14, "2-1")
LIST = Sent(Operation("d1", EAST, "list", None, Ok(frozenset({("n", 7)})), 9.0, 9.5))


def the_commit_topic() -> list[tuple[int, Any]]:
    """Return the log of two mastership with the three transactions of `HISTORY`."""
    log: list[tuple[int, Any]] = []
    state: AuthorityState | None = None

    def append(record: Any) -> None:
        nonlocal state
        state, void = authorities.fold(state, len(log), record)
        assert not void, void
        log.append((len(log), record))

    def claim(epoch: int, node: int) -> None:
        assert state is not None
        append(
            MasterClaimed(
                epoch=epoch,
                node=node,
                incarnation=node,
                address="",
                cas=state.last_cas,
                digest=state.digest,
                snapshot=state,
                at_ms=0,
            )
        )

    append(
        ClusterFormed(
            cluster_id="c",
            cas_base=1,
            roster=(1, 2, 3),
            minimum=2,
            log_capacity=100,
            request_window_ms=1_000,
            at_ms=0,
        )
    )
    claim(1, 1)
    held = states.EMPTY
    for event in HISTORY:
        assert state is not None
        if event.txn.epoch > state.epoch:
            claim(2, 2)
        assert state is not None
        append(
            TransactionProposed(event.txn, state.last_cas, state.digest, (1, 2), (event.mutation,))
        )
        held = states.evolve(held, [(event.mutation, event.cas)])
        offset = log[-1][0]
        append(
            TransactionCommitted(
                txn=event.txn,
                proposal_offset=offset,
                accepted=(1, 2),
                cas=(event.cas,),
                state_digest=held.digest,
                at_ms=0,
            )
        )
    return log


def an_indexer(number: int, **more: Any) -> dict[str, Any]:
    row = {"id": number, "alive": True, "allocated": 1, "handshake": {"agreed": True}}
    return {**row, **more}


def right() -> Evidence:
    """Return what a right cluster leaves behind."""
    truth = replayed(HISTORY)
    seen = {Seen(1, *truth), Seen(2, *replayed(HISTORY[:1])), Seen(3, 0, digests.text(0))}
    return Evidence(
        Record([PUT, READ, MISMATCH, CREATE, LIST], seen=seen),
        history=list(HISTORY),
        statecontext=[WRITTEN, READY],
        commit=the_commit_topic(),
        nodes=dict.fromkeys((1, 2, 3), truth),
        disks=dict.fromkeys((1, 2, 3), truth),
        indexes=[
            {
                "id": "7",
                "state": "ready",
                "topology": {
                    "slices": [{"slice": 0, "master": 1, "replicas": [2]}],
                    "shards": {"1": 5, "2": 6},
                },
            }
        ],
        indexers=[an_indexer(1), an_indexer(2), an_indexer(3, allocated=0)],
    )


def test_a_right_history_passes_every_check() -> None:
    assert violations(right()) == []


Forge = Callable[[Evidence], None]
FORGED: dict[str, tuple[str, Forge]] = {}


def forged(check: str) -> Callable[[Forge], Forge]:
    """Note a forgery that `check` must see."""

    def note(forge: Forge) -> Forge:
        FORGED[forge.__name__] = (check, forge)
        return forge

    return note


def _replace(evidence: Evidence, old: Sent, **changes: Any) -> None:
    """Put another version of an operation into the record; `result` is the operation's."""
    sent = evidence.record.sent
    if "result" in changes:
        operation = replace(old.operation, result=changes.pop("result"))
        changes["operation"] = operation
    sent[sent.index(old)] = replace(old, **changes)


@forged("linearizable")
def a_stale_read(evidence: Evidence) -> None:
    _replace(evidence, READ, result=Ok(None, 0))


@forged("linearizable")
def a_list_without_what_was_created(evidence: Evidence) -> None:
    _replace(evidence, LIST, result=Ok(frozenset()))


@forged("linearizable")
def a_refusal_that_names_another_version(evidence: Evidence) -> None:
    _replace(evidence, MISMATCH, result=Refused("cas_mismatch", 8))


@forged("linearizable")
def an_unknown_write_that_is_in_the_log_is_not_read(evidence: Evidence) -> None:
    unknown = replace(PUT.operation, result=UNKNOWN, returned=None)
    _replace(evidence, PUT, operation=unknown, cas=0, txn="")
    mismatch = replace(MISMATCH.operation, result=Refused("cas_mismatch", 0))
    _replace(evidence, MISMATCH, operation=mismatch)


@forged("linearizable")
def an_unknown_write_that_is_not_in_the_log_is_read(evidence: Evidence) -> None:
    unknown = replace(PUT.operation, result=UNKNOWN, returned=None)
    _replace(evidence, PUT, operation=unknown, request="r7", cas=0, txn="")


@forged("effective")
def an_acknowledged_write_is_lost(evidence: Evidence) -> None:
    evidence.history = [PROPOSED, READY]


@forged("effective")
def an_acknowledged_write_has_another_cas(evidence: Evidence) -> None:
    _replace(evidence, PUT, cas=11)


@forged("effective")
def an_acknowledged_write_is_of_another_transaction(evidence: Evidence) -> None:
    _replace(evidence, PUT, txn="1-9")


@forged("effective")
def a_request_is_executed_twice(evidence: Evidence) -> None:
    again = an_event("SettingWritten", "config/k", Setting("k", '"a"'), TxnId(2, 2), 16, "r1")
    evidence.history = [*HISTORY, again]


@forged("effective")
def an_unknown_request_is_executed_twice(evidence: Evidence) -> None:
    operation = replace(PUT.operation, result=UNKNOWN, returned=None)
    _replace(evidence, PUT, operation=operation, cas=0, txn="")
    a_request_is_executed_twice(evidence)


@forged("effective")
def a_refused_write_took_effect(evidence: Evidence) -> None:
    late = an_event("SettingWritten", "config/k", Setting("k", '"b"'), TxnId(2, 2), 16, "r9")
    evidence.history = [*HISTORY, late]


@forged("effective")
def an_index_was_acknowledged_and_undone(evidence: Evidence) -> None:
    undone = an_event("IndexUndone", "index/7", an_index("dropping"), T3, 14)
    evidence.history = [WRITTEN, PROPOSED, undone]


@forged("effective")
def an_index_was_acknowledged_as_another(evidence: Evidence) -> None:
    _replace(evidence, CREATE, result=Ok(8))


@forged("expected_answers")
def a_client_heard_nonsense(evidence: Evidence) -> None:
    operation = replace(PUT.operation, result=Refused("teapot"))
    evidence.record.add(replace(PUT, operation=operation, code="teapot"))


@forged("expected_answers")
def a_command_has_no_reply(evidence: Evidence) -> None:
    evidence.unanswered = ["r8"]


@forged("history_ascends")
def history_goes_back(evidence: Evidence) -> None:
    evidence.history = [PROPOSED, WRITTEN, READY]


@forged("history_ascends")
def half_a_transaction(evidence: Evidence) -> None:
    evidence.history = [replace(WRITTEN, count=2), PROPOSED, READY]


@forged("history_ascends")
def an_index_comes_from_nothing(evidence: Evidence) -> None:
    evidence.history = [WRITTEN, READY]


@forged("one_state")
def a_node_differs(evidence: Evidence) -> None:
    evidence.nodes = {**evidence.nodes, 2: replayed(HISTORY[:2])}


@forged("one_state")
def a_disk_differs(evidence: Evidence) -> None:
    evidence.disks = {**evidence.disks, 2: (14, "0" * 32)}


@forged("one_state")
def the_compacted_topic_lacks_a_setting(evidence: Evidence) -> None:
    evidence.statecontext = [READY]


@forged("reads_are_of_the_log")
def a_node_showed_what_was_never_committed(evidence: Evidence) -> None:
    evidence.record.seen.add(Seen(3, 12, "f" * 32))


@forged("reads_are_of_the_log")
def a_node_showed_half_a_transaction(evidence: Evidence) -> None:
    evidence.history = [
        replace(WRITTEN, count=2),
        replace(PROPOSED, txn=T1, index=1, count=2),
        READY,
    ]
    evidence.record.seen.add(Seen(3, *replayed(HISTORY[:1])))


@forged("commit_topic")
def a_transaction_is_committed_and_rolled_back(evidence: Evidence) -> None:
    log = list(evidence.commit)
    opened = next(o for o, r in log if isinstance(r, TransactionProposed) and r.txn == T3)
    end = next(
        n for n, (_, r) in enumerate(log) if isinstance(r, TransactionCommitted) and r.txn == T3
    )
    log.insert(end, (opened, TransactionRolledBack(T3, opened, "forged", 0)))
    evidence.commit = log


@forged("commit_topic")
def a_deposed_master_commits(evidence: Evidence) -> None:
    log = list(evidence.commit)
    stale = next(pair for pair in log if isinstance(pair[1], TransactionCommitted))
    evidence.commit = [*log, (len(log), stale[1])]


@forged("commit_topic")
def a_transaction_stays_open(evidence: Evidence) -> None:
    evidence.commit = list(evidence.commit)[:-1]


@forged("commit_topic")
def history_has_what_was_never_committed(evidence: Evidence) -> None:
    more = an_event("SettingWritten", "config/j", Setting("j", "1"), TxnId(2, 2), 16)
    evidence.history = [*HISTORY, more]


@forged("indexers_agree")
def a_slice_is_missing(evidence: Evidence) -> None:
    evidence.indexers = [an_indexer(1), an_indexer(2, allocated=0), an_indexer(3, allocated=0)]


@forged("indexers_agree")
def an_orphan_is_left(evidence: Evidence) -> None:
    evidence.indexers = [an_indexer(1), an_indexer(2), an_indexer(3)]


@forged("indexers_agree")
def a_handshake_differs(evidence: Evidence) -> None:
    evidence.indexers = [
        an_indexer(1, handshake={"agreed": False, "moved": 1}),
        an_indexer(2),
        an_indexer(3, allocated=0),
    ]


@forged("indexers_agree")
def no_shard_was_committed(evidence: Evidence) -> None:
    index: Any = evidence.indexes[0]
    evidence.indexes = [{**index, "topology": {**index["topology"], "shards": {"1": 5}}}]


@forged("no_dead_letters")
def a_dead_letter(evidence: Evidence) -> None:
    evidence.dead_letters = [DeadLetter("acks", 0, 5, "bad_body", b"", 0)]


@forged("processes")
def a_process_gave_up(evidence: Evidence) -> None:
    evidence.exits = ["node-1 ended by itself with 78"]


@forged("processes")
def damage_went_unnoticed(evidence: Evidence) -> None:
    evidence.undetected = ["node 1"]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_history_is_seen(name: str) -> None:
    check, forge = FORGED[name]
    evidence = right()
    forge(evidence)
    assert [text for text in violations(evidence) if text.startswith(f"{check}: ")]


def test_every_check_is_proved() -> None:
    assert {check for check, _ in FORGED.values()} == {one.__name__ for one in CHECKS}


def test_what_a_machine_cannot_give_is_missed_unless_it_is_waived(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cluster, "not_here", lambda: {cluster.NETWORK: "no namespaces"})
    monkeypatch.setenv("CHAOS_WAIVE", "disk")
    with pytest.raises(AssertionError, match="CHAOS_WAIVE=network"):
        cluster.require_means()
    monkeypatch.setenv("CHAOS_WAIVE", "disk,network")
    cluster.require_means()
    assert "WAIVED: faults of the network" in capsys.readouterr().out


def test_a_value_tells_its_writer_unless_it_is_torn() -> None:
    value = value_named("s0.17", 1_000)
    assert name_of(value) == "s0.17"
    assert name_of(value[:-1] + "x") != "s0.17"
    assert name_of(17) == "17"


def test_every_kind_comes_before_any_comes_again() -> None:
    import random

    steps = plan(random.Random(3), list(KINDS), len(KINDS))
    assert sorted(step[0] for step in steps) == sorted(KINDS)


def test_recovery_counts_from_the_strike_to_the_next_master_s_first_answer() -> None:
    def a_strike(kind: str, on: str, at: float, epoch: int = 0) -> Strike:
        return Strike(kind, "x", at, lambda: None, on, epoch)

    acks = [Ack(0.9, 4), Ack(1.05, 4), Ack(1.5, 4), Ack(4.0, 5), Ack(7.0, 5)]
    strikes = [
        a_strike("kill-master", MASTER, 1.0, 4),
        a_strike("kill-broker", BROKER, 1.0, 4),
        a_strike("kill-replica", OTHER, 1.0),
        a_strike("kill-broker", BROKER, 6.0, 5),
    ]
    assert recoveries(strikes, acks) == {"kill-master": [3.0], "kill-broker": [0.5, 1.0]}
