"""The example that a new cluster comes with: the airports of the world, in the bucket `travel`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx

BUCKET = "travel"
TIMEOUT_S = 60.0
PIECE_LINES = 500
LINES = {"Content-Type": "application/x-ndjson"}


def load(kv_url: str) -> int:
    """Load the airports, unless the store has documents; return how many were written.

    A load that was cut off is not noticed: `indexctl load travel airports` repeats it.
    httpx.HTTPError: the store does not answer, or refuses.
    """
    with httpx.Client(base_url=kv_url, timeout=TIMEOUT_S) as client:
        found = _checked(client.get("/v1/buckets"))["buckets"]
        if any(int(b["high_seqnos_sum"]) for b in found):
            return 0
        _checked(client.put(f"/v1/buckets/{BUCKET}"))
        path = f"/v1/buckets/{BUCKET}/documents"
        done = _checked(client.post(path, content=_lines(), headers=LINES))
    return int(done["written"])


def _checked(response: httpx.Response) -> Any:
    return response.raise_for_status().json()


def _lines() -> Iterator[bytes]:
    """Yield the documents as lines, many at a time."""
    from projector_sim.kv.airports import airports

    lines: list[str] = []
    for change in airports():
        assert change.value is not None
        name = json.dumps(change.key.decode())
        lines.append(f'{{"id":{name},"doc":{change.value.decode()}}}\n')
        if len(lines) == PIECE_LINES:
            yield "".join(lines).encode()
            lines = []
    yield "".join(lines).encode()
