"""The keys of a bucket's database, and what stands under them. Pure.

    m   index, slice                    definition: the slice is allocated
    s   index                           shard: which life of the index's storage this is
    d   index, slice, key, document     -: an entry, in the order of the keys
    b   document                        for each index that the document is in: the index's life,
                                        size of the key, seqno, slice, key (`back_index`); where it
                                        has several keys, `MANY` and each of them with its slice
    f   index                           the life of the index
    g   -                               the last life that was given
    w   -                               the back-index has what does not count: it is to be swept
    z   -                               the format: another one is not read
    t   index, document                 seqno: the document was in no slice then (tombstone)
    n   index, slice                    how many entries, and their bytes (`sizes`)
    x   index                           build, and whether all of it is here
    a   index, vbucket                  how far the build has got (`tracker.Mark`)
    v   vbucket                         high watermark and owner (`progress.VbucketProgress`)
    o   partition                       the first offset of `mutations` that is not in here yet, and
                                        the leader epoch of what lies before it
    l   -                               the id of the topic `mutations` that was read
    c   partition, projector, connection    its last record in here (`chains.Chain`)
    r   -                               the number of the last rollback that was done here, and the
                                        indexes that have not recovered from it

Numbers are big-endian. For each (index, document) there is one entry in `b` where there is any `d`,
which names each of them: both change in one batch. All that belongs to an index lies in a
few ranges (`contents_of`), or counts in one life of it only: so it is deleted without reading it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from coordinator.core.keys.key_versions import MANY, Where, pack_many, unpack_many
from coordinator.core.model.types import Seqno

SLICE, SHARD, DATA, SIZE = b"m", b"s", b"d", b"n"
BACK, TOMBSTONE = b"b", b"t"
STATE, MARK, PROGRESS, OFFSET, CHAIN, TOPIC = b"x", b"a", b"v", b"o", b"c", b"l"
ROLLBACK = b"r"
LIFE, LIVES, UNSWEPT, FORMAT = b"f", b"g", b"w", b"z"
FORMAT_VALUE = b"2"
"""In the first one each index had a back-index of its own. What is of another is built anew."""

NOTHING = b""
NO_EPOCH = -1
"""The leader epoch where none is known."""

INDEX_KEY = struct.Struct(">Q")
SLICE_KEY = struct.Struct(">QI")
MARK_KEY = struct.Struct(">QH")
NUMBER_KEY = struct.Struct(">H")
SEQNO = struct.Struct(">Q")
BACK_HEAD = struct.Struct(">IHQI")
PIECE = slice(14, 18)
SEVERAL = struct.pack(">I", MANY)
"""Where the slice lies in an entry of the back-index, and what is there if it has several keys."""
LIFE_VALUE = struct.Struct(">I")
OFFSET_VALUE = struct.Struct(">qi")
OLD_OFFSET_VALUE = struct.Struct(">q")
STATE_VALUE = struct.Struct(">q?")
ROLLBACK_HEAD = struct.Struct(">q?")
CHAIN_KEY = struct.Struct(">Hiq")
CHAIN_VALUE = struct.Struct(">qq")


class State(NamedTuple):
    """What is held of an index: of which build (0: of none yet), and whether it is complete."""

    build: int = 0
    complete: bool = False


def unpack_offset(raw: bytes) -> tuple[int, int]:
    """Return an offset, and the leader epoch of what lies before it."""
    if len(raw) == OLD_OFFSET_VALUE.size:
        return OLD_OFFSET_VALUE.unpack(raw)[0], NO_EPOCH
    offset, epoch = OFFSET_VALUE.unpack(raw)
    return offset, epoch


def pack_state(state: State) -> bytes:
    return STATE_VALUE.pack(*state)


def unpack_state(raw: bytes) -> State:
    return State(*STATE_VALUE.unpack_from(raw))


def pack_rollback(number: int, recovering: Collection[int] | None) -> bytes:
    """Return a rollback that was done: its number, and the indexes that have not recovered from it;
    None: it is over."""
    ids = sorted(recovering or ())
    head = ROLLBACK_HEAD.pack(number, recovering is not None)
    return head + b"".join(map(INDEX_KEY.pack, ids))


def unpack_rollback(raw: bytes) -> tuple[int, frozenset[int] | None]:
    """Return the number, and the indexes: the inverse of `pack_rollback`."""
    number, goes_on = ROLLBACK_HEAD.unpack_from(raw)
    ids = frozenset(i for (i,) in INDEX_KEY.iter_unpack(raw[ROLLBACK_HEAD.size :]))
    return number, ids if goes_on else None


def entries_prefix(index_id: int, piece: int) -> bytes:
    """Return what the keys of a slice's entries begin with; an encoded key and an id follow."""
    return DATA + SLICE_KEY.pack(index_id, piece)


def tombstone_prefix(index_id: int) -> bytes:
    """Return what the keys of an index's tombstones begin with; a document's id follows."""
    return TOMBSTONE + INDEX_KEY.pack(index_id)


def pack_back(life: int, seqno: int, piece: int, key: bytes) -> bytes:
    """Return an entry of the back-index."""
    return BACK_HEAD.pack(life, len(key), seqno, piece) + key


def unpack_back(entry: bytes) -> tuple[Seqno, int, bytes]:
    """Return seqno, slice and encoded key of an entry of the back-index; or seqno, `MANY`, and
    several of them, packed."""
    _, _, seqno, piece = BACK_HEAD.unpack_from(entry)
    return seqno, piece, entry[BACK_HEAD.size :]


def pack_places(life: int, seqno: int, places: Sequence[Where]) -> bytes:
    """Return an entry of the back-index for a document that has these places, at least one."""
    if len(places) == 1:
        return pack_back(life, seqno, *places[0])
    return pack_back(life, seqno, MANY, pack_many(places))


def places_of(piece: int, key: bytes) -> list[Where]:
    """Return where a document is, of which an entry or an item says this."""
    return unpack_many(key) if piece == MANY else [(piece, key)]


def places_in(entry: bytes) -> list[Where]:
    """Return where a document is, of which this is the entry."""
    _, piece, key = unpack_back(entry)
    return places_of(piece, key)


def entry_of(record: bytes, life: int) -> bytes | None:
    """Return the entry of one life in a record of the back-index, None if it has none."""
    at, end = 0, len(record)
    while at < end:
        found, length, _, _ = BACK_HEAD.unpack_from(record, at)
        after = at + BACK_HEAD.size + length
        if found == life:
            return record[at:after]
        at = after
    return None


def cut_down(entry: bytes, pieces: Container[int]) -> bytes | None:
    """Return an entry without what is in other slices than these; None: nothing is left of it."""
    life, _, seqno, piece = BACK_HEAD.unpack_from(entry)
    if piece != MANY:
        return entry if piece in pieces else None
    places = places_in(entry)
    left = [place for place in places if place[0] in pieces]
    if len(left) == len(places):
        return entry
    return pack_places(life, seqno, left) if left else None


class Range(NamedTuple):
    """The keys from `begin` on and before `end`."""

    begin: bytes
    end: bytes


def under(prefix: bytes) -> Range:
    """Return where the keys lie that begin with `prefix`, which does not end in 0xff only."""
    kept = prefix.rstrip(b"\xff")
    return Range(prefix, kept[:-1] + bytes((kept[-1] + 1,)))


def slice_range(index_id: int, piece: int) -> Range:
    """Return where the entries of a slice lie."""
    return under(entries_prefix(index_id, piece))


def contents_of(index_id: int) -> tuple[Range, ...]:
    """Return where everything lies that a build has put into an index, but for `x` and `b`."""
    number = INDEX_KEY.pack(index_id)
    return tuple(under(prefix + number) for prefix in (DATA, TOMBSTONE, MARK, SIZE))
