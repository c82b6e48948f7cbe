"""A digest of a StateContext that is updated incrementally.

The digest is the sum modulo 2^128 of BLAKE2b-128 over (key, CAS, value bytes), so that it does
not depend on order, and adding or taking away an entity costs one hash. The value is hashed
exactly as it was written, schema fingerprint included, and never encoded again: two nodes with
the same digest hold the same bytes.
"""

from __future__ import annotations

from hashlib import blake2b

from coordinator.core.model.types import Cas

MODULUS_MASK = 2**128 - 1
EMPTY = 0


def weight(key: str, cas: Cas, value: bytes) -> int:
    """Return what one entity contributes: 128 bits over its key, CAS and value, unambiguously."""
    name = key.encode()
    head = len(name).to_bytes(4, "little") + cas.to_bytes(8, "little")
    return int.from_bytes(blake2b(head + name + value, digest_size=16).digest(), "little")


def text(digest: int) -> str:
    """Return a digest as people see it: 32 hexadecimal digits."""
    return f"{digest:032x}"
