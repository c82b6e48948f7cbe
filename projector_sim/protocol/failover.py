"""The failover log of a vbucket: which histories it has had, and where a stream may begin.

Each time that a vbucket may have lost mutations it begins a branch: a new vbuuid, and the last
seqno that it still has. Seqnos are comparable under one vbuuid only. The log is newest first, its
seqnos never ascend, and the vbucket shares with an older branch what lies up to the next newer one.
Pure. The rule is the one of the Database Change Protocol (failover logs, stream requests).
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.core.model.types import Seqno, Vbuuid

BRANCHES_MAX = 25
"""Older branches are forgotten: who comes from one of them starts at 0."""


class Branch(NamedTuple):
    """A history, and the seqno after which it differs from the one before."""

    vbuuid: Vbuuid
    seqno: Seqno


FailoverLog = tuple[Branch, ...]


def branched(log: FailoverLog, vbuuid: Vbuuid, seqno: Seqno) -> FailoverLog:
    """Return the log of a vbucket that has lost what came after `seqno`.

    A branch that began later shares no more than that with it, either: its entry says so.
    """
    older = (Branch(branch.vbuuid, min(branch.seqno, seqno)) for branch in log)
    return (Branch(vbuuid, seqno), *older)[:BRANCHES_MAX]


def shared_seqno(log: FailoverLog, high_seqno: Seqno, vbuuid: Vbuuid) -> Seqno | None:
    """Return up to where the history `vbuuid` is this vbucket's; None: it is not known here."""
    last = high_seqno
    for branch in log:
        if branch.vbuuid == vbuuid:
            return last
        last = branch.seqno
    return None


def rollback_seqno(
    log: FailoverLog,
    high_seqno: Seqno,
    vbuuid: Vbuuid,
    start_seqno: Seqno,
    snapshot: tuple[Seqno, Seqno] | None = None,
) -> Seqno | None:
    """Return to where one who has (`vbuuid`, `start_seqno`) must roll back; None: nowhere.

    `snapshot` is (start, end) of the snapshot that `start_seqno` lies in, if it was not read to
    its end. A mutation before `start_seqno` may be missing in it, for a newer one of the same key
    that comes later. If that one was lost, the snapshot must be read again from its start.
    """
    if start_seqno == 0:
        return None
    begin, end = snapshot or (start_seqno, start_seqno)
    if not begin <= start_seqno <= end:
        raise ValueError(f"seqno {start_seqno} is not in the snapshot {begin} to {end}")
    if start_seqno in (begin, end):
        begin = end = start_seqno
    shared = shared_seqno(log, high_seqno, vbuuid)
    if shared is None:
        return Seqno(0)
    return None if end <= shared else min(begin, shared)
