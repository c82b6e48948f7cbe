"""What an indexer holds on its disks, as the applier sees it, and how it reads `mutations`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.core.keys.key_versions import unpack
from coordinator.core.model.entities import Index
from indexer_sim.bucket.allocation import NONE, Slices
from indexer_sim.bucket.bucket import Bucket as Storage
from indexer_sim.bucket.bucket import Earlier
from indexer_sim.bucket.checkpoints import KEPT
from indexer_sim.pipeline.mutation_reader import Delivery, Lost, Position, Queued, Read
from tests.simulation.plane.disk import MemoryDatabase
from tests.simulation.plane.mutations import PARTITIONS, Partition

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld


class Buckets:
    """What `indexer_sim.bucket.storage.Storage` is to the applier: the buckets that are held."""

    def __init__(
        self,
        disks: dict[str, MemoryDatabase],
        vbuckets: dict[str, int],
        is_written: Callable[[Storage], None],
    ) -> None:
        """`is_written` is called whenever a batch of a bucket has been written."""
        self.epoch = 0
        self._is_written = is_written
        self.vbuckets = vbuckets
        self._disks = disks
        self._buckets: dict[str, Storage] = {}
        for name in sorted(disks):
            bucket = self._buckets[name] = self._opened(name)
            bucket.load()
            if not bucket.slices:
                self._discard(name)

    def _opened(self, name: str) -> Storage:
        bucket = Storage(name, Path("nowhere"), self.vbuckets.get(name, 0), PARTITIONS)
        disk = self._disks[name]
        disk.is_written = lambda: self._is_written(bucket)
        bucket.database = disk  # type: ignore[assignment]
        return bucket

    def bucket(self, name: str) -> Storage | None:
        return self._buckets.get(name)

    def bucket_of(self, index_id: int) -> Storage | None:
        return next((one for one in self._buckets.values() if index_id in one.slices), None)

    def buckets(self) -> list[Storage]:
        return list(self._buckets.values())

    def reload(self, bucket: Storage) -> None:
        bucket.load()

    def make_checkpoint(self, bucket: Storage) -> None:
        """Keep what a bucket has now, and a few of those before."""
        disk = self._disks[bucket.name]
        disk.checkpoints.append((bucket.about(), dict(disk.newest)))
        del disk.checkpoints[:-KEPT]

    def earlier(self, bucket: Storage) -> Iterator[Earlier]:
        """Yield a bucket as its checkpoints have it, the newest first."""
        for about, content in reversed(self._disks[bucket.name].checkpoints):
            disk = self._disks[bucket.name].copy_of(content)
            then = Storage(bucket.name, Path("nowhere"), bucket.vbuckets, PARTITIONS)
            then.database = disk  # type: ignore[assignment]

            def opened(then: Storage = then) -> Storage:
                then.load()
                return then

            yield Earlier(about, opened, partial(self._replace, bucket, disk))

    def _replace(self, bucket: Storage, by: MemoryDatabase) -> None:
        by.is_written = lambda: self._is_written(bucket)
        self._disks[bucket.name] = by
        bucket.database = by  # type: ignore[assignment]

    def tend(self) -> None:
        """Load what a refused write has left in doubt."""
        for bucket in self._buckets.values():
            if bucket.stale:
                self.reload(bucket)

    def know(self, name: str, vbuckets: int) -> None:
        self.vbuckets[name] = vbuckets
        if name in self._buckets:
            self._buckets[name].know(vbuckets)

    @property
    def held(self) -> dict[int, Slices]:
        return {i: slices for b in self._buckets.values() for i, slices in b.slices.items()}

    @property
    def shards(self) -> dict[int, int]:
        return {i: shard for b in self._buckets.values() for i, shard in b.shards.items()}

    def allocate(
        self, index: Index, slices: Slices, offsets: Mapping[int, int], fresh: MemoryDatabase
    ) -> None:
        name = index.bucket
        if name not in self._buckets:
            self._disks[name] = fresh
            self._buckets[name] = self._opened(name)
        if self._buckets[name].stale:
            self.reload(self._buckets[name])
        self._buckets[name].allocate(index.id, slices, b"-", offsets)

    def release(self, index_id: int, slices: Slices) -> None:
        for name, bucket in list(self._buckets.items()):
            if bucket.stale:
                self.reload(bucket)
            here = bucket.slices.get(index_id, NONE) & slices
            if bucket.slices == {index_id: here}:
                self._discard(name)
            elif here:
                bucket.release(index_id, here)

    def _discard(self, name: str) -> None:
        del self._buckets[name], self._disks[name]


def nearest(at: int, log: Partition) -> int:
    return min(max(at, log.start), log.end)


class Reader:
    """Reads `mutations` for all buckets at once, as `indexer_sim.pipeline.mutation_reader` does."""

    def __init__(self, world: PlaneWorld, number: int, storage: Buckets) -> None:
        self.world = world
        self.number = number
        self.storage = storage
        self._epoch = -1
        self._at: dict[int, int] = {}

    def read(self, limit: int) -> list[Queued]:
        """Return some of what is to be applied, in the order of each partition."""
        found: list[Read] = []
        buckets = self.storage.buckets()
        if not buckets:
            self._epoch = -1
            return []
        logs = self.world.mutations
        gone = any(not logs[p].start <= at <= logs[p].end for p, at in self._at.items())
        if self._epoch != self.storage.epoch or gone:
            found += self._assign()
        order = self.world.clock.chance.sample(range(PARTITIONS), PARTITIONS)
        for partition in order:
            found += self._read(partition, self.world.clock.chance.randint(1, limit))
        return [Queued(self._epoch, one) for one in found]

    def _assign(self) -> list[Read]:
        self._epoch = self.storage.epoch
        lost: dict[str, dict[int, int]] = {}
        for partition, log in enumerate(self.world.mutations):
            places = [log.end]
            for bucket in self.storage.buckets():
                at = bucket.offsets.get(partition, log.end)
                if not log.start <= at <= log.end:
                    at = lost.setdefault(bucket.name, {})[partition] = nearest(at, log)
                places.append(at)
            self._at[partition] = min(places)
        for name, offsets in lost.items():
            self.world.trace(f"indexer {self.number}: {name} has lost a part: {offsets}")
        return [Lost(name, offsets) for name, offsets in lost.items()]

    def _read(self, partition: int, limit: int) -> list[Read]:
        at = self._at[partition]
        found: list[Read] = []
        for message in self.world.mutations[partition].read(at, limit):
            if message.indexer == self.number:
                items = list(unpack(message.record.items))
                found.append(Delivery(partition, at, message.record, items))
            at += 1
        if at > self._at[partition]:
            found.append(Position(partition, at))
        self._at[partition] = at
        return found

    @property
    def is_at_the_end(self) -> bool:
        if not self.storage.buckets():
            return True
        logs = self.world.mutations
        return self._epoch == self.storage.epoch and all(
            self._at[p] == log.end for p, log in enumerate(logs)
        )
