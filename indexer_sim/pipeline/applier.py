"""Applies what was read to the buckets, in a thread of its own.

One batch is one write for each bucket that it touches: entries, what is known of the streams, and
the offset behind it. What the disk refuses is tried again until it is taken, from what the
database then says; so nothing is lost, and nothing applied twice. Records of a bucket that is not
held are skipped: nobody promised anything about it yet. Only its newest stability timestamp is
remembered: where nothing changes any more, no other comes once it is held.

A record that cannot be applied, whatever it does, becomes a dead letter. The others are applied
without it, from what the database says: the next record of its connection tells that it is missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial

from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import ConsolidatedStability, StabilityTimestamp
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.tracker import Change
from indexer_sim.pipeline.mutation_reader import (
    Delivery,
    Follows,
    Lost,
    MutationQueue,
    Position,
    Queued,
)

BATCH_ITEMS = 4_096
WAIT_S = 0.25
RETRY_S = 0.5
POSITIONS_PERIOD_S = 10.0
"""Where a bucket stands is written at least so often, though nothing for it came: Kafka must not
drop what is below for what is not read yet."""

ReportProblem = Callable[[str, str], None]
Report = Callable[[str], None]
MakeDeadLetter = Callable[[Delivery, str], None]


class PoisonError(Exception):
    """Records cannot be applied, for this reason."""


class Applier:
    """Takes what was read, for ever.

    `news` is called when something may have to be told, `applied` after each batch.
    """

    def __init__(
        self,
        storage: Storage,
        queue: MutationQueue,
        news: Callable[[], None],
        problem: ReportProblem,
        resolved: Report,
        dead_letter: MakeDeadLetter,
        checkpoint_s: float,
        threads: Threads,
        info: Report,
        applied: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._queue = queue
        self._news = news
        self._problem = problem
        self._resolved = resolved
        self._dead_letter = dead_letter
        self._info = info
        self._applied = applied
        self._newest: dict[str, StabilityTimestamp] = {}
        self._rollbacks: dict[str, Rollback] = {}
        self._stopping = threading.Event()
        self._checkpoint_s = checkpoint_s
        self._checkpoints_due_s = time.monotonic() + checkpoint_s
        self._positions_due_s = 0.0
        self._thread = threads.make("applier", self._run, self._stopping)

    def start(self) -> None:
        self._thread.start()

    def roll_back(self, rollback: Rollback) -> None:
        """Note the last rollback of a bucket: what it commands is done between two batches."""
        if rollback.barrier:
            self._rollbacks[rollback.bucket] = rollback

    def end(self) -> None:
        """Stop after the batch that is being applied."""
        self._stopping.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            taken = self._queue.take(BATCH_ITEMS, WAIT_S)
            self.obey()
            if taken:
                self.apply(taken)
                self._applied()
            while self.sweep() and not (self._queue.waiting or self._stopping.is_set()):
                pass
            if time.monotonic() >= self._positions_due_s:
                self._positions_due_s = time.monotonic() + POSITIONS_PERIOD_S
                self._write_positions()
            if time.monotonic() >= self._checkpoints_due_s:
                self._make_checkpoints()
                self._checkpoints_due_s = time.monotonic() + self._checkpoint_s

    def obey(self) -> None:
        """Roll buckets back that are to be, and are not yet."""
        for name, rollback in list(self._rollbacks.items()):
            bucket = self._storage.bucket(name)
            if bucket is not None and rollback.number > bucket.rolled_back:
                self._until_done(name, self._storage.epoch, partial(self._roll_back, rollback))

    def _roll_back(self, rollback: Rollback, bucket: Bucket) -> None:
        with closing(self._storage.earlier(bucket)) as earlier:
            done = bucket.roll_back(rollback, earlier)
        if done:
            self._info(f"bucket {bucket.name}: rollback {rollback.number}: {done}")
            self._news()

    def apply(self, taken: list[Queued]) -> None:
        """Apply what was read, all of it or until told to stop."""
        epoch = taken[-1].epoch
        current = [queued.one for queued in taken if queued.epoch == epoch]
        deliveries: dict[str, list[Delivery]] = {}
        positions: dict[int, int] = {}
        epochs: dict[int, int] = {}
        for one in current:
            if isinstance(one, Delivery):
                deliveries.setdefault(one.head.bucket, []).append(one)
                positions[one.partition] = one.offset + 1
                epochs[one.partition] = one.epoch
            elif isinstance(one, Position):
                positions[one.partition] = one.offset
                epochs[one.partition] = one.epoch
            elif isinstance(one, Lost):
                lose = partial(Bucket.lose, offsets=one.offsets, topic=one.topic)
                self._until_done(one.bucket, epoch, lose)
            elif isinstance(one, Follows):
                self._follow(one.topic, epoch)
            elif isinstance(one, ConsolidatedStability):
                for timestamp in one.timestamps:
                    self._stability(timestamp, epoch)
            else:
                self._stability(one, epoch)
        for name, ours in deliveries.items():
            self._apply_all(name, epoch, ours)
        for bucket in self._storage.buckets():
            with bucket.lock:
                if self._storage.epoch == epoch:
                    ahead = {p: o for p, o in positions.items() if o > bucket.offsets.get(p, 0)}
                    bucket.stand(ahead, epochs)

    def sweep(self) -> bool:
        """Take a little out of back-indexes that does not count; tell whether there is more."""
        for bucket in self._storage.buckets():
            if not bucket.back_index.is_swept:
                self._until_done(bucket.name, self._storage.epoch, Bucket.sweep)
        return any(not bucket.back_index.is_swept for bucket in self._storage.buckets())

    def _follow(self, topic: str, epoch: int) -> None:
        """Note which topic is read, where a bucket does not know it yet."""
        for bucket in self._storage.buckets():
            with bucket.lock:
                if self._storage.epoch == epoch:
                    bucket.topic = bucket.topic or topic

    def _until_done(self, name: str, epoch: int, work: Callable[[Bucket], None]) -> None:
        """Do some work on a bucket, as often as it takes; not if it is not held any more."""
        about = f"mutations of bucket {name}"
        while not self._stopping.is_set():
            bucket = self._storage.bucket(name)
            if bucket is None:
                return
            try:
                with bucket.lock:
                    if self._storage.epoch != epoch or self._storage.bucket(name) is not bucket:
                        return
                    if bucket.stale or bucket.damaged:
                        self._storage.reload(bucket)
                        continue
                    if (newest := self._newest.get(name)) is not None:
                        bucket.timeline.want(newest)
                    work(bucket)
            except StorageError as error:
                bucket.damaged = bucket.damaged or error.code == "damaged"
                self._problem(about, error.message)
                self._stopping.wait(RETRY_S)
            else:
                self._resolved(about)
                return

    def _apply_all(self, name: str, epoch: int, deliveries: list[Delivery]) -> None:
        """Apply deliveries; if that cannot be done, one by one: which cannot is a dead letter."""
        try:
            self._until_done(name, epoch, partial(self._apply, deliveries=deliveries))
        except PoisonError:
            for one in deliveries:
                try:
                    self._until_done(name, epoch, partial(self._apply, deliveries=[one]))
                except PoisonError as error:
                    self._dead_letter(one, str(error))

    def _apply(self, bucket: Bucket, deliveries: list[Delivery]) -> None:
        """Apply the deliveries that the bucket does not have yet.

        Raises StorageError; PoisonError, then only the database tells what the bucket stands at.
        """
        try:
            self._apply_some(bucket, deliveries)
        except StorageError:
            raise
        except Exception as error:
            # Whatever it is: one record must not stop the others, nor leave half of itself behind.
            bucket.stale = True
            raise PoisonError(f"{type(error).__name__}: {error}") from error

    def _apply_some(self, bucket: Bucket, deliveries: list[Delivery]) -> None:
        """Apply deliveries, as one write where no build begins between them."""
        changes: list[Change] = []
        offsets: dict[int, int] = {}
        epochs: dict[int, int] = {}
        tracker = bucket.tracker
        states, is_asked = bucket.published.states, False
        for partition, offset, head, items, leader_epoch in deliveries:
            if offset < bucket.offsets.get(partition, 0):
                continue
            # A projector may wait until that is read: a backfill goes no faster.
            is_asked |= not items
            builds = tracker.newer_builds(head)
            if builds:
                if offsets:
                    bucket.apply(changes, offsets, epochs)
                    changes, offsets = [], {}
                bucket.begin_builds(builds)
            changes += tracker.apply(head, items, partition)
            offsets[partition], epochs[partition] = offset + 1, leader_epoch
        if offsets:
            bucket.apply(changes, offsets, epochs)
        if is_asked or bucket.published.states != states:
            self._news()

    def _stability(self, timestamp: StabilityTimestamp, epoch: int) -> None:
        """Note a timestamp at which a snapshot is wanted."""
        self._newest[timestamp.bucket] = timestamp
        self._until_done(timestamp.bucket, epoch, Bucket.snap)

    def _write_positions(self) -> None:
        """Write where each bucket stands, though nothing came for it; end leases that are over."""
        for bucket in self._storage.buckets():
            bucket.timeline.leases.expire()
            self._until_done(bucket.name, self._storage.epoch, _write_offsets)

    def _make_checkpoints(self) -> None:
        """Make a checkpoint of each bucket that has changed since its last one."""
        for bucket in self._storage.buckets():
            about = f"a checkpoint of bucket {bucket.name}"
            try:
                with bucket.lock:
                    held = self._storage.bucket(bucket.name) is bucket
                    if held and not (bucket.stale or bucket.damaged):
                        self._storage.make_checkpoint(bucket)
            except StorageError as error:
                self._problem(about, error.message)
            else:
                self._resolved(about)


def _write_offsets(bucket: Bucket) -> None:
    if bucket.offsets != bucket.written_offsets:
        bucket.apply([], dict(bucket.offsets), dict(bucket.epochs))
