"""What a node makes of the `commit` topic: the Authority, the state, the prepared transaction.

Pure. It takes one record after the other: it folds the Authority, keeps a proposal until its
verdict, and installs what was committed. `durability` brings all of that into the node's store.
`full_sync` finds the state again if the node does not have it.

Invariants:

* `state` is what the node shows. It changes only by a verdict that was read back. It begins with
  the state of the store, or of a full synchronisation; the log has the digest of either.
* In the store, entities, the Authority and the prepared transaction belong to one applied offset.
"""

from __future__ import annotations

from typing import NamedTuple

from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.durability import Durability, checkpoint
from coordinator.core.consensus.effects import Follow, Halt, Note, Publish
from coordinator.core.consensus.full_sync import FullSync
from coordinator.core.consensus.inputs import Entry, PreparedTransaction, Restored, Started
from coordinator.core.consensus.peers import PeersView
from coordinator.core.consensus.separation import legacy_outcomes
from coordinator.core.consensus.signals import Result, Synchronised, TransactionInstalled
from coordinator.core.consensus.synchroniser import Sealed
from coordinator.core.consensus.view import (
    CATCHING_UP,
    FOLLOWING,
    SYNCHRONISING,
    Surroundings,
    Tokens,
)
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import (
    Event,
    OutcomesForgotten,
    OutcomesSeparated,
    ReadBarrier,
    TransactionCommitted,
    TransactionProposed,
)
from coordinator.core.model.types import Cas, Instant, Offset, TxnId


class FollowerUpdate(NamedTuple):
    """What a record did: the Authority before it, and why it changed nothing, if it did not."""

    before: AuthorityState | None
    void: str


class Followed(NamedTuple):
    """What a follower holds, and what is around it: so its own parts see it, as of now."""

    config: NodeConfig
    now: Instant
    peers: PeersView
    phase: str
    applied: int
    authority: AuthorityState | None
    state: StateContext
    state_known: bool
    prepared: PreparedTransaction | None
    outcomes: OutcomeWindow


class Follower:
    """One node's copy of everything that the log says, as of one applied offset."""

    def __init__(self, codec: EntityCodec, tokens: Tokens, counters: Counters) -> None:
        self._codec = codec
        self._counters = counters
        self.phase = CATCHING_UP
        self.applied = -1
        self.authority: AuthorityState | None = None
        self.state: StateContext = states.EMPTY
        self.state_known = False
        self.prepared: PreparedTransaction | None = None
        """The prepared transaction: a proposal that waits for its verdict."""
        self.outcomes = OutcomeWindow(codec)
        self.durability = Durability(tokens)
        self.full_sync = FullSync(tokens, counters)

    def _seen(self, view: Surroundings) -> Followed:
        """Return what this holds now: the view of `durability` and `full_sync`."""
        return Followed(
            config=view.config,
            now=view.now,
            peers=view.peers,
            phase=self.phase,
            applied=self.applied,
            authority=self.authority,
            state=self.state,
            state_known=self.state_known,
            prepared=self.prepared,
            outcomes=self.outcomes,
        )

    def holds(self, txn: TxnId) -> bool:
        """Tell whether this is the prepared transaction."""
        return self.prepared is not None and self.prepared.proposal.txn == txn

    # -- start -------------------------------------------------------------------------------

    def begin(self, view: Surroundings, event: Started) -> list[Result]:
        """Go on from what the store holds; where the log does not, begin with nothing."""
        restored = event.restored
        if restored is not None and restored.applied >= event.log_end:
            message = (
                f"commit ends at offset {event.log_end}, this node has applied "
                f"{restored.applied}: the log was lost or replaced"
            )
            return [Halt("log_lost", message, final=True)]
        found: list[Result] = []
        if restored is not None and restored.applied + 1 >= event.log_start:
            found = self._restore(view, restored)
            if any(isinstance(result, Halt) for result in found):
                return found
        else:
            self.applied = event.log_start - 1
            self.durability.unsaved.wipe = True
        return [*found, Follow(Offset(self.applied + 1))]

    def _restore(self, view: Surroundings, restored: Restored) -> list[Result]:
        self.applied = restored.applied
        self.authority = authority = restored.authority
        self.state = restored.state
        self.state_known = True
        self.prepared = restored.prepared
        self.outcomes.restore(restored.outcomes, view.now)
        if authority is None:
            return self.durability.restored(self._seen(view), 0)
        return (
            differs(self.state.digest, authority.digest, "the store")
            or differs(self.outcomes.digest, authority.outcomes_digest, "outcomes in the store")
            or self.durability.restored(self._seen(view), authority.log_next)
        )

    # -- the log -----------------------------------------------------------------------------

    def fold(self, entry: Entry) -> FollowerUpdate:
        """Fold one record into the Authority."""
        before = self.authority
        self.authority, void = authorities.fold(before, entry.offset, entry.record)
        self.applied = entry.offset
        if before is None and self.authority is not None:
            self.outcomes.begin(self.authority.outcomes_digest)
        if not void and not isinstance(entry.record, ReadBarrier):
            self.durability.unsaved.needed = True
        return FollowerUpdate(before, void)

    def proposed(self, entry: Entry, before: AuthorityState | None) -> None:
        """A proposal was opened: it is prepared here from now on."""
        assert isinstance(entry.record, TransactionProposed)
        self.prepared = PreparedTransaction(entry.offset, entry.record, entry.raw)
        self.durability.opened(before)

    def rolled_back(self, txn: TxnId) -> None:
        """The verdict *rollback* was read."""
        if self.holds(txn):
            self.prepared = None
        self._counters.transactions_rolled_back += 1

    def drop_prepared(self) -> None:
        """A claim or a resignation has closed what was open."""
        self.prepared = None

    def committed(
        self, view: Surroundings, record: TransactionCommitted, computed: StateContext | None
    ) -> list[Result]:
        """The verdict *commit* was read: switch the prepared transaction in.

        This is the one place where a transaction becomes visible. `computed` is the state that the
        verdict leads to, if this node, as master, has computed it already.
        """
        prepared, self.prepared = self.prepared, None
        wrong = self._remember(view, record)
        if wrong:
            return wrong
        if prepared is None or prepared.proposal.txn != record.txn:
            return self.chain_broken(f"the proposal of {record.txn} was not seen")
        self._counters.transactions_committed += 1
        mutations = prepared.proposal.mutations
        if not self.state_known:
            self.full_sync.add_commit(Sealed(mutations, record.cas, record.state_digest))
            return []
        after = computed or states.evolve(self.state, zip(mutations, record.cas, strict=True))
        wrong = differs(after.digest, record.state_digest, str(record.txn))
        if wrong:
            return wrong
        events = tuple(
            Event(mutation, record.txn, number, len(mutations), record.cas[number])
            for number, mutation in enumerate(mutations)
        )
        published = Publish(self.state, events)
        self.state = after
        self._counters.mutations_installed += len(mutations)
        for mutation in mutations:
            self.durability.unsaved.changes[mutation.key] = after.get(mutation.key)
        return [published, TransactionInstalled(record, mutations)]

    def chain_broken(self, why: str) -> list[Result]:
        """The chain has a gap here: what this node shows can no longer be trusted."""
        if not self.state_known:
            return []
        return [Halt("gap", f"a gap in the commit topic: {why}", rebuild=True)]

    # -- outcomes of requests ----------------------------------------------------------------

    def _remember(self, view: Surroundings, record: TransactionCommitted) -> list[Result]:
        """Take the outcomes that a transaction brought, and forget those that it says."""
        if record.outcomes:
            self._add_outcomes(view, record.cas[-1], record.outcomes)
        return self._forget(record.outcomes_forgotten, record.outcomes_digest)

    def _add_outcomes(self, view: Surroundings, cas: Cas, value: bytes) -> None:
        self.durability.unsaved.outcomes[cas] = self.outcomes.add(cas, value, view.now)

    def _forget(self, up_to: int, digest: int) -> list[Result]:
        gone = self.outcomes.forget(up_to)
        self.durability.unsaved.outcomes.update(dict.fromkeys(gone))
        if self.outcomes.agrees(digest):
            return []
        return differs(self.outcomes.digest, digest, f"outcomes from CAS {up_to} on")

    def forgotten(self, record: OutcomesForgotten) -> list[Result]:
        """An idle master has forgotten outcomes."""
        return self._forget(record.up_to, record.outcomes_digest)

    def separated(self, view: Surroundings, record: OutcomesSeparated) -> list[Result]:
        """Outcomes leave the state, whose digest changes; a synchronisation begins anew."""
        for value in record.groups:
            self._add_outcomes(view, self._codec.decode_outcomes(value).cas, value)
        found = self.full_sync.begin(self._seen(view)) if self.full_sync.is_active else []
        if not self.state_known:
            return found
        keys = legacy_outcomes(self.state)
        self.state = states.without(self.state, keys)
        self.durability.unsaved.changes.update(dict.fromkeys(keys))
        what = "the state without outcomes"
        return found + differs(self.state.digest, record.state_digest, what)

    # -- the end of the log ------------------------------------------------------------------

    def caught_up(self, view: Surroundings) -> list[Result]:
        """The log has been folded to its end: the state is known, or must be synchronised."""
        if self.state_known or self.authority is None or self.authority.last_cas == 0:
            self.state_known = True
            self.phase = FOLLOWING
            self.durability.unsaved.needed = True
            return [Note(f"caught up at offset {self.applied}, CAS {self.state.cas}")]
        self.phase = SYNCHRONISING
        self._counters.full_synchronisations += 1
        seen = self._seen(view)
        return [self.durability.save(checkpoint(seen, None)), *self.full_sync.begin(seen)]

    def synchronised(self, view: Surroundings, found: Synchronised) -> list[Result]:
        """The state was found: from here on this node follows."""
        self.state = state = found.state
        self.state_known = True
        self.phase = FOLLOWING
        count = len(state.entities)
        note = f"synchronised from {found.source}: {count} entities at CAS {state.cas}"
        return [Note(note), *self.durability.replaced(self._seen(view))]

    def batch_ended(self, view: Surroundings) -> list[Result]:
        """All records that came together were folded: save what they changed."""
        seen = self._seen(view)
        found = self.durability.save_installed(seen)
        found += self.durability.save_prepared(seen)
        return found + self.full_sync.resolve(seen)


def differs(digest: int, expected: int, what: str) -> list[Result]:
    """Return what stops a node where something does not fold to what it must."""
    if digest == expected:
        return []
    message = f"{what} folds to digest {digest:032x}, not to {expected:032x}"
    return [Halt("digest_mismatch", message, rebuild=True)]
