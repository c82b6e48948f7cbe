"""Rebalances over HTTP: plan one, begin it, watch how far it is, cancel it.

A plan is made of the state and of what indexers say that their slices weigh, so any node can make
it. Whoever decides looks again whether each move is still possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Query
from starlette.responses import Response

from coordinator import codec
from coordinator.core.catalog.rebalance_plan import AwayError
from coordinator.core.catalog.rebalances import (
    NOBODY_LEFT,
    begun,
    describe_rebalance,
    is_everybody,
)
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.build_progress import Progress, entries_told, of_filling
from coordinator.core.model import commands
from coordinator.core.model.entities import MOVE_PENDING, NOWHERE, Move, Rebalance
from coordinator.http import models, views
from coordinator.http.aside import VIEWS
from coordinator.http.errors import ApiError, json_response
from coordinator.http.execution import IdempotencyKey, Principal, execute, remembered
from coordinator.http.history import Settle
from coordinator.http.shared import APPLIED_CAS, Consistency, read_answer, read_aside
from coordinator.node.repairs import planned
from coordinator.node.shell import Shell


def add_rebalances(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the routes; `settle` waits until this node may answer a read."""

    @app.post("/v1/rebalance", response_model=models.RebalanceAnswer)
    async def rebalance(
        body: models.RebalanceBody,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Move copies of slices between indexers: by the plan of the cluster, or as named.

        With `dry_run` only the plan is answered.
        """
        await settle("linearizable", 0)
        try:
            command, impossible = await VIEWS.run(lambda: _command(shell, body))
        except ApiError:
            if body.dry_run or remembered(shell, idempotency_key) is None:
                raise
            # Whatever could be planned now, the first outcome is answered.
            command, impossible = commands.BeginRebalance(()), []
        if body.dry_run:
            cas = shell.node.state.cas
            planned = {"rebalance": _planned(command), "impossible": impossible, "cas": cas}
            return read_answer(shell, planned)
        outcome = await execute(
            shell,
            command,
            key=idempotency_key,
            if_match=None,
            principal=x_principal,
            fingerprint=codec.hashed(body.model_dump_json().encode()),
        )
        await settle(None, outcome.cas)
        rebalance_id = int(outcome.answer["rebalance"]["id"])
        return _answer(shell, rebalance_id, outcome, impossible)

    @app.get("/v1/rebalance", response_model=models.RebalancesAnswer)
    async def list_rebalances(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show the rebalances, the newest first: each with its moves and how far they are."""
        await settle(consistency, at_least)
        state, progress = shell.node.state, _progresses(shell)
        return await read_aside(
            shell,
            lambda: {
                "rebalances": [_shown(state, one, progress) for one in state.rebalances()],
                "cas": state.cas,
            },
        )

    @app.delete("/v1/rebalance/{rebalance_id}", response_model=models.RebalanceAnswer)
    async def cancel_rebalance(
        rebalance_id: int,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Cancel a rebalance: moves whose target is complete are finished, the others given up."""
        if not 0 < rebalance_id < 2**63:
            raise ApiError("rebalance_not_found", f"there is no rebalance {rebalance_id}")
        outcome = await execute(
            shell,
            commands.CancelRebalance(rebalance_id),
            key=idempotency_key,
            if_match=None,
            principal=x_principal,
        )
        await settle(None, outcome.cas)
        return _answer(shell, rebalance_id, outcome)


def _command(
    shell: Shell, body: models.RebalanceBody
) -> tuple[commands.BeginRebalance, list[dict[str, Any]]]:
    """Return the rebalance that is asked for, and what no plan can put right. Raises ApiError."""
    if body.moves is not None:
        return commands.BeginRebalance(_named(body), tuple(sorted(set(body.drain)))), []
    node = shell.node
    registered = node.authority.indexers if node.authority is not None else {}
    unknown = sorted(set(body.drain) - set(registered))
    if unknown:
        raise ApiError("invalid_request", f"drain: there is no indexer {unknown[0]}")
    if is_everybody([i for i in registered if node.peers.indexer_alive(i)], body.drain):
        raise ApiError("invalid_request", NOBODY_LEFT)
    try:
        command, plan = planned(node, frozenset(body.drain), body.max_moves)
    except AwayError as error:
        text = f"{error}, and hold copies: wait for them, or drain them"
        details = {"indexers": [str(indexer) for indexer in error.indexers]}
        raise ApiError("indexer_away", text, details) from error
    impossible = [
        {"index": str(one.index), "slice": one.slice, "rule": one.rule, "why": one.why}
        for one in plan.impossible
    ]
    return command, impossible


def _named(body: models.RebalanceBody) -> tuple[commands.PlannedMove, ...]:
    """Return the moves that a caller names."""
    return tuple(
        commands.PlannedMove(
            index=one.index,
            slice=one.slice,
            source=NOWHERE if one.source is None else one.source,
            target=one.to,
        )
        for one in body.moves or ()
    )


def _answer(
    shell: Shell,
    rebalance_id: int,
    outcome: commands.Outcome,
    impossible: Sequence[dict[str, Any]] = (),
) -> Response:
    """Answer with a rebalance as it is now, however long ago the command was carried out."""
    state = shell.node.state
    held = state.rebalance(rebalance_id)
    progress = _progresses(shell)
    shown = _shown(state, held, progress) if held else _forgotten(rebalance_id)
    body = {
        "rebalance": shown,
        "impossible": list(impossible),
        "cas": outcome.cas,
        "txn": outcome.txn,
    }
    return json_response(body, 200, {APPLIED_CAS: str(state.cas)})


def _planned(command: commands.BeginRebalance) -> dict[str, Any]:
    """Return a rebalance that nobody has begun."""
    rebalance = Rebalance(
        id=0,
        state="planned",
        moves=tuple(map(begun, command.moves)),
        began_ms=0,
        drain=command.drain,
        load_before_json=command.load_before_json,
        load_after_json=command.load_after_json,
    )
    shown = describe_rebalance(rebalance)
    moves = [{**move, "progress": None} for move in shown["moves"]]
    return {**shown, "id": None, "began_ms": None, "moves": moves}


def _forgotten(rebalance_id: int) -> dict[str, Any]:
    """Return a rebalance of which nothing is kept: it was over long ago, or was undone."""
    shown = describe_rebalance(Rebalance(id=rebalance_id, state="forgotten", moves=(), began_ms=0))
    return {**shown, "began_ms": None}


def _progresses(shell: Shell) -> dict[tuple[int, int], Progress]:
    """Return how far builds and moving parts are, by index and build."""
    peers, state = shell.node.peers, shell.node.state
    moving = {m.part for one in state.rebalances() for m in one.moves if m.state == MOVE_PENDING}
    if not moving:
        return peers.progress.all()
    entries = entries_told(peers.loads)
    parts = (part for part in map(state.find_index, moving) if part is not None)
    found = {(part.id, part.build): of_filling(part, entries) for part in parts}
    return {key: one for key, one in found.items() if one is not None} | peers.progress.all()


def _shown(
    state: StateContext, one: Rebalance, progress: Mapping[tuple[int, int], Progress]
) -> dict[str, Any]:
    shown = describe_rebalance(one)
    for move, row in zip(one.moves, shown["moves"], strict=True):
        row["progress"] = _progress(state, move, progress)
    return shown


def _progress(
    state: StateContext, move: Move, progress: Mapping[tuple[int, int], Progress]
) -> dict[str, Any] | None:
    """Return how far the part is that is built at the target; None: it is not being built."""
    part = state.find_index(move.part) if move.state == MOVE_PENDING else None
    return views.progress_of(part, progress) if part is not None else None
