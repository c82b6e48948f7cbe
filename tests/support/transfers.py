"""Two storages: what one holds of an index is to be had by the other, as a part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coordinator.core.keys.key_versions import (
    ABSENT,
    MANY,
    NO_SLICE,
    SYNC,
    UPSERT,
    Item,
    begin,
    pack_many,
)
from coordinator.core.model.entities import BACKFILL, Index, Origin, Slice
from coordinator.core.model.stream_records import MAINTENANCE
from coordinator.core.model.types import Seqno
from indexer_sim.bucket.entries import slice_range
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.transfers import Giving
from indexer_sim.pipeline.fillings import Fillings
from tests.support.fed_storage import BRANCH, FedStorage
from tests.support.indexes import make_index

INDEX, PART = 1, 9
VBUCKETS = 2
ALL, SECOND = (0, 1), (2,)
SOURCE, OTHER = 1, 2
NEWER = 2**63 + 2


class Holder(FedStorage):
    """An indexer that holds slices of the index, built."""

    def __init__(self, folder: Path, number: int, pieces: tuple[int, ...]) -> None:
        storage = Storage(folder, f"indexer {number}")
        storage.know("b", VBUCKETS)
        storage.allocate("b", INDEX, frozenset(pieces), b"")
        super().__init__(storage, (INDEX,), VBUCKETS)
        self.number, self.pieces = number, pieces
        self.giving = Giving(storage, number)

    def origins(self, pieces: tuple[int, ...] = ()) -> tuple[Origin, ...]:
        shard = self.storage.shards[INDEX]
        return tuple(Origin(n, self.number, INDEX, shard, 1) for n in pieces or self.pieces)


class Target(FedStorage):
    """An indexer that is to hold a part: the streams carry it from these seqnos on."""

    def __init__(self, folder: Path, pieces: tuple[int, ...], attached: tuple[int, ...]) -> None:
        storage = Storage(folder, "indexer 7")
        storage.know("b", VBUCKETS)
        storage.allocate("b", PART, frozenset(pieces), b"")
        self.storage, self.indexes = storage, (PART,)
        self.offset = self._timestamps = 0
        begins = [begin(v, seqno, BRANCH, [0]) for v, seqno in enumerate(attached)]
        self.apply(MAINTENANCE, 1, *begins)
        self.fillings = Fillings(storage)

    def knows(self, *origins: Origin, **more: Any) -> Index:
        pieces = max(self.storage.held[PART]) + 1
        slices = tuple(Slice(n, 7) for n in range(pieces))
        known = {"bucket": "b", "state": BACKFILL, "build": 1, "part_of": INDEX, "slices": slices}
        part = make_index(PART, **(known | {"origins": origins} | more))
        self.fillings.know({PART: part})
        return part

    @property
    def is_complete(self) -> bool:
        return self.bucket.published.states[PART].complete

    def entries(self) -> dict[int, list[bytes]]:
        return entries_of(self, PART)


def entries_of(fed: FedStorage, index_id: int) -> dict[int, list[bytes]]:
    """Return the entries of an index, by slice, as the database has them."""
    found: dict[int, list[bytes]] = {}
    for piece in sorted(fed.storage.held[index_id]):
        place = slice_range(index_id, piece)
        records = fed.bucket.database.some(*place, 10_000)
        found[piece] = [key[len(place[0]) :] for key, _ in records]
    return found


def put(vbucket: int, seqno: int, document: bytes, piece: int, key: bytes) -> Item:
    return Item(UPSERT, vbucket, seqno, 0, piece, document, key)


def put_many(vbucket: int, seqno: int, document: bytes, *places: tuple[int, bytes]) -> Item:
    return Item(UPSERT, vbucket, seqno, 0, MANY, document, pack_many(places))


def gone(vbucket: int, seqno: int, document: bytes) -> Item:
    return Item(ABSENT, vbucket, seqno, 0, NO_SLICE, document)


def written(source: FedStorage, count: int, vbucket: int = 0) -> None:
    for n in range(1, count + 1):
        source.apply(MAINTENANCE, 1, put(vbucket, n, b"d%03d" % n, n % 2, b"k%d" % n))
    source.apply(MAINTENANCE, 1, Item(SYNC, vbucket, Seqno(count)))
