"""The storage of one bucket on an indexer: its slices, its entries, and its progress.

A slice exists once its metadata record is synced; it is gone once the deletion of this record is
synced. After a restart only these records count. Storage that is allocated again begins empty, and
under another shard number, so it is never taken for the older storage. Entries, the progress of the
streams and the Kafka offsets are written in one batch, without sync: what a power failure takes is
read from Kafka again.

Whoever writes or closes the database, or changes the tracker, holds `lock`: the applier for a
batch, the control loop while it allocates or releases. Readers take no lock: a moment (a view of
the database at one instant) that is made after `published` was set has everything that it says.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rocksdict import WriteBatch

from coordinator.core.catalog.ddl import VBUCKETS
from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import BuildProgress, ConnectionRead, GenerationTaken
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import Log, is_lost
from coordinator.kafka.topics import STREAM_PARTITIONS
from indexer_sim.bucket.allocation import NONE, Slices
from indexer_sim.bucket.back_index import BackIndex
from indexer_sim.bucket.chains import Chain
from indexer_sim.bucket.checkpoints import About
from indexer_sim.bucket.database import Database, StorageError
from indexer_sim.bucket.entries import (
    CHAIN,
    CHAIN_KEY,
    CHAIN_VALUE,
    FORMAT,
    FORMAT_VALUE,
    INDEX_KEY,
    MARK,
    MARK_KEY,
    NO_EPOCH,
    NUMBER_KEY,
    OFFSET,
    OFFSET_VALUE,
    PROGRESS,
    ROLLBACK,
    SHARD,
    SIZE,
    SLICE,
    SLICE_KEY,
    STATE,
    TOPIC,
    State,
    contents_of,
    pack_rollback,
    pack_state,
    slice_range,
    tombstone_prefix,
    under,
    unpack_offset,
    unpack_rollback,
    unpack_state,
)
from indexer_sim.bucket.progress import VbucketProgress
from indexer_sim.bucket.settlement import Settlement
from indexer_sim.bucket.sizes import Sizes
from indexer_sim.bucket.snapshots import Stable, Timeline, Wanted, whole_at
from indexer_sim.bucket.tracker import Change, Mark, Tracker

SHARD_BITS = 48
PLACES_AT_ONCE = 10_000
NOT_KNOWN: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What others may rely on: the high watermarks, and the state of each index.

    `gaps` and `branched` are vbuckets whose high watermark does not advance. `builds` is the
    progress of each build, after the records of `read`. `taken` has the numbers of generations
    under which vbuckets are taken. `rollback` is the number of the last rollback that was
    done. Until all has come again, `recovering`, no scan is answered, nor while there is another
    branch.
    """

    vector: Vector = field(default_factory=lambda: Vector.zero(0))
    states: Mapping[int, State] = field(default_factory=dict)
    gaps: tuple[int, ...] = ()
    branched: tuple[int, ...] = ()
    builds: tuple[BuildProgress, ...] = ()
    read: tuple[ConnectionRead, ...] = ()
    taken: tuple[GenerationTaken, ...] = ()
    rollback: int = 0
    recovering: bool = False


class Earlier(NamedTuple):
    """A bucket as a checkpoint has it: a database that can take the place of the present one."""

    about: About
    opened: Callable[[], Bucket]
    """Returns it, with what is in it. Raises StorageError: `damaged` if it cannot be used."""
    take_place: Callable[[], None]
    """Makes its database that of the bucket. Raises StorageError."""


class Bucket:
    """The slices of one bucket. `vbuckets` is 0 while their number is not known.

    Large because tracker, entries, snapshots and undo are written in one batch, which is put
    together here.
    """

    def __init__(
        self, name: str, folder: Path, vbuckets: int = 0, partitions: int = STREAM_PARTITIONS
    ) -> None:
        self.name = name
        self.database = Database(folder)
        self.lock = threading.RLock()
        self.slices: dict[int, Slices] = {}
        self.shards: dict[int, int] = {}
        self.offsets: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        """The leader epoch of the record before each offset, where it is known."""
        self.topic = ""
        """The id of the topic that these are of; empty while it is not known."""
        self.written_offsets: dict[int, int] = {}
        self.tracker = Tracker(vbuckets, partitions)
        self.published = Published()
        self.sizes = Sizes()
        self.back_index = BackIndex()
        self.size_bytes = 0
        """What the database takes, as it was looked up last."""
        self.timeline = Timeline()
        self._histories: dict[int, Log] = {}
        """Of each vbucket as it was told last."""
        self.lost: frozenset[int] = frozenset()
        """Vbuckets of which something is held that the store has no more, as far as is known. It
        is known before what is lost can be read."""
        self.last_persistence = self.last_stability = 0
        self.checkpointed: tuple[int, int] = (0, 0)
        """What the last checkpoint is of: the last write, and the number of its timestamp."""
        self.rolled_back = 0
        """The number of the last rollback that was done here."""
        self._recovering: frozenset[int] | None = None
        """Indexes that have not recovered from it yet; None: it is over."""
        self._is_recovered = False
        """It is over, and that was not written yet."""
        self.remade = 0
        """Odd while what an index or a slice is changes; another number after it."""
        self.damaged = False
        """What is in it cannot be read: it must be made from a checkpoint."""
        self.stale = True
        """A write failed: whether it took place, only the database can tell."""

    @property
    def vbuckets(self) -> int:
        return self.tracker.vbuckets

    # -- what is there -----------------------------------------------------------------------

    def load(self) -> None:
        """Find out what is there. Raises StorageError."""
        found: dict[int, set[int]] = {}
        for key, _ in self.database.scan(SLICE):
            index_id, number = SLICE_KEY.unpack(key[len(SLICE) :])
            found.setdefault(index_id, set()).add(number)
        formats = [value for _, value in self.database.scan(FORMAT)]
        if found and formats != [FORMAT_VALUE]:
            raise StorageError("damaged", f"{self.name} is of a format that is not read any more")
        shards = {
            INDEX_KEY.unpack(key[len(SHARD) :])[0]: INDEX_KEY.unpack(value)[0]
            for key, value in self.database.scan(SHARD)
        }
        stands = {
            NUMBER_KEY.unpack(key[len(OFFSET) :])[0]: unpack_offset(value)
            for key, value in self.database.scan(OFFSET)
        }
        offsets = {p: offset for p, (offset, _) in stands.items()}
        topics = [value.decode() for _, value in self.database.scan(TOPIC)]
        self.rolled_back, self._recovering, self._is_recovered = 0, None, False
        for _, value in self.database.scan(ROLLBACK):
            self.rolled_back, self._recovering = unpack_rollback(value)
        tracker = self._load_tracker(found)
        self.sizes = self._load_sizes()
        self.back_index.load(self.database)
        self.slices = {index_id: frozenset(numbers) for index_id, numbers in found.items()}
        self.shards, self.tracker = shards, tracker
        self.offsets, self.written_offsets = offsets, dict(offsets)
        self.epochs = {p: epoch for p, (_, epoch) in stands.items() if epoch != NO_EPOCH}
        self.topic = topics[0] if topics else ""
        self.timeline = Timeline()
        self.stale = self.damaged = False
        self.lost = self._lost_of(self._histories)
        self.publish()

    def _load_tracker(self, indexes: Mapping[int, Any]) -> Tracker:
        tracker = Tracker(self.vbuckets, self.tracker.partitions)
        for index_id in indexes:
            tracker.hold(index_id)
        for key, value in self.database.scan(STATE):
            (index_id,) = INDEX_KEY.unpack(key[len(STATE) :])
            if index_id in indexes:
                tombstones = self.database.holds(under(tombstone_prefix(index_id)))
                tracker.load_state(index_id, unpack_state(value), tombstones)
        for key, value in self.database.scan(PROGRESS):
            (vbucket,) = NUMBER_KEY.unpack(key[len(PROGRESS) :])
            tracker.load_progress(vbucket, VbucketProgress.unpack(value))
        for key, value in self.database.scan(MARK):
            index_id, vbucket = MARK_KEY.unpack(key[len(MARK) :])
            if index_id in indexes:
                tracker.load_mark(index_id, vbucket, Mark.unpack(value))
        for key, value in self.database.scan(CHAIN):
            partition, *connection = CHAIN_KEY.unpack(key[len(CHAIN) :])
            chain = Chain(*CHAIN_VALUE.unpack(value))
            tracker.chains.load(partition, (connection[0], connection[1]), chain)
        return tracker

    def _load_sizes(self) -> Sizes:
        sizes = Sizes()
        for key, value in self.database.scan(SIZE):
            index_id, number = SLICE_KEY.unpack(key[len(SIZE) :])
            sizes.load((index_id, number), value)
        return sizes

    def know(self, vbuckets: int) -> None:
        """The bucket has this many vbuckets."""
        with self.lock:
            self.tracker.know(vbuckets)
            self.publish()

    def may_have(self, vbucket: int) -> bool:
        """Tell whether there may be a vbucket of this number."""
        return 0 <= vbucket < (self.vbuckets or VBUCKETS)

    def hear(self, vbucket: int, history: Log, busy_s: float) -> bool:
        """Take which branches a vbucket has had: scans end with this, if what is held is lost.

        False: the bucket is busy for longer than that.
        """
        if not self.lock.acquire(timeout=busy_s):
            return False
        try:
            self._histories[vbucket] = history
            # A write that has failed has left the tracker ahead of what can be read.
            kept = self.lost if self.stale or self.damaged else self.lost - {vbucket}
            self.lost = kept | self._lost_of((vbucket,))
        finally:
            self.lock.release()
        return True

    def _lost_of(self, vbuckets: Iterable[int]) -> frozenset[int]:
        """Return of which of these vbuckets something is held that is lost."""
        found = set()
        for vbucket in vbuckets:
            history, progress = self._histories.get(vbucket), self.tracker.progress.get(vbucket)
            if history is None or progress is None or progress.vbuuid == history[0].vbuuid:
                continue
            if is_lost(history, progress.vbuuid, progress.applied):
                found.add(vbucket)
        return frozenset(found)

    def publish(self) -> None:
        """Let others know what there is now."""
        tracker = self.tracker
        states, builds = tracker.states(), tracker.builds()
        gaps, branched = tuple(tracker.gaps()), tuple(tracker.branched())
        read, taken = tracker.chains.read(tracker.partitions), tracker.taken()
        self._recover(states, bool(gaps or branched))
        self.published = Published(
            vector=tracker.vector(),
            states=states,
            gaps=gaps,
            branched=branched,
            builds=builds,
            read=read,
            taken=taken,
            rollback=self.rolled_back,
            recovering=self._recovering is not None,
        )

    def _recover(self, states: Mapping[int, State], is_behind: bool) -> None:
        """Note whether all has come again that a rollback has taken away."""
        if self._recovering is None or is_behind:
            return
        if all(states[i].complete for i in self._recovering if i in states):
            self._recovering = None
            self._is_recovered = True

    # -- slices ------------------------------------------------------------------------------

    @contextmanager
    def _remade(self) -> Iterator[None]:
        """What an index or a slice is changes here, in the database and in what readers look at."""
        self.remade += 1
        try:
            yield
        finally:
            self.remade += 1

    def allocate(
        self, index_id: int, numbers: Slices, definition: bytes, offsets: Mapping[int, int]
    ) -> None:
        """Allocate all of these slices, or none; what the index holds is another shard then.

        `offsets` are where `mutations` ends now: what is sent for the first index comes later.
        """
        shard = 1 + secrets.randbits(SHARD_BITS)
        batch = WriteBatch(raw_mode=True)
        batch.put(FORMAT, FORMAT_VALUE)
        self._erase(batch, index_id)
        batch.put(SHARD + INDEX_KEY.pack(index_id), INDEX_KEY.pack(shard))
        for number in numbers:
            batch.put(SLICE + SLICE_KEY.pack(index_id, number), definition)
        fresh = {p: offset for p, offset in offsets.items() if p not in self.offsets}
        put_offsets(batch, fresh, {})
        with self._remade():
            self.write(batch, sync=True)
            self._stand(fresh, {})
            self.slices[index_id] = self.slices.get(index_id, NONE) | numbers
            self.shards[index_id] = shard
            self.sizes.forget(index_id)
            self.timeline.forget((index_id,))
            self.tracker.hold(index_id)
            self.publish()

    def release(self, index_id: int, numbers: Slices) -> None:
        """Delete these slices and give their space back."""
        batch = WriteBatch(raw_mode=True)
        left = self.slices[index_id] - numbers
        if left:
            ranges = [slice_range(index_id, number) for number in sorted(numbers)]
            self.put_release(batch, index_id, numbers)
        else:
            ranges = list(contents_of(index_id))
            self.put_end(batch, index_id)
        with self._remade():
            self.write(batch, sync=True)
            if left:
                self.slices[index_id] = left
            else:
                del self.slices[index_id]
                self.shards.pop(index_id, None)
                self.tracker.forget(index_id)
                self.publish()
        for begin, end in ranges:
            self.database.empty(begin, end)

    def put_release(self, batch: Any, index_id: int, numbers: Slices) -> None:
        """Put into a batch that some slices of an index go, and others stay."""
        for number in numbers:
            batch.delete(SLICE + SLICE_KEY.pack(index_id, number))
            batch.delete_range(*slice_range(index_id, number))
            batch.delete(SIZE + SLICE_KEY.pack(index_id, number))
        if numbers:
            self.back_index.is_unswept(batch)
        self.sizes.forget(index_id, numbers)

    def put_end(self, batch: Any, index_id: int) -> None:
        """Put into a batch that all slices of an index go."""
        for number in self.slices[index_id]:
            batch.delete(SLICE + SLICE_KEY.pack(index_id, number))
        _empty(batch, index_id)
        had_entries = self.sizes.has_entries(index_id)
        self.back_index.end(batch, index_id, had_entries=had_entries)
        self.sizes.forget(index_id)
        batch.delete(SHARD + INDEX_KEY.pack(index_id))

    # -- entries -----------------------------------------------------------------------------

    def _erase(self, batch: Any, index_id: int) -> None:
        """Delete all that builds have put into an index, which goes on under another life."""
        _empty(batch, index_id)
        self.back_index.renew(batch, index_id, had_entries=self.sizes.has_entries(index_id))

    def begin_builds(self, builds: Mapping[int, int]) -> None:
        """These indexes begin from nothing, under other builds. Raises StorageError.

        A rollback waits for them no longer: somebody else waits for the build, which may fail.
        """
        self.timeline.forget(builds)
        for index_id, build in builds.items():
            self.tracker.begin_build(index_id, build)
        is_recovering = self._recovering is not None
        if self._recovering is not None:
            self._recovering -= builds.keys()
        self.publish()
        batch = WriteBatch(raw_mode=True)
        if is_recovering:
            batch.put(ROLLBACK, pack_rollback(self.rolled_back, self._recovering))
        for index_id in builds:
            self._erase(batch, index_id)
            self.sizes.forget(index_id)
        self._put_tracker(batch)
        with self._remade():
            self.write(batch, sync=False)

    def roll_back(self, rollback: Rollback, earlier: Iterable[Earlier] = ()) -> str:
        """Go back to what the store still has; say to where. Raises StorageError.

        That is the newest snapshot that has nothing of what was lost; without one in memory, the
        first of `earlier` like that; else nothing at all. Who has applied nothing of it stays where
        he is. Nothing that was sent before counts after this.
        """
        if rollback.number <= self.rolled_back:
            return ""
        tracker = self.tracker
        in_use = frozenset(i for i, tracked in tracker.indexes.items() if tracked.state.complete)
        in_use |= self._recovering or frozenset()
        batch = WriteBatch(raw_mode=True)
        lost, said = tracker.lost(rollback), "nothing that was lost was held"
        if lost:
            way = self.timeline.way_back(lost, tracker)
            for one in earlier if way is None else ():
                if self._is_below(one.about, lost) and self._go_back_to(one, rollback, in_use):
                    return f"back to timestamp {one.about.number}, from a checkpoint"
            stable, undone = way if way is not None else (None, [])
            whole = self.indexes_whole_at(stable)
            back = [change for change in undone if change.index_id in whole]
            emptied = tracker.indexes.keys() - whole
            for index_id in emptied:
                self._erase(batch, index_id)
                self.sizes.forget(index_id)
            for index_id in whole:
                # They may be of what is lost. What is sent from now on is newer than the snapshot.
                batch.delete_range(*under(tombstone_prefix(index_id)))
            self._settlement().put_back(batch, back)
            self.sizes.put(batch)
            tracker.go_back(stable.vector if stable is not None else None, whole)
            self.timeline.go_back(stable)
            self.timeline.forget(emptied)
            said = f"back to timestamp {stable.number}" if stable is not None else "back to 0"
        self._cut_off(rollback)
        self._put_tracker(batch)
        batch.put(ROLLBACK, pack_rollback(rollback.number, in_use))
        with self._remade():
            self.write(batch, sync=True)
            self.rolled_back, self._recovering = rollback.number, in_use
            self._is_recovered = False
            self.lost = self._lost_of(self._histories)
            self.publish()
        return said

    def _is_below(self, about: About, left: Mapping[int, int]) -> bool:
        """Tell whether a checkpoint has nothing of these vbuckets beyond what is left of them."""
        seqnos = about.vector.seqnos
        is_known = about.number > 0 and len(seqnos) == self.tracker.vbuckets
        return is_known and all(seqnos[vbucket] <= seqno for vbucket, seqno in left.items())

    def _go_back_to(self, one: Earlier, rollback: Rollback, in_use: frozenset[int]) -> bool:
        """Go back to a checkpoint. False: it is damaged; no index of now was whole there; or it was
        made before another rollback, which may have rejected it.

        What is held of slices, and how far `mutations` were read, is as now.
        """
        batch = WriteBatch(raw_mode=True)
        try:
            then = one.opened()
            seqnos = one.about.vector.seqnos.tolist()
            built = whole_at(seqnos, then.tracker).items()
            whole = frozenset(i for i, build in built if self._has(i, then.shards[i], build))
            if then.rolled_back != self.rolled_back or not whole:
                return False
            self._put_what_was(batch, then, one.about, whole)
        except StorageError as error:
            if error.code == "damaged":  # It, and not what is here.
                return False
            raise
        tracker = self.tracker
        self.stale = True  # What is known counts once the other database is here.
        tracker.go_back(one.about.vector, whole)
        self._cut_off(rollback)
        for prefix in (PROGRESS, MARK, STATE, CHAIN, OFFSET, TOPIC):
            batch.delete_range(*under(prefix))
        tracker.touch_all()
        self._put_tracker(batch)
        put_offsets(batch, self.offsets, self.epochs)
        if self.topic:
            batch.put(TOPIC, self.topic.encode())
        batch.put(ROLLBACK, pack_rollback(rollback.number, in_use))
        with self._remade():
            then.write(batch)
            one.take_place()
            self.load()
        self._snap_again(Wanted(one.about.number, one.about.vector))
        return True

    def _put_what_was(self, batch: Any, then: Bucket, about: About, whole: frozenset[int]) -> None:
        """Put into a batch for the database of `then` what makes it hold what is held now: the
        indexes `whole` as they were, and the others empty. Raises StorageError."""
        for index_id in then.slices.keys() - whole:
            then.put_end(batch, index_id)
        for index_id in self.slices.keys() - whole:
            batch.put(SHARD + INDEX_KEY.pack(index_id), INDEX_KEY.pack(self.shards[index_id]))
            then.back_index.renew(batch, index_id, had_entries=False)
        for index_id in whole:
            then.put_release(batch, index_id, then.slices[index_id] - self.slices[index_id])
            batch.delete_range(*under(tombstone_prefix(index_id)))
        for key, definition in self.database.scan(SLICE):
            batch.put(key, definition)
        held = Settlement(then.database, then.back_index, self.slices, then.sizes, self.tracker)
        held.put_back(batch, [c for c in about.changes if c.index_id in whole])
        then.sizes.put(batch)

    def _cut_off(self, rollback: Rollback) -> None:
        """Nothing counts of what was lost, nor of what was sent before."""
        tracker = self.tracker
        tracker.let_go(rollback)
        tracker.cut_off(rollback.barrier)

    def _has(self, index_id: int, shard: int, build: int) -> bool:
        """Tell whether this build of an index, in this life of its storage, is held now."""
        tracked = self.tracker.indexes.get(index_id)
        is_same = self.shards.get(index_id) == shard
        return is_same and tracked is not None and tracked.state.build == build

    def _snap_again(self, wanted: Wanted) -> None:
        """Make a snapshot of what is here, which is exactly at this timestamp."""
        moment = self.database.moment()
        if moment is not None:
            made = self.timeline.keep(wanted, moment, self.tracker)
            self.timeline.go_back(made)
            self.last_stability = made.digest

    def indexes_whole_at(self, stable: Stable | None) -> frozenset[int]:
        """Return the indexes of which all was here at a snapshot, in their present builds."""
        if stable is None:
            return frozenset()
        indexes = self.tracker.indexes.items()
        return frozenset(i for i, t in indexes if stable.builds.get(i) == t.state.build)

    def lose(self, offsets: Mapping[int, int], topic: str = "") -> None:
        """Part of these partitions is gone; reading goes on at these offsets. Raises StorageError.

        What is held stays, and is caught up. `topic` is what is read now.
        """
        self.topic = topic or self.topic
        self.tracker.lose(offsets)
        self.apply((), offsets)

    def apply(
        self,
        changes: Sequence[Change],
        offsets: Mapping[int, int],
        epochs: Mapping[int, int] = NOT_KNOWN,
    ) -> None:
        """Write changes, what is known and how far that is, as one. Raises StorageError.

        `epochs` are the leader epochs of what lies before these offsets.
        """
        touched = frozenset(self.tracker.dirty.progress if self._histories else ())
        self.lost |= self._lost_of(touched)
        batch = WriteBatch(raw_mode=True)
        undone = self._settlement().settle(batch, changes) if changes else []
        self.sizes.put(batch)
        for index_id in self.tracker.swept():
            batch.delete_range(*under(tombstone_prefix(index_id)))
        self._put_tracker(batch)
        put_offsets(batch, offsets, epochs)
        if self._is_recovered:
            batch.put(ROLLBACK, pack_rollback(self.rolled_back, None))
            self._is_recovered = False
        if self.topic:
            batch.put(TOPIC, self.topic.encode())
        self.write(batch, sync=False)
        self.lost = self.lost - touched | self._lost_of(touched)
        self._stand(offsets, epochs)
        self.publish()
        self.timeline.add(undone)
        self.snap()

    def take_over(
        self, index_id: int, documents: Sequence[tuple[bytes, bytes]], *, is_all: bool
    ) -> None:
        """Write what other indexers have of an index that is filled here; `is_all` ends that.

        Raises StorageError.
        """
        batch = WriteBatch(raw_mode=True)
        self._settlement().take_over(batch, index_id, documents)
        self.sizes.put(batch)
        if is_all:
            self.tracker.has_filled(index_id)
            for swept in self.tracker.swept():
                batch.delete_range(*under(tombstone_prefix(swept)))
            self._put_tracker(batch)
        self.write(batch, sync=False)
        if is_all:
            self.publish()
            self.snap()

    def _settlement(self) -> Settlement:
        return Settlement(self.database, self.back_index, self.slices, self.sizes, self.tracker)

    def sweep(self) -> None:
        """Take some out of the back-index that does not count. Raises StorageError."""
        batch = WriteBatch(raw_mode=True)
        tracker = self.tracker
        for index_id in self.back_index.sweep(batch, self.database, self.slices, tracker.guards):
            tracker.tombstoned.add(index_id)
        self.write(batch, sync=False)

    def snap(self) -> None:
        """Make the snapshots that can be made now."""
        while (timestamp := self._due()) is not None:
            moment = self.database.moment()
            if moment is None:
                return
            self.last_stability = self.timeline.keep(timestamp, moment, self.tracker).digest

    def _due(self) -> Wanted | None:
        """Return the timestamp of the next snapshot that can be made."""
        return self.timeline.reached(self.tracker) or self.timeline.again(self.tracker)

    def _stand(self, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """These offsets were written."""
        self.stand(offsets, epochs)
        self.written_offsets.update(offsets)

    def stand(self, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        """All below these offsets is here, or is for others; it is written with what comes next."""
        self.offsets.update(offsets)
        for partition in offsets:
            self.epochs.pop(partition, None)
            if partition in epochs:
                self.epochs[partition] = epochs[partition]

    def about(self) -> About:
        """Return what a checkpoint that is made now is of."""
        newest = self.timeline.kept[-1] if self.timeline.kept else None
        if newest is None or not self.timeline.can_undo_to(newest, self.tracker):
            return About(0, self.published.vector)
        changes = tuple(self.timeline.changes_since(newest.number))
        return About(newest.number, newest.vector, changes)

    def _put_tracker(self, batch: Any) -> None:
        """Put what changed of the tracker into a batch; it counts as written."""
        tracker, dirty = self.tracker, self.tracker.dirty
        for vbucket in dirty.progress:
            batch.put(PROGRESS + NUMBER_KEY.pack(vbucket), tracker.progress[vbucket].pack())
        for index_id, vbucket in dirty.marks:
            mark = tracker.indexes[index_id].marks[vbucket]
            batch.put(MARK + MARK_KEY.pack(index_id, vbucket), mark.pack())
        for index_id in dirty.states:
            state = tracker.indexes[index_id].state
            batch.put(STATE + INDEX_KEY.pack(index_id), pack_state(state))
        for at in tracker.chains.dirty:
            partition, connection = at
            chain = tracker.chains.by_key.get(at)
            if chain is None:
                batch.delete(CHAIN + CHAIN_KEY.pack(partition, *connection))
            else:
                batch.put(CHAIN + CHAIN_KEY.pack(partition, *connection), CHAIN_VALUE.pack(*chain))
        dirty.clear()
        tracker.chains.dirty.clear()

    def write(self, batch: Any, *, sync: bool = True) -> None:
        """Write a batch. Raises StorageError; then all that is known must be loaded again."""
        self.stale = True
        self.database.write(batch, sync=sync)
        self.stale = False


def put_offsets(batch: Any, offsets: Mapping[int, int], epochs: Mapping[int, int]) -> None:
    for partition, offset in offsets.items():
        value = OFFSET_VALUE.pack(offset, epochs.get(partition, NO_EPOCH))
        batch.put(OFFSET + NUMBER_KEY.pack(partition), value)


def _empty(batch: Any, index_id: int) -> None:
    """Delete all of an index that lies in ranges of its own."""
    for begin, end in contents_of(index_id):
        batch.delete_range(begin, end)
    batch.delete(STATE + INDEX_KEY.pack(index_id))
