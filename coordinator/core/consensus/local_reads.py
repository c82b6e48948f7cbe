"""Reads at any node: each waits until this node has applied the CAS that it asks for. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.consensus.effects import Reply
from coordinator.core.consensus.inputs import ReadRequested
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView
from coordinator.core.model.commands import OK, Outcome, unknown

TOO_MANY_READERS = unknown("overloaded", "too many reads wait: retry")


@dataclass(frozen=True, slots=True)
class Waiter:
    """A reader who waits until this node has applied a CAS."""

    token: int
    at_least: int
    deadline_ms: int


class LocalReads:
    """The readers that wait at one node."""

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []

    def requested(self, view: NodeView, event: ReadRequested) -> list[Result]:
        """Take a reader; one who need not wait is answered at once."""
        if len(self._waiters) >= view.config.readers_max:
            return [Reply(event.token, TOO_MANY_READERS)]
        self._waiters.append(Waiter(event.token, event.at_least, event.deadline_ms))
        return self.serve(view)

    def serve(self, view: NodeView) -> list[Result]:
        """Answer those for whom this node has applied enough."""
        cas = view.state.cas
        served = [w for w in self._waiters if w.at_least <= cas]
        if served:
            self._waiters = [w for w in self._waiters if w.at_least > cas]
        return [Reply(waiter.token, Outcome(OK, cas=cas)) for waiter in served]

    def expire(self, view: NodeView) -> list[Result]:
        """Tell those whose deadline has passed how far this node is."""
        now, cas = view.now.mono_ms, view.state.cas
        late = [w for w in self._waiters if w.deadline_ms <= now]
        if late:
            self._waiters = [w for w in self._waiters if w.deadline_ms > now]
        return [
            Reply(w.token, unknown("timeout", f"this node has applied CAS {cas}, not {w.at_least}"))
            for w in late
        ]
