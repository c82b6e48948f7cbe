"""Rules of the Authority's fold, each by a record that breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map

from coordinator.core.consensus.authority import (
    SNAPSHOTS_MAX,
    fold,
    is_alarming,
    why_not_leave,
)
from coordinator.core.model.authority_state import AuthorityState, Member, OpenTransaction
from coordinator.core.model.records import (
    ClusterReformed,
    IndexerRegistered,
    MasterClaimed,
    MasterResigned,
    MemberAdmitted,
    MemberLeft,
    Mutation,
    ProjectorRegistered,
    ServiceRemoved,
    SnapshotKept,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.types import TxnId

MEMBERS = Map({n: Member(n, n * 10, f"n{n}") for n in (1, 2, 3)})
STATE = AuthorityState(
    cluster_id="c", cas_base=1, roster=(1, 2, 3), minimum=2, log_capacity=10, request_window_ms=5,
    epoch=4, master=1, incarnation=10, address="n1", members=MEMBERS, last_seq=7,
    last_txn=TxnId(4, 7), last_cas=50, digest=9, acceptors=(1, 2),
)  # fmt: skip
OPEN = replace(STATE, open=OpenTransaction(TxnId(4, 8), 99, (1, 2, 3), 50, 9, 1))


def folded(state: AuthorityState, record: Any) -> AuthorityState:
    after = fold(state, 100, record)
    assert not after.void
    assert after.state is not None
    return after.state


def left(node: int = 3, epoch: int = 4) -> MemberLeft:
    return MemberLeft(epoch, node, node * 10, "me", 0)


def resigned(**more: Any) -> MasterResigned:
    return replace(MasterResigned(4, 1, 2, "upgrade", 0), **more)


def reformed(**more: Any) -> ClusterReformed:
    return replace(
        ClusterReformed(
            epoch=4,
            node=1,
            cas=50,
            digest=9,
            minimum=1,
            roster=(1,),
            principal="me",
            reason="two are lost",
            at_ms=0,
        ),
        **more,
    )


def claim(node: int, snapshot: AuthorityState = STATE) -> MasterClaimed:
    return MasterClaimed(
        epoch=5,
        node=node,
        incarnation=node * 10,
        address=f"n{node}",
        cas=50,
        digest=9,
        snapshot=snapshot,
        at_ms=0,
    )


def test_a_node_that_left_is_nowhere_any_more() -> None:
    after = folded(STATE, left(2))
    assert (after.roster, after.active, after.acceptors) == ((1, 3), (1, 3), (1,))
    assert fold(after, 101, claim(2)).void


@pytest.mark.parametrize(
    ("state", "record"),
    [
        (STATE, left(1)),
        (STATE, left(9)),
        (STATE, left(epoch=3)),
        (OPEN, left()),
        (replace(STATE, minimum=3), left()),
    ],
    ids=["master", "stranger", "epoch", "open", "too few"],
)
def test_who_may_not_leave(state: AuthorityState, record: MemberLeft) -> None:
    assert fold(state, 100, record).void
    assert fold(state, 100, record).state == state


def test_after_a_resignation_there_is_no_master_and_no_proposal() -> None:
    after = folded(STATE, resigned())
    assert (after.master, after.epoch, after.successor) == (0, 4, 2)
    proposal = TransactionProposed(TxnId(4, 8), 50, 9, (1, 2, 3), ())
    assert not fold(STATE, 100, proposal).void
    assert fold(after, 101, proposal).void
    assert fold(after, 101, resigned()).void
    claimed = folded(after, claim(2))
    assert (claimed.master, claimed.epoch, claimed.successor) == (2, 5, 0)


def test_only_the_master_of_the_epoch_resigns() -> None:
    assert fold(STATE, 100, resigned(node=2)).void
    assert fold(STATE, 100, resigned(epoch=3)).void


def test_a_reform_by_the_master_lowers_minimum_and_roster() -> None:
    after = folded(STATE, reformed())
    assert (after.minimum, after.roster, after.active, after.acceptors) == (1, (1,), (1,), (1,))


def test_a_reform_ahead_of_a_claim_makes_a_complete_node_eligible() -> None:
    after = folded(STATE, reformed(epoch=5, node=3, roster=(3,)))
    assert after.eligible == (3,)
    assert fold(STATE, 100, claim(3)).void
    assert folded(after, claim(3)).master == 3


@pytest.mark.parametrize(
    "more",
    [
        {"node": 2},
        {"epoch": 3},
        {"epoch": 6},
        {"cas": 49},
        {"digest": 8},
        {"roster": (2, 3)},
        {"roster": (1, 9)},
        {"minimum": 0},
        {"minimum": 2},
    ],
    ids=str,
)
def test_a_reform_that_does_not_fit_is_void(more: dict[str, Any]) -> None:
    assert fold(STATE, 100, reformed(**more)).void


def test_no_reform_of_the_same_epoch_inside_a_transaction() -> None:
    assert fold(OPEN, 100, reformed()).void


def test_projectors_have_ids_from_0_to_250() -> None:
    record = ProjectorRegistered(4, 250, 1, "x", 0)
    assert folded(STATE, record).projectors[250].address == "x"
    assert fold(STATE, 100, replace(record, projector=251)).void
    assert fold(STATE, 100, replace(record, epoch=3)).void


def test_a_service_that_is_removed_is_forgotten_until_it_registers_again() -> None:
    projector, indexer = (
        ProjectorRegistered(4, 2, 1, "x", 0),
        IndexerRegistered(4, 2, 1, "y", "", 0),
    )
    both = folded(folded(STATE, projector), indexer)
    without = folded(both, ServiceRemoved(4, "indexer", 2, "who", 0))
    assert (set(without.indexers), set(without.projectors)) == (set(), {2})
    assert folded(without, indexer) == both
    assert folded(without, ServiceRemoved(4, "indexer", 2, "who", 0)) == without
    assert set(folded(both, ServiceRemoved(4, "projector", 2, "who", 0)).projectors) == set()
    assert fold(both, 100, ServiceRemoved(3, "indexer", 2, "who", 0)).void
    assert fold(both, 100, ServiceRemoved(4, "node", 2, "who", 0)).void


# -- claims, verdicts, admissions: each rule by a record that breaks it alone ---------------------


def committed(**more: Any) -> TransactionCommitted:
    return replace(
        TransactionCommitted(
            txn=TxnId(4, 8),
            proposal_offset=99,
            accepted=(1, 2),
            cas=(60,),
            state_digest=77,
            at_ms=0,
        ),
        **more,
    )


def admitted(**more: Any) -> MemberAdmitted:
    return replace(MemberAdmitted(4, 9, 90, "n9", 50, 9, 0), **more)


def rolled_back(**more: Any) -> TransactionRolledBack:
    return replace(TransactionRolledBack(TxnId(4, 8), 99, "no", 0), **more)


ONE_CHANGE = (Mutation("SettingDeleted", "config/k", None, None),)
OPENED = fold(STATE, 99, TransactionProposed(TxnId(4, 8), 50, 9, (1, 2, 3), ONE_CHANGE)).state

BREAKING = [
    (STATE, replace(claim(2), cas=49), "a claim at another CAS"),
    (STATE, replace(claim(2), digest=8), "a claim with another digest"),
    (STATE, replace(claim(2), epoch=6), "a claim that skips an epoch"),
    (STATE, replace(claim(2), epoch=4), "a claim of an epoch that is taken"),
    (STATE, claim(3), "a claim of one that did not accept the last transaction"),
    (OPEN, committed(proposal_offset=98), "a commit of another offset"),
    (OPEN, committed(txn=TxnId(4, 7)), "a commit of another number"),
    (OPEN, committed(txn=TxnId(3, 8)), "a commit of another epoch"),
    (OPEN, committed(cas=(60, 61)), "a commit with more CAS than changes"),
    (OPEN, committed(cas=()), "a commit without a CAS"),
    (OPEN, committed(cas=(50,)), "a commit whose CAS does not ascend"),
    (STATE, committed(), "a commit of nothing open"),
    (OPEN, rolled_back(proposal_offset=98), "a rollback of another offset"),
    (OPEN, rolled_back(txn=TxnId(3, 8)), "a rollback of another epoch"),
    (STATE, admitted(cas=49), "an admission at another CAS"),
    (STATE, admitted(digest=8), "an admission with another digest"),
    (STATE, admitted(epoch=3), "an admission in another epoch"),
    (OPEN, admitted(), "an admission inside a transaction"),
]


@pytest.mark.parametrize(
    ("state", "record"), [row[:2] for row in BREAKING], ids=[row[2] for row in BREAKING]
)
def test_a_record_that_breaks_a_rule_changes_nothing(state: AuthorityState, record: Any) -> None:
    after = fold(state, 100, record)
    assert after.void
    assert after.state == state


@pytest.mark.parametrize(
    ("state", "record"),
    [(STATE, claim(2)), (OPENED, committed()), (OPENED, rolled_back()), (STATE, admitted())],
    ids=["claim", "commit", "rollback", "admission"],
)
def test_the_same_records_count_where_no_rule_is_broken(state: AuthorityState, record: Any) -> None:
    assert folded(state, record) != state


def test_a_void_commit_is_an_alarm_and_nothing_else_is() -> None:
    alarming = {type(row[1]) for row in BREAKING if is_alarming(row[1])}
    assert alarming == {TransactionCommitted}


@pytest.mark.parametrize("record", [resigned(), claim(2)], ids=["resignation", "claim"])
def test_what_ends_a_mastership_rolls_its_open_transaction_back(record: Any) -> None:
    state = folded(STATE, TransactionProposed(TxnId(4, 8), 50, 9, (1, 2, 3), ()))
    assert state.open is not None
    after = folded(state, record)
    assert after.open is None
    assert [row.status for row in after.newest(1)] == ["rollback"]
    assert fold(after, 101, committed(proposal_offset=100)).void


@pytest.mark.parametrize(
    "record",
    [
        SnapshotKept(3, 7, 40, 9, 0, 20, 0),
        SnapshotKept(4, 7, 51, 9, 0, 20, 0),
        SnapshotKept(4, 7, 40, 9, 0, 100, 0),
    ],
    ids=["epoch", "a later state", "a later snapshot"],
)
def test_a_copy_that_cannot_be_is_not_noted(record: SnapshotKept) -> None:
    assert fold(STATE, 100, record).void


def test_the_newest_copies_are_noted() -> None:
    state = STATE
    for number in range(SNAPSHOTS_MAX + 3):
        state = folded(state, SnapshotKept(4, number, 40, 9, number, number, 0))
    assert [info.copy for info in state.snapshots] == list(range(3, SNAPSHOTS_MAX + 3))


def test_who_may_not_leave_the_roster_is_told_how_many_would_be_left() -> None:
    two = replace(STATE, roster=(1, 2), minimum=2)
    assert why_not_leave(two, 2) == "1 node would be left, 2 copies are needed"
    three = replace(STATE, roster=(1, 2, 3), minimum=3)
    assert why_not_leave(three, 3) == "2 nodes would be left, 3 copies are needed"
