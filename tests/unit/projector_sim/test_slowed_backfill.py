"""A backfill that is slowed down: the projector sleeps meanwhile, and sends what it has read."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.catalog.rebalance_settings import RebalanceSettings
from coordinator.core.model.stream_records import BACKFILL
from projector_sim.projector.process import FLUSH_BACKFILL_S, Line, Projector
from projector_sim.projector.stream_planner import StreamPlanner
from projector_sim.protocol.frames import Kind
from tests.support.indexes import make_index

PIECE = 300
"""So many documents one piece of what is read has."""


class Stream:
    """What a store has sent: pieces of one frame."""

    is_over = False
    reason = ""

    def __init__(self) -> None:
        self.pieces = deque([[(Kind.MUTATIONS, b"")]] * 10)

    def poll(self) -> Any:
        return self.pieces.popleft() if self.pieces else None


class Router:
    """Counts."""

    def __init__(self) -> None:
        self.documents = self.flushed = self.sent_bytes = 0

    def route(self, kind: int, body: bytes) -> None:
        self.documents += PIECE

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture
def line() -> Any:
    run: Any = SimpleNamespace(
        bucket="b", kind=BACKFILL, carried={1: make_index(1, 1, part_of=9)}, refused={}, heard_ms=0
    )
    stream: Any = Stream()
    router: Any = Router()
    now_s = time.monotonic()
    return Line(run=run, stream=stream, router=router, flush_s=FLUSH_BACKFILL_S, flushed_s=now_s)


@pytest.fixture
def projector(line: Line) -> Any:
    """A projector that has this line only: neither Kafka nor a store is asked."""
    made: Any = object.__new__(Projector)
    made._lines, made._sink = [line], SimpleNamespace(failed="")
    made._moving = RebalanceSettings(documents_per_s=100)
    made._dirty, made._planned_s, made._beat_due_s = False, 0.0, time.monotonic() + 3_600
    made._wake = threading.Event()
    made.planner = StreamPlanner(0, 1, lambda: 1, lambda index: "")
    return made


def turns(projector: Any, seconds: float) -> int:
    """Let the projector serve its line; return how often it has looked."""
    count, end_s = 0, time.monotonic() + seconds
    while (left := end_s - time.monotonic()) > 0:
        count += 1
        if not projector._feed():
            projector._wake.wait(min(projector._idle_s(), left))
    return count


def test_it_sleeps_and_sends_what_it_has_read(projector: Any, line: Any) -> None:
    assert turns(projector, 0.5) < 50
    assert line.router.documents == PIECE
    assert line.router.flushed == 1
    assert not line.waits


def test_it_hears_that_a_connection_is_over(projector: Any, line: Any) -> None:
    turns(projector, 0.05)
    over: list[str] = []
    projector._break_off = lambda line, reason: over.append(reason)
    line.stream.is_over, line.stream.reason = True, "broken"
    projector._feed()
    assert over == ["broken"]


def test_another_setting_counts_at_once(projector: Any, line: Any) -> None:
    turns(projector, 0.05)
    projector.slow_down(RebalanceSettings(documents_per_s=0))
    projector._feed()
    assert line.router.documents > PIECE


@pytest.mark.parametrize("is_part", [False, True])
def test_a_new_index_of_the_bucket_does_not_wait_for_it(
    projector: Any, line: Any, is_part: bool
) -> None:
    index = make_index(2, 1, bucket="b", state="backfill", part_of=9 * is_part)
    projector.planner.observe(index.key, index)
    turns(projector, 0.3)
    assert (line.router.documents > PIECE) != is_part
