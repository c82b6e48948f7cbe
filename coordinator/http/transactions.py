"""Transactions for clients: compare entities, then change several of them at once, or none."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from starlette.responses import Response

from coordinator.core.model import commands
from coordinator.http import models
from coordinator.http.aside import BODIES, Turns
from coordinator.http.execution import (
    LARGE_BYTES,
    IdempotencyKey,
    Principal,
    answer,
    execute,
)
from coordinator.node.shell import Shell

TURN_S = 1.0


def add_transactions(app: FastAPI, shell: Shell, turns: Turns) -> None:
    @app.post("/v1/txn", response_model=models.TransactAnswer)
    async def transact(
        body: models.TransactBody,
        request: Request,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """Execute all of `then` if all comparisons hold, else all of `else`, in one transaction.

        The answer waits until every index that it creates is ready, or undone.
        """
        command = await BODIES.run(body.command)

        async def carry_out() -> Response:
            outcome = await execute(
                shell, command, key=idempotency_key, if_match=None, principal=x_principal
            )
            return answer(outcome)

        if _bytes_of_values(command) <= LARGE_BYTES:
            return await carry_out()
        async with turns.one():
            answering = asyncio.ensure_future(carry_out())
            # It is decided by then; what it waits for after that is no work of the loop.
            await asyncio.wait({answering}, timeout=TURN_S)
        return await answering


def _bytes_of_values(command: commands.Transact) -> int:
    operations = (*command.then, *command.otherwise)
    return sum(len(one.value_json) for one in operations if isinstance(one, commands.PutSetting))
