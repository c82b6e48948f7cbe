"""Watchers on one node: from the acknowledgement of a change to its sight, and what they cost.

The watchers are a process of their own (`python -m benchmarks.watchers URL COUNT SECONDS`), which
reads all streams and looks at the events of a few: looking at all would measure that process.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import psutil

from benchmarks.cluster import Cluster
from benchmarks.commit import etcd_cluster, etcd_leader, summary, throughput

COUNTS = (1, 100, 1_000)
RATE = 100
SECONDS = 10.0
WRITERS = 10
LOOKED_AT = 10
IDS = re.compile(rb"event: change\r?\nid: (\d+)\n")
REVISIONS = re.compile(rb'"mod_revision":"(\d+)"')
WATCHERS = (sys.executable, "-m", "benchmarks.watchers")
KAFKA_WATCHER = (sys.executable, "-m", "benchmarks.kafka_watcher")
CLUSTER = "default"
Row = dict[str, Any]
Begun = asyncio.Future[None]
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
    library = [*KAFKA_WATCHER, cluster.bootstrap_servers, CLUSTER, str(2 * SECONDS)]
    with _Process(library) as watching:
        by_library = _seen(partial(_write, cluster.master), watching, 1)
    return {"committed_per_second_alone": alone, "watchers": seen, "kafka_library": by_library}


def etcd() -> dict[str, Any] | None:
    """The same delays by etcd's watch, over its HTTP gateway; None where it is not installed."""
    binary = shutil.which("etcd")
    if binary is None:
        return None
    seen = {}
    with etcd_cluster(binary) as urls:
        leader = etcd_leader(urls)
        replica = next(url for url in urls if url != leader)
        for count in COUNTS:
            with _Process([*WATCHERS, replica, str(count), str(2 * SECONDS), "etcd"]) as watching:
                seen[str(count)] = _seen(partial(_write_etcd, leader), watching, count)
    return {"watchers": seen}


def _delays(cluster: Cluster, node: str, count: int) -> dict[str, Any]:
    process = _process_of(cluster, node)
    before = process.memory_info().rss
    with _Watching(node, count, 2 * SECONDS) as watching:
        held = process.memory_info().rss - before
        row = _seen(partial(_write, cluster.master), watching, count)
    return {**row, "kib_per_watcher": round(held / count / 1024, 1)}


def _seen(write: Callable[[int], dict[int, float]], watching: _Process, count: int) -> Row:
    """Write at the rate, and compare when each version was acknowledged and when it was seen."""
    with ThreadPoolExecutor(WRITERS) as writers:
        parts = writers.map(write, range(WRITERS))
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
    }


def _write(master: str, writer: int) -> dict[int, float]:
    """Write settings at this writer's share of the rate; return when each CAS was acknowledged."""
    with httpx.Client(base_url=master, timeout=30) as client:

        def put(key: str, number: int) -> int:
            return int(client.put(f"/v1/config/{key}", json=number).json()["cas"])

        return _at_the_rate(put, writer)


def _write_etcd(leader: str, writer: int) -> dict[int, float]:
    """The same on etcd, where the version is the revision."""
    with httpx.Client(base_url=leader, timeout=30) as client:

        def put(key: str, number: int) -> int:
            body = {"key": _base64(key), "value": _base64(str(number))}
            return int(client.post("/v3/kv/put", json=body).json()["header"]["revision"])

        return _at_the_rate(put, writer)


def _at_the_rate(put: Callable[[str, int], int], writer: int) -> dict[int, float]:
    acknowledged: dict[int, float] = {}
    began = time.time()
    for number in range(round(SECONDS * RATE / WRITERS)):
        time.sleep(max(0.0, began + (number + writer / WRITERS) * WRITERS / RATE - time.time()))
        version = put(f"watched/{writer}/{number % 50}", number)
        acknowledged[version] = time.time()
    return acknowledged


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _process_of(cluster: Cluster, url: str) -> psutil.Process:
    members = cluster.get("/v1/members")["members"]
    return psutil.Process(next(m["pid"] for m in members if m["address"] == url))


class _Process:
    """A process that watches, from when all its streams have begun until it has ended."""

    def __init__(self, command: list[str]) -> None:
        self._command = command

    def __enter__(self) -> Self:
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


class _Watching(_Process):
    """Watchers of one node."""

    def __init__(self, url: str, count: int, seconds: float) -> None:
        super().__init__([*WATCHERS, url, str(count), str(seconds)])


class _Stream(asyncio.Protocol):
    """One watcher; only one that looks keeps when it saw which version."""

    def __init__(self, told: Told, looks: bool, begun: Begun) -> None:
        self._told = told
        self._looks = looks
        self._begun = begun
        self._rest = b""
        self.seen: list[tuple[int, float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._told.request)

    def data_received(self, data: bytes) -> None:
        if not self._begun.done():
            self._begun.set_result(None)
        if self._looks:
            now = time.time()
            whole, end, self._rest = (self._rest + data).rpartition(self._told.end)
            found = self._told.versions.findall(whole + end)
            self.seen += [(int(version), now) for version in found]


class Told(NamedTuple):
    """What a watcher sends, how an event ends that it is sent, and where its version stands."""

    request: bytes
    end: bytes
    versions: re.Pattern[bytes]


def _told_by(kind: str) -> Told:
    if kind != "etcd":
        return Told(b"GET /v1/watch HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"\n\n", IDS)
    prefix = {"key": _base64("watched/"), "range_end": _base64("watched0")}
    body = json.dumps({"create_request": prefix}).encode()
    head = f"POST /v3/watch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return Told(head.encode() + body, b"\n", REVISIONS)


async def _watch(url: str, count: int, seconds: float, kind: str = "") -> None:
    loop = asyncio.get_running_loop()
    address = urlsplit(url)
    begun = [loop.create_future() for _ in range(count)]
    streams: list[_Stream] = []
    for number, one in enumerate(begun):
        stream = _Stream(_told_by(kind), number < LOOKED_AT, one)
        await loop.create_connection(lambda made=stream: made, address.hostname, address.port)
        streams.append(stream)
    async with asyncio.timeout(BEGIN_TIMEOUT_S):
        await asyncio.gather(*begun)
    print("begun", flush=True)
    await asyncio.sleep(seconds)
    print(json.dumps({"seen": [stream.seen for stream in streams[:LOOKED_AT]]}), flush=True)


if __name__ == "__main__":
    asyncio.run(_watch(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:]))
