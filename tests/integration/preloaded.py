"""A process that has imported what nodes, indexers, projectors and the store need, and forks them.

A run of the tests starts some hundred of them, and a third of the processor time of a short life
is imports. `PRELOADED.spawn` is `embedded.processes.spawn` without them: a real process with its
own session, that dies with the tests. How the real command begins, is tested where `indexctl run`
is.

    python -m tests.integration.preloaded FD PARENT

FD is a socket of packets. A request is `Request` as JSON, with two descriptors: where the output
goes, and a stream on which the server says the pid, and in the end the status.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from coordinator.embedded.launcher import die_with_parent
from coordinator.embedded.processes import spawn
from schemas.registry import registry

MODULES = {
    "coordinator.process": (
        *("coordinator.process", "coordinator.http.app", "coordinator.kafka.faust_transport"),
        *(
            "faust.agents",
            "faust.app",
            "faust.assignor",
            "faust.tables",
            "faust.web.drivers.aiohttp",
        ),
        *("faust.transport.conductor", "faust.worker", "uvicorn.lifespan.on"),
    ),
    "indexer_sim": ("indexer_sim.process",),
    "projector_sim": (
        *("projector_sim.projector.process", "projector_sim.kv.server", "httpcore", "certifi"),
        *("anyio._backends._asyncio", "importlib.resources", "stringprep"),
    ),
}
"""What can be run, by the name after `-m`, and what is imported for it, now or soon."""

SERVERS = 2
REQUEST_BYTES_MAX = 1 << 17
NUMBER = struct.Struct("!q")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Request:
    """A module to run as `__main__`."""

    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str]


# -- the tests' side -----------------------------------------------------------------------------


class Forked:
    """A process that the server has forked; as much of `subprocess.Popen` as tests use."""

    def __init__(self, arguments: Sequence[str], status: socket.socket) -> None:
        self.args = arguments
        self.returncode: int | None = None
        self._status = status
        weakref.finalize(self, status.close)
        self._lock = threading.Lock()
        pid = self._number()
        if pid is None:
            raise ConnectionError(f"the server of {arguments} has ended")
        self.pid = pid

    def _number(self) -> int | None:
        """Return what the server says next; None: it has ended, and so have its children."""
        data = self._status.recv(NUMBER.size, socket.MSG_WAITALL)
        return int(NUMBER.unpack(data)[0]) if len(data) == NUMBER.size else None

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _wait(self, timeout_s: float | None) -> int | None:
        ends = select.poll()
        ends.register(self._status, select.POLLIN)
        wait_ms = None if timeout_s is None else max(0.0, timeout_s) * 1000
        if self.returncode is None and ends.poll(wait_ms):
            with self._lock:
                if self.returncode is None:
                    status = signal.SIGKILL if (said := self._number()) is None else said
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # Its end may not be told yet.
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Spawned = subprocess.Popen[bytes] | Forked


class Preloaded:
    """The servers of this test process, which begin with its first children.

    They take turns: processes that are forked by one have the same hashes of strings, and so the
    same order of sets. Nodes that must agree have not all of them the same.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers: list[socket.socket | None] = [None] * SERVERS
        self._turn = 0

    def spawn(self, argv: Sequence[str], *, output: IO[bytes] | None = None) -> Spawned:
        """Start what `embedded.processes.spawn` would start; forked, where that can be."""
        if output is None:
            with open(os.devnull, "ab") as nowhere:
                return self.spawn(argv, output=nowhere)
        is_known = list(argv[:2]) == [sys.executable, "-m"] and argv[2] in MODULES
        if not is_known or not sys.platform.startswith("linux"):
            return spawn(argv, output=output)
        request = Request(argv[2], list(argv[3:]), os.getcwd(), dict(os.environ))
        text = json.dumps(asdict(request)).encode()
        for _ in range(1 + SERVERS):
            ours, theirs = socket.socketpair()
            with self._lock, theirs, suppress(ConnectionError):
                self._servers = [one or self._started() for one in self._servers]
                self._turn = turn = (self._turn + 1) % SERVERS
                try:
                    fds = [output.fileno(), theirs.fileno()]
                    socket.send_fds(self._servers[turn], [text], fds)
                    theirs.close()
                    return Forked(argv, ours)
                except ConnectionError:
                    self._servers[turn] = None
                    raise
        raise ConnectionError("no server of processes lasts")

    @staticmethod
    def _started() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs, open(os.devnull, "ab") as nowhere:
            spawn(command, output=nowhere, cwd=ROOT, pass_fds=[theirs.fileno()])
        return ours


PRELOADED = Preloaded()


# -- the server ----------------------------------------------------------------------------------


def serve(requests: socket.socket) -> Request | None:
    """Fork for each request, and tell how the children end; return the request in a child."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    children: dict[int, socket.socket] = {}
    server = os.getpid()
    while True:
        readable, _, _ = select.select([requests, woken], [], [])
        if woken in readable:
            os.read(woken, 4_096)
            _tell_ends(children)
        if requests not in readable:
            continue
        text, fds, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 2)
        if not text:
            return None
        output, status = fds[0], socket.socket(fileno=fds[1])
        pid = os.fork()
        if pid == 0:
            for one in (requests, status, *children.values()):
                one.close()
            os.close(woken)
            os.close(wake)
            request = Request(**json.loads(text))
            _become(request, output, server)
            return request
        os.close(output)
        children[pid] = status
        _tell(status, pid)


def _tell_ends(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as stream:
            _tell(stream, status)


def _tell(stream: socket.socket, number: int) -> None:
    with suppress(OSError):  # Nobody may ask any more.
        stream.sendall(NUMBER.pack(number))


def _become(request: Request, output: int, server: int) -> None:
    """Be as a process that was just started."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    die_with_parent(server)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(nothing)
    os.close(output)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv = [request.module, *request.arguments]


def _import(modules: Mapping[str, Sequence[str]]) -> None:
    for name, needed in modules.items():
        for one in needed:
            importlib.import_module(one)
        sys.modules.pop(name, None)  # It is run as `__main__`.
    registry()
    inspect.getmodule(sys._getframe())  # It looks up where every module is, once.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve until the tests end, or run what was asked for."""
    _import(MODULES)
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
