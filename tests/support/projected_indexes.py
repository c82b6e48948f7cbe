"""Indexes as projectors see them."""

from __future__ import annotations

from typing import Any

from coordinator.core.model.entities import (
    BACKFILL,
    Index,
)
from coordinator.core.model.stream_records import (
    CatchUpRequested,
)
from coordinator.core.model.vectors import Vector
from tests.support.indexes import make_index

BRANCH = 9


def an_index(index_id: int = 1, state: str = BACKFILL, build: int = 1, **more: Any) -> Index:
    fields = {"bucket": "b", "defer_build": True, "state": state, "build": build}
    return make_index(index_id, 1, 2, **(fields | more))


def request(*vbuckets: int, seqno: int = 3, indexer: int = 2) -> CatchUpRequested:
    vector = Vector((BRANCH for _ in vbuckets), (seqno for _ in vbuckets))
    return CatchUpRequested(indexer, 1, "b", vbuckets, *vector.to_bytes(), 1)
