"""Bugs in who is master, who is a member, and which records count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import authority as authorities
from coordinator.core import election as elections
from coordinator.core import master as masters
from coordinator.core import node as nodes
from coordinator.core.authority import Folded
from coordinator.core.authority_state import (
    ROLLBACK,
    AuthorityState,
    Member,
    OpenTransaction,
    TransactionStatus,
)
from coordinator.core.effects import Conclude, OpenProducer
from coordinator.core.election import Election
from coordinator.core.master import Master
from coordinator.core.membership import Membership
from coordinator.core.node import Node
from coordinator.core.records import (
    MemberAdmitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.transaction import Attempt
from tests.simulation.broker import Broker, Session

Patch = pytest.MonkeyPatch


def act_before_the_claim_is_read_back(patch: Patch) -> None:
    opened, on_claimed = Node._producer_opened, Node._on_claimed

    def eager(self: Node, event: Any) -> None:
        opened(self, event)
        election = self.election
        if election.candidacy is not None and election.candidacy.step == "reading":
            election._write_claim()
        candidacy = election.candidacy
        if candidacy is not None and self.authority is not None:
            election.candidacy = None
            self.master = Master(self, candidacy.epoch)
            self.master.substate = masters.ACTIVE

    def kept(self: Node, entry: Any, before: Any) -> None:
        if self.master is not None and self.master.epoch == entry.record.epoch:
            self.log = None
        else:
            on_claimed(self, entry, before)

    patch.setitem(nodes.HANDLERS, nodes.ProducerOpened, eager)
    patch.setitem(nodes.ACTIONS, authorities.MasterClaimed, kept)


def late_proposal_is_accepted(patch: Patch) -> None:
    def lax(state: Any, offset: int, record: TransactionProposed) -> Folded:
        if record.txn.epoch != state.epoch or state.open is not None:
            return Folded(state, "void")
        if (record.prev_cas, record.prev_digest) != (state.last_cas, state.digest):
            return Folded(state, "void")
        opened = OpenTransaction(
            record.txn,
            offset,
            record.participants,
            record.prev_cas,
            record.prev_digest,
            len(record.mutations),
        )
        row = TransactionStatus(record.txn, "initial", 0, record.participants, "")
        logged = authorities._append(state, row)
        return Folded(replace(logged, open=opened, last_seq=record.txn.seq))

    patch.setitem(authorities.FOLDS, TransactionProposed, lax)


def admitted_behind(patch: Patch) -> None:
    def lax(state: Any, offset: int, record: MemberAdmitted) -> Folded:
        member = Member(record.node, record.incarnation, record.address)
        return Folded(replace(state, members=state.members.set(record.node, member)))

    def eager(self: Membership) -> list[Any]:
        epoch = self.master.epoch
        found = [
            MemberAdmitted(epoch, j.node, j.incarnation, j.address, j.cas, j.digest, 0)
            for j in self.joiners.values()
        ]
        self.joiners.clear()
        return found + records(self)

    records = Membership.due
    patch.setattr(Membership, "due", eager)
    patch.setitem(authorities.FOLDS, MemberAdmitted, lax)


def anybody_may_claim(patch: Patch) -> None:
    claimed = authorities._claimed

    def lax(state: Any, offset: int, record: Any) -> Folded:
        return claimed(replace(state, acceptors=()), offset, record)

    def kept(state: Any, offset: int, record: Any) -> Folded:
        folded = lax(state, offset, record)
        if folded.void or folded.state is None:
            return Folded(state, folded.void)
        return Folded(replace(folded.state, acceptors=state.acceptors))

    patch.setattr(AuthorityState, "eligible", property(lambda self: self.roster))
    patch.setitem(authorities.FOLDS, authorities.MasterClaimed, kept)


def membership_counts_before_it_is_read_back(patch: Patch) -> None:
    ended = Master.ended

    def trusting(self: Master, event: Any) -> None:
        if event.token == self._writing:
            self._writing = 0
        ended(self, event)

    patch.setattr(Master, "ended", trusting)


def one_epoch_over_two_producers(patch: Patch) -> None:
    failed = Election.producer_failed

    def stubborn(self: Election, event: Any) -> None:
        leader = self.node.master
        if leader is None or self.candidacy is not None:
            failed(self, event)
            return
        self.node.emit(OpenProducer(event.token))
        leader._writing = 0
        if leader.attempt is not None:
            leader._undo(leader.attempt)

    patch.setattr(Election, "producer_failed", stubborn)


def claim_without_fencing(patch: Patch) -> None:
    def initialise(self: Broker, node: int, done: Callable[[Session], None]) -> None:
        self._epoch += 1
        done(Session(node, self._epoch))

    patch.setattr(Broker, "initialise", initialise)
    patch.setattr(Broker, "check", lambda self, session: None)


def look_waits_for_ever(patch: Patch) -> None:
    tick = Election.tick

    def patient(self: Election) -> None:
        if self.candidacy is None or self.candidacy.step != elections.LOOKING:
            tick(self)

    patch.setattr(Election, "tick", patient)
    patch.setattr(Election, "log_is_held", lambda self: None)


def join_inside_a_transaction(patch: Patch) -> None:
    conclude = Master._conclude
    admitted = authorities._admitted

    def lax(state: Any, offset: int, record: MemberAdmitted) -> Folded:
        folded = admitted(replace(state, open=None), offset, record)
        return Folded(replace(folded.state, open=state.open), folded.void)  # type: ignore[type-var]

    def eager(self: Master, attempt: Attempt, silent: tuple[int, ...]) -> None:
        conclude(self, attempt, silent)
        effect = self.node._effects[-1]
        assert isinstance(effect, Conclude)
        at = self.authority
        joined = tuple(
            MemberAdmitted(self.epoch, j.node, j.incarnation, j.address, at.last_cas, at.digest, 0)
            for j in self.membership.joiners.values()
        )
        self.membership.joiners.clear()
        self.node._effects[-1] = replace(effect, records=(*joined, *effect.records))

    patch.setattr(Master, "_conclude", eager)
    patch.setitem(authorities.FOLDS, MemberAdmitted, lax)


def second_terminal_status_is_accepted(patch: Patch) -> None:
    rolled_back, conclude = authorities._rolled_back, Master._conclude

    def lax(state: AuthorityState, offset: int, record: TransactionRolledBack) -> Folded:
        folded = rolled_back(state, offset, record)
        if not folded.void:
            return folded
        log = state.log
        for number, row in state.log.items():
            if row.txn == record.txn:
                log = log.set(number, replace(row, status=ROLLBACK))
        return Folded(replace(state, log=log), folded.void)

    def doubting(self: Master, attempt: Attempt, silent: tuple[int, ...]) -> None:
        conclude(self, attempt, silent)
        effect = self.node._effects[-1]
        assert isinstance(effect, Conclude)
        late = TransactionRolledBack(attempt.proposal.txn, attempt.offset or 0, "doubt", 0)
        self.node._effects[-1] = replace(effect, records=(*effect.records, late))

    patch.setattr(Master, "_conclude", doubting)
    patch.setitem(authorities.FOLDS, TransactionRolledBack, lax)


def resignation_inside_a_transaction(patch: Patch) -> None:
    step_down = Membership.step_down

    def hasty(self: Membership, event: Any) -> None:
        step_down(self, event)
        if self.resigning is not None and self.master.attempt is not None:
            self.master._write([self.resignation(self.resigning)])

    patch.setattr(Membership, "step_down", hasty)
