"""How large the slices of a bucket are: counted with each change, written in the same batch.

Nothing is ever scanned for it.
The applier counts; values are never changed in place, so that other threads may read them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from indexer_sim.bucket.entries import (
    BACK_HEAD,
    DATA,
    SIZE,
    SLICE_KEY,
    entries_prefix,
)

SIZE_VALUE = struct.Struct(">qq")
FIXED_BYTES = len(DATA) + SLICE_KEY.size + BACK_HEAD.size
"""What an entry and its place in the back-index take, but for its key, which is in both, and its
document's id. The id is in the back-index once, however many indexes there are: that is not
counted."""

Place = tuple[int, int]
"""An index and the number of a slice."""


class Size(NamedTuple):
    """The entries of a slice, their bytes before compression, and the changes since the start."""

    entries: int = 0
    bytes: int = 0
    changes: int = 0


class Tally:
    """By how much one slice grows in a batch; `prefix` is what keys of its entries begin with."""

    __slots__ = ("changes", "contents", "entries", "prefix")

    def __init__(self, index_id: int, piece: int) -> None:
        self.prefix = entries_prefix(index_id, piece)
        self.entries = self.contents = self.changes = 0


class Sizes:
    """The sizes of all slices of a bucket that have ever had entries."""

    def __init__(self) -> None:
        self._sizes: dict[Place, Size] = {}
        self._dirty: set[Place] = set()

    def all(self) -> list[tuple[Place, Size]]:
        """Return all of them. For any thread."""
        return list(self._sizes.items())

    def has_entries(self, index_id: int) -> bool:
        """Tell whether any slice of an index has entries."""
        return any(size.entries for place, size in self._sizes.items() if place[0] == index_id)

    def load(self, place: Place, raw: bytes) -> None:
        self._sizes[place] = Size(*SIZE_VALUE.unpack(raw))

    def count(self, place: Place, entries: int, contents: int, changes: int = 0) -> None:
        """There are so many entries more, or fewer; `contents` are the bytes of keys and ids: of
        each entry those of its key twice.

        `changes` are those that led to this.
        """
        before = self._sizes.get(place, NOTHING)
        more = contents + FIXED_BYTES * entries
        self._sizes[place] = Size(
            max(0, before.entries + entries),
            max(0, before.bytes + more),
            before.changes + changes,
        )
        if entries or contents:
            self._dirty.add(place)

    def forget(self, index_id: int, numbers: Iterable[int] | None = None) -> None:
        """These slices of an index, or all, are gone or begin from nothing."""
        for place in [p for p in self._sizes if p[0] == index_id]:
            if numbers is None or place[1] in numbers:
                del self._sizes[place]
                self._dirty.discard(place)

    def put(self, batch: Any) -> None:
        """Put what has changed into a batch; it counts as written."""
        for place in self._dirty:
            size = self._sizes[place]
            batch.put(SIZE + SLICE_KEY.pack(*place), SIZE_VALUE.pack(size.entries, size.bytes))
        self._dirty.clear()


NOTHING = Size()
