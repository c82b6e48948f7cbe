"""Transactions for clients: compare entities, then change several of them at once, or none."""

from __future__ import annotations

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


def add_transactions(app: FastAPI, shell: Shell, turns: Turns) -> None:
    @app.post("/v1/txn", response_model=models.TransactAnswer)
    async def transact(
        body: models.TransactBody,
        request: Request,
        idempotency_key: IdempotencyKey = None,
        x_principal: Principal = None,
    ) -> Response:
        """If all comparisons hold, do all of `then`, otherwise all of `else`: at once, or not.

        The answer waits until every index that it creates is ready, or undone.
        """
        command = await BODIES.run(body.command)

        async def carry_out() -> Response:
            outcome = await execute(
                shell, command, key=idempotency_key, if_match=None, principal=x_principal
            )
            return answer(outcome)

        if commands.weight(commands.Request(command=command)) <= LARGE_BYTES:
            return await carry_out()
        async with turns.one():
            return await carry_out()
