"""How the items of a `KeyVersions` record lie in its bytes: one after the other. Pure.

Every item is a head, the id of a document, and a payload:

    kind 1, vbucket 2, seqno 8, place 2, slice 2, size of the id 1, size of the payload 2

`place` is that of an index in the record's list; numbers are big-endian. What the kinds mean:

    UPSERT   the document is in this slice of the index under the key in the payload
             (`coordinator.core.keys.collation`), and in no other slice
    ABSENT   the document is in no slice of the index that the reader holds
    BEGIN    the vbucket's stream begins after this seqno of the branch in the payload (8 bytes);
             what follows, 2 bytes each, are the places of the indexes that it carries
    ATTACH   from here on the vbucket's stream carries this index, too; in the payload the branch
             (8 bytes), for a reader that has not seen where the stream began
    SYNC     nothing up to this seqno, the end of a snapshot, is still to come
    END      the vbucket's stream has ended; nothing up to this seqno is still to come
    HISTORY  right before a BEGIN or ATTACH: which branches the vbucket has had, the newest first
             (vbuuid and first seqno, 8 bytes each); left out while there was one only

All items of a record are of one connection, in the order of its stream. Those of one seqno may be
too many for one record; then all but the last record of them say so (`KeyVersions.continued`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Seqno, Vbuuid

UPSERT, ABSENT, BEGIN, ATTACH, SYNC, END, HISTORY = range(1, 8)
NO_SLICE = 0xFFFF
INDEXES_MAX = 0xFFFF
DOCUMENT_ID_BYTES_MAX = 250
KEY_BYTES_MAX = 4_096

HEAD = struct.Struct(">BHQHHBH")
VBUUID = struct.Struct(">Q")
PLACE = struct.Struct(">H")
BRANCH = struct.Struct(">QQ")


class Item(NamedTuple):
    """One item; `slice` is `NO_SLICE` but for an UPSERT."""

    kind: int
    vbucket: int
    seqno: Seqno
    place: int = 0
    slice: int = NO_SLICE
    document: bytes = b""
    payload: bytes = b""


class ItemsError(ValueError):
    """The bytes are no items."""


def pack(item: Item) -> bytes:
    """Return the bytes of one item."""
    kind, vbucket, seqno, place, piece, document, payload = item
    head = HEAD.pack(kind, vbucket, seqno, place, piece, len(document), len(payload))
    return head + document + payload


def begin(vbucket: int, seqno: Seqno, vbuuid: Vbuuid, indexes: Sequence[int]) -> Item:
    """Return the BEGIN of a vbucket's stream that carries the indexes at these places."""
    payload = VBUUID.pack(vbuuid) + b"".join(map(PLACE.pack, indexes))
    return Item(BEGIN, vbucket, seqno, payload=payload)


def attach(vbucket: int, seqno: Seqno, vbuuid: Vbuuid, index: int) -> Item:
    """Return the ATTACH of the index at this place to a vbucket's stream, from this seqno on."""
    return Item(ATTACH, vbucket, seqno, index, payload=VBUUID.pack(vbuuid))


def begun(item: Item) -> tuple[Vbuuid, tuple[int, ...]]:
    """Return the vbuuid and the places of the indexes of a BEGIN: the inverse of `begin`."""
    if len(item.payload) < VBUUID.size or len(item.payload) % PLACE.size:
        raise ItemsError("a BEGIN without its branch")
    vbuuid: Vbuuid = VBUUID.unpack_from(item.payload)[0]
    return vbuuid, tuple(p for (p,) in PLACE.iter_unpack(item.payload[VBUUID.size :]))


def history(vbucket: int, log: Sequence[FailoverBranch]) -> bytes:
    """Return the packed HISTORY of a vbucket's failover log, nothing if that has one branch."""
    if len(log) < 2:
        return b""
    branches = b"".join(BRANCH.pack(branch.vbuuid, branch.seqno) for branch in log)
    return pack(Item(HISTORY, vbucket, Seqno(0), payload=branches))


def branches(item: Item) -> tuple[FailoverBranch, ...]:
    """Return the branches of a HISTORY: the inverse of `history`."""
    if not item.payload or len(item.payload) % BRANCH.size:
        raise ItemsError("a HISTORY that is none")
    return tuple(FailoverBranch(*pair) for pair in BRANCH.iter_unpack(item.payload))


def is_of_one_mutation(item: bytes, after: bytes) -> bool:
    """Tell whether two packed items, one behind the other, are of the same mutation."""
    kind, vbucket, seqno, *_ = HEAD.unpack_from(item)
    other, *place = HEAD.unpack_from(after)[:3]
    return kind <= ABSENT and other <= ABSENT and [vbucket, seqno] == place


def unpack(items: bytes) -> Iterator[Item]:
    """Yield the items, in order. ItemsError: the bytes are damaged, from here on."""
    at, end, head = 0, len(items), HEAD.size
    # Not by calling Item: that takes a third of the time.
    read, make = HEAD.unpack_from, tuple.__new__
    while at < end:
        if end - at < head:
            raise ItemsError("the bytes end in a head")
        kind, vbucket, seqno, place, piece, document, payload = read(items, at)
        at += head
        middle = at + document
        after = middle + payload
        if after > end or not UPSERT <= kind <= HISTORY:
            raise ItemsError("no item")
        fields = (kind, vbucket, seqno, place, piece, items[at:middle], items[middle:after])
        yield make(Item, fields)
        at = after
