"""Every route that reads, at every level: each law fails if the route, or what all share, is weak.

The node is a real one without processes. Its log can be held back, so that what it has applied may
be old, and it cannot know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi.routing import APIRoute

from coordinator.core.consensus import effects as fx
from coordinator.http.app import build_app
from tests.support.lone_node import LoneNode
from tests.support.lone_shell import LoneShell

AHEAD = 1_000
SUCCESS, CREATED = 200, 201

READS = {
    "/v1/indexes": ("/v1/indexes",),
    "/v1/indexes/{index_id}": ("/v1/indexes/INDEX",),
    "/v1/config": ("/v1/config",),
    "/v1/config/{key:path}": ("/v1/config/x",),
    "/v1/state": ("/v1/state", "/v1/state?cas=1", "/v1/state?at_ms=1"),
    "/v1/topology": ("/v1/topology",),
    "/v1/history": ("/v1/history",),
    "/v1/rollbacks": ("/v1/rollbacks",),
    "/v1/rebalance": ("/v1/rebalance",),
    "/v1/buckets": ("/v1/buckets",),
    "/v1/buckets/{bucket}": ("/v1/buckets/orders",),
    "/v1/topics": ("/v1/topics",),
    "/v1/topics/{topic}": ("/v1/topics/t",),
    "/v1/topics/{topic}/subscriptions": ("/v1/topics/t/subscriptions",),
    "/v1/topics/{topic}/subscriptions/{subscriber}": ("/v1/topics/t/subscriptions/s",),
    "/v1/diff": ("/v1/diff?from=0", "/v1/diff?from=0&to=1"),
}
"""The routes that take a consistency, and what is asked of each. A new one needs a row."""

WITHOUT = {
    *("/v1/transactions", "/v1/members", "/v1/indexers", "/v1/projectors"),
    *("/v1/stability", "/v1/stability/{bucket}", "/v1/stability/{bucket}/history"),
    "/v1/topics/{topic}/subscriptions/{subscriber}/watch",
    *("/v1/restart/{bucket}", "/v1/watch", "/livez", "/readyz", "/metrics"),
}
"""Those that take none. `docs/http-api.md` says why."""

PATHS = [path for paths in READS.values() for path in paths]


def with_query(path: str, query: str) -> str:
    return path + ("&" if "?" in path else "?") * bool(query) + query


def ask(
    shell: LoneShell, path: str, check: Callable[[Callable[[str], Awaitable[Any]]], Awaitable[None]]
) -> None:
    """Run `check` with what asks the path with a query. A master has a setting."""

    async def run() -> None:
        try:
            async with shell.client() as http:
                full = path
                if shell.node.master:
                    put = await http.put("/v1/config/x", content="1")
                    assert put.status_code == SUCCESS
                    await subscribed(http)
                    bucket = {"name": "orders", "source": {"topic": "orders"}}
                    made = await http.post("/v1/buckets", json=bucket)
                    assert made.status_code == CREATED, made.text
                if "INDEX" in path:
                    full = path.replace("INDEX", await written(http))
                await check(lambda query: http.get(with_query(full, query)))
        finally:
            shell.examiner.close()

    asyncio.run(run())


async def subscribed(http: Any) -> None:
    """Add a topic, and subscribe to it."""
    for path, body in (("/v1/topics", {"name": "t"}), ("/v1/topics/t/subscriptions", {"id": "s"})):
        made = await http.post(path, json=body)
        assert made.status_code == CREATED, made.text


async def written(http: Any) -> str:
    """Write an index, and return its id."""
    index = {"name": "i", "bucket": "b", "expressions": ["a"]}
    made = await http.post("/v1/indexes", json=index)
    assert made.status_code == CREATED, made.text
    return str(made.json()["index"]["id"])


def code_of(answer: Any) -> str:
    return str(answer.json()["error"]["code"]) if answer.status_code != SUCCESS else ""


def test_every_route_that_is_got_is_in_one_of_the_tables() -> None:
    shell: Any = LoneShell()
    shell.examiner.close()
    got = {
        route.path: {one.name for one in route.dependant.query_params}
        for route in build_app(shell).routes
        if isinstance(route, APIRoute) and "GET" in route.methods
    }
    assert set(got) == set(READS) | WITHOUT
    taking = {path for path, names in got.items() if names >= {"consistency", "at_least"}}
    assert taking == set(READS)
    assert not any(
        names & {"consistency", "at_least"} for path, names in got.items() if path in WITHOUT
    )


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_a_linearizable_read_is_not_answered_before_its_barrier_and_a_local_one_is(
    path: str,
) -> None:
    """What others have written may stand behind the barrier: without it, the state may be old."""
    shell = LoneShell()

    async def check(get: Callable[[str], Awaitable[Any]]) -> None:
        for query in ("", "consistency=linearizable", "consistency=local"):
            assert code_of(await get(query)) == ""
        shell.lone.held = {fx.Append}
        for query in ("", "consistency=linearizable", "consistency=linearizable&at_least=1"):
            assert code_of(await get(query)) in ("timeout", "no_master", "unavailable")
        now_ms = shell.lone.mono_ms
        local = await get("consistency=local")
        assert code_of(local) == ""
        assert shell.lone.mono_ms == now_ms
        assert int(local.headers["X-Applied-Cas"]) == shell.node.state.cas

    ask(shell, path, check)


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_a_read_waits_for_the_cas_that_it_asks_for(path: str) -> None:
    shell = LoneShell()

    async def check(get: Callable[[str], Awaitable[Any]]) -> None:
        cas = shell.node.state.cas
        assert code_of(await get(f"consistency=local&at_least={cas}")) == ""
        began_ms = shell.lone.mono_ms
        late = await get(f"consistency=local&at_least={cas + AHEAD}")
        assert (late.status_code, code_of(late)) == (504, "timeout")
        assert shell.lone.mono_ms - began_ms >= 15_000

    ask(shell, path, check)


OF_SOMETHING = ("INDEX", "/x", "/topics/", "/buckets/")
"""In the paths of what only a master has been given."""


@pytest.mark.parametrize(
    "path", [path for path in PATHS if not any(one in path for one in OF_SOMETHING)]
)
def test_who_is_not_master_answers_no_linearizable_read(path: str) -> None:
    lone = LoneNode()
    lone.held = {fx.OpenProducer}
    shell = LoneShell(lone.begin().run(2_000))
    assert shell.node.master is None

    async def check(get: Callable[[str], Awaitable[Any]]) -> None:
        refused = await get("consistency=linearizable")
        assert code_of(refused) in ("not_master", "no_master")
        if "cas=1" in path or "to=1" in path:
            return  # It has not applied even that.
        for query in ("", "consistency=local"):
            assert code_of(await get(query)) == ""

    ask(shell, path, check)
