"""The master's part of a node: group commit by two phases, DDL to its end, admission, barriers.

Pure, like the node that owns it. It exists from the moment the fold accepted this node's claim
until a newer claim, or until its producer breaks; it never outlives either.

Invariants:

* At most one transaction is in flight, and at most one Kafka transaction.
* A caller hears "ok" only when the commit record was read back, a refusal only behind a barrier
  or a verdict that was read back while the epoch was still this one.
* The commands of a group have disjoint footprints, so that each is decided against the committed
  state alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from coordinator.core import ddl, decisions
from coordinator.core import state as states
from coordinator.core.authority_state import AuthorityState
from coordinator.core.building import Building
from coordinator.core.command_queue import CommandQueue
from coordinator.core.commands import (
    OK,
    Command,
    ForgetIndex,
    MarkReady,
    MoveShards,
    Outcome,
    Request,
    RewriteEntities,
    SkipRecord,
    UndoIndex,
    refused,
    unknown,
)
from coordinator.core.effects import (
    Abandon,
    Answer,
    Append,
    Beat,
    Conclude,
    ReadDdl,
    ReadTail,
    Reply,
    StopDdl,
    WriteEvents,
    WriteHistory,
)
from coordinator.core.entities import (
    DROPPING,
    INIT,
    Consumed,
    Index,
    Shard,
    consumed_key,
    request_key,
)
from coordinator.core.handshake import Handshakes, moved_shard
from coordinator.core.inputs import (
    AppendFailed,
    Ended,
    TailRead,
    Written,
)
from coordinator.core.membership import Membership
from coordinator.core.outcomes import OutcomesRecorded
from coordinator.core.placement import Candidate
from coordinator.core.prepare import Prepares
from coordinator.core.records import (
    ALLOCATED,
    AckRecord,
    CommitRecord,
    DdlReply,
    DeadLetter,
    Event,
    HoldingsReported,
    IndexerHeartbeat,
    JoinRequested,
    MemberExpired,
    Mutation,
    ProposalAnswered,
    ReadBarrier,
    SliceAnswered,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.scrubbing import Scrubbing
from coordinator.core.state import StateContext
from coordinator.core.stream_records import IndexRouted
from coordinator.core.transaction import (
    ABANDONING,
    CONCLUDING,
    PROPOSED,
    UNDOING,
    Attempt,
    Enlisted,
)
from coordinator.core.types import CAS_MAX, TxnId

if TYPE_CHECKING:
    from coordinator.core.node import Node

RECOVERING, ACTIVE = "recovering", "active"

UNDER_WAY = "the index is being created, and the master is changing: repeat with the same id"

TOO_MANY_READERS = unknown("overloaded", "too many reads wait: retry")

DDL_BACKLOG_MAX = 512
DDL_BACKLOG_BYTES_MAX = 16 * 1024 * 1024
"""Above this nothing is read from the `ddl` topic: it keeps for as long as it takes."""

PLAIN_BYTES = 64
"""What a mutation weighs in a proposal beside its key and value."""


@dataclass(slots=True)
class Behind:
    """Somebody who waits for a barrier: a reader, or a caller about to be refused."""

    token: int
    outcome: Outcome
    deadline_ms: int


@dataclass(slots=True)
class Group:
    """A group of commands while it is being formed."""

    enlisted: list[Enlisted]
    mutations: list[Mutation]
    size_bytes: int
    touched: set[str]
    partitions: set[int]
    consumed: dict[int, int]
    load: dict[int, int]
    indexers: list[Candidate]
    vbuckets: dict[str, int]
    is_closed: bool = False
    """The next command did not fit: nothing that came after it goes in, either."""

    @property
    def count(self) -> int:
        """How many mutations it comes to, one for each partition of `ddl` included."""
        return len(self.mutations) + len(self.consumed)


class Master:
    """What a node does while it is master of `epoch`."""

    def __init__(self, node: Node, epoch: int) -> None:
        self.node = node
        self.epoch = epoch
        self.substate = RECOVERING
        self.attempt: Attempt | None = None
        self.queue = CommandQueue()
        self._callers = 0
        """How many callers wait for the outcome of a command."""
        self.upkeep: dict[str, Request] = {}
        self.parked: dict[int, list[Request]] = {}
        self.creators: dict[int, list[Request]] = {}
        self.seq = 0
        self._writing = 0
        self._written: CommitRecord | None = None
        self._writing_since_ms = 0
        self._refusals: dict[int, int] = {}
        self._nonce = 0
        self._nonce_sent_ms = 0
        self._behind: list[Behind] = []
        self._behind_next: list[Behind] = []
        self._echoed_ms = 0
        self.membership = Membership(self)
        self.handshakes = Handshakes(epoch, node.config.handshake_ms)
        self.building = Building(self)
        self.scrubbing = Scrubbing(self)
        self._taken: dict[int, int] = {}
        self._deposed = False
        self._committed = False
        state = node.state
        self._began_ms = now = node.now.mono_ms
        self.prepares = Prepares(state.in_phase(INIT, DROPPING), now)
        node.note(f"master of epoch {epoch}, at CAS {state.cas}")
        self._tail_token = node.token()
        node.emit(ReadTail(self._tail_token, state.cas))

    @property
    def active(self) -> bool:
        return self.substate == ACTIVE

    @property
    def is_resigning(self) -> bool:
        """Tell whether this master is about to give the mastership up."""
        return self.membership.resigning is not None

    @property
    def is_fruitless(self) -> bool:
        """Tell whether this master has begun something, and never committed anything."""
        return not self._committed and (self.attempt is not None or not self.active)

    @property
    def authority(self) -> AuthorityState:
        assert self.node.authority is not None
        return self.node.authority

    # -- recovery ----------------------------------------------------------------------------

    def tail_read(self, event: TailRead) -> None:
        """Events above the last commit belong to no transaction: write those entities again."""
        if event.token != self._tail_token:
            return
        state = self.node.state
        strays = sorted({e.mutation.key for e in event.events if e.cas > state.cas})
        if strays:
            self.node.note(f"rewriting {len(strays)} entities that stray events touched")
            for number, keys in enumerate(self.portions(strays)):
                self.want(f"rewrite/{number}", RewriteEntities(keys))
        self.substate = ACTIVE
        positions = sorted(
            (v.entity.partition, v.entity.offset)
            for v in state.of_kind("consumed")
            if isinstance(v.entity, Consumed)
        )
        self._taken = dict(positions)
        self.node.emit(ReadDdl(tuple(positions)))

    def portions(self, keys: list[str]) -> list[tuple[str, ...]]:
        """Split keys so that their values fit into a proposal: one portion, if at all possible.

        The first transaction moves the state's CAS beyond the strays; a successor would not find
        those that are left. Hence their number is not bounded, only their bytes.
        """
        portions: list[list[str]] = [[]]
        size = 0
        for key in keys:
            held = self.node.state.get(key)
            weight = len(key) + PLAIN_BYTES + (len(held.value) if held else 0)
            if portions[-1] and size + weight > self.node.config.group_bytes_max:
                portions.append([])
                size = 0
            portions[-1].append(key)
            size += weight
        return [tuple(portion) for portion in portions]

    # -- what comes in -----------------------------------------------------------------------

    def requested(self, request: Request) -> None:
        """Queue a command; the queue has bounds, and says so."""
        config = self.node.config
        if self._callers >= config.queue_max or self.queue.size_bytes > config.queue_bytes_max:
            overloaded = unknown("overloaded", "too many commands wait: retry")
            self.node.emit(Reply(request.token, overloaded))
        else:
            self._callers += 1
            self.queue.append(request)

    @property
    def is_behind(self) -> bool:
        """Tell whether so many commands wait that none shall be read from the topic now."""
        return len(self.queue) > DDL_BACKLOG_MAX or self.queue.size_bytes > DDL_BACKLOG_BYTES_MAX

    @property
    def has_work(self) -> bool:
        """Tell whether a command waits, or a transaction is under way."""
        return bool(self.attempt or self.queue or self.upkeep)

    def commands_read(self, requests: Iterable[Request]) -> None:
        """Queue commands from the `ddl` topic, each position once, whoever reads it twice."""
        for request in requests if self.active else ():
            place = request.position
            assert place is not None
            if place.offset > self._taken.get(place.partition, -1):
                self._taken[place.partition] = place.offset
                self.queue.append(request)

    def read_requested(self, token: int, deadline_ms: int) -> None:
        """A linearizable read: answered once a barrier that is sent after now was read back."""
        if len(self._behind) + len(self._behind_next) >= self.node.config.readers_max:
            self.node.emit(Reply(token, TOO_MANY_READERS))
            return
        self._behind_next.append(Behind(token, Outcome(OK), deadline_ms))

    def answered(self, record: AckRecord) -> None:
        """Take an answer from a node or an indexer."""
        if isinstance(record, ProposalAnswered):
            if self.attempt is not None:
                self.attempt.take(record)
        elif isinstance(record, JoinRequested):
            self.membership.join_requested(record)
        elif isinstance(record, SliceAnswered):
            due = self.prepares.take(record)
            if due is not None:
                self._want_due(due)
            elif record.answer == ALLOCATED:
                self._shard_told(record)
        elif isinstance(record, HoldingsReported):
            self._holdings_reported(record)
        elif isinstance(record, IndexRouted):
            self.building.routed(record)
        else:
            self.building.built(record)

    def echoed(self, record: ProposalAnswered) -> None:
        """This node's own answer came back by the topic: answers can be heard."""
        self._echoed_ms = self.node.now.mono_ms

    def _shard_told(self, record: SliceAnswered) -> None:
        held = self.node.state.index_by_id(record.index_id)
        index = held.entity if held else None
        assert index is None or isinstance(index, Index)
        if moved_shard(index, record.indexer, record.shard):
            self._want_shard(record.index_id, Shard(record.indexer, record.shard))

    def _holdings_reported(self, report: HoldingsReported) -> None:
        """Take an indexer's part of the handshake; differences of the state become mutations."""
        difference = self.handshakes.take(report, self.node.state)
        if difference is None:
            return
        for index_id, shard in difference.moved:
            self._want_shard(index_id, shard)
        if difference:
            self.node.note(
                f"indexer {report.indexer}: {len(difference.missing)} indexes are missing, "
                f"{len(difference.orphans)} are orphans, {len(difference.moved)} were moved"
            )

    def _want_shard(self, index_id: int, shard: Shard) -> None:
        self.want(f"shard/{index_id}/{shard.indexer}", MoveShards(index_id, (shard,)))

    def indexer_heard(self, beat: IndexerHeartbeat) -> None:
        self.handshakes.heard(beat, self.node.now.mono_ms)
        self.membership.indexer_heard(beat)

    def membership_changed(self, record: CommitRecord) -> None:
        """The active list may have moved: refusals count anew."""
        self.membership.changed(record)
        members = self.authority.members
        self._refusals = {n: count for n, count in self._refusals.items() if n in members}

    # -- the one thing at a time -------------------------------------------------------------

    def advance(self) -> None:
        """Do what can be done now: end the attempt, write for the Authority, form a group."""
        if self.attempt is not None:
            self._drive(self.attempt)
        elif self.active and not self._writing:
            records = self.membership.due()
            if records:
                self._write(records)
            elif not self.is_resigning:
                self._propose()
        if self.node.master is self:
            self._send_barrier()

    def _write(self, records: Iterable[CommitRecord]) -> None:
        """Write Authority records in a Kafka transaction of their own, and wait for them.

        Until they are read back the Authority at hand is not the one to decide by.
        """
        written = tuple(records)
        self._writing = self.node.token()
        self._written = written[-1]
        self._writing_since_ms = self.node.now.mono_ms
        self.node.emit(Conclude(self._writing, written))

    def read_back(self, record: CommitRecord) -> None:
        """A record was folded: if it is the last one written, what was written counts now."""
        if self._writing and record == self._written:
            self._writing = 0
            self._written = None

    def ended(self, event: Ended) -> None:
        """The producer says that a Kafka transaction ended; only the log says how."""
        attempt = self.attempt
        if attempt is not None and event.token == attempt.token and attempt.state == ABANDONING:
            attempt.move(UNDOING)
            self._undo(attempt)

    def tick(self) -> None:
        """Look at every deadline."""
        now = self.node.now.mono_ms
        attempt = self.attempt
        limit = self.node.config.verdict_timeout_ms
        if (attempt is not None and now - attempt.began_ms > limit) or (
            self._writing and now - self._writing_since_ms > limit
        ):
            self.node.drop_mastership(f"no verdict was read back within {limit} ms")
            return
        if not self.active and now - self._began_ms > limit:
            self.node.drop_mastership(f"statecontext was not read to its end within {limit} ms")
            return
        if attempt is not None and attempt.state == PROPOSED:
            self._patience(attempt, now)
        for due in self.prepares.overdue(now, self.node.config.ddl_timeout_ms):
            self._want_due(due)
        self._expire_requests(now)
        if self.active:
            for asked in self.handshakes.due(now, self.node.state.cas):
                self.node.emit(Beat(asked))
            self.building.tick()
            self.scrubbing.tick()
            self.node.copies.trim()
        if self._nonce and now - self._nonce_sent_ms > 2 * self.node.config.ack_timeout_ms:
            self._nonce_sent_ms = now
            self.node.emit(Append(0, ReadBarrier(self.epoch, self._nonce)))

    # -- forming a group ---------------------------------------------------------------------

    def _propose(self) -> None:
        """Form the next group from what waits, and send its proposal."""
        now = self.node.now.mono_ms
        if len(self.authority.members) < self.authority.minimum:
            return
        if self.membership.holds_back:
            return
        if not self.queue and not self.upkeep:
            return
        group = self._form_group()
        if not group.enlisted:
            return
        self.seq += 1
        state = self.node.state
        proposal = TransactionProposed(
            TxnId(self.epoch, self.seq),
            state.cas,
            state.digest,
            self.authority.active,
            tuple(group.mutations),
        )
        token = self.node.token()
        lives = {n: member.incarnation for n, member in self.authority.members.items()}
        self.attempt = Attempt(proposal, group.enlisted, now, now, token=token, lives=lives)
        self.node.emit(WriteEvents(token, self._events(())))
        self.node.emit(Append(token, proposal))

    def _form_group(self) -> Group:
        held = (r.position for requests in self.parked.values() for r in requests)
        partitions = {position.partition for position in held if position is not None}
        alive, vbuckets = self._live_indexers(), self._buckets_seen()
        group = Group([], [], 0, set(), partitions, {}, {}, alive, vbuckets)
        rewrites = [r for r in self.upkeep.values() if isinstance(r.command, RewriteEntities)]
        if rewrites:
            self._enlist(group, rewrites[0])
            return group
        for request in tuple(islice(self.upkeep.values(), self.node.config.examined_max)):
            if not self._has_room(group):
                break
            self._enlist(group, request)
        self._enlist_waiting(group)
        for partition, offset in group.consumed.items():
            entity = Consumed(partition, offset)
            change = decisions.Change("DdlConsumed", consumed_key(partition), entity)
            group.mutations.append(self._mutation(change, Request(SkipRecord("", b""))))
        return group

    def _has_room(self, group: Group) -> bool:
        """Tell whether another command may go in: it may change two entities and consume."""
        limit = self.node.config.group_mutations_max
        return not group.is_closed and group.count + 2 <= limit and len(group.enlisted) < limit

    def _enlist_waiting(self, group: Group) -> None:
        """Go through the queue until the group is full, and not further than a bound.

        What cannot go in now stays where it was. A group thus costs what goes into it, however many
        wait. Those behind one that holds up its partition are passed over unseen: nobody else
        waits for them.
        """
        left: list[Request] = []
        examined = 0
        for _ in range(len(self.queue)):
            if examined >= self.node.config.examined_max or not self._has_room(group):
                break
            request = self.queue.pop()
            if request.position is not None and request.position.partition in group.partitions:
                left.append(request)
                continue
            examined += 1
            if not self._enlist(group, request):
                left.append(request)
        self.queue.push_front(left)

    def _enlist(self, group: Group, request: Request) -> bool:
        """Decide one command and put it into the group; False: it waits for a later group."""
        place = request.position
        if place is not None and place.partition in group.partitions:
            return False
        state = self.node.state
        keys = ddl.footprint(state, request.command, request.id if request.recorded else "")
        if keys & group.touched:
            self._block(group, request, keys)
            return False
        decision = ddl.decide(state, request, self._circumstances(group, request))
        if isinstance(decision, decisions.Parked):
            self.parked.setdefault(decision.index_id, []).append(request)
            self._block(group, request, keys)
            return True
        if isinstance(decision, decisions.Answered):
            return self._enlist_answer(group, request, decision.outcome)
        return self._enlist_changes(group, request, decision, keys)

    @staticmethod
    def _block(group: Group, request: Request, keys: frozenset[str]) -> None:
        """Whatever comes after a command that waits, and meets it, waits behind it."""
        group.touched |= keys
        if request.position is not None:
            group.partitions.add(request.position.partition)

    def _circumstances(self, group: Group, request: Request) -> decisions.Circumstances:
        seq = self.seq + 1
        number = len(group.mutations)
        return decisions.Circumstances(
            txn=TxnId(self.epoch, seq),
            fresh_id=(self.epoch << 40) | (seq << 10) | number,
            wall_ms=self.node.now.wall_ms,
            indexers=group.indexers,
            extra_load=group.load,
            request_window_ms=self.authority.request_window_ms,
            vbuckets=group.vbuckets,
            remembered=self.node.outcomes.find(request.id) if request.recorded else None,
            forgotten_ms=self.authority.outcomes_forgotten_ms,
        )

    def _buckets_seen(self) -> dict[str, int]:
        """Return how many vbuckets each bucket has that the key-value store has."""
        return {
            bucket.name: bucket.vbuckets
            for peer in self.node.projectors.values()
            if self.node.alive(peer)
            for bucket in peer.beat.buckets
        }

    def _live_indexers(self) -> list[Candidate]:
        registered = self.authority.indexers
        return [
            Candidate(number, peer.beat.zone)
            for number, peer in sorted(self.node.indexers.items())
            if number in registered and self.node.alive(peer)
        ]

    def _enlist_answer(self, group: Group, request: Request, outcome: Outcome) -> bool:
        """Nothing changes: tell behind a barrier, or record it where the topic demands it.

        False: the reply does not fit into this group any more.
        """
        self._forget_upkeep(request)
        if request.position is None:
            if request.token:
                self._callers -= 1
                self._behind_next.append(Behind(request.token, outcome, request.deadline_ms))
            return True
        size = len(decisions.compact(outcome.details)) + len(decisions.compact(outcome.answer))
        if group.enlisted and group.size_bytes + size > self.node.config.group_bytes_max:
            self._block(group, request, frozenset())
            group.is_closed = True
            return False
        group.size_bytes += size
        record = None
        if request.id and not isinstance(request.command, SkipRecord):
            known = self.node.outcomes.find(request.id) is not None
            known = known or request.id in self.node.state.pending
            record = None if known else decisions.recorded(request, outcome)
            group.touched.add(request_key(request.id))
        first = len(group.mutations)
        group.enlisted.append(Enlisted(request, outcome, first, -1, record=record))
        group.consumed[request.position.partition] = request.position.offset
        return True

    def _enlist_changes(
        self, group: Group, request: Request, decision: decisions.Accepted, keys: frozenset[str]
    ) -> bool:
        config = self.node.config
        mutations = [self._mutation(change, request) for change in decision.changes]
        size = _weight(mutations)
        limits = (config.group_mutations_max, config.group_bytes_max)
        count = len(mutations) + (request.position is not None)
        whole = size + _growth(mutations) if decision.waits_for else size
        too_large = count > limits[0] or whole > limits[1]
        if too_large and not request.key:
            outcome = refused(
                "value_too_large",
                f"the command weighs {whole} bytes in {count} changes, more than a transaction may",
                limit=limits[1],
            )
            return self._enlist_answer(group, request, outcome)
        if too_large:
            # What the master itself has to do is never dropped: it goes alone.
            full = bool(group.enlisted)
        else:
            full = group.count + count > limits[0] or group.size_bytes + size > limits[1]
        if full:
            self._block(group, request, keys)
            group.is_closed = True
            return False
        first = len(group.mutations)
        outcome = Outcome(OK, answer=decision.answer)
        group.enlisted.append(
            Enlisted(request, outcome, first, decision.subject, decision.waits_for, decision.record)
        )
        group.mutations.extend(mutations)
        group.size_bytes += size
        group.touched |= keys
        for mutation in mutations:
            if isinstance(mutation.entity, Index) and decision.waits_for:
                for piece in mutation.entity.slices:
                    for host in piece.hosts:
                        group.load[host] = group.load.get(host, 0) + 1
        if request.position is not None:
            group.consumed[request.position.partition] = request.position.offset
        return True

    def _mutation(self, change: decisions.Change, request: Request) -> Mutation:
        encoded = None
        if change.entity is not None:
            encoded = self.node.codec.encode_entity(change.entity)
        return Mutation(
            change.event,
            change.key,
            encoded,
            change.entity,
            request.id,
            request.principal,
            self.node.now.wall_ms,
        )

    def _events(self, cas: tuple[int, ...]) -> tuple[Event, ...]:
        """Return the attempt's mutations as events, with their CAS once it is known."""
        assert self.attempt is not None
        proposal = self.attempt.proposal
        count = len(proposal.mutations)
        return tuple(
            Event(mutation, proposal.txn, number, count, cas[number] if cas else 0)
            for number, mutation in enumerate(proposal.mutations)
        )

    # -- driving the attempt -----------------------------------------------------------------

    def opened(self, txn: TxnId, offset: int) -> None:
        """The fold opened a proposal: it is *initial*."""
        if self.attempt is not None and self.attempt.proposal.txn == txn:
            self.attempt.open_at(offset)

    def written(self, event: Written) -> None:
        """The events stand in the open Kafka transaction: their CAS is known."""
        attempt = self.attempt
        if attempt is None or event.token != attempt.token or attempt.state != PROPOSED:
            return
        base = self.authority.cas_base
        cas = tuple(base + offset for offset in event.offsets)
        first = cas[0] if cas else 0
        contiguous = cas == tuple(range(first, first + len(attempt.proposal.mutations)))
        if not contiguous or first <= self.node.state.cas or cas[-1] > CAS_MAX:
            self.node.drop_mastership(f"the events of {attempt.proposal.txn} are not contiguous")
            return
        attempt.cas = cas
        attempt.after = states.evolve(
            self.node.state, zip(attempt.proposal.mutations, cas, strict=True)
        )
        self.node.emit(WriteHistory(self._events(cas)))

    def append_failed(self, event: AppendFailed) -> None:
        """The proposal may be lost: send it again; the fold opens it at most once."""
        attempt = self.attempt
        if attempt is not None and event.token == attempt.token:
            self._resend(attempt)

    def _drive(self, attempt: Attempt) -> None:
        if attempt.state != PROPOSED or attempt.offset is None:
            return
        refusals = attempt.refusals
        if any(a.node == self.node.config.node for a in refusals):
            self.node.drop_mastership("this node's own store refuses writes")
        elif refusals:
            reasons = "; ".join(f"node {a.node}: {a.reason}" for a in refusals)
            self._abandon(attempt, reasons, self._persistent(refusals))
        elif attempt.cas and not attempt.missing:
            self._conclude(attempt, ())

    def _persistent(self, refusals: tuple[ProposalAnswered, ...]) -> tuple[int, ...]:
        """Return the replicas that have refused too many times running."""
        for answer in refusals:
            self._refusals[answer.node] = self._refusals.get(answer.node, 0) + 1
        limit = self.node.config.attempts_max
        return tuple(a.node for a in refusals if self._refusals[a.node] >= limit)

    def _patience(self, attempt: Attempt, now: int) -> None:
        """Ask the silent again, and after too many times go on without them, or not at all."""
        config = self.node.config
        if now - attempt.sent_ms <= config.ack_timeout_ms:
            return
        if attempt.resends < config.ack_retries_max and not self._lapsed(attempt):
            self._resend(attempt)
            return
        if attempt.offset is None:
            self._abandon(attempt, "the proposal was not read back", ())
            return
        if not attempt.cas:
            self._resend(attempt)
            return
        silent = attempt.missing
        copies = len(attempt.accepted)
        if self.node.config.node in silent:
            self.node.drop_mastership("this node's own store does not answer")
        elif self._echoed_ms < attempt.doubted_ms and not self._lapsed(attempt):
            # Not even this node's own answer came back: nobody is to blame for their silence.
            self._resend(attempt)
        elif copies >= self.authority.minimum:
            self._conclude(attempt, silent)
        else:
            reason = f"nodes {list(silent)} are silent, and {copies} copies are too few"
            self._abandon(attempt, reason, silent)

    def _lapsed(self, attempt: Attempt) -> bool:
        """Tell whether all that are missing have stopped their heartbeats as well."""
        missing = [n for n in attempt.missing if n != self.node.config.node]
        return bool(missing) and not any(self.node.alive(self.node.peers.get(n)) for n in missing)

    def _resend(self, attempt: Attempt) -> None:
        """Send the proposal again: void in the fold, and a reminder to who holds it."""
        if not attempt.resends:
            attempt.doubted_ms = self.node.now.mono_ms
        attempt.resends += 1
        attempt.sent_ms = self.node.now.mono_ms
        own = attempt.answers.get(self.node.config.node)
        if own is not None:
            self.node.emit(Answer(own))
        if attempt.state == PROPOSED:
            self.node.emit(Append(attempt.token, attempt.proposal))

    def _conclude(self, attempt: Attempt, silent: tuple[int, ...]) -> None:
        """Everybody has it: write the verdict, the events and the replies, all or nothing."""
        assert attempt.after is not None
        assert attempt.offset is not None
        attempt.move(CONCLUDING)
        for node in attempt.accepted:
            self._refusals.pop(node, None)
        wall_ms = self.node.now.wall_ms
        group = self._outcomes_of(attempt)
        forgotten = self.node.outcomes.due(self.node.now, self.authority.request_window_ms)
        verdict = TransactionCommitted(
            attempt.proposal.txn,
            attempt.offset,
            attempt.accepted,
            attempt.cas,
            attempt.after.digest,
            wall_ms,
            group,
            forgotten,
            self.node.outcomes.digest_after(attempt.cas[-1], group, forgotten),
            self.node.outcomes.forgotten_ms(forgotten),
        )
        expired = [MemberExpired(self.epoch, n, "silent", wall_ms) for n in silent]
        replies = tuple(self._ddl_replies(attempt))
        letters = tuple(self._dead_letters(attempt))
        self.node.emit(Conclude(attempt.token, (*expired, verdict), replies, letters))

    def _outcomes_of(self, attempt: Attempt) -> bytes:
        """Return what is remembered of the requests of this transaction, empty if nothing is."""
        found = tuple(
            replace(held.record, cas=_dated(held, attempt.cas, "").cas)
            for held in attempt.enlisted
            if held.record is not None
        )
        if not found:
            return b""
        txn, wall_ms = attempt.proposal.txn, self.node.now.wall_ms
        return self.node.codec.encode_outcomes(
            OutcomesRecorded(txn, attempt.cas[-1], wall_ms, found)
        )

    def _abandon(self, attempt: Attempt, reason: str, expiring: tuple[int, ...]) -> None:
        """One refused, or too few answered: abort the Kafka transaction, then roll back."""
        attempt.move(ABANDONING)
        attempt.reason = reason
        attempt.expiring = expiring
        self.node.emit(Abandon(attempt.token))

    def _undo(self, attempt: Attempt) -> None:
        """Write the terminal status *rollback*; those that cannot follow leave the active list."""
        wall_ms = self.node.now.wall_ms
        offset = -1 if attempt.offset is None else attempt.offset
        verdict = TransactionRolledBack(attempt.proposal.txn, offset, attempt.reason, wall_ms)
        expired = [MemberExpired(self.epoch, n, attempt.reason, wall_ms) for n in attempt.expiring]
        self._write((*expired, verdict))

    def prepared_state(self, record: TransactionCommitted) -> StateContext | None:
        """Return the state that the commit record leads to, if this master computed it."""
        attempt = self.attempt
        if attempt is None or attempt.proposal.txn != record.txn or attempt.cas != record.cas:
            return None
        return attempt.after

    # -- verdicts, read back -----------------------------------------------------------------

    def installed(self, before: StateContext, mutations: tuple[Mutation, ...]) -> None:
        """The state moved on: note what it means for DDL under way."""
        now = self.node.now.mono_ms
        for mutation in mutations:
            entity = mutation.entity
            if mutation.key.startswith("index/"):
                index = entity if isinstance(entity, Index) else None
                number = int(mutation.key.partition("/")[2])
                self.prepares.observe(number, index, now)
                self.building.observe(number, index)
                if index is None or index.state != "init":
                    self.queue.push_front(self.parked.pop(number, []))

    def committed(self, record: TransactionCommitted) -> None:
        """The verdict *commit* was read back: callers hear, creators wait for READY."""
        attempt = self.attempt
        if attempt is None or attempt.proposal.txn != record.txn:
            return
        self.attempt = None
        self._committed = True
        for held in attempt.enlisted:
            self._settle(held, record)

    def _settle(self, held: Enlisted, record: TransactionCommitted) -> None:
        command = held.request.command
        outcome = _dated(held, record.cas, str(record.txn))
        self._forget_upkeep(held.request)
        if held.waits_for and self._deposed:
            self._reply(held.request, unknown("unavailable", UNDER_WAY))
        elif held.waits_for:
            if held.request.token:
                self.creators.setdefault(held.waits_for, []).append(held.request)
        elif isinstance(command, MarkReady):
            self._settle_creators(command.index_id, outcome)
        elif isinstance(command, UndoIndex):
            self._settle_creators(command.index_id, refused("indexer_refused", command.reason))
        else:
            self._reply(held.request, outcome)

    def _settle_creators(self, index_id: int, outcome: Outcome) -> None:
        for creator in self.creators.pop(index_id, []):
            self._reply(creator, outcome)

    def rolled_back(self, record: TransactionRolledBack) -> None:
        """The verdict *rollback* was read back: try again, within bounds."""
        attempt = self.attempt
        if attempt is not None and attempt.proposal.txn == record.txn:
            self.attempt = None
            self._retry(attempt, record.reason)

    def _retry(self, attempt: Attempt, reason: str) -> None:
        again: list[Request] = []
        for held in attempt.enlisted:
            request = replace(held.request, attempts=held.request.attempts + 1)
            if request.token and request.attempts >= self.node.config.attempts_max:
                self._reply(request, unknown("unavailable", f"rolled back: {reason}"))
            elif request.token or request.position:
                again.append(request)
        self.queue.push_front([*again, *self._unpark_published()])

    def _unpark_published(self) -> list[Request]:
        """Take published commands out of the parking: those before them are decided again."""
        published: list[tuple[int, int, Request]] = []
        for number, requests in list(self.parked.items()):
            places = ((r.position, r) for r in requests)
            published += [(p.partition, p.offset, r) for p, r in places if p is not None]
            self.parked[number] = [r for r in requests if r.position is None]
            if not self.parked[number]:
                del self.parked[number]
        return [request for *_, request in sorted(published, key=lambda row: row[:2])]

    def _ddl_replies(self, attempt: Attempt) -> Iterable[DdlReply]:
        """Yield the replies that become visible with the commit, to commands from the topic."""
        txn = str(attempt.proposal.txn)
        for held in attempt.enlisted:
            request = held.request
            outcome = _dated(held, attempt.cas, txn)
            if request.position is not None and not held.waits_for and request.id:
                yield self._ddl_reply(request.id, outcome)
            elif isinstance(request.command, MarkReady | UndoIndex):
                index = self._created(request.command.index_id)
                if index is not None:
                    if isinstance(request.command, UndoIndex):
                        outcome = refused("indexer_refused", request.command.reason)
                    yield self._ddl_reply(index.request, outcome)

    def _created(self, index_id: int) -> Index | None:
        """Return an index that a producer waits for on `ddl-replies`."""
        held = self.node.state.index_by_id(index_id)
        index = held.entity if held else None
        return index if isinstance(index, Index) and index.by_topic else None

    def _ddl_reply(self, request_id: str, outcome: Outcome) -> DdlReply:
        return DdlReply(
            request_id,
            outcome.status,
            decisions.compact(outcome.answer),
            outcome.code,
            outcome.message,
            decisions.compact(outcome.details),
            outcome.cas,
            outcome.txn,
            self.node.now.wall_ms,
        )

    def _dead_letters(self, attempt: Attempt) -> Iterable[DeadLetter]:
        for held in attempt.enlisted:
            command, place = held.request.command, held.request.position
            if isinstance(command, SkipRecord) and place is not None:
                yield DeadLetter(
                    "ddl",
                    place.partition,
                    place.offset,
                    command.reason,
                    command.value,
                    self.node.now.wall_ms,
                )

    # -- barriers ----------------------------------------------------------------------------

    def _send_barrier(self) -> None:
        """Send one barrier for all that wait, unless one is in flight."""
        if self._nonce or not self._behind_next or not self.active:
            return
        self._behind, self._behind_next = self._behind_next, []
        self._nonce = (self.node.config.incarnation << 20) % 2**62 + self.node.token()
        self._nonce_sent_ms = self.node.now.mono_ms
        self.node.emit(Append(0, ReadBarrier(self.epoch, self._nonce)))

    def barrier_read(self, record: ReadBarrier) -> None:
        """The barrier was read back in this master's epoch: those behind it may be told."""
        if record.nonce != self._nonce or record.epoch != self.epoch:
            return
        self._nonce = 0
        behind, self._behind = self._behind, []
        for waiter in behind:
            outcome = waiter.outcome
            if outcome.status == OK and not outcome.cas:
                outcome = replace(outcome, cas=self.node.state.cas)
            self.node.emit(Reply(waiter.token, outcome))

    # -- the end -----------------------------------------------------------------------------

    def depose(self, why: str) -> None:
        """Answer everybody but the attempt's callers: those wait for its verdict.

        Only those of whom nothing was proposed are told to try the new master.
        """
        answer = unknown("no_master", f"the master is changing ({why}): retry")
        self._deposed = True
        for request in (*self.queue, *(r for rs in self.parked.values() for r in rs)):
            self._reply(request, answer)
        for request in (r for rs in self.creators.values() for r in rs):
            self._reply(request, unknown("unavailable", UNDER_WAY))
        for waiter in (*self._behind, *self._behind_next):
            self.node.emit(Reply(waiter.token, answer))
        self.membership.depose(answer)
        self.queue.clear()
        self.parked.clear()
        self.creators.clear()
        self._behind, self._behind_next = [], []
        self.node.emit(StopDdl())

    def settle_rolled_back(self, why: str) -> None:
        """A newer claim closed the attempt of this former master: it never happened."""
        attempt, self.attempt = self.attempt, None
        for held in attempt.enlisted if attempt else ():
            self._reply(held.request, unknown("unavailable", f"rolled back: {why}"))

    # -- small things ------------------------------------------------------------------------

    def want(self, key: str, command: Command) -> None:
        """Enter a command of the master's own into the next group, once."""
        if key not in self.upkeep:
            self.upkeep[key] = Request(command, principal="coordinator", key=key)

    def _forget_upkeep(self, request: Request) -> None:
        """A command of the master's own has been decided for good."""
        if request.key and self.upkeep.get(request.key) is request:
            del self.upkeep[request.key]

    def _want_due(self, due: Command) -> None:
        assert isinstance(due, MarkReady | UndoIndex | ForgetIndex)
        self.want(f"index/{due.index_id}", due)

    def _expire_requests(self, now: int) -> None:
        """Tell callers whose deadline has passed that the fate of their request is unknown."""
        late = self.queue.take_late(now)
        for table in (self.parked, self.creators):
            for number, requests in list(table.items()):
                late += [r for r in requests if r.token and r.deadline_ms <= now]
                table[number] = [r for r in requests if not (r.token and r.deadline_ms <= now)]
                if not table[number]:
                    del table[number]
        for request in late:
            self._reply(request, unknown("timeout", self._why_late()))
        self.expire_enlisted(now)
        for waiter in [w for w in (*self._behind, *self._behind_next) if w.deadline_ms <= now]:
            self.node.emit(Reply(waiter.token, unknown("timeout", "the log did not answer")))
        self._behind = [w for w in self._behind if w.deadline_ms > now]
        self._behind_next = [w for w in self._behind_next if w.deadline_ms > now]

    def expire_enlisted(self, now: int) -> None:
        """Tell those in the attempt as much; what it does with their requests stays open."""
        for held in self.attempt.enlisted if self.attempt else ():
            if held.request.token and held.request.deadline_ms <= now:
                self._reply(held.request, unknown("timeout", self._why_late()))
                held.request = replace(held.request, token=0)

    def _why_late(self) -> str:
        members, minimum = len(self.authority.members), self.authority.minimum
        if members < minimum:
            return f"{members} nodes are active, {minimum} copies are needed: repeat the request"
        return "no verdict within the deadline: repeat with the same request id"

    def _reply(self, request: Request, outcome: Outcome) -> None:
        if request.token:
            self._callers -= 1
            self.node.emit(Reply(request.token, outcome))


def _growth(mutations: Iterable[Mutation]) -> int:
    """Return by how much an index that is being created may still grow."""
    hosts = sum(len(m.entity.hosts) for m in mutations if isinstance(m.entity, Index))
    return ddl.GROWTH_BYTES + ddl.SHARD_BYTES * hosts


def _weight(mutations: Iterable[Mutation]) -> int:
    """Return how much of a group's bytes these mutations take."""
    return sum(len(m.key) + len(m.value or b"") + PLAIN_BYTES for m in mutations)


def _dated(held: Enlisted, cas: tuple[int, ...], txn: str) -> Outcome:
    """Return the answer with the CAS and the transaction that the log gave it."""
    if held.subject < 0:
        return held.outcome
    return replace(held.outcome, cas=cas[held.first + held.subject], txn=txn)
