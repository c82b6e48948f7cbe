"""A node's process that measures how long its loop does not turn: `FILE` and the node's arguments.

At SIGUSR1 it writes the longest pauses since the last time into the file, in milliseconds, the
longest first.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from coordinator import process
from coordinator.shell import Shell

STEP_S = 0.001
KEPT = 20

pauses_ms: list[float] = []


class Timed(Shell):
    """The production shell, with a clock beside it."""

    async def run(self, *given: Any) -> None:
        clock = asyncio.create_task(measure())
        try:
            await super().run(*given)
        finally:
            clock.cancel()


async def measure() -> None:
    """Note for how long the loop did not come round to this."""
    last_s = time.perf_counter()
    while True:
        await asyncio.sleep(STEP_S)
        now_s = time.perf_counter()
        pauses_ms.append(round((now_s - last_s - STEP_S) * 1000, 2))
        last_s = now_s
        if len(pauses_ms) > 10 * KEPT:
            pauses_ms[:] = sorted(pauses_ms, reverse=True)[:KEPT]


def main() -> None:
    file = Path(sys.argv.pop(1))

    def tell(*_: object) -> None:
        told = sorted(pauses_ms, reverse=True)[:KEPT]
        pauses_ms.clear()
        written = file.with_suffix(".new")
        written.write_text(json.dumps(told))
        written.replace(file)

    process.Shell = Timed  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, tell)
    process.main()


if __name__ == "__main__":
    main()
