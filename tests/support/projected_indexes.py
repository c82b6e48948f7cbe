"""Indexes as projectors see them."""

from __future__ import annotations

from typing import Any

from coordinator.core.model.entities import (
    BACKFILL,
    Index,
    Slice,
)
from coordinator.core.model.stream_records import (
    CatchUpRequested,
)
from coordinator.core.model.vectors import Vector

BRANCH = 9


def an_index(index_id: int = 1, state: str = BACKFILL, build: int = 1, **more: Any) -> Index:
    fields: dict[str, Any] = {
        "id": index_id,
        "name": f"i{index_id}",
        "bucket": "b",
        "expressions": ("a",),
        "where": None,
        "primary": False,
        "using": "gsi",
        "defer_build": True,
        "state": state,
        "reason": None,
        "slices": (Slice(0, 1), Slice(1, 2)),
        "request": "r",
        "created_ms": 1,
        "build": build,
    }
    return Index(**(fields | more))


def request(*vbuckets: int, seqno: int = 3, indexer: int = 2) -> CatchUpRequested:
    vector = Vector((BRANCH for _ in vbuckets), (seqno for _ in vbuckets))
    return CatchUpRequested(indexer, 1, "b", vbuckets, *vector.to_bytes(), 1)
