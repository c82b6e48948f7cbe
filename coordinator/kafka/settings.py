"""Settings that all clients of Kafka share, and headers of records."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.address import client_settings
from coordinator.kafka.topics import MESSAGE_BYTES_MAX

EVENT_HEADER = "event"
"""The header in which a tombstone on `statecontext` carries the rest of its event."""

BASE_HEADER = "base"
"""The header in which the first record of a restored `history` tells what came before it."""


class Base(NamedTuple):
    """What a restored `history` begins above: a state with this CAS, of which a copy stands on
    `snapshots`. With CAS 0 it has every change."""

    cas: Cas
    copy: int
    offset: Offset

    def encode(self) -> bytes:
        return " ".join(map(str, self)).encode()


def decode_base(text: bytes) -> Base | None:
    """Return the base that a header has; None if the header is not of this kind."""
    parts = text.split()
    if len(parts) != len(Base._fields) or not all(map(is_number, parts)):
        return None
    cas, copy, offset = map(int, parts)
    return Base(Cas(cas), copy, Offset(offset))


DIGITS_MAX = 19
"""A number of 63 bits has no more."""


def is_number(text: bytes) -> bool:
    """Tell whether a text, which anybody may have written, is digits that a number may have."""
    return text.isdigit() and len(text) <= DIGITS_MAX


RECONNECT_BACKOFF_MS_MAX = 1_000
"""A broker that was away is back after seconds, and may lead again at once."""

SOCKET_TIMEOUT_MS = 3_000
"""A broker that takes this long hangs: another may lead by now. Shorter than the time after which
a node that does not hear its own heartbeats starts again."""


def plain_settings(bootstrap_servers: str, **more: Any) -> dict[str, Any]:
    """Return the settings of all producers; `more` overrides them."""
    return {
        **client_settings(bootstrap_servers),
        "acks": "all",
        "linger.ms": 0,
        "socket.timeout.ms": SOCKET_TIMEOUT_MS,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS_MAX,
        "socket.nagle.disable": True,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "log_level": 2,
        **more,
    }
