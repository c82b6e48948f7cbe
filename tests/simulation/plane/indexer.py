"""An indexer's shell: real desk, buckets, tracker and applier; reading and disks are simulated.

It does what the process and the thread that reads `mutations` do. What lies on its disk
outlives it; a kill takes all the rest, a power cut the last batches, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator.core.model.entities import Bucket, Index, Rollback
from coordinator.core.model.records import Holding, HoldingsRequested
from coordinator.core.model.stream_records import (
    CatchUpRequested,
    StabilityTimestamp,
)
from coordinator.core.timestamps.algorithms import Log
from coordinator.kafka.topics import STREAM_REQUEST
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.allocation import Allocate, AllocationPlanner
from indexer_sim.bucket.bucket import Bucket as Storage
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.transfers import (
    Ask,
    Given,
    Giving,
    TransferRefused,
    ask_bytes,
    given_bytes,
    read_ask,
    read_given,
)
from indexer_sim.pipeline.applier import Applier
from indexer_sim.pipeline.fillings import Filling, Fillings
from indexer_sim.pipeline.mutation_reader import MutationQueue, Queued
from indexer_sim.pipeline.progress_reporter import _is_built, _told
from tests.simulation.kernel.actor import Ear
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.plane.disk import Crashed, MemoryDatabase
from tests.simulation.plane.reading import Buckets, Reader
from tests.simulation.plane.shell import Shell
from tests.simulation.voices import IndexerVoice

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld

PERIOD_MS = 250
SWEEP_EACH = 4
"""In each so many periods, back-indexes are swept a little."""

CHECKPOINT_EACH = 8
"""In each so many periods, there is a checkpoint of each bucket."""

REQUEST_MS = 1_000
BATCHES = (1, 5, 30)
LATE_MS = (5, 50, 2_000)
"""So late histories are heard: before or after the streams have begun on the new branch."""

ASKED_MS = 30
ANSWERED_MS = (1, 5, 20, 300, 2_000)
LOST = 0.05
"""How long what one indexer asks of another is on its way, and how long the answer; and how often
it is lost."""

NEVER_S = 1e9


class Never:
    """Stands in for the event that tells the applier to stop: it waits in no time."""

    def is_set(self) -> bool:
        return False

    def wait(self, _: float) -> bool:
        return False


def _nothing(*_: Any) -> None:
    """Who listens?"""


class IndexerProcess:
    """One process of an indexer: everything that a kill takes."""

    def __init__(self, shell: Indexer) -> None:
        self.shell = shell
        self.world = shell.world
        self.number = shell.number
        self.dead = False
        self.planner = AllocationPlanner(indexer=shell.number)
        self.storage = Buckets(shell.disks, shell.vbuckets, self._is_written)
        self.planner.hold(self.storage.held, self.storage.shards)
        self.reader = Reader(self.world, self.number, self.storage)
        self.applier = Applier(
            self.storage,  # type: ignore[arg-type]
            MutationQueue(),
            *(_nothing, _nothing, _nothing, _nothing),
            NEVER_S,
            Threads(_nothing),
            lambda said: self.world.trace(f"indexer {self.number}: {said}"),
            _nothing,
        )
        self.applier._stopping = Never()  # type: ignore[assignment]
        self.fillings = Fillings(self.storage)  # type: ignore[arg-type]
        self.giving = Giving(self.storage, self.number)  # type: ignore[arg-type]
        self.indexes: dict[int, Index] = {}
        self.position = 0
        self._asked: HoldingsRequested | None = None
        self._end = self.world.broker["statecontext"].stable
        self._apply_due = self._read_due = self._hear_due = False
        self.histories: dict[tuple[str, int], Log] = {}
        """What was read of `failover-log`, the last of each vbucket."""
        self._heard = 0
        self._requested_ms: dict[str, int] = {}
        clock = self.world.clock
        clock.at(clock.delay(), self.read_state)
        clock.at(clock.chance.randrange(PERIOD_MS), self._period)
        self.apply_soon()
        self.hear_histories_soon()

    def die(self) -> None:
        self.dead = True

    def _is_written(self, bucket: Storage) -> None:
        """A batch can be read, and nobody has been told what is known after it."""
        if not self.dead:
            self.world.witness.can_be_scanned(self, bucket)

    # -- the state ---------------------------------------------------------------------------

    def read_state(self) -> None:
        self._do(self._read_state)

    def _do(self, what: Callable[[], None]) -> None:
        """Do something, unless this process is over; it may end in a write."""
        if not self.dead:
            try:
                what()
            except Crashed:
                self.shell.kill()
                self.shell.restart_later()

    def _read_state(self) -> None:
        partition = self.world.broker["statecontext"]
        for record in partition.read(self.position):
            self._note(record.value.mutation)
        self.position = partition.stable
        if not self.planner.complete and self.position >= self._end:
            for index_id in self.planner.caught_up():
                self.indexes.pop(index_id, None)
        self._act()
        self._report()
        self.apply_soon()

    def _note(self, mutation: Any) -> None:
        entity = mutation.entity
        if mutation.key.startswith("index/"):
            index_id = int(mutation.key.partition("/")[2])
            self.planner.observe(index_id, entity)
            if isinstance(entity, Index):
                self.indexes[index_id] = entity
            else:
                self.indexes.pop(index_id, None)
        elif isinstance(entity, Bucket):
            self.storage.know(entity.name, entity.vbuckets)
        elif isinstance(entity, Rollback):
            self.applier.roll_back(entity)

    def asked(self, record: HoldingsRequested) -> None:
        if not self.shell.is_asked(record):
            return
        self._asked = record
        if record.reread:
            self.planner.read_again()
            self.position, self._end = 0, self.world.broker["statecontext"].stable
        self.read_state()

    def _report(self) -> None:
        asked = self._asked
        if asked is None or not self.planner.complete:
            return
        self._asked = None
        self.shell.say_holdings(asked, self.position, [tuple(self.planner.report())])

    def _act(self) -> None:
        for action in self.planner.plan():
            try:
                if isinstance(action, Allocate):
                    self._allocate(action)
                else:
                    self.storage.release(action.index_id, action.slices)
            except StorageError as error:
                if isinstance(action, Allocate):
                    self.planner.refuse(action, error.message)
        self.planner.hold(self.storage.held, self.storage.shards)
        for reply in self.planner.replies():
            self.shell.say_slices(
                reply.index_id, reply.answer, reply.reason, reply.slices, reply.shard
            )
        self.planner.close_finished()
        self.fillings.know(self.planner.indexes if self.world.transfers else {})

    def _allocate(self, action: Allocate) -> None:
        ends = {p: log.end for p, log in enumerate(self.world.mutations)}
        self.storage.allocate(action.index, action.slices, ends, self.shell.fresh_disk())
        self.world.trace(f"indexer {self.number}: index {action.index.id} is allocated, {ends}")
        self.apply_soon()

    # -- mutations ---------------------------------------------------------------------------

    def apply_soon(self) -> None:
        if not self._apply_due and not self.dead and self.planner.complete:
            self._apply_due = True
            clock = self.world.clock
            clock.at(clock.chance.randint(1, 25) + self.shell.slow_ms, self._apply)

    def _apply(self) -> None:
        self._apply_due = False
        self._do(self._apply_some)

    def hear(self, timestamp: StabilityTimestamp) -> None:
        """A timestamp at which a snapshot is wanted has been read."""
        if self.planner.complete:
            queued = Queued(self.storage.epoch, timestamp)
            self._do(lambda: self.applier.apply([queued]))

    def hear_histories_soon(self) -> None:
        if not self._hear_due and not self.dead:
            self._hear_due = True
            late_ms = self.world.whispers.choice(LATE_MS)
            self.world.clock.at(self.world.whispers.randint(1, late_ms), self._hear_histories)

    def _hear_histories(self) -> None:
        self._hear_due = False
        if self.dead:
            return
        for record in self.world.failover_log[self._heard :]:
            bucket = self.storage.bucket(record.bucket)
            if bucket is not None and not bucket.hear(record.vbucket, record.branches, 0.0):
                raise AssertionError("nobody else uses the bucket")
            self.histories[record.bucket, record.vbucket] = record.branches
        self._heard = len(self.world.failover_log)
        for bucket in self.storage.buckets():
            self.world.witness.can_be_scanned(self, bucket)

    def _obey(self) -> None:
        before = {bucket.name: bucket.rolled_back for bucket in self.storage.buckets()}
        self.applier.obey()
        for bucket in self.storage.buckets():
            if bucket.rolled_back != before[bucket.name]:
                self.world.witness.rolled_back(self, bucket)

    def _apply_some(self) -> None:
        self._obey()
        queued = self.reader.read(self.world.clock.chance.choice(BATCHES))
        if queued:
            self.apply(queued)
        if not self.reader.is_at_the_end:
            self.apply_soon()
        if any(shard != self.planner.shards.get(i) for i, shard in self.storage.shards.items()):
            self.planner.hold(self.storage.held, self.storage.shards)
            self._act()

    def apply(self, queued: list[Queued]) -> None:
        """Apply what was read; the witness looks at it before and after."""
        witness = self.world.witness
        before = witness.before(self, queued)
        self.applier.apply(queued)
        witness.applied(self, queued, before)

    # -- what other indexers give ------------------------------------------------------------

    def _fill(self) -> None:
        """Ask other indexers for what parts lack here."""
        if not self.planner.complete:
            return
        for filling, ask in self.fillings.asks(self.world.clock.now / 1_000):
            origin = self.world.indexers[ask.indexer]
            asked = partial(self._asked_of, origin, filling, ask)
            self.world.clock.at(self.world.whispers.randint(1, ASKED_MS), asked)

    def _asked_of(self, origin: Indexer, filling: Filling, ask: Ask) -> None:
        """The question arrives; the answer may be lost."""
        if origin.process is None or self.world.whispers.random() < LOST:
            return
        answer: Given | TransferRefused
        try:
            answer = read_given(given_bytes(origin.process.giving.answer(read_ask(ask_bytes(ask)))))
        except TransferRefused as refusal:
            answer = refusal
        later_ms = self.world.whispers.choice(ANSWERED_MS)
        took = partial(self._answered, filling, ask, answer)
        self.world.clock.at(later_ms, lambda: self._do(took))

    def _answered(self, filling: Filling, ask: Ask, answer: Given | TransferRefused) -> None:
        if isinstance(answer, TransferRefused):
            self.fillings.refused(filling, answer, self.world.clock.now / 1_000)
            return
        try:
            self.fillings.take(filling, ask, answer, self.world.clock.now / 1_000)
        except StorageError:
            self.fillings.failed(filling)
        bucket = self.storage.bucket_of(filling.part.id)
        if bucket is not None and not bucket.stale:
            self.world.witness.filled(self, bucket)
        self._fill()

    # -- what is told ------------------------------------------------------------------------

    def _period(self) -> None:
        if not self.dead:
            self.world.clock.at(PERIOD_MS, self._period)
        self._do(self._beat)

    def _beat(self) -> None:
        world = self.world
        self.shell.say_alive()
        self.storage.tend()
        self.planner.hold(self.storage.held, self.storage.shards)
        if self.planner.open:
            self._act()
        if world.clock.hit(0.05):
            self.applier._write_positions()
        if world.clock.now // PERIOD_MS % SWEEP_EACH == self.number % SWEEP_EACH:
            self.applier.sweep()
        if world.clock.now // PERIOD_MS % CHECKPOINT_EACH == self.number % CHECKPOINT_EACH:
            for bucket in self.storage.buckets():
                if not bucket.stale:
                    self.storage.make_checkpoint(bucket)
        for bucket in self.storage.buckets():
            if bucket.vbuckets and not bucket.stale:
                self._tell(bucket)
        self.apply_soon()
        self._fill()

    def _tell(self, bucket: Storage) -> None:
        world, now = self.world, self.world.clock.now
        tracker = bucket.tracker
        self._say_held(bucket)
        gaps = tracker.gaps()
        if gaps and now >= self._requested_ms.get(bucket.name, 0) + REQUEST_MS:
            self._requested_ms[bucket.name] = now
            vector = tracker.vector()
            vbuuids, seqnos = type(vector)(vector.vbuuids[gaps], vector.seqnos[gaps]).to_bytes()
            request = CatchUpRequested(
                self.number,
                self.shell.incarnation,
                bucket.name,
                tuple(gaps),
                vbuuids,
                seqnos,
                WALL_MS,
            )
            world.network.send(STREAM_REQUEST, request)
        for index_id, state in bucket.published.states.items():
            index = self.indexes.get(index_id)
            if index is not None and _is_built(index, state):
                self._say_built(bucket, index)

    def _say_held(self, bucket: Storage) -> None:
        tracker = bucket.tracker
        self.shell.say_held(
            bucket.name,
            tracker.vector(),
            tuple(sorted(tracker.indexes)),
            builds=_told(tracker.builds(), self.fillings.are_filled()),
            read=tracker.chains.read(tracker.partitions),
            taken=tracker.taken(),
            branched=tuple(tracker.branched()),
            rollback=bucket.published.rollback,
            recovering=bucket.published.recovering,
        )

    def _say_built(self, bucket: Storage, index: Index) -> None:
        world = self.world
        world.witness.built(self, bucket, index)
        late_ms = world.clock.chance.choice((0, 0, 0, 500, 3_000)) if not world.healed else 0
        self.shell.say_built(index, bucket.shards[index.id], late_ms)

    def is_settled(self) -> bool:
        return (
            self.planner.complete
            and not self.planner.open
            and self.reader.is_at_the_end
            and not any(map(_lacks_something, self.storage.buckets()))
            and all(bucket.back_index.is_swept for bucket in self.storage.buckets())
        )

    def stands(self) -> str:
        found = [f"indexer {self.number}: open {self.planner.open} {self.reader._at}"]
        for bucket in self.storage.buckets():
            tracker = bucket.tracker
            found.append(f"{bucket.name} offsets {bucket.offsets} places {tracker.progress}")
            found += [f"{i}: {t.state} {t.marks}" for i, t in tracker.indexes.items()]
        return "\n    ".join(found)


def _lacks_something(bucket: Storage) -> bool:
    """Tell whether a vbucket of which something is held has a gap."""
    tracker = bucket.tracker
    odd = tracker.gaps() + tracker.branched()
    return any(v in tracked.marks for v in odd for tracked in tracker.indexes.values())


class Indexer(Shell[IndexerProcess], IndexerVoice):
    """An indexer, its processes, and its disks."""

    kind = "indexer"

    def __init__(self, world: PlaneWorld, number: int) -> None:
        super().__init__(world, number, IndexerProcess)
        self.disks: dict[str, MemoryDatabase] = {}
        self.vbuckets: dict[str, int] = {}
        world.clock.at(world.clock.delay(), self.start)

    def fresh_disk(self) -> MemoryDatabase:
        return MemoryDatabase(lambda: self.world.clock.hit(0.5))

    def kill(self) -> None:
        if self.process is not None:
            self._mend_disks()
        super().kill()

    def heal(self) -> None:
        self._mend_disks()
        super().heal()

    def _mend_disks(self) -> None:
        for disk in self.disks.values():
            disk.troubles.failing, disk.troubles.fuse = 0, -1

    def restart_later(self) -> None:
        self.world.clock.at(self.world.down_ms(), self.start)

    def cut_power(self) -> None:
        """All at once: what was not synced is lost, of each bucket another part."""
        self.kill()
        for name in sorted(self.disks):
            disk = self.disks[name]
            disk.crash(self.world.clock.chance.randint(0, len(disk.unsynced)))
        self.world.witness.went_back(self.number)

    def lose_storage(self) -> None:
        """The disks are gone."""
        self.kill()
        self.disks.clear()
        self.vbuckets.clear()
        self.world.witness.went_back(self.number)

    def ear(self, record: Any) -> Ear | None:
        return self._asked if isinstance(record, HoldingsRequested) else None

    def _asked(self, topic: str, record: HoldingsRequested) -> None:
        if self.process is not None:
            self.process.asked(record)

    # -- what the judge of the coordinator looks at ----------------------------------------------

    @property
    def indexes(self) -> dict[int, Index]:
        return self.process.indexes if self.process else {}

    @property
    def held(self) -> dict[int, Holding]:
        if self.process is None:
            return {}
        shards = self.process.storage.shards
        return {
            i: Holding(i, shards.get(i, 0), tuple(sorted(slices)))
            for i, slices in self.process.storage.held.items()
        }
