"""Bugs in the two phases of a commit, and in what a node keeps of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core import node as nodes
from coordinator.core.catalog import state as states
from coordinator.core.consensus import copies as all_copies
from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.durability import Checkpoint, Durability
from coordinator.core.consensus.effects import Reply, Save
from coordinator.core.consensus.follower import Follower
from coordinator.core.consensus.inputs import Started
from coordinator.core.consensus.scrubber import Findings, Scrubber
from coordinator.core.consensus.signals import LoseMastership, Result
from coordinator.core.consensus.synchroniser import Synchroniser
from coordinator.core.consensus.view import NodeView
from coordinator.core.leader import group_commit
from coordinator.core.leader.master import Master
from coordinator.core.leader.scrubbing import ScrubSchedule
from coordinator.core.leader.transaction import CONCLUDING, Attempt
from coordinator.core.leader.verdicts import dated
from coordinator.core.model.commands import UNKNOWN, Outcome, refused
from coordinator.core.model.records import ACCEPTED, TransactionProposed
from coordinator.core.node import Node
from coordinator.kafka import end_txn

Patch = pytest.MonkeyPatch


def reply_early(master: Master) -> list[Result]:
    """Tell the callers of the transaction in flight that all is well."""
    attempt = master.committer.attempt
    found: list[Result] = []
    for held in attempt.enlisted if attempt is not None else ():
        if attempt is not None and held.request.token and not held.waits_for:
            outcome = dated(held, attempt.cas, str(attempt.proposal.txn))
            found += master.requests.reply(held.request, outcome)
            held.request = replace(held.request, token=0)
    return found


def refuse_early(master: Master, why: str) -> list[Result]:
    """Tell the callers of the transaction in flight that it did not happen."""
    attempt = master.committer.attempt
    found: list[Result] = []
    for held in attempt.enlisted if attempt is not None else ():
        if held.request.token:
            found.append(Reply(held.request.token, refused("unavailable", why)))
            held.request = replace(held.request, token=0)
    return found


def reply_before_the_commit_is_read_back(patch: Patch) -> None:
    advance = Master.advance

    def eager(self: Master, view: NodeView) -> list[Result]:
        found, attempt = advance(self, view), self.committer.attempt
        is_concluding = attempt is not None and attempt.state == CONCLUDING
        return found + (reply_early(self) if is_concluding else [])

    patch.setattr(Master, "advance", eager)


def reply_before_the_last_acknowledgement(patch: Patch) -> None:
    written = Master.written

    def eager(self: Master, view: NodeView, event: Any) -> list[Result]:
        found, attempt = written(self, view, event), self.committer.attempt
        return found + (reply_early(self) if attempt is not None and attempt.cas else [])

    patch.setattr(Master, "written", eager)


def install_without_a_verdict(patch: Patch) -> None:
    proposed = nodes.ACTIONS[TransactionProposed]

    def eager(self: Node, entry: Any, before: Any) -> None:
        proposed(self, entry, before)
        record = entry.record
        if self.state_known and self.master is None:
            cas = range(self.state.cas + 1, self.state.cas + 1 + len(record.mutations))
            after = states.evolve(self.state, zip(record.mutations, cas, strict=True))
            self.follower.state = after

    patch.setitem(nodes.ACTIONS, TransactionProposed, eager)


def commit_without_missing_answers(patch: Patch) -> None:
    patch.setattr(Attempt, "missing", property(lambda self: ()))


def accept_before_it_is_durable(patch: Patch) -> None:
    save_prepared = Durability.save_prepared

    def hasty(self: Durability, view: NodeView) -> list[Result]:
        found = save_prepared(self, view)
        is_being_saved = any(isinstance(one, Save) for one in found)
        return [*found, *(self.answer(view, ACCEPTED, "") if is_being_saved else ())]

    patch.setattr(Durability, "save_prepared", hasty)


def ambiguous_commit_is_called_a_refusal(patch: Patch) -> None:
    lose = nodes.SIGNALS[LoseMastership]

    def sure(self: Node, signal: LoseMastership) -> None:
        master = self.master
        lose(self, signal)
        assert master is not None
        self.run(refuse_early(master, signal.why))

    patch.setitem(nodes.SIGNALS, LoseMastership, sure)


def applied_offset_ahead_of_changes(patch: Patch) -> None:
    save = Durability.save

    def late(self: Durability, at: Checkpoint, sync: bool = False) -> Save:
        held, self.unsaved.changes = self.unsaved.changes, {}
        saved = save(self, at, sync)
        self.unsaved.changes = held if not sync else {}
        return saved

    patch.setattr(Durability, "save", late)


def digest_is_ignored(patch: Patch) -> None:
    committed = Follower.committed

    def careless(self: Follower, view: NodeView, record: Any, computed: Any) -> list[Result]:
        if self.state_known and self.prepared is not None and self.holds(record.txn):
            pairs = list(zip(self.prepared.proposal.mutations, record.cas, strict=True))
            kept = [pair for pair in pairs if pair[0].event != "SettingDeleted" or view.is_master]
            computed = states.evolve(self.state, kept)._replace(cas=record.cas[-1])
            record = replace(record, state_digest=computed.digest)
        return committed(self, view, record, computed)

    patch.setattr(Follower, "committed", careless)


def rollback_is_the_end_of_a_request_only_once(patch: Patch) -> None:
    rolled_back = Master.rolled_back

    def doubled(self: Master, view: NodeView, record: Any) -> list[Result]:
        attempt = self.committer.attempt
        tokens = [held.request.token for held in attempt.enlisted] if attempt else []
        told = [Reply(token, Outcome(UNKNOWN, "unavailable")) for token in tokens if token]
        return [*told, *rolled_back(self, view, record)]

    patch.setattr(Master, "rolled_back", doubled)


def stray_events_are_left(patch: Patch) -> None:
    tail_read = Master.tail_read

    def blind(self: Master, view: NodeView, event: Any) -> list[Result]:
        return tail_read(self, view, replace(event, events=()))

    patch.setattr(ScrubSchedule, "scrubbed", lambda *_: [])
    patch.setattr(Master, "tail_read", blind)


def holes_are_left(patch: Patch) -> None:
    """Only what is there too much is found, and not what is missing."""
    findings = Scrubber.findings

    def strays_only(self: Scrubber) -> Findings:
        return findings(self)._replace(holes=())

    patch.setattr(Scrubber, "findings", strays_only)


def repeated_end_of_a_transaction_is_believed(patch: Patch) -> None:
    """The client has sent EndTxn twice, and the second answer counts for the first."""
    patch.setattr(end_txn, "may_be_repeated", lambda *_: False)


def unsynced_batches_are_trusted_after_a_failed_sync(patch: Patch) -> None:
    """Only what failed is written again, and not what the failed sync should have secured."""
    failed = Durability.store_failed

    def trusting(self: Durability, view: NodeView, event: Any) -> list[Result]:
        self._in_flight = [held for held in self._in_flight if held.token >= event.token]
        return failed(self, view, event)

    patch.setattr(Durability, "store_failed", trusting)


def log_is_trimmed_too_early(patch: Patch) -> None:
    patch.setattr(all_copies, "durable_everywhere", lambda view: 10**9)


def outcomes_are_trimmed_away(patch: Patch) -> None:
    trim = Copies.trim

    class Forgetful:
        """A view of a node that remembers no request."""

        outcomes = SimpleNamespace(oldest_cas=0)

        def __init__(self, view: NodeView) -> None:
            self._view = view

        def __getattr__(self, name: str) -> Any:
            return getattr(self._view, name)

    def blind(self: Copies, view: NodeView) -> list[Result]:
        forgetful: Any = Forgetful(view)
        return trim(self, forgetful)

    patch.setattr(Copies, "trim", blind)


def synchronised_without_a_digest(patch: Patch) -> None:
    def trusting(self: Synchroniser) -> Any:
        if not self.entities:
            return None
        state = states.restore(0, self.entities.items())
        return state._replace(cas=self.base_cas)

    patch.setattr(Synchroniser, "resolve", trusting)


def reply_from_the_producers_return_code(patch: Patch) -> None:
    ended = Master.ended

    def trusting(self: Master, view: NodeView, event: Any) -> list[Result]:
        attempt = self.committer.attempt
        is_its_end = attempt is not None and event.token == attempt.token
        told = reply_early(self) if is_its_end and attempt.state == CONCLUDING else []
        return [*told, *ended(self, view, event)]

    patch.setattr(Master, "ended", trusting)
    ambiguous_commit_is_called_a_refusal(patch)


def cas_as_a_maximum_over_records(patch: Patch) -> None:
    resolve = Synchroniser.resolve

    def highest(self: Synchroniser) -> Any:
        state = resolve(self)
        if not isinstance(state, states.StateContext) or not state.entities:
            return state
        return state._replace(cas=max(held.cas for held in state.entities.values()))

    patch.setattr(Synchroniser, "resolve", highest)


def silent_damage_is_believed(patch: Patch) -> None:
    started = nodes.HANDLERS[Started]

    def trusting(self: Node, event: Started) -> None:
        restored = event.restored
        if restored is not None and restored.authority is not None:
            state = restored.state._replace(digest=restored.authority.digest)
            event = replace(event, restored=replace(restored, state=state))
        started(self, event)

    patch.setitem(nodes.HANDLERS, Started, trusting)


def groups_have_no_bound(patch: Patch) -> None:
    patch.setattr(group_commit, "weight", lambda mutations: 0)
