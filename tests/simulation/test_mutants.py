"""The simulator finds bugs: each mutant breaks one rule of the protocol, and some seed shows it.

A mutant that no seed catches means that the invariant is not watched, or that the fault which
would show it never strikes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core import authority as authorities
from coordinator.core import ddl
from coordinator.core import master as masters
from coordinator.core import node as nodes
from coordinator.core import state as states
from coordinator.core.authority import Folded
from coordinator.core.authority_state import (
    AuthorityState,
    Member,
    OpenTransaction,
    TransactionStatus,
)
from coordinator.core.commands import UNKNOWN, Outcome, refused
from coordinator.core.effects import Reply
from coordinator.core.master import Master
from coordinator.core.node import Node
from coordinator.core.records import (
    ACCEPTED,
    MemberAdmitted,
    TransactionCommitted,
    TransactionProposed,
)
from coordinator.core.saving import Keeper
from coordinator.core.synchroniser import Synchroniser
from coordinator.core.transaction import Attempt
from tests.simulation.violation import Violation
from tests.simulation.world import World

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


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


def refusal_without_a_barrier(patch: Patch) -> None:
    answer = Master._enlist_answer

    def hasty(self: Master, group: Any, request: Any, outcome: Outcome) -> None:
        if request.position is None and request.token:
            self._reply(request, outcome)
        else:
            answer(self, group, request, outcome)

    patch.setattr(Master, "_enlist_answer", hasty)


def read_without_a_barrier(patch: Patch) -> None:
    def hasty(self: Master, token: int, deadline_ms: int) -> None:
        self.node.emit(Reply(token, Outcome("ok", cas=self.node.state.cas)))

    patch.setattr(Master, "read_requested", hasty)


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


def admitted_behind(patch: Patch) -> None:
    def lax(state: Any, offset: int, record: MemberAdmitted) -> Folded:
        member = Member(record.node, record.incarnation, record.address)
        return Folded(replace(state, members=state.members.set(record.node, member)))

    def eager(self: Master) -> list[Any]:
        found = [
            MemberAdmitted(self.epoch, j.node, j.incarnation, j.address, j.cas, j.digest, 0)
            for j in self.joiners.values()
        ]
        self.joiners.clear()
        return found + records(self)

    records = Master._authority_records
    patch.setattr(Master, "_authority_records", eager)
    patch.setitem(authorities.FOLDS, MemberAdmitted, lax)


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


def outcomes_are_forgotten(patch: Patch) -> None:
    patch.setattr(ddl, "_remembered", lambda state, request, given: None)


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


def stray_events_are_left(patch: Patch) -> None:
    tail_read = Master.tail_read

    def blind(self: Master, event: Any) -> None:
        tail_read(self, replace(event, events=()))

    patch.setattr(Master, "tail_read", blind)
    patch.setitem(
        nodes.HANDLERS, nodes.TailRead, lambda self, e: self.master and blind(self.master, e)
    )


def later_ddl_overtakes_a_parked_command(patch: Patch) -> None:
    form_group = Master._form_group

    def forgetful(self: Master) -> Any:
        parked, self.parked = self.parked, {}
        group = form_group(self)
        for number, requests in parked.items():
            self.parked[number] = requests + self.parked.get(number, [])
        return group

    patch.setattr(Master, "_form_group", forgetful)


def expiry_follows_the_rollback(patch: Patch) -> None:
    write = Master._write
    patch.setattr(Master, "_write", lambda self, records: write(self, tuple(records)[::-1]))


def names_are_decided_apart(patch: Patch) -> None:
    footprint = ddl.footprint

    def narrow(state: Any, command: Any, request_id: str = "") -> frozenset[str]:
        keys = footprint(state, command, request_id)
        return frozenset(key for key in keys if not key.startswith("name/"))

    patch.setattr(ddl, "footprint", narrow)


def rollback_is_the_end_of_a_request_only_once(patch: Patch) -> None:
    retry = Master._retry

    def doubled(self: Master, attempt: Attempt, reason: str) -> None:
        for held in attempt.enlisted:
            if held.request.token:
                self.node.emit(Reply(held.request.token, Outcome(UNKNOWN, "unavailable")))
        retry(self, attempt, reason)

    patch.setattr(Master, "_retry", doubled)


def synchronised_without_a_digest(patch: Patch) -> None:
    def trusting(self: Synchroniser) -> Any:
        if not self.entities:
            return None
        state = states.restore(0, self.entities.items())
        return state._replace(cas=self.base_cas)

    patch.setattr(Synchroniser, "resolve", trusting)


NOWHERE: tuple[str, ...] = ()

MUTANTS: list[tuple[Plant, tuple[str, ...], set[str]]] = [
    (reply_before_the_commit_is_read_back, NOWHERE, {"acknowledged-is-effective-once"}),
    (reply_before_the_last_acknowledgement, NOWHERE, {"acknowledged-is-effective-once"}),
    (install_without_a_verdict, NOWHERE, {"a-node-shows-what-is-committed"}),
    (
        act_before_the_claim_is_read_back,
        ("pause_the_master", "cut_the_master", "crash_all", "call_lost"),
        {
            "only-the-claimed-master-writes",
            "acknowledged-is-effective-once",
            "events-in-the-same-transaction",
        },
    ),
    (late_proposal_is_accepted, ("append_doubled", "full_disk", "cut"), {"folds-agree"}),
    (refusal_without_a_barrier, ("cut_the_master", "few_writes"), {"linearizable"}),
    (read_without_a_barrier, ("cut_the_master", "pause_the_master"), {"linearizable-reads"}),
    (applied_offset_ahead_of_changes, NOWHERE, {"a-disk-holds-one-offset"}),
    (digest_is_ignored, NOWHERE, {"a-node-shows-what-is-committed"}),
    (admitted_behind, ("crash", "crash_and_wipe"), {"folds-agree"}),
    (
        commit_without_missing_answers,
        NOWHERE,
        {"accepted-is-durable", "every-participant-has-it"},
    ),
    (accept_before_it_is_durable, NOWHERE, {"accepted-is-durable"}),
    (outcomes_are_forgotten, NOWHERE, {"a-request-id-executes-once", "ddl-replies-agree"}),
    (
        ambiguous_commit_is_called_a_refusal,
        ("answer_lost", "call_slow", "slow_network"),
        {"refused-never-takes-effect"},
    ),
    (anybody_may_claim, ("cut", "crash_the_master", "slow_network"), {"folds-agree"}),
    (
        stray_events_are_left,
        ("end_late",),
        {"compacted-state-suffices", "no-alarm", "converges"},
    ),
    (
        later_ddl_overtakes_a_parked_command,
        ("crash_the_master", "pause_the_master"),
        {"ddl-is-answered", "one-dead-letter-each"},
    ),
    (
        expiry_follows_the_rollback,
        ("crash", "crash_and_wipe", "cut"),
        {"nothing-is-proposed-below-the-minimum"},
    ),
    (names_are_decided_apart, NOWHERE, {"unique-names"}),
    (rollback_is_the_end_of_a_request_only_once, ("full_disk", "cut"), {"one-answer-a-call"}),
    (synchronised_without_a_digest, ("crash_and_wipe",), {"a-node-shows-what-is-committed"}),
]
"""A mutant, the faults that can show it (none named: any), and the invariants that may name it."""

SEEDS_MAX = 150


def violations(focus: tuple[str, ...]) -> Iterator[Violation]:
    """Yield what the seeds that fail say."""
    for seed in range(SEEDS_MAX):
        try:
            World(seed, focus=focus).run()
        except Violation as violation:
            yield violation


@pytest.mark.parametrize(
    ("plant", "focus", "names"), MUTANTS, ids=[plant.__name__ for plant, _, _ in MUTANTS]
)
def test_a_planted_bug_is_caught(
    plant: Plant, focus: tuple[str, ...], names: set[str], monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    found = set()
    for violation in violations(focus):
        found.add(violation.name)
        if violation.name in names:
            return
    pytest.fail(f"{SEEDS_MAX} seeds of {plant.__name__} break only {sorted(found)}")
