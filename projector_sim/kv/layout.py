"""How a bucket of the key-value store lies in RocksDB: keys and values as bytes. Pure.

    o                           owner of each vbucket, 2 bytes each
    v vbucket                   floor, failover log: vbuuid and seqno, newest first
    k vbucket key               newest mutation of this key: seqno, kind, expiry
    s vbucket seqno             that mutation, or a superseded one: kind, expiry, key, document
    u vbucket seqno             the seqno of the mutation that this one superseded
    e expiry vbucket key        nothing; there is one for each document that expires
    c                           how many documents there are

Numbers are big-endian, so that they lie in their order. What is superseded is not in the order by
seqno any more, but is kept down to the floor: it comes back when the newer ones are lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from coordinator.core.model.types import Seqno
from projector_sim.protocol.failover import Branch, FailoverLog

OWNERS, COUNT = b"o", b"c"
VBUCKET, BY_KEY, BY_SEQNO, SUPERSEDED, EXPIRY = b"v", b"k", b"s", b"u", b"e"
DELETED, LIVE = 0, 1
KEY_BYTES_MAX = 250
SEQNO_MAX = 2**63 - 1

NUMBER = struct.Struct(">Q")
PAIR = struct.Struct(">QQ")
OWNER = struct.Struct(">H")
PLACE = struct.Struct(">cH")
SEQNO_PLACE = struct.Struct(">cHQ")
EXPIRY_PLACE = struct.Struct(">cQH")
NEWEST = struct.Struct(">QBQ")
ENTRY = struct.Struct(">BQB")
SEQNO_AT = PLACE.size


class Change(NamedTuple):
    """A document to write, or with the value None to delete; 0: it does not expire."""

    key: bytes
    value: bytes | None
    expiry_ms: int = 0


class Placed(NamedTuple):
    """Where a change went; seqno 0: there was nothing to delete."""

    vbucket: int
    seqno: Seqno


class Newest(NamedTuple):
    """What is known of the newest mutation of a key without reading the document."""

    seqno: Seqno
    kind: int
    expiry_ms: int


class Mutation(NamedTuple):
    """The newest mutation of a key. `value` is None for a deletion.

    `expiry_ms` is when the document expires, 0 if it does not. A deletion that has one is the
    expiry itself.
    """

    seqno: Seqno
    key: bytes
    value: bytes | None
    expiry_ms: int


def pack_entry(key: bytes, value: bytes | None, expiry_ms: int) -> bytes:
    """Return a mutation without its seqno."""
    if value is None:
        return ENTRY.pack(DELETED, expiry_ms, len(key)) + key
    return ENTRY.pack(LIVE, expiry_ms, len(key)) + key + value


def unpack_entry(seqno: Seqno, entry: bytes) -> Mutation:
    """Return the mutation: the inverse of `pack_entry`."""
    kind, expiry_ms, size = ENTRY.unpack_from(entry)
    body = ENTRY.size + size
    return Mutation(seqno, entry[ENTRY.size : body], entry[body:] if kind else None, expiry_ms)


def newest_of(vbucket: int, seqno: Seqno, entry: bytes) -> tuple[bytes, Newest]:
    """Return the place of a stored mutation's key, and what is known there of the mutation."""
    kind, expiry_ms, size = ENTRY.unpack_from(entry)
    place = PLACE.pack(BY_KEY, vbucket) + entry[ENTRY.size : ENTRY.size + size]
    return place, Newest(seqno, kind, expiry_ms)


def expiry_place(place: bytes, expiry_ms: int) -> bytes:
    """Return the place in the order of expiry of the key at `place`."""
    return EXPIRY + NUMBER.pack(expiry_ms) + place[len(BY_KEY) :]


def pack_owners(owners: Iterable[int]) -> bytes:
    return b"".join(map(OWNER.pack, owners))


def pack_vbucket(floor: int, log: FailoverLog) -> bytes:
    return NUMBER.pack(floor) + b"".join(PAIR.pack(*branch) for branch in log)


def unpack_vbucket(raw: bytes) -> tuple[int, FailoverLog]:
    log = tuple(Branch(*pair) for pair in PAIR.iter_unpack(raw[NUMBER.size :]))
    return NUMBER.unpack_from(raw)[0], log
