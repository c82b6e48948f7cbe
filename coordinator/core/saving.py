"""What a node keeps in its store, and when it may say that a proposal is durable there.

Pure. A batch carries everything that belongs to one applied offset of `commit`: entities, the
Authority, the local log. What was only installed needs no sync, since the log can be read again;
an open proposal does, and is answered only after that. A store that refused a write gets nothing
more until a probe succeeds, and then everything that it missed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.core.authority_state import AuthorityState
from coordinator.core.effects import Answer, Probe, Save
from coordinator.core.inputs import LocalLog, Stored, StoreFailed
from coordinator.core.outcomes import KeptGroup
from coordinator.core.records import ACCEPTED, BEHIND, REFUSED, ProposalAnswered
from coordinator.core.state import StateContext, Versioned

if TYPE_CHECKING:
    from coordinator.core.node import Node

UNSYNCED_SAVES_MAX = 64


@dataclass(slots=True)
class Unsaved:
    """Changes that are installed in memory and go to the store with the next batch."""

    changes: dict[str, Versioned | None] = field(default_factory=dict)
    wipe: bool = False
    needed: bool = False
    outcomes: dict[int, KeptGroup | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A batch that may not be durable yet: what it held, and up to which offset of `commit`."""

    token: int
    unsaved: Unsaved
    applied: int


class Keeper:
    """Brings what a node knows into its store, and answers proposals once they are there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.sick = ""
        self.durable = -1
        """The offset of `commit` up to which the store has everything, synced."""
        self.unsaved = Unsaved()
        self._in_flight: list[InFlight] = []
        self._saved_rows = 0
        self._log_token = 0
        self._log_answer: tuple[str, str] | None = None
        self._before_log: AuthorityState | None = None
        self._probe_token = 0
        self._probed_ms = 0

    # -- what changed ------------------------------------------------------------------------

    def restored(self, rows: int) -> None:
        """The store holds everything, `rows` of the rolling log of transactions included."""
        self._saved_rows = rows
        self.durable = self.node.applied
        self.answer(ACCEPTED, "")

    def replaced(self, state: StateContext) -> None:
        """The whole state came from elsewhere: the store begins anew with it."""
        self._saved_rows = 0
        self._log_answer = None
        self._log_token = 0
        if self.node.log is not None:
            self._before_log = None
        outcomes: dict[int, KeptGroup | None] = {one.cas: one for one in self.node.outcomes.kept()}
        self.unsaved = Unsaved(dict(state.entities.items()), True, True, outcomes)
        self.save(self.node.log)
        self.save_log()

    def opened(self, before: AuthorityState | None) -> None:
        """A proposal was opened; `before` is the Authority without it."""
        self._log_answer = None
        self._log_token = 0
        self._before_log = before

    # -- batches -----------------------------------------------------------------------------

    def save(self, log: LocalLog | None, sync: bool = False) -> int:
        """Emit one batch, whose parts all belong to the applied offset, and return its token."""
        node = self.node
        unsaved, self.unsaved = self.unsaved, Unsaved()
        token = node.token()
        self._in_flight.append(InFlight(token, unsaved, node.applied if node.state_known else -1))
        sync = sync or len(self._in_flight) >= UNSYNCED_SAVES_MAX
        node.emit(
            Save(
                token,
                node.applied,
                node.authority if node.state_known else None,
                self._new_rows() if node.state_known else (),
                log,
                node.state.cas,
                node.state.digest,
                tuple(unsaved.changes.items()),
                unsaved.wipe,
                sync,
                tuple(unsaved.outcomes.items()),
            )
        )
        return token

    def save_installed(self) -> None:
        """Persist what the batch changed."""
        node, unsaved = self.node, self.unsaved
        if not node.state_known or self.sick or not (unsaved.needed or unsaved.changes):
            return
        if node.log is None or self._log_answer is not None or self._log_token:
            self.save(node.log)
        elif unsaved.changes or unsaved.wipe:
            self._save_up_to(node.log)

    def _save_up_to(self, log: LocalLog) -> None:
        """Persist what was installed before a new proposal, as of the offset before it."""
        node = self.node
        authority, applied = node.authority, node.applied
        node.authority, node.applied = self._before_log, log.offset - 1
        self.save(None)
        node.authority, node.applied = authority, applied

    def save_log(self) -> None:
        """Persist the open proposal, synced; the answer waits for `Stored`."""
        node = self.node
        if node.log is None or self._log_answer is not None or self._log_token:
            return
        if not node.state_known:
            self.answer(BEHIND, node.phase)
        elif self.sick:
            self.answer(REFUSED, self.sick)
        else:
            self._log_token = self.save(node.log, sync=True)

    def _new_rows(self) -> tuple[Any, ...]:
        """Return the rows of the rolling log that the store does not have as they are now."""
        authority = self.node.authority
        if authority is None:
            return ()
        oldest = authority.log_next - len(authority.log)
        first = max(self._saved_rows - 1, oldest)
        self._saved_rows = authority.log_next
        return tuple((n, authority.log[n]) for n in range(first, authority.log_next))

    # -- what the store says -----------------------------------------------------------------

    def stored(self, event: Stored) -> None:
        """A batch is durable, or the store takes writes again."""
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = ""
            self.node.note("the store takes writes again")
            self.save_installed()
            return
        done = [held for held in self._in_flight if held.token <= event.token]
        self._in_flight = [held for held in self._in_flight if held.token > event.token]
        self.durable = max([self.durable, *(held.applied for held in done)])
        if event.token == self._log_token and self.node.log is not None:
            self._log_token = 0
            self.answer(ACCEPTED, "")

    def store_failed(self, event: StoreFailed) -> None:
        """The store takes nothing more until a probe succeeds: keep what it did not take."""
        self._probed_ms = self.node.now.mono_ms
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = event.reason
            return
        for batch in reversed(self._in_flight):
            self.unsaved = _merged(batch.unsaved, self.unsaved)
        self._in_flight.clear()
        self._saved_rows = 0
        if not self.sick:
            self.sick = event.reason
            self.node.note(f"the store refuses writes: {event.reason}")
        if self._log_token and self._log_token >= event.token and self.node.log is not None:
            self._log_token = 0
            self.answer(REFUSED, event.reason)

    def tick(self) -> None:
        """Probe a store that refused."""
        now = self.node.now.mono_ms
        due = now - self._probed_ms > self.node.config.probe_ms
        if self.sick and not self._probe_token and due:
            self._probed_ms = now
            self._probe_token = self.node.token()
            self.node.emit(Probe(self._probe_token))

    # -- answers -----------------------------------------------------------------------------

    def answer(self, answer: str, reason: str) -> None:
        """Answer the proposal in the local log, if it is still open and asks this node."""
        node = self.node
        opened = node.authority.open if node.authority else None
        if node.log is None or opened is None or opened.offset != node.log.offset:
            return
        if answer == ACCEPTED and (node.state.cas, node.state.digest) != (
            opened.prev_cas,
            opened.prev_digest,
        ):
            node.lose_track(f"{opened.txn} follows CAS {opened.prev_cas}, not {node.state.cas}")
            answer, reason = BEHIND, f"this node stands at CAS {node.state.cas}"
        self._log_answer = (answer, reason)
        if node.config.node not in opened.participants:
            return
        record = ProposalAnswered(
            node.config.node,
            node.config.incarnation,
            opened.txn,
            opened.offset,
            answer,
            reason,
        )
        if node.master is not None:
            node.master.answered(record)
        else:
            node.emit(Answer(record))

    def answer_again(self) -> None:
        """The master asks once more: repeat the answer, if there is one."""
        if self._log_answer is not None:
            self.answer(*self._log_answer)


def _merged(older: Unsaved, newer: Unsaved) -> Unsaved:
    """Return one batch that does what the two do, one after the other."""
    if newer.wipe:
        return newer
    older.changes.update(newer.changes)
    older.outcomes.update(newer.outcomes)
    return Unsaved(older.changes, older.wipe, True, older.outcomes)
