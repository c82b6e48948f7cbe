"""Both clients watch nodes that answer what they should not, or nothing any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordinator.client.client import AsyncClient, Client
from coordinator.client.errors import CoordinatorError
from tests.support.http_node import Answer, Node, Request, members

STREAM = {"Content-Type": "text/event-stream"}
GONE = Answer(200, None)
BUILDING = Answer(200, {"index": {"id": "7", "state": "backfill", "reason": None}, "cas": 5})

Script = Callable[[Request], Answer]


def event(name: str, data: str) -> str:
    return f"event: {name}\ndata: {data}\n\n"


def changed(key: str, cas: int, **index: Any) -> str:
    body = {"cas": cas, "key": key, "dropped": False, "value": {"reason": None, **index}}
    return event("change", json.dumps(body))


@pytest.fixture
def serve() -> Iterator[Callable[[Script], Node]]:
    nodes: list[Node] = []

    def start(script: Script) -> Node:
        nodes.append(Node(script))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


class Blocking:
    """Calls of the blocking client."""

    @staticmethod
    def watched(url: str) -> list[dict[str, Any]]:
        with Client(url, deadline_s=0.3) as client:
            return [*client.watch()]

    @staticmethod
    def waited(url: str, timeout_s: float | None) -> dict[str, Any]:
        with Client(url, deadline_s=0.3) as client:
            return client.wait_until(7, timeout_s=timeout_s)


class Async:
    """The same of the client for asyncio."""

    @staticmethod
    def watched(url: str) -> list[dict[str, Any]]:
        async def watch() -> list[dict[str, Any]]:
            async with AsyncClient(url, deadline_s=0.3) as client:
                return [told async for told in client.watch()]

        return asyncio.run(watch())

    @staticmethod
    def waited(url: str, timeout_s: float | None) -> dict[str, Any]:
        async def wait() -> dict[str, Any]:
            async with AsyncClient(url, deadline_s=0.3) as client:
                return await client.wait_until(7, timeout_s=timeout_s)

        return asyncio.run(wait())


@pytest.fixture(params=[Blocking, Async])
def calls(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("change", "nonsense"),
        ("bookmark", "{}"),
        ("bookmark", "[]"),
        ("lagged", "null"),
        ("change", '{"cas":"7"}'),
        ("compacted", "{}"),
    ],
)
def test_an_event_that_no_node_sends_is_a_bad_response(
    serve: Callable[[Script], Node], calls: Any, name: str, data: str
) -> None:
    stream = Answer(200, event("bookmark", '{"cas":5}') + event(name, data), STREAM)
    node = serve(lambda request: members() if request.path == "/v1/members" else stream)
    with pytest.raises(CoordinatorError) as caught:
        calls.watched(node.url)
    assert caught.value.code == "bad_response"


@pytest.mark.thorough
def test_a_wait_ends_at_its_timeout_though_no_node_answers_any_more(
    serve: Callable[[Script], Node], calls: Any
) -> None:
    has_told = False

    def script(request: Request) -> Answer:
        nonlocal has_told
        if has_told:
            return GONE
        if request.path == "/v1/watch":
            has_told = True
            return Answer(200, event("bookmark", '{"cas":6}'), STREAM)
        return members() if request.path == "/v1/members" else BUILDING

    with pytest.raises(CoordinatorError) as caught:
        calls.waited(serve(script).url, 0.5)
    assert caught.value.code == "timeout"


def test_a_wait_does_not_take_an_index_for_another_that_has_its_id_as_name(
    serve: Callable[[Script], Node], calls: Any
) -> None:
    changes = {
        "index/9": changed("index/9", 6, id="9", name="7", state="maintenance"),
        "index/7": changed("index/7", 8, id="7", name="a", state="maintenance"),
    }

    def script(request: Request) -> Answer:
        if request.path != "/v1/watch":
            return members() if request.path == "/v1/members" else BUILDING
        fitting = [text for key, text in changes.items() if request.query.get("key", key) == key]
        return Answer(200, "".join(fitting), STREAM)

    assert calls.waited(serve(script).url, 5.0)["cas"] == 8


def test_a_value_may_have_what_is_a_line_break_elsewhere(
    serve: Callable[[Script], Node], calls: Any
) -> None:
    """httpx-sse before 0.4.3 cuts an event in two there, and the watch never gets past it."""
    told = '{"cas":7,"value":"a\u2028b\u2029c\u0085d"}'
    stream = Answer(200, event("change", told) + event("compacted", '{"oldest":9}'), STREAM)
    node = serve(lambda request: members() if request.path == "/v1/members" else stream)
    with pytest.raises(CoordinatorError) as caught:
        calls.watched(node.url)
    assert caught.value.code == "compacted"
