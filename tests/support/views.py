"""What a part of a node is shown, as a plain value: no node, no master and no world stand behind.

Node 1 follows at CAS 50; node 2 is master of epoch 4, and node 3 is the third of the active list.
Their incarnations are 10, 20 and 30. The last transaction was 4-7, which all three accepted; the
minimum is two copies. A test names what is different in its case.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from immutables import Map

from coordinator.codec import Codec
from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import OutcomeWindow
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.peers import Peer, Peers
from coordinator.core.consensus.view import FOLLOWING
from coordinator.core.model.authority_state import AuthorityState, Member, OpenTransaction
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.entities import Entity, Setting
from coordinator.core.model.records import Mutation, NodeHeartbeat, TransactionProposed
from coordinator.core.model.types import Instant, TxnId

CODEC = Codec()
MONO_MS, WALL_MS = 10_000, 1_700_000_000_000
NOW = Instant(MONO_MS, WALL_MS)
INCARNATIONS = {1: 10, 2: 20, 3: 30}
CONFIG = NodeConfig(
    node=1, roster=(1, 2, 3), address="n1", pid=1, incarnation=INCARNATIONS[1], cluster_id="c"
)


def a_state(cas: int, **settings: str) -> StateContext:
    """Return a state that has these settings, all of them written at its CAS."""
    return a_state_of(cas, *(Setting(name, value) for name, value in settings.items()))


def a_state_of(cas: int, *entities: Entity) -> StateContext:
    held = [(one.key, Versioned(cas, CODEC.encode_entity(one), one)) for one in entities]
    return states.restore(cas, held)


STATE = a_state(50, k="1")

AUTHORITY = AuthorityState(
    cluster_id="c",
    cas_base=1,
    roster=(1, 2, 3),
    minimum=2,
    log_capacity=10,
    request_window_ms=600_000,
    epoch=4,
    master=2,
    incarnation=INCARNATIONS[2],
    address="n2",
    members=Map(
        {node: Member(node, incarnation, f"n{node}") for node, incarnation in INCARNATIONS.items()}
    ),
    last_seq=7,
    last_txn=TxnId(4, 7),
    last_cas=STATE.cas,
    digest=STATE.digest,
    acceptors=(1, 2, 3),
)
"""As node 1 sees it: node 2 is the master."""

OWN_AUTHORITY = replace(AUTHORITY, master=1, incarnation=INCARNATIONS[1], address="n1")
"""As node 1 sees it when it is the master itself."""


def members(**incarnations: int) -> Map[int, Member]:
    """Return an active list: `n1=10` is the incarnation 10 of node 1."""
    found = {int(name[1:]): incarnation for name, incarnation in incarnations.items()}
    return Map({node: Member(node, incarnation, f"n{node}") for node, incarnation in found.items()})


def a_beat(node: int, **fields: Any) -> NodeHeartbeat:
    """Return a heartbeat of the incarnation of a node that is active, at CAS 50 of epoch 4."""
    known = {
        "incarnation": INCARNATIONS.get(node, 10 * node),
        "state": "replica",
        "epoch": 4,
        "cas": 50,
    }
    more = {"digest": 0, "address": f"n{node}", "pid": 1, "reason": "", "at_ms": 0}
    return NodeHeartbeat(node=node, **(known | more | fields))


def some_peers(
    clock_ms: int,
    alive: Iterable[NodeHeartbeat] = (),
    silent: Iterable[NodeHeartbeat] = (),
    config: NodeConfig = CONFIG,
) -> Peers:
    """Return who was heard: those alive just now, the silent ones just too long ago."""
    peers = Peers(config)
    peers.clock_ms = clock_ms
    for beat in silent:
        peers.nodes[beat.node] = Peer(clock_ms - config.liveness_ms - 1, beat)
    for beat in alive:
        peers.nodes[beat.node] = Peer(clock_ms, beat)
    return peers


@dataclass(frozen=True, kw_only=True)
class PlainView:
    """A view as a value: what it does not name is as the head of this module says."""

    config: NodeConfig = CONFIG
    now: Instant = NOW
    peers: Peers = field(default_factory=lambda: some_peers(0))
    phase: str = FOLLOWING
    applied: int = 100
    authority: AuthorityState | None = AUTHORITY
    state: StateContext = STATE
    state_known: bool = True
    prepared: Any = None
    outcomes: OutcomeWindow = field(default_factory=lambda: OutcomeWindow(CODEC))
    timestamps: Any = None
    is_member: bool = True
    is_stopping: bool = False
    is_master: bool = False
    is_reading: bool = True
    sick: str = ""
    durable: int = 100


def a_view(mono_ms: int = MONO_MS, settings: dict[str, Any] | None = None, **fields: Any) -> Any:
    """Return a view at `mono_ms`; `settings` are those of the node's configuration."""
    config = replace(CONFIG, **(settings or {}))
    now = Instant(mono_ms, WALL_MS + mono_ms - MONO_MS)
    return PlainView(**{"config": config, "now": now, **fields})


class Around(NamedTuple):
    """What is around a part that has everything else itself."""

    config: NodeConfig
    now: Instant
    peers: Peers


def around(mono_ms: int = MONO_MS, peers: Peers | None = None) -> Any:
    """Return what a follower is shown: it has the log, the state and the store's side itself."""
    return Around(CONFIG, Instant(mono_ms, WALL_MS + mono_ms - MONO_MS), peers or some_peers(0))


def writes(name: str, value: str = "2") -> Mutation:
    """Return the mutation that writes a setting."""
    setting = Setting(name, value)
    return Mutation("SettingWritten", setting.key, CODEC.encode_entity(setting), setting)


def a_proposal(seq: int = 8, *mutations: Mutation, **fields: Any) -> TransactionProposed:
    """Return a proposal of epoch 4 that builds on CAS 50; it writes one setting by default."""
    known = {"prev_cas": STATE.cas, "prev_digest": STATE.digest, "participants": (1, 2, 3)}
    written = mutations or (writes("a"),)
    return TransactionProposed(txn=TxnId(4, seq), mutations=written, **(known | fields))


def opened(proposal: TransactionProposed, offset: int) -> OpenTransaction:
    """Return what the fold knows of a proposal that it opened at this offset."""
    return OpenTransaction(
        proposal.txn,
        offset,
        proposal.participants,
        proposal.prev_cas,
        proposal.prev_digest,
        len(proposal.mutations),
    )
