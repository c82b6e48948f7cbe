"""How copies of slices move between indexers, as a master leads it.

Pure. All that it acts on is in the state: a new master goes on where the old one was. It waits for
three things between two steps: for a place among the moves that run at once, for the part at the
target to be built, and for the scans that still read at the source. A move is begun while its index
can be scanned; one whose index is being built, or rolls back, waits. Source: specification, "index
rebalance".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from coordinator.core.catalog.rebalance_settings import rebalance_in
from coordinator.core.catalog.rebalances import (
    BUILDING,
    UNBUILT,
    goes_with,
    leaving_of,
    may_begin,
    moves_at_once,
)
from coordinator.core.consensus.signals import Want
from coordinator.core.consensus.view import NodeView
from coordinator.core.model.commands import DropPart, ReleaseCopies, StepMove
from coordinator.core.model.entities import (
    DROPPING,
    ERROR,
    MAINTENANCE,
    MOVE_CANCELLED,
    MOVE_CATCHUP,
    MOVE_DONE,
    MOVE_FAILED,
    MOVE_PENDING,
    MOVE_START,
    REBALANCE_CANCELLING,
    Index,
    Move,
    Rebalance,
    Slice,
)

Place = tuple[int, int]
"""A move: its rebalance, and where it stands in that."""


class RebalanceCoordinator:
    """The part of a master that has copies of slices move."""

    def __init__(self) -> None:
        self._leaving_ms: dict[int, tuple[tuple[Slice, ...], int]] = {}
        """Since when copies of an index are known to be leaving, on the monotonic clock."""

    def tick(self, view: NodeView) -> list[Want]:
        """Return the steps that are due, and drop the parts of indexes that are gone."""
        found = [Want(f"part/{part}", DropPart(part)) for part in orphans(view)]
        found += self._release(view)
        for rebalance in view.state.rebalances():
            if rebalance.is_over:
                continue
            building, at_once = _building(view, rebalance), rebalance_in(view.state).parts
            led: list[Move] = []
            for number, move in enumerate(rebalance.moves):
                if move.is_over or any(goes_with(move, one) for one in led):
                    continue
                place = (rebalance.id, number)
                bucket = _bucket(view, move)
                step = self._next(view, rebalance, place, move, building[bucket] < at_once)
                if step is not None:
                    building[bucket] += step.to == MOVE_PENDING
                    if MOVE_PENDING in (move.state, step.to):
                        led.append(move)
                    found.append(Want(f"move/{rebalance.id}/{number}", step))
        return found

    def _release(self, view: NodeView) -> list[Want]:
        """Let copies go that have been leaving for long enough for the scans that they had."""
        state, now_ms = view.state, view.now.mono_ms
        for index_id in self._leaving_ms.keys() - state.leaving.keys():
            del self._leaving_ms[index_id]
        found: list[Want] = []
        for index_id in state.leaving:
            index = view.state.find_index(index_id)
            slices = index.slices if index is not None else ()
            known = self._leaving_ms.get(index_id)
            if known is None or known[0] != slices:
                known = self._leaving_ms[index_id] = (slices, now_ms)
            if now_ms - known[1] >= view.config.drain_ms:
                found.append(Want(f"copies/{index_id}", ReleaseCopies(index_id, slices)))
        return found

    def _next(
        self, view: NodeView, rebalance: Rebalance, place: Place, move: Move, has_room: bool
    ) -> StepMove | None:
        """Return the next step of a move, if one is due."""
        index = view.state.find_index(move.index)
        if index is None or index.state == DROPPING:
            return StepMove(*place, MOVE_FAILED, "the index was dropped")
        if rebalance.state == REBALANCE_CANCELLING and move.state != MOVE_CATCHUP:
            return StepMove(*place, MOVE_CANCELLED)
        if move.state == MOVE_START:
            return self._begin(view, rebalance, place, move, index, has_room)
        part = view.state.find_index(move.part)
        if move.state == MOVE_PENDING:
            return self.tend(view, place, move, part)
        is_gone = move.source not in leaving_of(view.state, index, move.slice)
        return StepMove(*place, MOVE_DONE) if is_gone else None

    def _begin(
        self,
        view: NodeView,
        rebalance: Rebalance,
        place: Place,
        move: Move,
        index: Index,
        has_room: bool,
    ) -> StepMove | None:
        if not view.peers.indexer_alive(move.target):
            return _lost(view, place, move)
        rollback = view.state.rollback(index.bucket)
        if not has_room or (rollback is not None and not rollback.is_over):
            return None
        if index.state in BUILDING:
            return _beside_a_build(view, rebalance, place, move, index)
        if index.state != MAINTENANCE and index.state not in UNBUILT:
            return None
        if not may_begin(view.state, move):
            return StepMove(*place, MOVE_FAILED, "the copy is not where it was planned to be")
        if index.state == MAINTENANCE:
            return StepMove(*place, MOVE_PENDING)
        if not moves_at_once(index, move):
            return StepMove(*place, MOVE_FAILED, "its index is not built: build it first")
        return StepMove(*place, MOVE_DONE)

    def tend(self, view: NodeView, place: Place, move: Move, part: Index | None) -> StepMove | None:
        """Look how far the part is that is built at the target."""
        if part is None or part.state in (DROPPING, ERROR):
            reason = part.reason if part is not None else None
            return StepMove(*place, MOVE_FAILED, reason or "the target gave it up")
        if part.state == MAINTENANCE:
            return StepMove(*place, MOVE_CATCHUP)
        if not view.peers.indexer_alive(move.target):
            return _lost(view, place, move)
        return None


def _building(view: NodeView, rebalance: Rebalance) -> Counter[str]:
    """Return how many parts are being built, by bucket.

    The backfills of a bucket share one stream. Buckets do not wait for one another: one of them may
    have no projector.
    """
    parts = {m.part: _bucket(view, m) for m in rebalance.moves if m.state == MOVE_PENDING}
    return Counter(parts.values())


def _bucket(view: NodeView, move: Move) -> str:
    index = view.state.find_index(move.index)
    return index.bucket if index is not None else ""


def _beside_a_build(
    view: NodeView, rebalance: Rebalance, place: Place, move: Move, index: Index
) -> StepMove | None:
    """Wait for an index that is being built, unless its build waits for indexers that are lost.

    What lies on these moves at once. All else could wait for ever, and nothing else would move.
    """
    lost = {h for piece in index.slices for h in piece.serving if view.peers.indexer_lost(h)}
    if not lost:
        return None

    def is_freeing(one: Move) -> bool:
        is_from_lost = one.index == index.id and one.source in lost
        return is_from_lost and moves_at_once(index, one) and may_begin(view.state, one)

    if is_freeing(move):
        return StepMove(*place, MOVE_DONE)
    others = (one for one in rebalance.moves if one.state == MOVE_START and one != move)
    if any(is_freeing(one) for one in others):
        return None
    text = f"its index is being built, and indexer {min(lost)} is lost, which takes part in that"
    return StepMove(*place, MOVE_FAILED, text)


def _lost(view: NodeView, place: Place, move: Move) -> StepMove | None:
    """Give a move up whose target is lost."""
    if not view.peers.indexer_lost(move.target):
        return None
    return StepMove(*place, MOVE_FAILED, f"indexer {move.target} is not alive")


def orphans(view: NodeView) -> Iterator[int]:
    """Yield the parts of indexes that are gone, or going, but for those that go already."""
    for index_id, parts in view.state.parts.items():
        whole = view.state.find_index(index_id)
        if whole is None or whole.state == DROPPING:
            for number in sorted(parts):
                part = view.state.find_index(number)
                if part is not None and part.state != DROPPING:
                    yield number
