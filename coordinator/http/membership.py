"""The Authority over HTTP: members, stepping down, leaving, reform, indexers and projectors."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from coordinator.core.consensus import inputs
from coordinator.core.model import commands
from coordinator.core.model.records import INDEXER, PROJECTOR
from coordinator.core.model.types import Epoch
from coordinator.http import models, views
from coordinator.http.errors import json_response, raise_unless_ok
from coordinator.http.execution import Principal, principal_of
from coordinator.http.shared import DEADLINE_MS, read_answer
from coordinator.node.shell import Shell

REASON_LENGTH_MAX = 256
NODES_MAX = 1_000
NODE_MAX = 2**31 - 1

Reason = Annotated[str, Field(max_length=REASON_LENGTH_MAX)]
NodeId = Annotated[int, Field(ge=1, le=NODE_MAX)]


class StepDownBody(BaseModel):
    """`successor`: the next master. `epoch`: only the master of this epoch steps down."""

    model_config = ConfigDict(extra="forbid", strict=True)

    successor: NodeId | None = None
    epoch: int = Field(0, ge=0, lt=2**63)
    reason: Reason = ""


class ReformBody(BaseModel):
    """`minimum`: nodes that must hold a change to commit it. `forget`: nodes that are lost."""

    model_config = ConfigDict(extra="forbid", strict=True)

    minimum: int = Field(ge=1, le=NODES_MAX)
    forget: list[NodeId] = Field(default_factory=list, max_length=NODES_MAX)
    reason: Reason = ""


def add_membership(app: FastAPI, shell: Shell) -> None:
    """Add the routes of the Authority."""

    async def ask(command: commands.MembershipCommand, principal: str | None) -> Response:
        deadline, caller = shell.now().mono_ms + DEADLINE_MS, principal_of(principal)

        def make(token: int) -> inputs.Input:
            return inputs.MembershipRequested(token, deadline, command, caller)

        outcome = raise_unless_ok(await shell.ask(make))
        return json_response(outcome.answer)

    @app.get("/v1/members", response_model=models.MembersAnswer)
    async def get_members() -> Response:
        """Show the nodes and the state of the mastership, as this node has read them."""
        retained = views.history_retention(shell.retention)
        return read_answer(shell, {**views.members(shell.node), "history_retention": retained})

    @app.post("/v1/members/step-down", response_model=models.StepDownAnswer)
    async def step_down(body: StepDownBody, x_principal: Principal = None) -> Response:
        """Have the master hand over to another node. Answers with the new master."""
        command = commands.StepDown(body.successor or 0, body.reason, Epoch(body.epoch))
        return await ask(command, x_principal)

    @app.post("/v1/members/reform", response_model=models.RosterAnswer)
    async def reform(body: ReformBody, x_principal: Principal = None) -> Response:
        """Lower the minimum of copies, after nodes were lost for good.

        If there is no master, the node that gets this request claims the mastership, provided that
        it holds every acknowledged change.
        """
        command = commands.Reform(body.minimum, tuple(sorted(set(body.forget))), body.reason)
        return await ask(command, x_principal)

    @app.post("/v1/members/{node}/leave", response_model=models.RosterAnswer)
    async def leave(node: int, x_principal: Principal = None) -> Response:
        """Take a replica out of the cluster. It joins again when it is started again."""
        return await ask(commands.Leave(node), x_principal)

    @app.delete("/v1/indexers/{indexer}", response_model=models.RemovedAnswer)
    async def remove_indexer(indexer: int, x_principal: Principal = None) -> Response:
        """Remove an indexer that is stopped and holds nothing. If it is started, it registers."""
        return await ask(commands.RemoveService(INDEXER, indexer), x_principal)

    @app.delete("/v1/projectors/{projector}", response_model=models.RemovedAnswer)
    async def remove_projector(projector: int, x_principal: Principal = None) -> Response:
        """Remove a projector that is stopped. If it is started, it registers."""
        return await ask(commands.RemoveService(PROJECTOR, projector), x_principal)

    @app.get("/v1/indexers")
    async def get_indexers() -> Response:
        """Show the indexers: address, liveness, slices, bytes; on the master, the handshake too."""
        return read_answer(shell, views.indexers(shell.node))

    @app.get("/v1/projectors")
    async def get_projectors() -> Response:
        """Show the projectors: address and liveness."""
        return read_answer(shell, views.projectors(shell.node))
