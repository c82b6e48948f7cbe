"""What a master writes to `commit` beside transactions: who is a member, and who leads.

Pure. These are admissions, expiries, registrations, snapshots, and what operators ask for. The
master decides each by the Authority as it was read back, between two transactions. Each counts
only once the master has read it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.copies import Copies
from coordinator.core.consensus.effects import Note, Reply
from coordinator.core.consensus.election import reform_record
from coordinator.core.consensus.inputs import MembershipRequested
from coordinator.core.consensus.separation import separation
from coordinator.core.consensus.signals import AwaitSuccessor, Result
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.commands import (
    OK,
    Leave,
    Outcome,
    Reform,
    RemoveService,
    StepDown,
    refused,
    unknown,
)
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.records import (
    INDEXER,
    AuthoritySnapshot,
    ClusterReformed,
    CommitRecord,
    IndexerHeartbeat,
    IndexerRegistered,
    JoinRequested,
    MasterResigned,
    MemberAdmitted,
    MemberExpired,
    MemberLeft,
    OutcomesForgotten,
    ProjectorHeartbeat,
    ProjectorRegistered,
    ServiceRemoved,
)
from coordinator.core.model.types import Cas, Epoch

REQUESTS_MAX = 64
"""So many operators may wait for a change of the lists."""

FORGET_PAUSE_MS = 5_000
"""So often, at most, an idle master forgets outcomes."""


class Due(NamedTuple):
    """Records to write to `commit`, and results to return before them."""

    records: list[CommitRecord]
    results: list[Result]


class Membership:
    """The part of a master that keeps the lists of the Authority."""

    def __init__(self, view: NodeView, epoch: Epoch, codec: EntityCodec, copies: Copies) -> None:
        self._epoch = epoch
        self._codec = codec
        self._copies = copies
        self.joiners: dict[int, JoinRequested] = {}
        self.resigning: MembershipRequested | None = None
        self._hold_until_ms = 0
        self._indexers: dict[int, IndexerHeartbeat] = {}
        self._projectors: dict[int, ProjectorHeartbeat] = {}
        self._requests: list[MembershipRequested] = []
        self._gone: set[tuple[int, int]] = set()
        self._began_ms = view.peers.clock_ms
        self._leads_since_ms = self._forgot_ms = view.now.mono_ms

    def holds_back(self, view: NodeView) -> bool:
        """Tell whether proposals wait a moment for those who are about to join."""
        return bool(self.joiners) and view.now.mono_ms < self._hold_until_ms

    # -- what is heard -----------------------------------------------------------------------

    def join_requested(self, view: NodeView, record: JoinRequested) -> None:
        """A node asks to be admitted, unless this incarnation is in, or has left.

        One whose heartbeats are not heard would be expired at once, and ask again.
        """
        member = authority_of(view).members.get(record.node)
        if member is not None and member.incarnation == record.incarnation:
            return
        if (record.node, record.incarnation) in self._gone or not _is_heard(view, record):
            return
        now, hold_ms = view.now.mono_ms, view.config.admission_hold_ms
        if record.node not in self.joiners or now > self._hold_until_ms + 4 * hold_ms:
            self._hold_until_ms = now + hold_ms
        self.joiners[record.node] = record

    def indexer_heard(self, view: NodeView, beat: IndexerHeartbeat) -> None:
        """An indexer that is not registered as it is will be, if it can be."""
        known = authority_of(view).indexers.get(beat.indexer)
        if authorities.impossible_id(beat.indexer):
            return
        if known is None or (known.incarnation, known.address, known.zone) != (
            beat.incarnation,
            beat.address,
            beat.zone,
        ):
            self._indexers[beat.indexer] = beat
        else:
            self._indexers.pop(beat.indexer, None)

    def projector_heard(self, view: NodeView, beat: ProjectorHeartbeat) -> None:
        """Likewise a projector."""
        known = authority_of(view).projectors.get(beat.projector)
        if authorities.impossible_id(beat.projector):
            return
        if known is None or (known.incarnation, known.address) != (beat.incarnation, beat.address):
            self._projectors[beat.projector] = beat
        else:
            self._projectors.pop(beat.projector, None)

    # -- what is due -------------------------------------------------------------------------

    def due(self, view: NodeView, *, is_idle: bool, is_computing: Callable[[], bool]) -> Due:
        """Return the snapshot, or the resignation, or what an operator asks for, or all the rest.

        A snapshot goes alone: it counts only where it equals the fold, and the state is copied at
        its CAS. Expiries go first: that of a node's last incarnation must not end the one that is
        admitted. While timestamps are computed, which rest on the indexers that take part, none is
        registered. A master that is idle forgets outcomes.
        """
        authority, copies = authority_of(view), self._copies
        if not authority.outcomes_apart:
            return Due([separation(view.state, self._codec, self._epoch, view.now)], [])
        if copies.is_due(view):
            copies.begun()
            return Due([AuthoritySnapshot(self._epoch, authority)], [])
        if self.resigning is not None:
            return self._resignation(view, self.resigning)
        requested, results = self._next_granted(view)
        if requested is not None:
            return Due([requested], results)
        has_newcomers = bool(self._indexers or self._projectors)
        records = [
            *self._lapsed(view),
            *self._admissions(view),
            *(self._registrations(view) if has_newcomers and not is_computing() else ()),
            *copies.kept_by(self._epoch),
            *(self._forgotten(view) if is_idle else ()),
        ]
        return Due(records, results)

    def _forgotten(self, view: NodeView) -> list[CommitRecord]:
        """Forget outcomes while nothing is committed that would: a window is not kept for ever."""
        now, outcomes = view.now.mono_ms, view.outcomes
        if now - self._forgot_ms < FORGET_PAUSE_MS:
            return []
        self._forgot_ms = now
        window_ms = authority_of(view).request_window_ms
        up_to = outcomes.due(view.now, window_ms, now - self._leads_since_ms)
        if not up_to:
            return []
        digest = outcomes.digest_after(Cas(0), b"", up_to)
        return [OutcomesForgotten(self._epoch, up_to, digest, outcomes.forgotten_ms(up_to))]

    def _admissions(self, view: NodeView) -> list[CommitRecord]:
        """Return the admissions of those who stand where the fold stands."""
        authority, found = authority_of(view), list[CommitRecord]()
        for joiner in list(self.joiners.values()):
            if (joiner.cas, joiner.digest) != (authority.last_cas, authority.digest):
                continue
            del self.joiners[joiner.node]
            found.append(
                MemberAdmitted(
                    self._epoch,
                    joiner.node,
                    joiner.incarnation,
                    joiner.address,
                    joiner.cas,
                    joiner.digest,
                    view.now.wall_ms,
                )
            )
        return found

    def _lapsed(self, view: NodeView) -> list[CommitRecord]:
        """Return the expiry of members that are gone, as far as enough copies are left.

        Their heartbeats have stopped, or come from another incarnation, which asks to join.
        """
        authority, peers = authority_of(view), view.peers
        spare = len(authority.members) - authority.minimum
        found: list[CommitRecord] = []
        for number in authority.active:
            if number == view.config.node:
                continue
            peer = peers.nodes.get(number)
            heard_ms = peer.heard_ms if peer else self._began_ms
            reason = ""
            if peers.clock_ms - heard_ms > view.config.election_timeout_ms:
                reason = "its heartbeats lapsed"
            elif peer and peer.beat.incarnation != authority.members[number].incarnation:
                reason = "it was started again"
            if reason and len(found) < spare:
                found.append(MemberExpired(self._epoch, number, reason, view.now.wall_ms))
        return found

    def _registrations(self, view: NodeView) -> list[CommitRecord]:
        epoch, wall_ms = self._epoch, view.now.wall_ms
        indexers = [
            IndexerRegistered(epoch, b.indexer, b.incarnation, b.address, b.zone, wall_ms)
            for b in self._indexers.values()
        ]
        projectors = [
            ProjectorRegistered(epoch, b.projector, b.incarnation, b.address, wall_ms)
            for b in self._projectors.values()
        ]
        self._indexers.clear()
        self._projectors.clear()
        return [*indexers, *projectors]

    def changed(self, view: NodeView, record: CommitRecord) -> list[Result]:
        """A record about the lists was read back: forget joiners that are in, or have left.

        A forced claim of another node brings a reform, too: of the epoch to come.
        """
        authority = authority_of(view)
        if isinstance(record, MemberLeft):
            self._gone.add((record.node, record.incarnation))
            self.joiners.pop(record.node, None)
        asked = MemberLeft | ClusterReformed | ServiceRemoved
        own = isinstance(record, asked) and record.epoch == self._epoch
        found: list[Result] = []
        if self._requests and own:
            answer = authority.shape
            if isinstance(record, ServiceRemoved):
                answer = {"kind": record.kind, "id": record.number}
            found = _tell(self._requests.pop(0), Outcome(OK, answer=answer))
        members = authority.members
        self.joiners = {
            n: j
            for n, j in self.joiners.items()
            if n not in members or members[n].incarnation != j.incarnation
        }
        return found

    # -- what operators ask for --------------------------------------------------------------

    def requested(self, view: NodeView, event: MembershipRequested) -> list[Result]:
        """Take an operator's request; it is answered once it was read back."""
        command, authority = event.command, authority_of(view)
        if isinstance(command, StepDown):
            return self.step_down(view, event)
        if isinstance(command, RemoveService):
            return self._queue(event)
        named = (command.node,) if isinstance(command, Leave) else command.forget
        code, why = "member_not_found", authorities.not_in_roster(authority, named)
        if not why and isinstance(command, Leave) and authority.open is None:
            code, why = "leave_impossible", _why_not_leave(authority, command.node)
        if why:
            return _tell(event, refused(code, why))
        return self._queue(event)

    def _queue(self, event: MembershipRequested) -> list[Result]:
        if len(self._requests) >= REQUESTS_MAX:
            return _tell(event, unknown("overloaded", "too many operators wait: retry"))
        self._requests.append(event)
        return []

    def _next_granted(self, view: NodeView) -> tuple[CommitRecord | None, list[Result]]:
        """Return the record of the first request that can be granted; refuse those that cannot."""
        found: list[Result] = []
        while self._requests:
            event = self._requests[0]
            record, code, why = self._record_of(view, event)
            if not why:
                return record, found
            self._requests.pop(0)
            found += _tell(event, refused(code, why))
        return None, found

    def _record_of(
        self, view: NodeView, event: MembershipRequested
    ) -> tuple[CommitRecord, str, str]:
        """Return what `event` asks to write, and, if that would be void, a code and the reason."""
        command, authority = event.command, authority_of(view)
        if isinstance(command, Leave):
            peer = view.peers.nodes.get(command.node)
            member = authority.members.get(command.node)
            incarnation = peer.beat.incarnation if peer else member.incarnation if member else 0
            wall_ms = view.now.wall_ms
            left = MemberLeft(self._epoch, command.node, incarnation, event.principal, wall_ms)
            return left, "leave_impossible", _why_not_leave(authority, command.node)
        if isinstance(command, RemoveService):
            wall_ms = view.now.wall_ms
            removed = ServiceRemoved(
                self._epoch, command.kind, command.number, event.principal, wall_ms
            )
            return (removed, *_why_not_remove(view, command))
        assert isinstance(command, Reform)
        reformed = reform_record(view, event, self._epoch)
        return reformed, "reform_impossible", authorities.why_not_reform(authority, reformed)

    def step_down(self, view: NodeView, event: MembershipRequested) -> list[Result]:
        """Give the mastership up once nothing is under way, if somebody else can take it."""
        command, config, authority = event.command, view.config, authority_of(view)
        assert isinstance(command, StepDown)
        others = [
            n
            for n in authority.eligible
            if n != config.node and n in authority.members and view.peers.node_alive(n)
        ]
        if command.epoch and command.epoch != self._epoch:
            answer = {"epoch": self._epoch, "master": config.node, "address": config.address}
            outcome = Outcome(OK, answer=answer)
        elif self.resigning is not None:
            outcome = unknown("no_master", "the master is stepping down already: retry")
        elif not others or (command.successor and command.successor not in others):
            why = _why_no_successor(view, command.successor, others)
            outcome = refused("no_successor", why, candidates=others)
        else:
            self.resigning = event
            return []
        return _tell(event, outcome)

    def _resignation(self, view: NodeView, event: MembershipRequested) -> Due:
        """Return the record by which this master gives the mastership up."""
        command = event.command
        assert isinstance(command, StepDown)
        resigned = MasterResigned(
            self._epoch, view.config.node, command.successor, command.reason, view.now.wall_ms
        )
        return Due([resigned], [Note(f"stepping down: {command.reason!r}")])

    def resigned(self) -> list[Result]:
        """The resignation was read back: its caller hears when there is a successor."""
        event, self.resigning = self.resigning, None
        if event is None or not event.token:
            return []
        return [AwaitSuccessor(event.token, event.deadline_ms)]

    def depose(self, answer: Outcome) -> list[Result]:
        """Give every operator who still waits this answer."""
        waiting = (*self._requests, *((self.resigning,) if self.resigning else ()))
        self._requests.clear()
        self.resigning = None
        return [result for event in waiting for result in _tell(event, answer)]


def _is_heard(view: NodeView, record: JoinRequested) -> bool:
    """Tell whether heartbeats of this incarnation of the node arrive."""
    peer = view.peers.nodes.get(record.node)
    known = peer is not None and peer.beat.incarnation == record.incarnation
    return known and view.peers.alive(peer)


def _why_not_leave(authority: AuthorityState, node: int) -> str:
    """Say why `node` had better not leave now, or return an empty text.

    Beside the rule of the fold: enough must be left to go on, and of those who may claim.
    """
    active = [n for n in authority.active if n != node]
    heirs = [n for n in authority.eligible if n != node]
    why = authorities.why_not_leave(authority, node)
    if not why and node in authority.members and len(active) < authority.minimum:
        nodes = authorities.counted(len(active), "node", "nodes")
        why = f"{nodes} would be active, {authorities.needed(authority.minimum)}"
    elif not why and node in authority.eligible and len(heirs) < authority.minimum:
        why = f"only nodes {heirs} of the others have accepted {authority.last_txn} yet"
    return why


def _why_not_remove(view: NodeView, command: RemoveService) -> tuple[str, str]:
    """Return a code, and why a service had better not be removed now: an empty text, if it may."""
    authority, peers, number = authority_of(view), view.peers, command.number
    is_indexer = command.kind == INDEXER
    known = number in (authority.indexers if is_indexer else authority.projectors)
    heard = peers.indexers.get(number) if is_indexer else peers.projectors.get(number)
    name = f"{command.kind} {number}"
    if not known:
        return f"{command.kind}_not_found", f"there is no {name}"
    if peers.alive(heard):
        return f"{command.kind}_alive", f"{name} is alive: stop it first"
    if is_indexer and view.state.load.get(number, 0):
        return "indexer_in_use", f"{name} has copies of slices: drain it first"
    return "", ""


def _why_no_successor(view: NodeView, wanted: int, others: list[int]) -> str:
    """Say why the wanted node (0: any other) cannot take the mastership, and who can."""
    authority = authority_of(view)
    last = authority.last_txn
    if not others:
        return f"no other node is alive that has accepted the last transaction ({last})"
    who = ", ".join(map(str, others))
    if wanted == view.config.node:
        return f"node {wanted} is the master; of the others these can follow: {who}"
    if wanted not in authority.members:
        return f"node {wanted} is no active member; these can follow: {who}"
    return (
        f"node {wanted} has not accepted the last transaction ({last}) yet, or is silent: "
        f"it can follow after the next write; now these can: {who}"
    )


def _tell(event: MembershipRequested, outcome: Outcome) -> list[Result]:
    return [Reply(event.token, outcome)] if event.token else []
