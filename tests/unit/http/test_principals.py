"""The principal of a request: whatever it is written in, the history shows it as it was meant."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.core.catalog.ddl import PRINCIPAL_LENGTH_MAX
from coordinator.core.consensus import inputs
from tests.support.lone_shell import LoneShell


def put(principal: bytes) -> tuple[int, list[str]]:
    """Write a setting for a principal; return the status, and the principals in the history."""

    async def run() -> tuple[int, list[str]]:
        shell = LoneShell()
        async with shell.client() as http:
            headers = [(b"x-principal", principal)]
            answer = await http.put("/v1/config/k", content=b"1", headers=headers)
            told = await http.get("/v1/history", params={"key": "config/k"})
            return answer.status_code, [one["principal"] for one in told.json()["events"]]

    return asyncio.run(run())


@pytest.mark.parametrize("principal", ["ada", "José", "Žofie", "阿达"])
def test_a_principal_in_utf_8_is_shown_as_it_was_sent(principal: str) -> None:
    assert put(principal.encode()) == (200, [principal])


def test_what_is_no_utf_8_is_taken_for_latin_1() -> None:
    assert put("José".encode("latin-1")) == (200, ["José"])


def test_the_length_of_a_principal_is_that_of_its_characters() -> None:
    assert put(("阿" * PRINCIPAL_LENGTH_MAX).encode()) == (200, ["阿" * PRINCIPAL_LENGTH_MAX])
    assert put(("阿" * (PRINCIPAL_LENGTH_MAX + 1)).encode()) == (400, [])


def test_who_has_a_node_step_down_is_told_by_the_same_name() -> None:
    heard: list[inputs.Input] = []

    async def run() -> None:
        shell = LoneShell()
        feed = shell.lone.feed
        shell.lone.feed = lambda event: (heard.append(event), feed(event))[1]  # type: ignore[method-assign]
        async with shell.client() as http:
            headers = [(b"x-principal", "José".encode())]
            await http.post("/v1/members/step-down", json={}, headers=headers)

    asyncio.run(run())
    (asked,) = [one for one in heard if isinstance(one, inputs.MembershipRequested)]
    assert asked.principal == "José"
