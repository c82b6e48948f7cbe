"""`indexctl run` as a process."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from tests.support.ports import reserve_port

T = TypeVar("T")


DEADLINE_S = 100.0


POLL_S = 0.02


def eventually(condition: Callable[[], T], what: str, *, deadline_s: float = DEADLINE_S) -> T:
    """Return the first true value of `condition`; fail if there is none in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(POLL_S)
    raise AssertionError(f"not within {deadline_s:g} s: {what}")


def runs(pid: int) -> bool:
    """Return whether `pid` is a living process; a zombie is none."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


CHILD = """
import os, signal, sys
from pathlib import Path

kind, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def stopped(*_):
    (folder / f"{name}.stopped").touch()
    sys.exit(0)

if kind == "refusing" or (kind == "turning" and list(folder.glob(f"{name}.*"))):
    print("the log was lost", file=sys.stderr)
    sys.exit(78)
signal.signal(signal.SIGTERM, signal.SIG_IGN if kind == "stubborn" else stopped)
starts = len(list(folder.glob(f"{name}.*")))
(folder / f"{name}.{os.getpid()}").touch()
if kind == "crashing" and starts < 2:
    sys.exit(3)
print("waiting", flush=True)
while True:
    signal.pause()
"""


SUPERVISED = """
import signal
import sys
from pathlib import Path
from coordinator.embedded.backoff import BackoffPolicy
from coordinator.embedded.children import ChildSpec
from coordinator.runtime.errors import EmbeddedError
from coordinator.embedded.supervision import Plan, supervise

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # Under nohup the tests ignore it.
child, folder, start_timeout_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])

def spec(kind, name):
    async def ready():
        return kind not in ("silent", "refusing") and bool(list(folder.glob(f"{name}.*")))

    argv = (sys.executable, "-c", child, kind, name, str(folder))
    return ChildSpec(name, argv, folder / "logs" / f"{name}.log", ready)

specs = [spec(*one.split(":")) for one in sys.argv[4:]]
policy = BackoffPolicy(first_s=0.05, max_s=0.2)
plan = Plan(
    brokers=(), prepare=lambda: specs, summary=lambda s: "ready",
    start_timeout_s=start_timeout_s, backoff=policy,
)
try:
    sys.exit(supervise(plan))
except EmbeddedError as error:
    print(error)
    sys.exit(1)
"""


class Supervised:
    """A supervisor in a process of its own, over children `kind:name`."""

    def __init__(self, folder: Path, *children: str, start_timeout_s: float = DEADLINE_S) -> None:
        self.folder = folder
        self.output = folder / "output"
        arguments = [CHILD, str(folder), str(start_timeout_s), *children]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISED, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self, text: str) -> None:
        """Wait until the supervisor has printed `text`."""

        def printed() -> bool:
            ended = self.process.poll() is not None
            said = self.output.read_text()
            assert text in said or not ended, f"it ended, and {text!r} was not printed: {said}"
            return text in said

        eventually(printed, f"{text!r} is printed")

    def pids(self, name: str = "*") -> list[int]:
        """Return the children that ever ran, by process id."""
        suffixes = (path.name.rpartition(".")[2] for path in self.folder.glob(f"{name}.*"))
        return [int(suffix) for suffix in suffixes if suffix.isdigit()]

    def pid(self, name: str) -> int:
        """Return the process id of the child that runs as `name`."""
        alive = eventually(lambda: [pid for pid in self.pids(name) if runs(pid)], f"{name} runs")
        assert len(alive) == 1
        return alive[0]

    def ended(self) -> int:
        """Wait for the supervisor's end, check that nothing is left, return its exit code."""
        status = self.process.wait(DEADLINE_S)
        eventually(lambda: not any(map(runs, self.pids())), "no child is left")
        return status


RUN = """
import sys
from pathlib import Path
from coordinator.embedded import children, supervisor

async def ready():
    return True

CHILD, data_dir, port, cluster, servers, brokers = sys.argv[1:7]
children.node_argv = lambda node, **_: (sys.executable, "-c", CHILD, "steady", "n", data_dir)
children.indexer_argv = lambda one, **_: (sys.executable, "-c", CHILD, "steady", "i", data_dir)
children.node_ready = children.indexer_ready = lambda *_: ready
options = supervisor.RunOptions(
    nodes=1, indexers=1, projectors=0, data_dir=Path(data_dir), http_port=int(port),
    cluster=cluster, bootstrap_servers=servers or None, brokers=int(brokers),
)
try:
    sys.exit(supervisor.run(options))
except Exception as error:
    print(error.code, error.message)
    sys.exit(1)
"""


class Run(Supervised):
    """`supervisor.run` in a process of its own; `end_runs` ends those that a test has left."""

    def __init__(self, folder: Path, cluster: str, servers: str = "", brokers: int = 1) -> None:
        self.folder, self.output = folder, folder / "output"
        arguments = [CHILD, str(folder), str(reserve_port()), cluster, servers, str(brokers)]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        RUNS.append(self)


def state_of(folder: Path) -> dict[str, object]:
    state = json.loads((folder / "cluster.json").read_text())
    assert isinstance(state, dict)
    return state


RUNS: list[Run] = []


def end_runs() -> None:
    """Kill what a test that failed has left: what a supervisor has started dies with it."""
    while RUNS:
        left = RUNS.pop()
        left.process.kill()
        left.ended()
