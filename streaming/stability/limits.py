"""What follows when time has gone by in ticks, and something that should have come did not.

Pure, but for the object itself, which lives for one batch.

begin_held_ms     a BEGIN that is held takes over, and a restart is asked for; so it is for a
                  vbucket that has lost its owner, and again after `sync_missing_ms`, then twice as
                  long, and so on. A branch that no failover log names by then is enquired about.
end_unmatched_ms  an END whose BEGIN did not come: a restart, unless the vbucket's owner was heard
                  after it.
sync_missing_ms   an owner that says nothing: one enquiry until it does. SYNCs whose BEGIN did not
                  come are forgotten; if nobody owns their vbucket, it counts as lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import SYNC_MISSING
from coordinator.core.timestamps.bucket_state import (
    MISSING,
    NEVER,
    NOBODY,
    OPEN,
    REFUSED,
    UNTIMED,
    Array,
    Question,
    frozen,
)
from streaming.stability.announcements import Announcer
from streaming.stability.ownership import Ownership
from streaming.stability.positions import Positions

BEGIN_HELD, END_UNMATCHED, NO_OWNER = ("begin_held", "end_unmatched", "no_owner")


class Limits:
    """The limits of a bucket at one tick; see `stability.Batch` for `unwatched_ms`."""

    def __init__(
        self, owners: Ownership, positions: Positions, announcer: Announcer, unwatched_ms: int
    ) -> None:
        self.owners, self.positions, self.announcer = owners, positions, announcer
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
        places, owners = self.owners.places, self.owners
        for name in ("heard_ms", "lost_ms", "asked_ms", "doubt_ms"):
            self._set_on(places[name])
        early = early.copy()
        self._set_on(early["since_ms"])
        for vbucket, waiting in owners.held.items():
            owners.held[vbucket] = tuple(self._later(held) for held in waiting)
        for key, ends in owners.ends.items():
            owners.ends[key] = tuple(self._later(end) for end in ends)
        for indexer, heard in self.announcer.heard.items():
            if heard.since_ms == UNTIMED:
                self.announcer.heard[indexer] = heard._replace(since_ms=self.now_ms)
        return frozen(early)

    def _set_on(self, times: NDArray[np.int64]) -> None:
        """Set times on by what nobody watched, to the tick at most."""
        if not self.unwatched_ms and not (times == UNTIMED).any():
            return
        later = np.minimum(times + self.unwatched_ms, self.now_ms)
        times[times > UNTIMED] = later[times > UNTIMED]
        times[times == UNTIMED] = self.now_ms

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
        owners = self.owners
        vbuckets = np.unique(early["vbucket"][over])
        unowned = (owners.connection[vbuckets] == NOBODY) | (owners.ended[vbuckets] != OPEN)
        lost = vbuckets[unowned & (owners.lost_ms[vbuckets] == NEVER)]
        owners.lost_ms[lost] = self.now_ms - self.settings.sync_missing_ms
        return frozen(early[~over])

    def _give_held(self) -> None:
        owners, limit = self.owners, self.settings.begin_held_ms
        late = sorted(
            vbucket
            for vbucket, waiting in owners.held.items()
            if any(self._due(held.since_ms, limit) for held in waiting)
        )
        silent = owners.projector[late].tolist()
        for vbucket in late:
            owners.give(vbucket)
        self.positions.judge(np.array(late, np.int64))
        self.announcer.restart(BEGIN_HELD, late, silent)

    def _end_unmatched(self) -> None:
        owners, places, limit = self.owners, self.owners.places, self.settings.end_unmatched_ms
        found: dict[int, int] = {}
        for (connection, vbucket), ends in list(owners.ends.items()):
            old = [end for end in ends if self._due(end.since_ms, limit)]
            if not old:
                continue
            del owners.ends[connection, vbucket]
            if left := tuple(end for end in ends if end not in old):
                owners.ends[connection, vbucket] = left
            last = max(old, key=lambda end: end.since_ms)
            owned = owners.connection[vbucket] != NOBODY and owners.ended[vbucket] == OPEN
            if owned and places["heard_ms"][vbucket] > last.since_ms:
                continue
            found[vbucket] = last.projector
            if not owned:
                if owners.lost_ms[vbucket] == NEVER:
                    owners.lost_ms[vbucket] = last.since_ms
                places["asked_ms"][vbucket] = self.now_ms
        affected = sorted(found)
        self.announcer.restart(END_UNMATCHED, affected, [found[vbucket] for vbucket in affected])

    def _ask_for_owners(self) -> None:
        """Ask for a restart of vbuckets that nobody streams, more and more rarely."""
        places, now = self.owners.places, self.now_ms
        lost, asked = places["lost_ms"], places["asked_ms"]
        first = (asked == NEVER) & (now - lost >= self.settings.begin_held_ms)
        pause = np.maximum(self.settings.sync_missing_ms, asked - lost)
        again = (asked != NEVER) & (now - asked >= pause)
        due = (lost != NEVER) & (first | again) & (places["enquired"] & REFUSED == 0)
        asked[due] = now
        affected = np.flatnonzero(due).tolist()
        self.announcer.restart(NO_OWNER, affected, places["projector"][due].tolist())

    def _enquire(self) -> None:
        owners, places, now = self.owners, self.owners.places, self.now_ms
        owned = (owners.connection != NOBODY) & (owners.ended == OPEN)
        missing = owned & (now - places["heard_ms"] >= self.settings.sync_missing_ms)
        for vbucket in np.flatnonzero(missing & (owners.enquired & MISSING == 0)).tolist():
            self.positions.enquire(vbucket, SYNC_MISSING, MISSING)
        doubt = places["doubt_ms"]
        overdue = (doubt != NEVER) & (now - doubt >= self.settings.begin_held_ms)
        for vbucket in np.flatnonzero(overdue).tolist():
            self.positions.regressed(vbucket)
        self.announcer.tell_enquiries()
