"""A whole local cluster for a benchmark: `indexctl run` in a folder and on ports of its own."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

START_TIMEOUT_S = 120
KINDS = {
    "coordinator.process": "node",
    "indexer_sim": "indexer",
    "projector_sim kv": "store",
    "projector_sim projector": "projector",
    "kafka.Kafka": "broker",
}
"""What the command line of each kind of process has in it."""


@dataclass
class Cluster:
    """A running cluster: where its nodes and its broker answer."""

    nodes: list[str]
    bootstrap_servers: str
    process: subprocess.Popen[bytes]
    store: str = ""
    """Where the key-value store answers, if there are projectors."""

    def get(self, path: str, node: int = 0) -> Any:
        return httpx.get(self.nodes[node] + path, timeout=30).raise_for_status().json()

    @property
    def master(self) -> str:
        members = self.get("/v1/members")["members"]
        return next(m["address"] for m in members if m["role"] == "master")

    def stages(self) -> dict[str, tuple[float, float]]:
        """Return (seconds, count) of each stage of transactions on the master."""
        text = httpx.get(self.master + "/metrics", timeout=30).text
        found: dict[str, dict[str, float]] = {}
        pattern = r'coordinator_transaction_stage_seconds_(sum|count)\{stage="(\w+)"\} (\S+)'
        for what, stage, value in re.findall(pattern, text):
            found.setdefault(stage, {})[what] = float(value)
        return {stage: (v["sum"], v["count"]) for stage, v in found.items()}

    def stage_buckets(self) -> dict[str, dict[float, float]]:
        """Return how many times each stage took at most so many seconds, on the master."""
        text = httpx.get(self.master + "/metrics", timeout=30).text
        found: dict[str, dict[float, float]] = {}
        pattern = r'stage_seconds_bucket\{le="([^"]+)",stage="(\w+)"\} (\S+)'
        for bound, stage, value in re.findall(pattern, text):
            found.setdefault(stage, {})[float(bound)] = float(value)
        return found

    def rss_mib(self) -> dict[str, list[float]]:
        """Return the resident memory of every child, by kind."""
        found: dict[str, list[float]] = {}
        for kind, child in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):
                found.setdefault(kind, []).append(rss_mib(child))
        return found

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of all children of a kind together, up to now."""
        found = dict.fromkeys(KINDS.values(), 0.0)
        for kind, child in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = child.cpu_times()
                found[kind] += times.user + times.system
        return found

    def of_kind(self, kind: str) -> list[psutil.Process]:
        """Return the children of a kind, in the order in which they were started."""
        return [child for found, child in self._children() if found == kind]

    def _children(self) -> Iterator[tuple[str, psutil.Process]]:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                line = " ".join(child.cmdline())
                kind = next((kind for needle, kind in KINDS.items() if needle in line), None)
                if kind is not None:
                    yield kind, child


def rss_mib(process: psutil.Process) -> float:
    """Return the resident memory of a process."""
    return round(process.memory_info().rss / 2**20, 1)


def free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row."""
    for first in range(18600, 60000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    bound = stack.enter_context(socket.socket())
                    bound.bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise RuntimeError("no free ports")


@contextlib.contextmanager
def cluster(
    nodes: int = 3, indexers: int = 3, projectors: int = 0, options: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Run a cluster until the block ends; nothing of it is left then."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    port = free_ports(nodes + 1)
    log = (folder / "run.log").open("wb")
    command = [sys.executable, "-m", "coordinator.cli.main", "run"]
    command += ["--nodes", str(nodes), "--indexers", str(indexers)]
    command += ["--projectors", str(projectors), "--no-example", "--no-timestamps"]
    command += ["--http-port", str(port), "--data-dir", str(folder / "data"), *options]
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    urls = [f"http://127.0.0.1:{port + number}" for number in range(nodes)]
    try:
        _wait_ready(process, urls, folder / "run.log")
        held = json.loads((folder / "data" / "cluster.json").read_text())
        store = f"http://127.0.0.1:{port + nodes}" if projectors else ""
        yield Cluster(urls, held["bootstrap_servers"], process, store)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], urls: list[str], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the cluster did not start: {log.read_text()[-500:]}")
        with contextlib.suppress(httpx.HTTPError):
            ready = all(httpx.get(url + "/readyz", timeout=2).status_code == 200 for url in urls)
            if ready and "ready in" in log.read_text():
                return
        time.sleep(0.1)
    raise RuntimeError("the cluster was not ready in time")
