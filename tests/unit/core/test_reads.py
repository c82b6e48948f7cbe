"""How fresh a read is: what waits for the log to be read back, and what does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from coordinator.core.consensus import effects as fx
from tests.support.lone_node import LoneNode
from tests.support.lone_shell import LoneShell

PATHS = ["/v1/config/x", "/v1/config", "/v1/state", "/v1/topology", "/v1/indexes"]
LATE = 504


def ask(shell: LoneShell, check: Callable[[Any], Awaitable[None]]) -> None:
    async def run() -> None:
        try:
            async with shell.client() as http:
                await check(http)
        finally:
            shell.examiner.close()

    asyncio.run(run())


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_a_read_at_the_master_is_linearizable_unless_it_is_asked_to_be_local(path: str) -> None:
    """Without its barrier read back, a master may have been deposed, and answers nothing."""
    shell = LoneShell()

    async def check(http: Any) -> None:
        assert (await http.put("/v1/config/x", content="1")).status_code == 200
        assert (await http.get(path)).status_code == 200
        shell.lone.held = {fx.Append}
        for query in ("", "?consistency=linearizable"):
            answer = await http.get(path + query)
            assert answer.status_code in (503, 504), answer.text
        assert (await http.get(f"{path}?consistency=local")).status_code == 200

    ask(shell, check)


@pytest.mark.parametrize("path", PATHS[1:])
def test_a_read_at_who_is_not_master_is_local_by_default(path: str) -> None:
    lone = LoneNode()
    lone.held = {fx.OpenProducer}
    shell = LoneShell(lone.begin().run(2_000))
    assert shell.node.master is None

    async def check(http: Any) -> None:
        for query in ("", "?consistency=local"):
            assert (await http.get(path + query)).status_code == 200
        answer = await http.get(f"{path}?consistency=linearizable")
        assert answer.json()["error"]["code"] in ("not_master", "no_master")

    ask(shell, check)


def test_a_read_waits_for_the_cas_that_it_asks_for() -> None:
    shell = LoneShell()

    async def check(http: Any) -> None:
        cas = (await http.put("/v1/config/x", content="1")).json()["cas"]
        assert (await http.get(f"/v1/config/x?at_least={cas}")).json()["cas"] == cas
        late = await http.get(f"/v1/config/x?consistency=local&at_least={cas + 1}")
        assert (late.status_code, late.json()["error"]["code"]) == (LATE, "timeout")

    ask(shell, check)
