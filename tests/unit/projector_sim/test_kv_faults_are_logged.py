"""What nobody foresaw in the key-value store is in its log."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from projector_sim.kv.api import build_app


class Buckets:
    def __iter__(self) -> Any:
        raise AssertionError("vbucket 7 has lost seqno 12")


def test_a_fault_is_logged_with_its_trace_and_callers_read_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its server is quiet: nobody else would tell."""
    hub: Any = SimpleNamespace(store=SimpleNamespace(buckets=Buckets()))

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=build_app(hub), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/buckets")

    response = asyncio.run(asked())
    assert response.json()["error"]["code"] == "internal"
    (record,) = (one for one in caplog.records if one.name == "kv")
    assert record.getMessage() == "GET /v1/buckets"
    assert record.exc_info is not None
    assert "lost seqno 12" in str(record.exc_info[1])
