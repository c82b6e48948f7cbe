"""A process of the data plane: it is started, killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tests.simulation.kernel.actor import Actor

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld


class Living(Protocol):
    """A process: everything that a kill takes."""

    def die(self) -> None: ...

    def read_state(self) -> None: ...

    def is_settled(self) -> bool: ...

    def stands(self) -> str: ...


L = TypeVar("L", bound=Living)


class Shell(Actor, Generic[L]):
    """What outlives a kill: number, processes so far, and how slow it is."""

    kind = ""

    def __init__(self, world: PlaneWorld, number: int, live: Callable[[Any], L]) -> None:
        self.world = world
        self.number = number
        self.incarnation = 0
        self.slow_ms = 0
        self.process: L | None = None
        self._launch = live
        world.broker["statecontext"].listeners.append(self._state_moved)

    def start(self) -> None:
        if self.process is None:
            self.incarnation += 1
            self.world.trace(f"{self.kind} {self.number} starts, incarnation {self.incarnation}")
            self.process = self._launch(self)

    def kill(self) -> None:
        if self.process is not None:
            self.world.trace(f"{self.kind} {self.number} is killed")
            self.process.die()
            self.process = None

    def heal(self) -> None:
        self.slow_ms = 0
        self.start()

    def unsettled(self) -> str:
        if self.process is None:
            return f"{self.kind} {self.number} is down"
        return "" if self.process.is_settled() else self.process.stands()

    def _state_moved(self) -> None:
        if self.process is not None:
            self.world.clock.at(self.world.clock.delay(), self.process.read_state)
