"""Copies of the StateContext on the topic `snapshots`: for peers, for replay, and to trim the log.

Pure. A node gives a copy to a peer that cannot find the state elsewhere. A master has one taken
whenever the commit topic has grown by as much as the state weighs, and by `snapshot_bytes` at
least: so all copies together cost no more than the log. What is a copy of the Authority at the
same CAS, the `AuthoritySnapshot`, stands in the log just before it.

The log is trimmed behind the newest copy of which three things hold: it was read back; every active
node has what came before it on its own disk; and no outcome of a request is remembered that was
recorded before it, since those come from the log alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.core.authority import SNAPSHOTS_MAX
from coordinator.core.authority_state import SnapshotInfo
from coordinator.core.effects import Beat, TakeSnapshot, Trim
from coordinator.core.inputs import SnapshotTaken
from coordinator.core.records import CopyOffered, CopyRequested, SnapshotKept

if TYPE_CHECKING:
    from coordinator.core.node import Node


@dataclass(frozen=True, slots=True)
class Order:
    """A copy that is being written: for a peer's question, or to be kept."""

    token: int
    copy: int
    cas: int
    digest: int
    question: CopyRequested | None = None
    commit_offset: int = 0


class Copies:
    """The copies that one node writes, one at a time."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._kept: SnapshotKept | None = None
        self._order: Order | None = None
        self._trimmed = 0

    # -- writing -----------------------------------------------------------------------------

    def asked(self, question: CopyRequested) -> None:
        """A peer asks for a copy: it gets one if this node is meant, and has what is needed."""
        node = self.node
        meant = question.of == node.config.node and question.node != node.config.node
        if meant and node.is_following and node.state.cas >= question.cas:
            self._take(question=question)

    def snapshot_read(self, offset: int) -> None:
        """This master's snapshot of the Authority stands at `offset`: copy the state as well."""
        self._take(commit_offset=offset)

    def _take(self, *, question: CopyRequested | None = None, commit_offset: int = 0) -> None:
        node, state = self.node, self.node.state
        if self._order is not None:
            return
        token = node.token()
        copy = (node.config.incarnation << 20) % 2**62 + token
        self._order = Order(token, copy, state.cas, state.digest, question, commit_offset)
        node.emit(TakeSnapshot(token, copy, state))

    def taken(self, event: SnapshotTaken) -> None:
        """The copy stands there whole, or it does not: then nobody hears of it."""
        order, node = self._order, self.node
        if order is None or event.token != order.token:
            return
        self._order = None
        if event.problem:
            node.note(f"no copy of the state was written: {event.problem}")
            node.counters.copies_failed += 1
            return
        node.counters.copies_written += 1
        config = node.config
        if order.question is not None:
            asked = order.question
            node.emit(
                Beat(
                    CopyOffered(
                        config.node,
                        asked.node,
                        asked.incarnation,
                        asked.round,
                        order.copy,
                        event.offset,
                    )
                )
            )
        elif node.master is not None:
            self._kept = SnapshotKept(
                node.master.epoch,
                order.copy,
                order.cas,
                order.digest,
                event.offset,
                order.commit_offset,
                node.now.wall_ms,
            )

    def kept_by(self, epoch: int) -> list[SnapshotKept]:
        """Return the copy that was read back in this epoch, and of which the log does not know."""
        kept, self._kept = self._kept, None
        return [kept] if kept is not None and kept.epoch == epoch else []

    # -- the log -----------------------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Tell whether the log has grown enough for another copy, and has room to note it."""
        node = self.node
        enough = max(node.config.snapshot_bytes, node.state.size)
        if node.unsnapped_bytes < enough or self._order is not None or self._kept is not None:
            return False
        return len(self._untrimmed()) < SNAPSHOTS_MAX

    def _untrimmed(self) -> list[SnapshotInfo]:
        """Return the copies behind which the log was not trimmed yet, the oldest first."""
        authority = self.node.authority
        found = authority.snapshots if authority else ()
        return [info for info in found if info.commit_offset > self._trimmed]

    def trim(self) -> None:
        """Have the log trimmed as far as nobody needs what comes before."""
        untrimmed = self._untrimmed()
        if not untrimmed:
            return
        durable, oldest = self._durable(), self.node.outcomes.oldest_cas
        free = [
            info
            for info in untrimmed
            if info.commit_offset <= durable and (not oldest or info.cas < oldest)
        ]
        if free:
            self._trimmed = free[-1].commit_offset
            self.node.note(f"trimming the log up to offset {self._trimmed}")
            self.node.emit(Trim(self._trimmed))

    def _durable(self) -> int:
        """Return the offset of `commit` up to which every active node has all on its disk; -1
        where that is not known, or too few are active."""
        node = self.node
        authority = node.authority
        if authority is None or len(authority.members) < authority.minimum:
            return -1
        found = node.keeper.durable
        for number, member in authority.members.items():
            if number == node.config.node:
                continue
            peer = node.peers.get(number)
            if peer is None or peer.beat.incarnation != member.incarnation:
                return -1
            found = min(found, peer.beat.durable)
        return found
