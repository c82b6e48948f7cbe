"""A subscription to the topic `settings`."""

from __future__ import annotations

from typing import Any

from coordinator.core.model.entities import Subscription
from coordinator.core.model.types import Cas


def make_subscription(**fields: Any) -> Subscription:
    """Return the subscription 7, of `a`: to all changes, received from a node, for ten seconds."""
    known = {
        "topic": "settings",
        "id": "a",
        "number": 7,
        "filter_json": "{}",
        "after": Cas(0),
        "deliver_to": "",
        "expires_after_ms": 10_000,
        "state": "active",
        "created_ms": 0,
    }
    return Subscription(**(known | fields))
