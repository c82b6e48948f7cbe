"""The rows of a bucket's vbuckets have one owner: nobody else can write to them."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.core.timestamps.bucket_state import NEVER, OPEN, BucketState, Held
from streaming.stability.vbuckets import Vbuckets

NOW_MS = 9_000


@pytest.fixture
def rows() -> Vbuckets:
    return Vbuckets(BucketState.new("b", 4), NOW_MS)


def test_columns_cannot_be_written_to(rows: Vbuckets) -> None:
    columns = [one for one in vars(rows).values() if isinstance(one, np.ndarray)]
    shown = [one for one in columns if one is not rows._rows and one is not rows._touched]
    assert len(shown) == 14
    for column in shown:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1


def test_columns_show_what_happens(rows: Vbuckets) -> None:
    rows.own(2, Held(1, 5, 3, 7, 77, 10, 0), OPEN)
    assert (rows.connection[2], rows.projector[2], rows.number[2]) == (5, 1, 3)
    assert rows.owned.tolist() == [False, False, True, False]
    assert rows.touched().tolist() == [2]
    rows.note_seqnos(np.array([2, 2]), np.array([12, 11], np.uint64))
    assert rows.seen(2) == (77, 12)
    assert rows.position(2) == (77, 10)
    rows.advance(np.array([2]))
    assert rows.position(2) == (77, 12)
    rows.vacate(2, 9)
    assert (rows.ended[2], rows.lost_ms[2], rows.asked_ms[2]) == (9, NOW_MS, NEVER)


def test_the_state_before_is_left_as_it_was() -> None:
    before = BucketState.new("b", 4)
    rows = Vbuckets(before, NOW_MS)
    rows.branch(1)
    rows.doubt(1)
    assert rows.enquire(1, 2)
    assert not rows.enquire(1, 2), "it is out already"
    assert before.places["doubt_ms"][1] == NEVER
    assert rows.frozen()["doubt_ms"][1] == NOW_MS
