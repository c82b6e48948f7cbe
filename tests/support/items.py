"""What items of mutations tell of each index, whatever their form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coordinator.core.keys.key_versions import (
    ABSENT,
    DOCUMENT,
    MANY,
    NO_SLICE,
    OF_MUTATIONS,
    UPSERT,
    Item,
    unpack_many,
)


def told(item: Item, indexes: Sequence[int]) -> Iterator[Item]:
    """Yield what a mutation is to each index of a record: an UPSERT or ABSENT, by its place; an
    UPSERT for each of several keys.

    An item that is about no mutation is yielded as it is.
    """
    if item.kind not in OF_MUTATIONS or item.kind < DOCUMENT:
        yield item
        return
    placed = {place: (piece, key) for place, piece, key in item.placed}
    told_of = range(len(indexes)) if item.kind == DOCUMENT else placed
    for place in told_of:
        piece, key = placed.get(place, (NO_SLICE, b""))
        for one, its_key in unpack_many(key) if piece == MANY else [(piece, key)]:
            kind = ABSENT if one == NO_SLICE else UPSERT
            yield Item(kind, item.vbucket, item.seqno, place, one, item.document, its_key)
