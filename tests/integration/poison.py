"""Records that nobody can use."""

from __future__ import annotations

from typing import Any

from coordinator import codec
from coordinator.core.model.entities import Setting
from schemas.registry import registry


def nested(depth: int) -> bytes:
    """Return an event about an event about an event …"""
    value = codec.encode(Setting("k", "1"))
    fields: dict[str, Any] = {
        "event": "e",
        "key": "k",
        "request": "",
        "principal": "",
        "at_ms": 0,
        "txn_epoch": 1,
        "txn_seq": 1,
        "index": 0,
        "count": 1,
        "cas": 1,
    }
    for _ in range(depth):
        value = registry().current["Event"].encode({**fields, "value": value})
    return value
