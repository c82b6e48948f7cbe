"""How a node comes to claim the mastership, and what it tells while there is no master.

Pure. A node suspects the master after `election_timeout_ms` without its heartbeats. After a
resignation it does not wait that long. The live node with the highest CAS claims first, then the
one with the lower id; the others wait longer. A claim has these steps: look (read the log to its
end, for a newer claim), open the producer (which fences any other), read to the end again, write
the claim, read it back. Only then is there a `Master`. A candidate that dies on the way has only
fenced its predecessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.effects import (
    CloseProducer,
    Conclude,
    Halt,
    Note,
    OpenProducer,
    Reply,
)
from coordinator.core.consensus.inputs import MembershipRequested, ProducerFailed, ProducerOpened
from coordinator.core.consensus.roles import LEADING
from coordinator.core.consensus.signals import (
    Elected,
    ExamineLog,
    LoseMastership,
    Result,
    SendBarrier,
)
from coordinator.core.consensus.view import FOLLOWING, NodeView, Tokens
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.commands import OK, Outcome, Reform, refused, unknown
from coordinator.core.model.records import (
    ClusterFormed,
    ClusterReformed,
    MasterClaimed,
    MasterResigned,
    NodeHeartbeat,
)
from coordinator.core.model.types import Epoch, Offset

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
    epoch: Epoch = Epoch(0)
    reform: MembershipRequested | None = None


@dataclass(frozen=True, slots=True)
class Mastership:
    """Whether there is a master, and if not, for which nodes the cluster waits, and why."""

    state: str
    message: str
    waiting_for: tuple[int, ...] = ()


class Election:
    """One node's part in every election.

    Large because a candidacy has four steps, and each can fail in a way of its own.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
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

    def note_master(self, view: NodeView) -> None:
        """The master is alive, or the patience with it begins anew."""
        self._heard_ms = view.peers.clock_ms

    def lost(self, view: NodeView) -> None:
        """This node's own mastership broke: nobody needs to wait for its heartbeats."""
        self._heard_ms = view.peers.clock_ms - view.config.election_timeout_ms

    def failed(self, view: NodeView) -> None:
        """This node's own mastership ended nothing that it began: another may fare better."""
        assert view.authority is not None
        self._failed = view.authority.epoch
        self.note_master(view)

    def beat(self, view: NodeView, beat: NodeHeartbeat) -> None:
        """Another node's heartbeat: that of the master of now counts."""
        authority = view.authority
        if (
            authority is not None
            and beat.state in LEADING
            and (beat.node, beat.epoch) == (authority.master, authority.epoch)
            and beat.incarnation == authority.incarnation
        ):
            self.note_master(view)

    def master_alive(self, view: NodeView) -> bool:
        """Tell whether this node is master, or has heard the master within the timeout."""
        if view.is_master:
            return True
        elapsed = view.peers.clock_ms - self._heard_ms
        known = view.authority is not None and view.authority.master != 0
        return known and elapsed <= view.config.election_timeout_ms

    def mastership(self, view: NodeView) -> Mastership:
        """Say how the cluster stands: a master, an election, or nobody who may be elected."""
        authority = view.authority
        if authority is None and view.phase != FOLLOWING:
            return Mastership(UNKNOWN, f"this node is {view.phase}")
        if authority is not None and self.master_alive(view):
            active, minimum = len(authority.members), authority.minimum
            short = active < minimum
            nodes = authorities.counted(active, "node is", "nodes are")
            text = f"{nodes} active, {authorities.needed(minimum)}" if short else ""
            return Mastership(ELECTED, text)
        if view.phase != FOLLOWING:
            return Mastership(UNKNOWN, f"no master was heard; this node is {view.phase}")
        eligible, peers = eligible_nodes(view), view.peers
        others = (n for n in eligible if n != view.config.node)
        if self._able(view) or any(map(peers.node_alive, others)):
            return Mastership(ELECTING, "no master is alive: an election is under way")
        held = f"accepted transaction {authority.last_txn}" if authority else "form the cluster"
        names = ", ".join(map(str, eligible))
        return Mastership(
            NO_ELIGIBLE_NODE,
            f"no eligible node is alive: waiting for one of the nodes that {held} ({names})",
            eligible,
        )

    def _able(self, view: NodeView) -> bool:
        """Tell whether this node may claim and is in a state to do so."""
        may = view.config.node in eligible_nodes(view)
        return may and view.phase == FOLLOWING and not view.sick and not self.stopping

    def not_master(self, view: NodeView) -> Outcome:
        """Return the answer to a writer who came to the wrong node."""
        authority = view.authority
        if authority is None or not authority.master or not self.master_alive(view):
            standing = self.mastership(view)
            return unknown(
                "no_master",
                standing.message or "no master is alive at the moment: retry",
                mastership=standing.state,
                waiting_for=list(standing.waiting_for),
            )
        if authority.master == view.config.node:
            return unknown("no_master", "the master is changing: retry")
        return unknown(
            "not_master",
            f"node {authority.master} is the master",
            node=authority.master,
            address=authority.address,
        )

    # -- candidacy ---------------------------------------------------------------------------

    def tick(self, view: NodeView) -> list[Result]:
        """Begin a claim when the master has been silent for this node's share of patience."""
        found = self._expire_handovers(view)
        candidacy = self.candidacy
        if candidacy is not None:
            waited_ms = view.now.mono_ms - candidacy.since_ms
            if candidacy.step == LOOKING and waited_ms > view.config.look_ms:
                found += self._open_producer(view)
            elif candidacy.step == LOOKING:
                found.append(ExamineLog())
            elif waited_ms > self._limit_ms(view, candidacy):
                found += self._no_progress(view, candidacy)
        elif not view.is_master and self._able(view) and self._out_of_patience(view):
            found += self._stand(view, None)
        return found

    def _limit_ms(self, view: NodeView, candidacy: Candidacy) -> int:
        """How long a claim may take: longer while Kafka makes what the first producer needs."""
        opening = candidacy.step == OPENING
        return view.config.open_timeout_ms if opening else view.config.verdict_timeout_ms

    def _stand(self, view: NodeView, reform: MembershipRequested | None) -> list[Result]:
        token = self._tokens.next()
        self.candidacy = Candidacy(LOOKING, token, view.now.mono_ms, reform=reform)
        return [SendBarrier()]

    def _no_progress(self, view: NodeView, candidacy: Candidacy) -> list[Result]:
        """Begin anew; a producer that never opens although Kafka answers has stopped."""
        if candidacy.step == OPENING and view.is_reading:
            self._openings_failed += 1
            if self._openings_failed >= OPENINGS_FAILED_MAX:
                return [Halt("producer_stalled", "the transactional producer does not open")]
        return self._give_up(view, f"no progress while {candidacy.step}")

    def _out_of_patience(self, view: NodeView) -> bool:
        return view.peers.clock_ms - self._heard_ms > self._patience_ms(view)

    def _patience_ms(self, view: NodeView) -> int:
        """Return how long to wait for a master: the newest live node first, then by id.

        An incarnation outside the in-sync set comes after those within: it may have just begun,
        while the others have waited. The stagger is longer than a claim takes, or the second
        would fence the first. A new cluster has no master to wait for, only heartbeats to hear;
        neither has one whose master resigned, and then the successor comes first, at once if
        this node was there to read it.

        A master that failed waits for all others, and for once more: the first of them counts it.
        """
        config, authority, peers = view.config, view.authority, view.peers
        successor = authority.successor if authority else 0
        failed = authority is not None and authority.epoch == self._failed
        new = not _is_active(authority, config.node, config.incarnation)
        own = (config.node != successor, new, -view.state.cas, config.node)
        ahead = 0
        for other in eligible_nodes(view):
            peer = peers.nodes.get(other)
            if other == config.node or peer is None or not peers.alive(peer):
                continue
            new = not _is_active(authority, other, peer.beat.incarnation)
            rank = (other != successor, new, -peer.beat.cas, other)
            ahead += failed or rank < own
        ahead += failed and ahead > 0
        again = self._claims_failed * 2 * config.heartbeat_ms
        return self._base_ms(view) + again + ahead * config.election_stagger_ms

    def _base_ms(self, view: NodeView) -> int:
        config, authority = view.config, view.authority
        if authority is None:
            return 2 * config.heartbeat_ms
        if authority.master or not authority.epoch:
            return config.election_timeout_ms
        if self._resigned == authority.epoch:
            return 2 * config.election_timeout_ms
        return 0 if self._witnessed == authority.epoch else 2 * config.heartbeat_ms

    def blocked_at_stable_offset(self, view: NodeView) -> list[Result]:
        """Everything that can be read was read: an open transaction holds the barrier back.

        A master that died in a transaction leaves the log so, until that times out or is fenced.
        """
        if self.candidacy is not None and self.candidacy.step == LOOKING:
            return self._open_producer(view)
        return []

    def barrier_read(self, view: NodeView) -> list[Result]:
        """The log has been read to its end: go on with the claim."""
        if self.candidacy is not None and self.candidacy.step == LOOKING:
            return self._open_producer(view)
        if self.candidacy is not None and self.candidacy.step == READING:
            return self._write_claim(view)
        return []

    def _open_producer(self, view: NodeView) -> list[Result]:
        """Nothing in the log speaks against a claim: fence whoever holds the mastership.

        A node that was cut off or stopped looks first, so that it does not fence a successor.
        """
        candidacy = self.candidacy
        assert candidacy is not None
        if candidacy.reform is None:
            if not self._able(view) or not self._out_of_patience(view):
                self.candidacy = None
                return []
        elif self.master_alive(view):
            return self._give_up(view, "a master is alive")
        candidacy.step = OPENING
        why = "no master is alive: claiming the mastership"
        return [Note(why), OpenProducer(candidacy.token)]

    def producer_opened(self, event: ProducerOpened) -> list[Result]:
        """The producer is there, and no other: read what was written before it was."""
        if self.candidacy is None or event.token != self.candidacy.token:
            return []
        self._openings_failed = 0
        self.candidacy.step = READING
        return [SendBarrier()]

    def _write_claim(self, view: NodeView) -> list[Result]:
        """Everything before the fence is folded: write the claim, if this node still may."""
        candidacy, config, state = self.candidacy, view.config, view.state
        assert candidacy is not None
        authority = view.authority
        records: list[Any] = []
        if authority is None:
            records.append(_genesis(view))
        elif (state.cas, state.digest) != (authority.last_cas, authority.digest):
            return self._give_up(view, "this node is not at the last committed transaction")
        elif candidacy.reform is not None:
            records.append(reform_record(view, candidacy.reform, authority.next_epoch))
        for record in records:
            folded = authorities.fold(authority, Offset(0), record)
            if folded.void:
                return self._give_up(view, folded.void)
            authority = folded.state
        assert authority is not None
        if config.node not in authority.eligible:
            return self._give_up(view, "this node did not accept the last committed transaction")
        records.append(
            MasterClaimed(
                epoch=authority.next_epoch,
                node=config.node,
                incarnation=config.incarnation,
                address=config.address,
                cas=state.cas,
                digest=state.digest,
                snapshot=authority,
                at_ms=view.now.wall_ms,
            )
        )
        candidacy.step = CLAIMING
        candidacy.epoch = authority.next_epoch
        return [Conclude(candidacy.token, tuple(records))]

    def _give_up(self, view: NodeView, why: str) -> list[Result]:
        """End the candidacy, and begin to wait anew."""
        candidacy, self.candidacy = self.candidacy, None
        assert candidacy is not None
        self.note_master(view)
        found: list[Result] = []
        if candidacy.reform is not None:
            outcome = unknown("unavailable", f"not reformed: {why}")
            found.append(Reply(candidacy.reform.token, outcome))
        if candidacy.step != LOOKING:
            self._claims_failed = min(self._claims_failed + 1, CLAIMS_COUNTED_MAX)
            found += [Note(f"claim given up: {why}"), CloseProducer()]
        return found

    def producer_failed(self, view: NodeView, event: ProducerFailed) -> list[Result]:
        """The producer broke: the claim under way, or the mastership, goes with it."""
        candidacy = self.candidacy
        if candidacy is not None:
            if candidacy.step != LOOKING and event.token in (0, candidacy.token):
                return self._give_up(view, event.reason)
        elif view.is_master and (event.token == 0 or event.token >= self.claim_token):
            return [LoseMastership(event.reason)]
        return []

    # -- what the log says -------------------------------------------------------------------

    def _is_awaited(self, view: NodeView, record: MasterClaimed) -> bool:
        """Tell whether this is the claim of the candidacy under way, not of one given up.

        Only then does the producer at hand belong to the claim's epoch.
        """
        candidacy = self.candidacy
        return (
            candidacy is not None
            and candidacy.step == CLAIMING
            and candidacy.epoch == record.epoch
            and _is_by(view, record)
        )

    def claim_is_void(self, view: NodeView, record: MasterClaimed, why: str) -> list[Result]:
        """The fold did not accept a claim: the candidacy ends, if it was its own."""
        if self._is_awaited(view, record):
            return self._give_up(view, f"the claim is void: {why}")
        return []

    def claimed(self, view: NodeView, record: MasterClaimed) -> list[Result]:
        """The fold accepted a claim, perhaps that of this node."""
        self.note_master(view)
        answer: dict[str, Any] = {
            "epoch": record.epoch,
            "master": record.node,
            "address": record.address,
        }
        found: list[Result] = [Reply(t, Outcome(OK, answer=answer)) for t, _ in self._handovers]
        self._handovers.clear()
        candidacy = self.candidacy
        if self._is_awaited(view, record):
            assert candidacy is not None
            self.candidacy = None
            self._claims_failed = 0
            self.claim_token = candidacy.token
            if candidacy.reform is not None:
                assert view.authority is not None
                answer = answer | view.authority.shape
                found.append(Reply(candidacy.reform.token, Outcome(OK, answer=answer)))
            found.append(Elected(record.epoch))
        elif candidacy is not None and not _is_by(view, record):
            found += self._give_up(view, f"node {record.node} claimed epoch {record.epoch}")
        return found

    def resigned(self, view: NodeView, record: MasterResigned) -> None:
        """The master went of its own will: no suspicion is needed."""
        self.note_master(view)
        if view.phase == FOLLOWING:
            self._witnessed = record.epoch
        if record.node == view.config.node:
            self._resigned = record.epoch

    # -- operators ---------------------------------------------------------------------------

    def await_successor(self, token: int, deadline_ms: int) -> None:
        """Answer once the next claim was read back."""
        self._handovers.append((token, deadline_ms))

    def _expire_handovers(self, view: NodeView) -> list[Result]:
        if not self._handovers:
            return []
        now = view.now.mono_ms
        late = [token for token, deadline_ms in self._handovers if deadline_ms <= now]
        self._handovers = [pair for pair in self._handovers if pair[1] > now]
        message = "the mastership was given up, and nobody has claimed it yet"
        return [Reply(token, unknown("timeout", message)) for token in late]

    def reform_requested(self, view: NodeView, event: MembershipRequested) -> list[Result]:
        """An operator forces a claim: only where there is no master, and this node is complete."""
        authority = view.authority
        if authority is None or view.phase != FOLLOWING or self.stopping:
            state = "stopping" if self.stopping else view.phase
            outcome = refused("not_ready", f"this node is {state}")
        elif view.sick:
            outcome = refused("not_ready", f"the store refuses writes: {view.sick}")
        elif self.master_alive(view):
            outcome = self.not_master(view)
        elif self.candidacy is not None:
            outcome = unknown("no_master", "an election is under way: retry")
        else:
            refusal = _refusal_of(view, authority, event)
            if refusal is None:
                return self._stand(view, event)
            outcome = refusal
        return [Reply(event.token, outcome)]


def eligible_nodes(view: NodeView) -> tuple[int, ...]:
    """Return the nodes whose claim would count: before there is a cluster, all of the roster."""
    return view.authority.eligible if view.authority else view.config.roster


def _refusal_of(
    view: NodeView, authority: AuthorityState, event: MembershipRequested
) -> Outcome | None:
    """Return why a reform is refused that this node would write with a claim, if it is."""
    assert isinstance(event.command, Reform)
    if unknown_nodes := authorities.not_in_roster(authority, event.command.forget):
        return refused("member_not_found", unknown_nodes)
    void = authorities.why_not_reform(authority, reform_record(view, event, authority.next_epoch))
    return refused("reform_impossible", void) if void else None


def reform_record(view: NodeView, event: MembershipRequested, epoch: Epoch) -> ClusterReformed:
    """Return the record that an operator's `event` asks for, as of now."""
    command, authority = event.command, view.authority
    assert isinstance(command, Reform)
    assert authority is not None
    return ClusterReformed(
        epoch=epoch,
        node=view.config.node,
        cas=view.state.cas,
        digest=view.state.digest,
        minimum=command.minimum,
        roster=tuple(n for n in authority.roster if n not in command.forget),
        principal=event.principal,
        reason=command.reason,
        at_ms=view.now.wall_ms,
    )


def _is_active(authority: AuthorityState | None, number: int, incarnation: int) -> bool:
    member = authority.members.get(number) if authority else None
    return member is not None and member.incarnation == incarnation


def _is_by(view: NodeView, record: MasterClaimed) -> bool:
    """Tell whether this incarnation of the node has written a claim."""
    return (record.node, record.incarnation) == (view.config.node, view.config.incarnation)


def _genesis(view: NodeView) -> ClusterFormed:
    config = view.config
    return ClusterFormed(
        cluster_id=config.cluster_id,
        cas_base=config.cas_base,
        roster=config.roster,
        minimum=config.quorum,
        log_capacity=config.log_capacity,
        request_window_ms=config.request_window_ms,
        sync_partitions=config.sync_partitions,
        at_ms=view.now.wall_ms,
    )
