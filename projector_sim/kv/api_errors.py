"""Errors of the key-value store's HTTP API: one shape, stable codes, one status each."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.runtime.http_errors import handle_errors
from coordinator.runtime.http_guard import error_body
from projector_sim.kv.errors import KvError

log = logging.getLogger("kv")

BODY_BYTES_MAX = 4 * 1024 * 1024
"""Enough to name every vbucket with its vector; documents to load come in pieces, in any number."""

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "invalid_json": 400,
    "too_deep": 400,
    "number_out_of_range": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "exists": 409,
    "too_far": 409,
    "value_too_large": 413,
    "internal": 500,
    "unusable": 500,
    "closed": 503,
    "unavailable": 503,
    "refused": 507,
}


class Refusal(KvError):
    """An answer that is an error, with more to tell; `code` is one of `STATUS`."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(code, message)
        self.details = details or {}


def json_response(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def error_response(error: KvError) -> Response:
    details = error.details if isinstance(error, Refusal) else {}
    body = error_body(error.code, error.message, details)
    return json_response(body, STATUS.get(error.code, 500))


class BoundedBodies:
    """ASGI middleware: a body that is too long is refused while it comes in, not kept first."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_load(scope):
            await self._app(scope, receive, send)
            return
        size = 0

        async def bounded() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > BODY_BYTES_MAX:
                raise HTTPException(413, f"a body has at most {BODY_BYTES_MAX} bytes")
            return message

        await self._app(scope, bounded, send)


def _is_load(scope: Scope) -> bool:
    path: str = scope["path"]
    return bool(scope["method"] == "POST") and path.endswith("/documents")


def add_handlers(app: FastAPI) -> None:
    """Give every error the one shape."""

    @app.exception_handler(KvError)
    async def refused(request: Request, error: KvError) -> Response:
        return error_response(error)

    def answer(code: str, message: str, details: dict[str, Any]) -> Response:
        return error_response(Refusal(code, message, details))

    def told(request: Request, error: Exception) -> None:
        log.error("%s %s", request.method, request.url.path, exc_info=error)

    handle_errors(app, answer, fault="a fault of the store: its log tells more", told=told)
