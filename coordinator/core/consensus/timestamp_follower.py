"""What a node knows of timestamps, and how it asks for an early stability timestamp. Pure."""

from __future__ import annotations

from coordinator.core.consensus.effects import Ask, Note, SendDeadLetter
from coordinator.core.consensus.inputs import StabilityRequired, TimestampEntry
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView
from coordinator.core.model.records import DeadLetter, Unreadable
from coordinator.core.model.stream_records import PromotionRequested
from coordinator.core.timestamps import board as boards

PROMOTION_PAUSE_MS = 500
"""So often, at most, a bucket's next stability timestamp is asked for."""


class TimestampFollower:
    """Folds the topics `stability` and `restart` into a board."""

    def __init__(self) -> None:
        self.board: boards.Board = boards.EMPTY
        self._asked_until_ms: dict[str, int] = {}
        """By bucket: its next stability timestamp is not asked for again before."""

    def read(self, view: NodeView, entry: TimestampEntry) -> list[Result]:
        """Fold one record; one that is of no use is a dead letter."""
        found: list[Result] = []
        if isinstance(entry.record, Unreadable):
            problem = entry.record.reason
        else:
            self.board, problem, note = boards.fold(self.board, entry.record, view.now)
            if note:
                found.append(Note(note))
        if problem:
            at = (entry.topic, 0, entry.offset)
            found.append(SendDeadLetter(DeadLetter(*at, problem, entry.raw, view.now.wall_ms)))
        return found

    def required(self, view: NodeView, event: StabilityRequired) -> list[Result]:
        """Ask for the next timestamp of a bucket to come soon: for all scans at once, now and then.

        Who waits says so again and again; what is lost on the way is asked again.
        """
        now, bucket = view.now, event.bucket
        if now.mono_ms < self._asked_until_ms.get(bucket, 0) or view.state.bucket(bucket) is None:
            return []
        self._asked_until_ms[bucket] = now.mono_ms + PROMOTION_PAUSE_MS
        return [Ask(PromotionRequested(bucket, event.wait_ms, now.wall_ms))]
