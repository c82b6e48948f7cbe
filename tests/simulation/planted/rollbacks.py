"""Bugs in what happens when the store has lost something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from coordinator.core.leader import rollback_coordinator
from indexer_sim.bucket import bucket as buckets
from indexer_sim.bucket import settlement
from indexer_sim.bucket.settlement import Settlement
from indexer_sim.bucket.snapshots import Timeline, Undo
from indexer_sim.bucket.tracker import Tracker

Patch = pytest.MonkeyPatch


def indexers_keep_what_was_lost(patch: Patch) -> None:
    patch.setattr(Tracker, "lost", lambda self, rollback: {})


def any_snapshot_will_do(patch: Patch) -> None:
    known = Timeline.way_back
    patch.setattr(Timeline, "way_back", lambda self, left, tracker: known(self, {}, tracker))


def only_the_last_change_is_undone(patch: Patch) -> None:
    def hasty(self: Settlement, batch: Any, changes: Iterable[Undo]) -> None:
        last = {(change.index_id, change.document): change for change in changes}
        known(self, batch, last.values())

    known = Settlement.put_back
    patch.setattr(Settlement, "put_back", hasty)


def of_several_keys_one_is_put_back(patch: Patch) -> None:
    known = settlement.places_in
    patch.setattr(settlement, "places_in", lambda entry: known(entry)[:1])


def a_loss_during_a_rollback_is_overlooked(patch: Patch) -> None:
    known = rollback_coordinator.lost_vbuckets

    def overlooked(heard: Any, last: int) -> tuple[int, ...]:
        recovering = any(beat.recovering for beat in heard.beats.values())
        return () if recovering else known(heard, last)

    patch.setattr(rollback_coordinator, "lost_vbuckets", overlooked)


def histories_are_not_compared(patch: Patch) -> None:
    patch.setattr(buckets, "is_lost", lambda log, vbuuid, seqno: False)
