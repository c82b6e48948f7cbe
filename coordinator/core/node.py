"""An IndexManager node as a synchronous `step(input) -> effects`.

Everything that matters happens here and in `coordinator.core.master`: folding the commit topic,
keeping the local log, answering proposals, synchronising, claiming the mastership. No Kafka, no
clock, no randomness: the shell and the simulator feed the same code.

Invariants:

* What a node shows (`state`) changes only by a terminal status that was read back.
* A proposal is answered `accepted` only after it is durable in this node's store.
* In the store, entities, the Authority and the local log always belong to one applied offset.
* Only a node whose claim the fold accepted writes anything authoritative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.core import authority as authorities
from coordinator.core import state as states
from coordinator.core.authority_state import AuthorityState
from coordinator.core.commands import Outcome, unknown
from coordinator.core.config import NodeConfig
from coordinator.core.effects import (
    Answer,
    Append,
    Beat,
    CloseProducer,
    Conclude,
    Effect,
    Follow,
    Halt,
    Note,
    OpenProducer,
    Probe,
    Reply,
    Save,
    Synchronise,
)
from coordinator.core.inputs import (
    AcksRead,
    AppendFailed,
    BeatsRead,
    CommitRead,
    DdlRead,
    Ended,
    Entry,
    Input,
    LocalLog,
    ProducerFailed,
    ProducerOpened,
    ReadRequested,
    Requested,
    Started,
    Stored,
    StoreFailed,
    SyncRead,
    TailRead,
    Tick,
    Written,
)
from coordinator.core.master import Master
from coordinator.core.ports import EntityCodec
from coordinator.core.records import (
    ACCEPTED,
    BEHIND,
    REFUSED,
    AuthoritySnapshot,
    ClusterFormed,
    IndexerHeartbeat,
    IndexerRegistered,
    JoinRequested,
    MasterClaimed,
    MemberAdmitted,
    MemberExpired,
    NodeHeartbeat,
    ProposalAnswered,
    ReadBarrier,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.state import StateContext, Versioned
from coordinator.core.synchroniser import Mismatch, Sealed, Synchroniser
from coordinator.core.types import Instant, TxnId

BOOTSTRAP, REPLICA, MASTER, ROLLBACK = "bootstrap", "replica", "master", "rollback"

CATCHING_UP, SYNCHRONISING, FOLLOWING = "catching-up", "synchronising", "following"

UNSYNCED_SAVES_MAX = 64

ENTRY_BYTES = 64
"""What a record of the log weighs beside its value."""


@dataclass(slots=True)
class Candidacy:
    """A claim under way, step by step.

    Looking: reading the log to its end, for a claim that this node has not heard of; opening the
    producer, which fences any other; reading to the end again; claiming: written, not read back.
    """

    step: str
    token: int
    since_ms: int
    epoch: int = 0


@dataclass(slots=True)
class Waiter:
    """A reader who waits until this node has applied a CAS."""

    token: int
    at_least: int
    deadline_ms: int


@dataclass(slots=True)
class Peer:
    """The last heartbeat of another process, and when it was heard."""

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
    claims: int = 0


@dataclass(slots=True)
class Unsaved:
    """Changes that are installed in memory and go to the store with the next batch."""

    changes: dict[str, Versioned | None] = field(default_factory=dict)
    wipe: bool = False
    needed: bool = False


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
        self.master: Master | None = None
        self.candidacy: Candidacy | None = None
        self.peers: dict[int, Peer] = {}
        self.indexers: dict[int, Peer] = {}
        self.counters = Counters()
        self.sick = ""
        self.unsnapped_bytes = 0
        self._synchroniser: Synchroniser | None = None
        self._effects: list[Effect] = []
        self._last_token = 0
        self._unsaved = Unsaved()
        self._saved_rows = 0
        self._log_token = 0
        self._log_answer: tuple[str, str] | None = None
        self._in_flight: list[tuple[int, Unsaved]] = []
        self._before_log: AuthorityState | None = None
        self._former: Master | None = None
        self._probe_token = 0
        self._sync_token = 0
        self._probed_ms = 0
        self._barrier_nonce = 0
        self._barrier_sent_ms = 0
        self._master_heard_ms = 0
        self._beaten_ms = -(10**9)
        self._join_sent: tuple[int, int] = (-1, 0)
        self._claims_failed = 0
        self._claim_token = 0
        self._waiters: list[Waiter] = []
        self._halted = False

    # -- what the shell asks -----------------------------------------------------------------

    @property
    def role(self) -> str:
        """Return the node's state: bootstrap, replica or master."""
        if self.master is not None and self.phase == FOLLOWING:
            return MASTER
        return REPLICA if self.is_member else BOOTSTRAP

    @property
    def is_member(self) -> bool:
        """Tell whether this life of the node is in the active list, and up to date."""
        if self.phase != FOLLOWING or self.authority is None or self.sick:
            return False
        member = self.authority.members.get(self.config.node)
        return member is not None and member.incarnation == self.config.incarnation

    @property
    def why_not_ready(self) -> str:
        """Say why the node is not ready to serve, or return an empty text."""
        if self.sick:
            return f"the store refuses writes: {self.sick}"
        if self.phase != FOLLOWING:
            return f"{self.phase} at offset {self.applied} of commit"
        if self.master is not None:
            return "" if self.master.active else "the new master is recovering"
        if not self.is_member:
            return "waiting for admission to the active list"
        return "" if self.master_alive else "no master is alive"

    @property
    def master_alive(self) -> bool:
        """Tell whether this node is master, or has heard the master within the timeout."""
        if self.master is not None:
            return True
        elapsed = self.now.mono_ms - self._master_heard_ms
        known = self.authority is not None and self.authority.master != 0
        return known and elapsed <= self.config.election_timeout_ms

    def step(self, now: Instant, event: Input) -> list[Effect]:
        """Take one input and return the effects that it calls for, to be carried out in order."""
        if self._halted:
            return []
        self.now = now
        HANDLERS[type(event)](self, event)
        if self.master is not None and not self._halted:
            self.master.advance()
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
        if self.authority is None or not self.authority.master or not self.master_alive:
            return unknown("no_master", "no master is alive at the moment: retry")
        if self.authority.master == self.config.node:
            return unknown("no_master", "the master is changing: retry")
        return unknown(
            "not_master",
            f"node {self.authority.master} is the master",
            node=self.authority.master,
            address=self.authority.address,
        )

    # -- start -------------------------------------------------------------------------------

    def _started(self, event: Started) -> None:
        restored = event.restored
        self._master_heard_ms = self.now.mono_ms
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
            self._saved_rows = self.authority.log_next if self.authority else 0
            if self.authority and self.state.digest != self.authority.digest:
                self.halt(
                    "digest_mismatch",
                    f"the store folds to digest {self.state.digest:032x}, "
                    f"not to {self.authority.digest:032x}",
                    rebuild=True,
                )
                return
            self._answer(ACCEPTED, "")
        else:
            self.applied = event.log_start - 1
            self._unsaved.wipe = True
        self.emit(Follow(self.applied + 1))
        self._send_barrier()

    # -- the commit topic --------------------------------------------------------------------

    def _commit_read(self, event: CommitRead) -> None:
        for entry in event.entries:
            if entry.offset <= self.applied:
                continue
            self._fold(entry)
            if self._halted:
                return
        self._save_installed()
        self._save_log()
        self._resolve_synchronisation()
        self._serve_waiters()
        self._ask_to_join()

    def _fold(self, entry: Entry) -> None:
        """Fold one record, and do what it means to this node."""
        before = self.authority
        self.authority, void = authorities.fold(before, entry.offset, entry.record)
        self.applied = entry.offset
        self.unsnapped_bytes += len(entry.raw) + ENTRY_BYTES
        if void:
            self._void(entry, void)
            return
        if isinstance(entry.record, MasterClaimed | AuthoritySnapshot):
            self.unsnapped_bytes = 0
        acting = ACTIONS.get(type(entry.record))
        if acting is not None:
            self._unsaved.needed = True
            acting(self, entry, before)
        elif not isinstance(entry.record, ReadBarrier):
            self._unsaved.needed = True
        if isinstance(entry.record, ReadBarrier):
            self._barrier_read(entry.record)

    def _void(self, entry: Entry, void: str) -> None:
        record = entry.record
        self.counters.void_records += 1
        if self.authority is not None and authorities.is_alarming(record):
            self.halt("void_commit", f"a committed transaction is void: {void}")
        elif isinstance(record, MasterClaimed) and self._is_awaited(record):
            self._give_up_claim(f"the claim is void: {void}")
        elif isinstance(record, TransactionProposed) and self._holds(record.txn):
            if self._log_answer is not None:
                self._answer(*self._log_answer)
        elif isinstance(record, ReadBarrier):
            self._barrier_read(record)

    def _holds(self, txn: TxnId) -> bool:
        return self.log is not None and self.log.proposal.txn == txn

    def _is_mine(self, record: MasterClaimed) -> bool:
        return (record.node, record.incarnation) == (self.config.node, self.config.incarnation)

    def _is_awaited(self, record: MasterClaimed) -> bool:
        """Tell whether this is the claim of the candidacy under way, not of one given up.

        Only then does the producer at hand belong to the claim's epoch.
        """
        candidacy = self.candidacy
        return (
            candidacy is not None
            and candidacy.step == "claiming"
            and candidacy.epoch == record.epoch
            and self._is_mine(record)
        )

    def _on_formed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, ClusterFormed)
        self.note(f"cluster {record.cluster_id} formed, roster {list(record.roster)}")

    def _on_claimed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, MasterClaimed)
        self.log = None
        self._master_heard_ms = self.now.mono_ms
        candidacy = self.candidacy if self._is_awaited(record) else None
        why = f"node {record.node} claimed epoch {record.epoch}"
        if self.master is not None:
            self.master.depose(why)
            self._former, self.master = self.master, None
            self.emit(CloseProducer())
        if self._former is not None:
            self._former.settle_rolled_back(why)
            self._former = None
        if candidacy is not None:
            self.candidacy = None
            self._claims_failed = 0
            self._claim_token = candidacy.token
            self.counters.claims += 1
            self.master = Master(self, record.epoch)
        elif self.candidacy is not None and not self._is_mine(record):
            self._give_up_claim(why)

    def _on_proposed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionProposed)
        self.log = LocalLog(entry.offset, record, entry.raw)
        self._log_answer = None
        self._log_token = 0
        self._before_log = before
        if self.master is not None:
            self.master.opened(record.txn, entry.offset)

    def _on_committed(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionCommitted)
        log, self.log = self.log, None
        if log is None or log.proposal.txn != record.txn:
            self._lose_track(f"the proposal of {record.txn} was not seen")
            return
        self.counters.transactions_committed += 1
        if not self.state_known:
            if self._synchroniser is not None:
                sealed = Sealed(log.proposal.mutations, record.cas, record.state_digest)
                self._synchroniser.add_commit(sealed)
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
        if after.digest != record.state_digest:
            self.halt(
                "digest_mismatch",
                f"{record.txn} folds to digest {after.digest:032x}, "
                f"not to {record.state_digest:032x}",
                rebuild=True,
            )
            return
        before, self.state = self.state, after
        self.counters.mutations_installed += len(mutations)
        for mutation in mutations:
            self._unsaved.changes[mutation.key] = after.get(mutation.key)
        if self.master is not None:
            self.master.installed(before, mutations)

    def _on_rolled_back(self, entry: Entry, before: AuthorityState | None) -> None:
        record = entry.record
        assert isinstance(record, TransactionRolledBack)
        if self._holds(record.txn):
            self.log = None
        self.counters.transactions_rolled_back += 1
        if self.master is not None:
            self.master.rolled_back(record)

    def _on_membership(self, entry: Entry, before: AuthorityState | None) -> None:
        if self.master is not None:
            self.master.membership_changed()

    def _lose_track(self, why: str) -> None:
        """The chain has a gap here: what this node shows can no longer be trusted."""
        if self.state_known:
            self.halt("gap", f"a gap in the commit topic: {why}", rebuild=True)

    # -- the store ---------------------------------------------------------------------------

    def _save(self, log: LocalLog | None, sync: bool = False) -> int:
        """Emit one batch, whose parts all belong to the applied offset, and return its token."""
        unsaved, self._unsaved = self._unsaved, Unsaved()
        token = self.token()
        self._in_flight.append((token, unsaved))
        sync = sync or len(self._in_flight) >= UNSYNCED_SAVES_MAX
        self.emit(
            Save(
                token,
                self.applied,
                self.authority if self.state_known else None,
                self._new_rows() if self.state_known else (),
                log,
                self.state.cas,
                self.state.digest,
                tuple(unsaved.changes.items()),
                unsaved.wipe,
                sync,
            )
        )
        return token

    def _save_installed(self) -> None:
        """Persist what the batch changed; it needs no sync, since the log can be read again."""
        unsaved = self._unsaved
        if not self.state_known or self.sick or not (unsaved.needed or unsaved.changes):
            return
        if self.log is None or self._log_answer is not None or self._log_token:
            self._save(self.log)
        elif unsaved.changes or unsaved.wipe:
            self._save_up_to(self.log)

    def _save_up_to(self, log: LocalLog) -> None:
        """Persist what was installed before a new proposal, as of the offset before it."""
        authority, applied = self.authority, self.applied
        self.authority, self.applied = self._before_log, log.offset - 1
        self._save(None)
        self.authority, self.applied = authority, applied

    def _save_log(self) -> None:
        """Persist the open proposal, synced; the answer waits for `Stored`."""
        if self.log is None or self._log_answer is not None or self._log_token:
            return
        if not self.state_known:
            self._answer(BEHIND, self.phase)
        elif self.sick:
            self._answer(REFUSED, self.sick)
        else:
            self._log_token = self._save(self.log, sync=True)

    def _new_rows(self) -> tuple[Any, ...]:
        """Return the rows of the rolling log that the store does not have as they are now."""
        authority = self.authority
        if authority is None:
            return ()
        oldest = authority.log_next - len(authority.log)
        first = max(self._saved_rows - 1, oldest)
        self._saved_rows = authority.log_next
        return tuple((n, authority.log[n]) for n in range(first, authority.log_next))

    def _stored(self, event: Stored) -> None:
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = ""
            self.note("the store takes writes again")
            self._save_installed()
            self._ask_to_join()
            return
        self._in_flight = [held for held in self._in_flight if held[0] > event.token]
        if event.token == self._log_token and self.log is not None:
            self._log_token = 0
            self._answer(ACCEPTED, "")

    def _store_failed(self, event: StoreFailed) -> None:
        """The store takes nothing more until a probe succeeds: keep what it did not take."""
        self._probed_ms = self.now.mono_ms
        if event.token == self._probe_token:
            self._probe_token = 0
            self.sick = event.reason
            return
        lost = [held for token, held in self._in_flight if token >= event.token]
        self._in_flight = [held for held in self._in_flight if held[0] < event.token]
        for held in reversed(lost):
            held.changes.update(self._unsaved.changes)
            self._unsaved = Unsaved(held.changes, held.wipe or self._unsaved.wipe, True)
        self._saved_rows = 0
        if not self.sick:
            self.sick = event.reason
            self.note(f"the store refuses writes: {event.reason}")
        if self._log_token and self._log_token >= event.token and self.log is not None:
            self._log_token = 0
            self._answer(REFUSED, event.reason)

    def _answer(self, answer: str, reason: str) -> None:
        """Answer the proposal in the local log, if it is still open and asks this node."""
        opened = self.authority.open if self.authority else None
        if self.log is None or opened is None or opened.offset != self.log.offset:
            return
        mine = (self.state.cas, self.state.digest)
        if answer == ACCEPTED and mine != (opened.prev_cas, opened.prev_digest):
            answer, reason = BEHIND, f"this node stands at CAS {self.state.cas}"
        self._log_answer = (answer, reason)
        if self.config.node not in opened.participants:
            return
        config = self.config
        record = ProposalAnswered(
            config.node, config.incarnation, opened.txn, opened.offset, answer, reason
        )
        if self.master is not None:
            self.master.answered(record)
        else:
            self.emit(Answer(record))

    # -- barriers: reading the log to its end -------------------------------------------------

    def _send_barrier(self) -> None:
        """Write a plain record that says nothing; once it is read back, all before it was."""
        self._barrier_nonce = (self.config.incarnation << 20) % 2**62 + self.token()
        self._append_barrier()

    def _append_barrier(self) -> None:
        self._barrier_sent_ms = self.now.mono_ms
        epoch = self.authority.epoch if self.authority else 0
        self.emit(Append(0, ReadBarrier(epoch, self._barrier_nonce)))

    def _barrier_read(self, record: ReadBarrier) -> None:
        if self.master is not None:
            self.master.barrier_read(record)
        if record.nonce != self._barrier_nonce:
            return
        self._barrier_nonce = 0
        if self.phase == CATCHING_UP:
            self._caught_up()
        elif self.candidacy is not None and self.candidacy.step == "looking":
            self._open_producer()
        elif self.candidacy is not None and self.candidacy.step == "reading":
            self._write_claim()

    def _caught_up(self) -> None:
        """The log has been folded to its end: the state is known, or must be synchronised."""
        self._master_heard_ms = self.now.mono_ms
        if self.state_known or self.authority is None or self.authority.last_cas == 0:
            self.state_known = True
            self.phase = FOLLOWING
            self._unsaved.needed = True
            self.note(f"caught up at offset {self.applied}, CAS {self.state.cas}")
            return
        self.phase = SYNCHRONISING
        self.counters.full_synchronisations += 1
        self._synchroniser = Synchroniser(self.authority.last_cas, self.authority.digest)
        self._sync_token = self.token()
        self._save(None)
        self.note(f"full synchronisation to CAS {self.authority.last_cas}")
        self.emit(Synchronise(self._sync_token, self.authority.last_cas))

    def _sync_read(self, event: SyncRead) -> None:
        if self._synchroniser is None or event.token != self._sync_token:
            return
        self._synchroniser.add_events(event.events, event.done)
        self._resolve_synchronisation()
        self._ask_to_join()

    def _resolve_synchronisation(self) -> None:
        if self._synchroniser is None:
            return
        result = self._synchroniser.resolve()
        if isinstance(result, Mismatch):
            self.halt("digest_mismatch", result.message, rebuild=True)
        elif result is not None:
            self._synchroniser = None
            self.state = result
            self.state_known = True
            self.phase = FOLLOWING
            self._saved_rows = 0
            self._unsaved = Unsaved(dict(result.entities.items()), wipe=True, needed=True)
            self.note(f"synchronised: {len(result.entities)} entities at CAS {result.cas}")
            self._log_answer = None
            self._log_token = 0
            if self.log is not None:
                self._before_log = None
            self._save(self.log)
            self._save_log()

    # -- time --------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        now = self.now.mono_ms
        if now - self._beaten_ms >= self.config.heartbeat_ms:
            self._beaten_ms = now
            self.emit(Beat(self.heartbeat()))
        if self._barrier_nonce and now - self._barrier_sent_ms > 2 * self.config.ack_timeout_ms:
            self._append_barrier()
        if self.sick and not self._probe_token and now - self._probed_ms > self.config.probe_ms:
            self._probed_ms = now
            self._probe_token = self.token()
            self.emit(Probe(self._probe_token))
        self._ask_to_join()
        self._maybe_claim()
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
        )

    def _beats_read(self, event: BeatsRead) -> None:
        for beat in event.records:
            if isinstance(beat, IndexerHeartbeat):
                self.indexers[beat.indexer] = Peer(self.now.mono_ms, beat)
                if self.master is not None:
                    self.master.indexer_heard(beat)
                continue
            self.peers[beat.node] = Peer(self.now.mono_ms, beat)
            authority = self.authority
            if (
                authority is not None
                and beat.state == MASTER
                and (beat.node, beat.epoch) == (authority.master, authority.epoch)
                and beat.incarnation == authority.incarnation
            ):
                self._master_heard_ms = self.now.mono_ms

    def alive(self, peer: Peer | None) -> bool:
        """Tell whether a process was heard within the liveness period."""
        return peer is not None and (self.now.mono_ms - peer.heard_ms <= self.config.liveness_ms)

    def _ask_to_join(self) -> None:
        """Ask for admission, with the CAS and digest reached; again whenever they change."""
        if self.phase != FOLLOWING or self.is_member or self.sick or self.master is not None:
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

    # -- claiming the mastership -------------------------------------------------------------

    def _maybe_claim(self) -> None:
        """Begin a claim when the master has been silent for this node's share of patience."""
        now = self.now.mono_ms
        if self.candidacy is not None:
            waited_ms = now - self.candidacy.since_ms
            if self.candidacy.step == "looking" and waited_ms > self.config.look_ms:
                # A master that died in a transaction holds the log's stable end back, until that
                # times out or is fenced: there is nothing more to see.
                self._open_producer()
            elif waited_ms > self.config.verdict_timeout_ms:
                self._give_up_claim(f"no progress while {self.candidacy.step}")
            return
        if self.phase != FOLLOWING or self.master is not None or self.sick:
            return
        if not self._may_claim() or now - self._master_heard_ms <= self._patience_ms():
            return
        self.candidacy = Candidacy("looking", self.token(), now)
        self._send_barrier()

    def _open_producer(self) -> None:
        """Nothing in the log speaks against a claim: fence whoever holds the mastership.

        A node that was cut off or stopped looks first, so that it does not fence a successor.
        """
        assert self.candidacy is not None
        if not self._may_claim() or self.now.mono_ms - self._master_heard_ms <= self._patience_ms():
            self.candidacy = None
            return
        self.candidacy.step = "opening"
        self.note("no master is alive: claiming the mastership")
        self.emit(OpenProducer(self.candidacy.token))

    def _may_claim(self) -> bool:
        if self.authority is None:
            return self.config.node in self.config.roster
        return self.config.node in self.authority.eligible

    def _patience_ms(self) -> int:
        """Return how long to wait for a master: the newest live node first, then by id.

        The stagger is longer than a claim takes, or the second would fence the first. A new
        cluster has no master to wait for, only heartbeats to hear.
        """
        eligible = self.authority.eligible if self.authority else self.config.roster
        ahead = 0
        for other in eligible:
            peer = self.peers.get(other)
            if other == self.config.node or peer is None or not self.alive(peer):
                continue
            if (-peer.beat.cas, other) < (-self.state.cas, self.config.node):
                ahead += 1
        config = self.config
        base = config.election_timeout_ms if self.authority else 2 * config.heartbeat_ms
        again = self._claims_failed * 2 * config.heartbeat_ms
        return base + again + ahead * config.election_stagger_ms

    def _producer_opened(self, event: ProducerOpened) -> None:
        if self.candidacy is None or event.token != self.candidacy.token:
            return
        self.candidacy.step = "reading"
        self._send_barrier()

    def _write_claim(self) -> None:
        """Everything before the fence is folded: write the claim, if this node still may."""
        assert self.candidacy is not None
        authority = self.authority
        if authority is not None and not (
            self._may_claim()
            and (self.state.cas, self.state.digest) == (authority.last_cas, authority.digest)
        ):
            self._give_up_claim("this node is not at the last committed transaction")
            return
        records: list[Any] = []
        if authority is None:
            formed = self._genesis()
            records.append(formed)
            authority = authorities.fold(None, 0, formed).state
            assert authority is not None
        config = self.config
        records.append(
            MasterClaimed(
                authority.epoch + 1,
                config.node,
                config.incarnation,
                config.address,
                self.state.cas,
                self.state.digest,
                authority,
                self.now.wall_ms,
            )
        )
        self.candidacy.step = "claiming"
        self.candidacy.epoch = authority.epoch + 1
        self.emit(Conclude(self.candidacy.token, tuple(records)))

    def _genesis(self) -> ClusterFormed:
        config = self.config
        return ClusterFormed(
            config.cluster_id,
            config.cas_base,
            config.roster,
            config.quorum,
            config.log_capacity,
            config.request_window_ms,
            self.now.wall_ms,
        )

    def _give_up_claim(self, why: str) -> None:
        assert self.candidacy is not None
        looked = self.candidacy.step == "looking"
        self.candidacy = None
        self._master_heard_ms = self.now.mono_ms
        if looked:
            return
        self._claims_failed = min(self._claims_failed + 1, 8)
        self.note(f"claim given up: {why}")
        self.emit(CloseProducer())

    def _producer_failed(self, event: ProducerFailed) -> None:
        if self.candidacy is not None:
            if self.candidacy.step != "looking" and event.token in (0, self.candidacy.token):
                self._give_up_claim(event.reason)
        elif self.master is not None and (event.token == 0 or event.token >= self._claim_token):
            self.step_down(event.reason)

    def step_down(self, why: str) -> None:
        """This master's producer is of no more use: only a new claim can go on writing."""
        assert self.master is not None
        self.note(f"stepping down: {why}")
        self.master.depose(why)
        self._former, self.master = self.master, None
        self.emit(CloseProducer())
        self._master_heard_ms = self.now.mono_ms - self.config.election_timeout_ms

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
        if self.master is not None:
            for record in event.records:
                self.master.answered(record)

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

    def _tail_read(self, event: TailRead) -> None:
        if self.master is not None:
            self.master.tail_read(event)


ACTIONS: dict[type, Callable[[Node, Entry, AuthorityState | None], None]] = {
    ClusterFormed: Node._on_formed,
    MasterClaimed: Node._on_claimed,
    TransactionProposed: Node._on_proposed,
    TransactionCommitted: Node._on_committed,
    TransactionRolledBack: Node._on_rolled_back,
    MemberAdmitted: Node._on_membership,
    MemberExpired: Node._on_membership,
    IndexerRegistered: Node._on_membership,
}

HANDLERS: dict[type, Callable[[Node, Any], None]] = {
    Started: Node._started,
    Tick: Node._tick,
    CommitRead: Node._commit_read,
    AcksRead: Node._acks_read,
    BeatsRead: Node._beats_read,
    DdlRead: Node._ddl_read,
    Requested: Node._requested,
    ReadRequested: Node._read_requested,
    Stored: Node._stored,
    StoreFailed: Node._store_failed,
    AppendFailed: Node._append_failed,
    ProducerOpened: Node._producer_opened,
    ProducerFailed: Node._producer_failed,
    Written: Node._written,
    Ended: Node._ended,
    SyncRead: Node._sync_read,
    TailRead: Node._tail_read,
}
