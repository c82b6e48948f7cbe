"""Bugs in what is made of the records of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.model.topic_logs import History
from projector_sim.sources import topic_reading
from projector_sim.sources.deletions import DeletionWatch
from projector_sim.sources.topic_reading import TopicReading
from tests.simulation.plane.topics import TopicStore

Patch = pytest.MonkeyPatch


def a_compacted_topic_has_snapshots_anywhere(patch: Patch) -> None:
    def made(self: TopicReading, *parts: Any, is_compacted: bool, **more: Any) -> None:
        known(self, *parts, is_compacted=False, **more)

    known = TopicReading.__init__
    patch.setattr(TopicReading, "__init__", made)


def a_lost_end_is_nobodys_concern(patch: Patch) -> None:
    patch.setattr(topic_reading, "rollback_seqno", lambda *_: None)


def a_topic_made_anew_is_the_same(patch: Patch) -> None:
    known = topic_reading.vbuuid_of
    patch.setattr(topic_reading, "vbuuid_of", lambda topic, *rest: known("topic", *rest))


def a_topic_is_taken_for_a_store(patch: Patch) -> None:
    """An older document of a log stays in the index."""
    patch.setattr(TopicStore, "is_topic", False)


def what_has_no_record_is_waited_for(patch: Patch) -> None:
    known = TopicReading.reach_end
    patch.setattr(TopicReading, "reach_end", lambda self, p, offset: known(self, p, 0))


def a_leader_is_noticed_by_its_records_only(patch: Patch) -> None:
    """And what has no record is not passed."""
    patch.setattr(TopicReading, "note_leaders", lambda self, newest: None)


def what_is_forgotten_is_nobodys_concern(patch: Patch) -> None:
    patch.setattr(History, "may_hide_deletions", lambda *_: False)
    patch.setattr(DeletionWatch, "is_due", lambda *_: False)
