"""Scans that wait look again as soon as something was applied, and not all of them at once."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from indexer_sim.pipeline.mutation_reader import Follows, Queued
from indexer_sim.process import Indexer, Options
from indexer_sim.scans.waiting import WOKEN_MAX, Waiting

LONG_S = 30.0


def test_a_change_wakes_who_waits() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.begin()
        waits = asyncio.create_task(waiting.wait(waiting.changes, LONG_S))
        await asyncio.sleep(0)
        threading.Thread(target=waiting.changed).start()
        await asyncio.wait_for(waits, LONG_S / 2)

    asyncio.run(run())


def test_a_change_that_came_after_looking_is_not_waited_for() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.begin()
        seen = waiting.changes
        waiting.changed()
        await asyncio.wait_for(waiting.wait(seen, LONG_S), LONG_S / 2)

    asyncio.run(run())


def test_who_has_waited_long_enough_looks_again_and_leaves_nothing_behind() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.begin()
        await waiting.wait(waiting.changes, 0.001)
        assert not len(waiting)

    asyncio.run(run())


def test_of_many_that_wait_some_look_again_each_time_in_turn() -> None:
    async def run() -> None:
        waiting, woken = Waiting(), list[int]()
        waiting.begin()

        async def scan(number: int) -> None:
            while True:
                await waiting.wait(waiting.changes, LONG_S)
                woken.append(number)

        scans = [asyncio.create_task(scan(number)) for number in range(WOKEN_MAX + 3)]
        for _ in range(2):
            await asyncio.sleep(0.001)
            waiting.changed()
            await asyncio.sleep(0.001)
        some = [*range(WOKEN_MAX + 3), *range(WOKEN_MAX - 3)]
        assert woken == some
        for each in scans:
            each.cancel()
        await asyncio.gather(*scans, return_exceptions=True)

    asyncio.run(run())


def test_changes_while_the_loop_was_busy_wake_as_many_as_one() -> None:
    async def run() -> None:
        waiting = Waiting()
        waiting.begin()
        scans = [
            asyncio.create_task(waiting.wait(waiting.changes, LONG_S)) for _ in range(2 * WOKEN_MAX)
        ]
        await asyncio.sleep(0)
        for left in (WOKEN_MAX, 0):
            for _ in range(3):
                waiting.changed()
            await asyncio.sleep(0.01)
            assert len(waiting) == left
        await asyncio.gather(*scans)

    asyncio.run(run())


def test_a_change_after_the_end_of_the_loop_is_for_nobody() -> None:
    waiting, loop = Waiting(), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # It complains of who is left.

    async def begin() -> None:
        waiting.begin()

    loop.run_until_complete(begin())
    left = loop.create_task(waiting.wait(waiting.changes, LONG_S))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert len(waiting) == 1
    waiting.changed()
    assert not left.done()


def test_scans_of_an_indexer_hear_what_its_applier_applies(tmp_path: Path) -> None:
    options = Options(
        indexer=1, cluster="c", bootstrap_servers="127.0.0.1:1", data_dir=tmp_path / "1"
    )
    indexer = Indexer(options, threading.Event())
    try:
        indexer.data.queue.put([Queued(indexer.storage.epoch, Follows("T"))], 1)
        indexer.data.applier.start()
        deadline_s = time.monotonic() + LONG_S
        while not indexer.scans.waiting.changes and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert indexer.scans.waiting.changes
    finally:
        indexer.data.applier.end()
        indexer.data.applier.join()
        indexer.scans.stop()
        indexer.storage.close()
