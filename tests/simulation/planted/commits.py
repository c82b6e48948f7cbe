"""Bugs in the two phases of a commit, and in what a node keeps of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import master as masters
from coordinator.core import node as nodes
from coordinator.core import state as states
from coordinator.core.commands import UNKNOWN, Outcome, refused
from coordinator.core.copies import Copies
from coordinator.core.effects import Reply
from coordinator.core.inputs import Started
from coordinator.core.master import Master
from coordinator.core.node import Node
from coordinator.core.outcomes import OutcomeWindow
from coordinator.core.records import (
    ACCEPTED,
    TransactionCommitted,
    TransactionProposed,
)
from coordinator.core.saving import Keeper
from coordinator.core.scrubber import Findings, Scrubber
from coordinator.core.scrubbing import Scrubbing
from coordinator.core.synchroniser import Synchroniser
from coordinator.core.transaction import Attempt
from coordinator.kafka import endings

Patch = pytest.MonkeyPatch


def reply_before_the_commit_is_read_back(patch: Patch) -> None:
    conclude = Master._conclude

    def eager(self: Master, attempt: Attempt, silent: tuple[int, ...]) -> None:
        conclude(self, attempt, silent)
        txn = attempt.proposal.txn
        for held in attempt.enlisted:
            if held.request.token and not held.waits_for:
                self._reply(held.request, masters._dated(held, attempt.cas, str(txn)))
                held.request = replace(held.request, token=0)

    patch.setattr(Master, "_conclude", eager)


def reply_before_the_last_acknowledgement(patch: Patch) -> None:
    written = Master.written

    def eager(self: Master, event: Any) -> None:
        written(self, event)
        attempt = self.attempt
        if attempt is not None and attempt.cas:
            for held in attempt.enlisted:
                if held.request.token and not held.waits_for:
                    outcome = masters._dated(held, attempt.cas, str(attempt.proposal.txn))
                    self._reply(held.request, outcome)
                    held.request = replace(held.request, token=0)

    patch.setattr(Master, "written", eager)


def install_without_a_verdict(patch: Patch) -> None:
    proposed = Node._on_proposed

    def eager(self: Node, entry: Any, before: Any) -> None:
        proposed(self, entry, before)
        record = entry.record
        if self.state_known and self.master is None:
            cas = range(self.state.cas + 1, self.state.cas + 1 + len(record.mutations))
            self.state = states.evolve(self.state, zip(record.mutations, cas, strict=True))

    patch.setitem(nodes.ACTIONS, TransactionProposed, eager)


def commit_without_missing_answers(patch: Patch) -> None:
    patch.setattr(Attempt, "missing", property(lambda self: ()))


def accept_before_it_is_durable(patch: Patch) -> None:
    def hasty(self: Keeper) -> None:
        if self.node.log is None or self._log_answer is not None:
            return
        if self.node.state_known and not self.sick:
            self.save(self.node.log)
            self.answer(ACCEPTED, "")

    patch.setattr(Keeper, "save_log", hasty)


def ambiguous_commit_is_called_a_refusal(patch: Patch) -> None:
    drop = Node.drop_mastership

    def sure(self: Node, why: str) -> None:
        leader = self.master
        drop(self, why)
        for held in leader.attempt.enlisted if leader and leader.attempt else ():
            if held.request.token:
                self.emit(Reply(held.request.token, refused("unavailable", why)))
                held.request = replace(held.request, token=0)

    patch.setattr(Node, "drop_mastership", sure)


def applied_offset_ahead_of_changes(patch: Patch) -> None:
    save = Keeper.save

    def late(self: Keeper, log: Any, sync: bool = False) -> int:
        held, self.unsaved.changes = self.unsaved.changes, {}
        token = save(self, log, sync)
        self.unsaved.changes = held if not sync else {}
        return token

    patch.setattr(Keeper, "save", late)


def digest_is_ignored(patch: Patch) -> None:
    def careless(self: Node, log: Any, record: TransactionCommitted) -> None:
        pairs = list(zip(log.proposal.mutations, record.cas, strict=True))
        kept = [pair for pair in pairs if pair[0].event != "SettingDeleted" or self.master]
        before = self.state
        self.state = states.evolve(before, kept)._replace(cas=record.cas[-1])
        for mutation in log.proposal.mutations:
            self.keeper.unsaved.changes[mutation.key] = self.state.get(mutation.key)
        if self.master is not None:
            self.master.installed(before, log.proposal.mutations)

    patch.setattr(Node, "_install", careless)


def rollback_is_the_end_of_a_request_only_once(patch: Patch) -> None:
    retry = Master._retry

    def doubled(self: Master, attempt: Attempt, reason: str) -> None:
        for held in attempt.enlisted:
            if held.request.token:
                self.node.emit(Reply(held.request.token, Outcome(UNKNOWN, "unavailable")))
        retry(self, attempt, reason)

    patch.setattr(Master, "_retry", doubled)


def stray_events_are_left(patch: Patch) -> None:
    tail_read = Master.tail_read

    def blind(self: Master, event: Any) -> None:
        tail_read(self, replace(event, events=()))

    patch.setattr(Scrubbing, "scrubbed", lambda self, event: None)
    patch.setattr(Master, "tail_read", blind)
    patch.setitem(
        nodes.HANDLERS, nodes.TailRead, lambda self, e: self.master and blind(self.master, e)
    )


def holes_are_left(patch: Patch) -> None:
    """Only what is there too much is found, and not what is missing."""
    findings = Scrubber.findings

    def strays_only(self: Scrubber) -> Findings:
        return findings(self)._replace(holes=())

    patch.setattr(Scrubber, "findings", strays_only)


def repeated_end_of_a_transaction_is_believed(patch: Patch) -> None:
    """The client has sent EndTxn twice, and the second answer counts for the first."""
    patch.setattr(endings, "may_be_repeated", lambda *_: False)


def unsynced_batches_are_trusted_after_a_failed_sync(patch: Patch) -> None:
    """Only what failed is written again, and not what the failed sync should have secured."""
    failed = Keeper.store_failed

    def trusting(self: Keeper, event: Any) -> None:
        self._in_flight = [held for held in self._in_flight if held.token >= event.token]
        failed(self, event)

    patch.setattr(Keeper, "store_failed", trusting)


def log_is_trimmed_too_early(patch: Patch) -> None:
    patch.setattr(Copies, "_durable", lambda self: 10**9)


def outcomes_are_trimmed_away(patch: Patch) -> None:
    trim = Copies.trim

    def blind(self: Copies) -> None:
        window = self.node.outcomes
        self.node.outcomes = OutcomeWindow(self.node.codec)
        trim(self)
        self.node.outcomes = window

    patch.setattr(Copies, "trim", blind)


def synchronised_without_a_digest(patch: Patch) -> None:
    def trusting(self: Synchroniser) -> Any:
        if not self.entities:
            return None
        state = states.restore(0, self.entities.items())
        return state._replace(cas=self.base_cas)

    patch.setattr(Synchroniser, "resolve", trusting)


def reply_from_the_producers_return_code(patch: Patch) -> None:
    ended, failed = Master.ended, Node.drop_mastership

    def trusting(self: Master, event: Any) -> None:
        attempt = self.attempt
        if attempt is not None and event.token == attempt.token and attempt.state == "concluding":
            for held in attempt.enlisted:
                if held.request.token and not held.waits_for:
                    outcome = masters._dated(held, attempt.cas, str(attempt.proposal.txn))
                    self._reply(held.request, outcome)
                    held.request = replace(held.request, token=0)
        ended(self, event)

    def sure(self: Node, why: str) -> None:
        attempt = self.master.attempt if self.master else None
        failed(self, why)
        for held in attempt.enlisted if attempt else ():
            if held.request.token:
                self.emit(Reply(held.request.token, refused("unavailable", why)))
                held.request = replace(held.request, token=0)

    patch.setattr(Master, "ended", trusting)
    patch.setattr(Node, "drop_mastership", sure)


def cas_as_a_maximum_over_records(patch: Patch) -> None:
    resolve = Synchroniser.resolve

    def highest(self: Synchroniser) -> Any:
        state = resolve(self)
        if not isinstance(state, states.StateContext) or not state.entities:
            return state
        return state._replace(cas=max(held.cas for held in state.entities.values()))

    patch.setattr(Synchroniser, "resolve", highest)


def silent_damage_is_believed(patch: Patch) -> None:
    started = Node._started

    def trusting(self: Node, event: Started) -> None:
        restored = event.restored
        if restored is not None and restored.authority is not None:
            state = restored.state._replace(digest=restored.authority.digest)
            event = replace(event, restored=replace(restored, state=state))
        started(self, event)

    patch.setitem(nodes.HANDLERS, Started, trusting)


def groups_have_no_bound(patch: Patch) -> None:
    patch.setattr(masters, "_weight", lambda mutations: 0)
