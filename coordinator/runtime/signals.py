"""What SIGTERM and SIGINT mean to every process of a cluster: stop, once, however often they come.

Ctrl-C reaches a whole process group, and its supervisor then asks each process to stop, too. The
second signal may come when the process is all but gone. The default action would kill it, with an
exit code that looks like a crash, so the default is never put back, not for a moment: a handler is
replaced by `SIG_IGN` in one step. (The handlers of an event loop cannot be: to remove one puts the
default back first.)

A handler runs between two steps of the main thread, wherever that stands: also where it holds the
lock of an event, which the handler of a second signal would then wait for without end. So a handler
takes no lock.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

STOPS = (signal.SIGTERM, signal.SIGINT)


def on_stop(stop: Callable[[], object]) -> None:
    """Call `stop` at every such signal, in a thread of its own: it may take locks."""
    told: queue.SimpleQueue[None] = queue.SimpleQueue()  # Its `put` may interrupt itself.

    def wait() -> None:
        while True:
            told.get()
            stop()

    threading.Thread(target=wait, name="stopping", daemon=True).start()
    for number in STOPS:
        signal.signal(number, lambda *_: told.put(None))


def on_stop_in(loop: asyncio.AbstractEventLoop, stop: Callable[[], object]) -> None:
    """Call `stop` at every such signal, in the loop, as long as that is open."""

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nothing is left to stop.
            loop.call_soon_threadsafe(stop)

    on_stop(ask)


def ignore_stops() -> None:
    """Ignore them from now on: the process is ending."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
