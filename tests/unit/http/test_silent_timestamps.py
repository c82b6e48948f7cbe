"""Why there is no stability timestamp: whether an application that computes one is heard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.consensus import inputs as inp
from coordinator.core.model.records import TimestampsHeartbeat
from coordinator.http import scan
from coordinator.http.scatter import ScanFailed
from tests.support.lone_shell import LoneShell

SILENT = "; no application that computes timestamps for it is heard (does one run?)"
INDEX = {"name": "i", "bucket": "b", "expressions": ["a"]}


class Failing:
    """A scan that fails."""

    code = "no_stability_timestamp"

    def __init__(self, **_: Any) -> None:
        pass

    async def rows(self) -> None:
        raise ScanFailed(self.code, "there is none")


async def scanned(http: Any) -> Any:
    return await http.post(
        "/v1/scan", json={"bucket": "b", "name": "i", "consistency": "consistent"}
    )


async def shown(http: Any) -> Any:
    return await http.get("/v1/stability/b")


def refusals(ask: Callable[[Any], Awaitable[Any]], patch: pytest.MonkeyPatch) -> list[Any]:
    """Return the errors without an application, and with one."""

    async def run() -> list[Any]:
        shell = LoneShell()
        patch.setattr(scan, "Scatter", Failing)
        patch.setattr(scan, "_plan", plan)
        beat = TimestampsHeartbeat(incarnation=1, pid=1, batch=1, at_ms=shell.lone.wall_ms)
        async with shell.client() as http:
            made = await http.post("/v1/indexes", json=INDEX)
            assert made.is_success, made.text
            without = await ask(http)
            shell.feed(inp.BeatsRead((beat,)))
            return [answer.json()["error"] for answer in (without, await ask(http))]

    async def plan(shell: Any, *_: Any) -> Any:
        index = shell.node.state.index_named("b", "i").entity
        asked = SimpleNamespace(index=index, slices=(), deadline=0)
        return SimpleNamespace(asked=asked, cas=1)

    return asyncio.run(run())


@pytest.mark.parametrize("ask", [scanned, shown])
def test_where_no_application_is_heard_a_missing_timestamp_is_explained_by_it(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], Awaitable[Any]]
) -> None:
    without, alive = refusals(ask, monkeypatch)
    assert without["code"] == alive["code"] == "no_stability_timestamp"
    assert without["message"] == alive["message"] + SILENT


def test_what_a_scan_fails_of_besides_is_not_explained_by_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Failing, "code", "slice_unavailable")
    without, alive = refusals(scanned, monkeypatch)
    assert without == alive
