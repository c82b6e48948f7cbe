"""Timestamps over a bucket's vbuckets: where indexers snapshot, and where streams begin again.

Pure, on whole arrays; inputs are never changed or shared, and numbers never overflow. Seqnos of
different branches (vbuuids) are not compared: only a failover log can tell whether a position of
one branch is part of another one's history. Whatever is computed from a stable vector holds at
least as much of every vbucket, but where the vbucket has lost that: there it follows what is left.
For a restart timestamp such a position is a rollback's business; it is reported, not moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np

from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.core.model.vectors import Numbers, Vector

NOTHING = np.uint64(0)
ONE = np.uint64(1)

Log = Sequence[FailoverBranch]
"""The histories of a vbucket, newest first."""

Logs = Mapping[int, Log]
"""Those of the vbuckets of which they are known."""


class Restart(NamedTuple):
    """Where streams begin again; `branched` vbuckets have lost what somebody holds."""

    vector: Vector
    branched: tuple[int, ...]


class Watermark(NamedTuple):
    """What an indexer holds, and whether its mutation queue grows although it has free space."""

    vector: Vector
    leaning: bool = False


# -- branches --------------------------------------------------------------------------------


class Succession(Enum):
    """What a failover log says of a position on an old branch, seen from a new one."""

    COVERED = "covered"
    """It is part of the new branch's history."""
    LOST = "lost"
    """The new branch has begun before it, or has nothing in common with it."""
    LATE = "late"
    """The new branch is the older one of the two."""
    UNKNOWN = "unknown"
    """The log does not have the new branch."""


def surviving(log: Log, vbuuid: Vbuuid, seqno: Seqno) -> int:
    """Return up to which seqno a vbucket still has what lay on branch `vbuuid` up to `seqno`.

    That is all of the newest branch, an older one up to where any newer one began, and nothing of
    a branch that the log does not have.
    """
    shared = seqno
    for branch in log:
        if branch.vbuuid == vbuuid:
            return shared
        shared = min(shared, branch.seqno)
    return 0


def is_shared(log: Log, vbuuid: Vbuuid, seqno: Seqno) -> bool:
    """Tell whether a vbucket still has the history `vbuuid` up to `seqno`."""
    return surviving(log, vbuuid, seqno) == seqno


def succession(log: Log, old: Vbuuid, seqno: Seqno, new: Vbuuid) -> Succession:
    """Return what becomes of `seqno` of branch `old` where branch `new` is spoken of."""
    names = [branch.vbuuid for branch in log]
    if new not in names:
        return Succession.UNKNOWN
    place = names.index(new)
    if old in names[:place]:
        return Succession.LATE
    return Succession.COVERED if is_shared(log[place:], old, seqno) else Succession.LOST


def newest_vbuuids(vbuckets: int, logs: Logs) -> Numbers:
    """Return the current vbuuid of each vbucket, 0 where its failover log is not known."""
    newest = np.zeros(vbuckets, np.uint64)
    for vbucket, log in logs.items():
        if log and vbucket < vbuckets:
            newest[vbucket] = log[0].vbuuid
    return newest


def _verdict(held: Vector, old: Vector, vbucket: int, logs: Logs) -> Succession:
    """Return what becomes of one vbucket's old position on the branch that is held now."""
    vbuuid, seqno = old.position(vbucket)
    now, _ = held.position(vbucket)
    return succession(logs.get(vbucket, ()), vbuuid, seqno, now)


# -- stability --------------------------------------------------------------------------------


def promote(stable: Vector, current: Vector, logs: Logs) -> Vector | None:
    """Return `stable` moved up to `current`, vbucket by vbucket; None: nothing has advanced.

    On one branch a seqno never becomes less. A position goes over to another branch from seqno 0,
    or if the failover log says that it is part of that branch; then, too, its seqno never becomes
    less. If the log says that the vbucket has lost it, nobody can hold it any more: it goes over
    to what is current. Else it stays, and holds nobody back. Source: specification, "stability
    timestamp". ValueError: they differ in length.
    """
    _same_length(stable, current)
    named = current.vbuuids != NOTHING
    same = stable.vbuuids == current.vbuuids
    empty = stable.seqnos == NOTHING
    first = named & ~same & empty & ((current.seqnos != NOTHING) | (stable.vbuuids == NOTHING))
    moved = first | (same & (current.seqnos > stable.seqnos))
    doubtful = named & ~same & ~empty
    for vbucket in np.flatnonzero(doubtful).tolist():
        verdict = _verdict(current, stable, vbucket, logs)
        advances = (
            verdict is Succession.COVERED and current.seqnos[vbucket] >= stable.seqnos[vbucket]
        )
        moved[vbucket] = advances or verdict is Succession.LOST
    if not moved.any():
        return None
    return Vector(
        np.where(moved, current.vbuuids, stable.vbuuids),
        np.where(moved, current.seqnos, stable.seqnos),
    )


def mean_by_heartbeat(watermarks: Sequence[Watermark], stable: Vector, logs: Logs) -> Vector | None:
    """Return `stable` moved up to the mean of what indexers hold; None: nothing has advanced.

    `watermarks` are those of indexers that host an index and were heard lately: who is silent, or
    hosts nothing, is left out by the caller. Per vbucket only one branch counts: the newest one of
    its failover log if anybody is on it, else the one on which most are (of several: where
    `stable` is, else the greatest vbuuid). Who holds nothing of a vbucket, vbuuid and seqno 0, is
    on no branch: an indexer that has only just come does not hold the others back. The mean is
    rounded down; where the indexer that is ahead leans, the result lies half way from there to it,
    never past it.

    It is not bounded by what SYNC said: the algorithm is for a coordinator that is behind, and
    what an indexer holds was sent. Source: specification, "algorithm to compute stability-timestamp
    based on hw-timestamp". ValueError: the vectors differ in length.
    """
    if not watermarks:
        return None
    for watermark in watermarks:
        _same_length(stable, watermark.vector)
    vbuuids = np.stack([w.vector.vbuuids for w in watermarks])
    seqnos = np.stack([w.vector.seqnos for w in watermarks])
    branches = _branches(vbuuids, seqnos, stable, newest_vbuuids(len(stable), logs))
    counts = vbuuids == branches
    held = np.where(counts, seqnos, NOTHING)
    mean = _mean(held, counts.sum(axis=0).astype(np.uint64))
    fastest = held.max(axis=0)
    leaning = np.array([w.leaning for w in watermarks])[:, None]
    ahead = np.any(leaning & counts & (held == fastest), axis=0)
    leant = np.where(ahead, mean + (fastest - mean) // np.uint64(2), mean)
    return promote(stable, Vector(branches, leant), logs)


def _mean(held: Numbers, count: Numbers) -> Numbers:
    """Return the floor of each column's sum by its count, without ever making the sum."""
    count = np.maximum(count, ONE)
    remainders = (held % count).sum(axis=0, dtype=np.uint64)
    return np.asarray((held // count).sum(axis=0, dtype=np.uint64) + remainders // count)


def _branches(vbuuids: Numbers, seqnos: Numbers, stable: Vector, newest: Numbers) -> Numbers:
    """Return the branch that counts in each vbucket; 0: nobody says any."""
    chosen = np.zeros(len(stable), np.uint64)
    most = np.full(len(stable), -1, np.int64)
    for row in vbuuids:
        votes = ((vbuuids == row) & (seqnos != NOTHING)).sum(axis=0)
        # What decides between equals, in one number: votes first, then where `stable` is.
        weight = np.where(row == NOTHING, -1, votes * 2 + (row == stable.vbuuids))
        better = (weight > most) | ((weight == most) & (row > chosen))
        chosen, most = np.where(better, row, chosen), np.where(better, weight, most)
    on_newest = (newest != NOTHING) & np.any(vbuuids == newest, axis=0)
    return np.where(on_newest, newest, chosen)


# -- restart --------------------------------------------------------------------------------


def restart(
    participants: Sequence[Vector], logs: Logs, vbuckets: Iterable[int] | None = None
) -> Restart:
    """Return the restart timestamp: for each vbucket the smallest of the participants' seqnos.

    `participants` are the high watermarks of the active indexers, of the same length; who holds
    nothing of a vbucket (vbuuid and seqno 0) makes it begin at 0. `logs` are the failover logs,
    newest branch first, of the vbuckets of which they are known. Each position keeps its own
    vbuuid. A vbucket is branched where a participant's position lies on no part of its history
    that is left: its position is the smallest there is, but a stream will be refused there.

    With `vbuckets`, the vector has one entry for each of them, in their order, and only they can
    be branched. Source: specification, "UPR connection during bootstrap". ValueError: no
    participants, or vectors that differ in length. IndexError: a vbucket that the vectors do not
    have.
    """
    if not participants:
        raise ValueError("no participants")
    first = participants[0]
    if any(len(vector) != len(first) for vector in participants):
        raise ValueError("the participants' vectors differ in length")
    chosen = np.arange(len(first)) if vbuckets is None else np.fromiter(vbuckets, np.int64)
    vbuuids, seqnos = first.vbuuids[chosen], first.seqnos[chosen]
    branched = _branched(first, logs)
    for vector in participants[1:]:
        others, theirs = vector.vbuuids[chosen], vector.seqnos[chosen]
        lower = (theirs < seqnos) | ((theirs == seqnos) & (others == NOTHING))
        seqnos = np.where(lower, theirs, seqnos)
        vbuuids = np.where(lower, others, vbuuids)
        branched |= _branched(vector, logs)
    return Restart(Vector(vbuuids, seqnos), tuple(sorted(branched.intersection(chosen.tolist()))))


def streams_begin(participants: Sequence[Vector], logs: Logs) -> Vector:
    """Return a restart timestamp of all vbuckets with which no stream is refused for ever.

    A history that does not know the branch of a position may have forgotten it: the vbucket was
    made anew, or has lost something too often. Nothing more is ever heard of it then. So its stream
    begins at 0, under the branch that there is, and by its BEGIN indexers see what they have to
    lose. If it is the history that is old, that costs time only. ValueError: as `restart`.
    """
    found = restart(participants, logs)
    vbuuids, seqnos = found.vector.vbuuids.copy(), found.vector.seqnos.copy()
    for vbucket in found.branched:
        log = logs[vbucket]
        if not _knows(log, vbuuids[vbucket]):
            vbuuids[vbucket], seqnos[vbucket] = log[0].vbuuid, 0
    return Vector(vbuuids, seqnos)


def _branched(vector: Vector, logs: Logs) -> set[int]:
    """Return the vbuckets in which a position is on no part of the history that is left."""
    newest = newest_vbuuids(len(vector), logs)
    known = newest != NOTHING
    doubtful = known & (vector.vbuuids != newest) & (vector.seqnos != NOTHING)
    return {
        vbucket
        for vbucket in np.flatnonzero(doubtful).tolist()
        if not is_shared(logs[vbucket], *vector.position(vbucket))
    }


def lost_positions(vector: Vector, logs: Logs) -> set[int]:
    """Return the vbuckets that have lost a position, as the newest history of each says.

    A history that does not know the branch of a position may be older than that: it says nothing.
    """
    return {
        vbucket
        for vbucket in _branched(vector, logs)
        if _knows(logs[vbucket], vector.vbuuids[vbucket])
    }


def is_lost(log: Log, vbuuid: Vbuuid, seqno: Seqno) -> bool:
    """Tell the same of one vbucket: `log` says that `vbuuid` has ended below `seqno`."""
    return _knows(log, vbuuid) and not is_shared(log, vbuuid, seqno)


def _knows(log: Log, vbuuid: Vbuuid) -> bool:
    """Tell whether a history has this branch."""
    return any(branch.vbuuid == vbuuid for branch in log)


def _same_length(one: Vector, other: Vector) -> None:
    if len(one) != len(other):
        raise ValueError(f"vectors of {len(one)} and {len(other)} vbuckets")
