"""A backfill that is slowed down: the projector sleeps meanwhile, and sends what it has read."""

from __future__ import annotations

import threading
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.catalog.rebalance_settings import RebalanceSettings
from coordinator.core.model.stream_records import BACKFILL, MAINTENANCE
from coordinator.runtime.gathering import Gathering
from projector_sim.projector import process
from projector_sim.projector.credits import LEAST_BYTES, QUIET_BYTES
from projector_sim.projector.process import Line, Projector, gathering_of
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
    return Line(
        run=run, stream=stream, router=router, gathering=gathering_of(BACKFILL), flushed_s=now_s
    )


@pytest.fixture
def projector(line: Line) -> Any:
    """A projector that has this line only: neither Kafka nor a store is asked."""
    made: Any = object.__new__(Projector)
    made._lines, made._sink = [line], SimpleNamespace(failed="")
    made._moving = RebalanceSettings(documents_per_s=100)
    made._written_ms = 0
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


class Writer(Router):
    """Every piece has one document, and is sent at once; what is told has an ordinal."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run, self.probes = run, 0

    def route(self, kind: int, body: bytes) -> None:
        self.documents += 1
        self.sent_bytes += LEAST_BYTES // 4
        self.run.ordinal += 1

    def probe(self) -> None:
        self.probes += 1
        self.run.ordinal += 1


def written(bucket: str, kind: str) -> Any:
    """Return a line of which there is ever more to read."""
    stream: Any = Stream()
    stream.pieces = deque([[(Kind.MUTATIONS, b"")]] * 10_000)
    run: Any = SimpleNamespace(
        bucket=bucket, kind=kind, refused={}, heard_ms=0, ordinal=0, connection=7
    )
    run.carried = {1: make_index(1, 1)}
    made: Any = Writer(run)
    never = Gathering(1e9, 1e9, 1)
    return Line(run=run, stream=stream, router=made, gathering=never, flushed_s=time.monotonic())


@pytest.mark.parametrize("writes", ["a", "b", ""])
def test_the_window_is_small_where_anybody_writes_and_larger_where_nobody_does(
    projector: Any, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    """Every mark takes 4 s, and a document is written each second, to this bucket or to another."""
    now_ms = 1_000_000
    monkeypatch.setattr(process, "_mono_ms", lambda: now_ms)
    backfill = written("a", BACKFILL)
    lines = {name: written(name, MAINTENANCE) for name in ("a", "b")}
    beside = lines["a"]
    projector._lines, projector._written_ms = [backfill, *lines.values()], now_ms
    projector.planner = SimpleNamespace(
        carrier=lambda run: beside.run,
        keeps_others_waiting=lambda run: False,
        read_by_hosts=lambda run, now: read,
    )
    for _ in range(20):
        read = 0
        for _ in range(400):
            projector._drain(backfill, 0.0)
        assert backfill.credit.is_spent, "all that may be is on its way"
        marked = beside.run.ordinal
        for _ in range(4):
            now_ms += 1_000
            if writes:
                projector._drain(lines[writes], 0.0)
        read = marked - 1
        projector._may_read(backfill)
        assert backfill.credit.is_waiting, "the last mark was not read yet"
        read = marked
        projector._may_read(backfill)
        assert not backfill.credit.is_waiting
    assert beside.router.probes > 20
    assert (backfill.credit.window_bytes == LEAST_BYTES) == bool(writes)
    assert (backfill.credit.window_bytes >= QUIET_BYTES) == (not writes)
