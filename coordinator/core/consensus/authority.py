"""The Authority: a deterministic fold of the `commit` topic.

It takes the place of a cluster manager, and is not a process. Each node folds the same records in
the same order, and so computes the same master, epoch, in-sync set and statuses of transactions.
The rules:

* A claim counts only if its epoch is the next one, its node accepted the last committed
  transaction, and its CAS and digest are the fold's. It closes an open transaction.
* A proposal opens a transaction only in the current epoch, above the last sequence number, and
  while no transaction is open. Proposals are plain records: late and repeated ones are void.
* A verdict must name the open transaction and its offset. The first terminal status wins.
* A node is admitted only while no transaction is open, and only at the fold's CAS and digest.
* After a master has resigned, none of its proposals opens a transaction.
* A node leaves, and a master reforms the cluster, only while no transaction is open. The nodes
  that are left must be at least the minimum.

A record that breaks a rule is *void*: it changes nothing, and `fold` says why. The caller decides
whether that is ordinary (a late proposal) or an alarm (`is_alarming`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import (
    COMMIT,
    INITIAL,
    ROLLBACK,
    AuthorityState,
    IndexerInfo,
    Member,
    OpenTransaction,
    ProjectorInfo,
    SnapshotInfo,
    TransactionStatus,
)
from coordinator.core.model.records import (
    INDEXER,
    PROJECTOR,
    SERVICES,
    AuthoritySnapshot,
    ClusterFormed,
    ClusterReformed,
    CommitRecord,
    IndexerRegistered,
    MasterClaimed,
    MasterResigned,
    MemberAdmitted,
    MemberExpired,
    MemberLeft,
    OutcomesForgotten,
    OutcomesSeparated,
    ProjectorRegistered,
    ReadBarrier,
    ServiceRemoved,
    SnapshotKept,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
    Unreadable,
)
from coordinator.core.model.types import Cas, Epoch, Offset, TxnId

SNAPSHOTS_MAX = 8
"""So many copies of the StateContext the Authority knows of, the newest."""

SERVICE_ID_MAX = 250
"""Indexers and projectors have ids from 0 to this."""


class AuthorityUpdate(NamedTuple):
    """The state after a record; `void` says why the record changed nothing, or is empty."""

    state: AuthorityState | None
    void: str = ""


def fold(state: AuthorityState | None, offset: Offset, record: CommitRecord) -> AuthorityUpdate:
    """Return the Authority after `record`, which stands at `offset` of the commit topic.

    `state` is None until genesis or a snapshot has been read; everything before it is void.
    """
    if state is None:
        return _begin(offset, record)
    return FOLDS[type(record)](state, offset, record)


def is_alarming(record: CommitRecord) -> bool:
    """Tell whether `record`, being void, means that a guarantee of the protocol was broken."""
    return isinstance(record, TransactionCommitted)


def _begin(offset: Offset, record: CommitRecord) -> AuthorityUpdate:
    if isinstance(record, ClusterFormed):
        return AuthorityUpdate(
            AuthorityState(
                cluster_id=record.cluster_id,
                cas_base=record.cas_base,
                roster=record.roster,
                minimum=record.minimum,
                log_capacity=record.log_capacity,
                request_window_ms=record.request_window_ms,
                outcomes_apart=record.outcomes_apart,
                sync_partitions=record.sync_partitions,
            )
        )
    if isinstance(record, AuthoritySnapshot):
        return AuthorityUpdate(record.snapshot)
    if isinstance(record, MasterClaimed):
        return _claimed(record.snapshot, offset, record)
    return AuthorityUpdate(None, "nothing is known yet")


def _formed(state: AuthorityState, offset: Offset, record: ClusterFormed) -> AuthorityUpdate:
    return AuthorityUpdate(state, f"the cluster {state.cluster_id} exists")


def _claimed(state: AuthorityState, offset: Offset, record: MasterClaimed) -> AuthorityUpdate:
    if record.epoch != state.epoch + 1:
        return AuthorityUpdate(state, f"epoch {record.epoch} does not follow {state.epoch}")
    if record.node not in state.eligible:
        return AuthorityUpdate(state, f"node {record.node} did not accept {state.last_txn}")
    if (record.cas, record.digest) != (state.last_cas, state.digest):
        return AuthorityUpdate(
            state, f"node {record.node} stands at {record.cas}, not {state.last_cas}"
        )
    if state.open is not None:
        reason = f"node {record.node} claimed epoch {record.epoch}"
        state = _close(state, ROLLBACK, Cas(0), reason)
    member = Member(record.node, record.incarnation, record.address)
    return AuthorityUpdate(
        replace(
            state,
            epoch=record.epoch,
            master=record.node,
            incarnation=record.incarnation,
            address=record.address,
            members=state.members.set(record.node, member),
            roster=_with(state.roster, record.node),
            last_seq=0,
            successor=0,
        )
    )


def _snapshot(state: AuthorityState, offset: Offset, record: AuthoritySnapshot) -> AuthorityUpdate:
    if record.snapshot != state:
        return AuthorityUpdate(state, "the snapshot differs from the fold")
    return AuthorityUpdate(state)


def _kept(state: AuthorityState, offset: Offset, record: SnapshotKept) -> AuthorityUpdate:
    """Take note of a copy that was read back. One of a later state than the fold's is no copy."""
    if void := _of_another_epoch(state, record.epoch):
        return AuthorityUpdate(state, void)
    if record.cas > state.last_cas or record.commit_offset >= offset:
        return AuthorityUpdate(state, f"a copy at CAS {record.cas} is ahead of {state.last_cas}")
    info = SnapshotInfo(
        record.copy, record.cas, record.digest, record.offset, record.commit_offset, record.at_ms
    )
    return AuthorityUpdate(replace(state, snapshots=(*state.snapshots, info)[-SNAPSHOTS_MAX:]))


def _forgotten(state: AuthorityState, offset: Offset, record: OutcomesForgotten) -> AuthorityUpdate:
    if void := _of_another_epoch(state, record.epoch):
        return AuthorityUpdate(state, void)
    return AuthorityUpdate(
        replace(
            state,
            outcomes_digest=record.outcomes_digest,
            outcomes_forgotten_ms=max(state.outcomes_forgotten_ms, record.forgotten_ms),
        )
    )


def _separated(state: AuthorityState, offset: Offset, record: OutcomesSeparated) -> AuthorityUpdate:
    void = (
        _of_another_epoch(state, record.epoch)
        or ("outcomes are apart already" if state.outcomes_apart else "")
        or (f"{state.open.txn} is open" if state.open else "")
        or (
            ""
            if (record.cas, record.digest) == (state.last_cas, state.digest)
            else f"it separates CAS {record.cas}, not {state.last_cas}"
        )
    )
    if void:
        return AuthorityUpdate(state, void)
    return AuthorityUpdate(
        replace(
            state,
            digest=record.state_digest,
            outcomes_apart=True,
            outcomes_digest=record.outcomes_digest,
            outcomes_forgotten_ms=max(state.outcomes_forgotten_ms, record.forgotten_ms),
        )
    )


def _proposed(
    state: AuthorityState, offset: Offset, record: TransactionProposed
) -> AuthorityUpdate:
    void = (
        _of_another_epoch(state, record.txn.epoch)
        or ("" if state.master else "the master has resigned")
        or (f"{state.open.txn} is open" if state.open else "")
        or ("" if record.txn.seq > state.last_seq else f"{record.txn} is late or doubled")
        or (
            ""
            if (record.prev_cas, record.prev_digest) == (state.last_cas, state.digest)
            else f"{record.txn} builds on CAS {record.prev_cas}, not {state.last_cas}"
        )
    )
    if void:
        return AuthorityUpdate(state, void)
    opened = OpenTransaction(
        record.txn,
        offset,
        record.participants,
        record.prev_cas,
        record.prev_digest,
        len(record.mutations),
    )
    row = TransactionStatus(record.txn, INITIAL, Cas(0), record.participants, "")
    logged = _append(state, row)
    return AuthorityUpdate(replace(logged, open=opened, last_seq=record.txn.seq))


def _committed(
    state: AuthorityState, offset: Offset, record: TransactionCommitted
) -> AuthorityUpdate:
    opened = state.open
    void = _of_another_epoch(state, record.txn.epoch) or _not_the_open_one(
        opened, record.txn, record.proposal_offset
    )
    if void or opened is None:
        return AuthorityUpdate(state, void)
    if not record.cas or len(record.cas) != opened.count or record.cas[0] <= state.last_cas:
        return AuthorityUpdate(
            state, f"{record.txn} carries impossible CAS values {record.cas[:3]}"
        )
    closed = _close(state, COMMIT, record.cas[-1], "")
    return AuthorityUpdate(
        replace(
            closed,
            last_txn=record.txn,
            last_cas=record.cas[-1],
            digest=record.state_digest,
            acceptors=record.accepted,
            outcomes_digest=record.outcomes_digest,
            outcomes_forgotten_ms=max(state.outcomes_forgotten_ms, record.outcomes_forgotten_ms),
        )
    )


def _rolled_back(
    state: AuthorityState, offset: Offset, record: TransactionRolledBack
) -> AuthorityUpdate:
    wrong_epoch = _of_another_epoch(state, record.txn.epoch)
    if wrong_epoch:
        return AuthorityUpdate(state, wrong_epoch)
    if record.proposal_offset < 0:
        return _never_opened(state, record)
    void = _not_the_open_one(state.open, record.txn, record.proposal_offset)
    if void or state.open is None:
        return AuthorityUpdate(state, void)
    return AuthorityUpdate(_close(state, ROLLBACK, Cas(0), record.reason))


def _never_opened(state: AuthorityState, record: TransactionRolledBack) -> AuthorityUpdate:
    """Close a sequence number whose proposal the master did not see: it may still arrive."""
    if state.open is not None and state.open.txn == record.txn:
        return AuthorityUpdate(_close(state, ROLLBACK, Cas(0), record.reason))
    if state.open is not None or record.txn.seq <= state.last_seq:
        return AuthorityUpdate(state, f"{record.txn} has a status")
    row = TransactionStatus(record.txn, ROLLBACK, Cas(0), (), record.reason)
    return AuthorityUpdate(replace(_append(state, row), last_seq=record.txn.seq))


def _admitted(state: AuthorityState, offset: Offset, record: MemberAdmitted) -> AuthorityUpdate:
    void = (
        _of_another_epoch(state, record.epoch)
        or (f"{state.open.txn} is open" if state.open else "")
        or (
            ""
            if (record.cas, record.digest) == (state.last_cas, state.digest)
            else f"node {record.node} stands at {record.cas}, not {state.last_cas}"
        )
    )
    if void:
        return AuthorityUpdate(state, void)
    member = Member(record.node, record.incarnation, record.address)
    roster = _with(state.roster, record.node)
    return AuthorityUpdate(
        replace(state, roster=roster, members=state.members.set(record.node, member))
    )


def _with(roster: tuple[int, ...], node: int) -> tuple[int, ...]:
    return roster if node in roster else tuple(sorted((*roster, node)))


def _expired(state: AuthorityState, offset: Offset, record: MemberExpired) -> AuthorityUpdate:
    if void := _of_another_epoch(state, record.epoch):
        return AuthorityUpdate(state, void)
    if record.node not in state.members or record.node == state.master:
        return AuthorityUpdate(state, f"node {record.node} is not a replica")
    return AuthorityUpdate(replace(state, members=state.members.delete(record.node)))


def _left(state: AuthorityState, offset: Offset, record: MemberLeft) -> AuthorityUpdate:
    if void := _of_another_epoch(state, record.epoch) or why_not_leave(state, record.node):
        return AuthorityUpdate(state, void)
    return AuthorityUpdate(
        replace(
            state,
            roster=tuple(n for n in state.roster if n != record.node),
            members=state.members.delete(record.node)
            if record.node in state.members
            else state.members,
            acceptors=tuple(n for n in state.acceptors if n != record.node),
        )
    )


def why_not_leave(state: AuthorityState, node: int) -> str:
    """Say why `node` may not leave the cluster now, or return an empty text."""
    if unknown := not_in_roster(state, (node,)):
        return unknown
    if node == state.master:
        return f"node {node} is the master: it hands the mastership over first"
    if state.open is not None:
        return f"{state.open.txn} is open"
    if len(state.roster) - 1 < state.minimum:
        left = counted(len(state.roster) - 1, "node", "nodes")
        return f"{left} would be left, {needed(state.minimum)}"
    return ""


def not_in_roster(state: AuthorityState, nodes: Iterable[int]) -> str:
    """Say which of the nodes are not in the roster, or return an empty text."""
    unknown = sorted(set(nodes) - set(state.roster))
    if not unknown:
        return ""
    names, roster = (", ".join(map(str, nodes)) for nodes in (unknown, state.roster))
    subject = f"node {names} is" if len(unknown) == 1 else f"nodes {names} are"
    return f"{subject} not in the roster: {roster}"


def needed(minimum: int) -> str:
    """Return how many copies a commit needs, as a part of a sentence."""
    return counted(minimum, "copy is needed", "copies are needed")


def counted(count: int, one: str, several: str) -> str:
    """Return a number with its noun."""
    return f"{count} {one if count == 1 else several}"


def _resigned(state: AuthorityState, offset: Offset, record: MasterResigned) -> AuthorityUpdate:
    void = _of_another_epoch(state, record.epoch) or (
        "" if record.node == state.master else f"node {record.node} is not the master"
    )
    if void:
        return AuthorityUpdate(state, void)
    if state.open is not None:
        state = _close(state, ROLLBACK, Cas(0), f"node {record.node} resigned")
    return AuthorityUpdate(
        replace(state, master=0, incarnation=0, address="", successor=record.successor)
    )


def _reformed(state: AuthorityState, offset: Offset, record: ClusterReformed) -> AuthorityUpdate:
    """Take the minimum and the roster that an operator gave; the writer is eligible from now."""
    if void := why_not_reform(state, record):
        return AuthorityUpdate(state, void)
    roster = record.roster
    acceptors = tuple(n for n in state.acceptors if n in roster)
    members = state.members
    for node in members:
        members = members if node in roster else members.delete(node)
    return AuthorityUpdate(
        replace(
            state,
            minimum=record.minimum,
            roster=roster,
            members=members,
            acceptors=tuple(sorted({*acceptors, record.node})),
        )
    )


def why_not_reform(state: AuthorityState, record: ClusterReformed) -> str:
    """Say why the cluster cannot be reformed as `record` says, or return an empty text."""
    if record.epoch == state.epoch and record.node != state.master:
        return f"node {record.node} is not the master of epoch {state.epoch}"
    if record.epoch not in (state.epoch, state.epoch + 1):
        return f"epoch {record.epoch} is neither {state.epoch} nor the next"
    if state.open is not None and record.epoch == state.epoch:
        return f"{state.open.txn} is open"
    if (record.cas, record.digest) != (state.last_cas, state.digest):
        return f"node {record.node} stands at {record.cas}, not {state.last_cas}"
    if record.node not in record.roster or not set(record.roster) <= set(state.roster):
        return f"the roster {list(record.roster)} is not one of what {list(state.roster)} leaves"
    if not 1 <= record.minimum <= len(record.roster):
        return f"a minimum of {record.minimum} does not fit {len(record.roster)} nodes"
    return ""


def _registered(
    state: AuthorityState, offset: Offset, record: IndexerRegistered
) -> AuthorityUpdate:
    void = _of_another_epoch(state, record.epoch) or impossible_id(record.indexer)
    if void:
        return AuthorityUpdate(state, void)
    info = IndexerInfo(record.indexer, record.incarnation, record.address, record.zone)
    return AuthorityUpdate(replace(state, indexers=state.indexers.set(record.indexer, info)))


def _projector_registered(
    state: AuthorityState, offset: Offset, record: ProjectorRegistered
) -> AuthorityUpdate:
    void = _of_another_epoch(state, record.epoch) or impossible_id(record.projector)
    if void:
        return AuthorityUpdate(state, void)
    info = ProjectorInfo(record.projector, record.incarnation, record.address)
    return AuthorityUpdate(replace(state, projectors=state.projectors.set(record.projector, info)))


def _service_removed(
    state: AuthorityState, offset: Offset, record: ServiceRemoved
) -> AuthorityUpdate:
    void = _of_another_epoch(state, record.epoch)
    if not void and record.kind not in SERVICES:
        void = f"there are no services of kind {record.kind!r}"
    if void:
        return AuthorityUpdate(state, void)
    indexers, projectors, number = state.indexers, state.projectors, record.number
    if record.kind == INDEXER and number in indexers:
        state = replace(state, indexers=indexers.delete(number))
    if record.kind == PROJECTOR and number in projectors:
        state = replace(state, projectors=projectors.delete(number))
    return AuthorityUpdate(state)


def impossible_id(number: int) -> str:
    """Say why no indexer or projector has this number, or return an empty text."""
    return "" if 0 <= number <= SERVICE_ID_MAX else f"ids range from 0 to {SERVICE_ID_MAX}"


def _barrier(state: AuthorityState, offset: Offset, record: ReadBarrier) -> AuthorityUpdate:
    return AuthorityUpdate(state)


def _unreadable(state: AuthorityState, offset: Offset, record: Unreadable) -> AuthorityUpdate:
    return AuthorityUpdate(state, record.reason)


def _of_another_epoch(state: AuthorityState, epoch: Epoch) -> str:
    return "" if epoch == state.epoch else f"epoch {epoch} is not the current {state.epoch}"


def _not_the_open_one(opened: OpenTransaction | None, txn: TxnId, offset: Offset) -> str:
    if opened is None:
        return f"{txn} is not open"
    if (opened.txn, opened.offset) != (txn, offset):
        return f"{txn}@{offset} is not the open {opened.txn}@{opened.offset}"
    return ""


def _append(state: AuthorityState, row: TransactionStatus) -> AuthorityState:
    """Add a row to the rolling log, and drop the oldest beyond its capacity."""
    log = state.log.set(state.log_next, row)
    if len(log) > state.log_capacity:
        log = log.delete(state.log_next + 1 - len(log))
    return replace(state, log=log, log_next=state.log_next + 1)


def _close(state: AuthorityState, status: str, cas: Cas, reason: str) -> AuthorityState:
    """Give the open transaction, whose row is the newest, its terminal status."""
    opened = state.open
    number = state.log_next - 1
    assert opened is not None
    assert state.log[number].txn == opened.txn
    row = TransactionStatus(opened.txn, status, cas, opened.participants, reason)
    return replace(state, open=None, log=state.log.set(number, row))


FOLDS: dict[type, Callable[[AuthorityState, Offset, Any], AuthorityUpdate]] = {
    ClusterFormed: _formed,
    MasterClaimed: _claimed,
    AuthoritySnapshot: _snapshot,
    SnapshotKept: _kept,
    OutcomesForgotten: _forgotten,
    OutcomesSeparated: _separated,
    TransactionProposed: _proposed,
    TransactionCommitted: _committed,
    TransactionRolledBack: _rolled_back,
    MemberAdmitted: _admitted,
    MemberExpired: _expired,
    MemberLeft: _left,
    MasterResigned: _resigned,
    ClusterReformed: _reformed,
    IndexerRegistered: _registered,
    ProjectorRegistered: _projector_registered,
    ServiceRemoved: _service_removed,
    ReadBarrier: _barrier,
    Unreadable: _unreadable,
}

assert digests.EMPTY == 0, "AuthorityState starts with the empty digest"
