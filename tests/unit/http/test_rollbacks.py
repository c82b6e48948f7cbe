"""Rollbacks are shown as their description says, newest first, with how far each indexer is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import MoveRollback, Request
from coordinator.core.model.entities import (
    ROLLBACK,
    ROLLBACK_DONE,
    ROLLBACK_PREPARE,
    ROLLBACK_RESTART,
    ROLLBACK_STARTED,
    Rollback,
)
from coordinator.core.model.stream_records import HwHeartbeat
from coordinator.core.model.vectors import Vector
from coordinator.http import models
from coordinator.http.rollback_views import rollbacks
from tests.support.indexes import make_indexer_beat, make_watermarks
from tests.support.lone_node import INDEXER
from tests.support.lone_shell import LoneShell
from tests.support.views import a_state_of

TOP = 2**64 - 1
NUMBER = 2**62 + 1
FAILOVER = Vector([TOP, 7], [TOP, 0])
RESTART = Vector([5, TOP, 0, 7], [9, TOP, 0, 0])
NOTHING = Vector.zero(4)
KNOWN_FROM = {
    ROLLBACK_STARTED: (None, None),
    ROLLBACK_PREPARE: (FAILOVER, None),
    **dict.fromkeys((ROLLBACK_RESTART, ROLLBACK, ROLLBACK_DONE), (FAILOVER, RESTART)),
}
STEPS = [(state, *known) for state, known in KNOWN_FROM.items()]


def a_rollback(
    bucket: str = "b",
    state: str = ROLLBACK_STARTED,
    began_ms: int = 5,
    failover: Vector | None = None,
    restart: Vector | None = None,
) -> Rollback:
    failed = (b"", b"") if failover is None else failover.to_bytes()
    begun = (b"", b"") if restart is None else restart.to_bytes()
    return Rollback(
        bucket=bucket,
        number=NUMBER,
        state=state,
        vbuckets=(1, 3),
        reason="2 vbuckets have lost what indexers hold",
        began_ms=began_ms,
        failover_vbuuids=failed[0],
        failover_seqnos=failed[1],
        restart_vbuuids=begun[0],
        restart_seqnos=begun[1],
        ended_ms=9 if state == ROLLBACK_DONE else 0,
    )


def a_beat(indexer: int, **fields: Any) -> HwHeartbeat:
    return make_watermarks(indexer, NOTHING, **fields)


def as_described(shown: Any) -> Any:
    """Return what its description makes of an answer."""
    return json.loads(models.RollbacksAnswer(**shown).model_dump_json())


@pytest.mark.parametrize(("state", "failover", "restart"), STEPS)
def test_a_timestamp_is_null_until_its_step_and_loses_no_digit(
    state: str, failover: Vector | None, restart: Vector | None
) -> None:
    shown = rollbacks(a_state_of(4, a_rollback("b", state, 5, failover, restart)), None)
    assert as_described(shown) == shown
    [row] = shown["rollbacks"]
    assert (shown["cas"], row["number"], row["vbuckets"]) == (4, str(NUMBER), [1, 3])
    top = [str(TOP), str(TOP)]
    assert row["failover"] == (None if failover is None else {"1": top, "3": ["7", "0"]})
    begun = {"0": ["5", "9"], "1": top, "3": ["7", "0"]}
    assert row["restart"] == (None if restart is None else begun)
    assert row["ended_ms"] == (9 if state == ROLLBACK_DONE else None)


def test_nothing_that_anybody_keeps_is_another_answer_than_nothing_that_is_known() -> None:
    one = a_rollback("b", ROLLBACK_RESTART, 5, FAILOVER, NOTHING)
    [row] = rollbacks(a_state_of(1, one), None)["rollbacks"]
    assert row["restart"] == {}


def test_the_newest_is_first_and_of_those_that_began_together_the_first_by_name() -> None:
    known = [a_rollback(name, began_ms=at) for name, at in (("a", 5), ("c", 9), ("b", 9))]
    shown = rollbacks(a_state_of(1, *known), None)["rollbacks"]
    assert [row["bucket"] for row in shown] == ["b", "c", "a"]


def test_an_indexer_has_gone_back_from_the_number_of_the_rollback_on() -> None:
    beats = [
        a_beat(1, rollback=NUMBER - 1, branched=(1, 3)),
        a_beat(2, rollback=NUMBER, recovering=True),
        a_beat(3, rollback=NUMBER + 1),
    ]
    shown = rollbacks(a_state_of(1, a_rollback()), {"b": beats, "c": [a_beat(4)]})
    assert as_described(shown) == shown
    assert [tuple(row.values()) for row in shown["rollbacks"][0]["indexers"]] == [
        (1, False, False, 2),
        (2, True, True, 0),
        (3, True, False, 0),
    ]


@pytest.mark.parametrize(("heard", "indexers"), [(None, None), ({}, [])])
def test_a_master_that_has_heard_nobody_is_told_from_a_node_that_cannot_know(
    heard: dict[str, list[HwHeartbeat]] | None, indexers: list[Any] | None
) -> None:
    [row] = rollbacks(a_state_of(1, a_rollback()), heard)["rollbacks"]
    assert row["indexers"] == indexers


# -- the route -------------------------------------------------------------------------------------


class Rolling:
    """A master whose bucket `b` is to go back."""

    def __init__(self) -> None:
        self.shell = LoneShell()
        self.lone = self.shell.lone

    async def begin(self, http: Any) -> int:
        """Have the rollback begin, and return its CAS."""
        index = {"name": "i", "bucket": "b", "expressions": ["a"]}
        assert (await http.post("/v1/indexes", json=index)).is_success
        command = MoveRollback("b", 0, ROLLBACK_STARTED, (1, 3), reason="lost")
        deadline_ms = self.lone.mono_ms + 15_000
        outcome = await self.shell.ask(
            lambda token: inp.Requested(
                Request(command=command, token=token, deadline_ms=deadline_ms)
            )
        )
        assert outcome.status == "ok"
        return outcome.cas

    def says(self, indexer: int, incarnation: int, **fields: Any) -> None:
        beat = make_watermarks(indexer, NOTHING, incarnation=incarnation, **fields)
        self.lone.feed(inp.StreamsRead((beat,)))


async def shown(http: Any, query: str = "") -> tuple[list[Any], str]:
    """Return the rollbacks, and the CAS in the header."""
    answer = await http.get("/v1/rollbacks" + query)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert as_described(body) == body
    assert str(body["cas"]) == answer.headers["X-Applied-Cas"]
    return body["rollbacks"], answer.headers["X-Applied-Cas"]


def test_a_master_shows_a_rollback_with_the_live_indexers_of_the_bucket() -> None:
    async def run() -> None:
        one = Rolling()
        async with one.shell.client() as http:
            assert (await shown(http))[0] == []
            cas = await one.begin(http)
            dead = make_indexer_beat(1, incarnation=2)
            one.lone.feed(inp.BeatsRead((dead,)))
            one.lone.run(one.lone.node.config.liveness_ms + 1_000)
            one.says(1, 2)
            one.says(INDEXER, 5, branched=(3,))
            one.says(2, 1)  # Nobody has ever heard this one itself.
            [row], applied = await shown(http)
            assert int(applied) >= cas
            assert (row["bucket"], row["vbuckets"], row["reason"]) == ("b", [1, 3], "lost")
            assert row["indexers"] == [
                {"indexer": INDEXER, "done": False, "recovering": False, "branched": 1}
            ]

    asyncio.run(run())


def test_what_a_former_life_of_an_indexer_said_does_not_count() -> None:
    async def run() -> None:
        one = Rolling()
        async with one.shell.client() as http:
            await one.begin(http)
            one.says(INDEXER, 4, branched=(3,))
            [row], _ = await shown(http)
            assert row["indexers"] == []

    asyncio.run(run())


def test_a_node_that_is_not_master_shows_what_it_has_applied_without_the_indexers() -> None:
    async def run() -> None:
        one = Rolling()
        async with one.shell.client() as http:
            await one.begin(http)
            one.says(INDEXER, 5)
            one.lone.node.master = None
            [row], _ = await shown(http, "?consistency=local")
            assert (row["state"], row["indexers"]) == (ROLLBACK_STARTED, None)

    asyncio.run(run())
