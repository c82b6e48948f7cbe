"""The transaction in flight: from the proposal to the verdict that is read back.

Pure. At most one transaction is in flight, and at most one Kafka transaction. The proposal goes to
`commit` as a plain record, its events into an open Kafka transaction. Once every in-sync node has
the proposal on its disk, the verdict *commit* and the replies join the events, all or nothing. A
refusal aborts the Kafka transaction, and the verdict *rollback* is written in one of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.effects import (
    Abandon,
    Answer,
    Append,
    Conclude,
    WriteEvents,
    WriteHistory,
)
from coordinator.core.consensus.inputs import AppendFailed, Ended, Written
from coordinator.core.consensus.signals import LoseMastership, Result
from coordinator.core.consensus.view import NodeView, Tokens, authority_of
from coordinator.core.leader.group_commit import Group
from coordinator.core.leader.transaction import ABANDONING, CONCLUDING, PROPOSED, UNDOING, Attempt
from coordinator.core.leader.verdicts import commit_of, ddl_replies, dead_letters
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import (
    CommitRecord,
    Event,
    MemberExpired,
    ProposalAnswered,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.types import CAS_MAX, Cas, Epoch, Offset, TxnId

REASON_BYTES_MAX = 300
"""So much of the reason of a rollback is kept: each claim carries those of all transactions that
the log of transactions has, and has to fit on `commit`."""


class Committer:
    """Writes for a master: one transaction at a time, or records of the Authority.

    The master leads since `began_ms`, by the monotonic clock. Large because each step of a
    transaction has an answer, a failure and a time-out.
    """

    def __init__(self, epoch: Epoch, tokens: Tokens, codec: EntityCodec, began_ms: int) -> None:
        self._epoch = epoch
        self._tokens = tokens
        self._codec = codec
        self._began_ms = began_ms
        self.attempt: Attempt | None = None
        self.seq = 0
        self.has_committed = False
        self._writing = 0
        self._written: CommitRecord | None = None
        self._writing_since_ms = 0
        self._refusals: dict[int, int] = {}
        self._echoed_ms = 0

    @property
    def is_writing(self) -> bool:
        """Tell whether records of the Authority were written and not read back yet.

        Until they are, the Authority at hand is not the one to decide by.
        """
        return bool(self._writing)

    @property
    def next_txn(self) -> TxnId:
        return TxnId(self._epoch, self.seq + 1)

    def is_overdue(self, view: NodeView) -> bool:
        """Tell whether what was written is not read back although it should be."""
        now, limit = view.now.mono_ms, view.config.verdict_timeout_ms
        if self.attempt is not None and now - self.attempt.began_ms > limit:
            return True
        return self.is_writing and now - self._writing_since_ms > limit

    # -- records of the Authority ------------------------------------------------------------

    def write(self, view: NodeView, records: Iterable[CommitRecord]) -> list[Result]:
        """Write Authority records in a Kafka transaction of their own, and wait for them."""
        written = tuple(records)
        self._writing = self._tokens.next()
        self._written = written[-1]
        self._writing_since_ms = view.now.mono_ms
        return [Conclude(self._writing, written)]

    def read_back(self, record: CommitRecord) -> None:
        """A record was folded: if it is the last one written, what was written counts now."""
        if self._writing and record == self._written:
            self._writing = 0
            self._written = None

    def membership_changed(self, authority: AuthorityState) -> None:
        """The in-sync set may have changed: refusals count anew."""
        members = authority.members
        self._refusals = {n: count for n, count in self._refusals.items() if n in members}

    # -- the proposal ------------------------------------------------------------------------

    def propose(self, view: NodeView, group: Group) -> list[Result]:
        """Send the proposal of a group, and its events."""
        authority, now = authority_of(view), view.now.mono_ms
        self.seq = group.txn.seq
        proposal = TransactionProposed(
            group.txn,
            view.state.cas,
            view.state.digest,
            authority.active,
            tuple(group.mutations),
        )
        token = self._tokens.next()
        incarnations = {n: member.incarnation for n, member in authority.members.items()}
        self.attempt = Attempt(
            proposal=proposal,
            enlisted=group.enlisted,
            began_ms=now,
            sent_ms=now,
            token=token,
            incarnations=incarnations,
        )
        return [WriteEvents(token, events_of(proposal, ())), Append(token, proposal)]

    def opened(self, txn: TxnId, offset: Offset) -> None:
        """The fold opened a proposal: it is *initial*."""
        if self.attempt is not None and self.attempt.proposal.txn == txn:
            self.attempt.open_at(offset)

    def written(self, view: NodeView, event: Written) -> list[Result]:
        """The events stand in the open Kafka transaction: their CAS is known."""
        attempt = self.attempt
        if attempt is None or event.token != attempt.token or attempt.state != PROPOSED:
            return []
        base, mutations = authority_of(view).cas_base, attempt.proposal.mutations
        cas = tuple(Cas(base + offset) for offset in event.offsets)
        first = cas[0] if cas else 0
        contiguous = cas == tuple(range(first, first + len(mutations)))
        if not contiguous or first <= view.state.cas or cas[-1] > CAS_MAX:
            return [LoseMastership(f"the events of {attempt.proposal.txn} are not contiguous")]
        attempt.cas = cas
        attempt.after = states.evolve(view.state, zip(mutations, cas, strict=True))
        return [WriteHistory(events_of(attempt.proposal, cas))]

    def append_failed(self, view: NodeView, event: AppendFailed) -> list[Result]:
        """The proposal may be lost: send it again; the fold opens it at most once."""
        if self.attempt is not None and event.token == self.attempt.token:
            return self._resend(view, self.attempt)
        return []

    def answered(self, record: ProposalAnswered) -> None:
        """A node says whether it has the proposal on its disk."""
        if self.attempt is not None:
            self.attempt.count(record)

    def echoed(self, now_ms: int) -> None:
        """This node's own answer came back by the topic: answers can be heard."""
        self._echoed_ms = now_ms

    # -- towards a verdict -------------------------------------------------------------------

    def advance(self, view: NodeView) -> list[Result]:
        """Conclude or abandon the transaction, if its answers say so."""
        attempt = self.attempt
        if attempt is None or attempt.state != PROPOSED or attempt.offset is None:
            return []
        refusals = attempt.refusals
        if any(a.node == view.config.node for a in refusals):
            return [LoseMastership("this node's own store refuses writes")]
        if refusals:
            reasons = "; ".join(f"node {a.node}: {a.reason}" for a in refusals)
            return self._abandon(attempt, reasons, self._persistent(view, refusals))
        if attempt.cas and not attempt.missing:
            return self._conclude(view, attempt, ())
        return []

    def _persistent(
        self, view: NodeView, refusals: tuple[ProposalAnswered, ...]
    ) -> tuple[int, ...]:
        """Return the replicas that have refused too many times since the last commit.

        An acceptance alone does not begin anew: of two that refuse in turn none would ever go.
        """
        for answer in refusals:
            self._refusals[answer.node] = self._refusals.get(answer.node, 0) + 1
        limit = view.config.attempts_max
        return tuple(a.node for a in refusals if self._refusals[a.node] >= limit)

    def tick(self, view: NodeView) -> list[Result]:
        """Ask the silent again, and after too many times go on without them, or not at all."""
        attempt, config = self.attempt, view.config
        if attempt is None or attempt.state != PROPOSED:
            return []
        if view.now.mono_ms - attempt.sent_ms <= config.ack_timeout_ms:
            return []
        lapsed = _lapsed(view, attempt)
        if attempt.resends < config.ack_retries_max and not lapsed:
            return self._resend(view, attempt)
        if attempt.offset is None:
            return self._abandon(attempt, "the proposal was not read back", ())
        if not attempt.cas:
            return self._resend(view, attempt)
        silent, copies = attempt.missing, len(attempt.accepted)
        if config.node in silent:
            return [LoseMastership("this node's own store does not answer")]
        if self._echoed_ms < attempt.doubted_ms and not lapsed:
            # Not even this node's own answer came back: nobody is to blame for their silence.
            return self._resend(view, attempt)
        if copies >= authority_of(view).minimum:
            return self._conclude(view, attempt, silent)
        reason = f"nodes {list(silent)} are silent, and {copies} copies are too few"
        return self._abandon(attempt, reason, silent)

    def _resend(self, view: NodeView, attempt: Attempt) -> list[Result]:
        """Send the proposal again: void in the fold, and a reminder to who holds it."""
        now = view.now.mono_ms
        if not attempt.resends:
            attempt.doubted_ms = now
        attempt.resends += 1
        attempt.sent_ms = now
        own = attempt.answers.get(view.config.node)
        found: list[Result] = [] if own is None else [Answer(own)]
        if attempt.state == PROPOSED:
            found.append(Append(attempt.token, attempt.proposal))
        return found

    def _conclude(self, view: NodeView, attempt: Attempt, silent: tuple[int, ...]) -> list[Result]:
        """Everybody has it: write the verdict, the events and the replies, all or nothing."""
        attempt.move(CONCLUDING)
        for node in attempt.accepted:
            self._refusals.pop(node, None)
        verdict = commit_of(view, self._codec, attempt, view.now.mono_ms - self._began_ms)
        expired = [MemberExpired(self._epoch, n, "silent", view.now.wall_ms) for n in silent]
        replies = tuple(ddl_replies(view, attempt))
        letters = tuple(dead_letters(view, attempt))
        return [Conclude(attempt.token, (*expired, verdict), replies, letters)]

    def _abandon(self, attempt: Attempt, reason: str, expiring: tuple[int, ...]) -> list[Result]:
        """One refused, or too few answered: abort the Kafka transaction, then roll back."""
        attempt.move(ABANDONING)
        attempt.reason = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        attempt.expiring = expiring
        return [Abandon(attempt.token)]

    def ended(self, view: NodeView, event: Ended) -> list[Result]:
        """The producer says that a Kafka transaction ended; only the log says how."""
        attempt = self.attempt
        if attempt is None or event.token != attempt.token or attempt.state != ABANDONING:
            return []
        attempt.move(UNDOING)
        return self._undo(view, attempt)

    def _undo(self, view: NodeView, attempt: Attempt) -> list[Result]:
        """Write the terminal status *rollback*; those that cannot follow leave the in-sync set."""
        wall_ms, reason = view.now.wall_ms, attempt.reason
        offset = Offset(-1) if attempt.offset is None else attempt.offset
        verdict = TransactionRolledBack(attempt.proposal.txn, offset, reason, wall_ms)
        expired = [MemberExpired(self._epoch, n, reason, wall_ms) for n in attempt.expiring]
        return self.write(view, (*expired, verdict))

    # -- verdicts, read back -----------------------------------------------------------------

    def computed_state(self, record: TransactionCommitted) -> StateContext | None:
        """Return the state that a commit record leads to, if this master computed it."""
        attempt = self.attempt
        if attempt is None or attempt.proposal.txn != record.txn or attempt.cas != record.cas:
            return None
        return attempt.after

    def finish(self, txn: TxnId) -> Attempt | None:
        """Return the transaction in flight if it is this one: its verdict was read back."""
        attempt = self.attempt
        if attempt is None or attempt.proposal.txn != txn:
            return None
        self.attempt = None
        return attempt


def events_of(proposal: TransactionProposed, cas: tuple[Cas, ...]) -> tuple[Event, ...]:
    """Return the mutations of a proposal as events, with their CAS once it is known."""
    count = len(proposal.mutations)
    return tuple(
        Event(mutation, proposal.txn, number, count, cas[number] if cas else Cas(0))
        for number, mutation in enumerate(proposal.mutations)
    )


def _lapsed(view: NodeView, attempt: Attempt) -> bool:
    """Tell whether all that are missing have stopped their heartbeats as well.

    The master itself is alive, whatever is heard of it: its own store gets the whole patience.
    """
    missing = attempt.missing
    return bool(missing) and not any(
        node == view.config.node or view.peers.node_alive(node) for node in missing
    )
