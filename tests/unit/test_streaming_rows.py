"""What Spark hands over becomes the same rows, however its tasks have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.stream_records import Sync
from streaming.inputs import INPUTS, SYNC_FIELDS
from streaming.rows import NO_ROWS, Rows, SyncRows, rows_of

SCHEMA = pa.schema(
    [
        ("place", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("bucket", pa.string()),
        ("vbucket", pa.int32()),
        ("projector", pa.int32()),
        *((name, pa.int64()) for name in SYNC_FIELDS[3:]),
    ]
)
Row = dict[str, Any]


def sync_row(partition: int, offset: int, bucket: str = "b", **more: int) -> Row:
    numbers = {"vbucket": offset % 7, "projector": 1, "connection": 5, "ordinal": offset}
    row = {"place": 0, "partition": partition, "offset": offset, "bucket": bucket}
    return {**row, **numbers, "vbuuid": 9, "seqno": offset, **more}


def raw_row(place: int, partition: int, offset: int) -> Row:
    row = {"place": place, "partition": partition, "offset": offset}
    return {**row, "value": b"%d-%d-%d" % (place, partition, offset)}


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def as_lists(rows: Rows) -> Any:
    """Return rows as what can be compared."""
    syncs = [
        (one.bucket, *(getattr(one, name).tolist() for name in SyncRows.__slots__[1:]))
        for one in rows.syncs
    ]
    return rows.count, syncs, rows.raw, rows.next_offsets


PLACES = st.tuples(
    st.integers(0, len(INPUTS) - 1),
    st.integers(0, 3),
    st.integers(0, 50),
    st.sampled_from(["b", "c", "d"]),
)


@given(st.lists(PLACES, unique_by=lambda place: place[:3]), st.randoms())
def test_the_order_in_which_tasks_end_makes_no_difference(places: list[Any], chance: Any) -> None:
    rows = [
        sync_row(partition, offset, bucket) if place == 0 else raw_row(place, partition, offset)
        for place, partition, offset, bucket in places
    ]
    expected = as_lists(rows_of(table(sorted(rows, key=_where))))
    chance.shuffle(rows)
    found = rows_of(table(rows))
    assert as_lists(found) == expected
    assert [row[:3] for row in found.raw] == sorted(row[:3] for row in found.raw)


def _where(row: Row) -> tuple[int, int, int]:
    return row["place"], row["partition"], row["offset"]


def test_each_partition_goes_on_after_its_last_record() -> None:
    rows = [sync_row(0, 3), sync_row(0, 9), sync_row(2, 5), raw_row(6, 0, 2**40)]
    assert rows_of(table(rows)).next_offsets == ((0, 0, 10), (0, 2, 6), (6, 0, 2**40 + 1))


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_unsigned_numbers_survive(number: int) -> None:
    signed = int(np.uint64(number).astype(np.int64))
    (found,) = rows_of(table([sync_row(1, 4, vbuuid=signed, seqno=signed)])).syncs
    assert found.record(0) == Sync("b", 4, 1, 5, 4, number, number, 0)


def test_a_sync_that_was_not_decoded_is_a_raw_row() -> None:
    rows = rows_of(table([sync_row(0, 1), raw_row(0, 0, 2)]))
    assert [len(one) for one in rows.syncs] == [1]
    assert [(row.place, row.offset, row.value) for row in rows.raw] == [(0, 2, b"0-0-2")]


def test_an_empty_batch_is_no_rows() -> None:
    assert rows_of(table([])) == NO_ROWS


def test_several_parts_of_a_bucket_are_joined_in_order() -> None:
    one, two = (rows_of(table([sync_row(0, n), sync_row(1, n + 1)])).syncs[0] for n in (1, 5))
    both = SyncRows.joined("b", [one, two])
    assert both.offset.tolist() == [1, 2, 5, 6]
    assert both.vbuuid.dtype == np.uint64
    nothing = SyncRows.joined("b", [])
    assert len(nothing) == 0
    assert [getattr(nothing, name).dtype for name in SyncRows.__slots__[1:]] == [
        getattr(both, name).dtype for name in SyncRows.__slots__[1:]
    ]
