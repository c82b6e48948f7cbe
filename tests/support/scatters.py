"""What a scan asks of indexers, for tests of how it is asked."""

from __future__ import annotations

import time
from typing import Any

from coordinator.core.keys.collation import Bounds
from coordinator.core.model.entities import Slice
from coordinator.http.scatter import Asked
from tests.support.indexes import make_index


def make_asked(**more: Any) -> Asked:
    """Return a scan of all of an index with one slice, on indexer 1 with a replica on 2."""
    index = make_index(1, slices=(Slice(0, 1, (2,)),))
    known: dict[str, Any] = {"consistency": "any", "deadline": time.monotonic() + 10}
    return Asked(
        index=index,
        holders=(index,),
        slices=(0,),
        bounds=Bounds(b"", b"\xff"),
        after=None,
        descending=False,
        limit=10,
        **(known | more),
    )
