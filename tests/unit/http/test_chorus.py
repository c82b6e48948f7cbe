"""Watchers that rest are sent what is new together, and leave the loop to others for as long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.http import chorus as chorus_module
from coordinator.http.chorus import PORTION, Chorus, rest_of


class Watcher:
    """Sings in no time, and does something then."""

    def __init__(self, sung: list[Watcher], then: Callable[[], object] = lambda: None) -> None:
        self._sung, self._then = sung, then

        self.woken = 0

    def sing(self) -> int:
        self._sung.append(self)
        self._then()
        return 1

    def wake(self) -> None:
        self.woken += 1


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_who_is_called_often_sings_once_and_in_the_order_of_the_calls() -> None:
    async def scenario() -> None:
        chorus, sung = Chorus(), []
        first, second = Watcher(sung), Watcher(sung)
        for one in (first, second, first):
            chorus.call(one)
        assert sung == [], "not before the node has done what it is doing"
        await turns(3)
        assert sung == [first, second]

    asyncio.run(scenario())


def test_who_is_called_within_a_round_sings_in_the_next_one() -> None:
    async def scenario() -> None:
        chorus, sung = Chorus(), []
        more = Watcher(sung)
        first = Watcher(sung, lambda: chorus.call(more) if len(sung) == 1 else None)
        chorus.call(first)
        while len(sung) < 2:
            await asyncio.sleep(0)
        assert sung == [first, more]

    asyncio.run(scenario())


def test_of_many_watchers_some_sing_before_the_loop_does_something_else() -> None:
    async def scenario() -> None:
        chorus, sung = Chorus(), []
        for _ in range(2 * PORTION + 1):
            chorus.call(Watcher(sung))
        seen = []
        while len(sung) <= 2 * PORTION:
            await asyncio.sleep(0)
            seen.append(len(sung))
        assert {PORTION, 2 * PORTION} < set(seen)

    asyncio.run(scenario())


def test_whatever_one_watcher_does_the_others_sing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        chorus, sung = Chorus(), []
        failing = Watcher(sung, lambda: 1 // 0)
        chorus.call(failing)
        chorus.call(Watcher(sung))
        await turns(3)
        chorus.call(Watcher(sung))
        while len(sung) < 3:
            await asyncio.sleep(0)
        assert failing.woken == 1, "its own task tries again"

    asyncio.run(scenario())
    assert "could not be sent" in caplog.text


def test_who_has_sung_is_woken_for_a_bookmark_once_nothing_came_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chorus_module, "BOOKMARK_SOON_S", 0.4)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        chorus, sung = Chorus(), []
        early, late, gone = Watcher(sung), Watcher(sung), Watcher(sung)
        for one in (early, gone):
            chorus.call(one)
        begun_s = loop.time()
        while not early.woken:
            chorus.call(late)
            await asyncio.sleep(0.001)
            chorus.forget(gone)
        assert loop.time() - begun_s >= 0.4
        assert (late.woken, gone.woken) == (0, 0), "it sings again and again"
        while not late.woken:
            await asyncio.sleep(0.001)

    asyncio.run(scenario())


def test_after_a_round_none_begins_before_the_loop_was_left_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chorus_module, "REST_FACTOR", 3.0)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        chorus, sung = Chorus(), []
        times: list[float] = []

        def busy() -> None:
            times.append(loop.time())
            while loop.time() < times[-1] + 0.02:
                pass
            times.append(loop.time())

        one = Watcher(sung, busy)
        chorus.call(one)
        while len(times) < 2:
            await asyncio.sleep(0)
        chorus.call(one)
        while len(times) < 4:
            await asyncio.sleep(0)
        assert times[2] - times[1] >= 0.06

    asyncio.run(scenario())


def test_however_many_come_and_go_there_is_one_timer_for_bookmarks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chorus_module, "BOOKMARK_SOON_S", 0.05)
    looks: list[float] = []

    class Looking(Chorus):
        def _look(self) -> None:
            looks.append(asyncio.get_running_loop().time())
            super()._look()

    async def scenario() -> None:
        chorus, sung = Looking(), []
        for _ in range(20):
            one = Watcher(sung)
            chorus.call(one)
            while sung[-1:] != [one]:
                await asyncio.sleep(0)
            chorus.forget(one)
        stays = Watcher(sung)
        while len(looks) < 5:
            chorus.call(stays)
            await asyncio.sleep(0.001)
        assert looks[-1] - looks[0] > 0.9 * 0.05 * (len(looks) - 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("took_s", "changes", "rest_s"),
    [(0.0, 10, 0.0), (0.02, 1, 0.006), (0.02, 10, 0.006), (0.02, 60, 0.106), (0.02, 256, 0.25)],
)
def test_the_longer_a_round_takes_and_the_more_it_sends_the_later_is_the_next(
    took_s: float, changes: int, rest_s: float
) -> None:
    """1,000 watchers of 1,500 changes a second left nothing of the loop to the node."""
    assert rest_of(took_s, changes) == pytest.approx(rest_s)
