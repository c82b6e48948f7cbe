"""One attempt at a two-phase commit, as the master that proposed it sees it.

Pure. The attempt moves along `MOVES`; anything else is a broken invariant. What it knows: where
its proposal stands (the fold opened it), who answered what, and which CAS its events got. It
decides nothing about time; the committer asks it with the clock at hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coordinator.core.catalog.decisions import EndedAlter
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import Outcome, Request
from coordinator.core.model.outcome_records import RecordedOutcome
from coordinator.core.model.records import ACCEPTED, REFUSED, ProposalAnswered, TransactionProposed
from coordinator.core.model.types import Cas, Offset

PROPOSED, CONCLUDING, ABANDONING, UNDOING = "proposed", "concluding", "abandoning", "undoing"

MOVES: dict[str, frozenset[str]] = {
    PROPOSED: frozenset({CONCLUDING, ABANDONING}),
    CONCLUDING: frozenset(),
    ABANDONING: frozenset({UNDOING}),
    UNDOING: frozenset(),
}
"""Proposed: collecting answers and offsets. Concluding: the commit is being written. Abandoning:
the Kafka transaction is being aborted. Undoing: the rollback is being written. Only the status
record, read back, ends the attempt."""


@dataclass(slots=True)
class Enlisted:
    """A request in the group: which of the group's mutations are its own, and its answer.

    `first` is the number of its first mutation, `subject` the one whose CAS it answers (-1 where
    `outcome` is already whole). `waits_for` are the indexes whose READY ends the request. `record`
    is what is remembered of it, but for its CAS. `ends` are requests of others.
    """

    request: Request
    outcome: Outcome
    first: int
    subject: int
    waits_for: tuple[int, ...] = ()
    record: RecordedOutcome | None = None
    ends: tuple[EndedAlter, ...] = ()


@dataclass(slots=True, kw_only=True)
class Attempt:
    """The transaction in flight. At most one exists."""

    proposal: TransactionProposed
    enlisted: list[Enlisted]
    began_ms: int
    sent_ms: int
    state: str = PROPOSED
    token: int = 0
    incarnations: Mapping[int, int] = field(default_factory=dict)
    """The incarnation of each participant: another process under its number is no copy."""
    offset: Offset | None = None
    cas: tuple[Cas, ...] = ()
    after: StateContext | None = None
    resends: int = 0
    doubted_ms: int = 0
    answers: dict[int, ProposalAnswered] = field(default_factory=dict)
    early: list[ProposalAnswered] = field(default_factory=list)
    expiring: tuple[int, ...] = ()
    reason: str = ""

    def move(self, to: str) -> None:
        assert to in MOVES[self.state], f"{self.state} -> {to}"
        self.state = to

    def open_at(self, offset: Offset) -> None:
        """The fold opened the proposal there; answers that came before now count or not."""
        self.offset = offset
        early, self.early = self.early, []
        for answer in early:
            self.count(answer)

    def count(self, answer: ProposalAnswered) -> None:
        """Count an answer, if it names this proposal at its offset."""
        if answer.txn != self.proposal.txn:
            return
        if self.incarnations.get(answer.node) != answer.incarnation:
            return
        if self.offset is None:
            self.early.append(answer)
        elif answer.proposal_offset == self.offset and answer.node in self.proposal.participants:
            known = self.answers.get(answer.node)
            if known is None or known.answer != ACCEPTED:
                self.answers[answer.node] = answer

    @property
    def accepted(self) -> tuple[int, ...]:
        return tuple(sorted(a.node for a in self.answers.values() if a.answer == ACCEPTED))

    @property
    def refusals(self) -> tuple[ProposalAnswered, ...]:
        return tuple(a for a in self.answers.values() if a.answer == REFUSED)

    @property
    def missing(self) -> tuple[int, ...]:
        """The participants that have not accepted."""
        accepted = set(self.accepted)
        return tuple(n for n in self.proposal.participants if n not in accepted)
