"""How the items of a `KeyVersions` record lie in its bytes: one after the other. Pure.

Numbers are big-endian. An item that tells of a mutation is a head, the id of the document, and for
each index that it names a place: that of the index in the record's list (2 bytes, ascending), the
slice (2), the size of the key (2), and the encoded key (`coordinator.core.keys.collation`). Where
the document has several keys in an index the slice is `MANY`, and in place of the key each of them
follows with its slice (`pack_many`):

    kind 1, vbucket 2, seqno 8, count of places 2, size of the id 2, size of the places 4

    DOCUMENT the document is in these slices, and in no other slice of any index in the record's
             list. One such item tells an indexer all of a mutation
    PLACES   the document is in these slices; where the slice is `NO_SLICE`, in none of that index.
             Nothing is said of indexes that are not named. For what does not fit into one item, for
             a backfill, which does not tell what is absent, and for mutations of which not every
             index in the list is told

Every other item is a head, the id of a document, and a payload:

    kind 1, vbucket 2, seqno 8, place 2, slice 2, size of the id 1, size of the payload 2

    UPSERT   from a projector of an older version: the document is in this slice of the index at
             this place under the key in the payload, and in no other slice
    ABSENT   from the same: the document is in no slice of the index that the reader holds
    BEGIN    the vbucket's stream begins after this seqno of the branch in the payload (8 bytes);
             what follows, 2 bytes each, are the places of the indexes that it carries
    ATTACH   from here on the vbucket's stream carries this index, too; in the payload the branch
             (8 bytes), for a reader that has not seen where the stream began
    SYNC     nothing up to this seqno, the end of a snapshot, is still to come
    END      the vbucket's stream has ended; nothing up to this seqno is still to come
    SYNCS    what a SYNC says, of several vbuckets; in the payload, of each, vbucket (2 bytes) and
             seqno (8). It is read as a SYNC of each
    HISTORY  right before a BEGIN or ATTACH: which branches the vbucket has had, the newest first
             (vbuuid and first seqno, 8 bytes each); left out while there was one only, unless its
             source forgets branches

All items of a record are of one connection, in the order of its stream. Those of one seqno may be
too many for one record; then all but the last record of them say so (`KeyVersions.continued`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, starmap
from typing import NamedTuple

from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Seqno, Vbuuid

UPSERT, ABSENT, BEGIN, ATTACH, SYNC, END, HISTORY, DOCUMENT, PLACES, SYNCS = range(1, 11)
OF_MUTATIONS = frozenset({UPSERT, ABSENT, DOCUMENT, PLACES})
"""The kinds that tell what became of a document; the others are about streams."""

NO_SLICE = 0xFFFF
MANY = 0xFFFE
"""In place of a slice: the document has several keys."""

INDEXES_MAX = 0xFFFF
VARINT_BITS = 63
"""After so many bits a number has one more byte at most."""

DOCUMENT_ID_BYTES_MAX = 4_096
KEY_BYTES_MAX = 4_096
KEYS_BYTES_MAX = 48 * 1024
"""So many bytes the keys of one document in one index take at most, packed."""

HEAD = struct.Struct(">BHQHHBH")
MUTATION_HEAD = struct.Struct(">BHQHHI")
VBUUID = struct.Struct(">Q")
PLACE = struct.Struct(">H")
PLACED_HEAD = struct.Struct(">HHH")
WHERE_HEAD = struct.Struct(">HH")
MUTATION_BYTES = struct.calcsize(">BHQ")
"""So many bytes of an item, of either form, say of which kind it is, and of which mutation."""

BRANCH = struct.Struct(">QQ")
POSITION = struct.Struct(">HQ")
SYNCS_MAX = 6_000
"""So many vbuckets one SYNCS has at most: the size of a payload has 2 bytes."""


Placed = tuple[int, int, bytes]
"""Where a document is in one index: the index's place in the record's list, the slice, the key. Or
`MANY` in place of the slice, and `pack_many` of where it is in place of the key."""

Where = tuple[int, bytes]
"""A slice of an index, and an encoded key in it."""


class Item(NamedTuple):
    """One item; `slice` is `NO_SLICE` but for an UPSERT. DOCUMENT and PLACES have `placed`."""

    kind: int
    vbucket: int
    seqno: Seqno
    place: int = 0
    slice: int = NO_SLICE
    document: bytes = b""
    payload: bytes = b""
    placed: tuple[Placed, ...] = ()


class ItemsError(ValueError):
    """The bytes are no items."""


def pack(item: Item) -> bytes:
    """Return the bytes of one item."""
    kind, vbucket, seqno, place, piece, document, payload, placed = item
    if kind in (DOCUMENT, PLACES):
        places = pack_placed(placed)
        head = MUTATION_HEAD.pack(kind, vbucket, seqno, len(placed), len(document), len(places))
        return head + document + places
    head = HEAD.pack(kind, vbucket, seqno, place, piece, len(document), len(payload))
    return head + document + payload


def pack_placed(placed: Iterable[Placed]) -> bytes:
    """Return the places of a DOCUMENT or PLACES."""
    return b"".join(PLACED_HEAD.pack(place, piece, len(key)) + key for place, piece, key in placed)


def unpack_placed(
    raw: bytes, count: int, at: int = 0, end: int | None = None
) -> tuple[Placed, ...]:
    """Return what `pack_placed` has packed, `count` of them, from `at` to `end`. ItemsError."""
    found: list[Placed] = []
    read, head, before = PLACED_HEAD.unpack_from, PLACED_HEAD.size, -1
    end = len(raw) if end is None else end
    try:
        for _ in range(count):
            place, piece, size = read(raw, at)
            at += head
            if place <= before:
                raise ItemsError("places that do not ascend")
            found.append((place, piece, raw[at : at + size]))
            before = place
            at += size
    except struct.error:
        raise ItemsError("the bytes end in a place") from None
    if at != end:
        raise ItemsError("places that do not fill their item")
    return tuple(found)


def pack_many(places: Iterable[Where]) -> bytes:
    """Return the slices and keys of a document that has several in one index."""
    return b"".join(WHERE_HEAD.pack(piece, len(key)) + key for piece, key in places)


def unpack_many(raw: bytes) -> list[Where]:
    """Return what `pack_many` has packed. ItemsError."""
    found: list[Where] = []
    at, end, head = 0, len(raw), WHERE_HEAD.size
    try:
        while at < end:
            piece, size = WHERE_HEAD.unpack_from(raw, at)
            at += head + size
            found.append((piece, raw[at - size : at]))
    except struct.error:
        raise ItemsError("the bytes end in the head of one of several keys") from None
    if at != end:
        raise ItemsError("the bytes end in one of several keys")
    return found


def placed_before(item: Item) -> tuple[Placed, ...]:
    """Return what an UPSERT or ABSENT says, as a PLACES says it."""
    piece = item.slice if item.kind == UPSERT else NO_SLICE
    return ((item.place, piece, item.payload),)


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


def history(vbucket: int, log: Sequence[FailoverBranch], *, forgets: bool = False) -> bytes:
    """Return the packed HISTORY of a vbucket's failover log.

    That is nothing if it has one branch, unless its source `forgets` older ones: then it says that
    whoever is on another branch has nothing of this one.
    """
    if not log or (len(log) == 1 and not forgets):
        return b""
    branches = b"".join(BRANCH.pack(branch.vbuuid, branch.seqno) for branch in log)
    return pack(Item(HISTORY, vbucket, Seqno(0), payload=branches))


def branches(item: Item) -> tuple[FailoverBranch, ...]:
    """Return the branches of a HISTORY: the inverse of `history`."""
    if not item.payload or len(item.payload) % BRANCH.size:
        raise ItemsError("a HISTORY that is none")
    return tuple(FailoverBranch(*pair) for pair in BRANCH.iter_unpack(item.payload))


def pack_syncs(reached: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the packed items that say how far each of these vbuckets has come."""
    for at in range(0, len(reached), SYNCS_MAX):
        payload = b"".join(starmap(POSITION.pack, reached[at : at + SYNCS_MAX]))
        yield HEAD.pack(SYNCS, 0, 0, 0, NO_SLICE, 0, len(payload)) + payload


def pack_indexes(indexes: Sequence[int], builds: Sequence[int]) -> bytes:
    """Return the indexes of a record, and the build of each: in turn, each id as how much it is
    more than the one before. Every number is a zigzag varint, as Avro has it."""
    found, before = bytearray(), 0
    for index_id, build in zip(indexes, builds, strict=True):
        for number in (index_id - before, build):
            left = number << 1 if number >= 0 else ~(number << 1)
            while left > 0x7F:
                found.append(left & 0x7F | 0x80)
                left >>= 7
            found.append(left)
        before = index_id
    return bytes(found)


def unpack_indexes(raw: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what `pack_indexes` has packed. ItemsError: it is damaged, or they are too many."""
    numbers: list[int] = []
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift > VARINT_BITS:
                raise ItemsError("a number of an index that is too long")
            continue
        numbers.append(number >> 1 ^ -(number & 1))
        number = shift = 0
    if shift or len(numbers) % 2 or len(numbers) > 2 * INDEXES_MAX:
        raise ItemsError("indexes that end in one of them, or are too many")
    return tuple(accumulate(numbers[::2])), tuple(numbers[1::2])


def is_of_one_mutation(item: bytes, after: bytes) -> bool:
    """Tell whether two packed items, one behind the other, are of the same mutation."""
    kinds = {item[0], after[0]}
    return kinds <= OF_MUTATIONS and item[1:MUTATION_BYTES] == after[1:MUTATION_BYTES]


def unpack(items: bytes) -> Iterator[Item]:
    """Yield the items, in order. ItemsError: the bytes are damaged, from here on."""
    at, end, head, mutation_head = 0, len(items), HEAD.size, MUTATION_HEAD.size
    # Not by calling Item: that takes a third of the time.
    read, read_mutation, make = HEAD.unpack_from, MUTATION_HEAD.unpack_from, tuple.__new__
    read_place, place_size = PLACED_HEAD.unpack_from, PLACED_HEAD.size
    while at < end:
        if DOCUMENT <= items[at] <= PLACES:
            if end - at < mutation_head:
                raise ItemsError("the bytes end in a head")
            kind, vbucket, seqno, count, name, payload = read_mutation(items, at)
            at += mutation_head
            middle = at + name
            after = middle + payload
            if after > end:
                raise ItemsError("no item")
            if count == 1 and payload >= place_size:
                # What most are; not by a call: that takes a quarter of the time.
                place, piece, size = read_place(items, middle)
                if place_size + size != payload:
                    raise ItemsError("places that do not fill their item")
                placed: tuple[Placed, ...] = ((place, piece, items[middle + place_size : after]),)
            else:
                placed = unpack_placed(items, count, middle, after) if payload or count else ()
            yield make(Item, (kind, vbucket, seqno, 0, NO_SLICE, items[at:middle], b"", placed))
        else:
            if end - at < head:
                raise ItemsError("the bytes end in a head")
            kind, vbucket, seqno, place, piece, name, payload = read(items, at)
            at += head
            middle = at + name
            after = middle + payload
            if after > end or not UPSERT <= kind <= SYNCS:
                raise ItemsError("no item")
            document, rest = items[at:middle], items[middle:after]
            if kind == SYNCS:
                if payload % POSITION.size:
                    raise ItemsError("a SYNCS that ends in a position")
                for vbucket, seqno in POSITION.iter_unpack(rest):
                    yield make(Item, (SYNC, vbucket, seqno, 0, NO_SLICE, b"", b"", ()))
                at = after
                continue
            yield make(Item, (kind, vbucket, seqno, place, piece, document, rest, ()))
        at = after
