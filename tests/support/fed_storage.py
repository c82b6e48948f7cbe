"""A storage that is fed as the applier of an indexer feeds it, record by record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.core.keys.key_versions import END, Item, begin
from coordinator.core.model.entities import ROLLBACK, Rollback
from coordinator.core.model.stream_records import (
    BACKFILL,
    MAINTENANCE,
    NOT_SAID,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.storage import Storage
from tests.support.indexes import make_key_versions
from tests.support.sizes import counted, scanned

BRANCH = 2**63 + 1


class FedStorage:
    """The bucket `b` of a storage. Projector 1 sends of the first build of these indexes."""

    def __init__(self, storage: Storage, indexes: Sequence[int], vbuckets: int) -> None:
        """Build the indexes, which have storage, from nothing."""
        self.storage = storage
        self.indexes = tuple(indexes)
        self.offset = self._timestamps = 0
        places = list(range(len(indexes)))
        begins = [begin(v, 0, BRANCH, places) for v in range(vbuckets)]
        self.apply(MAINTENANCE, 1, *begins)
        self.apply(BACKFILL, 2, *begins)
        self.apply(BACKFILL, 2, *(Item(END, v, 0) for v in range(vbuckets)))

    @property
    def bucket(self) -> Bucket:
        found = self.storage.bucket("b")
        assert found is not None
        return found

    def apply(
        self,
        kind: str,
        connection: int,
        *items: Item,
        number: int = 1,
        indexes: tuple[int, ...] | None = None,
    ) -> None:
        """Apply a record of a connection; `indexes` are those that it lists."""
        self.offset += 1
        listed = self.indexes if indexes is None else indexes
        head = make_key_versions(
            0,
            kind=kind,
            projector=1,
            connection=connection,
            number=number,
            indexes=listed,
            builds=(1,) * len(listed),
            previous=NOT_SAID,
        )
        bucket = self.bucket
        if builds := bucket.tracker.newer_builds(head):
            bucket.begin_builds(builds)
        bucket.apply(bucket.tracker.apply(head, items), {0: self.offset})
        assert counted(bucket) == scanned(bucket)

    def stable_at(self, seqnos: Sequence[int]) -> int:
        """Tell the bucket the next stability timestamp; return its number."""
        self._timestamps += 1
        vector = Vector([BRANCH] * len(seqnos), seqnos)
        record = StabilityTimestamp("b", self._timestamps, *vector.to_bytes(), 0)
        self.bucket.timeline.want(record)
        self.bucket.snap()
        return self._timestamps


def make_rollback(number: int, branch: int, left: Mapping[int, int], **more: Any) -> Rollback:
    """Return the command that vbuckets have lost what came after these seqnos, which are of a new
    branch; what was sent under a lower number than the rollback's counts no more."""
    vbuuids, seqnos = Vector([branch] * len(left), list(left.values())).to_bytes()
    known: dict[str, Any] = {"bucket": "b", "state": ROLLBACK, "reason": "", "began_ms": 0}
    known |= {"vbuckets": tuple(left), "failover_vbuuids": vbuuids, "failover_seqnos": seqnos}
    return Rollback(number=number, **(known | {"barrier": number} | more))
