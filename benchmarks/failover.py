"""How long nobody can write after the master was killed, under load, with default settings."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks import compiled
from benchmarks.cluster import Cluster, cluster
from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError

WRITERS = 4
KILLS = 20
WAIT_S = 60.0

WINDOW_MS = 4 * 3_600_000
FILL_S, FILL_TIMEOUT_S = 20, 3_600


class Writers:
    """Clients that write without pause, and note when each write began and was acknowledged."""

    def __init__(self, urls: list[str]) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Condition()
        self._acknowledged: list[tuple[float, float]] = []
        self._threads = [
            threading.Thread(target=self._write, args=(urls, n)) for n in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, urls: list[str], number: int) -> None:
        count = 0
        with Client(urls, deadline_s=WAIT_S) as client:
            client.members()
            while not self._stopping.is_set():
                began = time.monotonic()
                with contextlib.suppress(CoordinatorError):
                    client.put_config(f"failover/{number}", count)
                    with self._lock:
                        self._acknowledged.append((began, time.monotonic()))
                        self._lock.notify_all()
                count += 1

    def first_after(self, moment: float) -> float:
        """Wait for a write that began after `moment`; return when it was acknowledged."""

        def found() -> float | None:
            return next((done for began, done in self._acknowledged if began > moment), None)

        with self._lock:
            if not self._lock.wait_for(lambda: found() is not None, WAIT_S):
                raise RuntimeError("no write was acknowledged any more")
            done = found()
            self._acknowledged.clear()
        assert done is not None
        return done

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


def failover(running: Cluster) -> dict[str, Any]:
    """SIGKILL the master `KILLS` times; seconds from each kill to the next acknowledged write."""
    writers = Writers(running.nodes)
    gaps: list[float] = []
    try:
        for _ in range(KILLS):
            master = _whole(running)
            writers.first_after(time.monotonic())
            os.kill(master["pid"], signal.SIGKILL)
            killed = time.monotonic()
            gaps.append(writers.first_after(killed) - killed)
    finally:
        writers.stop()
    return {
        "kills": KILLS,
        "writers": WRITERS,
        "p50_s": round(statistics.median(gaps), 2),
        "max_s": round(max(gaps), 2),
        "all_s": [round(gap, 2) for gap in gaps],
    }


def with_outcomes(wanted: int = 400_000) -> dict[str, Any] | None:
    """The same, with so many outcomes of requests remembered; None where `wrk` is not installed.

    They are remembered for as long as it takes, instead of ten minutes.
    """
    if not compiled.is_here():
        return None
    with cluster(options=("--request-window-ms", str(WINDOW_MS))) as running:
        began = time.monotonic()
        while (held := _outcomes(running)) < wanted:
            if time.monotonic() - began > FILL_TIMEOUT_S:
                raise RuntimeError(f"{held} of {wanted} outcomes after {FILL_TIMEOUT_S} s")
            compiled.fill(running.master, FILL_S)
        filled_s = time.monotonic() - began
        return {"outcomes": held, "filled_in_s": round(filled_s), **failover(running)}


def _outcomes(running: Cluster) -> int:
    """Return how many outcomes the master remembers."""
    text = httpx.get(running.master + "/metrics", timeout=30).text
    match = re.search(r"^coordinator_outcomes_remembered (\S+)", text, re.MULTILINE)
    assert match is not None
    return int(float(match[1]))


def hand_over(running: Cluster, count: int = 10) -> dict[str, Any]:
    """The same gap where the master steps down instead."""
    writers = Writers(running.nodes)
    gaps: list[float] = []
    try:
        with Client(running.nodes) as client:
            for _ in range(count):
                _whole(running)
                writers.first_after(time.monotonic())
                began = time.monotonic()
                client.step_down()
                done = time.monotonic()
                writers.first_after(done)
                gaps.append(done - began)
    finally:
        writers.stop()
    return {
        "times": count,
        "p50_s": round(statistics.median(gaps), 2),
        "max_s": round(max(gaps), 2),
    }


def _whole(running: Cluster) -> dict[str, Any]:
    """Wait until every node is a member; return the master's row."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        for node in range(len(running.nodes)):
            with contextlib.suppress(httpx.HTTPError):
                body = running.get("/v1/members", node)
                rows = body["members"]
                standing = sorted(row["state"] for row in rows)
                if standing == ["master", *["replica"] * (len(rows) - 1)]:
                    return next(row for row in rows if row["state"] == "master")
        time.sleep(0.05)
    raise RuntimeError("the cluster did not become whole again")


def stages(logs: Path) -> list[dict[str, Any]]:
    """Return, from the nodes' logs, what each claim was about: for looking at by hand."""
    found = []
    for path in sorted(logs.glob("node-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            match = re.match(r"(\S+ \S+) (node-\d+) INFO (.*(?:claim|master).*)", line)
            if match:
                found.append(dict(zip(("at", "node", "said"), match.groups(), strict=True)))
    return sorted(found, key=lambda row: json.dumps(row["at"]))
