"""Where a query begins, and which of Spark's batches count: those that the books have not yet."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.model.types import Offset
from coordinator.core.timestamps.progress import NextOffset, TimestampProgress
from coordinator.kafka.readers import BEGINNING
from streaming.spark.session import LOGGING
from streaming.timestamps import application
from streaming.timestamps.application import Application, GapError, Options
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.query_state import QueryState, restarted
from streaming.timestamps.rows import RawRow, Rows
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
    read = TimestampProgress("query", 3, 0, 1, (NextOffset(*SYNC, 5),))
    made._query_state = QueryState("c", read)
    assert made._starting({SYNC: bounds, TICK: (0, 7)}) == {SYNC: begins, TICK: BEGINNING}
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)
    # Where it is read anew, no older offset stands in the way.
    assert made._query_state.progress.offsets == (() if said else (NextOffset(*SYNC, 5),))


class ReadError(Exception):
    """The records of a batch were asked for."""


class Frame:
    """A batch of Spark that tells when it is read."""

    def toArrow(self) -> Any:  # noqa: N802
        raise ReadError


@pytest.fixture
def after_batch_3(tmp_path: Path) -> Application:
    """An application whose books have the batches 0 to 3 of the query that runs."""
    options = Options(cluster="c", bootstrap_servers="127.0.0.1:1", data_dir=tmp_path, tick_ms=0)
    made = Application(options, threading.Event(), threading.Event())
    made._query_state = QueryState(
        "c", TimestampProgress("query", 3, 0, 1, (NextOffset(*SYNC, 5),))
    )
    made._query_id = "query"
    return made


@pytest.mark.parametrize("batch", [0, 2, 3])
def test_a_batch_that_the_books_have_is_not_read_again(
    after_batch_3: Application, batch: int
) -> None:
    before = after_batch_3._query_state
    assert after_batch_3._carry_out(Frame(), batch) is False  # type: ignore[arg-type]
    assert after_batch_3._query_state is before


def test_the_next_batch_is_read(after_batch_3: Application) -> None:
    with pytest.raises(ReadError):
        after_batch_3._carry_out(Frame(), 4)  # type: ignore[arg-type]


def test_a_batch_that_does_not_follow_is_a_gap(after_batch_3: Application) -> None:
    with pytest.raises(GapError, match="batch 5, and the state at batch 3 of this query"):
        after_batch_3._carry_out(Frame(), 5)  # type: ignore[arg-type]


def test_of_another_query_only_its_first_batch_follows(after_batch_3: Application) -> None:
    after_batch_3._query_id, after_batch_3._is_fresh = "another", True
    with pytest.raises(ReadError):
        after_batch_3._carry_out(Frame(), 0)  # type: ignore[arg-type]
    for batch in (3, 4):
        with pytest.raises(GapError, match="of another query"):
            after_batch_3._carry_out(Frame(), batch)  # type: ignore[arg-type]


def test_no_batch_of_a_checkpoint_that_the_state_does_not_name_follows(
    after_batch_3: Application,
) -> None:
    """Not its first one either: nobody knows at which offsets that begins."""
    after_batch_3._query_id, after_batch_3._is_fresh = "another", False
    for batch in (0, 4):
        with pytest.raises(GapError, match="is of another query"):
            after_batch_3._carry_out(Frame(), batch)  # type: ignore[arg-type]


def rows_from(place: tuple[str, int], first: int) -> Rows:
    return Rows(
        1,
        (),
        (RawRow(INPUTS.index(place[0][2:]), place[1], Offset(first), None, b""),),
        ((INPUTS.index(place[0][2:]), place[1], first + 1),),
        ((INPUTS.index(place[0][2:]), place[1], first),),
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
    after_batch_3: Application,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Spark says nothing, and goes on; offsets that were never records are no loss."""
    monkeypatch.setattr(application, "bounds", lambda *_: {SYNC: (low, 20)})
    after_batch_3._check_offsets(rows_from(SYNC, first))
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)


def test_records_that_were_read_before_are_a_gap(after_batch_3: Application) -> None:
    """The topic was made anew while the query runs: what is there is to be read from its start."""
    with pytest.raises(GapError, match="partition 0: offset 2 comes after 4 was read"):
        after_batch_3._check_offsets(rows_from(SYNC, 2))


def test_what_spark_may_log_is_said_in_a_file_that_is_there() -> None:
    """Without it Spark falls back to what it came with, and tells everything."""
    assert LOGGING.is_file()
    assert "rootLogger.level" in LOGGING.read_text()


class Refusing:
    """A state store that never takes anything."""

    def __init__(self, error: Exception, found: QueryState) -> None:
        self.error, self.found, self.commits = error, found, 0

    def commit(self, _: Any) -> None:
        self.commits += 1
        raise self.error

    def open(self) -> QueryState:
        return self.found


def test_what_is_never_written_is_given_up_in_time(
    after_batch_3: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried again without a pause, for ever."""
    monkeypatch.setattr(application, "SETTLE_S", 0.3)
    monkeypatch.setattr(application, "PAUSE_S", 0.05)
    store = Refusing(DoubtError("who knows"), after_batch_3._query_state)
    after_batch_3._state_store = store  # type: ignore[assignment]
    with pytest.raises(DoubtError):
        after_batch_3._write(restarted(after_batch_3._query_state))
    assert 1 < store.commits <= 8


def test_what_kafka_refuses_is_not_tried_again(after_batch_3: Application) -> None:
    store = Refusing(RefusedError("too large"), after_batch_3._query_state)
    after_batch_3._state_store = store  # type: ignore[assignment]
    with pytest.raises(RefusedError):
        after_batch_3._write(restarted(after_batch_3._query_state))
    assert store.commits == 1
