"""A node without the state finds it again: from which source, and in which order.

Pure. Four sources hold the StateContext, and any of them may be damaged:

1. `statecontext`, compacted: the smallest to read.
2. A copy on `snapshots` that the Authority knows of, with its tail on `history`.
3. `history` from its beginning.
4. A copy that a peer writes because it is asked for one.

The first that folds to a digest which the commit topic has for its CAS wins. Where none does they
are tried again: the master repairs `statecontext`, and a peer may come back. No operator is needed
as long as one source is whole.

Invariant: no state is taken whose digest is not in the commit topic.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core.effects import Beat, Synchronise
from coordinator.core.inputs import SyncRead
from coordinator.core.records import CopyOffered, CopyRequested
from coordinator.core.state import StateContext
from coordinator.core.synchroniser import Mismatch, Sealed, Synchroniser

if TYPE_CHECKING:
    from coordinator.core.node import Node

DOUBLED_MAX = 6
"""The patience with a peer's copy is doubled so many times: from 5 s to five minutes."""

COMPACTED, SNAPSHOT, HISTORY, COPY = "statecontext", "snapshot", "history", "copy"


class Source(NamedTuple):
    """Where to read: for a copy, from which offset of `snapshots`, and which one."""

    kind: str
    offset: int = 0
    copy: int = 0


class FullSync:
    """The full synchronisation of one node, from its begin until a state is found."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.problem = ""
        """Why the last source was of no use; empty while none has failed."""
        self._synchroniser: Synchroniser | None = None
        self._token = 0
        self._source = Source(COMPACTED)
        self._left: deque[Source] = deque()
        self._round = 0
        """So many copies were asked for."""
        self._asked_ms = 0

    @property
    def is_active(self) -> bool:
        return self._synchroniser is not None

    # -- sources -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The log has been folded to its end, and the state is not known: look for it."""
        authority = self.node.authority
        assert authority is not None
        kept = [Source(SNAPSHOT, s.offset, s.copy) for s in reversed(authority.snapshots)]
        self._left = deque((Source(COMPACTED), *kept, Source(HISTORY), Source(COPY)))
        self._next()

    def _next(self) -> None:
        """Turn to the next source; after the last one begin anew."""
        if not self._left:
            self.begin()
            return
        self._read(self._left.popleft())

    def _read(self, source: Source) -> None:
        node = self.node
        assert node.authority is not None
        authority = node.authority
        self._source = source
        self._synchroniser = Synchroniser(
            authority.last_cas, authority.digest, without_outcomes=authority.outcomes_apart
        )
        self._token = node.token()
        if source.kind == COPY:
            self._ask()
            return
        node.note(f"full synchronisation to CAS {authority.last_cas} from {source.kind}")
        node.emit(
            Synchronise(self._token, source.kind, authority.last_cas, source.offset, source.copy)
        )

    # -- a peer's copy -----------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask a peer that has the state for a copy of it, another one each time."""
        node = self.node
        assert self._synchroniser is not None
        self._asked_ms = node.now.mono_ms
        base_cas = self._synchroniser.base_cas
        others = [
            number
            for number, peer in sorted(node.peers.items())
            if number != node.config.node and node.alive(peer) and peer.beat.cas >= base_cas
        ]
        if not others:
            return
        giver = others[self._round % len(others)]
        self._round += 1
        node.note(f"asking node {giver} for a copy of the state")
        config = node.config
        node.emit(
            Beat(CopyRequested(config.node, config.incarnation, giver, self._token, base_cas))
        )

    def offered(self, record: CopyOffered) -> None:
        """A peer has written the copy that was asked for."""
        config = self.node.config
        if (record.to, record.incarnation) != (config.node, config.incarnation):
            return
        if self._source.kind != COPY or record.round != self._token or not self.is_active:
            return
        node = self.node
        self._source = Source(COPY, record.offset, record.copy)
        node.note(f"full synchronisation from the copy of node {record.node}")
        node.emit(Synchronise(self._token, COPY, 0, record.offset, record.copy))
        self._asked_ms = node.now.mono_ms

    def tick(self) -> None:
        """A copy that does not come is asked for again, of another peer."""
        if not self.is_active or self._source.kind != COPY:
            return
        # A large state takes long to copy: each time that nothing came, it is given twice as long.
        times = min(max(0, self._round - 1), DOUBLED_MAX)
        if self.node.now.mono_ms - self._asked_ms > self.node.config.copy_wait_ms << times:
            self._next()

    # -- what is read ------------------------------------------------------------------------

    def read(self, event: SyncRead) -> None:
        """Take what the source has; behind its end a barrier tells which commits there are."""
        if self._synchroniser is None or event.token != self._token:
            return
        self._asked_ms = self.node.now.mono_ms
        self._synchroniser.add_held(event.held)
        self._synchroniser.add_events(event.events, event.done)
        if event.done:
            self.node.pulse.send()
        self.resolve()

    def add_commit(self, sealed: Sealed) -> None:
        """A commit was folded meanwhile."""
        if self._synchroniser is not None:
            self._synchroniser.add_commit(sealed)

    def barrier_read(self) -> None:
        """All commits were folded that the source can have shown events of."""
        if self._synchroniser is not None and self._synchroniser.complete:
            self._synchroniser.settled = True
            self.resolve()

    def resolve(self) -> None:
        """Take the state as soon as it is known to be right; turn to the next source if it is
        known to be wrong."""
        if self._synchroniser is None:
            return
        if not self.node.outcomes.is_whole:
            self.problem = "outcomes of requests are missing that the log does not have"
            return
        result = self._synchroniser.resolve()
        if isinstance(result, Mismatch):
            self.problem = f"{self._source.kind}: {result.message}"
            self.node.note(f"not to be used: {self.problem}")
            self.node.counters.sources_rejected += 1
            self._next()
        elif isinstance(result, StateContext):
            self._synchroniser = None
            self.problem = ""
            self.node.synchronised(result, self._source.kind)
