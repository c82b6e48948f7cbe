"""Bugs in what happens when the store has lost something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from coordinator.core.leader import rollback_coordinator
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket import bucket as buckets
from indexer_sim.bucket import tracker as trackers
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.snapshots import Timeline, Undo
from indexer_sim.bucket.tracker import Tracker
from projector_sim.projector.stream_planner import StreamPlanner

Patch = pytest.MonkeyPatch


def every_branch_has_what_is_held(patch: Patch) -> None:
    patch.setattr(trackers, "has_what_was_applied", lambda progress, vbuuid, log: True)


def indexers_keep_what_was_lost(patch: Patch) -> None:
    patch.setattr(Tracker, "lost", lambda self, rollback: {})


def any_snapshot_will_do(patch: Patch) -> None:
    known = Timeline.way_back
    patch.setattr(Timeline, "way_back", lambda self, left, tracker: known(self, {}, tracker))


def only_the_last_change_is_undone(patch: Patch) -> None:
    def hasty(batch: Any, changes: Iterable[Undo]) -> None:
        known(batch, {(change.index_id, change.document): change for change in changes}.values())

    known = buckets.put_back
    patch.setattr(buckets, "put_back", hasty)


def every_index_was_whole_at_a_snapshot(patch: Patch) -> None:
    def whole(self: Bucket, stable: Any) -> frozenset[int]:
        return frozenset(self.tracker.indexes) if stable is not None else frozenset()

    patch.setattr(Bucket, "indexes_whole_at", whole)


def snapshots_are_made_of_what_cannot_be_undone(patch: Patch) -> None:
    """The end of a branch that has lost more lies below the last snapshot."""

    def judge(self: Timeline, vector: Vector, tracker: Tracker) -> int:
        number, _ = self._last
        self._last = (number, [])
        return known(self, vector, tracker)

    known = Timeline.judge
    patch.setattr(Timeline, "judge", judge)


def what_is_refused_is_not_asked_for_again(patch: Patch) -> None:
    known = StreamPlanner.lacking

    def lacking(self: StreamPlanner, bucket: str, kv: Any, now_ms: int) -> set[int]:
        run = self.maintenance.get(bucket)
        refused = set(run.refused) if run is not None else set()
        return known(self, bucket, kv, now_ms) - refused

    patch.setattr(StreamPlanner, "lacking", lacking)


def a_loss_during_a_rollback_is_overlooked(patch: Patch) -> None:
    known = rollback_coordinator.lost_vbuckets

    def overlooked(heard: Any, last: int) -> tuple[int, ...]:
        recovering = any(beat.recovering for beat in heard.beats.values())
        return () if recovering else known(heard, last)

    patch.setattr(rollback_coordinator, "lost_vbuckets", overlooked)
