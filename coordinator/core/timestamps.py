"""Timestamps over a bucket's vbuckets: so far, from where on streams are to begin again.

Pure, on whole arrays; inputs are never changed or shared. Seqnos of different branches (vbuuids)
are not compared: a position whose branch the vbucket has left is a rollback's business, and is
reported instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coordinator.core.stream_records import FailoverBranch
from coordinator.core.vectors import Numbers, Vector

NOTHING = np.uint64(0)


class Restart(NamedTuple):
    """Where streams begin again; `branched` vbuckets have lost what somebody holds."""

    vector: Vector
    branched: tuple[int, ...]


def restart(
    participants: Sequence[Vector], logs: Mapping[int, Sequence[FailoverBranch]]
) -> Restart:
    """Return the restart timestamp: for each vbucket the smallest of the participants' seqnos.

    `participants` are the high watermarks of the active indexers, of the same length; who holds
    nothing of a vbucket (vbuuid and seqno 0) makes it begin at 0. `logs` are the failover logs,
    newest branch first, of the vbuckets of which they are known. Each position keeps its own
    vbuuid. A vbucket is branched where a participant's position lies on no part of its history
    that is left: its position is the smallest there is, but a stream will be refused there.
    Source: seed 003, "UPR connection during bootstrap". ValueError: no participants, or vectors
    that differ in length.
    """
    if not participants:
        raise ValueError("no participants")
    first = participants[0]
    if any(len(vector) != len(first) for vector in participants):
        raise ValueError("the participants' vectors differ in length")
    vbuuids, seqnos = first.vbuuids, first.seqnos
    branched = _branched(first, logs)
    for vector in participants[1:]:
        lower = (vector.seqnos < seqnos) | ((vector.seqnos == seqnos) & (vector.vbuuids == NOTHING))
        seqnos = np.where(lower, vector.seqnos, seqnos)
        vbuuids = np.where(lower, vector.vbuuids, vbuuids)
        branched |= _branched(vector, logs)
    return Restart(Vector(vbuuids, seqnos), tuple(sorted(branched)))


def _branched(vector: Vector, logs: Mapping[int, Sequence[FailoverBranch]]) -> set[int]:
    """Return the vbuckets in which a position is on no part of the history that is left."""
    newest = newest_vbuuids(len(vector), logs)
    known = newest != NOTHING
    doubtful = known & (vector.vbuuids != newest) & (vector.seqnos != NOTHING)
    return {
        int(vbucket)
        for vbucket in np.flatnonzero(doubtful)
        if not is_shared(
            logs[int(vbucket)], int(vector.vbuuids[vbucket]), int(vector.seqnos[vbucket])
        )
    }


def newest_vbuuids(vbuckets: int, logs: Mapping[int, Sequence[FailoverBranch]]) -> Numbers:
    """Return the current vbuuid of each vbucket, 0 where its failover log is not known."""
    newest = np.zeros(vbuckets, np.uint64)
    for vbucket, log in logs.items():
        if log and vbucket < vbuckets:
            newest[vbucket] = log[0].vbuuid
    return newest


def is_shared(log: Sequence[FailoverBranch], vbuuid: int, seqno: int) -> bool:
    """Tell whether a vbucket still has the history `vbuuid` up to `seqno`.

    An older branch is shared up to where the next newer one began.
    """
    began: int | None = None
    for branch in log:
        if branch.vbuuid == vbuuid:
            return began is None or seqno <= began
        began = branch.seqno
    return seqno == 0
