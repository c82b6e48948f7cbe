"""What is supervised: a child process, or the broker; asynchronous faces of blocking things.

A unit is started, ends by itself or is stopped, and may be started again. `reap` is called at
every SIGCHLD and notes an end; nothing here waits for a process in a thread or by polling.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from coordinator.embedded.broker import Broker
from coordinator.embedded.children import ChildSpec
from coordinator.embedded.processes import spawn
from coordinator.runtime.files import last_lines, size_of

LOG_BYTES_MAX = 5 * 1024 * 1024
T = TypeVar("T")


def in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    """Run `call` in a daemon thread: unlike an executor's, it cannot hold up the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True).start()
    return future


class Unit(Protocol):
    """What the supervisor knows of anything that it keeps running."""

    name: str
    log: Path

    async def start(self) -> None:
        """Start it; raise EmbeddedError if it does not."""

    def reap(self) -> None:
        """Notice it if the process has ended."""

    async def ended(self) -> int:
        """Wait for the end of the started process; return its exit status."""

    def last_words(self, count: int) -> list[str]:
        """Return the last lines that this incarnation logged."""

    async def stop(self, grace_s: float) -> None:
        """Stop it cleanly, by force after `grace_s`; also in the middle of a start."""

    def kill(self) -> None:
        """End it at once."""


class ProcessUnit:
    """A child process with a log file."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec, self.name, self.log = spec, spec.name, spec.log
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._log_begin = 0

    async def start(self) -> None:
        """Start the process."""
        rotate(self.log)
        self._log_begin = size_of(self.log)
        self._ended = asyncio.Event()
        with open(self.log, "ab") as output:
            self._process = spawn(self.spec.argv, output=output, pass_fds=self.spec.pass_fds)

    def reap(self) -> None:
        """Notice it if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._ended.set()

    async def ended(self) -> int:
        """Wait for the end of the started process; return its exit status."""
        assert self._process is not None, "not started"
        await self._ended.wait()
        status = self._process.returncode
        assert status is not None
        return status

    def last_words(self, count: int) -> list[str]:
        """Return the last lines that this incarnation logged."""
        return last_lines(self.log, count, since_byte=self._log_begin)

    async def stop(self, grace_s: float) -> None:
        """Stop it cleanly, by force after `grace_s`."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        self.reap()
        try:
            async with asyncio.timeout(grace_s):
                await self.ended()
        except TimeoutError:
            self.kill()
            await self.ended()

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()


class BrokerUnit:
    """An embedded broker; started means that it answers."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.name = name
        self._broker = broker
        self.log = broker.log_path
        self._starting: asyncio.Future[Broker] | None = None
        self._ended = asyncio.Event()

    async def start(self) -> None:
        """Start the broker and wait until it answers."""
        self._ended = asyncio.Event()
        self._starting = in_thread(self._broker.start)
        await asyncio.shield(self._starting)

    def reap(self) -> None:
        """Notice it if the process has ended; during a start that is the broker's own affair."""
        started = self._starting is not None and self._starting.done()
        if started and not self._broker.alive:
            self._ended.set()

    async def ended(self) -> int:
        """Wait for the end of the started process; return its exit status."""
        await self._ended.wait()
        status = self._broker.exit_status()
        assert status is not None
        return status

    def last_words(self, count: int) -> list[str]:
        """Return the last lines of the broker's log."""
        return last_lines(self.log, count)

    async def stop(self, grace_s: float) -> None:
        """Stop the broker cleanly, by force after `grace_s`; call off a start under way."""
        if self._starting is None:
            return
        if not self._starting.done():
            self._broker.abort()
            await asyncio.wait({self._starting})
        if self._starting.exception() is None:
            await in_thread(lambda: self._broker.stop(grace_s=grace_s))

    def kill(self) -> None:
        """End it at once."""
        self._broker.abort()


def rotate(log: Path) -> None:
    """Move a log that has grown too large out of the way; one old one is kept."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if size_of(log) > LOG_BYTES_MAX:
        log.replace(log.with_name(f"{log.name}.1"))
