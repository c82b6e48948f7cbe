"""Ports for the processes of tests: free, and kept for this process as long as it lives.

Other processes of tests choose ports at the same time, and a process under test may be down for a
while. So whoever chooses a port holds a lock on it, which the system ends with the process.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

from coordinator.embedded.ports import PICKS_MAX, is_free, pick_free
from coordinator.runtime.files import FileLock

FOLDER = Path(tempfile.gettempdir()) / f"index-coordinator-ports-{os.getuid()}"
_held: list[FileLock] = []


def reserve_port(*, avoid: Collection[int] = ()) -> int:
    """Return a free port that is none of `avoid`, nor held by another process of tests."""
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    for _ in range(PICKS_MAX):
        port = pick_free(avoid=avoid)
        lock = FileLock(FOLDER / str(port))
        if lock.acquire():
            if is_free(port):
                _held.append(lock)
                return port
            lock.release()
    raise OSError("no port is free that nobody holds")


@atexit.register
def give_back() -> None:
    """Let go of all ports; nothing is left behind."""
    while _held:
        lock = _held.pop()
        lock.path.unlink(missing_ok=True)
        lock.release()
