"""What a node makes of its state and of what it hears: the plan of a rebalance, and repairs.

A plan may take a second for a large cluster, so it is made beside the loop. A master that finds an
indexer lost begins a rebalance that empties it: what it held is made anew elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from coordinator.core.catalog.loads import Load
from coordinator.core.catalog.planning import Plan
from coordinator.core.catalog.rebalance_plan import AwayError, Known, plan_rebalance
from coordinator.core.catalog.rebalance_settings import repair_in
from coordinator.core.catalog.rebalances import DRAIN_MAX, MOVES_MAX
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import inputs
from coordinator.core.model.commands import BeginRebalance, Outcome, Request
from coordinator.core.model.entities import REBALANCE_CANCELLED, Index
from coordinator.core.node import Node

Ask = Callable[[Callable[[int], inputs.Input]], Awaitable[Outcome]]

LOOK_S = 2.0
PLAN_S = 60.0
"""So long after a plan by which nothing moves no other is made: it may take all of a core."""

RETRY_MS = 300_000
"""So long after a rebalance that was to empty an indexer it is not tried again."""

DEADLINE_MS = 15_000
PRINCIPAL = "coordinator"

log = logging.getLogger("coordinator")


def planned(
    node: Node, drain: Collection[int], moves_max: int, left_alone: Collection[int] = ()
) -> tuple[BeginRebalance, Plan]:
    """Return the rebalance of the cluster as a node knows it. Raises AwayError."""
    registered = node.authority.indexers if node.authority is not None else {}
    peers = node.peers
    indexers = [
        Known(number, info.zone, peers.indexer_alive(number))
        for number, info in sorted(registered.items())
    ]
    loads = {
        (one.index_id, one.slice, indexer): Load(one.entries, one.bytes, one.mutations)
        for indexer, told in [*peers.loads.items()]
        for one in told.loads
    }
    return plan_rebalance(node.state, indexers, loads, drain, moves_max, left_alone)


class Repairs:
    """Looks for lost indexers, and begins what is needed. The loop owns it."""

    def __init__(self, node: Node, ask: Ask, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the monotonic clock of the node."""
        self._node, self._ask, self._now_ms = node, ask, now_ms
        self._due_s = 0.0
        self._is_running = False

    def is_due(self) -> bool:
        """Tell whether it is time to look; only a master does."""
        master = self._node.master
        leads = master is not None and master.active
        return leads and not self._is_running and time.monotonic() >= self._due_s

    async def run(self) -> None:
        """Look once."""
        self._is_running = True
        pause_s = LOOK_S
        try:
            pause_s = await self._look()
        finally:
            self._is_running = False
            self._due_s = time.monotonic() + pause_s

    async def _look(self) -> float:
        """Begin what is needed; return after how long to look again."""
        state = self._node.state
        lost = self.lost(state, time.time_ns() // 1_000_000)
        if not lost:
            return LOOK_S
        drain = sorted({*lost, *state.drained})[:DRAIN_MAX]
        try:
            alive = self._node.peers.indexer_alive
            away = {i for i in self.left_alone(state).difference(drain) if not alive(i)}
            command, _ = await asyncio.to_thread(planned, self._node, drain, MOVES_MAX, away)
        except AwayError:
            return PLAN_S  # Somebody else is away, and not for so long yet.
        if not command.moves:
            return PLAN_S

        def make(token: int) -> inputs.Input:
            deadline_ms = self._now_ms() + DEADLINE_MS
            return inputs.Requested(
                Request(command=command, principal=PRINCIPAL, token=token, deadline_ms=deadline_ms)
            )

        outcome = await self._ask(make)
        if outcome.status == "ok":
            log.info("indexers %s are lost: %d copies are made anew", lost, len(command.moves))
        return LOOK_S

    def lost(self, state: StateContext, wall_ms: int) -> list[int]:
        """Return the indexers whose copies are to be made anew now."""
        after_ms = repair_in(state).after_s * 1_000
        silent = [i for i in sorted(state.load) if self._node.peers.silent_ms(i) > after_ms]
        if not after_ms or not silent:
            return []
        known = state.rebalances()
        newest = known[0] if known else None
        holding = holders(state)
        found = [i for i in silent if i in holding]
        if newest is None:
            return found
        if not newest.is_over:
            return []
        if 0 <= wall_ms - newest.ended_ms < RETRY_MS:
            found = [i for i in found if i not in newest.drain]
        unwanted = self.left_alone(state)
        return [i for i in found if i not in unwanted]

    def left_alone(self, state: StateContext) -> frozenset[int]:
        """Return the indexers that the last rebalance was to empty, which somebody did not want."""
        known = state.rebalances()
        is_cancelled = bool(known) and known[0].state == REBALANCE_CANCELLED
        return frozenset(known[0].drain if is_cancelled else ())


def holders(state: StateContext) -> set[int]:
    """Return the indexers that have a copy which answers scans, or would."""
    held = (versioned.entity for versioned in state.of_kind("index"))
    indexes = (index for index in held if isinstance(index, Index))
    return {host for index in indexes for piece in index.slices for host in piece.serving}
