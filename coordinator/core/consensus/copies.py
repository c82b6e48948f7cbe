"""Copies of the StateContext on the topic `snapshots`: for peers, for replay, and to trim the log.

Pure. A node writes a copy for a peer that cannot find the state elsewhere. A master has a copy
written whenever the commit topic has grown by the size of the state, and by `snapshot_bytes` at
least. So all copies together take no more room than the log. Just before the copy the master
writes the Authority at the same CAS to the log: the `AuthoritySnapshot`.

The log is trimmed to the newest `AuthoritySnapshot` for which three things hold: its copy was read
back; every in-sync node has everything before it on its own disk; and the window holds no outcome
of a request that was recorded before it, since only the log has outcomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.core.consensus.authority import SNAPSHOTS_MAX
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Beat, Note, TakeSnapshot, Trim
from coordinator.core.consensus.inputs import SnapshotTaken
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import FOLLOWING, NodeView, Tokens, unique
from coordinator.core.model.authority_state import SnapshotInfo
from coordinator.core.model.records import CopyOffered, CopyRequested, SnapshotKept
from coordinator.core.model.types import Cas, Epoch, Offset


@dataclass(frozen=True, slots=True)
class Order:
    """A copy that is being written: for a peer's question, or to be kept."""

    token: int
    copy: int
    cas: Cas
    digest: int
    question: CopyRequested | None = None
    commit_offset: Offset = Offset(0)


class Copies:
    """The copies that one node writes, one at a time."""

    def __init__(self, tokens: Tokens, counters: Counters) -> None:
        self._tokens = tokens
        self._counters = counters
        self._grown_bytes = 0
        """By how much the log has grown since a copy was last begun."""
        self._is_wanted = False
        """A copy is due, however little the log has grown."""
        self._kept: SnapshotKept | None = None
        self._order: Order | None = None
        self._trimmed = 0

    # -- when one is due ---------------------------------------------------------------------

    def log_grew(self, size_bytes: int) -> None:
        """A record of this size has been folded."""
        self._grown_bytes += size_bytes

    def wanted(self) -> None:
        """A copy of the state of now is needed to let records of `history` go."""
        self._is_wanted = True

    def begun(self) -> None:
        """A copy that was due is being made: the log's growth counts from here on."""
        self._grown_bytes = 0
        self._is_wanted = False

    # -- writing -----------------------------------------------------------------------------

    def asked(self, view: NodeView, question: CopyRequested) -> list[Result]:
        """A peer asks for a copy: it gets one if this node is meant, and has what is needed."""
        number = view.config.node
        meant = question.of == number and question.node != number
        if meant and view.phase == FOLLOWING and view.state.cas >= question.cas:
            return self._take_snapshot(view, question=question)
        return []

    def snapshot_read(self, view: NodeView, offset: Offset) -> list[Result]:
        """This master's snapshot of the Authority stands at `offset`: copy the state as well."""
        return self._take_snapshot(view, commit_offset=offset)

    def _take_snapshot(
        self,
        view: NodeView,
        *,
        question: CopyRequested | None = None,
        commit_offset: Offset = Offset(0),
    ) -> list[Result]:
        if self._order is not None:
            return []
        state, token = view.state, self._tokens.next()
        copy = unique(view, token)
        self._order = Order(token, copy, state.cas, state.digest, question, commit_offset)
        return [TakeSnapshot(token, copy, state)]

    def taken(self, view: NodeView, event: SnapshotTaken, epoch: Epoch | None) -> list[Result]:
        """The copy stands there whole, or it does not: then nobody hears of it.

        `epoch` is the one of which this node is master, None if it is not.
        """
        order = self._order
        if order is None or event.token != order.token:
            return []
        self._order = None
        if event.problem:
            self._counters.copies_failed += 1
            return [Note(f"no copy of the state was written: {event.problem}")]
        self._counters.copies_written += 1
        if order.question is not None:
            asked = order.question
            offer = CopyOffered(
                view.config.node,
                asked.node,
                asked.incarnation,
                asked.round,
                order.copy,
                event.offset,
            )
            return [Beat(offer)]
        if epoch is not None:
            self._kept = SnapshotKept(
                epoch,
                order.copy,
                order.cas,
                order.digest,
                event.offset,
                order.commit_offset,
                view.now.wall_ms,
            )
        return []

    def kept_by(self, epoch: Epoch) -> list[SnapshotKept]:
        """Return the copy that was read back in this epoch, and of which the log does not know."""
        kept, self._kept = self._kept, None
        return [kept] if kept is not None and kept.epoch == epoch else []

    # -- the log -----------------------------------------------------------------------------

    def is_due(self, view: NodeView) -> bool:
        """Tell whether another copy is wanted, or the log has grown enough for one; and whether it
        has room to note it."""
        enough = self._grown_bytes >= max(view.config.snapshot_bytes, view.state.size)
        if not (enough or self._is_wanted) or self._order is not None or self._kept is not None:
            return False
        return len(self._untrimmed(view)) < SNAPSHOTS_MAX

    def _untrimmed(self, view: NodeView) -> list[SnapshotInfo]:
        """Return the copies behind which the log was not trimmed yet, the oldest first."""
        found = view.authority.snapshots if view.authority else ()
        return [info for info in found if info.commit_offset > self._trimmed]

    def trim(self, view: NodeView) -> list[Result]:
        """Have the log trimmed as far as nobody needs what comes before."""
        untrimmed = self._untrimmed(view)
        if not untrimmed:
            return []
        durable, oldest = durable_everywhere(view), view.outcomes.oldest_cas
        free = [
            info
            for info in untrimmed
            if info.commit_offset <= durable and (not oldest or info.cas < oldest)
        ]
        if not free:
            return []
        self._trimmed = free[-1].commit_offset
        return [Note(f"trimming the log up to offset {self._trimmed}"), Trim(self._trimmed)]


def durable_everywhere(view: NodeView) -> int:
    """Return the offset of `commit` up to which every in-sync node has all on its disk; -1 where
    that is not known, or too few are active."""
    authority = view.authority
    if authority is None or len(authority.members) < authority.minimum:
        return -1
    found = view.durable
    for number, member in authority.members.items():
        if number == view.config.node:
            continue
        peer = view.peers.nodes.get(number)
        if peer is None or peer.beat.incarnation != member.incarnation:
            return -1
        found = min(found, peer.beat.durable)
    return found
