"""Bugs in how slices move between indexers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from coordinator.core.catalog import rebalances
from coordinator.core.catalog.decisions import Change
from coordinator.core.leader.rebalance_coordinator import RebalanceCoordinator
from coordinator.core.model.commands import StepMove
from coordinator.core.model.entities import (
    MAINTENANCE,
    MOVE_CANCELLED,
    MOVE_CATCHUP,
    MOVE_FAILED,
    Slice,
)
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket import transfers
from indexer_sim.bucket.back_index import BackIndex
from indexer_sim.bucket.settlement import Settlement
from indexer_sim.bucket.tracker import Tracker
from indexer_sim.pipeline import fillings

Patch = pytest.MonkeyPatch


def a_copy_takes_over_before_it_is_built(patch: Patch) -> None:
    def hasty(state: Any, moves: Any, given: Any) -> Any:
        held = state.index_by_id(moves[0].part)
        whole = state.index_by_id(moves[0].index)
        if held is None or whole is None:
            return None
        return known(_with(state, replace(held.entity, state=MAINTENANCE)), moves, given)

    known = rebalances.take_over
    patch.setitem(rebalances.STEPS, MOVE_CATCHUP, hasty)
    patch.setattr(
        RebalanceCoordinator,
        "tend",
        lambda self, view, place, move, part: StepMove(*place, MOVE_CATCHUP),
    )


def _with(state: Any, index: Any) -> Any:
    """Return a state with an index as it is given."""
    held = state.index_by_id(index.id)._replace(entity=index)
    return state._replace(entities=state.entities.set(index.key, held))


def a_copy_goes_without_leaving(patch: Patch) -> None:
    def at_once(self: Slice, indexer: int) -> Slice:
        return self.on(tuple(host for host in self.serving if host != indexer))

    patch.setattr(Slice, "left_by", at_once)


def what_is_released_stays_in_the_back_index(patch: Patch) -> None:
    sweep = BackIndex.sweep

    def careless(self: BackIndex, batch: Any, database: Any, slices: Any, guards: Any) -> set[int]:
        return sweep(self, batch, database, dict.fromkeys(slices, range(100)), guards)

    patch.setattr(BackIndex, "sweep", careless)


def a_move_that_is_given_up_keeps_its_part(patch: Patch) -> None:
    for to in (MOVE_CANCELLED, MOVE_FAILED):
        patch.setitem(rebalances.STEPS, to, lambda state, moves, given: (moves[0].part, ()))


def the_source_leaves_twice(patch: Patch) -> None:
    """Another copy of the slice leaves with it."""
    known = rebalances.take_over

    def generous(state: Any, moves: Any, given: Any) -> Any:
        found = known(state, moves, given)
        if not found or not found[1]:
            return found
        holder = found[1][0].entity
        slices = tuple(
            piece.on((), piece.hosts) if piece.number == moves[0].slice else piece
            for piece in holder.slices
        )
        after = replace(holder, slices=slices)
        return found[0], (Change("MoveBuilt", after.key, after), *found[1][1:])

    patch.setitem(rebalances.STEPS, MOVE_CATCHUP, generous)


def a_part_has_all_copies_of_its_index(patch: Patch) -> None:
    known = rebalances.begin_move

    def copied(state: Any, moves: Any, given: Any) -> Any:
        found = known(state, moves, given)
        if found is None:
            return None
        part = found[1][0].entity
        whole = state.index_by_id(moves[0].index).entity
        after = replace(part, slices=tuple(replace(s, leaving=()) for s in whole.slices))
        return found[0], (Change("MoveBegun", after.key, after),)

    patch.setitem(rebalances.STEPS, "pending", copied)


# -- what one indexer gives another ----------------------------------------------------------------


def an_origin_is_asked_before_it_is_that_far(patch: Patch) -> None:
    known = Tracker.attached

    def nowhere(self: Tracker, index_id: int) -> Vector | None:
        found = known(self, index_id)
        return found and Vector.zero(len(found))

    patch.setattr(Tracker, "attached", nowhere)


def what_is_given_counts_before_it_is_held_here(patch: Patch) -> None:
    patch.setattr(fillings, "holds", lambda bucket, vectors: True)


def what_was_deleted_comes_back(patch: Patch) -> None:
    patch.setattr(Settlement, "tombstones_of", lambda self, index_id, documents: {})


def who_is_not_whole_gives_too(patch: Patch) -> None:
    patch.setattr(transfers, "check", lambda bucket, ask: None)


def a_transfer_ends_with_its_first_page(patch: Patch) -> None:
    known = transfers.Transfer.page

    def short(self: transfers.Transfer, after: bytes | None, limit: int) -> transfers.Given:
        found = known(self, after, limit)
        return msgspec.structs.replace(found, more=False)

    patch.setattr(transfers.Transfer, "page", short)


def one_origin_is_taken_for_all(patch: Patch) -> None:
    known = fillings.origins_of
    patch.setattr(fillings, "origins_of", lambda part: known(part)[:1])
