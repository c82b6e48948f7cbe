"""Threads that a process cannot do without: where one ends, the process ends, loudly.

A thread that dies takes its work with it, and nothing else shows it: the process goes on to answer
and to send heartbeats. So whatever ends such a thread before it is told to (a fault that nobody has
thought of, or its work just coming to an end) is kept here, and the process is told to stop. It
then ends with a failure, and who started it starts it again.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable


class ThreadEndedError(Exception):
    """A thread that the process needs has ended; the message says which, and why."""


class Threads:
    """The threads of a process that must not end before they are told to."""

    def __init__(self, stop: Callable[[], object]) -> None:
        """`stop` tells the process to stop; it is called in the thread that ends."""
        self._stop = stop
        self._ended: list[str] = []

    def start(self, name: str, work: Callable[[], object], told: threading.Event) -> _Needed:
        """Start a thread; it may end once it was `told` to."""
        thread = self.make(name, work, told)
        thread.start()
        return thread

    def make(self, name: str, work: Callable[[], object], told: threading.Event) -> _Needed:
        """Return a thread that is not started yet."""
        return _Needed(self, name, work, told)

    def check(self) -> None:
        """Raise ThreadEndedError if one has ended before it was told to."""
        if self._ended:
            raise ThreadEndedError("; ".join(self._ended))

    def _note(self, name: str, reason: str) -> None:
        self._ended.append(f"the thread {name} has ended: {reason}")
        self._stop()


class _Needed(threading.Thread):
    """A thread that says if it ends too early."""

    def __init__(
        self, threads: Threads, name: str, work: Callable[[], object], told: threading.Event
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._threads, self._work, self._told = threads, work, told

    def run(self) -> None:
        reason = ""
        try:
            self._work()
            if not self._told.is_set():
                reason = "its work came to an end"
        except BaseException as error:
            # Whatever it is, SystemExit too: of a thread, it would end nothing but the thread.
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._threads._note(self.name, reason)
