"""The kv-rollbacks of the buckets: what the store has lost, and how far indexers have gone back.

They are part of the state. How far the live indexers are is what the master hears of them.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from coordinator.http import models, rollback_views
from coordinator.http.history import Settle
from coordinator.http.shared import Consistency, read_aside, watermarks
from coordinator.node.shell import Shell


def add_rollbacks(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the route; `settle` waits until this node may answer a read."""

    @app.get("/v1/rollbacks", response_model=models.RollbacksAnswer)
    async def list_rollbacks(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show the last rollback of each bucket whose store has lost something, newest first.

        Only the master knows how far the indexers are: `indexers` is null on other nodes.
        """
        await settle(consistency, at_least)
        state, heard = shell.node.state, watermarks(shell.node)
        return await read_aside(shell, lambda: rollback_views.rollbacks(state, heard))
