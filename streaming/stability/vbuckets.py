"""The rows of a bucket's vbuckets, while one batch is folded: only this module changes a row.

Pure, but for the object itself, which lives for one batch. Its columns are views that nobody else
can write to; `bucket_state.PLACE` says what they mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Numbers, Vector
from coordinator.core.timestamps.bucket_state import (
    MISSING,
    NEVER,
    NOBODY,
    OPEN,
    REFUSED,
    REGRESSED,
    UNTIMED,
    Array,
    BucketState,
    Held,
    frozen,
)

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Vbuckets:
    """All rows of one bucket. Columns are read-only.

    Large because each method is one kind of event.
    """

    def __init__(self, state: BucketState, now_ms: int) -> None:
        self.now_ms = now_ms
        self._rows = state.places.copy()
        self.vbuuid, self.seqno = self._column("vbuuid"), self._column("seqno")
        self.seen_vbuuid, self.seen_seqno = self._column("seen_vbuuid"), self._column("seen_seqno")
        self.connection, self.projector = self._column("connection"), self._column("projector")
        self.number, self.begun = self._column("number"), self._column("begun")
        self.ended, self.enquired = self._column("ended"), self._column("enquired")
        self.heard_ms, self.lost_ms = self._column("heard_ms"), self._column("lost_ms")
        self.asked_ms, self.doubt_ms = self._column("asked_ms"), self._column("doubt_ms")
        self._touched = np.zeros(len(self._rows), np.bool_)

    def _column(self, name: str) -> NDArray[Any]:
        shown: NDArray[Any] = self._rows[name].view()
        shown.flags.writeable = False
        return shown

    def __len__(self) -> int:
        return len(self._rows)

    # -- what is known -----------------------------------------------------------------------

    @property
    def owned(self) -> Mask:
        """Tell of each vbucket whether a connection owns it now."""
        return np.asarray((self.connection != NOBODY) & (self.ended == OPEN))

    @property
    def current(self) -> Vector:
        """The current position."""
        return Vector(self.vbuuid, self.seqno)

    @property
    def stable(self) -> Vector:
        """The last position that was told as stable."""
        return Vector(self._rows["stable_vbuuid"], self._rows["stable_seqno"])

    def position(self, vbucket: int) -> tuple[Vbuuid, Seqno]:
        """Return the current position of one vbucket."""
        return Vbuuid(int(self.vbuuid[vbucket])), Seqno(int(self.seqno[vbucket]))

    def seen(self, vbucket: int) -> tuple[Vbuuid, Seqno]:
        """Return what the connection of one vbucket said last."""
        return Vbuuid(int(self.seen_vbuuid[vbucket])), Seqno(int(self.seen_seqno[vbucket]))

    def touched(self) -> NDArray[np.intp]:
        """Return the vbuckets of which anything new was read."""
        return np.flatnonzero(self._touched)

    def is_touched(self, vbucket: int) -> bool:
        """Tell whether anything new was read of a vbucket."""
        return bool(self._touched[vbucket])

    def frozen(self) -> Array:
        """Return the rows; nothing changes them any more."""
        return frozen(self._rows)

    # -- owners ------------------------------------------------------------------------------

    def own(self, vbucket: int, offer: Held, end: int) -> None:
        """A connection has a vbucket from its BEGIN on, until `end` if that was read already."""
        row = self._rows[vbucket]
        row["connection"], row["projector"] = offer.connection, offer.projector
        row["number"], row["begun"], row["ended"] = offer.number, offer.ordinal, end
        row["heard_ms"], row["doubt_ms"], row["asked_ms"] = self.now_ms, NEVER, NEVER
        row["lost_ms"] = NEVER if end == OPEN else self.now_ms
        row["enquired"] &= ~(MISSING | REFUSED)
        known = row["vbuuid"] != 0 or row["seqno"] != 0
        # It goes on after `seqno`. Where more is known, or less, that is no news.
        seqno = min(offer.seqno, int(row["seqno"])) if known else offer.seqno
        if not known:
            row["vbuuid"], row["seqno"] = offer.vbuuid, seqno
        row["seen_vbuuid"], row["seen_seqno"] = offer.vbuuid, seqno
        self._touched[vbucket] = True

    def vacate(self, vbucket: int, ordinal: int) -> None:
        """The connection of a vbucket has it no more, from this record on."""
        row = self._rows[vbucket]
        row["ended"], row["lost_ms"], row["asked_ms"] = ordinal, self.now_ms, NEVER

    def lose(self, vbuckets: Rows, since_ms: int) -> None:
        """These vbuckets have had no owner since then, unless that was known already."""
        lost_ms = self._rows["lost_ms"]
        lost_ms[vbuckets[lost_ms[vbuckets] == NEVER]] = since_ms

    def ask(self, vbuckets: Rows | Mask) -> None:
        """A restart of these vbuckets is asked for now, because nobody streams them."""
        self._rows["asked_ms"][vbuckets] = self.now_ms

    # -- positions ---------------------------------------------------------------------------

    def branch(self, vbucket: int) -> None:
        """The failover log of a vbucket was read."""
        self._touched[vbucket] = True

    def note_owners(self, vbuckets: Rows) -> None:
        """The owners of these vbuckets have said something."""
        heard = np.zeros(len(self._rows), np.bool_)
        heard[vbuckets] = True
        self._touched |= heard
        self._rows["heard_ms"][heard] = self.now_ms
        self._rows["enquired"][heard] &= ~MISSING

    def note_seqnos(self, vbuckets: Rows, seqnos: Numbers) -> None:
        """Owners have said how far they are, on the branch that they are on."""
        seen = np.ascontiguousarray(self._rows["seen_seqno"])
        np.maximum.at(seen, vbuckets, seqnos)
        self._rows["seen_seqno"] = seen

    def note_seqno_on(self, vbucket: int, vbuuid: Vbuuid, seqno: Seqno) -> None:
        """The owner of a vbucket has said how far it is on another branch."""
        self._rows["seen_vbuuid"][vbucket], self._rows["seen_seqno"][vbucket] = vbuuid, seqno

    def advance(self, vbuckets: Rows) -> None:
        """Current positions become what was said, on one branch; none becomes less."""
        rows = self._rows
        rows["vbuuid"][vbuckets] = rows["seen_vbuuid"][vbuckets]
        rows["seqno"][vbuckets] = np.maximum(rows["seqno"][vbuckets], rows["seen_seqno"][vbuckets])

    def cross(self, vbucket: int) -> None:
        """The current position of a vbucket goes over to the branch of its owner."""
        row = self._rows[vbucket]
        row["vbuuid"], row["seqno"] = row["seen_vbuuid"], row["seen_seqno"]

    def trust(self, vbuckets: Rows) -> None:
        """The owners of these vbuckets are on a branch that has what was sent before."""
        self.settle(vbuckets)
        self._rows["enquired"][vbuckets] &= ~REGRESSED

    def doubt(self, vbucket: int) -> None:
        """Nobody can tell yet whether the owner's branch has succeeded the current one."""
        if self._rows["doubt_ms"][vbucket] == NEVER:
            self._rows["doubt_ms"][vbucket] = self.now_ms

    def settle(self, vbuckets: Rows | int) -> None:
        """What becomes of the owner's branch is known."""
        self._rows["doubt_ms"][vbuckets] = NEVER

    def enquire(self, vbucket: int, bit: int) -> bool:
        """Note that an enquiry is out; False: it was already."""
        enquired = self._rows["enquired"]
        if enquired[vbucket] & bit:
            return False
        enquired[vbucket] |= bit
        return True

    def promote(self, stable: Vector) -> None:
        """This position is told as stable."""
        self._rows["stable_vbuuid"], self._rows["stable_seqno"] = stable.vbuuids, stable.seqnos

    # -- time --------------------------------------------------------------------------------

    def set_on(self, unwatched_ms: int) -> None:
        """Set times on by what nobody watched; what was before the first tick, is now."""
        for name in ("heard_ms", "lost_ms", "asked_ms", "doubt_ms"):
            set_on(self._rows[name], unwatched_ms, self.now_ms)


def set_on(times: NDArray[np.int64], unwatched_ms: int, now_ms: int) -> None:
    """Set times on by `unwatched_ms`, to now at most; those before the first tick to now."""
    if not unwatched_ms and not (times == UNTIMED).any():
        return
    later = np.minimum(times + unwatched_ms, now_ms)
    times[times > UNTIMED] = later[times > UNTIMED]
    times[times == UNTIMED] = now_ms
