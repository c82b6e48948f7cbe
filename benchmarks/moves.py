"""A slice that moves, and an indexer that is emptied, while scans and writes go on.

Beside it, as the baseline of the same run: the build of the three indexes, and scans and writes
while nothing moves.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

from benchmarks.cluster import cluster
from benchmarks.commit import quantile_ms
from benchmarks.data_plane import BUCKET, BY_CITY, BY_PRICE, Caller, DataPlane, blocks

DOCUMENTS = int(os.environ.get("BENCH_MOVES_DOCUMENTS", "1000000"))
DOCUMENTS_PER_S = int(os.environ.get("BENCH_MOVES_DOCUMENTS_PER_S", "4000"))
"""What an indexer may take over for copies that move here; 0: as much as it can."""
BASELINE_S = 10.0
SCANNERS = 2
WRITE_LINES, WRITE_PAUSE_S = 25, 0.05
PREPARED = 20_000
TIMEOUT_S = 1_800.0
POLL_S = 0.1
EPSILON = 1e-9


class Traffic:
    """Scans of ten rows, and writes of some hundred documents a second."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self.scans_s: list[float] = []
        self.written = 0
        self.refused = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have all of it go on until the block ends."""
        stopping = threading.Event()
        workers = [threading.Thread(target=self._write, args=(stopping,))]
        workers += [threading.Thread(target=self._scan, args=(stopping,)) for _ in range(SCANNERS)]
        for worker in workers:
            worker.start()
        try:
            yield
        finally:
            stopping.set()
            for worker in workers:
                worker.join()

    def _scan(self, stopping: threading.Event) -> None:
        node = Caller(self._plane.cluster.nodes[-1])
        chance = random.Random(1)
        while not stopping.is_set():
            low = chance.uniform(0, 900)
            asked = {"scan": {"range": {"low": [low]}}, "limit": 10}
            began = time.perf_counter()
            try:
                self._plane.scan(BY_PRICE, asked, node)
            except RuntimeError:
                self.refused += 1
            self.scans_s.append(time.perf_counter() - began)

    def _write(self, stopping: threading.Event) -> None:
        store = Caller(self._plane.cluster.store)
        prepared = cycle([*blocks(self._plane.generator.changes(PREPARED), WRITE_LINES)])
        while not stopping.wait(WRITE_PAUSE_S):
            self._plane.write(next(prepared), store)
            self.written += WRITE_LINES

    def seen(self, seconds: float) -> dict[str, Any]:
        return {
            "scans": len(self.scans_s),
            "refused": self.refused,
            "p50_ms": quantile_ms(self.scans_s, 0.5),
            "p99_ms": quantile_ms(self.scans_s, 0.99),
            "written_per_second": round(self.written / max(seconds, EPSILON)),
        }


def moves() -> dict[str, Any]:
    """Move the one slice of an index, then empty an indexer."""
    with cluster(projectors=2) as running:
        plane = DataPlane(running, DOCUMENTS)
        built = plane.build()
        pace = {"documents_per_s": DOCUMENTS_PER_S}
        Caller(running.master).json("PUT", "/v1/config/rebalance", pace)
        quiet = _under_traffic(plane, lambda: time.sleep(BASELINE_S))
        moved = _under_traffic(plane, lambda: _move(plane))
        emptied = _under_traffic(plane, lambda: _drain(plane))
        entries = plane.count(BY_PRICE)
    return {
        "documents": DOCUMENTS,
        "documents_per_s": DOCUMENTS_PER_S,
        "build_s": built["seconds"],
        "quiet": quiet,
        "one_slice": {
            **moved,
            "entries": entries,
            "entries_per_second": round(entries / max(moved["seconds"], EPSILON)),
        },
        "drain": emptied,
        "p99_ratio_one_slice": round(moved["p99_ms"] / max(quiet["p99_ms"], EPSILON), 2),
        "p99_ratio_drain": round(emptied["p99_ms"] / max(quiet["p99_ms"], EPSILON), 2),
        "ratio_to_build": round(moved["seconds"] / max(built["seconds"], EPSILON), 2),
    }


def _under_traffic(plane: DataPlane, work: Callable[[], Any]) -> dict[str, Any]:
    traffic = Traffic(plane)
    began = time.monotonic()
    with traffic.running():
        work()
        seconds = time.monotonic() - began
    return {"seconds": round(seconds, 1), **traffic.seen(seconds)}


def _move(plane: DataPlane) -> None:
    """Move the slice of an index to an indexer that has none of it; until that serves."""
    index = next(
        i for i in plane.node.json("GET", "/v1/indexes")["indexes"] if i["name"] == BY_PRICE.name
    )
    (piece,) = index["topology"]["slices"]
    indexers = [i["id"] for i in plane.node.json("GET", "/v1/indexers")["indexers"]]
    target = next(i for i in indexers if i != piece["master"])
    move = {"index": int(index["id"]), "slice": 0, "from": piece["master"], "to": target}
    _begin(plane, {"moves": [move]}, ("catchup", "done"))


def _drain(plane: DataPlane) -> None:
    """Empty the indexer that has the other index of one slice; until all of it serves elsewhere."""
    index = next(
        i for i in plane.node.json("GET", "/v1/indexes")["indexes"] if i["name"] == BY_CITY.name
    )
    (piece,) = index["topology"]["slices"]
    _wait(plane, ("done",))
    _begin(plane, {"drain": [piece["master"]]}, ("catchup", "done"))


def _begin(plane: DataPlane, body: dict[str, Any], states: tuple[str, ...]) -> None:
    Caller(plane.cluster.master).json("POST", "/v1/rebalance", body)
    _wait(plane, states)


def _wait(plane: DataPlane, states: tuple[str, ...]) -> None:
    """Wait until all moves of the last rebalance are in one of these states."""
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end:
        newest = plane.node.json("GET", "/v1/rebalance")["rebalances"][0]
        found = {move["state"] for move in newest["moves"]}
        if found <= set(states):
            return
        if "failed" in found:
            raise RuntimeError(f"a copy could not move: {newest}")
        time.sleep(POLL_S)
    raise RuntimeError(f"not moved in {TIMEOUT_S:g} s in bucket {BUCKET}")
