"""The back-index of a bucket: one record for a document, which tells where it is in every index.

A record has an entry for each index that the document is in: the index's *life*, and seqno, slice
and key there. An index that begins from nothing begins another life, and what was noted in an
earlier one does not count. So an index is emptied at once, whatever the number of documents. The
same holds for a slice that has gone from here. Who sweeps takes such entries out later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from indexer_sim.bucket.entries import (
    BACK,
    BACK_HEAD,
    INDEX_KEY,
    LIFE,
    LIFE_VALUE,
    LIVES,
    SEQNO,
    UNSWEPT,
    cut_down,
    tombstone_prefix,
    under,
    unpack_back,
)

BEGIN, END = under(BACK)

SWEPT_AT_ONCE = 1_000
"""So many records are looked at in one step of sweeping."""

Entries = dict[int, bytes]
"""Where a document is, by index, each as it lies in the record (`entries.pack_back`)."""


class BackIndex:
    """Reads and writes records of the back-index, and knows the lives of indexes."""

    def __init__(self) -> None:
        self.lives: dict[int, int] = {}
        """Of each index that is held."""
        self._indexes: dict[int, int] = {}
        self._last_life = 0
        self._swept_to: bytes | None = None
        """Where sweeping goes on; None: there is nothing to sweep."""

    def load(self, database: Any) -> None:
        """Find out which lives there are. Raises StorageError."""
        self.lives.clear()
        self._indexes.clear()
        for key, value in database.scan(LIFE):
            (index_id,) = INDEX_KEY.unpack(key[len(LIFE) :])
            self._live(index_id, LIFE_VALUE.unpack(value)[0])
        for _, value in database.scan(LIVES):
            (self._last_life,) = LIFE_VALUE.unpack(value)
        self._swept_to = BEGIN if database.scan(UNSWEPT) else None

    def _live(self, index_id: int, life: int) -> None:
        self.lives[index_id] = life
        self._indexes[life] = index_id
        self._last_life = max(self._last_life, life)

    def renew(self, batch: Any, index_id: int, *, had_entries: bool) -> None:
        """An index begins from nothing: no entry that it has counts any more."""
        self.end(batch, index_id, had_entries=had_entries)
        self._live(index_id, self._last_life + 1)
        batch.put(LIFE + INDEX_KEY.pack(index_id), LIFE_VALUE.pack(self._last_life))
        batch.put(LIVES, LIFE_VALUE.pack(self._last_life))

    def end(self, batch: Any, index_id: int, *, had_entries: bool) -> None:
        """An index is not held any more; what it had is to be swept."""
        before = self.lives.pop(index_id, None)
        if before is not None:
            del self._indexes[before]
            batch.delete(LIFE + INDEX_KEY.pack(index_id))
        if had_entries:
            self.is_unswept(batch)

    def is_unswept(self, batch: Any) -> None:
        """There may be entries that do not count: all is to be swept."""
        self._swept_to = BEGIN
        batch.put(UNSWEPT, b"")

    def read(self, raw: bytes) -> Entries:
        """Return the entries that count of a record."""
        found: Entries = {}
        if not raw:
            return found
        at, end, head, size = 0, len(raw), BACK_HEAD.unpack_from, BACK_HEAD.size
        indexes = self._indexes
        life, length, _, _ = head(raw)
        if size + length == end:  # It is the only one, as most are.
            return {} if (index_id := indexes.get(life)) is None else {index_id: raw}
        while at < end:
            life, length, _, _ = head(raw, at)
            after = at + size + length
            index_id = indexes.get(life)
            if index_id is not None:
                found[index_id] = raw[at:after]
            at = after
        return found

    @property
    def is_swept(self) -> bool:
        return self._swept_to is None

    def sweep(
        self,
        batch: Any,
        database: Any,
        slices: Mapping[int, Collection[int]],
        guards: Callable[[int], bool],
    ) -> set[int]:
        """Take some entries out that do not count, or are of slices that have gone from here.

        An index that `guards` says so of gets a tombstone for each of the latter; these indexes are
        returned. Raises StorageError.
        """
        guarded: set[int] = set()
        if self._swept_to is None:
            return guarded
        records = database.some(self._swept_to, END, SWEPT_AT_ONCE)
        for key, raw in records:
            document, entries, left = key[len(BACK) :], self.read(raw), {}
            for index_id, entry in entries.items():
                kept = cut_down(entry, slices[index_id])
                if kept is not None:
                    left[index_id] = kept
                elif guards(index_id):
                    guarded.add(index_id)
                    seqno, _, _ = unpack_back(entry)
                    batch.put(tombstone_prefix(index_id) + document, SEQNO.pack(seqno))
            if sum(map(len, left.values())) != len(raw):
                put(batch, document, left)
        if len(records) < SWEPT_AT_ONCE:
            self._swept_to = None
            batch.delete(UNSWEPT)
        else:
            self._swept_to = records[-1][0] + b"\x00"
        return guarded


def put(batch: Any, document: bytes, entries: Mapping[int, bytes]) -> None:
    """Put a document's record into a batch; without entries there is none."""
    if entries:
        batch.put(BACK + document, b"".join(entries.values()))
    else:
        batch.delete(BACK + document)
