"""Watchers on one node: from the acknowledgement of a change to its sight, and what they cost.

The watchers are a process of their own (`python -m benchmarks.watchers URL COUNT SECONDS`), which
reads all streams and looks at the events of a few: looking at all would measure that process.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.cluster import Cluster
from benchmarks.commit import summary, throughput

COUNTS = (1, 100, 1_000)
RATE = 100
SECONDS = 10.0
WRITERS = 10
LOOKED_AT = 10
IDS = re.compile(rb"event: change\r?\nid: (\d+)")
BEGIN_TIMEOUT_S = 60.0


def watchers(cluster: Cluster) -> dict[str, Any]:
    """For each number of watchers on a replica: delays at 100 changes/s, memory, and the master's
    rate under full load, on the replica and on the master itself."""
    replica = next(url for url in cluster.nodes if url != cluster.master)
    seen: dict[str, Any] = {}
    alone = throughput(cluster, seconds=5.0)["committed_per_second"]
    for count in COUNTS:
        row = _delays(cluster, replica, count)
        with _Watching(replica, count, 8.0):
            rate = throughput(cluster, seconds=5.0)["committed_per_second"]
        row["rate_of_the_master_to_alone"] = round(rate / alone, 2)
        with _Watching(cluster.master, count, 8.0):
            rate = throughput(cluster, seconds=5.0)["committed_per_second"]
        row["the_same_watching_the_master"] = round(rate / alone, 2)
        seen[str(count)] = row
    return {"committed_per_second_alone": alone, "watchers": seen}


def _delays(cluster: Cluster, node: str, count: int) -> dict[str, Any]:
    process = _process_of(cluster, node)
    before = process.memory_info().rss
    with _Watching(node, count, 2 * SECONDS) as watching:
        held = process.memory_info().rss - before
        with ThreadPoolExecutor(WRITERS) as writers:
            parts = writers.map(partial(_write, cluster.master), range(WRITERS))
            acknowledged = {cas: at for part in parts for cas, at in part.items()}
        found = watching.result()
    delays = [
        max(0.0, at - acknowledged[cas])
        for looked in found["seen"]
        for cas, at in looked
        if cas in acknowledged
    ]
    return {
        "changes_per_second": round(len(acknowledged) / SECONDS),
        "missed": sum(
            len(acknowledged.keys() - {cas for cas, _ in looked}) for looked in found["seen"]
        ),
        "acknowledged_to_seen": summary(delays),
        "events_per_second": round(count * len(acknowledged) / SECONDS),
        "kib_per_watcher": round(held / count / 1024, 1),
    }


def _write(master: str, writer: int) -> dict[int, float]:
    """Write settings at this writer's share of the rate; return when each CAS was acknowledged."""
    acknowledged: dict[int, float] = {}
    with httpx.Client(base_url=master, timeout=30) as client:
        began = time.time()
        for number in range(round(SECONDS * RATE / WRITERS)):
            time.sleep(max(0.0, began + (number + writer / WRITERS) * WRITERS / RATE - time.time()))
            answer = client.put(f"/v1/config/watched/{writer}/{number % 50}", json=number)
            acknowledged[answer.json()["cas"]] = time.time()
    return acknowledged


def _process_of(cluster: Cluster, url: str) -> psutil.Process:
    members = cluster.get("/v1/members")["members"]
    return psutil.Process(next(m["pid"] for m in members if m["address"] == url))


class _Watching:
    """The process that watches, from when all its streams have begun until it has ended."""

    def __init__(self, url: str, count: int, seconds: float) -> None:
        self._command = [sys.executable, "-m", "benchmarks.watchers", url, str(count), str(seconds)]

    def __enter__(self) -> _Watching:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "begun\n"
        return self

    def result(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.read())
        return found

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class _Stream(asyncio.Protocol):
    """One watcher; only one that looks keeps when it saw which CAS."""

    def __init__(self, path: str, looks: bool, begun: asyncio.Future[None]) -> None:
        self._path = path
        self._looks = looks
        self._begun = begun
        self._rest = b""
        self.seen: list[tuple[int, float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(f"GET {self._path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if not self._begun.done():
            self._begun.set_result(None)
        if self._looks:
            now = time.time()
            whole, _, self._rest = (self._rest + data).rpartition(b"\n\n")
            self.seen += [(int(cas), now) for cas in IDS.findall(whole)]


async def _watch(url: str, count: int, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    address = urlsplit(url)
    begun = [loop.create_future() for _ in range(count)]
    streams: list[_Stream] = []
    for number, one in enumerate(begun):
        stream = _Stream("/v1/watch", number < LOOKED_AT, one)
        await loop.create_connection(lambda made=stream: made, address.hostname, address.port)
        streams.append(stream)
    async with asyncio.timeout(BEGIN_TIMEOUT_S):
        await asyncio.gather(*begun)
    print("begun", flush=True)
    await asyncio.sleep(seconds)
    print(json.dumps({"seen": [stream.seen for stream in streams[:LOOKED_AT]]}), flush=True)


if __name__ == "__main__":
    asyncio.run(_watch(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
