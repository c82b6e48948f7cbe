"""Starting and ending child processes that never outlive this one.

The kernel's parent-death signal belongs to the *thread* that forked, not to the process, so every
child is forked either by the main thread or by one thread that lives as long as the process.
A child has its own session: a Ctrl-C in the terminal reaches the parent alone, which then stops
its children in order.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, TypeVar

LAUNCHER = Path(__file__).with_name("launcher.py")
T = TypeVar("T")


def spawn(
    argv: Sequence[str | os.PathLike[str]],
    *,
    output: IO[bytes],
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `argv` with stdout and stderr in `output`; it dies with this process (on Linux)."""

    def fork() -> subprocess.Popen[bytes]:
        launcher = [sys.executable, "-I", "-S", os.fspath(LAUNCHER), str(os.getpid())]
        return subprocess.Popen(
            [*launcher, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=None if environment is None else dict(environment),
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )

    if threading.current_thread() is threading.main_thread():
        return fork()
    return _forker().run(fork)


def end(process: subprocess.Popen[bytes], *, grace_s: float) -> bool:
    """Stop `process`: SIGTERM, and SIGKILL after `grace_s`. Return whether SIGTERM was enough."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(grace_s)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


class _Forker:
    """A thread that never ends and runs what it is handed."""

    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Any, Future[Any]]] = SimpleQueue()
        threading.Thread(target=self._loop, name="forker", daemon=True).start()

    def _loop(self) -> None:
        while True:
            call, result = self._work.get()
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)

    def run(self, call: Callable[[], T]) -> T:
        """Return what `call` returns in the forker's thread."""
        result: Future[T] = Future()
        self._work.put((call, result))
        return result.result()


_forker_lock = threading.Lock()
_forker_made: _Forker | None = None


def _forker() -> _Forker:
    global _forker_made
    with _forker_lock:
        if _forker_made is None:
            _forker_made = _Forker()
        return _forker_made
