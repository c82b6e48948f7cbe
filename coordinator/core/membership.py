"""What a master writes for the Authority beside transactions: who is in, and who leads.

Pure. Admissions, expiries, registrations, snapshots, and what operators wish for. Each is decided
against the Authority as it was read back, between two transactions, and is a fact only once it
was read back itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.core import authority as authorities
from coordinator.core.authority_state import AuthorityState
from coordinator.core.commands import OK, Leave, Outcome, Reform, StepDown, refused, unknown
from coordinator.core.effects import Reply
from coordinator.core.inputs import MembershipRequested
from coordinator.core.records import (
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
)
from coordinator.core.separation import separation

if TYPE_CHECKING:
    from coordinator.core.master import Master

WISHES_MAX = 64
"""So many operators may wait for a change of the lists."""

FORGET_PAUSE_MS = 5_000
"""So often, at most, an idle master forgets outcomes."""


class Membership:
    """The part of a master that keeps the lists of the Authority."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self.joiners: dict[int, JoinRequested] = {}
        self.resigning: MembershipRequested | None = None
        self._hold_until_ms = 0
        self._indexers: dict[int, IndexerHeartbeat] = {}
        self._projectors: dict[int, ProjectorHeartbeat] = {}
        self._wishes: list[MembershipRequested] = []
        self._gone: set[tuple[int, int]] = set()
        self._began_ms = master.node.hearing_ms
        self._forgot_ms = master.node.now.mono_ms

    @property
    def _authority(self) -> AuthorityState:
        return self.master.authority

    @property
    def holds_back(self) -> bool:
        """Tell whether proposals wait a moment for those who are about to join."""
        return bool(self.joiners) and self.master.node.now.mono_ms < self._hold_until_ms

    # -- what is heard -----------------------------------------------------------------------

    def join_requested(self, record: JoinRequested) -> None:
        """A node asks to be admitted, unless this life of it is in, or has left.

        One whose heartbeats are not heard would be expired at once, and ask again.
        """
        member = self._authority.members.get(record.node)
        if member is not None and member.incarnation == record.incarnation:
            return
        if (record.node, record.incarnation) in self._gone or not self._is_heard(record):
            return
        node = self.master.node
        now, hold_ms = node.now.mono_ms, node.config.admission_hold_ms
        if record.node not in self.joiners or now > self._hold_until_ms + 4 * hold_ms:
            self._hold_until_ms = now + hold_ms
        self.joiners[record.node] = record

    def _is_heard(self, record: JoinRequested) -> bool:
        """Tell whether heartbeats of this life of the node arrive."""
        node = self.master.node
        peer = node.peers.get(record.node)
        known = peer is not None and peer.beat.incarnation == record.incarnation
        return known and node.alive(peer)

    def indexer_heard(self, beat: IndexerHeartbeat) -> None:
        """An indexer that is not registered as it is will be, if it can be."""
        known = self._authority.indexers.get(beat.indexer)
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

    def projector_heard(self, beat: ProjectorHeartbeat) -> None:
        """Likewise a projector."""
        known = self._authority.projectors.get(beat.projector)
        if authorities.impossible_id(beat.projector):
            return
        if known is None or (known.incarnation, known.address) != (beat.incarnation, beat.address):
            self._projectors[beat.projector] = beat
        else:
            self._projectors.pop(beat.projector, None)

    # -- what is due -------------------------------------------------------------------------

    def due(self) -> list[CommitRecord]:
        """Return the snapshot, or the resignation, or what somebody wishes, or all the rest.

        A snapshot goes alone: it counts only where it equals the fold, and the state is copied at
        its CAS. Expiries go first: that of
        a node's last life must not end the one that is admitted. While a restart timestamp is
        awaited, which rests on the indexers that take part, none is registered.
        """
        node = self.master.node
        if not self._authority.outcomes_apart:
            return [separation(node.state, node.codec, self.master.epoch, node.now)]
        if node.copies.is_due:
            node.unsnapped_bytes = 0
            return [AuthoritySnapshot(self.master.epoch, self._authority)]
        if self.resigning is not None:
            return [self.resignation(self.resigning)]
        wished = self._wished()
        if wished is not None:
            return [wished]
        registrations = [] if self.master.building.restarting.is_asking else self._registrations()
        return [
            *self._lapsed(),
            *self._admissions(),
            *registrations,
            *node.copies.kept_by(self.master.epoch),
            *self._forgotten(),
        ]

    def _forgotten(self) -> list[CommitRecord]:
        """Forget outcomes while nothing is committed that would: a window is not kept for ever."""
        node = self.master.node
        now = node.now.mono_ms
        if self.master.has_work or now - self._forgot_ms < FORGET_PAUSE_MS:
            return []
        self._forgot_ms = now
        up_to = node.outcomes.due(node.now, self._authority.request_window_ms)
        if not up_to:
            return []
        digest = node.outcomes.digest_after(0, b"", up_to)
        forgotten_ms = node.outcomes.forgotten_ms(up_to)
        return [OutcomesForgotten(self.master.epoch, up_to, digest, forgotten_ms)]

    def _admissions(self) -> list[CommitRecord]:
        """Return the admissions of those who stand where the fold stands."""
        authority, found = self._authority, list[CommitRecord]()
        for joiner in list(self.joiners.values()):
            if (joiner.cas, joiner.digest) != (authority.last_cas, authority.digest):
                continue
            del self.joiners[joiner.node]
            found.append(
                MemberAdmitted(
                    self.master.epoch,
                    joiner.node,
                    joiner.incarnation,
                    joiner.address,
                    joiner.cas,
                    joiner.digest,
                    self._wall_ms,
                )
            )
        return found

    def _lapsed(self) -> list[CommitRecord]:
        """Return the expiry of members that are gone, as far as enough copies are left.

        Their heartbeats have stopped, or come from another life, which asks to join.
        """
        node, authority = self.master.node, self._authority
        spare = len(authority.members) - authority.minimum
        found: list[CommitRecord] = []
        for number in authority.active:
            if number == node.config.node:
                continue
            peer = node.peers.get(number)
            heard_ms = peer.heard_ms if peer else self._began_ms
            reason = ""
            if node.hearing_ms - heard_ms > node.config.election_timeout_ms:
                reason = "its heartbeats lapsed"
            elif peer and peer.beat.incarnation != authority.members[number].incarnation:
                reason = "it was started again"
            if reason and len(found) < spare:
                found.append(MemberExpired(self.master.epoch, number, reason, self._wall_ms))
        return found

    def _registrations(self) -> list[CommitRecord]:
        epoch, wall_ms = self.master.epoch, self._wall_ms
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

    @property
    def _wall_ms(self) -> int:
        return self.master.node.now.wall_ms

    def changed(self, record: CommitRecord) -> None:
        """A record about the lists was read back: forget joiners that are in, or have left.

        A forced claim of another node brings a reform, too: of the epoch to come.
        """
        if isinstance(record, MemberLeft):
            self._gone.add((record.node, record.incarnation))
            self.joiners.pop(record.node, None)
        own = isinstance(record, MemberLeft | ClusterReformed) and record.epoch == self.master.epoch
        if self._wishes and own:
            self._tell(self._wishes.pop(0), Outcome(OK, answer=self._authority.shape))
        members = self._authority.members
        self.joiners = {
            n: j
            for n, j in self.joiners.items()
            if n not in members or members[n].incarnation != j.incarnation
        }

    # -- what operators wish -----------------------------------------------------------------

    def requested(self, event: MembershipRequested) -> None:
        """Take an operator's wish; it is answered once it was read back."""
        command = event.command
        if isinstance(command, StepDown):
            self.step_down(event)
            return
        code, why = "leave_impossible", ""
        if isinstance(command, Leave) and command.node not in self._authority.roster:
            code, why = "member_not_found", f"node {command.node} is not in the roster"
        elif isinstance(command, Leave) and self._authority.open is None:
            why = self._why_not_leave(command.node)
        if why:
            self._tell(event, refused(code, why))
        elif len(self._wishes) >= WISHES_MAX:
            self._tell(event, unknown("overloaded", "too many operators wait: retry"))
        else:
            self._wishes.append(event)

    def _wished(self) -> CommitRecord | None:
        """Return the record of the first wish that can be fulfilled; refuse those that cannot."""
        while self._wishes:
            event = self._wishes[0]
            record, code, why = self._record_of(event)
            if not why:
                return record
            self._wishes.pop(0)
            self._tell(event, refused(code, why))
        return None

    def _record_of(self, event: MembershipRequested) -> tuple[CommitRecord, str, str]:
        """Return what `event` asks to write, and, if that would be void, a code and the reason."""
        command, authority, node = event.command, self._authority, self.master.node
        if isinstance(command, Leave):
            peer = node.peers.get(command.node)
            member = authority.members.get(command.node)
            life = peer.beat.incarnation if peer else member.incarnation if member else 0
            left = MemberLeft(self.master.epoch, command.node, life, event.principal, self._wall_ms)
            return left, "leave_impossible", self._why_not_leave(command.node)
        assert isinstance(command, Reform)
        reformed = node.election.reformed(event, self.master.epoch)
        return reformed, "reform_impossible", authorities.why_not_reform(authority, reformed)

    def _why_not_leave(self, node: int) -> str:
        """Say why `node` had better not leave now, or return an empty text.

        Beside the rule of the fold: enough must be left to go on, and of those who may claim.
        """
        authority = self._authority
        active = [n for n in authority.active if n != node]
        heirs = [n for n in authority.eligible if n != node]
        why = authorities.why_not_leave(authority, node)
        if not why and node in authority.members and len(active) < authority.minimum:
            why = f"nodes {active} would be active, {authority.minimum} copies are needed"
        elif not why and node in authority.eligible and len(heirs) < authority.minimum:
            why = f"only nodes {heirs} of the others have accepted {authority.last_txn} yet"
        return why

    def _tell(self, event: MembershipRequested, outcome: Outcome) -> None:
        if event.token:
            self.master.node.emit(Reply(event.token, outcome))

    def step_down(self, event: MembershipRequested) -> None:
        """Give the mastership up once nothing is under way, if somebody else can take it."""
        command, node = event.command, self.master.node
        assert isinstance(command, StepDown)
        others = [
            n
            for n in self._authority.eligible
            if n != node.config.node
            and n in self._authority.members
            and node.alive(node.peers.get(n))
        ]
        if command.epoch and command.epoch != self.master.epoch:
            answer = {
                "epoch": self.master.epoch,
                "master": node.config.node,
                "address": node.config.address,
            }
            outcome = Outcome(OK, answer=answer)
        elif self.resigning is not None:
            outcome = unknown("no_master", "the master is stepping down already: retry")
        elif not others or (command.successor and command.successor not in others):
            outcome = refused(
                "no_successor", self._why_no_successor(command.successor, others), candidates=others
            )
        else:
            self.resigning = event
            return
        self._tell(event, outcome)

    def _why_no_successor(self, wanted: int, others: list[int]) -> str:
        """Say why the wanted node (0: any other) cannot take the mastership, and who can."""
        last = self._authority.last_txn
        if not others:
            return f"no other node is alive that has accepted the last transaction ({last})"
        who = ", ".join(map(str, others))
        if wanted == self.master.node.config.node:
            return f"node {wanted} is the master; of the others these can follow: {who}"
        if wanted not in self._authority.members:
            return f"node {wanted} is no active member; these can follow: {who}"
        return (
            f"node {wanted} has not accepted the last transaction ({last}) yet, or is silent: "
            f"it can follow after the next write; now these can: {who}"
        )

    def resignation(self, event: MembershipRequested) -> MasterResigned:
        """Return the record by which this master gives the mastership up."""
        command, node = event.command, self.master.node
        assert isinstance(command, StepDown)
        node.note(f"stepping down: {command.reason!r}")
        return MasterResigned(
            self.master.epoch, node.config.node, command.successor, command.reason, self._wall_ms
        )

    def resigned(self) -> None:
        """The resignation was read back: its caller hears when there is a successor."""
        event, self.resigning = self.resigning, None
        if event is not None and event.token:
            self.master.node.election.await_successor(event.token, event.deadline_ms)

    def depose(self, answer: Outcome) -> None:
        """Give every operator who still waits this answer."""
        for wish in (*self._wishes, *((self.resigning,) if self.resigning else ())):
            self._tell(wish, answer)
        self._wishes.clear()
        self.resigning = None
