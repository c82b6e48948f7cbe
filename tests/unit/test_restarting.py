"""For how long who takes part in a restart must not change: while an answer may come."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.restarting import Restarting
from coordinator.core.stream_records import RestartTimestamp
from coordinator.core.timestamp_board import EMPTY, fold
from coordinator.core.types import Instant
from coordinator.core.vectors import Vector

WAIT_MS = 2_000
HELD = Vector([7, 7], [5, 9])


class Master:
    """What `Restarting` knows of a master."""

    def __init__(self) -> None:
        config = SimpleNamespace(restart_wait_ms=WAIT_MS, restart_pause_ms=10_000)
        self.asked: list[Any] = []
        self.epoch = 3
        self.building = SimpleNamespace(logs=lambda bucket: {})
        self.node = SimpleNamespace(
            config=config,
            now=Instant(mono_ms=1_000, wall_ms=1_000),
            timestamps=EMPTY,
            application=object(),
            alive=lambda heartbeat: True,
            emit=self.asked.append,
        )

    def advance(self, by_ms: int) -> None:
        now = self.node.now
        self.node.now = Instant(mono_ms=now.mono_ms + by_ms, wall_ms=now.wall_ms + by_ms)

    def answer(self) -> None:
        question = self.asked[-1].record
        vbuuids, seqnos = HELD.to_bytes()
        record = RestartTimestamp(
            *("travel", 1, question.round, (0, 1), vbuuids, seqnos, (), (), "asked", 1)
        )
        self.node.timestamps = fold(self.node.timestamps, record, self.node.now).board


@pytest.fixture
def master() -> Master:
    return Master()


@pytest.fixture
def restarting(master: Master) -> Restarting:
    found: Any = Restarting(master)  # type: ignore[arg-type]
    assert found.vector("travel", 2, [HELD], (1,)) is None
    assert found.is_asking
    return found  # type: ignore[no-any-return]


def test_it_asks_until_the_answer_is_there(master: Master, restarting: Restarting) -> None:
    master.answer()
    assert not restarting.is_asking
    assert restarting.vector("travel", 2, [HELD], (1,)) == HELD


def test_it_asks_no_longer_than_the_wait(master: Master, restarting: Restarting) -> None:
    """The renewal may be wanted for longer, as nobody may be there who serves the streams."""
    master.advance(WAIT_MS - 1)
    assert restarting.is_asking
    master.advance(1)
    assert not restarting.is_asking
    assert restarting.vector("travel", 2, [HELD], (1,)) == HELD
    assert len(master.asked) == 1
