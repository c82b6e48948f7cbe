"""How a node without the state finds it again: from which source, and in which order.

Pure. Four sources hold the StateContext, and any of them may be damaged:

1. `statecontext`, compacted: the smallest to read.
2. A copy on `snapshots` that the Authority names, with the events after it on `history`.
3. `history` from its beginning.
4. A copy that a peer writes when it is asked.

The node takes the first source that folds to a digest which the commit topic has for its CAS. If
there is none, it tries all of them again: meanwhile the master may have repaired `statecontext`,
or a peer may have come back. No operator is needed as long as one source is intact.

Invariant: a node takes no state whose digest is not in the commit topic.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Beat, Note, Synchronise
from coordinator.core.consensus.inputs import SyncRead
from coordinator.core.consensus.signals import Result, SendBarrier, Synchronised
from coordinator.core.consensus.synchroniser import Mismatch, Sealed, Synchroniser
from coordinator.core.consensus.view import FollowedView, Tokens
from coordinator.core.model.records import CopyOffered, CopyRequested
from coordinator.core.model.types import Cas, Offset

DOUBLED_MAX = 6
"""The patience with a peer's copy is doubled so many times: from 5 s to five minutes."""

COMPACTED, SNAPSHOT, HISTORY, COPY = "statecontext", "snapshot", "history", "copy"


class Source(NamedTuple):
    """A source: which kind; for a copy, its number and its offset on `snapshots`."""

    kind: str
    offset: Offset = Offset(0)
    copy: int = 0


class FullSync:
    """The full synchronisation of one node, from its begin until a state is found."""

    def __init__(self, tokens: Tokens, counters: Counters) -> None:
        self._tokens = tokens
        self._counters = counters
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

    def begin(self, view: FollowedView) -> list[Result]:
        """The log has been folded to its end, and the state is not known: look for it."""
        assert view.authority is not None
        kept = [Source(SNAPSHOT, s.offset, s.copy) for s in reversed(view.authority.snapshots)]
        self._left = deque((Source(COMPACTED), *kept, Source(HISTORY), Source(COPY)))
        return self._next(view)

    def _next(self, view: FollowedView) -> list[Result]:
        """Turn to the next source; after the last one begin anew."""
        if not self._left:
            return self.begin(view)
        return self._read(view, self._left.popleft())

    def _read(self, view: FollowedView, source: Source) -> list[Result]:
        authority = view.authority
        assert authority is not None
        self._source = source
        self._synchroniser = Synchroniser(
            base_cas=authority.last_cas,
            base_digest=authority.digest,
            without_outcomes=authority.outcomes_apart,
        )
        self._token = self._tokens.next()
        if source.kind == COPY:
            return self._ask(view, self._synchroniser.base_cas)
        return [
            Note(f"full synchronisation to CAS {authority.last_cas} from {source.kind}"),
            Synchronise(self._token, source.kind, authority.last_cas, source.offset, source.copy),
        ]

    # -- a peer's copy -----------------------------------------------------------------------

    def _ask(self, view: FollowedView, base_cas: Cas) -> list[Result]:
        """Ask a peer that has the state for a copy of it, another one each time."""
        config, peers = view.config, view.peers
        self._asked_ms = view.now.mono_ms
        others = [
            number
            for number, peer in sorted(peers.nodes.items())
            if number != config.node and peers.alive(peer) and peer.beat.cas >= base_cas
        ]
        if not others:
            return []
        giver = others[self._round % len(others)]
        self._round += 1
        question = CopyRequested(config.node, config.incarnation, giver, self._token, base_cas)
        return [Note(f"asking node {giver} for a copy of the state"), Beat(question)]

    def offered(self, view: FollowedView, record: CopyOffered) -> list[Result]:
        """A peer has written the copy that was asked for."""
        config = view.config
        if (record.to, record.incarnation) != (config.node, config.incarnation):
            return []
        if self._source.kind != COPY or record.round != self._token or not self.is_active:
            return []
        self._source = Source(COPY, record.offset, record.copy)
        self._asked_ms = view.now.mono_ms
        return [
            Note(f"full synchronisation from the copy of node {record.node}"),
            Synchronise(self._token, COPY, Cas(0), record.offset, record.copy),
        ]

    def tick(self, view: FollowedView) -> list[Result]:
        """A copy that does not come is asked for again, of another peer."""
        if not self.is_active or self._source.kind != COPY:
            return []
        # A large state takes long to copy: each time that nothing came, it is given twice as long.
        times = min(max(0, self._round - 1), DOUBLED_MAX)
        if view.now.mono_ms - self._asked_ms > view.config.copy_wait_ms << times:
            return self._next(view)
        return []

    # -- what is read ------------------------------------------------------------------------

    def read(self, view: FollowedView, event: SyncRead) -> list[Result]:
        """Take what the source has; behind its end a barrier tells which commits there are."""
        if self._synchroniser is None or event.token != self._token:
            return []
        self._asked_ms = view.now.mono_ms
        self._synchroniser.add_held(event.held)
        self._synchroniser.add_events(event.events, event.done)
        barrier: list[Result] = [SendBarrier()] if event.done else []
        return barrier + self.resolve(view)

    def add_commit(self, sealed: Sealed) -> None:
        """A commit was folded meanwhile."""
        if self._synchroniser is not None:
            self._synchroniser.add_commit(sealed)

    def barrier_read(self, view: FollowedView) -> list[Result]:
        """All commits were folded that the source can have shown events of."""
        if self._synchroniser is None or not self._synchroniser.complete:
            return []
        self._synchroniser.settled = True
        return self.resolve(view)

    def resolve(self, view: FollowedView) -> list[Result]:
        """Take the state as soon as it is known to be right; turn to the next source if it is
        known to be wrong."""
        if self._synchroniser is None:
            return []
        if not view.outcomes.is_whole:
            self.problem = "outcomes of requests are missing that the log does not have"
            return []
        result = self._synchroniser.resolve()
        if isinstance(result, Mismatch):
            self.problem = f"{self._source.kind}: {result.message}"
            self._counters.sources_rejected += 1
            return [Note(f"not to be used: {self.problem}"), *self._next(view)]
        if isinstance(result, StateContext):
            self._synchroniser = None
            self.problem = ""
            return [Synchronised(result, self._source.kind)]
        return []
