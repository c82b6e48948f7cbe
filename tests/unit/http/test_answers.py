"""Large answers that clients do not take: so many at once, and no longer than they may."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from coordinator.core.catalog import state as states
from coordinator.core.model.types import Cas
from coordinator.http import answers
from coordinator.http.answers import LARGE_BYTES, PIECE_BYTES, BoundedAnswers
from tests.support.changes import written
from tests.support.lone_node import HOST
from tests.support.lone_shell import LoneShell, Served

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
LARGE = 3 * PIECE_BYTES + 5


class Client:
    """Takes what is sent to it while it reads."""

    def __init__(self, *, reads: bool = True) -> None:
        self.may_take = asyncio.Event()
        self.parts: list[Message] = []
        if reads:
            self.may_take.set()

    async def send(self, message: Message) -> None:
        self.parts.append(message)
        await self.may_take.wait()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def status(self) -> int:
        return int(self.parts[0]["status"])

    @property
    def body(self) -> bytes:
        return b"".join(part["body"] for part in self.parts[1:])

    @property
    def is_whole(self) -> bool:
        return not self.parts[-1].get("more_body", False)


def app(size: int) -> Any:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"x" * size)(scope, receive, send)

    return answer


async def ask(served: BoundedAnswers, client: Client) -> None:
    await served(SCOPE, client.receive, client.send)


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES, LARGE_BYTES + 1, PIECE_BYTES, LARGE])
def test_whoever_takes_an_answer_gets_all_of_it(size: int) -> None:
    async def run() -> None:
        served, client = BoundedAnswers(app(size)), Client()
        await ask(served, client)
        assert (client.status, client.body, client.is_whole) == (200, b"x" * size, True)
        assert served.under_way == 0
        assert max(len(part.get("body", b"")) for part in client.parts) <= PIECE_BYTES

    asyncio.run(run())


def test_what_is_not_taken_has_a_bound_and_what_is_small_goes_on() -> None:
    async def run() -> None:
        served = BoundedAnswers(app(LARGE), bytes_max=2 * LARGE)
        slow = [Client(reads=False) for _ in range(2)]
        tasks = [asyncio.create_task(ask(served, client)) for client in slow]
        await asyncio.sleep(0)
        refused = Client()
        await ask(served, refused)
        assert (refused.status, json.loads(refused.body)["error"]["code"]) == (503, "overloaded")
        served._app = app(LARGE_BYTES)
        small = Client()
        await ask(served, small)
        assert (small.status, len(small.body)) == (200, LARGE_BYTES)
        for client in slow:
            client.may_take.set()
        await asyncio.gather(*tasks)
        assert [len(client.body) for client in slow] == [LARGE, LARGE]
        assert served.under_way == 0

    asyncio.run(run())


def test_one_answer_may_be_longer_than_all_may_be_together() -> None:
    async def run() -> None:
        served, client = BoundedAnswers(app(LARGE), bytes_max=1), Client()
        await ask(served, client)
        assert (client.status, len(client.body)) == (200, LARGE)

    asyncio.run(run())


@pytest.mark.parametrize("is_at_its_end", [False, True])
def test_who_takes_nothing_is_given_up_and_its_answer_counts_no_more(
    monkeypatch: pytest.MonkeyPatch, is_at_its_end: bool
) -> None:
    """The server waits with each part until the one before is taken: also with the last."""
    monkeypatch.setattr(answers, "STUCK_S", 0.01)

    async def run() -> None:
        served, client = BoundedAnswers(app(LARGE)), Client()

        async def send(message: Message) -> None:
            has_more = message.get("more_body", False)
            if message["type"] != "http.response.start" and has_more is not is_at_its_end:
                await asyncio.Event().wait()
            await client.send(message)

        async with asyncio.timeout(60):
            await served(SCOPE, client.receive, send)
        assert client.parts[1:] == [] or client.parts[-1]["more_body"]
        assert served.under_way == 0

    asyncio.run(run())


def test_a_stream_begins_before_there_is_anything_to_send() -> None:
    async def run() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await go_on.wait()
            await send({"type": "http.response.body", "body": b"x" * LARGE, "more_body": True})

        served, client = BoundedAnswers(stream), Client()
        task = asyncio.create_task(ask(served, client))
        await begun.wait()
        assert client.status == 200
        go_on.set()
        await task
        assert client.body == b"x" * LARGE

    asyncio.run(run())


def test_the_answers_of_a_node_have_this_bound() -> None:
    shell = LoneShell()
    value = "x" * 60_000
    size = PIECE_BYTES + LARGE_BYTES
    settings = ((written(f"k{n}", f'"{value}"'), Cas(n + 1)) for n in range(size // len(value)))
    shell.node.follower.state = states.evolve(states.EMPTY, settings)

    async def run() -> None:
        client = Client()
        scope = {
            **SCOPE,
            "path": "/v1/config",
            "raw_path": b"/v1/config",
            "query_string": b"",
            "headers": [(b"host", HOST.encode())],
        }
        await Served.take(shell).app(scope, client.receive, client.send)
        assert (client.status, client.is_whole) == (200, True)
        assert len(client.body) > size - len(value)
        assert max(len(part["body"]) for part in client.parts[1:]) <= PIECE_BYTES

    asyncio.run(run())
