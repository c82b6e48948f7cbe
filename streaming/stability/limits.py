"""What follows when time has passed in ticks, and an expected record did not come.

Pure, but for the object itself, which lives for one batch.

begin_held_ms     a BEGIN that was held for so long takes over, and a restart is asked for. A
                  restart is also asked for a vbucket that has had no owner for so long; again after
                  `sync_missing_ms`, then after twice as long, and so on. If no failover log names
                  the branch of a vbucket by then, there is an enquiry.
end_unmatched_ms  an END whose BEGIN did not come for so long: a restart, unless the vbucket's owner
                  was heard after it.
sync_missing_ms   an owner that has sent no SYNC for so long: one enquiry until it sends one. SYNCs
                  whose BEGIN did not come are forgotten; if nobody owns their vbucket, it counts as
                  one that has lost its owner.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.core.model.stream_records import SYNC_MISSING
from coordinator.core.timestamps.bucket_state import (
    MISSING,
    NEVER,
    REFUSED,
    UNTIMED,
    Array,
    Question,
    frozen,
)
from streaming.stability.announcements import Announcer
from streaming.stability.ownership import Ownership
from streaming.stability.positions import Positions
from streaming.stability.vbuckets import set_on

BEGIN_HELD, END_UNMATCHED, NO_OWNER = ("begin_held", "end_unmatched", "no_owner")


class Limits:
    """The limits of a bucket at one tick; `fold.Batch` explains `unwatched_ms`."""

    def __init__(
        self, owners: Ownership, positions: Positions, announcer: Announcer, unwatched_ms: int
    ) -> None:
        self.owners, self.positions, self.announcer = owners, positions, announcer
        self.rows = owners.rows
        self.now_ms, self.settings = announcer.now_ms, announcer.settings
        self.unwatched_ms = unwatched_ms

    def look(self, early: Array, questions: list[Question]) -> tuple[Array, list[Question]]:
        """Look at all limits, and return the early SYNCs and the questions that are left."""
        early = self._start_times(early)
        early = self._forget_early_syncs(early)
        self._give_held()
        self._end_unmatched()
        self._ask_for_owners()
        self._enquire()
        return early, [self._later(question) for question in questions]

    def _start_times(self, early: Array) -> Array:
        """What was read before the first tick was read now; what was waited for waits longer."""
        self.rows.set_on(self.unwatched_ms)
        early = early.copy()
        set_on(early["since_ms"], self.unwatched_ms, self.now_ms)
        self.owners.set_on(self._later)
        self.announcer.time_heard()
        return frozen(early)

    def _later(self, timed: Any) -> Any:
        """Return something that has a `since_ms`, set on in the same way."""
        since = timed.since_ms + self.unwatched_ms
        later = self.now_ms if timed.since_ms == UNTIMED else min(since, self.now_ms)
        return timed if later == timed.since_ms else timed._replace(since_ms=later)

    def _due(self, since_ms: int, limit_ms: int) -> bool:
        return self.now_ms - since_ms >= limit_ms

    def _forget_early_syncs(self, early: Array) -> Array:
        """Forget old SYNCs without a BEGIN; whose vbucket nobody owns has lost its owner."""
        over = self.now_ms - early["since_ms"] >= self.settings.sync_missing_ms
        if not over.any():
            return early
        vbuckets = np.unique(early["vbucket"][over])
        unowned = vbuckets[~self.rows.owned[vbuckets]]
        self.rows.lose(unowned, self.now_ms - self.settings.sync_missing_ms)
        return frozen(early[~over])

    def _give_held(self) -> None:
        owners, limit = self.owners, self.settings.begin_held_ms
        late = sorted(
            vbucket
            for vbucket, waiting in owners.held.items()
            if any(self._due(held.since_ms, limit) for held in waiting)
        )
        silent = self.rows.projector[late].tolist()
        for vbucket in late:
            owners.give(vbucket)
        self.positions.judge(np.array(late, np.int64))
        self.announcer.restart(BEGIN_HELD, late, silent)

    def _end_unmatched(self) -> None:
        limit = self.settings.end_unmatched_ms
        found: dict[int, int] = {}
        for vbucket, end in self.owners.unmatched(lambda since_ms: self._due(since_ms, limit)):
            found[vbucket] = end.projector
            if not self.rows.owned[vbucket]:
                self.rows.lose(np.array([vbucket]), end.since_ms)
                self.rows.ask(np.array([vbucket]))
        affected = sorted(found)
        self.announcer.restart(END_UNMATCHED, affected, [found[vbucket] for vbucket in affected])

    def _ask_for_owners(self) -> None:
        """Ask for a restart of vbuckets that nobody streams, more and more rarely."""
        rows, now = self.rows, self.now_ms
        lost, asked = rows.lost_ms, rows.asked_ms
        first = (asked == NEVER) & (now - lost >= self.settings.begin_held_ms)
        pause = np.maximum(self.settings.sync_missing_ms, asked - lost)
        again = (asked != NEVER) & (now - asked >= pause)
        due = (lost != NEVER) & (first | again) & (rows.enquired & REFUSED == 0)
        rows.ask(due)
        affected = np.flatnonzero(due).tolist()
        self.announcer.restart(NO_OWNER, affected, rows.projector[due].tolist())

    def _enquire(self) -> None:
        rows, now = self.rows, self.now_ms
        missing = rows.owned & (now - rows.heard_ms >= self.settings.sync_missing_ms)
        for vbucket in np.flatnonzero(missing & (rows.enquired & MISSING == 0)).tolist():
            self.positions.enquire(vbucket, SYNC_MISSING, MISSING)
        doubt = rows.doubt_ms
        overdue = (doubt != NEVER) & (now - doubt >= self.settings.begin_held_ms)
        for vbucket in np.flatnonzero(overdue).tolist():
            self.positions.regressed(vbucket)
        self.announcer.tell_enquiries()
