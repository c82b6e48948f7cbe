"""The HTTP API of a node: `/v1`, health, metrics, and an OpenAPI page.

Thin: it turns requests into inputs of the node and outcomes into responses. Writers are answered
by the master alone; a replica sends them there. Reads are answered by any node from its applied
state, whose CAS each answer carries.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator import codec
from coordinator.core import commands, inputs
from coordinator.core.ddl import PRINCIPAL_LENGTH_MAX, SETTING_BYTES_MAX
from coordinator.core.types import CAS_MAX
from coordinator.ddl_commands import normalised
from coordinator.http import models, views
from coordinator.http.errors import ApiError, error_response, json_response, raise_unless_ok
from coordinator.http.membership import add_membership
from coordinator.http.scan import add_scans
from coordinator.http.shared import APPLIED_CAS, DEADLINE_MS, read_answer, read_aside
from coordinator.http.timestamps import add_timestamps
from coordinator.shell import Shell

BODY_BYTES_MAX = 1024 * 1024
TRANSACTIONS_MAX = 1_000
CAS_DIGITS_MAX = len(str(CAS_MAX))

Consistency = Literal["local", "linearizable"] | None


def build_app(shell: Shell) -> FastAPI:
    """Return the ASGI application of one node."""
    app = FastAPI(
        title="Index Coordinator",
        version="1",
        description="DDL, topology and settings of distributed secondary indexes.",
        responses={"default": {"model": models.ErrorAnswer, "description": "An error"}},
    )
    app.add_middleware(_BoundedBodies)
    _handle_errors(app)
    _add_indexes(app, shell)
    _add_settings(app, shell)
    _add_reads(app, shell)
    add_membership(app, shell)
    add_scans(app, shell)
    add_timestamps(app, shell)
    _add_health(app, shell)
    return app


class _BoundedBodies:
    """ASGI middleware: a body that is too long is refused while it comes in, not kept first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes")
            return message

        await self._app(scope, bounded, send)


def _handle_errors(app: FastAPI) -> None:
    """Give every error the one shape."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        raw_path = request.scope.get("raw_path", b"").decode() or request.url.path
        return error_response(error, raw_path + query)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"where": ".".join(str(p) for p in e["loc"]), "what": e["msg"]} for e in error.errors()
        ]
        text = "; ".join(f"{p['where']}: {p['what']}" for p in problems)
        return error_response(ApiError("invalid_request", text, {"problems": problems}))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        of_status = {404: "not_found", 405: "method_not_allowed", 413: "value_too_large"}
        otherwise = "invalid_request" if error.status_code < 500 else "internal"
        return error_response(
            ApiError(of_status.get(error.status_code, otherwise), str(error.detail))
        )

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return error_response(ApiError("internal", "a fault of this node: its log tells more"))


# -- requests to the master ----------------------------------------------------------------------


def _if_match(value: str | None) -> int | None:
    """Return the expected CAS that an `If-Match` header states."""
    if value is None:
        return None
    text = value.strip().strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > CAS_DIGITS_MAX:
        raise ApiError("invalid_request", f"If-Match: {value[:40]!r} is no CAS")
    return int(text)


async def _execute(
    shell: Shell,
    command: commands.Command,
    *,
    key: str | None,
    if_match: str | None,
    principal: str | None,
) -> commands.Outcome:
    """Run a command on the master, under the client's idempotency key if it gave one."""
    expected = _if_match(if_match)
    if principal and len(principal) > PRINCIPAL_LENGTH_MAX:
        text = f"X-Principal: a principal has at most {PRINCIPAL_LENGTH_MAX} characters"
        raise ApiError("invalid_request", text)
    request = normalised(
        commands.Request(
            command=command,
            id=key or "",
            principal=principal or "",
            expected_cas=expected,
            fingerprint=codec.fingerprint(command, expected) if key else 0,
            recorded=key is not None,
            deadline_ms=shell.now().mono_ms + DEADLINE_MS,
        )
    )

    def make(token: int) -> inputs.Input:
        return inputs.Requested(replace(request, token=token))

    return raise_unless_ok(await shell.ask(make))


IdempotencyKey = Annotated[str | None, Header(description="A durable request id: UUIDv7 is best.")]
IfMatch = Annotated[str | None, Header(description="The expected CAS; 0: must not exist.")]
Principal = Annotated[str | None, Header(description="Who asks, for the audit.")]


def _add_indexes(app: FastAPI, shell: Shell) -> None:
    @app.post("/v1/indexes", status_code=201, response_model=models.IndexAnswer)
    async def create_index(
        body: models.CreateIndexBody,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Create an index; answered once every hosting indexer has allocated it."""
        outcome = await _execute(
            shell,
            body.command(),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return _answer(outcome, 200 if outcome.answer.get("existed") else 201)

    @app.post("/v1/indexes/build", response_model=models.IndexesAnswer)
    async def build_indexes(
        body: models.BuildIndexesBody,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Build indexes: those named, or all deferred ones of a bucket. It goes on by itself."""
        outcome = await _execute(
            shell,
            body.command(),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return _answer(outcome)

    @app.delete("/v1/indexes/{index_id}", response_model=models.IndexAnswer)
    async def drop_index(
        index_id: int,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Drop an index: its name is free at once, its storage is released after that."""
        outcome = await _execute(
            shell,
            commands.DropIndex(index_id=_index_id(index_id)),
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
        )
        return _answer(outcome)

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
        progress = shell.node.progress.all()
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
        held = shell.node.state.index_by_id(_index_id(index_id))
        if held is None:
            raise ApiError("index_not_found", f"there is no index {index_id}")
        index: Any = held.entity
        shown = views.index(index, shell.node.progress.all())
        return read_answer(shell, {"index": shown, "cas": held.cas})


def _index_id(number: int) -> int:
    if not 0 < number < 2**63:
        raise ApiError("index_not_found", f"there is no index {number}")
    return number


def _answer(outcome: commands.Outcome, status: int = 200) -> Response:
    """Return what a command answered, with its CAS and transaction."""
    body = {**outcome.answer, "cas": outcome.cas, "txn": outcome.txn}
    return json_response(body, status, {APPLIED_CAS: str(outcome.cas)})


# -- settings ------------------------------------------------------------------------------------


def _add_settings(app: FastAPI, shell: Shell) -> None:
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
        """Write a setting: the body is the JSON value. Headers as for indexes."""
        command = commands.PutSetting(key, _json_text(await _body(request)))
        return _answer(await _execute(shell, command, **_terms(request)))

    @app.delete("/v1/config/{key:path}", response_model=models.SettingAnswer)
    async def delete_setting(key: str, request: Request) -> Response:
        """Delete a setting."""
        return _answer(await _execute(shell, commands.DeleteSetting(key), **_terms(request)))


def _terms(request: Request) -> dict[str, str | None]:
    headers = request.headers
    return {
        "key": headers.get("idempotency-key"),
        "if_match": headers.get("if-match"),
        "principal": headers.get("x-principal"),
    }


async def _body(request: Request) -> bytes:
    """Return the body, within bounds."""
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > BODY_BYTES_MAX:
        raise ApiError("value_too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
    body = await request.body()
    if len(body) > SETTING_BYTES_MAX:
        message = f"a value has at most {SETTING_BYTES_MAX} bytes of JSON"
        raise ApiError("value_too_large", message, {"limit": SETTING_BYTES_MAX})
    return body


def _json_text(body: bytes) -> str:
    """Return a body that is one JSON value, as text."""
    try:
        text = body.decode()
        json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise ApiError("invalid_request", f"the body is no JSON value: {error}") from error
    return text


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is out of range")
    return number


# -- reads ---------------------------------------------------------------------------------------


async def _settle(shell: Shell, consistency: Consistency, at_least: int) -> None:
    """Wait until this node may answer a read of this consistency."""
    node = shell.node
    deadline = shell.now().mono_ms + DEADLINE_MS
    linearizable = consistency == "linearizable" or (consistency is None and node.master)
    if linearizable:
        raise_unless_ok(await shell.ask(lambda token: inputs.ReadRequested(token, deadline, True)))
    if at_least > node.state.cas:
        raise_unless_ok(
            await shell.ask(lambda token: inputs.ReadRequested(token, deadline, False, at_least))
        )


def _add_reads(app: FastAPI, shell: Shell) -> None:
    @app.get("/v1/state")
    async def get_state(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show the whole StateContext with its CAS and digest."""
        await _settle(shell, consistency, at_least)
        authority, state = shell.node.authority, shell.node.state
        node = shell.node.config.node
        return await read_aside(shell, lambda: views.state(node, authority, state))

    @app.get("/v1/topology")
    async def get_topology(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show where every slice is."""
        await _settle(shell, consistency, at_least)
        state = shell.node.state
        return await read_aside(shell, lambda: views.topology(state))

    @app.get("/v1/transactions", response_model=models.TransactionsAnswer)
    async def get_transactions(
        limit: Annotated[int, Query(ge=1, le=TRANSACTIONS_MAX)] = 50,
    ) -> Response:
        """Show the rolling log of transactions, newest first, as this node has it."""
        return read_answer(shell, views.transactions(shell.node, limit))


# -- health --------------------------------------------------------------------------------------


def _add_health(app: FastAPI, shell: Shell) -> None:
    began = time.monotonic()

    @app.get("/livez")
    async def livez() -> Response:
        """The process answers."""
        uptime_s = round(time.monotonic() - began, 1)
        return json_response({"alive": True, "pid": os.getpid(), "uptime_s": uptime_s})

    @app.get("/readyz")
    async def readyz() -> Response:
        """200 if this node serves; 503 with the reason if it does not."""
        node = shell.node
        reason = node.why_not_ready
        mastership = node.election.mastership.state
        body = {"ready": not reason, "reason": reason, "role": node.role, "mastership": mastership}
        return json_response(body, 503 if reason else 200)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(
            generate_latest(shell.metrics.registry), 200, media_type=CONTENT_TYPE_LATEST
        )
