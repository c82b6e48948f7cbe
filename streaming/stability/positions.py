"""How far each vbucket was sent: what its owner says, checked against the branch it is on.

Pure, but for the object itself, which lives for one batch. SYNCs of one bucket come as columns, a
million at once when the application has to catch up. All but changes of branches is computed on
whole arrays. On one branch a position never goes back. It moves to another branch if that contains
it, or if its vbucket has lost it: then nobody can hold it any more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.stream_records import ORDINAL_MAX, SEQNO_REGRESSED, STREAM_REFUSED
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Numbers
from coordinator.core.timestamps.algorithms import Logs, Succession, succession
from coordinator.core.timestamps.bucket_state import (
    EARLY,
    NEVER,
    REFUSED,
    REGRESSED,
    Array,
    frozen,
)
from streaming.stability.grouping import firsts, grouped
from streaming.stability.ownership import Ownership, Refusal

EARLY_PER_VBUCKET_MAX = 4


class Syncs(NamedTuple):
    """SYNCs of one bucket in any order: columns of one length, an entry for each."""

    vbucket: NDArray[np.int64]
    projector: NDArray[np.int64]
    connection: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    vbuuid: Numbers
    seqno: Numbers

    @classmethod
    def none(cls) -> Syncs:
        """Return no SYNCs."""
        signed, unsigned = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        return cls(signed, signed, signed, signed, unsigned, unsigned)

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Syncs:
        """Return those that a mask or places choose."""
        return Syncs(
            self.vbucket[chosen],
            self.projector[chosen],
            self.connection[chosen],
            self.ordinal[chosen],
            self.vbuuid[chosen],
            self.seqno[chosen],
        )


class Enquiry(NamedTuple):
    """A vbucket may have been rolled back; `vbuuid` and `seqno` are from the SYNC that shows it.

    Until then it `stood` at this branch and seqno.
    """

    vbucket: int
    reason: str
    vbuuid: Vbuuid
    seqno: Seqno
    projector: int
    connection: int
    stood: tuple[Vbuuid, Seqno]


def sound(syncs: Syncs, vbuckets: int | NDArray[np.int64]) -> NDArray[np.bool_]:
    """Tell which SYNCs can be looked at: whose numbers can be what they are said to be.

    `vbuckets` is how many the bucket has, or that of each SYNC.
    """
    return (
        (syncs.vbucket >= 0)
        & (syncs.vbucket < vbuckets)
        & (syncs.projector >= 0)
        & (syncs.connection >= 0)
        & (syncs.ordinal >= 0)
        & (syncs.ordinal <= ORDINAL_MAX)
    )


class Positions:
    """The current positions of a bucket, and what its owners say."""

    def __init__(self, owners: Ownership, logs: Logs) -> None:
        self.owners, self.rows = owners, owners.rows
        self.logs = logs
        self._enquiries: list[Enquiry] = []

    # -- SYNC ------------------------------------------------------------------------------------

    def apply(self, syncs: Syncs) -> NDArray[np.bool_]:
        """Apply the SYNCs that count now; tell which are left."""
        mine = self.owners.counts(syncs.vbucket, syncs.connection, syncs.ordinal)
        self._advance(syncs if mine.all() else syncs.only(mine))
        return ~mine

    def _advance(self, syncs: Syncs) -> None:
        """Take SYNCs of owners: the greatest seqno of each vbucket, branch after branch."""
        vbuckets = syncs.vbucket
        if not len(vbuckets):
            return
        self.rows.note_owners(vbuckets)
        strange = syncs.vbuuid != self.rows.seen_vbuuid[vbuckets]
        if strange.any():
            mixed = np.zeros(len(self.rows), np.bool_)
            mixed[vbuckets[strange]] = True
            odd = mixed[vbuckets]
            self._in_turn(syncs.only(odd))
            syncs = syncs.only(~odd)
        self.rows.note_seqnos(syncs.vbucket, syncs.seqno)

    def _in_turn(self, syncs: Syncs) -> None:
        """Take SYNCs of vbuckets whose branch changes: one branch after the other."""
        order = np.lexsort((syncs.ordinal, syncs.vbuuid, syncs.vbucket))
        rows = syncs.only(order)
        first = firsts(rows.vbucket, rows.vbuuid)
        starts = np.flatnonzero(first)
        highest = np.maximum.reduceat(rows.seqno, starts)
        lasts = np.append(starts[1:], len(first)) - 1
        turns = np.lexsort((rows.ordinal[lasts], rows.vbucket[lasts]))
        for turn in turns.tolist():
            vbucket, seqno = int(rows.vbucket[starts[turn]]), Seqno(int(highest[turn]))
            vbuuid = Vbuuid(int(rows.vbuuid[starts[turn]]))
            known, said = self.rows.seen(vbucket)
            if vbuuid == known:
                seqno = max(seqno, said)
            else:
                self.judge(np.array([vbucket]))
            self.rows.note_seqno_on(vbucket, vbuuid, seqno)

    def kept(self, rest: Syncs, since: NDArray[np.int64]) -> Array:
        """Return what is kept of SYNCs that do not count: those whose BEGIN may still come.

        `since` is when each was read. Of each connection and vbucket the last one is kept, under
        the time of its first; of too many those that came last.
        """
        may = self.owners.may_count(rest.vbucket, rest.connection, rest.ordinal)
        rest, since = rest.only(may), since[may]
        groups, count = grouped(rest.connection, rest.vbucket, len(self.rows))
        newest, first_ms = np.full(count, NEVER, np.int64), np.full(count, ORDINAL_MAX, np.int64)
        np.maximum.at(newest, groups, rest.ordinal)
        np.minimum.at(first_ms, groups, since)
        lasts = np.zeros(count, np.int64)
        rows = np.flatnonzero(rest.ordinal == newest[groups])
        lasts[groups[rows]] = rows
        kept = np.zeros(count, EARLY)
        for name in Syncs._fields:
            kept[name] = getattr(rest, name)[lasts]
        kept["since_ms"] = first_ms
        kept = kept[np.lexsort((kept["vbucket"], kept["connection"], kept["since_ms"]))]
        return frozen(kept[-EARLY_PER_VBUCKET_MAX * len(self.rows) :])

    # -- branches --------------------------------------------------------------------------------

    def judge(self, vbuckets: NDArray[np.int64]) -> None:
        """Move current positions up to what owners have said, where nothing is lost by it."""
        rows = self.rows
        old, new = rows.vbuuid[vbuckets], rows.seen_vbuuid[vbuckets]
        empty = (rows.seqno[vbuckets] == 0) & (
            (rows.seen_seqno[vbuckets] != 0) | (old == 0) | (old == new)
        )
        plain = vbuckets[(old == new) | empty]
        rows.advance(plain)
        rows.trust(plain)
        for vbucket in vbuckets[(old != new) & ~empty].tolist():
            self._cross(vbucket)

    def _cross(self, vbucket: int) -> None:
        """Judge one vbucket whose owner is on another branch."""
        rows, log = self.rows, self.logs.get(vbucket, ())
        (vbuuid, seqno), (seen_vbuuid, seen_seqno) = rows.position(vbucket), rows.seen(vbucket)
        verdict = succession(log, vbuuid, seqno, seen_vbuuid)
        if verdict is Succession.COVERED:
            if seen_seqno >= seqno:
                rows.cross(vbucket)
            rows.trust(np.array([vbucket]))
        elif verdict is Succession.LATE:
            rows.settle(vbucket)
        elif verdict is Succession.LOST:
            self.regressed(vbucket)
            rows.cross(vbucket)
            rows.trust(np.array([vbucket]))
        else:
            rows.doubt(vbucket)

    # -- enquiries -------------------------------------------------------------------------------

    def regressed(self, vbucket: int) -> None:
        """Enquire, once, about a vbucket whose owner is on a branch without what was sent."""
        self.enquire(vbucket, SEQNO_REGRESSED, REGRESSED)

    def refused(self, refusal: Refusal) -> None:
        """Enquire about a vbucket that a store does not stream from where it was asked to."""
        stood = self.rows.position(refusal.vbucket)
        self._once(REFUSED, Enquiry(refusal.vbucket, STREAM_REFUSED, *refusal[1:], stood))

    def enquire(self, vbucket: int, reason: str, bit: int) -> None:
        """Enquire about a vbucket as its owner has spoken of it, unless that is out already."""
        rows = self.rows
        owner = int(rows.projector[vbucket]), int(rows.connection[vbucket])
        stood = rows.position(vbucket)
        self._once(bit, Enquiry(vbucket, reason, *rows.seen(vbucket), *owner, stood))

    def _once(self, bit: int, enquiry: Enquiry) -> None:
        if self.rows.enquire(enquiry.vbucket, bit):
            self._enquiries.append(enquiry)

    def enquiries(self) -> list[Enquiry]:
        """Return what was enquired about since the last call."""
        found, self._enquiries = self._enquiries, []
        return found
