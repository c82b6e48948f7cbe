"""Linearizable reads at the master: each is answered behind a barrier that was sent after it came.

Pure. The master writes a plain record to `commit` and waits until it reads it back. Then it has
read everything that was committed before. If the epoch is still its own, no other master has
replaced it. One barrier is in flight at a time; all requests that came before it was sent share
it. Refusals, and answers that change nothing, wait for a barrier, too, because the state that they
were decided by may be old.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.core.consensus.effects import Append, Reply
from coordinator.core.consensus.local_reads import TOO_MANY_READERS
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView, Tokens, unique
from coordinator.core.model.commands import OK, Outcome, unknown
from coordinator.core.model.records import ReadBarrier
from coordinator.core.model.types import Cas, Epoch


@dataclass(slots=True)
class PendingRead:
    """Somebody who waits for a barrier: a reader, or a caller whose command changes nothing."""

    token: int
    outcome: Outcome
    deadline_ms: int


class ReadBarriers:
    """The barrier in flight, who waits for it, and who waits for the next."""

    def __init__(self, epoch: Epoch, tokens: Tokens) -> None:
        self._epoch = epoch
        self._tokens = tokens
        self._nonce = 0
        self._sent_ms = 0
        self._waiting: list[PendingRead] = []
        self._next: list[PendingRead] = []

    def read_requested(self, view: NodeView, token: int, deadline_ms: int) -> list[Result]:
        """Take a reader, who is answered once a barrier that is sent after now was read back."""
        if len(self._waiting) + len(self._next) >= view.config.readers_max:
            return [Reply(token, TOO_MANY_READERS)]
        self.answer_behind(token, Outcome(OK), deadline_ms)
        return []

    def answer_behind(self, token: int, outcome: Outcome, deadline_ms: int) -> None:
        """Give a caller this answer behind the next barrier."""
        self._next.append(PendingRead(token, outcome, deadline_ms))

    def send(self, view: NodeView) -> list[Result]:
        """Send one barrier for all that wait, unless one is in flight."""
        if self._nonce or not self._next:
            return []
        self._waiting, self._next = self._next, []
        self._nonce = unique(view, self._tokens.next())
        return self._append(view)

    def _append(self, view: NodeView) -> list[Result]:
        self._sent_ms = view.now.mono_ms
        return [Append(0, ReadBarrier(self._epoch, self._nonce))]

    def read_back(self, view: NodeView, record: ReadBarrier) -> list[Result]:
        """A barrier was read back: if it is the one in flight, those behind it may be told."""
        if record.nonce != self._nonce or record.epoch != self._epoch:
            return []
        self._nonce = 0
        waiting, self._waiting = self._waiting, []
        return [Reply(one.token, _dated(one.outcome, view.state.cas)) for one in waiting]

    def tick(self, view: NodeView) -> list[Result]:
        """Repeat a barrier that may be lost."""
        if self._nonce and view.now.mono_ms - self._sent_ms > 2 * view.config.ack_timeout_ms:
            return self._append(view)
        return []

    def expire(self, now_ms: int) -> list[Result]:
        """Tell those whose deadline has passed that the log did not answer."""
        late = [one for one in (*self._waiting, *self._next) if one.deadline_ms <= now_ms]
        if late:
            self._waiting = [one for one in self._waiting if one.deadline_ms > now_ms]
            self._next = [one for one in self._next if one.deadline_ms > now_ms]
        outcome = unknown("timeout", "the log did not answer")
        return [Reply(one.token, outcome) for one in late]

    def depose(self, answer: Outcome) -> list[Result]:
        """Give everybody who waits this answer."""
        waiting = (*self._waiting, *self._next)
        self._waiting, self._next = [], []
        return [Reply(one.token, answer) for one in waiting]


def _dated(outcome: Outcome, cas: Cas) -> Outcome:
    """Return a read's outcome with the CAS at which it was answered."""
    return replace(outcome, cas=cas) if outcome.status == OK and not outcome.cas else outcome
