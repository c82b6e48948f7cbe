"""Bugs in how indexes are altered."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.catalog import alter, ddl
from coordinator.core.catalog.decisions import Accepted, Change
from coordinator.core.leader import request_table
from coordinator.core.model.entities import INIT, Index

Patch = pytest.MonkeyPatch


def an_index_is_replaced_before_the_other_is_built(patch: Patch) -> None:
    patch.setattr(alter, "takes_place", lambda state, second: True)


def an_index_that_is_replaced_stays(patch: Patch) -> None:
    switched = alter.switched

    def half(*given: Any) -> tuple[Change, ...]:
        return switched(*given)[:1]

    patch.setattr(alter, "switched", half)


def a_drop_forgets_what_is_to_replace(patch: Patch) -> None:
    patch.setattr(ddl, "second_of", lambda state, index: None)


def a_promised_name_is_given_away(patch: Patch) -> None:
    def holder_of(state: Any, index: Index, name: str) -> int:
        holder = state.names.get((index.bucket, name), index.id)
        return 0 if holder == index.id else int(holder)

    patch.setattr(alter, "holder_of", holder_of)


def an_alter_is_answered_at_ready(patch: Patch) -> None:
    patch.setattr(request_table, "is_unfinished", lambda state, index_id: False)


def a_repeat_does_not_wait_for_the_build(patch: Patch) -> None:
    """Beyond INIT nothing tells that the request is under way: a repeat is decided anew."""
    decide = ddl.decide

    def careless(state: Any, request: Any, given: Any) -> Any:
        held = state.index_by_id(state.pending.get(request.id, 0))
        if held is not None and held.entity.state != INIT:
            state = state._replace(pending=state.pending.delete(request.id))
        return decide(state, request, given)

    patch.setattr(ddl, "decide", careless)


def an_alter_that_fails_takes_the_old_index_along(patch: Patch) -> None:
    decide = ddl.DECIDERS[ddl.UndoIndex]

    def careless(state: Any, request: Any, given: Any) -> Any:
        decision = decide(state, request, given)
        held = state.index_by_id(request.command.index_id)
        first = state.index_by_id(held.entity.replaces) if held is not None else None
        if not isinstance(decision, Accepted) or first is None:
            return decision
        gone = Change("IndexReplaced", first.entity.key, ddl.moved(first.entity, "dropping", None))
        return Accepted((*decision.changes, gone), decision.answer, record=decision.record)

    patch.setitem(ddl.DECIDERS, ddl.UndoIndex, careless)
