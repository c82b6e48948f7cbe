"""In which vbucket a document lies, and which node owns which vbucket at first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

VBUCKETS = 1024
VBUCKETS_MAX = 1 << 15
"""The placement takes 15 bits of the checksum."""


def check_vbuckets(vbuckets: int) -> None:
    """ValueError: this is no number of vbuckets."""
    if not 1 <= vbuckets <= VBUCKETS_MAX or vbuckets & (vbuckets - 1):
        raise ValueError(f"{vbuckets} vbuckets: not a power of two up to {VBUCKETS_MAX}")


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return the vbucket of a document, as the clients of such stores compute it (CRC32)."""
    return (crc32(key) >> 16) & 0x7FFF & (vbuckets - 1)


def spread(vbuckets: int, nodes: Sequence[int]) -> list[int]:
    """Return the owner of each vbucket: contiguous shares, whose sizes differ by one at most."""
    if not nodes:
        raise ValueError("no node to own the vbuckets")
    return [nodes[vbucket * len(nodes) // vbuckets] for vbucket in range(vbuckets)]
