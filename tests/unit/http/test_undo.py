"""An undo in steps over HTTP, on a node without processes: two tries of one request at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from coordinator.client.request_ids import uuid7
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import Outcome, Transact
from coordinator.http import undo
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
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.001)


@pytest.mark.thorough
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


async def put(client: httpx.AsyncClient, *names: str, value: Any = 1) -> list[int]:
    """Write settings in one transaction; return the CAS of each."""
    then = [{"put": {"key": f"config/{name}", "value": value}} for name in names]
    answer = await client.post("/v1/txn", json={"then": then})
    assert answer.status_code == 200, answer.text
    return [result["cas"] for result in answer.json()["results"]]


async def undone(client: httpx.AsyncClient, key: str = "", **asked: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return await client.post("/v1/undo", json=asked, headers=headers)


def tell(story: Callable[[LoneShell, httpx.AsyncClient], Awaitable[None]]) -> None:
    async def told() -> None:
        shell = LoneShell()
        async with shell.client(timeout=60) as client:
            await story(shell, client)

    asyncio.run(told())


def test_what_was_looked_at_and_is_no_longer_due_is_looked_at_again() -> None:
    """In steps it may have been done by an earlier try; in one transaction somebody else did it."""

    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        (before,) = await put(client, "before")
        _, seen = await put(client, "a", "b")
        await client.delete("/v1/config/a")
        refused = await undone(client, to=before, expected_cas=seen)
        assert refused.json()["error"]["code"] == "cas_mismatch"
        done = await undone(client, to=before, expected_cas=seen, in_steps=True)
        assert [change["key"] for change in done.json()["changes"]] == ["config/b"]

    tell(story)


def test_the_transaction_that_is_led_back_to_stays_whole() -> None:
    """A writer knows the CAS of its own change, and not what else its transaction has."""

    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        first, last = await put(client, "a", "b")
        await put(client, "b", value=2)
        done = (await undone(client, to=first)).json()
        assert done["to"] == last
        assert {change["key"] for change in done["changes"]} == {"config/b"}
        assert shell.node.state.setting("a") is not None

    tell(story)


@pytest.mark.parametrize("more", [0, 1])
def test_as_much_is_undone_at_once_as_one_transaction_may_have(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(undo, "OPERATIONS_MAX", 3)

    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        (before,) = await put(client, "before")
        await put(client, *map(str, range(3 + more)))
        assert (await undone(client, to=before)).status_code == (413 if more else 200)

    tell(story)


def test_a_repeat_of_an_undo_in_steps_that_is_done_undoes_nothing_more() -> None:
    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        (before,) = await put(client, "before")
        await put(client, *NAMES)
        key = uuid7(shell.lone.wall_ms, 1)
        done = await undone(client, key, to=before, in_steps=True)
        later = [f"later/{number}" for number in range(len(NAMES))]
        await put(client, *later)
        again = await undone(client, key, to=before, in_steps=True)
        assert (again.status_code, again.json()["txns"]) == (200, done.json()["txns"])
        assert all(shell.node.state.setting(name) is not None for name in later)

    tell(story)


def test_an_undo_in_steps_under_an_id_that_is_too_old_does_none_of_them() -> None:
    """Only its last step has this id: the others would be done again."""

    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        (before,) = await put(client, "before")
        await put(client, *NAMES)
        authority = shell.node.authority
        assert authority is not None
        old = uuid7(shell.lone.wall_ms - authority.request_window_ms - 1, 1)
        refused = await undone(client, old, to=before, in_steps=True)
        assert refused.json()["error"]["code"] == "request_expired"
        assert all(shell.node.state.setting(name) is not None for name in NAMES)

    tell(story)


@pytest.mark.parametrize("field", ["to", "expected_cas"])
def test_a_cas_that_is_still_to_come_was_not_looked_at(field: str) -> None:
    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        await put(client, "a")
        now = shell.node.state.cas
        asked = {"to": now, "expected_cas": now, "dry_run": True}
        assert (await undone(client, **asked)).status_code == 200
        refused = await undone(client, **(asked | {field: now + 1}))
        assert refused.json()["error"]["code"] == "invalid_request"

    tell(story)


def test_an_undo_begins_with_what_was_committed_before_it_was_asked_for() -> None:
    """A node that has not heard that it was deposed would plan with an old state."""

    async def story(shell: LoneShell, client: httpx.AsyncClient) -> None:
        (before,) = await put(client, "before")
        read: list[bool] = []
        ask = shell.ask

        async def spied(make: Callable[[int], inp.Input]) -> Outcome:
            asked = make(0)
            read.extend([asked.linearizable] if isinstance(asked, inp.ReadRequested) else [])
            return await ask(make)

        shell.ask = spied  # type: ignore[method-assign]
        assert (await undone(client, to=before, dry_run=True)).status_code == 200
        assert read == [True]

    tell(story)
