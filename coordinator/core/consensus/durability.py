"""What a node has in its store, and when it may say that a proposal is durable there.

Pure. One batch carries everything that belongs to one applied offset of `commit`: entities, the
Authority, the prepared transaction. A batch with installed changes needs no sync, since the node
can read the log again. A batch with an open proposal is synced, and the node answers the proposal
only after that. After a refused write the store gets nothing until a probe succeeds. Then it gets
everything that it has missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.effects import Note, Probe, Save
from coordinator.core.consensus.inputs import PreparedTransaction, Stored, StoreFailed
from coordinator.core.consensus.signals import AnswerProposal, ChainBroken, Result
from coordinator.core.consensus.view import FollowedView, Tokens
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import ACCEPTED, BEHIND, REFUSED, ProposalAnswered

UNSYNCED_SAVES_MAX = 64


@dataclass(slots=True)
class Unsaved:
    """Changes that are installed in memory and go to the store with the next batch."""

    changes: dict[str, Versioned | None] = field(default_factory=dict)
    wipe: bool = False
    needed: bool = False
    outcomes: dict[int, KeptGroup | None] = field(default_factory=dict)


class Checkpoint(NamedTuple):
    """What a node knows at one offset of `commit`, beside the entities.

    If `is_whole` is false, the node does not have the state yet. Then the store does not get the
    Authority, and a node that finds its store so synchronises in full.
    """

    applied: int
    authority: AuthorityState | None
    state: StateContext
    prepared: PreparedTransaction | None
    is_whole: bool


def checkpoint(view: FollowedView, prepared: PreparedTransaction | None) -> Checkpoint:
    """Return what a node knows now, with this prepared transaction."""
    return Checkpoint(view.applied, view.authority, view.state, prepared, view.state_known)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A batch that may not be durable yet: what it held, and up to which offset of `commit`."""

    token: int
    unsaved: Unsaved
    applied: int


class Durability:
    """Brings what a node knows into its store, and answers proposals once they are there."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self.sick = ""
        """Why the store refuses writes; empty while it takes them."""
        self.durable = -1
        """The offset of `commit` up to which the store has everything, synced."""
        self.unsaved = Unsaved()
        self._in_flight: list[InFlight] = []
        self._saved_rows = 0
        self._prepared_token = 0
        self._prepared_answer: tuple[str, str] | None = None
        self._before_prepared: AuthorityState | None = None
        self._probe_token = 0
        self._probed_ms = 0

    # -- what changed ------------------------------------------------------------------------

    def restored(self, view: FollowedView, rows: int) -> list[Result]:
        """The store holds everything, `rows` of the rolling log of transactions included."""
        self._saved_rows = rows
        self.durable = view.applied
        return self.answer(view, ACCEPTED, "")

    def replaced(self, view: FollowedView) -> list[Result]:
        """The whole state came from elsewhere: the store begins anew with it."""
        self._saved_rows = 0
        self._prepared_answer = None
        self._prepared_token = 0
        if view.prepared is not None:
            self._before_prepared = None
        outcomes: dict[int, KeptGroup | None] = {one.cas: one for one in view.outcomes.kept()}
        self.unsaved = Unsaved(dict(view.state.entities.items()), True, True, outcomes)
        return [self.save(checkpoint(view, view.prepared)), *self.save_prepared(view)]

    def opened(self, before: AuthorityState | None) -> None:
        """A proposal was opened; `before` is the Authority without it."""
        self._prepared_answer = None
        self._prepared_token = 0
        self._before_prepared = before

    # -- batches -----------------------------------------------------------------------------

    def save(self, at: Checkpoint, sync: bool = False) -> Save:
        """Return one batch, whose parts all belong to the same offset of `commit`."""
        unsaved, self.unsaved = self.unsaved, Unsaved()
        token = self._tokens.next()
        self._in_flight.append(InFlight(token, unsaved, at.applied if at.is_whole else -1))
        return Save(
            token=token,
            applied=at.applied,
            authority=at.authority if at.is_whole else None,
            rows=self._new_rows(at.authority) if at.is_whole else (),
            prepared=at.prepared,
            cas=at.state.cas,
            digest=at.state.digest,
            changes=tuple(unsaved.changes.items()),
            wipe=unsaved.wipe,
            sync=sync or len(self._in_flight) >= UNSYNCED_SAVES_MAX,
            outcomes=tuple(unsaved.outcomes.items()),
        )

    def save_installed(self, view: FollowedView) -> list[Result]:
        """Save what was installed; before a new proposal, as of the offset before it."""
        unsaved, prepared = self.unsaved, view.prepared
        if not view.state_known or self.sick or not (unsaved.needed or unsaved.changes):
            return []
        if prepared is None or self._prepared_answer is not None or self._prepared_token:
            return [self.save(checkpoint(view, prepared))]
        if unsaved.changes or unsaved.wipe:
            at = prepared.offset - 1
            return [self.save(Checkpoint(at, self._before_prepared, view.state, None, True))]
        return []

    def save_prepared(self, view: FollowedView) -> list[Result]:
        """Save the open proposal, synced; the answer waits for `Stored`."""
        if view.prepared is None or self._prepared_answer is not None or self._prepared_token:
            return []
        if not view.state_known:
            return self.answer(view, BEHIND, view.phase)
        if self.sick:
            return self.answer(view, REFUSED, self.sick)
        saved = self.save(checkpoint(view, view.prepared), sync=True)
        self._prepared_token = saved.token
        return [saved]

    def _new_rows(self, authority: AuthorityState | None) -> tuple[Any, ...]:
        """Return the rows of the rolling log that the store does not have as they are now."""
        if authority is None:
            return ()
        oldest = authority.log_next - len(authority.log)
        first = max(self._saved_rows - 1, oldest)
        self._saved_rows = authority.log_next
        return tuple((n, authority.log[n]) for n in range(first, authority.log_next))

    # -- what the store says -----------------------------------------------------------------

    def stored(self, view: FollowedView, event: Stored) -> list[Result]:
        """A batch is durable, or the store takes writes again."""
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = ""
            return [Note("the store takes writes again"), *self.save_installed(view)]
        done = [held for held in self._in_flight if held.token <= event.token]
        self._in_flight = [held for held in self._in_flight if held.token > event.token]
        self.durable = max([self.durable, *(held.applied for held in done)])
        if event.token == self._prepared_token and view.prepared is not None:
            self._prepared_token = 0
            return self.answer(view, ACCEPTED, "")
        return []

    def store_failed(self, view: FollowedView, event: StoreFailed) -> list[Result]:
        """The store takes nothing more until a probe succeeds: keep what it did not take."""
        self._probed_ms = view.now.mono_ms
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = event.reason
            return []
        for batch in reversed(self._in_flight):
            self.unsaved = _merged(batch.unsaved, self.unsaved)
        self._in_flight.clear()
        self._saved_rows = 0
        found: list[Result] = []
        if not self.sick:
            self.sick = event.reason
            found.append(Note(f"the store refuses writes: {event.reason}"))
        is_lost = bool(self._prepared_token) and self._prepared_token >= event.token
        if is_lost and view.prepared is not None:
            self._prepared_token = 0
            found += self.answer(view, REFUSED, event.reason)
        return found

    def tick(self, view: FollowedView) -> list[Result]:
        """Probe a store that refused."""
        now = view.now.mono_ms
        due = now - self._probed_ms > view.config.probe_ms
        if not self.sick or self._probe_token or not due:
            return []
        self._probed_ms = now
        self._probe_token = self._tokens.next()
        return [Probe(self._probe_token)]

    # -- answers -----------------------------------------------------------------------------

    def answer(self, view: FollowedView, answer: str, reason: str) -> list[Result]:
        """Answer the prepared proposal, if it is still open and asks this node."""
        opened = view.authority.open if view.authority else None
        if view.prepared is None or opened is None or opened.offset != view.prepared.offset:
            return []
        found: list[Result] = []
        builds_on, at = (opened.prev_cas, opened.prev_digest), (view.state.cas, view.state.digest)
        if answer == ACCEPTED and at != builds_on:
            why = f"{opened.txn} follows CAS {opened.prev_cas}, not {view.state.cas}"
            found.append(ChainBroken(why))
            answer, reason = BEHIND, f"this node stands at CAS {view.state.cas}"
        self._prepared_answer = (answer, reason)
        config = view.config
        if config.node in opened.participants:
            record = ProposalAnswered(
                config.node, config.incarnation, opened.txn, opened.offset, answer, reason
            )
            found.append(AnswerProposal(record))
        return found

    def answer_again(self, view: FollowedView) -> list[Result]:
        """The master asks once more: repeat the answer, if there is one."""
        return [] if self._prepared_answer is None else self.answer(view, *self._prepared_answer)


def _merged(older: Unsaved, newer: Unsaved) -> Unsaved:
    """Return one batch that does what the two do, one after the other."""
    if newer.wipe:
        return newer
    older.changes.update(newer.changes)
    older.outcomes.update(newer.outcomes)
    return Unsaved(older.changes, older.wipe, True, older.outcomes)
