"""A connection of a projector to a source, as both sources of the simulator have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from projector_sim.projector.connection_runs import Run


class SourceConnection:
    """What the source says goes into `inbox`, as a kind and the frame's body.

    `woken` is called when there is something, or when it is over. A source says in `_opened` how it
    begins, and in `_pump`, some time after each `wake`, what comes next.
    """

    def __init__(self, store: Any, run: Run, node: int, woken: Callable[[], None]) -> None:
        self.store, self.run, self.node, self.woken = store, run, node, woken
        self.clock = store.world.clock
        self.inbox: list[tuple[int, bytes]] = []
        self.closed, self.reason = False, ""
        self._is_open = self._due = False
        self.clock.at(self.clock.delay(), self._open)

    def _opened(self) -> None:
        raise NotImplementedError

    def _pump(self) -> None:
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        return self.closed and not self.inbox

    def close(self, reason: str) -> None:
        """The source ends the connection; what it has said may still be read."""
        if not self.closed:
            self.closed, self.reason = True, reason
            self.store.connections = [c for c in self.store.connections if c is not self]
            self.woken()

    def abandon(self) -> None:
        """The other side reads no more."""
        self.close("abandoned")
        self.inbox.clear()

    def wake(self) -> None:
        if self._is_open and not self._due and not self.closed:
            self._due = True
            self.clock.at(self.clock.delay(), self._woken)

    def _open(self) -> None:
        if not self.closed:
            self._is_open = True
            self.store.connections.append(self)
            self._opened()

    def _woken(self) -> None:
        self._due = False
        if not self.closed:
            self._pump()
