"""Where a query begins, and which of Spark's batches count: those that the books have not yet."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.core.timestamps.progress import NextOffset, TimestampProgress
from coordinator.kafka.readers import BEGINNING
from streaming.spark.session import LOGGING
from streaming.timestamps.application import Application, GapError, Options
from streaming.timestamps.query_state import QueryState

SYNC, TICK = ("c.sync", 0), ("c.tick", 0)


@pytest.mark.parametrize(
    ("bounds", "begins", "said"),
    [
        ((0, 9), 5, ""),
        ((5, 5), 5, ""),
        ((6, 9), BEGINNING, "offsets 5 to 5 were deleted"),
        ((0, 4), BEGINNING, "it ends at 4, and was read up to 5 before"),
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
    application = Application(options, threading.Event(), threading.Event())
    read = TimestampProgress("query", 3, 0, 1, (NextOffset(*SYNC, 5),))
    application._query_state = QueryState("c", read)
    assert application._starting({SYNC: bounds, TICK: (0, 7)}) == {SYNC: begins, TICK: BEGINNING}
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)


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
    application = Application(options, threading.Event(), threading.Event())
    application._query_state = QueryState(
        "c", TimestampProgress("query", 3, 0, 1, (NextOffset(*SYNC, 5),))
    )
    application._query_id = "query"
    return application


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
    after_batch_3._query_id = "another"
    with pytest.raises(ReadError):
        after_batch_3._carry_out(Frame(), 0)  # type: ignore[arg-type]
    for batch in (3, 4):
        with pytest.raises(GapError, match="of another query"):
            after_batch_3._carry_out(Frame(), batch)  # type: ignore[arg-type]


def test_what_spark_may_log_is_said_in_a_file_that_is_there() -> None:
    """Without it Spark falls back to what it came with, and tells everything."""
    assert LOGGING.is_file()
    assert "rootLogger.level" in LOGGING.read_text()
