"""What all clients of Kafka are told alike."""

from __future__ import annotations

from typing import Any

from coordinator.kafka.topics import MESSAGE_BYTES_MAX

EVENT_HEADER = "event"
"""The header in which a tombstone on `statecontext` carries the rest of its event."""

RECONNECT_BACKOFF_MS_MAX = 1_000
"""A broker that was away is back after seconds, and may lead again at once."""

SOCKET_TIMEOUT_MS = 3_000
"""A broker that takes this long hangs: another may lead by now. Shorter than the time after which
a node that does not hear its own heartbeats starts again."""


def plain_settings(bootstrap_servers: str, **more: Any) -> dict[str, Any]:
    """Return what all producers are set to; `more` goes before it."""
    return {
        "bootstrap.servers": bootstrap_servers,
        "acks": "all",
        "linger.ms": 0,
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS_MAX,
        "socket.nagle.disable": True,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "log_level": 2,
        **more,
    }
