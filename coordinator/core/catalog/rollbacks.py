"""Decisions about kv-rollbacks: a bucket goes back to what its key-value store still has.

Pure, like `ddl`, of which this is a part. What a step rests on, its master has found out before
(`leader.rollback_coordinator`): here it is decided only whether the step follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    Unchanged,
)
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.commands import MoveRollback, Outcome, Request
from coordinator.core.model.entities import (
    ROLLBACK,
    ROLLBACK_DONE,
    ROLLBACK_PREPARE,
    ROLLBACK_RESTART,
    ROLLBACK_STARTED,
    ROLLBACK_STATES,
    Rollback,
)

EVENTS = {
    ROLLBACK_STARTED: "RollbackStarted",
    ROLLBACK_PREPARE: "RollbackPrepared",
    ROLLBACK_RESTART: "RollbackRestarted",
    ROLLBACK: "RollbackCommanded",
    ROLLBACK_DONE: "RollbackEnded",
}
"""What the history calls the step to each state."""


def describe_rollback(rollback: Rollback) -> dict[str, Any]:
    """Return a rollback as clients see it, without its timestamps."""
    return {
        "bucket": rollback.bucket,
        "number": str(rollback.number),
        "state": rollback.state,
        "reason": rollback.reason,
        "vbuckets": list(rollback.vbuckets),
        "began_ms": rollback.began_ms,
        "ended_ms": rollback.ended_ms if rollback.is_over else None,
    }


def _move_rollback(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Begin a rollback where none goes on, or take the next step of the one that is meant."""
    command = request.command
    assert isinstance(command, MoveRollback)
    held = state.rollback(command.bucket)
    if (held.number if held else 0) != command.number or state.bucket(command.bucket) is None:
        return Unchanged(Outcome("ok"))
    if command.state == ROLLBACK_STARTED and (held is None or not held.stops_streams):
        moved_on = Rollback(
            bucket=command.bucket,
            number=given.number,
            state=ROLLBACK_STARTED,
            vbuckets=command.vbuckets,
            reason=command.reason,
            began_ms=given.wall_ms,
        )
    elif held is not None and command.state == _next_state(held):
        moved_on = _next(held, command, given)
    else:
        return Unchanged(Outcome("ok"))
    return Accepted((Change(EVENTS[command.state], moved_on.key, moved_on),), {})


def _next_state(held: Rollback) -> str | None:
    """Return the state that follows; None after the last one."""
    return dict(pairwise(ROLLBACK_STATES)).get(held.state)


def _next(held: Rollback, command: MoveRollback, given: Circumstances) -> Rollback:
    """Return a rollback in its next state, with what belongs to that."""
    held = replace(held, state=command.state)
    if command.state == ROLLBACK_PREPARE:
        return replace(held, failover_vbuuids=command.vbuuids, failover_seqnos=command.seqnos)
    if command.state == ROLLBACK_RESTART:
        return replace(held, restart_vbuuids=command.vbuuids, restart_seqnos=command.seqnos)
    if command.state == ROLLBACK:
        return replace(held, barrier=given.number)
    return replace(held, ended_ms=given.wall_ms)


ROLLBACK_DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    MoveRollback: _move_rollback,
}
