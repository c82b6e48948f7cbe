"""A node's process that measures how long its loop does not turn: `FILE` and the node's arguments.

At SIGUSR1 it writes the longest pauses since the last time into the file, in milliseconds, the
longest first. What the loop's thread waited for a processor, since others had all of them, is not
counted, where the kernel tells it: that is the machine's pause. Nor is a pause longer than what the
process used of processors meanwhile: whichever thread held the loop then, did not get one.
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
from coordinator.node.shell import Shell

SCHEDSTAT = Path("/proc/thread-self/schedstat")
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


def starved_s() -> float:
    """Return for how long this thread was ready to run and had no processor, since it began."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


async def measure() -> None:
    """Note for how long the loop did not come round to this."""
    last_s, last_starved_s, last_used_s = time.perf_counter(), starved_s(), time.process_time()
    while True:
        await asyncio.sleep(STEP_S)
        now_s, now_starved_s, used_s = time.perf_counter(), starved_s(), time.process_time()
        pause_s = now_s - last_s - STEP_S - (now_starved_s - last_starved_s)
        pauses_ms.append(round(min(pause_s, used_s - last_used_s) * 1000, 2))
        last_s, last_starved_s, last_used_s = now_s, now_starved_s, used_s
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
