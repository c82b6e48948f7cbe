"""An undo in steps over HTTP, on a node without processes: two tries of one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from coordinator.client.request_ids import uuid7
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import Outcome, Transact
from tests.support.lone_shell import LoneShell

NAMES = [f"m/{number:03d}" for number in range(130)]


class Turns(LoneShell):
    """A shell that takes the steps of undoes in a given order of their principals, then as they
    come."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: deque[str] = deque()
        self.waiting: set[str] = set()

    async def ask(self, make: Callable[[int], inp.Input]) -> Outcome:
        asked = make(0)
        if not isinstance(asked, inp.Requested) or not isinstance(asked.request.command, Transact):
            return await super().ask(make)
        who = asked.request.principal
        self.waiting.add(who)
        while self.turns and self.turns[0] != who:
            await asyncio.sleep(0.001)
        self.waiting.discard(who)
        outcome = await super().ask(make)
        if self.turns:
            self.turns.popleft()
        return outcome


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


def test_two_tries_of_one_undo_in_steps_leave_nothing_of_it_undone() -> None:
    """The client has repeated it, as the first try still ran; somebody else wrote in between."""
    shell = Turns()
    key = uuid7(shell.lone.wall_ms, 1)

    async def scenario() -> None:
        async with shell.client(timeout=60) as client:

            async def put(name: str) -> int:
                answer = await client.put(f"/v1/config/{name}", json=1)
                assert answer.status_code == 200, answer.text
                return int(answer.json()["cas"])

            async def undo(who: str) -> dict[str, Any]:
                headers = {"Idempotency-Key": key, "X-Principal": who}
                body = {"to": before, "in_steps": True}
                answer = await client.post("/v1/undo", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                found: dict[str, Any] = answer.json()
                return found

            before = await put("before")
            for name in NAMES:
                await put(name)
            shell.turns.extend(["second", "first", "first", "second"])
            first = asyncio.create_task(undo("first"))
            await until(lambda: "first" in shell.waiting)
            await put("a")
            answers = await asyncio.gather(first, undo("second"))
            there = [name for name in NAMES if shell.node.state.setting(name) is not None]
            assert there == []
            told = [sorted(change["key"] for change in one["changes"]) for one in answers]
            assert told[0] == told[1]
            assert {f"config/{name}" for name in NAMES} <= {*told[0]}

    asyncio.run(scenario())
