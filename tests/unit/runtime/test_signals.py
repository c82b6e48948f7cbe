"""A signal to stop is heard wherever the main thread stands, and however often it comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest
import uvloop

from coordinator.runtime.signals import STOPS, ignore_stops, on_stop, on_stop_in

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_may_come_while_the_main_thread_holds_the_lock_that_stopping_takes(
    number: signal.Signals,
) -> None:
    """An event's `set` and `wait` hold its lock for a moment: a handler must not wait for it."""
    lock, stops = threading.Lock(), threading.Semaphore(0)

    def stop() -> None:
        assert lock.acquire(timeout=DEADLINE_S), "whoever has the lock waits for this handler"
        lock.release()
        stops.release()

    on_stop(stop)
    with lock:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
    assert stops.acquire(timeout=DEADLINE_S)


def test_however_many_signals_come_the_process_goes_on_to_its_end() -> None:
    stopping = threading.Event()
    on_stop(stopping.set)
    for _ in range(5_000):
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopping.wait(DEADLINE_S)


def test_ctrl_c_and_a_supervisor_are_both_heard() -> None:
    assert set(STOPS) == {signal.SIGTERM, signal.SIGINT}


def test_who_ends_hears_neither() -> None:
    ignore_stops()
    assert {signal.getsignal(number) for number in STOPS} == {signal.SIG_IGN}


@pytest.mark.parametrize("number", STOPS)
def test_an_idle_loop_hears_a_signal(number: signal.Signals) -> None:
    async def until_asked_to_stop() -> None:
        stopping = asyncio.Event()
        on_stop_in(asyncio.get_running_loop(), stopping.set)
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        await asyncio.wait_for(stopping.wait(), DEADLINE_S)

    uvloop.run(until_asked_to_stop())


def test_a_signal_after_the_loop_is_closed_is_nothing() -> None:
    async def listen() -> None:
        on_stop_in(asyncio.get_running_loop(), lambda: None)

    uvloop.run(listen())
    failed: list[object] = []
    before, threading.excepthook = threading.excepthook, failed.append
    try:
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGTERM)
        done = threading.Event()
        on_stop(done.set)
        os.kill(os.getpid(), signal.SIGTERM)
        assert done.wait(DEADLINE_S)
    finally:
        threading.excepthook = before
    assert not failed


def test_there_is_no_moment_in_which_a_signal_kills() -> None:
    """Not while the process ends, either: what a loop does with handlers puts no default back."""
    seen: set[object] = set()

    def look(*_: object) -> None:
        seen.update(signal.getsignal(number) for number in STOPS)

    async def life() -> None:
        on_stop_in(asyncio.get_running_loop(), lambda: None)
        sys.setprofile(look)
        ignore_stops()

    try:
        uvloop.run(life())
    finally:
        sys.setprofile(None)
    assert signal.SIG_IGN in seen
    assert not seen & {signal.SIG_DFL, signal.default_int_handler}
