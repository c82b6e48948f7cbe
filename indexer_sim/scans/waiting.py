"""Scans that wait until enough was applied: they look again as soon as something was."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

WOKEN_MAX = 32
"""So many look again at once, in turn. The others do so when they have waited for a while anyway:
hundreds that wait for something else must not keep the loop busy each time."""


class Waiting:
    """The scans of one loop that wait."""

    def __init__(self) -> None:
        self.changes = 0
        """How often something was applied."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._wakes = False
        """Some are about to be woken."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def begin(self) -> None:
        """Who waits will do so in this loop, which runs."""
        self._loop = asyncio.get_running_loop()

    def changed(self) -> None:
        """Something was applied. For any thread."""
        self.changes += 1
        if self._waiting and self._loop is not None and not self._wakes:
            self._wakes = True
            with suppress(RuntimeError):  # The loop has ended, and nobody waits.
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until there are more changes than `seen`, for so long at most."""
        waiter = asyncio.get_running_loop().create_future()
        # Known before the comparison: so either this sees a change, or the change sees this.
        self._waiting[waiter] = None
        try:
            async with asyncio.timeout(timeout_s if self.changes == seen else 0):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiting.pop(waiter, None)

    def _wake(self) -> None:
        self._wakes = False
        for waiter in tuple(islice(self._waiting, WOKEN_MAX)):
            del self._waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
