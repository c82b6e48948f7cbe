"""Request ids: UUIDv7 (RFC 9562), so that a cluster can tell an old one by its time."""

from __future__ import annotations

import secrets
import time
import uuid


def new_request_id() -> str:
    """Return a fresh UUIDv7."""
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(80))


def uuid7(at_ms: int, random_bits: int) -> str:
    """Return a UUIDv7: 48 bits of milliseconds since 1970, and 74 of 80 that are random."""
    bits = at_ms << 80 | random_bits
    bits = bits & ~(0xF << 76) | 0x7 << 76
    bits = bits & ~(0x3 << 62) | 0x2 << 62
    return str(uuid.UUID(int=bits))
