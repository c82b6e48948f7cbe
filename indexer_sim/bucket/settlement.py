"""What changes of documents come to: entries, the back-index, tombstones, and how to undo them.

For each index a change counts only if it is newer than what is held of the document there. A
backfill's counts, too, if it is of the same mutation: what is held may be from one of several
origins (`pipeline.fillings`), which has only some of the keys. Entries and back-index change in one
batch, which the caller writes. `entries` has the layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.core.keys.key_versions import MANY, NO_SLICE, Placed, Where
from indexer_sim.bucket.allocation import Slices
from indexer_sim.bucket.back_index import BackIndex, Entries
from indexer_sim.bucket.back_index import put as put_record
from indexer_sim.bucket.entries import (
    BACK,
    NOTHING,
    SEQNO,
    cut_down,
    entries_prefix,
    pack_back,
    pack_places,
    places_in,
    places_of,
    tombstone_prefix,
    unpack_back,
)
from indexer_sim.bucket.sizes import Sizes, Tally
from indexer_sim.bucket.snapshots import Undo
from indexer_sim.bucket.tracker import Change, Tracker


@dataclass(frozen=True, slots=True)
class Settlement:
    """Puts changes into a batch. `slices` are those that are held, by index."""

    database: Any
    back_index: BackIndex
    slices: Mapping[int, Slices]
    sizes: Sizes
    tracker: Tracker

    def settle(self, batch: Any, changes: Sequence[Change]) -> list[Undo]:
        """Put what is newer than what is held into a batch; return how to undo it.

        Raises StorageError.
        """
        read, lives, here = self.back_index.read, self.back_index.lives, self.slices
        raws = self._records({change[0] for change in changes})
        held: dict[bytes, Entries] = {}
        deleted = self._tombstones(changes)
        tallies: dict[tuple[int, int], Tally] = {}
        undone: list[Undo] = []
        moved: set[bytes] = set()
        put, delete = batch.put, batch.delete
        made, undo = tuple.__new__, undone.append
        after: bytes | None
        for document, seqno, vbucket, placed, others, (logged, guarded), indexes in changes:
            entries = held.get(document)
            if entries is None:
                raw = raws[document]
                entries = held[document] = {} if raw is None else read(raw)
            places: Iterable[tuple[int, int, bytes]] = placed
            if others and (guarded or entries):
                named = {indexes[place[0]] for place in placed}
                if guarded or entries.keys() != named:
                    absent = (entries.keys() | guarded) - named
                    places, indexes = _with(placed, indexes, sorted(absent))
            for place, piece, key in places:
                index_id = indexes[place]
                is_guarded = index_id in guarded
                if not is_guarded and index_id not in logged:
                    continue
                before = entries.get(index_id)
                if before is not None:
                    old_seqno, old_piece, old_key = unpack_back(before)
                    if seqno <= old_seqno and (seqno < old_seqno or not is_guarded):
                        continue
                if deleted and seqno <= deleted.get((index_id, document), 0):
                    continue
                # Whoever sent it may not have known yet that the slice has gone from here.
                is_here = piece in here[index_id]
                if piece == MANY or (before is not None and old_piece == MANY):
                    old = [] if before is None else places_of(old_piece, old_key)
                    new = places_of(piece, key)
                    left = self._settle_many(batch, index_id, document, old, new, tallies)
                    after = pack_places(lives[index_id], seqno, left) if left else None
                else:
                    # The same for one place, which most have: not by a call.
                    stays = before is not None and is_here and piece == old_piece and key == old_key
                    if before is not None and not stays and old_piece in here[index_id]:
                        tally = tallies.get((index_id, old_piece))
                        if tally is None:
                            tally = tallies[index_id, old_piece] = Tally(index_id, old_piece)
                        tally.entries -= 1
                        tally.contents -= 2 * len(old_key) + len(document)
                        tally.changes += not is_here
                        delete(tally.prefix + old_key + document)
                    after = None
                    if is_here:
                        tally = tallies.get((index_id, piece))
                        if tally is None:
                            tally = tallies[index_id, piece] = Tally(index_id, piece)
                        tally.changes += 1
                        if not stays:
                            tally.entries += 1
                            tally.contents += 2 * len(key) + len(document)
                            put(tally.prefix + key + document, NOTHING)
                        after = pack_back(lives[index_id], seqno, piece, key)
                if after is not None:
                    entries[index_id] = after
                    moved.add(document)
                else:
                    if before is not None:
                        del entries[index_id]
                        moved.add(document)
                    if is_guarded:
                        put(tombstone_prefix(index_id) + document, SEQNO.pack(seqno))
                        deleted[index_id, document] = seqno
                        self.tracker.tombstoned.add(index_id)
                if before is not after and not is_guarded:
                    undo(made(Undo, (vbucket, seqno, index_id, document, before, after)))
        for document in moved:
            put_record(batch, document, held[document])
        for where, tally in tallies.items():
            self.sizes.count(where, tally.entries, tally.contents, tally.changes)
        return undone

    def take_over(
        self, batch: Any, index_id: int, documents: Sequence[tuple[bytes, bytes]]
    ) -> None:
        """Put into a batch where documents are in an index, as other indexers have them in some of
        its slices, each under its seqno. Raises StorageError.

        What is newer here counts, and a tombstone that is not older. Of one seqno several indexers
        may tell: each another slice.
        """
        life = self.back_index.lives[index_id]
        raws = self._records({document for document, _ in documents})
        tombstones = self.tombstones_of(index_id, [document for document, _ in documents])
        tallies: dict[tuple[int, int], Tally] = {}
        for document, entry in documents:
            seqno, piece, key = unpack_back(entry)
            if seqno <= tombstones.get(document, -1):
                continue
            raw = raws[document]
            entries = {} if raw is None else self.back_index.read(raw)
            before, new = entries.get(index_id), places_of(piece, key)
            old: list[Where] = []
            if before is not None:
                old_seqno, old_piece, old_key = unpack_back(before)
                if seqno < old_seqno:
                    continue
                old = places_of(old_piece, old_key)
                new = [*new, *old] if seqno == old_seqno else new
            left = self._settle_many(batch, index_id, document, old, new, tallies)
            entries.pop(index_id, None)
            if left:
                entries[index_id] = pack_places(life, seqno, left)
            put_record(batch, document, entries)
        for where, tally in tallies.items():
            self.sizes.count(where, tally.entries, tally.contents)

    def tombstones_of(self, index_id: int, documents: Sequence[bytes]) -> dict[bytes, int]:
        """Return the tombstones of documents in one index."""
        if index_id not in self.tracker.tombstoned:
            return {}
        prefix = tombstone_prefix(index_id)
        values = self.database.get_all([prefix + document for document in documents])
        return {
            document: SEQNO.unpack(value)[0]
            for document, value in zip(documents, values, strict=True)
            if value is not None
        }

    def _settle_many(
        self,
        batch: Any,
        index_id: int,
        document: bytes,
        old: Iterable[Where],
        new: Iterable[Where],
        tallies: dict[tuple[int, int], Tally],
    ) -> list[Where]:
        """Put a document where it is in an index, and nowhere else; return what of that is here."""
        here = self.slices[index_id]
        before = {place for place in old if place[0] in here}
        after = sorted({place for place in new if place[0] in here})
        touched = {piece for piece, _ in (*before, *after)}
        for piece in touched:
            tally = tallies.setdefault((index_id, piece), Tally(index_id, piece))
            tally.changes += 1
        for piece, key in before.difference(after):
            tally = tallies[index_id, piece]
            tally.entries -= 1
            tally.contents -= 2 * len(key) + len(document)
            batch.delete(tally.prefix + key + document)
        for piece, key in after:
            if (piece, key) not in before:
                tally = tallies[index_id, piece]
                tally.entries += 1
                tally.contents += 2 * len(key) + len(document)
                batch.put(tally.prefix + key + document, NOTHING)
        return after

    def _records(self, documents: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the records of documents in the back-index."""
        names = list(documents)
        raws = self.database.get_all([BACK + name for name in names])
        return dict(zip(names, raws, strict=True))

    def _tombstones(self, changes: Sequence[Change]) -> dict[tuple[int, bytes], int]:
        """Return the tombstones of the documents of changes."""
        perhaps = self.tracker.tombstoned
        if not perhaps:
            return {}
        asked: set[tuple[int, bytes]] = set()
        for change in changes:
            told = change.scope.guarded & perhaps
            if told and not change.others:
                told &= {change.indexes[place[0]] for place in change.placed}
            asked.update((index_id, change.document) for index_id in told)
        names = list(asked)
        values = self.database.get_all([tombstone_prefix(i) + document for i, document in names])
        return {
            name: SEQNO.unpack(value)[0]
            for name, value in zip(names, values, strict=True)
            if value is not None
        }

    def put_back(self, batch: Any, changes: Iterable[Undo]) -> None:
        """Undo changes, which are in order: each document is where it was before the first one.

        If that slice has gone from here since, it is nowhere. Raises StorageError.
        """
        first: dict[tuple[int, bytes], Undo] = {}
        last: dict[tuple[int, bytes], Undo] = {}
        for change in changes:
            place = change.index_id, change.document
            first.setdefault(place, change)
            last[place] = change
        raws = self._records({document for _, document in last})
        read = self.back_index.read
        held = {name: {} if raw is None else read(raw) for name, raw in raws.items()}
        for (index_id, document), change in last.items():
            entries = held[document]
            entries.pop(index_id, None)
            if change.after is not None:
                self._move(batch, index_id, document, change.after, -1)
            before = first[index_id, document].before
            kept = None if before is None else self._move(batch, index_id, document, before, 1)
            if kept is not None:
                entries[index_id] = kept
        for document, entries in held.items():
            put_record(batch, document, entries)

    def _move(
        self, batch: Any, index_id: int, document: bytes, entry: bytes, by: int
    ) -> bytes | None:
        """Put what an entry names (1), or take it away (-1), where its slices are here.

        Returns the entry, with these slices only; None: none of them is here.
        """
        left = cut_down(entry, self.slices[index_id])
        for piece, key in [] if left is None else places_in(left):
            place = entries_prefix(index_id, piece) + key + document
            if by > 0:
                batch.put(place, NOTHING)
            else:
                batch.delete(place)
            self.sizes.count((index_id, piece), by, by * (2 * len(key) + len(document)))
        return left


def _with(
    placed: tuple[Placed, ...], indexes: Sequence[int], absent: Sequence[int]
) -> tuple[list[Placed], list[int]]:
    """Return places, and the indexes that they mean, with these in which a document is not.

    Of an index in which it was not before, only a tombstone may be wanted.
    """
    ids = [*(indexes[place[0]] for place in placed), *absent]
    there = [(at, piece, key) for at, (_, piece, key) in enumerate(placed)]
    there += [(at, NO_SLICE, b"") for at in range(len(placed), len(ids))]
    return there, ids
