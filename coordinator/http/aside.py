"""Long work, in a thread beside the node's loop, or in turns with it; the queues are bounded.

Each kind of work has one thread. More threads would take the interpreter's lock from the loop more
often, and would not finish the same work earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

from coordinator.http.errors import ApiError

T = TypeVar("T")


class Aside:
    """A thread that does one kind of work; `waiting_max` pieces of it may wait or be under way."""

    def __init__(self, name: str, waiting_max: int) -> None:
        self._name = name
        self._waiting_max = waiting_max
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns. ApiError `overloaded`: too much waits already."""
        if self._waiting >= self._waiting_max:
            text = f"{self._waiting} requests wait for the same ({self._name}): retry"
            raise ApiError("overloaded", text)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1


class Seats:
    """How many requests may wait for the node at a time: it looks at each with every commit."""

    def __init__(self, seats: int) -> None:
        self._free = seats

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a seat. ApiError `overloaded`: all are taken."""
        if self._free <= 0:
            raise ApiError("overloaded", "too many requests wait for this node: retry")
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


class Turns:
    """Serialises requests that need the loop itself; other work runs between two of them."""

    def __init__(self, waiting_max: int, patience_s: float) -> None:
        self._waiting_max = waiting_max
        self._patience_s = patience_s
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold the turn. ApiError `overloaded`: too many wait for it already, or for too long."""
        if self._waiting >= self._waiting_max:
            raise ApiError("overloaded", f"{self._waiting} large requests wait: retry")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience_s):
                await self._turn.acquire()
        except TimeoutError:
            raise ApiError("overloaded", "other large requests take all the time: retry") from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._turn.release()


READS = Seats(1_024)
"""Reads that wait for a barrier, or until a CAS is applied."""

WATCHERS = Seats(2_000)
"""Those who watch the state."""

BODIES = Aside("bodies", 64)
"""Reads what clients sent, if it is long."""

VIEWS = Aside("views", 64)
"""Writes what may be large."""

DEFINITIONS = Aside("definitions", 32)
"""Waits for the process that examines definitions: a quarter of a second for the worst of them, so
that the last one that waits is answered well before its deadline."""

HISTORY = Aside("history", 32)
"""Reads the past, which takes up to some seconds a piece."""

BUCKETS = Aside("buckets", 16)
"""Asks Kafka about topics."""

POSITIONS = Aside("positions", 128)
"""Asks Kafka which branches the partitions of topics are on, some milliseconds each."""
