"""What FastAPI refuses, and what nobody foresaw, in the one shape of errors (`http_guard`).

Which status a code has, and what else an answer carries, is up to the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

PROBLEMS_MAX = 20
"""So many problems of a body are told. A body can have as many as it has bytes."""

PATH_SHOWN = 200

OF_OURS = "Value error, "
"""Pydantic's word before what a model itself says of a value."""

CODES = {404: "not_found", 405: "method_not_allowed", 413: "value_too_large"}
"""What the framework's own refusals are called."""

Answer = Callable[[str, str, dict[str, Any]], Response]
"""Makes the response of a code, a message and details."""


def handle_errors(
    app: FastAPI,
    answer: Answer,
    *,
    fault: str,
    told: Callable[[Request, Exception], None] = lambda request, error: None,
) -> None:
    """Give what the framework refuses, and what nobody foresaw, the one shape.

    `fault` is what a caller reads of the latter. The server logs it, with its trace; `told` is for
    a process whose server does not.
    """

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"where": ".".join(str(p) for p in e["loc"]), "what": e["msg"].removeprefix(OF_OURS)}
            for e in error.errors()[:PROBLEMS_MAX]
        ]
        text = "; ".join(f"{p['where']}: {p['what']}" for p in problems)
        return answer("invalid_request", text, {"problems": problems})

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        otherwise = "invalid_request" if error.status_code < 500 else "internal"
        text = str(error.detail)
        if error.status_code in (404, 405):  # The framework's words do not say what was asked for.
            known = "there is no route" if error.status_code == 404 else "no such method:"
            text = f"{known} {request.method} {request.url.path[:PATH_SHOWN]}"
        return answer(CODES.get(error.status_code, otherwise), text, {})

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        told(request, error)
        return answer("internal", fault, {})
