"""Whatever goes wrong, the answer has the one shape."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from coordinator.runtime.http_errors import PROBLEMS_MAX, handle_errors
from coordinator.runtime.http_guard import error_body


class Body(BaseModel):
    numbers: list[int]


def answer(code: str, message: str, details: dict[str, Any]) -> Response:
    return JSONResponse(error_body(code, message, details), {"not_found": 404}.get(code, 418))


def built() -> FastAPI:
    app = FastAPI()
    handle_errors(app, answer, fault="a fault: see the log")

    @app.post("/numbers")
    def numbers(body: Body) -> int:
        return len(body.numbers)

    @app.get("/fault")
    def fault() -> None:
        raise KeyError("secret")

    return app


def ask(method: str, path: str, *, raising: bool = False, **more: Any) -> httpx.Response:
    """Send a request; `raising`: what the application tells its server is raised here."""

    async def sent() -> httpx.Response:
        transport = httpx.ASGITransport(app=built(), raise_app_exceptions=raising)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **more)

    return asyncio.run(sent())


def error_of(response: Any) -> dict[str, Any]:
    (only,) = response.json().values()
    assert only.keys() == {"code", "message", "details"}
    found: dict[str, Any] = only
    return found


def test_what_the_framework_refuses_has_a_code() -> None:
    missing = ask("GET", "/nowhere")
    assert (missing.status_code, error_of(missing)["code"]) == (404, "not_found")
    assert error_of(ask("GET", "/numbers"))["code"] == "method_not_allowed"


def test_a_route_that_is_not_there_is_named() -> None:
    assert error_of(ask("GET", "/nowhere?a=1"))["message"] == "there is no route GET /nowhere"
    assert error_of(ask("GET", "/numbers"))["message"] == "no such method: GET /numbers"
    assert len(error_of(ask("GET", "/" + "n" * 10_000))["message"]) < 300


def test_what_is_wrong_with_a_body_is_told_within_a_bound() -> None:
    found = error_of(ask("POST", "/numbers", json={"numbers": ["x"] * 1_000}))
    assert found["code"] == "invalid_request"
    assert len(found["details"]["problems"]) == PROBLEMS_MAX
    assert found["details"]["problems"][0]["where"] == "body.numbers.0"


def test_what_nobody_foresaw_tells_callers_nothing_and_the_server_all() -> None:
    found = error_of(ask("GET", "/fault"))
    assert (found["code"], found["message"]) == ("internal", "a fault: see the log")
    with pytest.raises(KeyError, match="secret"):
        ask("GET", "/fault", raising=True)
