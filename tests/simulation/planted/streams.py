"""Bugs in the data plane: what projectors send, what indexers make of it, what the disk has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.leader import stream_restart
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import Restart
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.progress import BEGUN_ABOVE, CAUGHT_UP, CONDITIONS, GAP, WHOLE
from indexer_sim.bucket.tracker import NEVER, Tracker
from projector_sim.projector.stream_planner import StreamPlanner

Patch = pytest.MonkeyPatch


def high_watermark_passes_over_a_gap(patch: Patch) -> None:
    without_gap = dict.fromkeys(CONDITIONS[BEGUN_ABOVE], WHOLE)
    patch.setitem(CONDITIONS, BEGUN_ABOVE, without_gap)  # type: ignore[arg-type]


def absence_leaves_no_tombstone(patch: Patch) -> None:
    settle = Bucket._settle

    def settled(self: Bucket, batch: Any, changes: Any) -> Any:
        return settle(self, batch, [change._replace(guarded=False) for change in changes])

    patch.setattr(Bucket, "_settle", settled)


def what_indexers_ignore_goes_on(patch: Patch) -> None:
    patch.setattr(StreamPlanner, "_ignored", lambda *given: set())


def catch_up_ends_early(patch: Patch) -> None:
    control = Tracker._catchup_control

    def hasty(self: Tracker, connection: Any, known: Any, item: Any) -> None:
        control(self, connection, known, item)
        held = self.progress.get(item.vbucket)
        if held is not None and held.catchup == connection and held.condition == GAP:
            held.change(CAUGHT_UP)
            held.seqno = max(held.seqno, held.reached)

    patch.setattr(Tracker, "_catchup_control", hasty)


def build_is_complete_in_some_vbuckets(patch: Patch) -> None:
    complete = Tracker._complete

    def hasty(self: Tracker, index_id: int) -> None:
        complete(self, index_id)
        tracked = self.indexes[index_id]
        if any(mark.done != NEVER for mark in tracked.marks.values()):
            tracked.state = tracked.state._replace(complete=True)
            self.dirty.states.add(index_id)

    patch.setattr(Tracker, "_complete", hasty)


def backfill_ends_too_low(patch: Patch) -> None:
    """A vbucket counts as built before the backfill has come to where maintenance began."""
    control = Tracker._backfill_control

    def hasty(self: Tracker, connection: Any, known: Any, item: Any) -> None:
        control(self, connection, known, item)
        for index_id, tracked in self.indexes.items():
            mark = tracked.marks.get(item.vbucket)
            if mark is not None and mark.source == connection:
                mark.done, mark.source = mark.attached, (-1, 0)
                self._complete(index_id)
                self.dirty.marks.add((index_id, item.vbucket))

    patch.setattr(Tracker, "_backfill_control", hasty)


def number_is_used_again(patch: Patch) -> None:
    """A connection that broke is opened again under its old number."""
    plan = StreamPlanner.plan

    def careless(self: StreamPlanner, now_ms: int) -> Any:
        for name, number in self._used.items():
            if name not in self.maintenance:
                self._used[name] = number - 1
        return plan(self, now_ms)

    patch.setattr(StreamPlanner, "plan", careless)


def streams_begin_at_the_largest(patch: Patch) -> None:
    def largest(participants: Any, logs: Any) -> Restart:
        most = max(participants, key=lambda vector: int(vector.seqnos.sum()))
        return Restart(Vector(most.vbuuids, most.seqnos), ())

    patch.setattr(stream_restart, "restart", largest)


def offsets_are_written_first(patch: Patch) -> None:
    """How far reading has come, of all streams, is on the disk before the entries are."""
    apply = Bucket.apply

    def ahead(self: Bucket, changes: Any, *stand: Any) -> Any:
        apply(self, (), *stand)
        return apply(self, changes, *stand)

    patch.setattr(Bucket, "apply", ahead)


def what_retention_took_is_not_missed(patch: Patch) -> None:
    """Neither when it is told, nor when the next record of a connection tells of it."""
    patch.setattr(Tracker, "lose", lambda self, partitions: None)
    patch.setattr(Tracker, "_miss", lambda *_: None)


def older_build_is_kept(patch: Patch) -> None:
    """What an index holds of an older build counts for the next one."""
    newer = Tracker.newer_builds

    def kept(self: Tracker, record: Any) -> dict[int, int]:
        for index_id, build in newer(self, record).items():
            tracked = self.indexes[index_id]
            tracked.state = tracked.state._replace(build=build)
            self.dirty.states.add(index_id)
        return {}

    patch.setattr(Tracker, "newer_builds", kept)


def what_a_build_lacks_is_not_sent_again(patch: Patch) -> None:
    patch.setattr(StreamPlanner, "_missed", lambda *_: set())


def what_is_missing_of_a_connection_is_not_noticed(patch: Patch) -> None:
    patch.setattr(Tracker, "_miss", lambda *_: None)


def part_of_a_seqno_counts_for_all_of_it(patch: Patch) -> None:
    apply = Tracker.apply

    def hasty(self: Tracker, record: Any, *rest: Any) -> Any:
        return apply(self, replace(record, continued=False), *rest)

    patch.setattr(Tracker, "apply", hasty)
