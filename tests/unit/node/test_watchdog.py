"""The watchdog ends a process that hangs, and no other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from coordinator.node import watchdog
from coordinator.node.watchdog import EXIT_HUNG, Watchdog


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_S", 0.01)


def looked_at(turns: Callable[[], int], looks: int) -> list[int]:
    """Let a watchdog with a patience of five looks look this often; return what it ended with."""
    ends: list[int] = []
    enough = threading.Event()
    count = itertools.count(1)

    def counted() -> int:
        if next(count) >= looks:
            enough.set()
        return turns()

    def end(code: int) -> None:
        ends.append(code)
        enough.set()

    dog = Watchdog(counted, 0.05, end)
    assert enough.wait(60)
    dog.stop()
    return ends


def test_a_loop_that_stands_still_is_ended_and_its_place_is_told(capfd) -> None:
    assert looked_at(lambda: 7, 10) == [EXIT_HUNG]
    assert "Thread" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_loop_that_turns_slowly_is_left_alone() -> None:
    numbers = itertools.count()
    assert looked_at(lambda: next(numbers) // 4, 60) == []
