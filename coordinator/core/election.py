"""How a node comes to claim the mastership, and what it tells while there is no master.

Pure. A master is suspected when its heartbeats stay away, and missed at once when it resigned.
The newest live node that may claim comes first, then by id; the others wait longer. A claim goes
step by step: look (read the log to its end, for a claim not heard of), open the producer (which
fences any other), read to the end again, write the claim, read it back. Only then is there a
`Master`. A candidate that dies on the way leaves nothing behind but a fenced predecessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordinator.core import authority as authorities
from coordinator.core.commands import OK, Outcome, Reform, refused, unknown
from coordinator.core.effects import CloseProducer, Conclude, OpenProducer, Reply
from coordinator.core.inputs import MembershipRequested, ProducerFailed, ProducerOpened
from coordinator.core.records import (
    ClusterFormed,
    ClusterReformed,
    MasterClaimed,
    MasterResigned,
    NodeHeartbeat,
)
from coordinator.core.roles import MASTER

if TYPE_CHECKING:
    from coordinator.core.node import Node

LOOKING, OPENING, READING, CLAIMING = "looking", "opening", "reading", "claiming"

ELECTED, ELECTING, NO_ELIGIBLE_NODE, UNKNOWN = MASTERSHIPS = (
    "elected",
    "electing",
    "no_eligible_node",
    "unknown",
)

CLAIMS_COUNTED_MAX = 8
OPENINGS_FAILED_MAX = 2


@dataclass(slots=True)
class Candidacy:
    """A claim under way, step by step; `reform` is set where an operator forced it."""

    step: str
    token: int
    since_ms: int
    epoch: int = 0
    reform: MembershipRequested | None = None


@dataclass(frozen=True, slots=True)
class Mastership:
    """Whether there is a master, and if not, for which nodes the cluster waits, and why."""

    state: str
    message: str
    waiting_for: tuple[int, ...] = ()


class Election:
    """One node's part in every election."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.candidacy: Candidacy | None = None
        self.stopping = False
        self.claim_token = 0
        self._heard_ms = 0
        self._claims_failed = 0
        self._openings_failed = 0
        self._resigned = 0
        self._failed = -1
        self._witnessed = 0
        self._handovers: list[tuple[int, int]] = []

    # -- what is known -----------------------------------------------------------------------

    def heard(self) -> None:
        """The master is alive, or the patience with it begins anew."""
        self._heard_ms = self.node.hearing_ms

    def lost(self) -> None:
        """This node's own mastership broke: nobody needs to wait for its heartbeats."""
        self._heard_ms = self.node.hearing_ms - self.node.config.election_timeout_ms

    def failed(self) -> None:
        """This node's own mastership ended nothing that it began: another may fare better."""
        assert self.node.authority is not None
        self._failed = self.node.authority.epoch
        self.heard()

    def beat(self, beat: NodeHeartbeat) -> None:
        """Another node's heartbeat: that of the master of now counts."""
        authority = self.node.authority
        if (
            authority is not None
            and beat.state == MASTER
            and (beat.node, beat.epoch) == (authority.master, authority.epoch)
            and beat.incarnation == authority.incarnation
        ):
            self.heard()

    @property
    def master_alive(self) -> bool:
        """Tell whether this node is master, or has heard the master within the timeout."""
        if self.node.master is not None:
            return True
        elapsed = self.node.hearing_ms - self._heard_ms
        authority = self.node.authority
        known = authority is not None and authority.master != 0
        return known and elapsed <= self.node.config.election_timeout_ms

    @property
    def mastership(self) -> Mastership:
        """Say how the cluster stands: a master, an election, or nobody who may be elected."""
        node, authority = self.node, self.node.authority
        if authority is None and not node.is_following:
            return Mastership(UNKNOWN, f"this node is {node.phase}")
        if authority is not None and self.master_alive:
            active, minimum = len(authority.members), authority.minimum
            short = active < minimum
            text = f"{active} nodes are active, {minimum} copies are needed" if short else ""
            return Mastership(ELECTED, text)
        if not node.is_following:
            return Mastership(UNKNOWN, f"no master was heard; this node is {node.phase}")
        eligible = self._eligible
        if self._able or any(n != node.config.node and self._alive(n) for n in eligible):
            return Mastership(ELECTING, "no master is alive: an election is under way")
        held = f"accepted transaction {authority.last_txn}" if authority else "form the cluster"
        names = ", ".join(map(str, eligible))
        return Mastership(
            NO_ELIGIBLE_NODE,
            f"no eligible node is alive: waiting for one of the nodes that {held} ({names})",
            eligible,
        )

    @property
    def _eligible(self) -> tuple[int, ...]:
        authority = self.node.authority
        return authority.eligible if authority else self.node.config.roster

    @property
    def may_claim(self) -> bool:
        """Tell whether a claim of this node would count."""
        return self.node.config.node in self._eligible

    @property
    def _able(self) -> bool:
        """Tell whether this node may claim and is in a state to do so."""
        node = self.node
        return self.may_claim and node.is_following and not node.keeper.sick and not self.stopping

    def _alive(self, number: int) -> bool:
        return self.node.alive(self.node.peers.get(number))

    def not_master(self) -> Outcome:
        """Return the answer to a writer who came to the wrong node."""
        authority = self.node.authority
        if authority is None or not authority.master or not self.master_alive:
            standing = self.mastership
            return unknown(
                "no_master",
                standing.message or "no master is alive at the moment: retry",
                mastership=standing.state,
                waiting_for=list(standing.waiting_for),
            )
        if authority.master == self.node.config.node:
            return unknown("no_master", "the master is changing: retry")
        return unknown(
            "not_master",
            f"node {authority.master} is the master",
            node=authority.master,
            address=authority.address,
        )

    # -- candidacy ---------------------------------------------------------------------------

    def tick(self) -> None:
        """Begin a claim when the master has been silent for this node's share of patience."""
        self._expire_handovers()
        now = self.node.now.mono_ms
        candidacy = self.candidacy
        if candidacy is not None:
            waited_ms = now - candidacy.since_ms
            if candidacy.step == LOOKING and waited_ms > self.node.config.look_ms:
                self._open_producer()
            elif candidacy.step == LOOKING:
                self.node.pulse.examine()
            elif waited_ms > self._limit_ms(candidacy):
                self._no_progress(candidacy)
            return
        if self.node.master is None and self._able and self._out_of_patience:
            self._stand(None)

    def _limit_ms(self, candidacy: Candidacy) -> int:
        """How long a claim may take: longer while Kafka makes what the first producer needs."""
        config = self.node.config
        opening = candidacy.step == OPENING
        return config.open_timeout_ms if opening else config.verdict_timeout_ms

    def _stand(self, reform: MembershipRequested | None) -> None:
        self.candidacy = Candidacy(LOOKING, self.node.token(), self.node.now.mono_ms, reform=reform)
        self.node.pulse.send()

    def _no_progress(self, candidacy: Candidacy) -> None:
        """Begin anew; a producer that never opens although Kafka answers has stopped."""
        if candidacy.step == OPENING and self.node.pulse.reading:
            self._openings_failed += 1
            if self._openings_failed >= OPENINGS_FAILED_MAX:
                self.node.halt("producer_stalled", "the transactional producer does not open")
                return
        self.give_up(f"no progress while {candidacy.step}")

    @property
    def _out_of_patience(self) -> bool:
        return self.node.hearing_ms - self._heard_ms > self._patience_ms()

    def _patience_ms(self) -> int:
        """Return how long to wait for a master: the newest live node first, then by id.

        A life that is not in the active list comes after those that are: it may have just begun,
        while the others have waited. The stagger is longer than a claim takes, or the second
        would fence the first. A new cluster has no master to wait for, only heartbeats to hear;
        neither has one whose master resigned, and then the successor comes first, at once if
        this node was there to read it.

        A master that failed waits for all others, and for once more: the first of them counts it.
        """
        node, config, authority = self.node, self.node.config, self.node.authority
        successor = authority.successor if authority else 0
        failed = authority is not None and authority.epoch == self._failed
        new = not self._is_active(config.node, config.incarnation)
        own = (config.node != successor, new, -node.state.cas, config.node)
        ahead = 0
        for other in self._eligible:
            peer = node.peers.get(other)
            if other == config.node or peer is None or not node.alive(peer):
                continue
            new = not self._is_active(other, peer.beat.incarnation)
            rank = (other != successor, new, -peer.beat.cas, other)
            ahead += failed or rank < own
        ahead += failed and ahead > 0
        again = self._claims_failed * 2 * config.heartbeat_ms
        return self._base_ms() + again + ahead * config.election_stagger_ms

    def _is_active(self, number: int, incarnation: int) -> bool:
        authority = self.node.authority
        member = authority.members.get(number) if authority else None
        return member is not None and member.incarnation == incarnation

    def _base_ms(self) -> int:
        config, authority = self.node.config, self.node.authority
        if authority is None:
            return 2 * config.heartbeat_ms
        if authority.master or not authority.epoch:
            return config.election_timeout_ms
        if self._resigned == authority.epoch:
            return 2 * config.election_timeout_ms
        return 0 if self._witnessed == authority.epoch else 2 * config.heartbeat_ms

    def log_is_held(self) -> None:
        """Everything that can be read was read: an open transaction holds the barrier back.

        A master that died in a transaction leaves the log so, until that times out or is fenced.
        """
        if self.candidacy is not None and self.candidacy.step == LOOKING:
            self._open_producer()

    def barrier_read(self) -> None:
        """The log has been read to its end: go on with the claim."""
        if self.candidacy is not None and self.candidacy.step == LOOKING:
            self._open_producer()
        elif self.candidacy is not None and self.candidacy.step == READING:
            self._write_claim()

    def _open_producer(self) -> None:
        """Nothing in the log speaks against a claim: fence whoever holds the mastership.

        A node that was cut off or stopped looks first, so that it does not fence a successor.
        """
        candidacy = self.candidacy
        assert candidacy is not None
        if candidacy.reform is None:
            if not self._able or not self._out_of_patience:
                self.candidacy = None
                return
        elif self.master_alive:
            self.give_up("a master is alive")
            return
        candidacy.step = OPENING
        self.node.note("no master is alive: claiming the mastership")
        self.node.emit(OpenProducer(candidacy.token))

    def producer_opened(self, event: ProducerOpened) -> None:
        if self.candidacy is None or event.token != self.candidacy.token:
            return
        self._openings_failed = 0
        self.candidacy.step = READING
        self.node.pulse.send()

    def _write_claim(self) -> None:
        """Everything before the fence is folded: write the claim, if this node still may."""
        candidacy, node, config = self.candidacy, self.node, self.node.config
        assert candidacy is not None
        authority = node.authority
        records: list[Any] = []
        if authority is None:
            records.append(self._genesis())
        elif (node.state.cas, node.state.digest) != (authority.last_cas, authority.digest):
            self.give_up("this node is not at the last committed transaction")
            return
        elif candidacy.reform is not None:
            records.append(self.reformed(candidacy.reform, authority.epoch + 1))
        for record in records:
            folded = authorities.fold(authority, 0, record)
            if folded.void:
                self.give_up(folded.void)
                return
            authority = folded.state
        assert authority is not None
        if config.node not in authority.eligible:
            self.give_up("this node did not accept the last committed transaction")
            return
        records.append(
            MasterClaimed(
                authority.epoch + 1,
                config.node,
                config.incarnation,
                config.address,
                node.state.cas,
                node.state.digest,
                authority,
                node.now.wall_ms,
            )
        )
        candidacy.step = CLAIMING
        candidacy.epoch = authority.epoch + 1
        node.emit(Conclude(candidacy.token, tuple(records)))

    def _genesis(self) -> ClusterFormed:
        config = self.node.config
        return ClusterFormed(
            config.cluster_id,
            config.cas_base,
            config.roster,
            config.quorum,
            config.log_capacity,
            config.request_window_ms,
            self.node.now.wall_ms,
        )

    def give_up(self, why: str) -> None:
        """End the candidacy, and begin to wait anew."""
        candidacy, self.candidacy = self.candidacy, None
        assert candidacy is not None
        self.heard()
        if candidacy.reform is not None:
            self.node.emit(
                Reply(candidacy.reform.token, unknown("unavailable", f"not reformed: {why}"))
            )
        if candidacy.step == LOOKING:
            return
        self._claims_failed = min(self._claims_failed + 1, CLAIMS_COUNTED_MAX)
        self.node.note(f"claim given up: {why}")
        self.node.emit(CloseProducer())

    def producer_failed(self, event: ProducerFailed) -> None:
        """The producer broke: the claim under way, or the mastership, goes with it."""
        candidacy = self.candidacy
        if candidacy is not None:
            if candidacy.step != LOOKING and event.token in (0, candidacy.token):
                self.give_up(event.reason)
        elif self.node.master is not None and (event.token == 0 or event.token >= self.claim_token):
            self.node.drop_mastership(event.reason)

    # -- what the log says -------------------------------------------------------------------

    def is_awaited(self, record: MasterClaimed) -> bool:
        """Tell whether this is the claim of the candidacy under way, not of one given up.

        Only then does the producer at hand belong to the claim's epoch.
        """
        candidacy = self.candidacy
        return (
            candidacy is not None
            and candidacy.step == CLAIMING
            and candidacy.epoch == record.epoch
            and self._is_mine(record)
        )

    def _is_mine(self, record: MasterClaimed) -> bool:
        config = self.node.config
        return (record.node, record.incarnation) == (config.node, config.incarnation)

    def claim_is_void(self, record: MasterClaimed, why: str) -> None:
        if self.is_awaited(record):
            self.give_up(f"the claim is void: {why}")

    def claimed(self, record: MasterClaimed) -> bool:
        """The fold accepted a claim; tell whether it makes this node master."""
        self.heard()
        answer: dict[str, Any] = {
            "epoch": record.epoch,
            "master": record.node,
            "address": record.address,
        }
        for token, _ in self._handovers:
            self.node.emit(Reply(token, Outcome(OK, answer=answer)))
        self._handovers.clear()
        candidacy = self.candidacy
        if self.is_awaited(record):
            assert candidacy is not None
            self.candidacy = None
            self._claims_failed = 0
            self.claim_token = candidacy.token
            if candidacy.reform is not None:
                assert self.node.authority is not None
                answer |= self.node.authority.shape
                self.node.emit(Reply(candidacy.reform.token, Outcome(OK, answer=answer)))
            return True
        if candidacy is not None and not self._is_mine(record):
            self.give_up(f"node {record.node} claimed epoch {record.epoch}")
        return False

    def resigned(self, record: MasterResigned) -> None:
        """The master went of its own will: no suspicion is needed."""
        self.heard()
        if self.node.is_following:
            self._witnessed = record.epoch
        if record.node == self.node.config.node:
            self._resigned = record.epoch

    # -- operators ---------------------------------------------------------------------------

    def await_successor(self, token: int, deadline_ms: int) -> None:
        """Answer once the next claim was read back."""
        self._handovers.append((token, deadline_ms))

    def _expire_handovers(self) -> None:
        now = self.node.now.mono_ms
        late = [token for token, deadline_ms in self._handovers if deadline_ms <= now]
        self._handovers = [pair for pair in self._handovers if pair[1] > now]
        for token in late:
            message = "the mastership was given up, and nobody has claimed it yet"
            self.node.emit(Reply(token, unknown("timeout", message)))

    def reform_requested(self, event: MembershipRequested) -> None:
        """An operator forces a claim: only where there is no master, and this node is complete."""
        node, authority = self.node, self.node.authority
        if authority is None or not node.is_following or self.stopping:
            state = "stopping" if self.stopping else node.phase
            outcome = refused("not_ready", f"this node is {state}")
        elif node.keeper.sick:
            outcome = refused("not_ready", f"the store refuses writes: {node.keeper.sick}")
        elif self.master_alive:
            outcome = self.not_master()
        elif self.candidacy is not None:
            outcome = unknown("no_master", "an election is under way: retry")
        else:
            void = authorities.why_not_reform(authority, self.reformed(event, authority.epoch + 1))
            if not void:
                self._stand(event)
                return
            outcome = refused("reform_impossible", void)
        node.emit(Reply(event.token, outcome))

    def reformed(self, event: MembershipRequested, epoch: int) -> ClusterReformed:
        """Return the record that `event` asks for, as of now."""
        command, node = event.command, self.node
        assert isinstance(command, Reform)
        assert node.authority is not None
        return ClusterReformed(
            epoch,
            node.config.node,
            node.state.cas,
            node.state.digest,
            command.minimum,
            tuple(n for n in node.authority.roster if n not in command.forget),
            event.principal,
            command.reason,
            node.now.wall_ms,
        )
