"""An IndexManager node as a synchronous `step(input) -> effects`.

It puts its parts together, and hands each input to those that it concerns: `follower` (what the
log says: Authority, state, store), `peers` (who is alive), `liveness` (whether reading goes on),
`election` (claims), `admission`, `copies` (of the state), `reads`, `timestamp_follower`, and
`master`, only while its claim stands. No Kafka, no clock, no randomness: shell and simulator feed
the same code.

Invariants:

* A proposal is answered `accepted` only after it is durable in this node's store.
* Only a node whose claim the fold accepted writes anything authoritative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, get_args

from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.admission import Admission
from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import (
    Answer,
    Beat,
    CloseProducer,
    Effect,
    Halt,
    Note,
    Reply,
)
from coordinator.core.consensus.election import Election, Mastership
from coordinator.core.consensus.follower import Follower
from coordinator.core.consensus.inputs import (
    AcksRead,
    AppendFailed,
    BeatsRead,
    CommitRead,
    CopyWanted,
    DdlRead,
    Ended,
    Entry,
    Examined,
    Input,
    MembershipRequested,
    PreparedTransaction,
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
    TimestampsRead,
    Written,
)
from coordinator.core.consensus.liveness import Liveness
from coordinator.core.consensus.local_reads import LocalReads
from coordinator.core.consensus.peers import Peers, impossible
from coordinator.core.consensus.roles import BOOTSTRAP, MASTER, REPLICA, ROLLBACK, moved, next_role
from coordinator.core.consensus.signals import (
    AnswerProposal,
    AwaitSuccessor,
    BlockedAtStableOffset,
    ChainBroken,
    Elected,
    ExamineLog,
    LoseMastership,
    Result,
    SendBarrier,
    Synchronised,
    TransactionInstalled,
)
from coordinator.core.consensus.timestamp_follower import TimestampFollower
from coordinator.core.consensus.view import CATCHING_UP, FOLLOWING, SYNCHRONISING, Tokens
from coordinator.core.leader.master import Master
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.commands import Reform
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import (
    AuthoritySnapshot,
    ClusterFormed,
    ClusterReformed,
    CommitRecord,
    CopyOffered,
    CopyRequested,
    IndexerHeartbeat,
    IndexerRegistered,
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
    ServiceRemoved,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.stream_records import FailoverLog, HwHeartbeat
from coordinator.core.model.types import Epoch, Instant
from coordinator.core.timestamps.board import Board

ENTRY_BYTES = 64
"""What a record of the log weighs beside its value."""


class Node:
    """One IndexManager: feed it with `step`, carry out what it returns.

    Large because it has one method for each input, signal and record of the log: each of them
    hands on to the parts concerned, and decides nothing.
    """

    def __init__(self, config: NodeConfig, codec: EntityCodec) -> None:
        self.config = config
        self.now = Instant(0, 0)
        self.role = BOOTSTRAP
        self._rollbacks: tuple[object, bool] = (None, False)
        self.counters = Counters()
        self.tokens = Tokens()
        self.peers = Peers(config)
        self.follower = Follower(codec, self.tokens, self.counters)
        self.liveness = Liveness(self.tokens)
        self.election = Election(self.tokens)
        self.admission = Admission()
        self.copies = Copies(self.tokens, self.counters)
        self.reads = LocalReads()
        self.timestamp_follower = TimestampFollower()
        self.master: Master | None = None
        self._codec = codec
        self._former: Master | None = None
        """A master that was deposed: what it proposed still waits for its verdict."""
        self._effects: list[Effect] = []
        self._beaten_ms = -(10**9)
        self._halted = False

    # -- what its parts, and the shell, may know ---------------------------------------------

    @property
    def phase(self) -> str:
        return self.follower.phase

    @property
    def applied(self) -> int:
        return self.follower.applied

    @property
    def authority(self) -> AuthorityState | None:
        return self.follower.authority

    @property
    def state(self) -> StateContext:
        return self.follower.state

    @property
    def state_known(self) -> bool:
        return self.follower.state_known

    @property
    def prepared(self) -> PreparedTransaction | None:
        return self.follower.prepared

    @property
    def outcomes(self) -> OutcomeWindow:
        return self.follower.outcomes

    @property
    def timestamps(self) -> Board:
        return self.timestamp_follower.board

    @property
    def is_following(self) -> bool:
        """Tell whether the node has the state, and keeps it up to date."""
        return self.follower.phase == FOLLOWING

    @property
    def is_member(self) -> bool:
        """Tell whether this incarnation of the node is in the in-sync set, and up to date."""
        authority = self.follower.authority
        if not self.is_following or authority is None or self.sick:
            return False
        member = authority.members.get(self.config.node)
        return member is not None and member.incarnation == self.config.incarnation

    @property
    def is_master(self) -> bool:
        return self.master is not None

    @property
    def is_stopping(self) -> bool:
        return self.election.stopping

    @property
    def is_reading(self) -> bool:
        """Tell whether records of `commit` came lately."""
        return self.liveness.is_reading(self)

    @property
    def mastership(self) -> Mastership:
        """Say whether there is a master, and if not, for whom the cluster waits."""
        return self.election.mastership(self)

    @property
    def sick(self) -> str:
        """Why the store refuses writes; empty while it takes them."""
        return self.follower.durability.sick

    @property
    def durable(self) -> int:
        """The offset of `commit` up to which the store has everything, synced."""
        return self.follower.durability.durable

    @property
    def why_not_ready(self) -> str:
        """Say why the node is not ready to serve, or return an empty text."""
        if self.sick:
            return f"the store refuses writes: {self.sick}"
        if self.liveness.trouble:
            return self.liveness.trouble
        if not self.is_following:
            problem = self.follower.full_sync.problem
            return f"{self.phase} at offset {self.applied} of commit{problem and f' ({problem})'}"
        if self.master is not None:
            return "" if self.master.active else "the new master is recovering"
        if self.admission.has_left:
            return "has left the cluster: it returns when it is started again"
        alive = self.election.master_alive(self)
        if not self.is_member and alive:
            return "waiting for admission to the active list"
        return "" if alive else self.mastership.message

    # -- a step ------------------------------------------------------------------------------

    def step(self, now: Instant, event: Input) -> list[Effect]:
        """Take one input and return the effects that it calls for, to be carried out in order."""
        if self._halted:
            return []
        self.now = now
        HANDLERS[type(event)](self, event)
        if self.master is not None and not self._halted:
            self.run(self.master.advance(self))
        self._settle_role()
        effects, self._effects = self._effects, []
        return effects

    def _settle_role(self) -> None:
        """Move on to the state that fits, by the one table of transitions."""
        fits = BOOTSTRAP
        if self.master is not None and self.is_following:
            fits = ROLLBACK if self._rolls_back() else MASTER
        elif self.is_member and self.election.master_alive(self):
            fits = REPLICA
        self.role = moved(self.role, next_role(self.role, fits))

    def _rolls_back(self) -> bool:
        """Tell whether a rollback goes on; looked at again only if one has moved."""
        rollbacks = self.state.kinds.get("rollback")
        if rollbacks is not self._rollbacks[0]:
            goes_on = any(not one.is_over for one in self.state.rollbacks())
            self._rollbacks = rollbacks, goes_on
        return self._rollbacks[1]

    def run(self, results: Iterable[Result]) -> None:
        """Hand signals on, and keep effects for the shell, in their order."""
        for result in results:
            signalled = SIGNALS.get(type(result))
            if signalled is not None:
                signalled(self, result)
                continue
            assert type(result) in EFFECTS, f"nobody takes {result}"
            self._halted = self._halted or isinstance(result, Halt)
            self._effects.append(result)  # type: ignore[arg-type]

    def _not_master(self, token: int) -> None:
        """Answer a writer who came to the wrong node."""
        self.run([Reply(token, self.election.not_master(self))])

    # -- the commit topic --------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        self.election.note_master(self)
        self.liveness.started(self.now)
        self.run(self.follower.begin(self, event))
        self._check_topics()
        if not self._halted:
            self.run(self.liveness.send_barrier(self))

    def _commit_read(self, event: CommitRead) -> None:
        self.liveness.read(self)
        for entry in event.entries:
            if entry.offset <= self.applied:
                continue
            self._fold(entry)
            if self._halted:
                return
        self.run(self.follower.batch_ended(self))
        self.run(self.reads.serve(self))
        self.run(self.admission.ask(self))

    def _fold(self, entry: Entry) -> None:
        """Fold one record, and do what it means to this node."""
        before, void = self.follower.fold(entry)
        if before is None:
            self._check_topics()
        self.copies.log_grew(len(entry.raw) + ENTRY_BYTES)
        if self.master is not None:
            self.master.read_back(entry.record)
        if void:
            self._void(entry.record, void)
        else:
            acting = ACTIONS.get(type(entry.record))
            if acting is not None:
                acting(self, entry, before)

    def _check_topics(self) -> None:
        """Compare the topics on Kafka with those that the cluster was formed with."""
        if self.authority is None:
            return
        formed, seen = self.authority.sync_partitions, self.config.sync_partitions
        if formed != seen:
            message = f"sync has {seen} partitions, but the cluster was formed with {formed}"
            self.run([Halt("topic_mismatch", message, final=True)])

    def _void(self, record: CommitRecord, void: str) -> None:
        self.counters.void_records += 1
        if self.authority is not None and authorities.is_alarming(record):
            self.run([Halt("void_commit", f"a committed transaction is void: {void}")])
        elif isinstance(record, MasterClaimed):
            self.run(self.election.claim_is_void(self, record, void))
        elif isinstance(record, TransactionProposed) and self.follower.holds(record.txn):
            self.run(self.follower.durability.answer_again(self))
        elif isinstance(record, ReadBarrier):
            self._barrier_read(record)

    def _on_formed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, ClusterFormed)
        self.run([Note(f"cluster {record.cluster_id} formed, roster {list(record.roster)}")])

    def _on_claimed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, MasterClaimed)
        self.follower.drop_prepared()
        self._depose(f"node {record.node} claimed epoch {record.epoch}")
        self.run(self.election.claimed(self, record))

    def _on_resigned(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, MasterResigned)
        self.follower.drop_prepared()
        self.election.resigned(self, record)
        if self.master is not None:
            self.run(self.master.resigned())
        self._depose(f"node {record.node} gave epoch {record.epoch} up")

    def _on_proposed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionProposed)
        self.follower.proposed(entry, before)
        if self.master is not None:
            self.master.opened(record.txn, entry.offset)

    def _on_committed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionCommitted)
        computed = self.master.computed_state(record) if self.master is not None else None
        self.run(self.follower.committed(self, record, computed))

    def _transaction_installed(self, signal: TransactionInstalled) -> None:
        """The state has moved on: callers hear, and DDL under way goes on."""
        if self.master is not None:
            self.master.installed(self, signal.mutations)
        leader = self.master or self._former
        if leader is not None:
            self.run(leader.committed(self, signal.record))

    def _on_rolled_back(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionRolledBack)
        self.follower.rolled_back(record.txn)
        leader = self.master or self._former
        if leader is not None:
            self.run(leader.rolled_back(self, record))

    def _on_forgotten(self, entry: Entry, before: AuthorityState | None) -> None:
        assert isinstance(entry.record, OutcomesForgotten)
        self.run(self.follower.forgotten(entry.record))

    def _on_separated(self, entry: Entry, before: AuthorityState | None) -> None:
        assert isinstance(entry.record, OutcomesSeparated)
        self.run(self.follower.separated(self, entry.record))

    def _on_membership(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        if isinstance(record, MemberLeft):
            self.run(self.admission.left(self, record))
        if self.master is not None:
            self.run(self.master.membership_changed(self, record))

    def _on_snapshot(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, AuthoritySnapshot)
        if self.master is not None and record.epoch == self.master.epoch:
            self.run(self.copies.snapshot_read(self, entry.offset))

    def _on_barrier(self, entry: Entry, before: AuthorityState | None) -> None:
        assert isinstance(entry.record, ReadBarrier)
        self._barrier_read(entry.record)

    # -- reading the log to its end ----------------------------------------------------------

    def _barrier_read(self, record: ReadBarrier) -> None:
        if self.master is not None:
            self.run(self.master.barrier_read(self, record))
        if not self.liveness.barrier_read(record):
            return
        if self.phase == FOLLOWING:
            self.run(self.election.barrier_read(self))
        else:
            self._read_to_the_end()

    def _blocked_at_stable_offset(self, signal: BlockedAtStableOffset) -> None:
        """Go on as behind a barrier: what follows is folded when it comes, and a claim reads to
        the end behind its fence."""
        if self.phase == FOLLOWING:
            self.run(self.election.blocked_at_stable_offset(self))
        else:
            self._read_to_the_end()

    def _read_to_the_end(self) -> None:
        """The log has been folded to where it ended: the state is known, or is looked for."""
        if self.phase == CATCHING_UP:
            self.election.note_master(self)
            self.run(self.follower.caught_up(self))
        elif self.phase == SYNCHRONISING:
            self.run(self.follower.full_sync.barrier_read(self))

    def _sync_read(self, event: SyncRead) -> None:
        self.run(self.follower.full_sync.read(self, event))
        self.run(self.admission.ask(self))

    def _send_barrier(self, signal: SendBarrier) -> None:
        self.run(self.liveness.send_barrier(self))

    def _examine_log(self, signal: ExamineLog) -> None:
        self.run(self.liveness.examine())

    def _examined(self, event: Examined) -> None:
        self.run(self.liveness.examined(self, event))

    def _synchronised(self, signal: Synchronised) -> None:
        self.run(self.follower.synchronised(self, signal))

    def _chain_broken(self, signal: ChainBroken) -> None:
        self.run(self.follower.chain_broken(signal.why))

    # -- the store ---------------------------------------------------------------------------

    def _stored(self, event: Stored) -> None:
        self.run(self.follower.durability.stored(self, event))

    def _store_failed(self, event: StoreFailed) -> None:
        self.run(self.follower.durability.store_failed(self, event))

    def _answer_proposal(self, signal: AnswerProposal) -> None:
        if self.master is not None:
            self.run(self.master.answered(self, signal.record))
        else:
            self.run([Answer(signal.record)])

    # -- time, and other processes -----------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        now = self.now.mono_ms
        if now - self._beaten_ms >= self.config.heartbeat_ms:
            self._beaten_ms = now
            self.run([Beat(self.heartbeat())])
        self.run(self.liveness.tick(self))
        self.run(self.follower.durability.tick(self))
        self.run(self.follower.full_sync.tick(self))
        self.run(self.admission.ask(self))
        self.run(self.election.tick(self))
        self.run(self.reads.expire(self))
        if self._former is not None:
            self.run(self._former.expire_enlisted(self))
        if self.master is not None:
            self.run(self.master.tick(self))

    def heartbeat(self) -> NodeHeartbeat:
        """Return what this node tells the others about itself."""
        config = self.config
        return NodeHeartbeat(
            node=config.node,
            incarnation=config.incarnation,
            state=self.role,
            epoch=self.authority.epoch if self.authority else Epoch(0),
            cas=self.state.cas,
            digest=self.state.digest,
            address=config.address,
            pid=config.pid,
            reason=self.why_not_ready,
            at_ms=self.now.wall_ms,
            durable=self.durable,
        )

    def _beats_read(self, event: BeatsRead) -> None:
        self.peers.listen(self.now)
        for beat in event.records:
            if impossible(beat):
                continue
            self.peers.remember(beat, self.now)
            match beat:
                case NodeHeartbeat():
                    self.election.beat(self, beat)
                    if beat.incarnation == self.config.incarnation:
                        self.liveness.note_own_heartbeat(self)
                case IndexerHeartbeat():
                    if self.master is not None:
                        self.master.indexer_heard(self, beat)
                case ProjectorHeartbeat():
                    if self.master is not None:
                        self.master.projector_heard(self, beat)
                case CopyRequested():
                    self.run(self.copies.asked(self, beat))
                case CopyOffered():
                    self.run(self.follower.full_sync.offered(self, beat))

    def _timestamps_read(self, event: TimestampsRead) -> None:
        for entry in event.entries:
            self.run(self.timestamp_follower.read(self, entry))

    def _stability_required(self, event: StabilityRequired) -> None:
        self.run(self.timestamp_follower.required(self, event))

    # -- the mastership ----------------------------------------------------------------------

    def _elected(self, signal: Elected) -> None:
        self.counters.claims += 1
        self.master = Master(
            self,
            signal.epoch,
            codec=self._codec,
            tokens=self.tokens,
            counters=self.counters,
            copies=self.copies,
        )
        self.run(self.master.begin(self))

    def _depose(self, why: str) -> None:
        """The log says that the mastership of this node, if it had any, is over."""
        if self.master is not None:
            self._depose_master(self.master, why)
        if self._former is not None:
            self.run(self._former.settle_rolled_back(why))
            self._former = None

    def _depose_master(self, master: Master, why: str) -> None:
        """Answer those who wait; what was proposed still waits for its verdict."""
        self.run(master.depose(why))
        self._former, self.master = master, None
        self.run([CloseProducer()])

    def _lose_mastership(self, signal: LoseMastership) -> None:
        """This master's producer is of no more use: only a new claim can go on writing."""
        master = self.master
        assert master is not None
        self.run([Note(f"giving the mastership up: {signal.why}")])
        self._depose_master(master, signal.why)
        if master.is_fruitless:
            self.election.failed(self)
        else:
            self.election.lost(self)

    def _await_successor(self, signal: AwaitSuccessor) -> None:
        self.election.await_successor(signal.token, signal.deadline_ms)

    def _stopping(self, event: Stopping) -> None:
        """A master that is told to end hands over first; nobody here claims again."""
        self.election.stopping = True
        if self.master is not None:
            self.run(self.master.step_down(self, "stopping"))

    def _producer_opened(self, event: ProducerOpened) -> None:
        self.run(self.election.producer_opened(event))

    def _producer_failed(self, event: ProducerFailed) -> None:
        self.run(self.election.producer_failed(self, event))

    # -- requests ----------------------------------------------------------------------------

    def _membership_requested(self, event: MembershipRequested) -> None:
        if self.master is not None:
            self.run(self.master.membership_requested(self, event))
        elif isinstance(event.command, Reform):
            self.run(self.election.reform_requested(self, event))
        else:
            self._not_master(event.token)

    def _requested(self, event: Requested) -> None:
        if self.master is None:
            self._not_master(event.request.token)
        else:
            self.run(self.master.requested(self, event.request))

    def _read_requested(self, event: ReadRequested) -> None:
        if not event.linearizable:
            self.run(self.reads.requested(self, event))
        elif self.master is None:
            self._not_master(event.token)
        else:
            self.run(self.master.read_requested(self, event.token, event.deadline_ms))

    # -- for the master ----------------------------------------------------------------------

    def _acks_read(self, event: AcksRead) -> None:
        if self.master is None:
            return
        for record in event.records:
            if isinstance(record, ProposalAnswered) and record.node == self.config.node:
                self.master.echoed(self)
            else:
                self.run(self.master.answered(self, record))

    def _streams_read(self, event: StreamsRead) -> None:
        records = [record for record in event.records if not self._is_strange(record)]
        for record in records:
            if isinstance(record, HwHeartbeat):
                self.peers.watermarks[record.bucket, record.indexer] = record
        if self.master is not None:
            self.master.streams_read(self, records)

    def _is_strange(self, record: HwHeartbeat | FailoverLog) -> bool:
        """Tell whether this is what an indexer holds that cannot be, or of a bucket that there is
        not: it is kept, and said again and again."""
        if not isinstance(record, HwHeartbeat):
            return False
        return impossible(record) or self.state.bucket(record.bucket) is None

    def _ddl_read(self, event: DdlRead) -> None:
        if self.master is not None:
            self.master.commands_read(event.requests)

    def _append_failed(self, event: AppendFailed) -> None:
        if self.master is not None:
            self.run(self.master.append_failed(self, event))

    def _written(self, event: Written) -> None:
        if self.master is not None:
            self.run(self.master.written(self, event))

    def _ended(self, event: Ended) -> None:
        if self.master is not None:
            self.run(self.master.ended(self, event))

    def _snapshot_taken(self, event: SnapshotTaken) -> None:
        epoch = self.master.epoch if self.master is not None else None
        self.run(self.copies.taken(self, event, epoch))

    def _copy_wanted(self, _: CopyWanted) -> None:
        if self.master is not None:
            self.copies.wanted()

    def _scrubbed(self, event: Scrubbed) -> None:
        if self.master is not None:
            self.run(self.master.scrubbed(self, event))

    def _tail_read(self, event: TailRead) -> None:
        if self.master is not None:
            self.run(self.master.tail_read(self, event))


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
    ServiceRemoved: Node._on_membership,
    MasterResigned: Node._on_resigned,
    AuthoritySnapshot: Node._on_snapshot,
    OutcomesForgotten: Node._on_forgotten,
    OutcomesSeparated: Node._on_separated,
    ReadBarrier: Node._on_barrier,
}

EFFECTS = frozenset(get_args(Effect))

SIGNALS: dict[type, Callable[[Node, Any], None]] = {
    SendBarrier: Node._send_barrier,
    ExamineLog: Node._examine_log,
    BlockedAtStableOffset: Node._blocked_at_stable_offset,
    AnswerProposal: Node._answer_proposal,
    ChainBroken: Node._chain_broken,
    TransactionInstalled: Node._transaction_installed,
    Synchronised: Node._synchronised,
    Elected: Node._elected,
    LoseMastership: Node._lose_mastership,
    AwaitSuccessor: Node._await_successor,
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
    CopyWanted: Node._copy_wanted,
    Scrubbed: Node._scrubbed,
    TailRead: Node._tail_read,
}
