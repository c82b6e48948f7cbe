"""How large slices are, by looking at all that is in a bucket's database."""

from __future__ import annotations

from collections import Counter

from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import BACK, BACK_HEAD, DATA, SLICE_KEY, places_in


def scanned(bucket: Bucket) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the entries of each slice, and the bytes of these and of their places in the
    back-index, as if each had a head of its own."""
    entries: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    for key, value in bucket.database.scan(DATA):
        index_id, piece = SLICE_KEY.unpack_from(key, len(DATA))
        entries[index_id, piece] += 1
        sizes[index_id, piece] += len(key) + len(value)
    for _, value in bucket.database.scan(BACK):
        for index_id, entry in bucket.back_index.read(value).items():
            for piece, key in places_in(entry):
                if piece in bucket.slices[index_id]:
                    sizes[index_id, piece] += BACK_HEAD.size + len(key)
    return {place: (entries[place], sizes[place]) for place in sizes}


def counted(bucket: Bucket) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the same as the bucket has counted it."""
    return {place: (s.entries, s.bytes) for place, s in bucket.sizes.all() if s.entries or s.bytes}
