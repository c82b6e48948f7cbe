"""What must hold of the data plane, by looking at the store, at what is sent, and into databases.

The strong one is `hw-holds-what-it-claims`. Of an index that is done in a vbucket with the high
watermark h, each document that has not changed after h has exactly its entry, or none; any other
has the entry of some mutation of it. Where the last word of the owner is the end of a snapshot, and
nothing came since, the vbucket is exactly what the store had then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core.keys.key_versions import ATTACH, BEGIN, SYNC
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    MAINTENANCE,
    STREAMED,
    Index,
    Rollback,
    Stream,
    index_key,
    rollback_key,
)
from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Seqno
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import is_shared, surviving
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import (
    BACK,
    DATA,
    INDEX_KEY,
    LIFE,
    MARK,
    SLICE,
    SLICE_KEY,
    TOMBSTONE,
    cut_down,
    places_in,
    unpack_back,
)
from indexer_sim.bucket.progress import BRANCHED, GAP, WHOLE
from indexer_sim.bucket.tracker import NEVER, Tracked
from indexer_sim.pipeline.mutation_reader import Delivery, Queued
from indexer_sim.scans.api import ScanRefused, Wanted
from indexer_sim.scans.reader import StorageReading
from projector_sim.kv.vbuckets import vbucket_of
from projector_sim.projector.connection_runs import Run
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.violation import require
from tests.simulation.plane.oracle import Entry, Oracle, serving_on
from tests.simulation.plane.store import Vbucket

if TYPE_CHECKING:
    from tests.simulation.plane.indexer import IndexerProcess
    from tests.simulation.plane.projector import ProjectorProcess
    from tests.simulation.plane.world import PlaneWorld

Contents = dict[int, dict[bytes, Entry]]
"""What is held of each index, by document."""

SPOKEN_MS = 3_000
"""An indexer that has been there for so long has told what it holds."""


class Before(NamedTuple):
    """What a bucket held before a batch: per vbucket the high watermark, and whose."""

    seqnos: dict[int, tuple[int, int]]
    marks: dict[int, list[Tracked]]


class Witness(Actor):
    """Looks at every batch, every connection, and every generation of streams."""

    def __init__(self, world: PlaneWorld) -> None:
        self.world = world
        self.oracle = Oracle()
        self._numbers: set[tuple[str, int, int]] = set()
        self._last: dict[tuple[int, str, int], tuple[tuple[int, int], int]] = {}
        self._position = 0
        self.fillings = 0
        """How many pages were taken over from another indexer."""
        self._backfilled_ms: dict[int, int] = {}
        self._went_back_ms: dict[tuple[int, str, int], int] = {}
        """When the high watermark of an indexer's vbucket went back last."""
        world.broker["statecontext"].listeners.append(self._state_moved)

    # -- connections, and the state ----------------------------------------------------------

    def connected(self, process: ProjectorProcess, run: Run) -> None:
        """A projector opens a connection for maintenance."""
        self.world.judge.stream_begun(process.number, process.incarnation, run.bucket, run.number)
        number = (run.bucket, process.number, run.number)
        require(number not in self._numbers, "one-connection-a-number", f"{number}")
        self._numbers.add(number)

    def _state_moved(self) -> None:
        partition = self.world.broker["statecontext"]
        for record in partition.read(self._position):
            entity = record.value.mutation.entity
            if isinstance(entity, Stream) and record.value.mutation.event == "StreamRenewed":
                self._renewed(entity)
            elif isinstance(entity, Index) and entity.state == BACKFILL:
                self._backfilled_ms.setdefault(entity.id, self.world.clock.now)
        self._position = partition.stable

    def _renewed(self, stream: Stream) -> None:
        """Nobody who is there, and has said what it holds, is left behind."""
        world = self.world
        known = world.judge.entities.get(rollback_key(stream.bucket))
        rolls_back = known is not None and isinstance(known[2], Rollback) and not known[2].is_over
        if not stream.seqnos or world.indexers_were_hurt or rolls_back:
            return
        vector = Vector.from_bytes(stream.vbuuids, stream.seqnos)
        for indexer in world.indexers:
            process = indexer.process
            bucket = process.storage.bucket(stream.bucket) if process else None
            if bucket is None:
                continue
            since = [self._backfilled_ms.get(i, world.clock.now) for i in bucket.tracker.indexes]
            if not since or world.clock.now - min(since) < SPOKEN_MS:
                continue
            held = bucket.tracker.vector()
            if not held.holds_anything:
                continue  # It has gone back to 0, and is sent everything.
            behind = [
                v
                for v in range(len(vector))
                if vector.seqnos[v] > held.seqnos[v]
                and world.clock.now
                - self._went_back_ms.get((indexer.number, stream.bucket, v), -SPOKEN_MS)
                >= SPOKEN_MS
            ]
            require(
                not behind,
                "nobody-alive-is-left-behind",
                f"{stream.bucket} begins at {vector}, indexer {indexer.number} holds {held}",
            )

    # -- batches -----------------------------------------------------------------------------

    def before(self, process: IndexerProcess, queued: Sequence[Queued]) -> dict[str, Before]:
        """Remember what the high watermarks are before a batch."""
        found: dict[str, Before] = {}
        for name, vbuckets in _touched(queued).items():
            bucket = process.storage.bucket(name)
            if bucket is not None:
                tracker = bucket.tracker
                held = {v: tracker.progress[v] for v in vbuckets if v in tracker.progress}
                seqnos = {v: (one.vbuuid, one.seqno) for v, one in held.items()}
                marks = {v: _marked(tracker.indexes, v) for v in held}
                found[name] = Before(seqnos, marks)
        return found

    def applied(
        self, process: IndexerProcess, queued: Sequence[Queued], before: dict[str, Before]
    ) -> None:
        """Look at what a batch has come to."""
        begun: set[tuple[str, int]] = set()
        for queue in queued:
            one = queue.one
            if not isinstance(one, Delivery):
                continue
            head = one.head
            for item in one.items:
                place = (process.number, head.bucket, item.vbucket)
                if item.kind in (BEGIN, ATTACH):
                    begun.add((head.bucket, item.vbucket))
                if item.kind == SYNC:
                    self._last[place] = ((head.projector, head.connection), item.seqno)
                else:
                    self._last.pop(place, None)
        for name, vbuckets in _touched(queued).items():
            bucket = process.storage.bucket(name)
            if bucket is None:
                continue
            if name in before:
                self._check_order(process, bucket, before[name], begun)
            self.look(process, bucket, sorted(vbuckets))

    def _check_order(
        self, process: IndexerProcess, bucket: Bucket, before: Before, begun: set[tuple[str, int]]
    ) -> None:
        """A high watermark goes back only where a stream began with an index that lacks something.

        One that is attached below it, or again after a while, has not what lies between.
        """
        tracker = bucket.tracker
        for vbucket, (vbuuid, seqno) in before.seqnos.items():
            progress = tracker.progress[vbucket]
            if progress.seqno < seqno:
                at = (process.number, bucket.name, vbucket)
                self._went_back_ms[at] = self.world.clock.now
            now = _marked(tracker.indexes, vbucket)
            kept = any(was is tracked for was in before.marks[vbucket] for tracked in now)
            found = progress.condition in (WHOLE, GAP, BRANCHED) and (bucket.name, vbucket) in begun
            if vbuuid and progress.vbuuid == vbuuid and kept and not found:
                require(
                    progress.seqno >= seqno,
                    "hw-never-goes-back",
                    f"indexer {process.number} {bucket.name}/{vbucket}: {progress} after {seqno}",
                )

    def look(self, process: IndexerProcess, bucket: Bucket, vbuckets: Sequence[int]) -> None:
        """Compare vbuckets of a bucket with the store."""
        held = self._contents(process, bucket)
        store = self.world.store.buckets[bucket.name]
        tracker = bucket.tracker
        for number in vbuckets:
            progress = tracker.progress.get(number)
            if progress is None or progress.condition == BRANCHED or number >= len(store):
                continue
            vbucket = store[number]
            if progress.vbuuid != vbucket.vbuuid or vbucket.is_doubtful:
                continue  # It may hold what the store has lost: nobody promises anything of it.
            require(
                progress.seqno <= vbucket.high,
                "hw-is-of-the-store",
                f"indexer {process.number} {bucket.name}/{number}: {progress} > {vbucket.high}",
            )
            last = self._last.get((process.number, bucket.name, number))
            exact = progress.condition == WHOLE and last == (progress.owner, progress.seqno)
            # Below these, there may be more than that.
            exact = exact and progress.seqno >= max(progress.floor, progress.partial)
            for index_id, tracked in tracker.indexes.items():
                index, mark = self._promised(index_id, tracked), tracked.marks.get(number)
                if index is None or mark is None or mark.done == NEVER or mark.lacks != NEVER:
                    continue
                self.world.coverage.checks += 1
                where = (
                    f"indexer {process.number} {bucket.name}/{number} index {index_id} {progress}"
                )
                at = vbucket.high if exact and progress.seqno >= mark.done else None
                self._compare(process, index, vbucket, progress.seqno, held[index_id], where)
                if at is not None:
                    self._compare_exactly(
                        process, index, vbucket, progress.seqno, held[index_id], f"{where} {mark}"
                    )

    def _promised(self, index_id: int, tracked: Tracked) -> Index | None:
        """Return an index if what is held of it is what projectors send now."""
        known = self.world.judge.entities.get(index_key(index_id))
        index = known[2] if known else None
        if not isinstance(index, Index) or index.state not in STREAMED:
            return None
        return index if index.build == tracked.state.build else None

    def _compare(
        self,
        process: IndexerProcess,
        index: Index,
        vbucket: Vbucket,
        seqno: int,
        held: dict[bytes, Entry],
        where: str,
    ) -> None:
        """Each document that has not changed since has its entry; others an entry of theirs.

        Of a copy that is leaving, or has left, nobody promises anything.
        """
        pieces = serving_on(index, process.number)
        for key, newest in vbucket.states[-1].items():
            held_of = held.get(key)
            entry = None if held_of is None else held_of.within(pieces)
            if newest.seqno <= seqno:
                wanted = self.oracle.entry(index, newest)
                wanted = None if wanted is None else wanted.within(pieces)
                require(
                    entry == wanted,
                    "hw-holds-what-it-claims",
                    f"{where}: {key!r} is {entry}, should {wanted}",
                )
            elif entry is not None:
                mutation = vbucket.history[entry.seqno - 1]
                of_then = self.oracle.entry(index, mutation)
                require(
                    mutation.key == key and of_then is not None and of_then.within(pieces) == entry,
                    "an-entry-is-of-its-document",
                    f"{where}: {key!r} is {entry}, {mutation}",
                )

    def _compare_exactly(
        self,
        process: IndexerProcess,
        index: Index,
        vbucket: Vbucket,
        seqno: int,
        held: dict[bytes, Entry],
        where: str,
    ) -> None:
        wanted = self.oracle.all(index, vbucket.states[seqno].values(), process.number)
        vbuckets = len(self.world.store.buckets[index.bucket])
        pieces = serving_on(index, process.number)
        held_here = {
            key: entry.within(pieces)
            for key, entry in held.items()
            if vbucket_of(key, vbuckets) == vbucket.number
        }
        here = {key: entry for key, entry in held_here.items() if entry is not None}
        require(here == wanted, "snapshots-are-exact", f"{where}: holds {here}, should {wanted}")

    def _contents(self, process: IndexerProcess, bucket: Bucket) -> Contents:
        """Return what a database holds; each entry is there once, and known as it is."""
        entries: set[tuple[int, int, bytes]] = set()
        known: set[tuple[int, int, bytes]] = set()
        found: Contents = {index_id: {} for index_id in bucket.tracker.indexes}
        for raw in process.shell.disks[bucket.name].newest:
            if raw[:1] == DATA:
                index_id, piece = SLICE_KEY.unpack_from(raw, 1)
                rest = raw[1 + SLICE_KEY.size :]
                entries.add((index_id, piece, rest))
        for index_id, document, here in self._held(process, bucket):
            known |= {(index_id, piece, key + document) for piece, key in here.places}
            found[index_id][document] = here
        require(
            entries == known,
            "no-entry-is-doubled",
            f"indexer {process.number} {bucket.name}: {sorted(entries ^ known)}",
        )
        there = Counter((index_id, piece) for index_id, piece, *_ in entries)
        counted = {place: size.entries for place, size in bucket.sizes.all() if size.entries}
        require(
            there == counted,
            "slices-weigh-what-they-have",
            f"indexer {process.number} {bucket.name}: {dict(there)}, counted are {counted}",
        )
        return found

    # -- builds, and lost storage ------------------------------------------------------------

    def built(self, process: IndexerProcess, bucket: Bucket, index: Index) -> None:
        """An indexer says that a build is complete."""
        vbuckets = range(len(self.world.store.buckets[bucket.name]))
        marks = bucket.tracker.indexes[index.id].marks
        missing = [v for v in vbuckets if v not in marks or marks[v].done == NEVER]
        require(
            not missing,
            "a-build-ends-when-it-is-complete",
            f"indexer {process.number} index {index.id} without {missing}",
        )
        self.look(process, bucket, vbuckets)

    def filled(self, process: IndexerProcess, bucket: Bucket) -> None:
        """An indexer has written what another one has of the same slices."""
        self.fillings += 1
        self.look(process, bucket, range(len(self.world.store.buckets[bucket.name])))

    def rolled_back(self, process: IndexerProcess, bucket: Bucket) -> None:
        """A bucket has gone back: what is left of it is what the store had there, and no more."""
        held = self._contents(process, bucket)
        tracker = bucket.tracker
        kept = 0
        for number, vbucket in enumerate(self.world.store.buckets[bucket.name]):
            self._last.pop((process.number, bucket.name, number), None)
            progress = tracker.progress.get(number)
            if (
                progress is None
                or vbucket.is_doubtful
                or not is_shared(
                    [FailoverBranch(*branch) for branch in vbucket.log],
                    progress.vbuuid,
                    progress.applied,
                )
            ):
                continue
            for index_id, tracked in tracker.indexes.items():
                index, mark = self._promised(index_id, tracked), tracked.marks.get(number)
                if index is None or not tracked.state.complete or mark is None:
                    continue
                # Below these, there may be more than that.
                if progress.seqno < max(progress.floor, progress.partial, mark.done):
                    continue
                kept += 1
                where = (
                    f"indexer {process.number} {bucket.name}/{number} index {index_id} went back: "
                    f"{progress}"
                )
                self._compare(process, index, vbucket, progress.seqno, held[index_id], where)
                # Within a snapshot of the store, what a document was may have been left out.
                if progress.seqno == progress.synced:
                    self._compare_exactly(
                        process, index, vbucket, progress.seqno, held[index_id], where
                    )
        self.world.coverage.checks += kept

    def can_be_scanned(self, process: IndexerProcess, bucket: Bucket) -> None:
        """No scan is answered where there is anything that the store is known to have lost."""
        tracker = bucket.tracker
        limits: dict[int, int] = {}
        for (name, number), log in process.histories.items():
            progress = tracker.progress.get(number) if name == bucket.name else None
            if progress is None or progress.vbuuid not in [branch.vbuuid for branch in log[1:]]:
                continue
            limits[number] = surviving(log, progress.vbuuid, Seqno(2**63))
        if not limits:
            return
        vbuckets = len(self.world.store.buckets[bucket.name])
        lost_of: dict[int, dict[bytes, int]] = {}
        for index_id, document, entry in self._held(process, bucket):
            if entry.seqno > limits.get(vbucket_of(document, vbuckets), entry.seqno):
                lost_of.setdefault(index_id, {})[document] = entry.seqno
        for index_id, lost in lost_of.items():
            if self._is_answered(process, bucket, index_id):
                where = f"indexer {process.number} {bucket.name} index {index_id}"
                text = f"{where}: {lost}, left is {limits} of {tracker.progress}"
                require(False, "no-scan-shows-what-is-lost", text)
            self.world.coverage.checks += 1

    @staticmethod
    def _held(process: IndexerProcess, bucket: Bucket) -> Iterator[tuple[int, bytes, Entry]]:
        """Yield what the back-index has: an index, a document, and its entry in slices here."""
        for raw, value in process.shell.disks[bucket.name].newest.items():
            if raw[:1] == BACK:
                for index_id, entry in bucket.back_index.read(value).items():
                    seqno, _, _ = unpack_back(entry)
                    there = Entry(seqno, frozenset(places_in(entry)))
                    here = there.within(bucket.slices[index_id])
                    if here is not None:
                        yield index_id, raw[1:], here

    @staticmethod
    def _is_answered(process: IndexerProcess, bucket: Bucket, index_id: int) -> bool:
        """Tell whether a scan would be answered that knows nothing of a rollback."""
        slices = tuple(sorted(bucket.slices.get(index_id, ())))
        reading = StorageReading(process.storage)  # type: ignore[arg-type]
        try:
            reading.view(index_id, slices, shard=0, build=0, wanted=Wanted())
        except ScanRefused:
            return False
        return True

    def went_back(self, number: int) -> None:
        """An indexer's disks have lost something."""
        self._last = {
            progress: last for progress, last in self._last.items() if progress[0] != number
        }

    # -- the end -----------------------------------------------------------------------------

    def unsettled(self) -> str:
        """Say which index is not yet all there is, somewhere."""
        for _, _, index in self.world.judge.entities.values():
            if not isinstance(index, Index) or index.state in ("ready", "error"):
                continue
            if index.state != MAINTENANCE:
                return f"index {index.id} is {index.state}"
            for host in sorted(index.hosts):
                why = self._unsettled_on(index, host)
                if why:
                    return f"index {index.id} on {host}: {why}"
        return ""

    def _unsettled_on(self, index: Index, host: int) -> str:
        process = self.world.indexers[host].process
        bucket = process.storage.bucket(index.bucket) if process else None
        if bucket is None or index.id not in bucket.tracker.indexes:
            return "not there"
        tracked = bucket.tracker.indexes[index.id]
        if not tracked.state.complete or tracked.state.build != index.build:
            return f"{tracked.state}"
        for vbucket in self.world.store.buckets[index.bucket]:
            progress = bucket.tracker.progress.get(vbucket.number)
            if progress is None or (progress.vbuuid, progress.seqno) != (
                vbucket.vbuuid,
                vbucket.high,
            ):
                return f"vbucket {vbucket.number} is {progress}, high is {vbucket.high}"
        return ""

    def conclude(self) -> None:
        """All is quiet: every copy of every slice is what the store says, and nothing is over."""
        entities = [e for _, _, e in self.world.judge.entities.values() if isinstance(e, Index)]
        for index in entities:
            require(
                index.state != "error" or "vbuckets" in (index.reason or ""),
                "nothing-fails",
                f"{index}",
            )
            if index.state == MAINTENANCE:
                for host in sorted(index.hosts):
                    self._conclude(index, host)
        for shell in self.world.indexers:
            if shell.process is not None:
                for bucket in shell.process.storage.buckets():
                    self._check_rest(shell.process, bucket)

    def _conclude(self, index: Index, host: int) -> None:
        process = self.world.indexers[host].process
        bucket = process.storage.bucket(index.bucket) if process else None
        require(bucket is not None, "index-equals-oracle", f"index {index.id}: none on {host}")
        assert bucket is not None
        assert process is not None
        if any(vbucket.is_slow for vbucket in self.world.store.buckets[index.bucket]):
            return
        held = self._contents(process, bucket)[index.id]
        wanted: dict[bytes, Entry] = {}
        for vbucket in self.world.store.buckets[index.bucket]:
            wanted |= self.oracle.all(index, vbucket.states[-1].values(), host)
        require(
            held == wanted,
            "index-equals-oracle",
            f"index {index.id} on {host}: {sorted(set(held.items()) ^ set(wanted.items()))}",
        )

    def _check_rest(self, process: IndexerProcess, bucket: Bucket) -> None:
        """Nothing is left of what was dropped, nor of what was only for a build."""
        data = process.shell.disks[bucket.name].newest
        for raw, value in data.items():
            kind = raw[:1]
            if kind == BACK:
                entries = bucket.back_index.read(value)
                require(
                    sum(map(len, entries.values())) == len(value)
                    and all(cut_down(e, bucket.slices[i]) == e for i, e in entries.items()),
                    "nothing-is-left-over",
                    f"indexer {process.number} {bucket.name}: {raw!r} is {value!r}",
                )
            if kind in (DATA, TOMBSTONE, MARK, SLICE, LIFE):
                (index_id,) = INDEX_KEY.unpack_from(raw, 1)
                index = process.indexes.get(index_id)
                gone = index is None or index.state == DROPPING
                built = index is not None and index.state == MAINTENANCE
                require(
                    not gone and not (built and kind == TOMBSTONE),
                    "nothing-is-left-over",
                    f"indexer {process.number} {bucket.name}: {raw!r}",
                )


def _touched(queued: Sequence[Queued]) -> dict[str, set[int]]:
    """Return the vbuckets of each bucket of which a batch says something."""
    found: dict[str, set[int]] = {}
    for queue in queued:
        if isinstance(queue.one, Delivery):
            vbuckets = found.setdefault(queue.one.head.bucket, set())
            vbuckets.update(item.vbucket for item in queue.one.items)
    return found


def _marked(indexes: dict[int, Tracked], vbucket: int) -> list[Tracked]:
    """Return the builds that hold something of a vbucket."""
    return [tracked for tracked in indexes.values() if vbucket in tracked.marks]
