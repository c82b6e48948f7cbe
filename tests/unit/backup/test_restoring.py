"""What a restore writes: the changes that it makes itself, and the Authority of the new cluster."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise

import pytest
from confluent_kafka import KafkaException
from immutables import Map

from coordinator import codec
from coordinator.backup import restoring
from coordinator.backup.contents import Backup, Change, Manifest
from coordinator.backup.errors import BackupError
from coordinator.backup.restoring import (
    CAS_GAP,
    CAS_ROOM,
    Target,
    authority_of,
    own_changes,
    restore_backup,
)
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext, evolve
from coordinator.core.model.authority_state import (
    COMMIT,
    INITIAL,
    ROLLBACK,
    AuthorityState,
    TransactionStatus,
)
from coordinator.core.model.entities import Consumed, Entity, Setting
from coordinator.core.model.records import Mutation
from coordinator.core.model.types import CAS_MAX, Cas, Epoch, Offset, TxnId
from coordinator.kafka.delivery import UNKNOWN
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.topics import COMMIT as COMMIT_TOPIC
from coordinator.kafka.topics import HISTORY, SNAPSHOTS, STATECONTEXT

TARGET = Target(servers="127.0.0.1:1", cluster="c", roster=(4, 5), minimum=1, principal="ann")
EPOCH = Epoch(7)
HELD: tuple[Entity, ...] = (
    Setting("a", "1"),
    Consumed(1, 40),
    Setting("b", "2"),
    Consumed(0, 30),
    Consumed(2, 9),
)
BARE: tuple[Entity, ...] = (Setting("a", "1"),)


def a_state(*held: Entity) -> StateContext:
    return evolve(
        states.EMPTY,
        (
            (Mutation("Written", one.key, codec.encode(one), one), Cas(10 + number))
            for number, one in enumerate(held)
        ),
    )


def row(seq: int, status: str = COMMIT) -> TransactionStatus:
    return TransactionStatus(TxnId(EPOCH, seq), status, Cas(seq), (1, 2), "")


def a_backup(
    *held: Entity,
    log: tuple[TransactionStatus, ...] = (),
    forgotten_ms: int = 0,
    newest_ms: int = 0,
) -> Backup:
    state = a_state(*held)
    authority = AuthorityState(
        cluster_id="id",
        cas_base=1,
        roster=(1, 2, 3),
        minimum=2,
        log_capacity=3,
        request_window_ms=5,
        epoch=EPOCH,
        last_txn=TxnId(EPOCH, 20),
        last_cas=state.cas,
        digest=state.digest,
        log=Map({20 + number: one for number, one in enumerate(log)}),
        log_next=20 + len(log),
        outcomes_forgotten_ms=forgotten_ms,
    )
    manifest = Manifest(
        cluster="c",
        cluster_id="id",
        cas=state.cas,
        digest="",
        history_after=Cas(0),
        made_at_ms=1,
        version="1",
    )
    return Backup(
        manifest=manifest,
        authority=authority,
        base=states.EMPTY,
        state=state,
        changes=len(held),
        newest_ms=newest_ms,
        size=1,
    )


def restored(backup: Backup) -> AuthorityState:
    """Return the Authority that a backup is restored to, with the restore's own changes."""
    own = own_changes(backup, "ann")
    state = evolve(backup.state, ((event.mutation, event.cas) for event in own))
    txn = own[0].txn if own else None
    return authority_of(backup, TARGET, state=state, own=txn, cas_base=1, copies=())


def test_what_was_decided_of_ddl_is_forgotten_in_one_transaction_above_the_backup() -> None:
    backup = a_backup(*HELD)
    own = own_changes(backup, "ann")
    cas = [backup.state.cas, *(event.cas for event in own)]
    assert all(b == a + 1 for a, b in pairwise(cas)), "each change has a CAS of its own"
    assert [event.mutation.key for event in own] == ["consumed/0", "consumed/1", "consumed/2"]
    assert [(event.index, event.count) for event in own] == [(0, 3), (1, 3), (2, 3)]
    assert {event.mutation.principal for event in own} == {"ann"}
    after = evolve(backup.state, ((event.mutation, event.cas) for event in own))
    assert set(after.entities) == {"config/a", "config/b"}
    assert own_changes(a_backup(*BARE), "ann") == []


@pytest.mark.parametrize("held", [HELD, BARE], ids=["own changes", "none"])
def test_a_restore_is_in_an_epoch_that_no_master_of_before_had(held: tuple[Entity, ...]) -> None:
    """Or what such a master has left on its way would count in the new cluster."""
    backup = a_backup(*held)
    made = restored(backup)
    assert made.epoch > EPOCH
    for event in own_changes(backup, "ann"):
        assert event.txn == TxnId(made.epoch, 1)
    assert (made.master, dict(made.members), made.roster, made.minimum) == (0, {}, (4, 5), 1)


def test_the_authority_ends_where_the_state_does() -> None:
    backup = a_backup(*HELD)
    made = restored(backup)
    assert made.last_cas == backup.state.cas + 3
    left = [(key, backup.state.entities[key]) for key in ("config/a", "config/b")]
    assert made.digest == states.restore(made.last_cas, left).digest
    assert (made.last_txn, made.last_seq) == (TxnId(made.epoch, 1), 1)
    bare = restored(a_backup(*BARE))
    assert (bare.last_txn, bare.last_seq) == (backup.authority.last_txn, 0)


@pytest.mark.parametrize(("forgotten_ms", "newest_ms"), [(900, 400), (400, 900)])
def test_no_request_of_before_is_executed_a_second_time(forgotten_ms: int, newest_ms: int) -> None:
    """Neither one that was forgotten already, nor one whose outcome the backup does not have."""
    made = restored(a_backup(*BARE, forgotten_ms=forgotten_ms, newest_ms=newest_ms))
    assert made.outcomes_forgotten_ms == 900


def test_a_transaction_without_a_verdict_is_rolled_back_and_no_other() -> None:
    made = restored(a_backup(*BARE, log=(row(1), row(2, INITIAL))))
    assert [one.status for one in made.newest(9)] == [ROLLBACK, COMMIT]
    assert made.newest(1)[0].reason == restoring.EVENT
    assert made.open is None
    ended = (row(1, ROLLBACK), row(2))
    assert restored(a_backup(*BARE, log=ended)).newest(9) == ended[::-1]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_the_log_of_transactions_ends_with_the_restore_and_keeps_its_capacity(count: int) -> None:
    made = restored(a_backup(*HELD, log=tuple(row(n) for n in range(count))))
    assert len(made.log) == min(count + 1, 3)
    newest, *others = made.newest(9)
    assert newest.txn == TxnId(made.epoch, 1)
    assert (newest.status, newest.cas) == (COMMIT, made.last_cas)
    assert [one.txn.seq for one in others] == list(range(count))[::-1][:2]


def test_a_backup_above_which_there_is_no_room_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers that the restore leaves out, and those that the new cluster is to give."""
    monkeypatch.setattr(restoring, "OPEN_TIMEOUT_S", 0.01)
    highest = CAS_MAX - 2 * CAS_GAP - CAS_ROOM
    backup = a_backup(*BARE)

    def code_at(cas: int) -> str:
        at = replace(backup, state=backup.state._replace(cas=Cas(cas)))
        with pytest.raises((BackupError, KafkaRefusal)) as caught:
            restore_backup(io.BytesIO(), at, TARGET, lambda count: None)
        return caught.value.code

    assert code_at(highest + 1) == "cas_exhausted"
    assert code_at(highest) == "kafka_unavailable", "it asks the broker"


@pytest.mark.parametrize("name", [COMMIT_TOPIC, STATECONTEXT, HISTORY, SNAPSHOTS])
def test_a_cluster_of_which_anything_is_there_is_not_written_over(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    there = {TARGET.topic(name): [object()]}
    monkeypatch.setattr(restoring, "read_to_end", lambda _, topic, __: there.get(topic, []))
    with pytest.raises(BackupError) as refused:
        restoring.refuse_what_is_there(TARGET)
    assert refused.value.code == "not_empty"


def test_a_copy_of_which_nobody_knows_where_it_begins_is_no_copy() -> None:
    attempt = restoring._Restore(a_backup(*BARE), TARGET)
    attempt._copies[restoring.STATE_COPY] = Offset(3)
    attempt._flush()
    attempt._copies[restoring.BASE_COPY] = UNKNOWN
    with pytest.raises(KafkaException):
        attempt._flush()


@pytest.mark.parametrize("count", [0, 2])
def test_the_first_record_of_history_alone_says_what_it_follows(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether it is one of the backup, or the restore's own."""
    backup = a_backup(*HELD)
    changes = [Change(b"raw", event) for event in own_changes(backup, "ann")[:count]]
    sent: list[bool] = []
    attempt = restoring._Restore(backup, TARGET)
    attempt._copies[restoring.BASE_COPY] = Offset(3)
    monkeypatch.setattr(restoring, "read_changes", lambda _: changes)
    monkeypatch.setattr(attempt, "_send", lambda *_, headers: sent.append(bool(headers)))
    attempt._history(io.BytesIO(), lambda _: None)
    assert sent == [True] + [False] * (count + 2)
