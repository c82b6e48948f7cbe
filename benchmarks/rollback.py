"""A loss in the key-value store until indexes can be scanned again, and consistently.

Beside it, as the baseline of the same run: how long it takes to build the same three indexes.
"""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks.cluster import cluster
from benchmarks.data_plane import BUCKET, INDEXES, Caller, DataPlane, blocks

DOCUMENTS = int(os.environ.get("BENCH_ROLLBACK_DOCUMENTS", "100000"))
LATER = 200
"""So many documents are written again, which no snapshot has, and partly lost."""

FAR = 3
"""So many of the last seqnos of each vbucket go where no snapshot is left."""

RARELY_MS, SOON_MS = 600_000, 500
TIMEOUT_S = 300.0
POLL_S = 0.02
EPSILON_S = 1e-9


def rollback() -> dict[str, Any]:
    """Lose what was written since the last snapshot, then what every snapshot has."""
    with cluster(projectors=2, options=("--timestamps",)) as running:
        plane = DataPlane(running, DOCUMENTS)
        built = plane.build()
        _consistent(plane)
        _have_timestamps(plane, RARELY_MS)
        written = _write_again(plane)
        near = _lose(plane, 1, written)
        _have_timestamps(plane, SOON_MS)
        _consistent(plane)
        far = _lose(plane, FAR, None)
    build_s = built["seconds"]
    return {
        "documents": DOCUMENTS,
        "build_s": build_s,
        "to_a_snapshot": near,
        "to_0": far,
        "ratio_to_build": round(far["scanned_s"] / max(build_s, EPSILON_S), 2),
    }


def _have_timestamps(plane: DataPlane, period_ms: int) -> None:
    """Have stability timestamps told so often."""
    master = Caller(plane.cluster.master)
    master.json("PUT", f"/v1/config/timestamps%2F{BUCKET}", {"period_ms": period_ms})


def _write_again(plane: DataPlane) -> list[int]:
    """Write some documents again; return the vbuckets of the first node that have them."""
    before = _seqnos(plane)
    lines = next(iter(blocks(plane.generator.load(), LATER)))
    plane.write(lines)
    after = _seqnos(plane)
    vector = plane.vector(plane.store)
    for spec in INDEXES:
        plane.scan(spec, {"limit": 1, "consistency": {"at_least": {"vbuckets": vector}}})
    half = len(after) // 2
    return [v for v, (a, b) in enumerate(zip(before, after, strict=True)) if a < b and v < half]


def _seqnos(plane: DataPlane) -> list[int]:
    shown = plane.store.json("GET", f"/v1/buckets/{BUCKET}/vbuckets")
    return [int(seqno) for seqno in shown["high_seqnos"]]


def _lose(plane: DataPlane, count: int, vbuckets: list[int] | None) -> dict[str, float]:
    """Lose something; return seconds until all indexes are scanned again, and consistently."""
    body = {"lose": count, "bucket": BUCKET, "vbuckets": vbuckets}
    began = time.monotonic()
    lost = plane.store.json("POST", "/v1/nodes/0/crash", body)["lost"]
    vector = plane.vector(plane.store)
    at_least = {"consistency": {"at_least": {"vbuckets": vector}}}
    scanned_s = _until(plane, at_least, began)
    consistent = {"consistency": {"consistent": 0, "at_least": {"vbuckets": vector}}}
    consistent_s = _until(plane, consistent, began)
    return {"lost": lost, "scanned_s": round(scanned_s, 2), "consistent_s": round(consistent_s, 2)}


def _until(plane: DataPlane, asked: dict[str, Any], began: float) -> float:
    """Return how long after `began` all indexes answer."""
    while not all(_answers(plane.node, plane, spec, asked) for spec in INDEXES):
        if time.monotonic() - began > TIMEOUT_S:
            raise RuntimeError("the indexes cannot be scanned again in time")
        time.sleep(POLL_S)
    return time.monotonic() - began


def _answers(node: Caller, plane: DataPlane, spec: Any, asked: dict[str, Any]) -> bool:
    try:
        plane.scan(spec, {"limit": 1, **asked}, node)
    except RuntimeError:
        return False
    return True


def _consistent(plane: DataPlane) -> None:
    vector = plane.vector(plane.store)
    asked = {"consistency": {"consistent": 0, "at_least": {"vbuckets": vector}}}
    _until(plane, asked, time.monotonic())
