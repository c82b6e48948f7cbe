"""Where a query begins, and which of Spark's batches count: those that follow on the books."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model.types import Offset
from coordinator.core.timestamps.progress import NextOffset, TimestampProgress
from coordinator.kafka.readers import BEGINNING
from streaming.spark.session import LOGGING, java_options
from streaming.timestamps import application
from streaming.timestamps.application import Application, GapError, Options
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.query_state import BatchResult, QueryState
from streaming.timestamps.rows import RawRow, Rows, Span
from streaming.timestamps.state_store import DoubtError, RefusedError

SYNC, TICK = ("c.sync", 0), ("c.tick", 0)


@pytest.mark.parametrize(
    ("bounds", "begins", "said"),
    [
        ((0, 9), 5, ""),
        ((5, 5), 5, ""),
        ((6, 9), BEGINNING, "offsets 5 to 5 were deleted before they were read [offsets_lost]"),
        ((0, 4), BEGINNING, "for it ends at 4, and was read up to 5 before [topic_replaced]"),
        ((0, 0), BEGINNING, "for it ends at 0, and was read up to 5 before [topic_replaced]"),
        ((9, 9), BEGINNING, "offsets 5 to 8 were deleted before they were read [offsets_lost]"),
    ],
)
def test_a_query_begins_where_the_books_stand_or_says_why_not(
    bounds: tuple[int, int],
    begins: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = Options(cluster="c", bootstrap_servers="127.0.0.1:1", data_dir=tmp_path, tick_ms=0)
    made = Application(options, threading.Event(), threading.Event())
    read = TimestampProgress(1, (NextOffset(*SYNC, 5),))
    made._query_state = QueryState("c", progress=read)
    assert made._starting({SYNC: bounds, TICK: (0, 7)}) == {SYNC: begins, TICK: BEGINNING}
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)
    # Where it is read anew, no older offset stands in the way.
    assert made._query_state.progress.offsets == (() if said else (NextOffset(*SYNC, 5),))


@pytest.fixture
def halfway(tmp_path: Path) -> Application:
    """An application whose books have a partition up to offset 5."""
    options = Options(cluster="c", bootstrap_servers="127.0.0.1:1", data_dir=tmp_path, tick_ms=0)
    made = Application(options, threading.Event(), threading.Event())
    made._query_state = QueryState("c", progress=TimestampProgress(1, (NextOffset(*SYNC, 5),)))
    return made


def rows_from(place: tuple[str, int], first: int) -> Rows:
    return Rows(
        1,
        (),
        (RawRow(INPUTS.index(place[0][2:]), place[1], Offset(first), None, b""),),
        (Span(INPUTS.index(place[0][2:]), place[1], first, first + 1),),
    )


@pytest.mark.parametrize(
    ("first", "low", "said"),
    [
        (5, 0, ""),
        (9, 9, "c.sync, partition 0: offsets 5 to 8 were deleted before they were read [offs"),
        (9, 7, "c.sync, partition 0: offsets 5 to 6 were deleted before they were read [offs"),
        (9, 0, ""),
    ],
)
def test_what_is_deleted_while_the_query_runs_is_told_of(
    first: int,
    low: int,
    said: str,
    halfway: Application,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spark says nothing, and goes on; offsets that were never records are no loss."""
    monkeypatch.setattr(application, "bounds", lambda *_: {SYNC: (low, 20)})
    halfway._check_offsets(rows_from(SYNC, first))
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)


def test_records_that_were_read_before_are_a_gap(halfway: Application) -> None:
    """The topic was made anew while the query runs: what is there is to be read from its start."""
    with pytest.raises(GapError, match="partition 0: offset 4 comes after 4 was read"):
        halfway._check_offsets(rows_from(SYNC, 4))


def test_what_spark_may_log_is_said_in_a_file_that_is_there() -> None:
    """Without it Spark falls back to what it came with, and tells everything."""
    assert LOGGING.is_file()
    assert "rootLogger.level" in LOGGING.read_text()


def read_on(halfway: Application) -> BatchResult:
    """Return what a batch that has read one record more leads to."""
    progress = TimestampProgress(1, (NextOffset(*SYNC, Offset(6)),))
    return BatchResult(QueryState("c", progress=progress), [])


class Refusing:
    """A state store that never takes anything."""

    def __init__(self, error: Exception, found: QueryState) -> None:
        self.error, self.found, self.commits = error, found, 0

    def commit(self, _: Any) -> None:
        self.commits += 1
        raise self.error

    def open(self) -> QueryState:
        return self.found


@pytest.mark.thorough
def test_what_is_never_written_is_given_up_in_time(
    halfway: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried again without a pause, for ever."""
    monkeypatch.setattr(application, "SETTLE_S", 0.3)
    monkeypatch.setattr(application, "PAUSE_S", 0.05)
    store = Refusing(DoubtError("who knows"), halfway._query_state)
    halfway._state_store = store  # type: ignore[assignment]
    with pytest.raises(DoubtError):
        halfway._write(read_on(halfway))
    assert 1 < store.commits <= 8


def test_what_kafka_refuses_is_not_tried_again(halfway: Application) -> None:
    store = Refusing(RefusedError("too large"), halfway._query_state)
    halfway._state_store = store  # type: ignore[assignment]
    with pytest.raises(RefusedError):
        halfway._write(read_on(halfway))
    assert store.commits == 1


@pytest.mark.parametrize("flag", ["-Da=b", "-Da=/my data/x", '-Da="', "-Da=\\", "-Da=' '"])
def test_flags_of_the_jvm_may_have_spaces_and_quotes(flag: str) -> None:
    assert shlex.split(java_options(("-Xint", flag))) == ["-Xint", flag]
