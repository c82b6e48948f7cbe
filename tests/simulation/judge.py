"""What must hold, checked by a second, deliberately plain reading of the same log.

The judge sees every committed record of `commit` the moment it becomes stable, and folds it with
its own few rules; production code is never asked. Each check has a name, which a failing run
reports.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus.election import OPENINGS_FAILED_MAX
from coordinator.core.consensus.inputs import Input, Restored, Started, SyncRead
from coordinator.core.model.commands import Transact
from coordinator.core.model.entities import BACKFILL, DROPPING, Consumed, Index, Stream
from coordinator.core.model.records import (
    ACCEPTED,
    AuthoritySnapshot,
    ClusterFormed,
    ClusterReformed,
    Event,
    MasterClaimed,
    MasterResigned,
    MemberAdmitted,
    MemberExpired,
    MemberLeft,
    Mutation,
    OutcomesForgotten,
    ProposalAnswered,
    TransactionCommitted,
    TransactionProposed,
    TransactionRolledBack,
)
from coordinator.core.model.types import TxnId
from tests.simulation.actors import EFFECTS, Op, Reading
from tests.simulation.alters import check_end, check_names, check_switch
from tests.simulation.answers import (
    BUILD_EFFECT,
    indexer_differences,
    is_undone,
    replied,
    was_at,
)
from tests.simulation.conclusion import conclude
from tests.simulation.kernel.broker import Session, Stored
from tests.simulation.kernel.violation import require
from tests.simulation.meter import CALLS_PER_MS, STEP_MS_MAX
from tests.simulation.subscribers import check_subscriptions
from tests.simulation.transactions import check_effects
from tests.simulation.truth import Done, Seen, Truth, Version, digest_of, point_of

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.machine import Machine


LEGAL = {
    (before, after)
    for before, afters in (
        (None, "init"),
        ("init", "ready dropping"),
        ("ready", "pending dropping error"),
        ("pending", "pending backfill dropping error"),
        ("backfill", "pending maintenance dropping error"),
        ("maintenance", "pending dropping error"),
        ("error", "pending dropping"),
    )
    for after in afters.split()
} | {("dropping", None)}
"""What an index may become, written down a second time."""

SAME_STATE = (
    *("EntityRewritten", "ShardsMoved", "IndexAltered"),
    *("MoveBuilt", "MoveEnded", "CopiesReleased"),
)
"""Events that may leave an index in its state."""


class Judge:
    """Sees everything, and knows what follows from it."""

    conclude = conclude
    replied = replied
    is_undone = is_undone
    was_at = was_at
    indexer_differences = indexer_differences

    def __init__(self, world: Cluster) -> None:
        self.world = world
        self.truth = Truth()
        self.entities: dict[str, tuple[int, bytes, Any]] = {}
        self.names: dict[tuple[str, str], int] = {}
        self.statuses: dict[TxnId, str] = {}
        self.digests: dict[int, int] = {0: 0}
        self.done: dict[int, Done] = {}
        self.effects: dict[str, list[tuple[str, int]]] = {}
        self.ready: dict[int, int] = {}
        self.replaced: set[int] = set()
        """The indexes whose place others have taken."""
        self.builds: dict[str, TxnId] = {}
        self.transacts: dict[str, Transact] = {}
        """The transactions that clients asked for, by request id."""
        self.versions: dict[Any, list[Version]] = {}
        self.commits: list[tuple[int, int]] = []
        self.events: list[Event] = []
        """What was committed, in its order."""
        self.refused: set[str] = set()
        self.stale: set[str] = set()
        self.allocated: set[tuple[int, int]] = set()
        self.routed: set[tuple[int, int, int, int]] = set()
        self.built: set[tuple[int, int, int, int]] = set()
        self.streams: dict[str, int] = {}
        self.begun: dict[tuple[int, str], int] = {}
        self.ops: list[Op] = []
        self.readings: list[Reading] = []
        self.rolled_back = 0
        self.calls_max = STEP_MS_MAX * CALLS_PER_MS
        self.replayed = True
        """Whether `history` is whole, and is replayed at the end."""
        self.remembered: dict[int, bytes] = {}
        """The groups of outcomes that the log has brought and not taken back, by CAS."""
        self._offsets: list[int] = []
        self._points: list[tuple[Any, ...]] = []
        self._position = 0
        self._master_session: Session | None = None
        self._seen: dict[int, Seen] = {}
        world.broker["commit"].listeners.append(self._commit_moved)

    @property
    def last_cas(self) -> int:
        return self.truth.last_cas

    # -- the log -----------------------------------------------------------------------------

    def _commit_moved(self) -> None:
        partition = self.world.broker["commit"]
        for stored in partition.read(self._position):
            before = self.truth.point
            rule = RULES.get(type(stored.value))
            if rule is not None:
                rule(self, stored, stored.value)
            if self.truth.point != before or not self._points:
                self._offsets.append(stored.offset)
                self._points.append(self.truth.point)
        self._position = partition.stable

    def point_at(self, offset: int) -> tuple[Any, ...] | None:
        """Return the Authority after the records up to `offset`."""
        place = bisect_right(self._offsets, offset)
        return self._points[place - 1] if place else None

    def _formed(self, stored: Stored, record: ClusterFormed) -> None:
        if not self.truth.roster:
            self.truth.roster, self.truth.minimum = record.roster, record.minimum

    def _claimed(self, stored: Stored, record: MasterClaimed) -> None:
        truth = self.truth
        if (
            record.epoch != truth.epoch + 1
            or record.node not in (truth.acceptors or truth.roster)
            or (record.cas, record.digest) != (truth.last_cas, truth.digest)
        ):
            return
        if truth.open is not None:
            self._terminal(truth.open[0], "rollback")
        truth.epoch, truth.master, truth.incarnation = record.epoch, record.node, record.incarnation
        truth.open, truth.last_seq = None, 0
        truth.members[record.node] = record.incarnation
        truth.roster = tuple(sorted({*truth.roster, record.node}))
        assert stored.txn is not None
        self._master_session = stored.txn.session

    def _proposed(self, stored: Stored, record: TransactionProposed) -> None:
        truth = self.truth
        if (
            record.txn.epoch == truth.epoch
            and truth.master
            and record.txn.seq > truth.last_seq
            and truth.open is None
            and (record.prev_cas, record.prev_digest) == (truth.last_cas, truth.digest)
        ):
            truth.open, truth.proposal = (record.txn, stored.offset), record
            truth.last_seq = record.txn.seq
            self._check_bounds(record)
            require(
                record.participants == tuple(sorted(truth.members)),
                "participants-are-the-members",
                f"{record.txn} asks {record.participants}, members are {sorted(truth.members)}",
            )
            require(
                len(truth.members) >= truth.minimum,
                "nothing-is-proposed-below-the-minimum",
                f"{record.txn} with members {sorted(truth.members)}",
            )

    def _check_bounds(self, record: TransactionProposed) -> None:
        """A group is bounded, but for entities that are written again: those come as they are."""
        config = self.world.config
        groups = [m for m in record.mutations if m.event != "DdlConsumed"]
        size = sum(len(m.key) + len(m.value or b"") for m in groups)
        rewritten = any(m.event == "EntityRewritten" for m in record.mutations)
        require(
            rewritten
            or (
                len(record.mutations) <= config.get("group_mutations_max", 256)
                and size <= config.get("group_bytes_max", 512 * 1024)
            ),
            "a-group-is-bounded",
            f"{record.txn} has {len(record.mutations)} mutations of {size} bytes",
        )

    def _terminal(self, txn: TxnId, status: str) -> None:
        known = self.statuses.get(txn)
        require(known is None, "one-terminal-status", f"{txn} is {known} and {status}")
        self.statuses[txn] = status
        self.rolled_back += status == "rollback"

    def _rolled_back(self, stored: Stored, record: TransactionRolledBack) -> None:
        truth = self.truth
        if record.txn.epoch != truth.epoch:
            return
        if truth.open is not None and truth.open[0] == record.txn:
            if record.proposal_offset in (-1, truth.open[1]):
                self._terminal(record.txn, "rollback")
                truth.open = None
        elif record.proposal_offset < 0 and truth.open is None and record.txn.seq > truth.last_seq:
            self._terminal(record.txn, "rollback")
            truth.last_seq = record.txn.seq

    def _admitted(self, stored: Stored, record: MemberAdmitted) -> None:
        truth = self.truth
        if (
            record.epoch == truth.epoch
            and truth.open is None
            and (record.cas, record.digest) == (truth.last_cas, truth.digest)
        ):
            truth.members[record.node] = record.incarnation
            truth.roster = tuple(sorted({*truth.roster, record.node}))

    def _expired(self, stored: Stored, record: MemberExpired) -> None:
        truth = self.truth
        if record.epoch == truth.epoch and record.node != truth.master:
            truth.members.pop(record.node, None)

    def _left(self, stored: Stored, record: MemberLeft) -> None:
        truth = self.truth
        roster = tuple(n for n in truth.roster if n != record.node)
        if (
            record.epoch == truth.epoch
            and truth.open is None
            and record.node in truth.roster
            and record.node != truth.master
            and len(roster) >= truth.minimum
        ):
            truth.roster = roster
            truth.members.pop(record.node, None)
            truth.acceptors = tuple(n for n in truth.acceptors if n != record.node)

    def _resigned(self, stored: Stored, record: MasterResigned) -> None:
        truth = self.truth
        if record.epoch == truth.epoch and record.node == truth.master:
            require(truth.open is None, "no-resignation-inside-a-transaction", f"{truth.open}")
            truth.master = truth.incarnation = 0

    def _reformed(self, stored: Stored, record: ClusterReformed) -> None:
        truth = self.truth
        own = record.epoch == truth.epoch and record.node == truth.master and truth.open is None
        if (
            (own or record.epoch == truth.epoch + 1)
            and (record.cas, record.digest) == (truth.last_cas, truth.digest)
            and record.node in record.roster
            and set(record.roster) <= set(truth.roster)
            and 1 <= record.minimum <= len(record.roster)
        ):
            truth.roster, truth.minimum = record.roster, record.minimum
            truth.members = {n: i for n, i in truth.members.items() if n in record.roster}
            kept = {n for n in truth.acceptors if n in record.roster}
            truth.acceptors = tuple(sorted({*kept, record.node}))

    def _committed(self, stored: Stored, record: TransactionCommitted) -> None:
        truth = self.truth
        require(
            truth.open == (record.txn, record.proposal_offset) and record.txn.epoch == truth.epoch,
            "no-commit-is-void",
            f"{record.txn}@{record.proposal_offset}, open is {truth.open} in epoch {truth.epoch}",
        )
        proposal = truth.proposal
        assert proposal is not None
        assert stored.txn is not None
        self._check_acceptors(record, proposal)
        self._check_events(stored, record, proposal)
        self._terminal(record.txn, "commit")
        decided_ms = stored.txn.decided_ms
        check_effects(self, zip(proposal.mutations, record.cas, strict=True))
        for mutation, cas in zip(proposal.mutations, record.cas, strict=True):
            require(cas > truth.last_cas, "cas-ascends", f"{cas} after {truth.last_cas}")
            truth.last_cas = cas
            self._apply(mutation, cas, record.txn, decided_ms)
        count = len(proposal.mutations)
        self.events += (
            Event(mutation, record.txn, number, count, cas)
            for number, (mutation, cas) in enumerate(
                zip(proposal.mutations, record.cas, strict=True)
            )
        )
        check_names(self)
        truth.digest = digest_of(self.entities)
        require(
            truth.digest == record.state_digest,
            "digest-of-the-log",
            f"{record.txn} says {record.state_digest:x}, it is {truth.digest:x}",
        )
        self.digests[truth.last_cas] = truth.digest
        if record.outcomes:
            self.remembered[record.cas[-1]] = record.outcomes
        self._forget(record.outcomes_forgotten)
        self.commits.append((decided_ms, truth.last_cas))
        truth.open, truth.acceptors = None, record.accepted

    def _forget(self, up_to: int) -> None:
        self.remembered = {cas: g for cas, g in self.remembered.items() if cas > up_to}

    def _forgotten(self, stored: Stored, record: OutcomesForgotten) -> None:
        if record.epoch == self.truth.epoch:
            self._forget(record.up_to)

    def _check_acceptors(self, record: TransactionCommitted, proposal: TransactionProposed) -> None:
        truth = self.truth
        waived = set(proposal.participants) - set(record.accepted)
        require(
            not waived & set(truth.members),
            "every-participant-has-it",
            f"{record.txn} commits without {sorted(waived & set(truth.members))}",
        )
        require(
            len(record.accepted) >= truth.minimum and truth.master in record.accepted,
            "enough-copies",
            f"{record.txn} was accepted by {record.accepted}",
        )
        for node in record.accepted:
            require(
                record.proposal_offset in self.world.machines[node].disk.durable_prepared,
                "accepted-is-durable",
                f"{record.txn} counts node {node}, whose disk does not have it",
            )

    def _check_events(
        self, stored: Stored, record: TransactionCommitted, proposal: TransactionProposed
    ) -> None:
        """The events stand on both topics, in the same Kafka transaction, at these offsets."""
        for topic in ("history",) if self.world.damaged else ("statecontext", "history"):
            found = []
            for other in reversed(self.world.broker[topic].records):
                if other.txn is stored.txn:
                    found.append(other)
                elif found:
                    break
            found.reverse()
            same = [f.value.mutation for f in found] == list(proposal.mutations)
            if topic == "statecontext":
                cas = tuple(f.offset + self.world.cas_base for f in found)
            else:
                cas = tuple(f.value.cas for f in found)
            require(
                same and cas == record.cas,
                "events-in-the-same-transaction",
                f"{topic} has {cas} for {record.txn} with {record.cas}",
            )

    def _apply(self, mutation: Mutation, cas: int, txn: TxnId, decided_ms: int) -> None:
        key, entity = mutation.key, mutation.entity
        before = self.entities.get(key)
        if isinstance(entity, Consumed) and before is not None:
            require(
                entity.offset >= before[2].offset,
                "ddl-is-consumed-in-order",
                f"{key}: {entity.offset} after {before[2].offset}",
            )
        if isinstance(entity, Stream) and mutation.event == "StreamRenewed":
            self._apply_stream(entity)
        if key.startswith(("topic/", "subscription/")):
            check_subscriptions(self, mutation, cas, before[2] if before else None)
        if key.startswith("index/"):
            self._apply_index(mutation, before[2] if before else None, cas, decided_ms)
        if mutation.value is None:
            self.entities.pop(key, None)
        else:
            self.entities[key] = (cas, mutation.value, entity)
        self.versions.setdefault(key, []).append(Version(decided_ms, cas, mutation.value))
        self.done[cas] = Done(mutation, txn, decided_ms)
        if mutation.event == BUILD_EFFECT and mutation.request:
            self._check_build(mutation.request, txn, cas)
        if mutation.event in EFFECTS:
            found = self.effects.setdefault(mutation.request, [])
            found.append((mutation.event, cas))
            whole = mutation.request in self.transacts
            require(
                whole or len(found) == 1,
                "a-request-id-executes-once",
                f"{mutation.request}: {found}",
            )
            self._check_age(mutation.request, cas)
            if mutation.event != "IndexProposed":
                self._not_refused(mutation.request, cas)

    def _check_age(self, request: str, cas: int) -> None:
        """An id that was too old when it was made; masters whose clocks are wrong cannot tell."""
        require(
            request not in self.stale or self.world.clocks_were_set,
            "an-expired-id-is-never-executed",
            f"{request} at CAS {cas}",
        )

    def _check_build(self, request: str, txn: TxnId, cas: int) -> None:
        """One request may have several indexes built, but all of them at once, and only once."""
        known = self.builds.setdefault(request, txn)
        require(known == txn, "a-request-id-executes-once", f"{request}: {known} and {txn}")
        self._check_age(request, cas)

    def _apply_index(self, mutation: Mutation, was: Any, cas: int, decided_ms: int) -> None:
        now = mutation.entity
        old = was.state if was else None
        new = now.state if isinstance(now, Index) else None
        rewritten = mutation.event in SAME_STATE and old == new
        require(
            rewritten or (old, new) in LEGAL, "legal-transitions", f"{mutation.key}: {old} -> {new}"
        )
        if was is not None and new != DROPPING and isinstance(now, Index) and was.name != now.name:
            require(mutation.event == "IndexAltered", "unique-names", f"{was.name}: {now.name}")
            self._free(was, decided_ms, cas)
        if isinstance(now, Index) and new != DROPPING:
            if was is not None and was.replaces and not now.replaces:
                check_switch(self, mutation, was, now)
            if not now.replaces and not now.part_of:
                self._name(now, was.replaces if was is not None else 0, decided_ms, cas)
            if mutation.event in ("BuildRouted", "IndexBuilt"):
                self._apply_build(now)
            if mutation.event == "IndexReady":
                silent = [h for h in now.hosts if (h, now.id) not in self.allocated]
                require(not silent, "ready-needs-every-indexer", f"{now.id} without {silent}")
            is_plain = not now.replaces and not now.part_of
            if mutation.event in ("IndexReady", "IndexBuilt") and is_plain:
                self.ready.setdefault(now.id, cas)
                self._not_refused(now.request, cas)
        elif was is not None:
            check_end(self, mutation, was)
            self._free(was, decided_ms, cas)

    def _name(self, index: Index, replaced: int, decided_ms: int, cas: int) -> None:
        """An index has its name: nobody else had it, but the one whose place it takes."""
        name = (index.bucket, index.name)
        holder = self.names.get(name)
        allowed = (None, index.id, replaced or None)
        require(holder in allowed, "unique-names", f"{name}: {holder} and {index.id}")
        if holder != index.id:
            self.versions.setdefault(name, []).append(Version(decided_ms, cas, index.id))
        self.names[name] = index.id

    def _free(self, was: Index, decided_ms: int, cas: int) -> None:
        """An index gives its name up, if it has it."""
        name = (was.bucket, was.name)
        if self.names.get(name) == was.id:
            del self.names[name]
            self.versions.setdefault(name, []).append(Version(decided_ms, cas, None))

    def _apply_build(self, index: Index) -> None:
        """A step of a build is taken only when those who have to say so have said so."""
        if index.state == BACKFILL:
            routed = any((i, b) == (index.id, index.build) for _, _, i, b in self.routed)
            require(routed, "backfill-needs-a-router", f"{index.id} build {index.build}")
        else:
            done = {(host, i, b) for host, i, b, _ in self.built}
            silent = [h for h in index.hosts if (h, index.id, index.build) not in done]
            require(not silent, "built-needs-every-indexer", f"{index.id} without {silent}")

    def _apply_stream(self, stream: Stream) -> None:
        """Generations of a bucket's stream are counted, and nobody's number goes back."""
        before = self.streams.get(stream.bucket, 0)
        require(
            stream.number > before and all(s.number <= stream.number for s in stream.sources),
            "stream-numbers-ascend",
            f"{stream} after {before}",
        )
        self.streams[stream.bucket] = stream.number

    def stream_begun(self, projector: int, incarnation: int, bucket: str, number: int) -> None:
        """A projector opens a connection: no number is ever used by two of them."""
        place = (number, f"{bucket}/{projector}")
        known = self.begun.setdefault(place, incarnation)
        require(known == incarnation, "one-connection-a-number", f"{place}: {known}, {incarnation}")

    def _not_refused(self, request: str, cas: int) -> None:
        require(
            request not in self.refused, "refused-never-takes-effect", f"{request} at CAS {cas}"
        )

    # -- nodes -------------------------------------------------------------------------------

    def step_took(self, machine: Machine, event: Input, calls: int) -> None:
        """No step costs more than a bound; to take a whole state in costs as much as that has."""
        node = machine.node
        taking = isinstance(event, SyncRead | Started) or (
            node is not None and not node.state_known
        )
        require(
            taking or calls <= self.calls_max,
            "a-step-is-short",
            f"node {machine.number} needs {calls} calls for {type(event).__name__}",
        )

    def ended(self, number: int) -> None:
        self._seen.pop(number, None)

    def stepped(self, machine: Machine, event: Input) -> None:
        """Look at a node after it read something."""
        node = machine.node
        assert node is not None
        seen = self._seen.setdefault(machine.number, Seen())
        require(node.applied >= seen.applied, "applied-ascends", f"node {machine.number}")
        seen.applied = node.applied
        authority = node.authority
        if authority is None or node._halted:
            return
        require(authority.epoch >= seen.epoch, "epoch-ascends", f"node {machine.number}")
        seen.epoch = authority.epoch
        truth = self.point_at(node.applied)
        require(
            truth == point_of(authority),
            "folds-agree",
            f"node {machine.number} at {node.applied}: {point_of(authority)}, truth {truth}",
        )
        state = node.state
        if state is seen.state or not node.state_known:
            return
        require(state.cas >= seen.cas, "cas-of-a-node-ascends", f"node {machine.number}")
        seen.cas, seen.state = state.cas, state
        require(
            state.cas == authority.last_cas and self.digests.get(state.cas) == state.digest,
            "a-node-shows-what-is-committed",
            f"node {machine.number} shows CAS {state.cas}, committed is {authority.last_cas}",
        )

    def saved(self, number: int, save: fx.Save) -> None:
        """A batch that claims to be whole holds one offset's Authority and state."""
        truth = self.point_at(save.applied)
        require(
            truth is not None
            and save.authority is not None
            and truth == point_of(save.authority)
            and (save.cas, save.digest) == truth[4:6],
            "a-batch-belongs-to-one-offset",
            f"node {number} saves CAS {save.cas} at {save.applied}, where truth is {truth}",
        )

    def restored(self, number: int, restored: Restored) -> None:
        truth = self.point_at(restored.applied)
        authority = restored.authority
        require(
            truth is not None
            and authority is not None
            and truth == point_of(authority)
            and (restored.state.cas, restored.state.digest) == truth[4:6],
            "a-disk-holds-one-offset",
            f"node {number} restores CAS {restored.state.cas} at {restored.applied}: {truth}",
        )

    def answered(self, machine: Machine, record: ProposalAnswered) -> None:
        require(
            record.answer != ACCEPTED or record.proposal_offset in machine.disk.durable_prepared,
            "accepted-is-durable",
            f"node {machine.number} accepts {record.txn} before it is on its disk",
        )

    def trimmed(self, machine: Machine, offset: int) -> None:
        """The log may lose its head only where every member's disk, and a copy, has what it told.

        What is left has to tell the outcomes of requests that are remembered, too.
        """
        commit = self.world.broker["commit"]
        if offset <= commit.start:
            return
        first = next(iter(commit.read(offset, 1)), None)
        require(
            first is not None and isinstance(first.value, AuthoritySnapshot),
            "a-trimmed-log-begins-with-a-snapshot",
            f"offset {offset} holds {first.value if first else None}",
        )
        assert first is not None
        cas = first.value.snapshot.last_cas
        assert machine.node is not None
        authority = machine.node.authority
        for number in authority.members if authority is not None else ():
            # A disk that was lost since has nothing that could be behind.
            content = self.world.machines[number].disk.durable
            require(
                not content.finished or content.applied >= offset,
                "what-is-trimmed-is-durable",
                f"node {number} has {content.applied} on its disk, trimmed is {offset}",
            )
        forgotten = [g for g in self.remembered if g <= cas]
        require(not forgotten, "outcomes-outlive-no-trim", f"groups {forgotten} stand below {cas}")

    def concluding(self, machine: Machine, session: Session, effect: fx.Conclude) -> None:
        claims = (MasterClaimed, ClusterFormed, ClusterReformed)
        if all(isinstance(record, claims) for record in effect.records):
            return
        require(
            session is self._master_session,
            "only-the-claimed-master-writes",
            f"node {machine.number} writes {[type(r).__name__ for r in effect.records]}",
        )

    def halted(self, machine: Machine, effect: fx.Halt) -> None:
        node = machine.node
        assert node is not None
        flipped = machine.flipped and effect.code == "digest_mismatch"
        stalled = bool(machine.dead_reader) and effect.code.endswith("_stalled")
        is_unanswered = machine.producer.calls_lost >= OPENINGS_FAILED_MAX
        stalled |= is_unanswered and effect.code == "producer_stalled"
        require(
            flipped or stalled or effect.code in self.world.alarms_expected,
            "no-alarm",
            f"node {machine.number} halts: {effect.code}: {effect.message}",
        )


RULES: dict[type, Any] = {
    ClusterFormed: Judge._formed,
    MasterClaimed: Judge._claimed,
    TransactionProposed: Judge._proposed,
    TransactionCommitted: Judge._committed,
    TransactionRolledBack: Judge._rolled_back,
    MemberAdmitted: Judge._admitted,
    MemberExpired: Judge._expired,
    MemberLeft: Judge._left,
    MasterResigned: Judge._resigned,
    ClusterReformed: Judge._reformed,
    OutcomesForgotten: Judge._forgotten,
}
