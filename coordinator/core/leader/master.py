"""What a node does while it is master: group commit, DDL to its end, admission, linearizable reads.

Pure, like the node that owns it. A master exists from the moment the fold accepts this node's claim
until a newer claim, or until its producer breaks. After that it only waits for the verdict on its
last proposal. Its parts do the work: `requests` (the commands that wait), `groups` (what goes into
a transaction), `committer` (the transaction in flight), `barriers` (reads), `membership`,
`handshakes`, `prepares` and `building` (DDL), and `scrubbing` (the compacted topic).

Invariants:

* At most one transaction is in flight, and at most one Kafka transaction.
* A caller hears "ok" only when the commit record was read back, a refusal only behind a barrier
  or a verdict that was read back while the epoch was still this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Beat, Note, ReadDdl, ReadTail, Reply, StopDdl
from coordinator.core.consensus.inputs import (
    AppendFailed,
    Ended,
    MembershipRequested,
    Scrubbed,
    TailRead,
    Written,
)
from coordinator.core.consensus.signals import LoseMastership, Result, Want
from coordinator.core.consensus.view import NodeView, Tokens, authority_of
from coordinator.core.leader.build_coordinator import BuildCoordinator
from coordinator.core.leader.committer import Committer
from coordinator.core.leader.first_handshakes import FirstHandshakes, waits_for_them
from coordinator.core.leader.group_commit import GroupCommit
from coordinator.core.leader.handshake import Handshakes, moved_shard
from coordinator.core.leader.membership import Membership
from coordinator.core.leader.prepare import Prepares
from coordinator.core.leader.read_barriers import ReadBarriers
from coordinator.core.leader.rebalance_coordinator import RebalanceCoordinator
from coordinator.core.leader.request_table import RequestTable
from coordinator.core.leader.rewrites import rewrites
from coordinator.core.leader.scrubbing import ScrubSchedule
from coordinator.core.leader.transaction import Attempt
from coordinator.core.model.commands import (
    Command,
    ForgetIndex,
    MarkReady,
    MoveShards,
    Request,
    StepDown,
    UndoIndex,
    unknown,
)
from coordinator.core.model.entities import DROPPING, INIT, Consumed, Index, Shard
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import (
    ALLOCATED,
    AckRecord,
    CommitRecord,
    HoldingsReported,
    IndexerHeartbeat,
    JoinRequested,
    Mutation,
    ProjectorHeartbeat,
    ProposalAnswered,
    ReadBarrier,
    SliceAnswered,
    TransactionCommitted,
    TransactionRolledBack,
)
from coordinator.core.model.stream_records import FailoverLog, HwHeartbeat, IndexRouted
from coordinator.core.model.types import Epoch, Offset, TxnId

RECOVERING, ACTIVE = "recovering", "active"


class Master:
    """What a node does while it is master of `epoch`.

    Large because it has one method for each input that concerns a master: each hands on to its
    parts.
    """

    def __init__(
        self,
        view: NodeView,
        epoch: Epoch,
        *,
        codec: EntityCodec,
        tokens: Tokens,
        counters: Counters,
        copies: Copies,
    ) -> None:
        self.epoch = epoch
        self.substate = RECOVERING
        self.requests = RequestTable()
        self.groups = GroupCommit(self.requests, codec)
        self.committer = Committer(epoch, tokens, codec, view.now.mono_ms)
        self.barriers = ReadBarriers(epoch, tokens)
        self.membership = Membership(view, epoch, codec, copies)
        self.handshakes = Handshakes(epoch, view.config.handshake_ms)
        self.first_handshakes = FirstHandshakes()
        self.prepares = Prepares(view.state.in_phase(INIT, DROPPING), view.peers.clock_ms)
        self.building = BuildCoordinator(epoch)
        self.rebalancing = RebalanceCoordinator()
        self.scrubbing = ScrubSchedule(view.now, tokens, counters)
        self._copies = copies
        self._taken: dict[int, int] = {}
        """By partition of `ddl`: the offset of the last command that was queued."""
        self._is_deposed = False
        self._remembers_enough = False
        """Whether the outcomes that are kept weigh as much as they may."""
        self._began_ms = view.now.mono_ms
        self._tail_token = tokens.next()

    @property
    def active(self) -> bool:
        """Tell whether this master takes commands: it has read `statecontext` to its end."""
        return self.substate == ACTIVE

    @property
    def is_resigning(self) -> bool:
        """Tell whether this master is about to give the mastership up."""
        return self.membership.resigning is not None

    @property
    def is_fruitless(self) -> bool:
        """Tell whether this master has begun something, and never committed anything."""
        has_begun = self.committer.attempt is not None or not self.active
        return has_begun and not self.committer.has_committed

    @property
    def is_behind(self) -> bool:
        """Tell whether so much waits, or is remembered, that none shall be read from `ddl` now."""
        return self.requests.is_long or self._remembers_enough

    @property
    def _is_idle(self) -> bool:
        """Tell whether no command waits, and no transaction is under way."""
        return not (self.committer.attempt or self.requests.queue or self.requests.upkeep)

    def _enter_wants(self, results: Iterable[Result]) -> list[Result]:
        """Enter what the parts want into the next group; return what is for the node."""
        left: list[Result] = []
        for result in results:
            if isinstance(result, Want):
                self.requests.want(result.key, result.command)
            else:
                left.append(result)
        return left

    # -- recovery ----------------------------------------------------------------------------

    def begin(self, view: NodeView) -> list[Result]:
        """Have the end of `statecontext` read: a predecessor may have left strays there."""
        cas = view.state.cas
        if view.config.first_handshakes_ms:
            for indexer in authority_of(view).indexers:
                if view.peers.indexer_alive(indexer):
                    self.handshakes.note(view.peers.indexers[indexer].beat, view.now.mono_ms)
        return [
            Note(f"master of epoch {self.epoch}, at CAS {cas}"),
            ReadTail(self._tail_token, cas),
        ]

    def tail_read(self, view: NodeView, event: TailRead) -> list[Result]:
        """Events above the last commit belong to no transaction: write those entities again."""
        if event.token != self._tail_token:
            return []
        state = view.state
        strays = sorted({e.mutation.key for e in event.events if e.cas > state.cas})
        found: list[Result] = []
        if strays:
            found.append(Note(f"rewriting {len(strays)} entities that stray events touched"))
            found += self._enter_wants(rewrites(view, "rewrite", strays))
        self.substate = ACTIVE
        positions = sorted(
            (v.entity.partition, v.entity.offset)
            for v in state.of_kind("consumed")
            if isinstance(v.entity, Consumed)
        )
        self._taken = dict(positions)
        return [*found, *self.take_ddl(view)]

    def take_ddl(self, view: NodeView) -> list[Result]:
        """Take DDL from when the first handshakes are over."""
        if not self.active or not self.first_handshakes.look(view, self.handshakes, self.building):
            return []
        self.requests.let_in()
        return [ReadDdl(tuple(sorted(self._taken.items())))]

    # -- what comes in -----------------------------------------------------------------------

    def requested(self, view: NodeView, request: Request) -> list[Result]:
        """Queue a command; the queue has bounds, and says so.

        No outcome may go before its time, or a repeat would be executed. So if they weigh too much,
        commands whose outcome would have to be kept wait until others have outlived the window.
        Repeats add nothing.
        """
        is_repeat = view.outcomes.knows(request.id) or request.id in view.state.pending
        adds = request.recorded and not is_repeat
        if adds and view.outcomes.size_bytes >= view.config.outcomes_bytes_max:
            text = "the outcomes of too many requests are kept: retry later"
            return [Reply(request.token, unknown("overloaded", text))]
        is_early = not self.first_handshakes.are_over and waits_for_them(request.command)
        return self.requests.requested(view.config, request, is_early=is_early)

    def commands_read(self, requests: Iterable[Request]) -> None:
        """Queue commands from the `ddl` topic, each position once, whoever reads it twice."""
        for request in requests if self.active else ():
            place = request.position
            assert place is not None
            if place.offset > self._taken.get(place.partition, -1):
                self._taken[place.partition] = place.offset
                self.requests.queue.append(request)

    def read_requested(self, view: NodeView, token: int, deadline_ms: int) -> list[Result]:
        """Take a linearizable read."""
        return self.barriers.read_requested(view, token, deadline_ms)

    def membership_requested(self, view: NodeView, event: MembershipRequested) -> list[Result]:
        """Take what an operator asks for."""
        return self.membership.requested(view, event)

    def step_down(self, view: NodeView, reason: str) -> list[Result]:
        """Give the mastership up, if somebody else can take it."""
        return self.membership.step_down(view, MembershipRequested(0, 0, StepDown(reason=reason)))

    def answered(self, view: NodeView, record: AckRecord) -> list[Result]:
        """Take an answer from a node, an indexer or a projector."""
        if isinstance(record, ProposalAnswered):
            self.committer.answered(record)
        elif isinstance(record, JoinRequested):
            self.membership.join_requested(view, record)
        elif isinstance(record, SliceAnswered):
            self._slice_answered(view, record)
        elif isinstance(record, HoldingsReported):
            return self._holdings_reported(view, record)
        elif isinstance(record, IndexRouted):
            return self._enter_wants(self.building.routed(view, record))
        else:
            self.building.built(view, record)
        return []

    def echoed(self, view: NodeView) -> None:
        """This node's own answer came back by the topic."""
        self.committer.echoed(view.now.mono_ms)

    def _slice_answered(self, view: NodeView, record: SliceAnswered) -> None:
        due = self.prepares.count(record)
        if due is not None:
            self._want_due(due)
        elif record.answer == ALLOCATED:
            held = view.state.index_by_id(record.index_id)
            index = held.entity if held else None
            assert index is None or isinstance(index, Index)
            if moved_shard(index, record.indexer, record.shard):
                self._want_shard(record.index_id, Shard(record.indexer, record.shard))

    def _holdings_reported(self, view: NodeView, report: HoldingsReported) -> list[Result]:
        """Take an indexer's part of the handshake; differences of the state become mutations."""
        difference = self.handshakes.count(report, view.state)
        if difference is None:
            return []
        for index_id, shard in difference.moved:
            self._want_shard(index_id, shard)
        if not difference:
            return []
        return [
            Note(
                f"indexer {report.indexer}: {len(difference.missing)} indexes are missing, "
                f"{len(difference.orphans)} are orphans, {len(difference.moved)} were moved"
            )
        ]

    def _want_shard(self, index_id: int, shard: Shard) -> None:
        self.requests.want(f"shard/{index_id}/{shard.indexer}", MoveShards(index_id, (shard,)))

    def _want_due(self, due: Command) -> None:
        assert isinstance(due, MarkReady | UndoIndex | ForgetIndex)
        self.requests.want(f"index/{due.index_id}", due)

    def indexer_heard(self, view: NodeView, beat: IndexerHeartbeat) -> None:
        self.handshakes.note(beat, view.now.mono_ms)
        self.membership.indexer_heard(view, beat)

    def projector_heard(self, view: NodeView, beat: ProjectorHeartbeat) -> None:
        self.membership.projector_heard(view, beat)

    def streams_read(self, view: NodeView, records: Iterable[HwHeartbeat | FailoverLog]) -> None:
        self.building.streams_read(view, records)

    def scrubbed(self, view: NodeView, event: Scrubbed) -> list[Result]:
        """`statecontext` was compared with the state."""
        return self._enter_wants(self.scrubbing.scrubbed(view, event, self._quiet_at))

    @property
    def _quiet_at(self) -> int | None:
        """After how many proposals nothing is in flight; None while a transaction is."""
        return self.committer.seq if self.committer.attempt is None else None

    # -- the one thing at a time -------------------------------------------------------------

    def advance(self, view: NodeView) -> list[Result]:
        """Do what can be done now: end the transaction, write for the Authority, form a group."""
        self._remembers_enough = view.outcomes.size_bytes >= view.config.outcomes_bytes_max
        found: list[Result] = []
        if self.committer.attempt is not None:
            found = self.committer.advance(view)
        elif self.active and not self.committer.is_writing:
            is_computing = partial(self.building.is_computing, view)
            due = self.membership.due(view, is_idle=self._is_idle, is_computing=is_computing)
            found = due.results
            if due.records:
                found += self.committer.write(view, due.records)
            elif not self.is_resigning:
                found += self._propose(view)
        if self.active and not _is_lost(found):
            found += self.barriers.send(view)
        return found

    def _propose(self, view: NodeView) -> list[Result]:
        """Form the next group from what waits, and send its proposal."""
        authority, requests = authority_of(view), self.requests
        if len(authority.members) < authority.minimum or self.membership.holds_back(view):
            return []
        if not requests.queue and not requests.upkeep:
            return []
        group = self.groups.form(view, self.committer.next_txn)
        for request, outcome in group.answered:
            requests.callers -= 1
            self.barriers.answer_behind(request.token, outcome, request.deadline_ms)
        return self.committer.propose(view, group) if group.enlisted else []

    def written(self, view: NodeView, event: Written) -> list[Result]:
        return self.committer.written(view, event)

    def append_failed(self, view: NodeView, event: AppendFailed) -> list[Result]:
        return self.committer.append_failed(view, event)

    def ended(self, view: NodeView, event: Ended) -> list[Result]:
        return self.committer.ended(view, event)

    def tick(self, view: NodeView) -> list[Result]:
        """Look at every deadline."""
        now, limit = view.now.mono_ms, view.config.verdict_timeout_ms
        if self.committer.is_overdue(view):
            return [LoseMastership(f"no verdict was read back within {limit} ms")]
        if not self.active and now - self._began_ms > limit:
            return [LoseMastership(f"statecontext was not read to its end within {limit} ms")]
        found = self.committer.tick(view)
        if _is_lost(found):
            return found
        timeout_ms = view.config.ddl_timeout_ms
        for due in self.prepares.overdue(view.peers.clock_ms, timeout_ms, partial(_is_gone, view)):
            self._want_due(due)
        found += self.requests.expire(now, _why_late(view))
        found += self.expire_enlisted(view)
        found += self.barriers.expire(now)
        if self.active:
            found += [Beat(asked) for asked in self.handshakes.due(now, view.state.cas)]
            found += self.take_ddl(view)
            if self.first_handshakes.are_over:
                found += self._enter_wants(self.building.tick(view))
                found += self._enter_wants(self.rebalancing.tick(view))
            found += self._enter_wants(self.scrubbing.tick(view, self._quiet_at))
            found += self._copies.trim(view)
        return found + self.barriers.tick(view)

    def expire_enlisted(self, view: NodeView) -> list[Result]:
        """Tell callers in the transaction whose deadline has passed."""
        attempt = self.committer.attempt
        if attempt is None:
            return []
        now = view.now.mono_ms
        return self.requests.expire_enlisted(attempt.enlisted, now, _why_late(view))

    # -- what is read back -------------------------------------------------------------------

    def read_back(self, record: CommitRecord) -> None:
        self.committer.read_back(record)

    def opened(self, txn: TxnId, offset: Offset) -> None:
        self.committer.opened(txn, offset)

    def barrier_read(self, view: NodeView, record: ReadBarrier) -> list[Result]:
        return self.barriers.read_back(view, record)

    def membership_changed(self, view: NodeView, record: CommitRecord) -> list[Result]:
        found = self.membership.changed(view, record)
        self.committer.membership_changed(authority_of(view))
        return found

    def resigned(self) -> list[Result]:
        """The resignation was read back."""
        return self.membership.resigned()

    def computed_state(self, record: TransactionCommitted) -> StateContext | None:
        return self.committer.computed_state(record)

    def installed(self, view: NodeView, mutations: tuple[Mutation, ...]) -> None:
        """The state moved on: note what it means for DDL under way."""
        for mutation in mutations:
            if not mutation.key.startswith("index/"):
                continue
            index = mutation.entity if isinstance(mutation.entity, Index) else None
            number = int(mutation.key.partition("/")[2])
            self.prepares.observe(number, index, view.peers.clock_ms)
            self.building.observe(number, index)
            if index is None or index.state != INIT:
                self.requests.unpark(number)  # Who waits for more than READY parks again.

    def committed(self, view: NodeView, record: TransactionCommitted) -> list[Result]:
        """The verdict *commit* was read back: callers hear, creators wait for READY."""
        attempt = self.committer.finish(record.txn)
        if attempt is None:
            return []
        self.committer.has_committed = True
        return [
            result
            for held in attempt.enlisted
            for result in self.requests.committed(view.state, held, record, self._is_deposed)
        ]

    def rolled_back(self, view: NodeView, record: TransactionRolledBack) -> list[Result]:
        """The verdict *rollback* was read back: try again, within bounds, if it still leads."""
        attempt = self.committer.finish(record.txn)
        if attempt is None:
            return []
        if self._is_deposed:
            return self._tell_rolled_back(attempt, record.reason)
        return self.requests.rolled_back(view.config, attempt.enlisted, record.reason)

    # -- the end -----------------------------------------------------------------------------

    def depose(self, why: str) -> list[Result]:
        """Answer everybody but the callers of the transaction: those wait for its verdict.

        Only those of whom nothing was proposed are told to try the new master.
        """
        answer = unknown("no_master", f"the master is changing ({why}): retry")
        self._is_deposed = True
        return [
            *self.requests.depose(answer),
            *self.barriers.depose(answer),
            *self.membership.depose(answer),
            StopDdl(),
        ]

    def settle_rolled_back(self, why: str) -> list[Result]:
        """A newer claim closed the transaction of this former master: it never happened."""
        attempt, self.committer.attempt = self.committer.attempt, None
        return self._tell_rolled_back(attempt, why) if attempt is not None else []

    def _tell_rolled_back(self, attempt: Attempt, why: str) -> list[Result]:
        outcome = unknown("unavailable", f"rolled back: {why}")
        return [r for held in attempt.enlisted for r in self.requests.reply(held.request, outcome)]


def _is_lost(results: Iterable[Result]) -> bool:
    return any(isinstance(result, LoseMastership) for result in results)


def _is_gone(view: NodeView, indexer: int) -> bool:
    """Tell whether an indexer is lost, or is being emptied and not there."""
    peers = view.peers
    is_emptied = indexer in view.state.drained and not peers.indexer_alive(indexer)
    return is_emptied or peers.indexer_lost(indexer)


def _why_late(view: NodeView) -> str:
    authority = authority_of(view)
    members, minimum = len(authority.members), authority.minimum
    if members < minimum:
        active = authorities.counted(members, "node is", "nodes are")
        return f"{active} active, {authorities.needed(minimum)}: repeat the request"
    return "no verdict within the deadline: repeat with the same request id"
