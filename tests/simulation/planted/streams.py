"""Bugs in the data plane: what projectors send, what indexers make of it, what the disk has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.catalog import ddl
from coordinator.core.catalog.builds import BUILD_DECIDERS
from coordinator.core.keys.key_versions import BEGIN, END, Item
from coordinator.core.leader import stream_restart
from coordinator.core.model.commands import RenewStream
from coordinator.core.model.stream_records import BACKFILL, CATCHUP, KeyVersions
from coordinator.core.model.types import Seqno
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket import settlement
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.chains import AFTER_A_HOLE, NEXT, Chains
from indexer_sim.bucket.progress import BEGUN_ABOVE, CONDITIONS, WHOLE
from indexer_sim.bucket.tracker import Change, Scope, Tracked, Tracker
from projector_sim.projector.stream_planner import Host, StreamPlanner

Patch = pytest.MonkeyPatch


def high_watermark_passes_over_a_gap(patch: Patch) -> None:
    without_gap = dict.fromkeys(CONDITIONS[BEGUN_ABOVE], WHOLE)
    patch.setitem(CONDITIONS, BEGUN_ABOVE, without_gap)  # type: ignore[arg-type]


def of_several_keys_one_is_held(patch: Patch) -> None:
    known = settlement.places_of
    patch.setattr(settlement, "places_of", lambda piece, key: known(piece, key)[:1])


def absence_leaves_no_tombstone(patch: Patch) -> None:
    apply = Tracker.apply

    def forgetful(self: Tracker, *given: Any) -> list[Change]:
        return [
            change._replace(scope=Scope(change.scope.logged | change.scope.guarded, frozenset()))
            for change in apply(self, *given)
        ]

    patch.setattr(Tracker, "apply", forgetful)


def what_indexers_ignore_goes_on(patch: Patch) -> None:
    """Each number begins all streams, as it did when this was a fault: so it is seen sooner."""
    patch.setattr(Host, "takes_from_others", lambda self, run, projector, vbuckets: set())
    renewed_with(patch, lambda command: replace(command, whole=frozenset(command.projectors)))


def renewed_with(patch: Patch, changed: Callable[[RenewStream], RenewStream]) -> None:
    """Let masters renew streams by another command than the one that they have decided on."""
    renew = BUILD_DECIDERS[RenewStream]

    def other(state: Any, request: Any, given: Any) -> Any:
        return renew(state, replace(request, command=changed(request.command)), given)

    patch.setitem(ddl.DECIDERS, RenewStream, other)


def plant_early_ends(patch: Patch, of_kind: str, end: Callable[[Tracker, int], Seqno]) -> None:
    """Let each BEGIN of a connection that ends count for its END as well, at the seqno `end`."""
    apply = Tracker.apply

    def ended(tracker: Tracker, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            yield item
            if item[0] == BEGIN:
                yield Item(END, item[1], end(tracker, item[1]))

    def hasty(self: Tracker, record: KeyVersions, items: Any, *rest: Any) -> list[Change]:
        found = ended(self, items) if record.kind == of_kind else items
        return apply(self, record, found, *rest)

    patch.setattr(Tracker, "apply", hasty)


def catch_up_ends_early(patch: Patch) -> None:
    """A gap is closed as soon as a catch-up begins."""
    plant_early_ends(patch, CATCHUP, lambda tracker, vbucket: tracker.progress[vbucket].begun)


def build_is_complete_in_some_vbuckets(patch: Patch) -> None:
    def hasty(self: Tracked, vbuckets: int) -> bool:
        return any(mark.is_whole for mark in self.marks.values())

    patch.setattr(Tracked, "is_complete", hasty)


def backfill_ends_too_low(patch: Patch) -> None:
    """A vbucket counts as built before the backfill has come to where maintenance began."""

    def attached(tracker: Tracker, vbucket: int) -> Seqno:
        marks = (tracked.marks.get(vbucket) for tracked in tracker.indexes.values())
        return max((mark.attached for mark in marks if mark is not None), default=Seqno(0))

    plant_early_ends(patch, BACKFILL, attached)


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
    def largest(participants: Any, logs: Any) -> Vector:
        most = max(participants, key=lambda vector: int(vector.seqnos.sum()))
        return Vector(most.vbuuids, most.seqnos)

    patch.setattr(stream_restart, "streams_begin", largest)


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
    what_is_missing_of_a_connection_is_not_noticed(patch)


def older_build_is_kept(patch: Patch) -> None:
    """What an index holds of an older build counts for the next one."""
    newer = Tracker.newer_builds

    def kept(self: Tracker, record: Any) -> dict[int, int]:
        for index_id, build in newer(self, record).items():
            tracked = self.indexes[index_id]
            tracked.state = tracked.state._replace(build=build)
            self.look_up_again()
            self.dirty.states.add(index_id)
        return {}

    patch.setattr(Tracker, "newer_builds", kept)


def what_a_build_lacks_is_not_sent_again(patch: Patch) -> None:
    """No host ever seems to have read what was sent after a backfill."""
    patch.setattr(Host, "has_read", lambda self, connection, vbucket: 0)


def what_is_missing_of_a_connection_is_not_noticed(patch: Patch) -> None:
    follow = Chains.follow

    def trusting(self: Chains, *given: Any) -> str:
        place = follow(self, *given)
        return NEXT if place == AFTER_A_HOLE else place

    patch.setattr(Chains, "follow", trusting)


def part_of_a_seqno_counts_for_all_of_it(patch: Patch) -> None:
    apply = Tracker.apply

    def hasty(self: Tracker, record: Any, *rest: Any) -> Any:
        return apply(self, replace(record, continued=False), *rest)

    patch.setattr(Tracker, "apply", hasty)
