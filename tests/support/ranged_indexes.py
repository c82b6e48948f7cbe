"""Indexes that are divided by ranges."""

from __future__ import annotations

import json
from typing import Any

from coordinator.core.model.entities import HASH, RANGE, Index, Shard, Slice
from tests.support.indexes import make_index


def index(
    slices: int = 1, replicas: int = 0, bounds: list[Any] | None = None, **more: Any
) -> Index:
    """An index whose slice n has its k-th host on indexer 10 n + k, in shard 100 n + k."""
    hosts = [[10 * n + k for k in range(replicas + 1)] for n in range(slices)]
    fields: dict[str, Any] = {
        "bucket": "b",
        "expressions": ("a", "c"),
        "slices": tuple(Slice(n, h[0], tuple(h[1:])) for n, h in enumerate(hosts)),
        "shards": tuple(
            Shard(h, 100 * n + k) for n, row in enumerate(hosts) for k, h in enumerate(row)
        ),
        "partitioning": HASH if bounds is None else RANGE,
        "bounds_json": json.dumps(bounds or []),
    }
    return make_index(1, **(fields | more))
