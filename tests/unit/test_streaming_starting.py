"""Where a new query begins: where the books stand, and what is said when the topic has not that."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from coordinator.core.timestamp_progress import NextOffset, TimestampProgress
from streaming.application import Application, Options
from streaming.books import Books
from streaming.source import BEGINNING

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
    options = Options("c", "127.0.0.1:1", tmp_path, tick_ms=0)
    application = Application(options, threading.Event(), threading.Event())
    read = TimestampProgress("query", 3, 0, 1, (NextOffset(*SYNC, 5),))
    application._books = Books("c", read)
    assert application._starting({SYNC: bounds, TICK: (0, 7)}) == {SYNC: begins, TICK: BEGINNING}
    spoken = "".join(capsys.readouterr())
    assert said in spoken
    assert bool(said) == bool(spoken)
