"""A watch over HTTP on a node without processes: what it costs the node, and what it tells of."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from coordinator.core.catalog import state as states
from coordinator.core.history import shown
from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Cas, Instant
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps import board as boards
from coordinator.http import watch
from coordinator.http.extras import Extras, Place
from coordinator.http.watch import PORTION_BYTES, SNAPSHOT_PORTION, _portions
from tests.support.changes import a_transaction, written
from tests.support.lone_node import LoneNode
from tests.support.lone_shell import LoneShell

ENTITIES = 5 * SNAPSHOT_PORTION
PLACES = Vector([1], [1]).to_bytes()


@pytest.fixture
def shell() -> LoneShell:
    made = LoneShell()
    settings = ((written(f"k{number}", "1"), Cas(number + 1)) for number in range(ENTITIES))
    made.node.follower.state = states.evolve(states.EMPTY, settings)
    return made


async def told(client: httpx.AsyncClient, query: str) -> list[dict[str, Any]]:
    """Return the data of all events of a watch, each with its `type`."""
    response = await client.get(f"/v1/watch?{query}")
    assert response.status_code == 200, response.text
    found = []
    for text in response.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in text.splitlines())
        if fields:
            found.append({"type": fields["event"], **json.loads(fields["data"])})
    return found


def test_between_two_portions_of_snapshots_the_loop_does_all_else(
    shell: LoneShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, entity = 0, shown.entity

    def counting(*given: Any) -> str:
        nonlocal count
        count += 1
        return entity(*given)

    monkeypatch.setattr(shown, "entity", counting)

    async def most_between_two_turns(watches: asyncio.Future[Any]) -> int:
        most = 0
        while not watches.done():
            before = count
            await asyncio.sleep(0)
            most = max(most, count - before)
        return most

    async def scenario() -> None:
        async with shell.client() as client:
            watches = asyncio.gather(*(told(client, "after=snapshot") for _ in range(20)))
            most = await most_between_two_turns(watches)
        for events in await watches:
            keys = [event["key"] for event in events if event["type"] == "snapshot"]
            assert len({*keys}) == len(keys) == ENTITIES
            assert events[-1]["type"] == "snapshot_end"
        assert 0 < most <= SNAPSHOT_PORTION

    asyncio.run(scenario())


def test_a_bucket_filters_timestamps_though_no_change_is_watched(
    shell: LoneShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[bytes] = []
    news = Extras.news

    def spied(extras: Extras, place: Place) -> bytes:
        found = news(extras, place)
        handed.extend([found] if found else [])
        return found

    monkeypatch.setattr(Extras, "news", spied)
    shell.changes = Feed()
    board = shell.node.timestamps
    for bucket in ("travel", "other"):
        record = StabilityTimestamp(bucket, 3, *PLACES, 1_000)
        board = boards.fold(board, record, Instant(0, 0)).board
    shell.node.timestamp_follower.board = board

    async def scenario() -> list[dict[str, Any]]:
        async with shell.client() as client:
            watching = asyncio.create_task(told(client, "kind=stability&bucket=travel"))
            while not handed and not watching.done():
                await asyncio.sleep(0)
            shell.changes.close()
            return await watching

    events = asyncio.run(scenario())
    assert [e["bucket"] for e in events if e["type"] == "stability"] == ["travel"]


@pytest.mark.parametrize("unheard", [False, True])
def test_an_idle_watcher_hears_that_the_node_has_found_a_newer_state(
    shell: LoneShell, monkeypatch: pytest.MonkeyPatch, unheard: bool
) -> None:
    """No transaction says so, and the next one may be long in coming."""
    shell.changes = Feed()
    monkeypatch.setattr(watch, "BOOKMARK_S", 0.005)
    frames, frame = [], watch.frame
    monkeypatch.setattr(watch, "frame", lambda *of: frames.append(of) or frame(*of))

    async def scenario() -> list[dict[str, Any]]:
        async with shell.client() as client:
            watching = asyncio.create_task(told(client, "after=now"))
            while not len(shell.changes):
                await asyncio.sleep(0)
            if unheard:
                newer = [(written("k", "2"), Cas(ENTITIES + 5))]
                shell.node.follower.state = states.evolve(shell.node.state, newer)
            async with asyncio.timeout(60):
                while len(frames) < 4 and not watching.done():
                    await asyncio.sleep(0.001)
            shell.changes.close()
            return await watching

    events = asyncio.run(scenario())
    last = {"type": "lagged" if unheard else "bookmark", "cas": ENTITIES}
    assert events[-1] == last
    assert {event["cas"] for event in events} == {ENTITIES}


def test_what_changes_while_a_snapshot_is_sent_comes_after_it(
    shell: LoneShell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.changes = Feed()
    before = shell.node.state
    sent, entity = [], shown.entity
    monkeypatch.setattr(shown, "entity", lambda *of: sent.append(of) or entity(*of))

    async def scenario() -> list[dict[str, Any]]:
        async with shell.client() as client:
            watching = asyncio.create_task(told(client, "after=snapshot"))
            while not sent:
                await asyncio.sleep(0)
            assert len(sent) < ENTITIES
            event = a_transaction(1, ENTITIES + 5, written("k0", "2"))
            shell.node.follower.state = states.evolve(before, [(event[0].mutation, event[0].cas)])
            shell.changes.publish(before, event)
            while not len(shell.changes):
                await asyncio.sleep(0)
            shell.changes.close()
            return await watching

    events = asyncio.run(scenario())
    assert [e["cas"] for e in events if e["type"] == "snapshot_end"] == [ENTITIES]
    assert [e["cas"] for e in events if e["type"] == "change"] == [ENTITIES + 5]


def test_who_comes_back_goes_on_after_the_event_that_it_got_last(shell: LoneShell) -> None:
    """A browser repeats the address, and names that event in a header."""
    shell.changes = Feed()
    before = shell.node.state
    event = a_transaction(1, ENTITIES + 1, written("k0", "2"))
    shell.node.follower.state = states.evolve(before, [(event[0].mutation, event[0].cas)])
    shell.changes.publish(before, event)

    async def scenario() -> list[dict[str, Any]]:
        async with shell.client(headers={"Last-Event-ID": str(ENTITIES)}) as client:
            watching = asyncio.create_task(told(client, "after=now"))
            while not len(shell.changes):
                await asyncio.sleep(0)
            shell.changes.close()
            return await watching

    events = asyncio.run(scenario())
    assert [event["cas"] for event in events if event["type"] == "change"] == [ENTITIES + 1]


def test_a_node_that_has_not_caught_up_tells_no_changes() -> None:
    shell = LoneShell(LoneNode())

    async def scenario() -> httpx.Response:
        async with shell.client() as client:
            return await client.get("/v1/watch?after=now")

    response = asyncio.run(scenario())
    assert response.json()["error"]["code"] == "not_ready"


def test_an_unknown_kind_is_told_every_kind_of_a_watch(shell: LoneShell) -> None:
    async def scenario() -> httpx.Response:
        async with shell.client() as client:
            return await client.get("/v1/watch?kind=nope")

    response = asyncio.run(scenario())
    assert response.status_code == 400
    kinds = ("index", "bucket", "setting", "stream", "rollback", "rebalance", "consumed", "topic")
    known = ", ".join((*kinds, "subscription", "members", "stability"))
    assert response.json()["error"]["message"] == f"kind 'nope' does not exist: one of {known}"


def test_a_portion_of_a_snapshot_has_a_bound_in_bytes_and_each_entity_once() -> None:
    value = "[" + "\n" * 60_000 + "]"
    mutations = ((written(f"k{number}", value), Cas(number + 1)) for number in range(50))
    state = states.evolve(states.EMPTY, mutations)
    portions = [*_portions(state.entities.items(), Predicate())]
    assert max(map(len, portions)) < PORTION_BYTES + 2 * len(value)
    assert len(portions) > 50 * len(value) // (2 * PORTION_BYTES)
    events = b"".join(portions).decode().split("\n\n")[:-1]
    lines = [event.splitlines() for event in events]
    assert all(len(one) == 2 for one in lines), "an event is a name and one line of data"
    told = [json.loads(data.removeprefix("data: ")) for _, data in lines]
    assert {one["key"] for one in told} == set(state.entities.keys())
    assert len(told) == 50


def test_a_portion_in_which_nothing_fits_is_empty_and_the_next_one_comes() -> None:
    count = 2 * SNAPSHOT_PORTION
    mutations = ((written(f"k{number}", "1"), Cas(number + 1)) for number in range(count))
    state = states.evolve(states.EMPTY, mutations)
    nothing = Predicate(keys=frozenset({""}))
    assert [*_portions(state.entities.items(), nothing)] == [b"", b"", b""]


def test_what_was_missed_is_read_page_by_page_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = LoneShell()
    monkeypatch.setattr(watch, "PAGE", 2)

    async def scenario() -> tuple[list[int], list[dict[str, Any]]]:
        async with shell.client() as client:
            put = [await client.put(f"/v1/config/k{number}", json=1) for number in range(7)]
            return [one.json()["cas"] for one in put], await told(client, "after=0&kind=setting")

    written_at, events = asyncio.run(scenario())
    assert [event["cas"] for event in events] == written_at


def test_who_has_caught_up_with_the_history_hears_soon_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it was sent last may be inside a transaction, of which nothing more fits."""
    shell = LoneShell()
    frames, frame = [], watch.frame
    monkeypatch.setattr(watch, "BOOKMARK_S", 3_600.0)
    monkeypatch.setattr(watch, "BOOKMARK_SOON_S", 0.001)
    monkeypatch.setattr(watch, "frame", lambda *of: frames.append(of) or frame(*of))

    async def scenario() -> None:
        async with shell.client() as client:
            await client.put("/v1/config/k", json=1)
            shell.changes = Feed()
            watching = asyncio.create_task(told(client, "after=0&kind=index"))
            async with asyncio.timeout(60):
                while not frames:
                    await asyncio.sleep(0.001)
            shell.changes.close()
            await watching

    asyncio.run(scenario())
    assert frames[0][:2] == ("bookmark", {"cas": shell.node.state.cas})


def test_who_leaves_is_told_no_more_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Place] = []
    leave = Extras.leave
    monkeypatch.setattr(Extras, "leave", lambda *of: left.append(of[1]) or leave(*of))
    shell = LoneShell()

    async def scenario() -> None:
        async with shell.client() as client:
            await told(client, "kind=members")

    asyncio.run(scenario())
    assert len(left) == 1


@pytest.mark.parametrize(
    ("watchers", "changes", "late_s", "pace_s"),
    [
        (19, 10, 0.04, 0.0),
        (20, 10, 0.0, 0.001),
        (100, 10, 0.0, 0.005),
        (1_000, 10, 0.0, 0.05),
        (2_000, 10, 0.0, 0.05),
        (1_000, 100, 0.04, 0.13),
        (1_000, 10, 0.04, 0.05),
        (1_000, 20, 0.04, 0.09),
        (1_000, 256, 5.0, 0.3),
    ],
)
def test_the_later_the_turn_of_a_watcher_and_the_more_it_was_sent_the_later_is_the_next(
    watchers: int, changes: int, late_s: float, pace_s: float
) -> None:
    """1,000 watchers of 1,500 changes a second left nothing of the loop to the node."""
    assert watch.pace_of(watchers, changes, late_s) == pytest.approx(pace_s)
