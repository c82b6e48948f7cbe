"""The HTTP API of a node: `/v1`, health, metrics, and an OpenAPI page.

Thin: it turns requests into inputs of the node, and outcomes into responses. Only the master
executes writes; a replica redirects them to it. Any node answers reads from its applied state; each
answer carries the CAS of that state.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from coordinator.core.catalog.ddl import SETTING_BYTES_MAX
from coordinator.core.consensus import inputs
from coordinator.core.model import commands, json_text
from coordinator.core.model.types import CAS_MAX
from coordinator.http import models, views
from coordinator.http.answers import BoundedAnswers
from coordinator.http.aside import READS, VIEWS, Turns
from coordinator.http.buckets import add_buckets
from coordinator.http.encoding import Raw, encoded
from coordinator.http.errors import ApiError, error_response, json_response, raise_unless_ok
from coordinator.http.execution import (
    LARGE_BYTES,
    LARGE_WAITING_MAX,
    IdempotencyKey,
    IfMatch,
    Principal,
    answer,
    execute,
    terms_of,
)
from coordinator.http.history import add_history, past_state
from coordinator.http.membership import add_membership
from coordinator.http.reading import BoundedRoute, beside, body_of, refuse_unknown
from coordinator.http.rebalances import add_rebalances
from coordinator.http.rollbacks import add_rollbacks
from coordinator.http.scan import add_scans
from coordinator.http.shared import (
    DEADLINE_MS,
    MS_MAX,
    Consistency,
    read_answer,
    read_aside,
)
from coordinator.http.timestamps import add_timestamps
from coordinator.http.topics import add_topics
from coordinator.http.transactions import add_transactions
from coordinator.http.undo import add_undo
from coordinator.http.watch import add_watch
from coordinator.node.shell import Shell
from coordinator.runtime.http_errors import handle_errors
from coordinator.runtime.http_guard import Guard, host_of, own_hosts

TRANSACTIONS_MAX = 1_000


def build_app(shell: Shell, allowed_hosts: Iterable[str] = ()) -> FastAPI:
    """Return the ASGI application of one node. It accepts its address and these hosts as `Host`."""
    app = FastAPI(
        title="Index Coordinator",
        version="1",
        description="Definitions, topology, scans and settings of distributed secondary indexes. "
        "Writes go to the master; a replica redirects them (307).",
        responses={"default": {"model": models.ErrorAnswer, "description": "An error"}},
        redirect_slashes=False,
    )
    app.add_middleware(BoundedAnswers)
    address = host_of(shell.node.config.address)
    app.add_middleware(Guard, hosts=own_hosts(address, *allowed_hosts))
    app.router.route_class = BoundedRoute
    _serve_description(app)
    _handle_errors(app)
    _add_indexes(app, shell)
    turns = Turns(LARGE_WAITING_MAX, DEADLINE_MS / 1000)
    _add_settings(app, shell, turns)
    add_transactions(app, shell, turns)
    _add_reads(app, shell)
    add_membership(app, shell)
    add_scans(app, shell)
    add_timestamps(app, shell)
    settle = functools.partial(_settle, shell)
    add_history(app, shell, settle)
    add_rollbacks(app, shell, settle)
    add_rebalances(app, shell, settle)
    add_undo(app, shell, settle)
    add_watch(app, shell, settle)
    add_topics(app, shell, settle)
    add_buckets(app, shell, settle)
    _add_health(app, shell)
    return app


def _serve_description(app: FastAPI) -> None:
    """Serve the OpenAPI document: made once, by the first who asks, and beside the loop."""

    @functools.cache
    def document() -> bytes:
        return encoded(app.openapi())

    async def describe(request: Request) -> Response:
        return Response(await VIEWS.run(document), media_type="application/json")

    app.router.routes.insert(0, Route("/openapi.json", describe))


def _handle_errors(app: FastAPI) -> None:
    """Answer every error as an `ErrorAnswer`."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        raw_path = request.scope.get("raw_path", b"").decode() or request.url.path
        return error_response(error, raw_path + query)

    def answer(code: str, message: str, details: dict[str, Any]) -> Response:
        return error_response(ApiError(code, message, details))

    handle_errors(app, answer, fault="a fault of this node: see its log")


# -- indexes ------------------------------------------------------------------------------------


def _add_indexes(app: FastAPI, shell: Shell) -> None:
    @app.post("/v1/indexes", status_code=201, response_model=models.IndexAnswer)
    async def create_index(
        body: models.CreateIndexBody,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Create an index. Answers once every indexer that hosts a slice has allocated storage."""
        outcome = await execute(
            shell,
            body.command(),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return answer(outcome, 200 if outcome.answer.get("existed") else 201)

    @app.post("/v1/indexes/build", response_model=models.IndexesAnswer)
    async def build_indexes(
        body: models.BuildIndexesBody,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Start to build the named indexes, or all deferred ones of a bucket."""
        command = body.command()
        for number in command.indexes:
            _index_id(number)
        outcome = await execute(
            shell,
            command,
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return answer(outcome)

    @app.delete("/v1/indexes/{index_id}", response_model=models.IndexAnswer)
    async def drop_index(
        index_id: int,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Drop an index. Its name is free at once; the indexers release its storage later."""
        outcome = await execute(
            shell,
            commands.DropIndex(index_id=_index_id(index_id)),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return answer(outcome)

    @app.patch("/v1/indexes/{index_id}", response_model=models.AlterAnswer)
    async def alter_index(
        index_id: int,
        body: models.AlterIndexBody,
        dry_run: bool = False,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Alter an index: in place, or by a second index that is built and then replaces it.

        Answers when the change has taken effect. `dry_run` changes nothing: it answers how the
        index would be changed, and the result.
        """
        outcome = await execute(
            shell,
            body.command(_index_id(index_id), dry_run=dry_run),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return answer(outcome)

    @app.get("/v1/indexes")
    async def list_indexes(
        bucket: str | None = None,
        name: str | None = None,
        consistency: Consistency = None,
        at_least: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """List indexes, each with its CAS."""
        await _settle(shell, consistency, at_least)
        state = shell.node.state
        progress = shell.node.peers.progress.all()
        return await read_aside(
            shell,
            lambda: {"indexes": views.indexes(state, bucket, name, progress), "cas": state.cas},
        )

    @app.get("/v1/indexes/{index_id}", response_model=models.IndexAnswer)
    async def get_index(
        index_id: int, consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show one index, with its CAS."""
        await _settle(shell, consistency, at_least)
        state = shell.node.state
        held = state.named_by_id(_index_id(index_id))
        if held is None:
            raise ApiError("index_not_found", f"there is no index {index_id}")
        index: Any = held.entity
        shown = views.index(state.whole(index), shell.node.peers.progress.all())
        return read_answer(shell, {"index": shown, "cas": held.cas})


def _index_id(number: int) -> int:
    """Return a number that an index can have. ApiError: `index_not_found`."""
    if not 0 < number < 2**63:
        raise ApiError("index_not_found", f"there is no index {number}")
    return number


# -- settings ------------------------------------------------------------------------------------


def _add_settings(app: FastAPI, shell: Shell, turns: Turns) -> None:
    @app.get("/v1/config")
    async def list_settings(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """List every setting with its CAS."""
        await _settle(shell, consistency, at_least)
        state = shell.node.state
        return await read_aside(shell, lambda: {"config": views.config(state), "cas": state.cas})

    @app.get("/v1/config/{key:path}", response_model=models.SettingAnswer)
    async def get_setting(
        key: str, consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Read a setting and its CAS."""
        await _settle(shell, consistency, at_least)
        held = shell.node.state.setting(key)
        if held is None:
            raise ApiError("config_not_found", f"there is no setting {key!r}")
        value = views.setting_value(held)
        return read_answer(shell, {"key": key, "value": value, "cas": held.cas, "txn": ""})

    async def put_directly(request: Request) -> Response:
        refuse_unknown(request)
        return await put_setting(request.path_params["key"], request)

    # The one route that has to be fast, without the framework's resolving of parameters. It comes
    # first and answers; the one below describes it.
    app.router.routes.append(Route("/v1/config/{key:path}", put_directly, methods=["PUT"]))

    @app.put(
        "/v1/config/{key:path}",
        response_model=models.SettingAnswer,
        openapi_extra={"requestBody": {"content": {"application/json": {"schema": {}}}}},
    )
    async def put_setting(key: str, request: Request) -> Response:
        """Write a setting; the body is its JSON value.

        Headers: `Idempotency-Key`, `If-Match`, `X-Principal`, as for indexes.
        """
        body = await body_of(request, SETTING_BYTES_MAX)
        text = await beside(body, lambda: _json_text(body))
        if len(body) <= LARGE_BYTES:
            return await write(key, text, request)
        async with turns.one():
            return await write(key, text, request)

    async def write(key: str, text: str, request: Request) -> Response:
        command = commands.PutSetting(key, text)
        outcome = await execute(shell, command, **terms_of(request))
        # The text is the value's own: nobody has to write it again.
        return answer(replace(outcome, answer={"key": key, "value": Raw(text)}))

    @app.delete("/v1/config/{key:path}", response_model=models.SettingAnswer)
    async def delete_setting(key: str, request: Request) -> Response:
        """Delete a setting. Headers: `Idempotency-Key`, `If-Match`, `X-Principal`."""
        return answer(await execute(shell, commands.DeleteSetting(key), **terms_of(request)))


def _json_text(body: bytes) -> str:
    """Return a body that is one JSON value, as text."""
    try:
        json_text.parse(body)
    except ValueError as error:
        raise ApiError("invalid_request", f"the body is no JSON value: {error}"[:300]) from error
    return body.decode()


# -- reads ---------------------------------------------------------------------------------------


async def _settle(shell: Shell, consistency: Consistency, at_least: int) -> None:
    """Wait until this node may answer a read of this consistency."""
    node = shell.node
    deadline = shell.now().mono_ms + DEADLINE_MS
    linearizable = consistency == "linearizable" or (consistency is None and node.master)
    if linearizable:
        with READS.one():
            asked = shell.ask(lambda token: inputs.ReadRequested(token, deadline, True))
            raise_unless_ok(await asked)
    if at_least > node.state.cas:
        with READS.one():
            asked = shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, at_least))
            raise_unless_ok(await asked)


def _add_reads(app: FastAPI, shell: Shell) -> None:
    @app.get("/v1/state")
    async def get_state(
        cas: Annotated[int | None, Query(ge=0, le=CAS_MAX)] = None,
        at_ms: Annotated[int | None, Query(ge=0, le=MS_MAX)] = None,
        consistency: Consistency = None,
        at_least: Annotated[int, Query(ge=0)] = 0,
    ) -> Response:
        """Show the whole state, with its CAS and its digest (a hash over the state).

        With `cas` or `at_ms`: that of the last transaction at or before this CAS or time.
        """
        if cas is not None and at_ms is not None:
            raise ApiError("invalid_request", "cas or at_ms, not both")
        await _settle(shell, consistency, max(at_least, cas or 0))
        if cas is not None or at_ms is not None:
            return await past_state(shell, cas, at_ms)
        authority, state = shell.node.authority, shell.node.state
        node = shell.node.config.node
        return await read_aside(shell, lambda: views.state(node, authority, state))

    @app.get("/v1/topology")
    async def get_topology(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show which indexers host the slices of every index."""
        await _settle(shell, consistency, at_least)
        state = shell.node.state
        return await read_aside(shell, lambda: views.topology(state))

    @app.get("/v1/transactions", response_model=models.TransactionsAnswer)
    async def get_transactions(
        limit: Annotated[int, Query(ge=1, le=TRANSACTIONS_MAX)] = 50,
    ) -> Response:
        """Show the last transactions, newest first, as this node has applied them."""
        authority = shell.node.authority
        return await read_aside(shell, lambda: views.transactions(authority, limit))


# -- health --------------------------------------------------------------------------------------


def _add_health(app: FastAPI, shell: Shell) -> None:
    began = time.monotonic()

    @app.get("/livez")
    async def livez() -> Response:
        """Liveness: 200 if the process answers."""
        uptime_s = round(time.monotonic() - began, 1)
        return json_response({"alive": True, "pid": os.getpid(), "uptime_s": uptime_s})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Readiness: 200 if this node serves, or 503 with the reason."""
        node = shell.node
        reason = node.why_not_ready
        mastership = node.mastership.state
        body = {"ready": not reason, "reason": reason, "role": node.role, "mastership": mastership}
        return json_response(body, 503 if reason else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        with suppress(ApiError):  # Where too much waits, what was measured last is shown.
            await VIEWS.run(shell.subscriptions.measuring())
        content = generate_latest(shell.metrics.registry)
        return Response(content, 200, media_type=CONTENT_TYPE_LATEST)
