"""An IndexManager node as a synchronous `step(input) -> effects`.

It folds the commit topic, keeps the local log, installs what was committed, and synchronises.
Its parts do the rest: `keeper` (the store, and answers to proposals), `election` (claims),
`pulse` (barriers, and whether reading goes on), `master` (only while its claim stands). No Kafka,
no clock, no randomness: the shell and the simulator feed the same code.

Invariants:

* What a node shows (`state`) changes only by a terminal status that was read back.
* A proposal is answered `accepted` only after it is durable in this node's store.
* In the store, entities, the Authority and the local log always belong to one applied offset.
* Only a node whose claim the fold accepted writes anything authoritative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.core import authority as authorities
from coordinator.core import state as states
from coordinator.core import timestamp_board as boards
from coordinator.core.authority_state import AuthorityState
from coordinator.core.commands import Outcome, Reform, StepDown, unknown
from coordinator.core.config import NodeConfig
from coordinator.core.copies import Copies
from coordinator.core.effects import (
    Answer,
    Ask,
    Beat,
    Bury,
    CloseProducer,
    Effect,
    Follow,
    Halt,
    Note,
    Reply,
)
from coordinator.core.election import Election
from coordinator.core.full_sync import FullSync
from coordinator.core.inputs import (
    AcksRead,
    AppendFailed,
    BeatsRead,
    CommitRead,
    DdlRead,
    Ended,
    Entry,
    Examined,
    Input,
    LocalLog,
    MembershipRequested,
    ProducerFailed,
    ProducerOpened,
    ReadRequested,
    Requested,
    Scrubbed,
    SnapshotTaken,
    StabilityRequired,
    Started,
    Stopping,
    Stored,
    StoreFailed,
    StreamsRead,
    SyncRead,
    TailRead,
    Tick,
    TimestampEntry,
    TimestampsRead,
    Written,
)
from coordinator.core.master import TOO_MANY_READERS, Master
from coordinator.core.outcomes import OutcomeWindow
from coordinator.core.ports import EntityCodec
from coordinator.core.progress import Progresses
from coordinator.core.pulse import Pulse
from coordinator.core.records import (
    AuthoritySnapshot,
    ClusterFormed,
    ClusterReformed,
    CopyOffered,
    CopyRequested,
    DeadLetter,
    Heartbeat,
    IndexerHeartbeat,
    IndexerRegistered,
    JoinRequested,
    MasterClaimed,
    MasterResigned,
    MemberAdmitted,
    MemberExpired,
    MemberLeft,
    NodeHeartbeat,
    OutcomesForgotten,
    OutcomesSeparated,
    ProjectorHeartbeat,
    ProjectorRegistered,
    ProposalAnswered,
    ReadBarrier,
    TimestampsHeartbeat,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
    Unreadable,
)
from coordinator.core.roles import BOOTSTRAP, MASTER, REPLICA, next_role
from coordinator.core.saving import Keeper
from coordinator.core.separation import legacy_outcomes
from coordinator.core.state import StateContext
from coordinator.core.stream_records import HwHeartbeat, PromotionRequested
from coordinator.core.synchroniser import Sealed
from coordinator.core.types import Instant, TxnId

PROMOTION_PAUSE_MS = 500
"""So often, at most, a bucket's next stability timestamp is asked for."""

CATCHING_UP, SYNCHRONISING, FOLLOWING = "catching-up", "synchronising", "following"

ENTRY_BYTES = 64
"""What a record of the log weighs beside its value."""


@dataclass(slots=True)
class Waiter:
    """A reader who waits until this node has applied a CAS."""

    token: int
    at_least: int
    deadline_ms: int


@dataclass(slots=True)
class Peer:
    """The last heartbeat of another process, and when it was heard (`Node.hearing_ms`)."""

    heard_ms: int
    beat: Any


@dataclass(slots=True)
class Counters:
    """What the node counts for its metrics."""

    transactions_committed: int = 0
    transactions_rolled_back: int = 0
    mutations_installed: int = 0
    void_records: int = 0
    full_synchronisations: int = 0
    sources_rejected: int = 0
    claims: int = 0
    copies_written: int = 0
    copies_failed: int = 0
    scrubs: int = 0
    holes_found: int = 0
    strays_found: int = 0


class Node:
    """One IndexManager: feed it with `step`, carry out what it returns."""

    def __init__(self, config: NodeConfig, codec: EntityCodec) -> None:
        self.config = config
        self.codec = codec
        self.now = Instant(0, 0)
        self.phase = CATCHING_UP
        self.authority: AuthorityState | None = None
        self.state: StateContext = states.EMPTY
        self.state_known = False
        self.applied = -1
        self.log: LocalLog | None = None
        self.role = BOOTSTRAP
        self.keeper = Keeper(self)
        self.pulse = Pulse(self)
        self.election = Election(self)
        self.master: Master | None = None
        self.peers: dict[int, Peer] = {}
        self.indexers: dict[int, Peer] = {}
        self.projectors: dict[int, Peer] = {}
        self.application: Peer | None = None
        """The one that computes timestamps."""
        self._asked_until_ms: dict[str, int] = {}
        """By bucket: its next stability timestamp is not asked for again before."""
        self.progress = Progresses()
        self.timestamps: boards.Board = boards.EMPTY
        self.watermarks: dict[tuple[str, int], HwHeartbeat] = {}
        """By bucket and indexer; only a master hears them."""
        self.counters = Counters()
        self.unsnapped_bytes = 0
        self.has_left = False
        self.hearing_ms = 0
        self._heard_at_ms = 0
        self.outcomes = OutcomeWindow(codec)
        self.full_sync = FullSync(self)
        self.copies = Copies(self)
        self._former: Master | None = None
        self._effects: list[Effect] = []
        self._last_token = 0
        self._beaten_ms = -(10**9)
        self._join_sent: tuple[int, int] = (-1, 0)
        self._waiters: list[Waiter] = []
        self._halted = False

    # -- what the shell asks -----------------------------------------------------------------

    @property
    def is_catching_up(self) -> bool:
        """Tell whether the node still folds the log up to where that ended when it began."""
        return self.phase == CATCHING_UP

    @property
    def is_following(self) -> bool:
        """Tell whether the node has the state, and keeps it up to date."""
        return self.phase == FOLLOWING

    @property
    def is_member(self) -> bool:
        """Tell whether this life of the node is in the active list, and up to date."""
        if not self.is_following or self.authority is None or self.keeper.sick:
            return False
        member = self.authority.members.get(self.config.node)
        return member is not None and member.incarnation == self.config.incarnation

    @property
    def why_not_ready(self) -> str:
        """Say why the node is not ready to serve, or return an empty text."""
        if self.keeper.sick:
            return f"the store refuses writes: {self.keeper.sick}"
        if self.pulse.trouble:
            return self.pulse.trouble
        if not self.is_following:
            problem = f" ({self.full_sync.problem})" if self.full_sync.problem else ""
            return f"{self.phase} at offset {self.applied} of commit{problem}"
        if self.master is not None:
            return "" if self.master.active else "the new master is recovering"
        if self.has_left:
            return "has left the cluster: it returns when it is started again"
        if not self.is_member and self.election.master_alive:
            return "waiting for admission to the active list"
        return "" if self.election.master_alive else self.election.mastership.message

    def _settle_role(self) -> None:
        """Move on to the state that fits, by the one table of transitions."""
        fits = BOOTSTRAP
        if self.master is not None and self.is_following:
            fits = MASTER
        elif self.is_member and self.election.master_alive:
            fits = REPLICA
        self.role = next_role(self.role, fits)

    def step(self, now: Instant, event: Input) -> list[Effect]:
        """Take one input and return the effects that it calls for, to be carried out in order."""
        if self._halted:
            return []
        self.now = now
        HANDLERS[type(event)](self, event)
        if self.master is not None and not self._halted:
            self.master.advance()
        self._settle_role()
        effects, self._effects = self._effects, []
        return effects

    # -- what node and master share ----------------------------------------------------------

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def token(self) -> int:
        """Return a token that no other effect of this node has."""
        self._last_token += 1
        return self._last_token

    def note(self, message: str) -> None:
        self.emit(Note(message))

    def halt(self, code: str, message: str, rebuild: bool = False, final: bool = False) -> None:
        self._halted = True
        self.emit(Halt(code, message, rebuild, final))

    def not_master(self) -> Outcome:
        """Return the answer to a writer who came to the wrong node."""
        return self.election.not_master()

    # -- start -------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        restored = event.restored
        self.election.heard()
        self.pulse.started()
        if restored is not None and restored.applied >= event.log_end:
            self.halt(
                "log_lost",
                f"commit ends at offset {event.log_end}, this node has applied "
                f"{restored.applied}: the log was lost or replaced",
                final=True,
            )
            return
        if restored is not None and restored.applied + 1 >= event.log_start:
            self.applied = restored.applied
            self.authority = restored.authority
            self.state = restored.state
            self.state_known = True
            self.log = restored.log
            self.outcomes.restore(restored.outcomes, self.now)
            if self.authority:
                self._compare(self.state.digest, self.authority.digest, "the store")
                self._compare(
                    self.outcomes.digest, self.authority.outcomes_digest, "outcomes in the store"
                )
            if self._halted:
                return
            self.keeper.restored(self.authority.log_next if self.authority else 0)
        else:
            self.applied = event.log_start - 1
            self.keeper.unsaved.wipe = True
        self.emit(Follow(self.applied + 1))
        self.pulse.send()

    # -- the commit topic --------------------------------------------------------------------

    def _commit_read(self, event: CommitRead) -> None:
        self.pulse.read()
        for entry in event.entries:
            if entry.offset <= self.applied:
                continue
            self._fold(entry)
            if self._halted:
                return
        self.keeper.save_installed()
        self.keeper.save_log()
        self.full_sync.resolve()
        self._serve_waiters()
        self._ask_to_join()

    def _fold(self, entry: Entry) -> None:
        """Fold one record, and do what it means to this node."""
        before = self.authority
        self.authority, void = authorities.fold(before, entry.offset, entry.record)
        self.applied = entry.offset
        self.unsnapped_bytes += len(entry.raw) + ENTRY_BYTES
        if before is None and self.authority is not None:
            self.outcomes.begin(self.authority.outcomes_digest)
        if self.master is not None:
            self.master.read_back(entry.record)
        if void:
            self._void(entry, void)
            return
        acting = ACTIONS.get(type(entry.record))
        if acting is not None:
            self.keeper.unsaved.needed = True
            acting(self, entry, before)
        elif not isinstance(entry.record, ReadBarrier):
            self.keeper.unsaved.needed = True
        if isinstance(entry.record, ReadBarrier):
            self._barrier_read(entry.record)

    def _void(self, entry: Entry, void: str) -> None:
        record = entry.record
        self.counters.void_records += 1
        if self.authority is not None and authorities.is_alarming(record):
            self.halt("void_commit", f"a committed transaction is void: {void}")
        elif isinstance(record, MasterClaimed):
            self.election.claim_is_void(record, void)
        elif isinstance(record, TransactionProposed) and self._holds(record.txn):
            self.keeper.answer_again()
        elif isinstance(record, ReadBarrier):
            self._barrier_read(record)

    def _holds(self, txn: TxnId) -> bool:
        return self.log is not None and self.log.proposal.txn == txn

    def _on_formed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, ClusterFormed)
        self.note(f"cluster {record.cluster_id} formed, roster {list(record.roster)}")

    def _on_claimed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, MasterClaimed)
        self.log = None
        self._depose(f"node {record.node} claimed epoch {record.epoch}")
        if self.election.claimed(record):
            self.counters.claims += 1
            self.master = Master(self, record.epoch)

    def _depose(self, why: str) -> None:
        """The log says that the mastership of this node, if it had any, is over."""
        if self.master is not None:
            self.master.depose(why)
            self._former, self.master = self.master, None
            self.emit(CloseProducer())
        if self._former is not None:
            self._former.settle_rolled_back(why)
            self._former = None

    def _on_resigned(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, MasterResigned)
        self.log = None
        self.election.resigned(record)
        if self.master is not None:
            self.master.membership.resigned()
        self._depose(f"node {record.node} gave epoch {record.epoch} up")

    def _on_proposed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionProposed)
        self.log = LocalLog(entry.offset, record, entry.raw)
        self.keeper.opened(before)
        if self.master is not None:
            self.master.opened(record.txn, entry.offset)

    def _on_committed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionCommitted)
        log, self.log = self.log, None
        self._remember(record)
        if self._halted:
            return
        if log is None or log.proposal.txn != record.txn:
            self.lose_track(f"the proposal of {record.txn} was not seen")
            return
        self.counters.transactions_committed += 1
        if not self.state_known:
            sealed = Sealed(log.proposal.mutations, record.cas, record.state_digest)
            self.full_sync.add_commit(sealed)
            return
        self._install(log, record)
        leader = self.master or self._former
        if leader is not None and not self._halted:
            leader.committed(record)

    def _install(self, log: LocalLog, record: TransactionCommitted) -> None:
        """Switch the local log in: the one place where a node's visible state moves on."""
        mutations = log.proposal.mutations
        ahead = self.master.prepared_state(record) if self.master is not None else None
        after = ahead or states.evolve(self.state, zip(mutations, record.cas, strict=True))
        self._compare(after.digest, record.state_digest, str(record.txn))
        if self._halted:
            return
        before, self.state = self.state, after
        self.counters.mutations_installed += len(mutations)
        for mutation in mutations:
            self.keeper.unsaved.changes[mutation.key] = after.get(mutation.key)
        if self.master is not None:
            self.master.installed(before, mutations)

    def _remember(self, record: TransactionCommitted) -> None:
        """Take the outcomes that a transaction brought, and forget those that it says."""
        cas, forgotten = record.cas[-1], record.outcomes_forgotten
        if record.outcomes:
            self._add_outcomes(cas, record.outcomes)
        self._forget_outcomes(forgotten, record.outcomes_digest)

    def _add_outcomes(self, cas: int, value: bytes) -> None:
        self.keeper.unsaved.outcomes[cas] = self.outcomes.add(cas, value, self.now)

    def _forget_outcomes(self, up_to: int, digest: int) -> None:
        gone = self.outcomes.forget(up_to)
        self.keeper.unsaved.outcomes.update(dict.fromkeys(gone))
        if not self.outcomes.agrees(digest):
            self._compare(self.outcomes.digest, digest, f"outcomes from CAS {up_to} on")

    def _on_forgotten(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, OutcomesForgotten)
        self._forget_outcomes(record.up_to, record.outcomes_digest)

    def _on_separated(self, entry: Entry, before: AuthorityState | None) -> None:
        """Outcomes leave the state, whose digest changes; a synchronisation begins anew."""
        record = entry.record
        assert isinstance(record, OutcomesSeparated)
        for value in record.groups:
            self._add_outcomes(self.codec.decode_outcomes(value).cas, value)
        if self.full_sync.is_active:
            self.full_sync.begin()
        if not self.state_known:
            return
        keys = legacy_outcomes(self.state)
        self.state = states.without(self.state, keys)
        self.keeper.unsaved.changes.update(dict.fromkeys(keys))
        self._compare(self.state.digest, record.state_digest, "the state without outcomes")

    def _compare(self, digest: int, expected: int, what: str) -> None:
        """Stop the node where something does not fold to what it must."""
        if digest != expected and not self._halted:
            message = f"{what} folds to digest {digest:032x}, not to {expected:032x}"
            self.halt("digest_mismatch", message, rebuild=True)

    def _on_rolled_back(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionRolledBack)
        if self._holds(record.txn):
            self.log = None
        self.counters.transactions_rolled_back += 1
        if self.master is not None:
            self.master.rolled_back(record)

    def _on_membership(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        mine = (self.config.node, self.config.incarnation)
        if isinstance(record, MemberLeft) and (record.node, record.incarnation) == mine:
            self.has_left = True
            self.note("has left the cluster")
        if self.master is not None:
            self.master.membership_changed(record)

    def _on_snapshot(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, AuthoritySnapshot)
        if self.master is not None and record.epoch == self.master.epoch:
            self.copies.snapshot_read(entry.offset)

    def lose_track(self, why: str) -> None:
        """The chain has a gap here: what this node shows can no longer be trusted."""
        if self.state_known:
            self.halt("gap", f"a gap in the commit topic: {why}", rebuild=True)

    # -- the store ---------------------------------------------------------------------------

    def _stored(self, event: Stored) -> None:
        self.keeper.stored(event)

    def _store_failed(self, event: StoreFailed) -> None:
        self.keeper.store_failed(event)

    # -- reading the log to its end ----------------------------------------------------------

    def _barrier_read(self, record: ReadBarrier) -> None:
        if self.master is not None:
            self.master.barrier_read(record)
        if not self.pulse.take(record):
            return
        if self.phase == CATCHING_UP:
            self._caught_up()
        elif self.phase == SYNCHRONISING:
            self.full_sync.barrier_read()
        else:
            self.election.barrier_read()

    def log_is_held(self) -> None:
        """All that can be read was read, and an open transaction holds this node's barrier back.

        Its master may be dead, and all nodes may have just started: only a claim ends it then.
        Whatever follows is folded when it comes, and a claim reads to the end behind its fence.
        """
        if self.is_catching_up:
            self._caught_up()
        elif self.phase == SYNCHRONISING:
            self.full_sync.barrier_read()
        else:
            self.election.log_is_held()

    def _caught_up(self) -> None:
        """The log has been folded to its end: the state is known, or must be synchronised."""
        self.election.heard()
        if self.state_known or self.authority is None or self.authority.last_cas == 0:
            self.state_known = True
            self.phase = FOLLOWING
            self.keeper.unsaved.needed = True
            self.note(f"caught up at offset {self.applied}, CAS {self.state.cas}")
            return
        self.phase = SYNCHRONISING
        self.counters.full_synchronisations += 1
        self.keeper.save(None)
        self.full_sync.begin()

    def _sync_read(self, event: SyncRead) -> None:
        self.full_sync.read(event)
        self._ask_to_join()

    def synchronised(self, state: StateContext, source: str) -> None:
        """The state was found: from here on this node follows."""
        self.state = state
        self.state_known = True
        self.phase = FOLLOWING
        count = len(state.entities)
        self.note(f"synchronised from {source}: {count} entities at CAS {state.cas}")
        self.keeper.replaced(state)

    # -- time --------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        now = self.now.mono_ms
        if now - self._beaten_ms >= self.config.heartbeat_ms:
            self._beaten_ms = now
            self.emit(Beat(self.heartbeat()))
        self.pulse.tick()
        self.keeper.tick()
        self.full_sync.tick()
        self._ask_to_join()
        self.election.tick()
        self._expire_waiters()
        if self._former is not None:
            self._former.expire_enlisted(now)
        if self.master is not None:
            self.master.tick()

    def heartbeat(self) -> NodeHeartbeat:
        """Return what this node tells the others about itself."""
        config = self.config
        return NodeHeartbeat(
            config.node,
            config.incarnation,
            self.role,
            self.authority.epoch if self.authority else 0,
            self.state.cas,
            self.state.digest,
            config.address,
            config.pid,
            self.why_not_ready,
            self.now.wall_ms,
            self.keeper.durable,
        )

    def _beats_read(self, event: BeatsRead) -> None:
        step_ms = min(self.now.mono_ms - self._heard_at_ms, 2 * self.config.heartbeat_ms)
        self.hearing_ms += max(0, step_ms)
        self._heard_at_ms = self.now.mono_ms
        for beat in event.records:
            if impossible(beat):
                continue  # Each number is kept, and nobody has this one.
            heard = Peer(self.hearing_ms, beat)
            match beat:
                case NodeHeartbeat():
                    self.peers[beat.node] = heard
                    self.election.beat(beat)
                    if beat.incarnation == self.config.incarnation:
                        self.pulse.heard()
                case IndexerHeartbeat():
                    self.indexers[beat.indexer] = heard
                    if self.master is not None:
                        self.master.indexer_heard(beat)
                case TimestampsHeartbeat():
                    self.application = heard
                case CopyRequested():
                    self.copies.asked(beat)
                case CopyOffered():
                    self.full_sync.offered(beat)
                case ProjectorHeartbeat():
                    self.projectors[beat.projector] = heard
                    self.progress.heard(beat, self.now.mono_ms)
                    if self.master is not None:
                        self.master.membership.projector_heard(beat)

    def alive(self, peer: Peer | None) -> bool:
        """Tell whether a process was heard within the liveness period."""
        return peer is not None and self.hearing_ms - peer.heard_ms <= self.config.liveness_ms

    def _ask_to_join(self) -> None:
        """Ask for admission, with the CAS and digest reached; again whenever they change."""
        if not self.is_following or self.is_member or self.keeper.sick:
            return
        if self.master is not None or self.has_left or self.election.stopping:
            return
        authority = self.authority
        if authority is None or not authority.master or authority.open is not None:
            return
        now = self.now.mono_ms
        if self._join_sent[0] == self.state.cas and (
            now - self._join_sent[1] < self.config.heartbeat_ms
        ):
            return
        self._join_sent = (self.state.cas, now)
        config = self.config
        self.emit(
            Answer(
                JoinRequested(
                    config.node,
                    config.incarnation,
                    config.address,
                    self.state.cas,
                    self.state.digest,
                )
            )
        )

    # -- timestamps --------------------------------------------------------------------------

    def _timestamps_read(self, event: TimestampsRead) -> None:
        for entry in event.entries:
            self._fold_timestamp(entry)

    def _fold_timestamp(self, entry: TimestampEntry) -> None:
        """Fold one record of `stability` or `restart`; one that is of no use is a dead letter."""
        if isinstance(entry.record, Unreadable):
            problem = entry.record.reason
        else:
            self.timestamps, problem, note = boards.fold(self.timestamps, entry.record, self.now)
            if note:
                self.note(note)
        if problem:
            at = (entry.topic, 0, entry.offset)
            self.emit(Bury(DeadLetter(*at, problem, entry.raw, self.now.wall_ms)))

    # -- losing the mastership ---------------------------------------------------------------

    def drop_mastership(self, why: str) -> None:
        """This master's producer is of no more use: only a new claim can go on writing."""
        assert self.master is not None
        self.note(f"giving the mastership up: {why}")
        self.master.depose(why)
        self._former, self.master = self.master, None
        self.emit(CloseProducer())
        if self._former.is_fruitless:
            self.election.failed()
        else:
            self.election.lost()

    def _stability_required(self, event: StabilityRequired) -> None:
        """Ask for the next timestamp of a bucket to come soon: for all scans at once, now and then.

        Who waits says so again and again; what is lost on the way is asked again.
        """
        now = self.now
        if now.mono_ms < self._asked_until_ms.get(event.bucket, 0):
            return
        if self.state.bucket(event.bucket) is not None:
            self._asked_until_ms[event.bucket] = now.mono_ms + PROMOTION_PAUSE_MS
            self.emit(Ask(PromotionRequested(event.bucket, event.wait_ms, now.wall_ms)))

    def _stopping(self, event: Stopping) -> None:
        """A master that is told to end hands over first; nobody here claims again."""
        self.election.stopping = True
        if self.master is not None:
            self.master.membership.step_down(MembershipRequested(0, 0, StepDown(reason="stopping")))

    def _membership_requested(self, event: MembershipRequested) -> None:
        if self.master is not None:
            self.master.membership.requested(event)
        elif isinstance(event.command, Reform):
            self.election.reform_requested(event)
        else:
            self.emit(Reply(event.token, self.not_master()))

    # -- requests ----------------------------------------------------------------------------

    def _requested(self, event: Requested) -> None:
        if self.master is None:
            self.emit(Reply(event.request.token, self.not_master()))
        else:
            self.master.requested(event.request)

    def _read_requested(self, event: ReadRequested) -> None:
        if event.linearizable:
            if self.master is None:
                self.emit(Reply(event.token, self.not_master()))
            else:
                self.master.read_requested(event.token, event.deadline_ms)
            return
        if len(self._waiters) >= self.config.readers_max:
            self.emit(Reply(event.token, TOO_MANY_READERS))
            return
        self._waiters.append(Waiter(event.token, event.at_least, event.deadline_ms))
        self._serve_waiters()

    def _serve_waiters(self) -> None:
        served = [w for w in self._waiters if w.at_least <= self.state.cas]
        if served:
            self._waiters = [w for w in self._waiters if w.at_least > self.state.cas]
        for waiter in served:
            self.emit(Reply(waiter.token, Outcome("ok", cas=self.state.cas)))

    def _expire_waiters(self) -> None:
        late = [w for w in self._waiters if w.deadline_ms <= self.now.mono_ms]
        if late:
            self._waiters = [w for w in self._waiters if w.deadline_ms > self.now.mono_ms]
        for waiter in late:
            message = f"this node has applied CAS {self.state.cas}, not {waiter.at_least}"
            self.emit(Reply(waiter.token, unknown("timeout", message)))

    # -- for the master ----------------------------------------------------------------------

    def _acks_read(self, event: AcksRead) -> None:
        if self.master is None:
            return
        for record in event.records:
            if isinstance(record, ProposalAnswered) and record.node == self.config.node:
                self.master.echoed(record)
            else:
                self.master.answered(record)

    def _streams_read(self, event: StreamsRead) -> None:
        for record in event.records:
            if isinstance(record, HwHeartbeat):
                self.watermarks[record.bucket, record.indexer] = record
        if self.master is not None:
            self.master.building.streams_read(event.records)

    def _ddl_read(self, event: DdlRead) -> None:
        if self.master is not None:
            self.master.commands_read(event.requests)

    def _append_failed(self, event: AppendFailed) -> None:
        if self.master is not None:
            self.master.append_failed(event)

    def _written(self, event: Written) -> None:
        if self.master is not None:
            self.master.written(event)

    def _ended(self, event: Ended) -> None:
        if self.master is not None:
            self.master.ended(event)

    def _snapshot_taken(self, event: SnapshotTaken) -> None:
        self.copies.taken(event)

    def _scrubbed(self, event: Scrubbed) -> None:
        if self.master is not None:
            self.master.scrubbing.scrubbed(event)

    def _tail_read(self, event: TailRead) -> None:
        if self.master is not None:
            self.master.tail_read(event)

    def _producer_opened(self, event: ProducerOpened) -> None:
        self.election.producer_opened(event)

    def _producer_failed(self, event: ProducerFailed) -> None:
        self.election.producer_failed(event)

    def _examined(self, event: Examined) -> None:
        self.pulse.examined(event)


def impossible(beat: Heartbeat) -> bool:
    """Tell whether this names a process that cannot be."""
    numbers = (getattr(beat, name, 0) for name in ("node", "indexer", "projector"))
    return any(authorities.impossible_id(number) for number in numbers)


ACTIONS: dict[type, Callable[[Node, Entry, AuthorityState | None], None]] = {
    ClusterFormed: Node._on_formed,
    MasterClaimed: Node._on_claimed,
    TransactionProposed: Node._on_proposed,
    TransactionCommitted: Node._on_committed,
    TransactionRolledBack: Node._on_rolled_back,
    MemberAdmitted: Node._on_membership,
    MemberExpired: Node._on_membership,
    MemberLeft: Node._on_membership,
    ClusterReformed: Node._on_membership,
    IndexerRegistered: Node._on_membership,
    ProjectorRegistered: Node._on_membership,
    MasterResigned: Node._on_resigned,
    AuthoritySnapshot: Node._on_snapshot,
    OutcomesForgotten: Node._on_forgotten,
    OutcomesSeparated: Node._on_separated,
}

HANDLERS: dict[type, Callable[[Node, Any], None]] = {
    Started: Node._started,
    Tick: Node._tick,
    CommitRead: Node._commit_read,
    AcksRead: Node._acks_read,
    BeatsRead: Node._beats_read,
    StreamsRead: Node._streams_read,
    TimestampsRead: Node._timestamps_read,
    DdlRead: Node._ddl_read,
    Requested: Node._requested,
    ReadRequested: Node._read_requested,
    MembershipRequested: Node._membership_requested,
    StabilityRequired: Node._stability_required,
    Stopping: Node._stopping,
    Examined: Node._examined,
    Stored: Node._stored,
    StoreFailed: Node._store_failed,
    AppendFailed: Node._append_failed,
    ProducerOpened: Node._producer_opened,
    ProducerFailed: Node._producer_failed,
    Written: Node._written,
    Ended: Node._ended,
    SyncRead: Node._sync_read,
    SnapshotTaken: Node._snapshot_taken,
    Scrubbed: Node._scrubbed,
    TailRead: Node._tail_read,
}
