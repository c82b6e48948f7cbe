"""A bucket that is fed record by record, by one who knows what is in it at every seqno."""

from __future__ import annotations

from typing import Any

from coordinator.core.keys.collation import EVERYTHING
from coordinator.core.keys.key_versions import ABSENT, NO_SLICE, SYNC, UPSERT, Item
from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import MAINTENANCE
from indexer_sim.bucket.entries import DATA, SLICE_KEY
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import Wanted
from indexer_sim.scans.reader import StorageReading
from tests.support.fed_storage import FedStorage, make_rollback

INDEX, SECOND = 1, 2
VBUCKETS = 2
DOCUMENTS = [b"d%d" % n for n in range(6)]

NEWER = 2**63 + 2


class Feeder(FedStorage):
    """Feeds a bucket, and knows what is in it at every seqno."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage, (INDEX,), VBUCKETS)
        self.seqnos = [0] * VBUCKETS
        self.newest: dict[bytes, bytes] = {}
        self.then: list[int] = []
        self.there: list[bytes] = []
        """Where it once was, and what was there, for who wants to go back."""

    def mutate(self, document: bytes, value: int, connection: int = 1, number: int = 1) -> None:
        """Change a document; the value 0 takes it away."""
        vbucket = document[1] % VBUCKETS
        self.seqnos[vbucket] += 1
        seqno = self.seqnos[vbucket]
        if value:
            key = b"\x90%d\x00" % value
            self.newest[document] = b"%d" % (value % 2) + key + document
            item = Item(UPSERT, vbucket, seqno, 0, value % 2, document, key)
        else:
            self.newest.pop(document, None)
            item = Item(ABSENT, vbucket, seqno, 0, NO_SLICE, document)
        self.apply(MAINTENANCE, connection, item, number=number)

    def sync(self) -> None:
        self.apply(MAINTENANCE, 1, *(Item(SYNC, v, s) for v, s in enumerate(self.seqnos)))

    def stable(self, seqnos: list[int] | None = None) -> int:
        """Tell the bucket a stability timestamp; return its number."""
        return self.stable_at(self.seqnos if seqnos is None else seqnos)

    def read(self, timestamp: int | None = None, *, backwards: bool = False) -> list[bytes]:
        """Return all entries, each behind the number of its slice."""
        view = StorageReading(self.storage).view(
            INDEX, (0, 1), shard=0, build=0, wanted=Wanted(timestamp=timestamp)
        )
        found: list[bytes] = []
        for piece in (0, 1):
            entries = view.entries(piece, EVERYTHING, backwards=backwards)
            found += [b"%d" % piece + entry for entry in entries]
        view.close()
        return found

    def read_all(self) -> list[bytes]:
        """Return all entries that are in the database, complete or not."""
        found = []
        for key, _ in self.bucket.database.scan(DATA):
            _, piece = SLICE_KEY.unpack_from(key, 1)
            found.append(b"%d" % piece + key[1 + SLICE_KEY.size :])
        return sorted(found)

    def held(self) -> list[int]:
        return [stable.number for stable in self.bucket.timeline.kept]


def a_rollback(left: dict[int, int], number: int = 5, **more: Any) -> Rollback:
    """Vbuckets have lost what came after these seqnos."""
    return make_rollback(number, NEWER, left, **more)
