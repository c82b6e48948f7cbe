"""How long an application waits after a batch: by a clock that nobody sets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.timestamps.bucket_state import BucketState, Question
from coordinator.core.timestamps.progress import NextOffset, TimestampProgress
from coordinator.kafka.readers import BEGINNING
from streaming.archive import job
from streaming.archive.job import ArchiveOptions, Archiver
from streaming.timestamps import application
from streaming.timestamps.application import Application, Options
from streaming.timestamps.query_state import QueryState

START_S = 1_000.0
NOWHERE = "127.0.0.1:1"
NOW_MS = 1_700_000_000_000


class Clock(threading.Event):
    """What the application waits by. A wall clock is not there: who looked at it would fail."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.waited: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(round(max(0.0, timeout), 6))
        self.now_s += max(0.0, timeout)
        return False


class Lookout:
    """Waits by that clock. If it `calls`, something comes after 50 ms of each wait."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.calls = False
        self.places: list[dict[tuple[str, int], int]] = []

    def wait(
        self, places: dict[tuple[str, int], int], timeout_s: float, stopping: threading.Event
    ) -> bool:
        assert stopping is self.clock
        self.places.append(places)
        self.clock.wait(0.05 if self.calls else timeout_s)
        return self.calls


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (application, job):
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=made.monotonic, monotonic_ns=int)
        )
    return made


def timestamps(
    clock: Clock, work: Callable[[], bool], folder: Path, **options: Any
) -> Callable[[], None]:
    """Return what computes a batch, whose work tells whether it was quiet."""
    given = Options(
        cluster="c", bootstrap_servers=NOWHERE, data_dir=folder, trigger_ms=100, **options
    )
    made = an_application(clock, given)
    made._carry_out = lambda _: work()  # type: ignore[method-assign]
    frame: Any = None
    return lambda: made._on_batch(frame, 0)


def an_application(clock: Clock, options: Options) -> Application:
    made = Application(options, clock, threading.Event())
    made._lookout = Lookout(clock)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize("took_s", [0.0, 0.03, 0.1, 7.0])
def test_batches_with_work_begin_a_period_apart_or_when_the_last_one_ends(
    clock: Clock, tmp_path: Path, took_s: float
) -> None:
    def work() -> bool:
        clock.now_s += took_s
        return False

    batch = timestamps(clock, work, tmp_path)
    for _ in range(3):
        batch()
    assert clock.waited == [round(max(0.0, 0.1 - took_s), 6)] * 3
    assert clock.now_s == pytest.approx(START_S + 3 * max(0.1, took_s))


@pytest.mark.parametrize(
    ("tick_s", "waits"),
    [(None, 0.1), (-0.01, 0.1), (0.05, 0.1), (0.09, 0.105), (0.16, 0.175), (0.161, 0.1), (5, 0.1)],
)
def test_a_batch_has_the_tick_that_comes_soon_after_it_might_begin(
    clock: Clock, tmp_path: Path, tick_s: float | None, waits: float
) -> None:
    """What the tick ends would be told a batch later."""
    options = Options(cluster="c", bootstrap_servers=NOWHERE, data_dir=tmp_path, trigger_ms=100)
    made = an_application(clock, options)
    made._carry_out = lambda _: False  # type: ignore[method-assign]
    due_s = None if tick_s is None else START_S + tick_s
    made._ticker.due_s = lambda: due_s  # type: ignore[method-assign]
    frame: Any = None
    made._on_batch(frame, 0)
    assert clock.waited == [waits]


@pytest.mark.parametrize(("took_s", "sparks_s"), [(0.03, 0.05), (0.03, 0.2), (0.08, 0.05)])
def test_what_spark_does_between_two_batches_is_part_of_the_period(
    clock: Clock, tmp_path: Path, took_s: float, sparks_s: float
) -> None:
    """With 50 ms for that, a period of 100 ms was one of 150."""

    def work() -> bool:
        clock.now_s += took_s
        return False

    batch = timestamps(clock, work, tmp_path)
    begun: list[float] = []
    for _ in range(4):
        clock.now_s += sparks_s
        begun.append(clock.now_s)
        batch()
    _, *periods = (after - before for before, after in pairwise(begun))
    assert periods == pytest.approx([max(0.1, took_s + sparks_s)] * 2)


def test_a_batch_that_waited_for_records_does_not_hurry_the_next_one(
    clock: Clock, tmp_path: Path
) -> None:
    batch = timestamps(clock, lambda: False, tmp_path)
    for sparks_s in (0.05, 0.05, 7.0, 0.05, 0.05):
        clock.now_s += sparks_s
        batch()
    assert clock.waited == [0.1, *[0.05] * 4]


def pauses(clock: Clock, batch: Callable[[], None], number: int) -> list[float]:
    """Compute so many batches; return how long it took until each next one might begin."""
    found = []
    for _ in range(number):
        begun_s = clock.now_s
        batch()
        found.append(round(clock.now_s - begun_s, 6))
    return found


def test_quiet_batches_become_rare_and_work_ends_that(clock: Clock, tmp_path: Path) -> None:
    quiet = iter([True] * 6 + [False] + [True] * 2)
    batch = timestamps(clock, lambda: next(quiet), tmp_path)
    assert pauses(clock, batch, 9) == [0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 0.1, 0.2, 0.4]


PLACES = {("c.sync", 0): 7, ("c.sync", 1): BEGINNING}


class Quiet:
    """An application of which every batch is quiet, but if it is told otherwise."""

    def __init__(self, clock: Clock, folder: Path, trigger_ms: int = 100) -> None:
        options = Options(
            cluster="c", bootstrap_servers=NOWHERE, data_dir=folder, trigger_ms=trigger_ms
        )
        self.made = an_application(clock, options)
        self.made._carry_out = lambda _: self.is_quiet  # type: ignore[method-assign]
        self.made._watched = {("c.sync", 0): 5, ("c.sync", 1): BEGINNING}
        self.is_quiet = True
        self.lookout: Any = self.made._lookout
        self.knows()

    def knows(self, *states: BucketState) -> None:
        read = (NextOffset("c.sync", 0, 7), NextOffset("c.tick", 0, 9))
        progress = TimestampProgress(NOW_MS, read)
        buckets = {state.bucket: state for state in states}
        self.made._query_state = QueryState("c", progress=progress, states=buckets)

    def batch(self) -> None:
        frame: Any = None
        self.made._on_batch(frame, 0)


@pytest.fixture
def quiet(clock: Clock, tmp_path: Path) -> Quiet:
    return Quiet(clock, tmp_path)


def test_in_a_long_pause_somebody_looks_out_from_where_reading_has_got_to(
    clock: Clock, quiet: Quiet
) -> None:
    assert pauses(clock, quiet.batch, 3) == [0.2, 0.4, 0.8]
    assert quiet.lookout.places == [PLACES]


def test_what_comes_ends_a_pause_once_and_not_again_before_a_batch_has_it(
    clock: Clock, quiet: Quiet
) -> None:
    """Else what no batch ever has would keep the application busy."""
    quiet.lookout.calls = True
    ended, not_ended = 0.15, 1.1
    assert pauses(clock, quiet.batch, 6) == [0.2, 0.4, ended, not_ended, ended, not_ended]
    quiet.is_quiet = False
    assert pauses(clock, quiet.batch, 1) == [0.1]
    quiet.is_quiet = True
    assert pauses(clock, quiet.batch, 3) == [0.2, 0.4, ended]


def test_nothing_that_comes_ends_a_period(clock: Clock, tmp_path: Path) -> None:
    """It paces batches with work, and those without."""
    rare = Quiet(clock, tmp_path, trigger_ms=2_000)
    rare.lookout.calls = True
    assert pauses(clock, rare.batch, 5) == [2.0, 2.0, 2.0, 2.0, 2.05]
    rare.is_quiet = False
    assert pauses(clock, rare.batch, 2) == [2.0, 2.0]


@pytest.mark.parametrize(
    ("due_ms", "waits"),
    [(-5_000, 1.0), (0, 1.0), (50, 0.1), (300, 0.3), (1_000, 1.0), (60_000, 3.2)],
)
def test_a_pause_ends_when_a_limit_is_over(
    clock: Clock, quiet: Quiet, monkeypatch: pytest.MonkeyPatch, due_ms: int, waits: float
) -> None:
    """What was due already, and came to nothing, waits for a heartbeat: for a second at most."""
    monkeypatch.setattr(application, "next_due_ms", lambda state: NOW_MS + due_ms)
    assert pauses(clock, quiet.batch, 6)[-1] == waits


def test_while_a_question_is_open_no_pause_is_long(clock: Clock, quiet: Quiet) -> None:
    """An indexer's heartbeat answers it, and ends no pause."""
    state = BucketState.new("b", 1)
    quiet.knows(replace(state, questions=(Question(1, (1,), "a question", NOW_MS),)))
    assert pauses(clock, quiet.batch, 5) == [0.1] * 5


def test_a_bucket_in_which_something_is_always_due_keeps_nobody_busy(
    clock: Clock, quiet: Quiet
) -> None:
    """Empty vbuckets on a new branch, of which there is nothing to tell."""
    state = BucketState.new("b", 1)
    places = state.places.copy()
    places["vbuuid"] = 99
    quiet.knows(replace(state, places=places, published_ms=NOW_MS - 60_000))
    assert pauses(clock, quiet.batch, 6)[-1] == 1.0


def test_nobody_waits_who_only_reads_what_is_there(clock: Clock, tmp_path: Path) -> None:
    timestamps(clock, lambda: False, tmp_path, until_read=True)()
    assert clock.waited == []


@pytest.mark.parametrize("took_s", [0.0, 4.0, 60.0])
def test_the_archive_begins_a_batch_each_period(
    clock: Clock, tmp_path: Path, took_s: float
) -> None:
    options = ArchiveOptions(
        cluster="c", bootstrap_servers=NOWHERE, data_dir=tmp_path, archive=str(tmp_path)
    )
    made = Archiver(options, clock, threading.Event())

    def archive(*_: Any) -> None:
        clock.now_s += took_s

    made._archive = archive  # type: ignore[assignment]
    table: Any = object()
    made._tables = (table,)
    frame: Any = SimpleNamespace(persist=lambda: None, unpersist=lambda: None)
    for _ in range(2):
        made._on_batch(frame, 0)
    assert clock.waited == [max(0.0, 10.0 - took_s)] * 2
