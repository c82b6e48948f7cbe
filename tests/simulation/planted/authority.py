"""Bugs in who is master, who is a member, and which records count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import node as nodes
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus import election as elections
from coordinator.core.consensus.authority import AuthorityUpdate
from coordinator.core.consensus.effects import Conclude, OpenProducer
from coordinator.core.consensus.election import Election
from coordinator.core.consensus.inputs import Ended
from coordinator.core.consensus.signals import Elected, Result
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.leader import master as masters
from coordinator.core.leader.committer import Committer
from coordinator.core.leader.master import Master
from coordinator.core.leader.membership import Due, Membership
from coordinator.core.leader.transaction import ABANDONING, CONCLUDING
from coordinator.core.model.authority_state import (
    ROLLBACK,
    AuthorityState,
    Member,
)
from coordinator.core.model.records import (
    MemberAdmitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.node import Node
from tests.simulation.kernel.broker import Broker, Session

Patch = pytest.MonkeyPatch


def act_before_the_claim_is_read_back(patch: Patch) -> None:
    opened = nodes.HANDLERS[nodes.ProducerOpened]
    on_claimed = nodes.ACTIONS[authorities.MasterClaimed]

    def eager(self: Node, event: Any) -> None:
        opened(self, event)
        election = self.election
        if election.candidacy is not None and election.candidacy.step == "reading":
            self.run(election.barrier_read(self))
        candidacy = election.candidacy
        if candidacy is not None and self.authority is not None:
            election.candidacy = None
            nodes.SIGNALS[Elected](self, Elected(candidacy.epoch))
            assert self.master is not None
            self.master.substate = masters.ACTIVE

    def kept(self: Node, entry: Any, before: Any) -> None:
        if self.master is not None and self.master.epoch == entry.record.epoch:
            self.follower.drop_prepared()
        else:
            on_claimed(self, entry, before)

    patch.setitem(nodes.HANDLERS, nodes.ProducerOpened, eager)
    patch.setitem(nodes.ACTIONS, authorities.MasterClaimed, kept)


def late_proposal_is_accepted(patch: Patch) -> None:
    proposed = authorities.FOLDS[TransactionProposed]

    def lax(state: Any, offset: int, record: TransactionProposed) -> AuthorityUpdate:
        folded = proposed(replace(state, last_seq=record.txn.seq - 1), offset, record)
        return AuthorityUpdate(state, folded.void) if folded.void else folded

    patch.setitem(authorities.FOLDS, TransactionProposed, lax)


def admitted_behind(patch: Patch) -> None:
    def lax(state: Any, offset: int, record: MemberAdmitted) -> AuthorityUpdate:
        member = Member(record.node, record.incarnation, record.address)
        return AuthorityUpdate(replace(state, members=state.members.set(record.node, member)))

    def eager(self: Membership, view: NodeView, **given: bool) -> Due:
        epoch = authority_of(view).epoch
        found: list[Any] = [
            MemberAdmitted(epoch, j.node, j.incarnation, j.address, j.cas, j.digest, 0)
            for j in self.joiners.values()
        ]
        self.joiners.clear()
        records, results = due(self, view, **given)
        return Due(found + records, results)

    due = Membership.due
    patch.setattr(Membership, "due", eager)
    patch.setitem(authorities.FOLDS, MemberAdmitted, lax)


def anybody_may_claim(patch: Patch) -> None:
    claimed = authorities.FOLDS[authorities.MasterClaimed]

    def lax(state: Any, offset: int, record: Any) -> AuthorityUpdate:
        return claimed(replace(state, acceptors=()), offset, record)

    def kept(state: Any, offset: int, record: Any) -> AuthorityUpdate:
        folded = lax(state, offset, record)
        if folded.void or folded.state is None:
            return AuthorityUpdate(state, folded.void)
        return AuthorityUpdate(replace(folded.state, acceptors=state.acceptors))

    patch.setattr(AuthorityState, "eligible", property(lambda self: self.roster))
    patch.setitem(authorities.FOLDS, authorities.MasterClaimed, kept)


def membership_counts_before_it_is_read_back(patch: Patch) -> None:
    ended = Committer.ended

    def trusting(self: Committer, view: NodeView, event: Any) -> list[Result]:
        if event.token == self._writing:
            self._writing = 0
        return ended(self, view, event)

    patch.setattr(Committer, "ended", trusting)


def one_epoch_over_two_producers(patch: Patch) -> None:
    failed = Election.producer_failed

    def stubborn(self: Election, view: Any, event: Any) -> list[Result]:
        leader = view.master
        if leader is None or self.candidacy is not None:
            return failed(self, view, event)
        committer = leader.committer
        if committer.attempt is None:
            return [OpenProducer(event.token)]
        committer.attempt.state = ABANDONING
        again = committer.ended(view, Ended(committer.attempt.token))
        return [OpenProducer(event.token), *again]

    patch.setattr(Election, "producer_failed", stubborn)


def claim_without_fencing(patch: Patch) -> None:
    def initialise(self: Broker, node: int, done: Callable[[Session], None]) -> None:
        self._epoch += 1
        done(Session(node, self._epoch))

    patch.setattr(Broker, "initialise", initialise)
    patch.setattr(Broker, "check", lambda self, session: None)


def look_waits_for_ever(patch: Patch) -> None:
    tick = Election.tick

    def patient(self: Election, view: Any) -> list[Result]:
        if self.candidacy is None or self.candidacy.step != elections.LOOKING:
            return tick(self, view)
        return []

    patch.setattr(Election, "tick", patient)
    patch.setattr(Election, "blocked_at_stable_offset", lambda self, view: [])


def join_inside_a_transaction(patch: Patch) -> None:
    advance = Master.advance
    admitted = authorities.FOLDS[MemberAdmitted]

    def lax(state: Any, offset: int, record: MemberAdmitted) -> AuthorityUpdate:
        folded = admitted(replace(state, open=None), offset, record)
        return AuthorityUpdate(replace(folded.state, open=state.open), folded.void)  # type: ignore[type-var]

    def eager(self: Master, view: NodeView) -> list[Result]:
        found, attempt = advance(self, view), self.committer.attempt
        if attempt is None or attempt.state != CONCLUDING:
            return found
        at = authority_of(view)
        joined = tuple(
            MemberAdmitted(self.epoch, j.node, j.incarnation, j.address, at.last_cas, at.digest, 0)
            for j in self.membership.joiners.values()
        )
        for number, result in enumerate(found):
            if isinstance(result, Conclude):
                self.membership.joiners.clear()
                found[number] = replace(result, records=(*joined, *result.records))
        return found

    patch.setattr(Master, "advance", eager)
    patch.setitem(authorities.FOLDS, MemberAdmitted, lax)


def second_terminal_status_is_accepted(patch: Patch) -> None:
    rolled_back, advance = authorities.FOLDS[TransactionRolledBack], Committer.advance

    def lax(state: AuthorityState, offset: int, record: TransactionRolledBack) -> AuthorityUpdate:
        folded = rolled_back(state, offset, record)
        if not folded.void:
            return folded
        log = state.log
        for number, row in state.log.items():
            if row.txn == record.txn:
                log = log.set(number, replace(row, status=ROLLBACK))
        return AuthorityUpdate(replace(state, log=log), folded.void)

    def doubting(self: Committer, view: NodeView) -> list[Result]:
        found, attempt = advance(self, view), self.attempt
        for number, result in enumerate(found):
            if isinstance(result, Conclude) and attempt is not None:
                late = TransactionRolledBack(attempt.proposal.txn, attempt.offset or 0, "doubt", 0)
                found[number] = replace(result, records=(*result.records, late))
        return found

    patch.setattr(Committer, "advance", doubting)
    patch.setitem(authorities.FOLDS, TransactionRolledBack, lax)


def resignation_inside_a_transaction(patch: Patch) -> None:
    requested = Master.membership_requested

    def hasty(self: Master, view: NodeView, event: Any) -> list[Result]:
        found = requested(self, view, event)
        if self.membership.resigning is None or self.committer.attempt is None:
            return found
        records, told = self.membership.due(view, is_idle=False, is_computing=lambda: True)
        return [*found, *told, *self.committer.write(view, records)]

    patch.setattr(Master, "membership_requested", hasty)
