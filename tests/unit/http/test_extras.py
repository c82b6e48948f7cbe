"""Members and timestamps for many who watch: each event is made once, and wakes who wants it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.history.feed import Feed
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Instant
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps import board as boards
from coordinator.http import extras as module
from coordinator.http import timestamp_views, views
from coordinator.http.extras import MEMBERS, STABILITY, Extras, Place
from tests.support import lone_shell
from tests.support.lone_shell import LoneShell

WATCHERS = 2_000
PLACES = Vector([1], [1]).to_bytes()
ALL: frozenset[str] = frozenset()


class Bench:
    """Extras of a node whose members and timestamps a test tells; it looks when the test says."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.node: Any = SimpleNamespace(timestamps=boards.EMPTY)
        self.extras = Extras(lambda: self.node)
        self.members = {"master": 1, "members": [{"node": 1, "cas": 1, "role": "master"}]}
        self.viewed = self.published = self.woken = 0
        published = timestamp_views.published

        def count_published(record: StabilityTimestamp) -> dict[str, Any]:
            self.published += 1
            return published(record)

        def count_viewed(node: Any) -> dict[str, Any]:
            self.viewed += 1
            return self.members

        patch.setattr(timestamp_views, "published", count_published)
        patch.setattr(views, "members", count_viewed)
        patch.setattr(module, "LOOK_S", 3_600.0)

    def wake(self) -> None:
        self.woken += 1

    def join(self, *kinds: str, buckets: frozenset[str] = ALL) -> Place:
        return self.extras.join(frozenset(kinds), buckets, self.wake)

    def stability(self, number: int, *buckets: str) -> None:
        for bucket in buckets:
            record = StabilityTimestamp(bucket, number, *PLACES, 1_000)
            board = boards.fold(self.node.timestamps, record, Instant(0, 0)).board
            self.node.timestamps = board

    def look(self) -> None:
        self.extras._look()

    def told(self, place: Place) -> list[Any]:
        """Return what a watcher is told: buckets with numbers of timestamps, and masters."""
        events = self.extras.news(place).decode().split("\n\n")[:-1]
        found = [json.loads(one.partition("data: ")[2]) for one in events]
        return [
            (one["bucket"], one["number"]) if "bucket" in one else one["master"] for one in found
        ]


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Bench], None]], None]:
    def told(story: Callable[[Bench], None]) -> None:
        async def run() -> None:
            bench = Bench(monkeypatch)
            story(bench)
            if bench.extras._looking is not None:
                bench.extras._looking.cancel()

        asyncio.run(run())

    return told


Tell = Callable[[Callable[[Bench], None]], None]


def test_members_are_looked_at_and_made_an_event_of_once_for_all(tell: Tell) -> None:
    def story(bench: Bench) -> None:
        places = [bench.join(MEMBERS) for _ in range(WATCHERS)]
        assert [bench.told(place) for place in places] == [[1]] * WATCHERS
        assert bench.viewed == 1
        bench.members["members"][0]["cas"] = 2  # type: ignore[index]
        bench.look()
        assert (bench.woken, bench.told(places[0])) == (0, []), "that is not worth an event"
        bench.members = {"master": 2, "members": []}
        bench.look()
        assert (bench.viewed, bench.woken) == (3, WATCHERS)
        assert {bench.extras.news(place) for place in places} != {b""}
        assert bench.told(places[0]) == []

    tell(story)


def test_a_timestamp_is_made_an_event_of_once_and_wakes_only_who_wants_its_bucket(
    tell: Tell,
) -> None:
    def story(bench: Bench) -> None:
        some = [bench.join(STABILITY, buckets=frozenset({f"b{n}"})) for n in range(WATCHERS)]
        every = bench.join(STABILITY)
        bench.join(MEMBERS)
        bench.stability(1, "b7", "b8")
        bench.look()
        assert (bench.published, bench.woken) == (2, 4)
        assert bench.told(every) == [("b7", 1), ("b8", 1)]
        assert (bench.told(some[7]), bench.told(some[9])) == ([("b7", 1)], [])
        bench.look()
        assert (bench.published, bench.woken) == (2, 4), "nothing is new"
        bench.stability(2, "b7")
        bench.look()
        assert (bench.told(every), bench.told(some[8])) == ([("b7", 2)], [("b8", 1)])

    tell(story)


def test_who_joins_is_told_what_there_is_and_who_is_late_the_last_only(tell: Tell) -> None:
    def story(bench: Bench) -> None:
        bench.stability(1, "a", "b")
        first = bench.join(STABILITY, MEMBERS)
        assert bench.told(first) == [("a", 1), ("b", 1), 1]
        late = bench.join(STABILITY, buckets=frozenset({"b", "other"}))
        for number in (2, 3):
            bench.stability(number, "b")
            bench.look()
        assert bench.told(late) == [("b", 3)]
        bench.node.timestamps = boards.EMPTY
        bench.look()
        assert bench.told(bench.join(STABILITY)) == []

    tell(story)


def test_nobody_looks_where_nobody_watches(tell: Tell) -> None:
    def story(bench: Bench) -> None:
        for _ in range(2):
            one, other = bench.join(MEMBERS), bench.join(STABILITY, buckets=frozenset({"a"}))
            looking = bench.extras._looking
            bench.extras.leave(one)
            assert bench.extras._looking is looking is not None
            bench.extras.leave(other)
            assert bench.extras._looking is None
            assert bench.extras._of_bucket == {}
        assert bench.viewed == 2

    tell(story)


# -- over HTTP -----------------------------------------------------------------------------------

MANY = 50


class Served:
    """A node with many who watch its members, and how often these were looked at."""

    def __init__(self, patch: pytest.MonkeyPatch, look_s: float) -> None:
        self.asked, self.epoch = 0, 1
        self.shell = LoneShell()
        self.shell.changes = Feed()
        members = views.members

        def counted(node: Any) -> dict[str, Any]:
            self.asked += 1
            return {**members(node), "epoch": self.epoch}

        patch.setattr(views, "members", counted)
        # Watchers take turns at a lock, which belongs to the loop that it was first waited for in.
        patch.setattr(lone_shell.Served, "free", [])
        patch.setattr(module, "LOOK_S", look_s)

    async def epochs(self, meanwhile: Callable[[], bool]) -> list[list[int]]:
        """Return which epochs each is told, until `meanwhile` says so while all are watching."""
        async with self.shell.client() as client, asyncio.timeout(60):
            paths = ["/v1/watch?kind=members"] * MANY
            watches = [asyncio.ensure_future(client.get(path)) for path in paths]
            while len(self.shell.changes) < MANY or not meanwhile():
                await asyncio.sleep(0)
            self.shell.changes.close()
            return [self._epochs((await one).text) for one in watches]

    @staticmethod
    def _epochs(text: str) -> list[int]:
        data = [event.partition("data: ")[2] for event in text.split("\n\n")[:-1]]
        return [told["epoch"] for told in map(json.loads, data) if "epoch" in told]


def test_many_who_watch_members_are_served_by_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch, 3_600.0)
    turns = 0

    def meanwhile() -> bool:
        nonlocal turns
        turns += 1
        return turns > 20 * MANY

    assert asyncio.run(served.epochs(meanwhile)) == [[1]] * MANY
    assert served.asked == 1


def test_who_watches_members_is_told_of_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch, 0.0)
    before = 0

    def meanwhile() -> bool:
        nonlocal before
        before = before or served.asked
        served.epoch = 2
        return served.asked > before + 9

    for told in asyncio.run(served.epochs(meanwhile)):
        assert told[-1] == 2
        assert len(told) == len({*told})
