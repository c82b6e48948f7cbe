"""A snapshot of one index has nothing of another one of the same bucket."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.keys.collation import EVERYTHING
from coordinator.core.keys.key_versions import SYNC, UPSERT, Item
from coordinator.core.model.stream_records import MAINTENANCE
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.fed_storage import FedStorage

FIRST, SECOND = 1, 2


def test_what_changed_since_in_another_index_is_not_laid_over_a_snapshot(tmp_path: Path) -> None:
    storage = Storage(tmp_path, "indexer 1 of cluster demo")
    storage.know("b", 1)
    for index_id in (FIRST, SECOND):
        storage.allocate("b", index_id, frozenset({0}), b"")
    fed = FedStorage(storage, (FIRST, SECOND), 1)

    def tell(seqno: int, first: bytes, second: bytes) -> None:
        keys = enumerate((first, second))
        fed.apply(MAINTENANCE, 1, *(Item(UPSERT, 0, seqno, n, 0, b"d", key) for n, key in keys))

    def read(index_id: int) -> list[bytes]:
        wanted = Wanted(timestamp=number)
        view = StorageReading(storage).view(index_id, (0,), shard=0, build=0, wanted=wanted)
        return list(view.entries(0, EVERYTHING, backwards=False))

    tell(1, b"a", b"b")
    fed.apply(MAINTENANCE, 1, Item(SYNC, 0, 1))
    tell(2, b"c", b"e")
    number = fed.stable_at([1])
    assert (read(FIRST), read(SECOND)) == ([b"ad"], [b"bd"])
    storage.close()
