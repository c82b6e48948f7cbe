"""What Spark hands over becomes the same rows, however its tasks have ended."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.model.stream_records import Sync, SyncVector
from coordinator.core.model.types import Offset
from coordinator.kafka.topics import SYNC
from schemas.registry import FOLDER, Registry
from streaming.spark.session import HEAP_MB
from streaming.timestamps import rows as rows_module
from streaming.timestamps.application import EXECUTORS_FROM
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.rows import (
    COLUMNS,
    NO_ROWS,
    RECORDS,
    Rows,
    SyncRows,
    layouts,
    partials,
    rows_of,
)
from tests.support.indexes import make_sync, make_sync_vector, syncs_of

Row = dict[str, Any]


def sync_row(partition: int, offset: int, bucket: str = "b", **more: int) -> Row:
    numbers = {"vbucket": offset % 7, "projector": 1, "connection": 5, "ordinal": offset}
    sync = Sync(bucket=bucket, **{**numbers, "vbuuid": 9, "seqno": offset, "at_ms": 3, **more})
    return {
        "place": INPUTS.index(SYNC),
        "partition": partition,
        "offset": offset,
        "value": codec.encode(sync),
    }


def raw_row(place: int, partition: int, offset: int) -> Row:
    row = {"place": place, "partition": partition, "offset": offset}
    return {**row, "value": b"%d-%d-%d" % (place, partition, offset)}


def table(rows: Sequence[Row]) -> pa.Table:
    """Return a table of several chunks, as Spark's tasks make them."""
    chunks = [list(rows[begin : begin + 5]) for begin in range(0, len(rows), 5)]
    return pa.concat_tables([pa.Table.from_pylist(chunk, RECORDS) for chunk in chunks or [[]]])


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), RECORDS)


def as_lists(rows: Rows) -> Any:
    """Return rows as what can be compared."""
    syncs = [(one.bucket, *(getattr(one, name).tolist() for name in COLUMNS)) for one in rows.syncs]
    return rows.count, syncs, rows.raw, rows.spans


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
    expected = as_lists(rows_of(table(sorted(rows, key=_where)), {}))
    chance.shuffle(rows)
    found = rows_of(table(rows), {})
    assert as_lists(found) == expected
    assert [row[:3] for row in found.raw] == sorted(row[:3] for row in found.raw)


VECTORS = st.lists(
    st.tuples(
        *(st.integers(0, 3), st.integers(0, 50), st.sampled_from("bc"), st.integers(4, 6)),
        st.dictionaries(st.integers(0, 9), st.integers(0, 2**64 - 1), min_size=1, max_size=5),
    ),
    unique_by=lambda vector: vector[:2],
)


@pytest.mark.thorough
@given(VECTORS, st.randoms())
def test_a_vector_says_what_a_sync_of_each_of_its_vbuckets_says(
    given_vectors: list[Any], chance: Any
) -> None:
    """Also where it stood, and however Spark divides them."""
    vectors, alone = [], []
    for partition, offset, bucket, connection, seqnos in given_vectors:
        vector = make_sync_vector(
            [*seqnos],
            bucket=bucket,
            connection=connection,
            ordinal=offset,
            vbuuids=[offset % 2] * len(seqnos),
            seqnos=[*seqnos.values()],
        )
        where = {"place": INPUTS.index(SYNC), "partition": partition, "offset": offset}
        vectors.append({**where, "value": codec.encode(vector)})
        alone += [{**where, "value": codec.encode(one)} for one in syncs_of(vector)]
    found = rows_of(table(vectors), {})
    assert as_lists(found)[1] == as_lists(rows_of(table(alone), {}))[1]
    assert (found.count, found.raw) == (len(vectors), ())
    assert found.spans == rows_of(table(alone), {}).spans
    tasks: list[list[Row]] = [[], [], []]
    for row in vectors:
        chance.choice(tasks).append(row)
    made = [part for task in tasks for part in partials(table(task).to_batches(), {})]
    together = rows_of(pa.Table.from_batches(made, RECORDS), {})
    assert as_lists(together) == as_lists(found)


def test_rows_of_a_vector_are_one_record_again() -> None:
    vector = make_sync_vector([3, 1, 2], ordinal=5, vbuuids=[7, 8, 9], seqnos=[2**64 - 1, 0, 4])
    other = make_sync(4, ordinal=6)
    rows = [
        {"place": INPUTS.index(SYNC), "partition": 1, "offset": offset, "value": codec.encode(one)}
        for offset, one in ((9, vector), (4, other))
    ]
    (found,) = rows_of(table(rows), {}).syncs
    assert [*found.records()] == [(1, 4, other), (1, 9, vector)]


def test_records_that_stood_at_one_place_one_after_the_other_stay_apart() -> None:
    """The topic was made again meanwhile."""
    said = [make_sync(0, connection=1, seqno=5), make_sync(1, connection=2, seqno=100)]
    rows = SyncRows.joined("b", [SyncRows.of(0, Offset(0), one) for one in said])
    assert [record for *_, record in rows.records()] == said


def test_a_batch_that_the_driver_reads_has_room() -> None:
    """Whatever its records are: SYNCs of a bucket of 1,024 vbuckets."""
    vector = codec.encode(make_sync_vector(range(1_024), vbuuid=2**63, seqno=2**40))
    assert len(vector) * EXECUTORS_FROM < HEAP_MB * 1_000_000 / 8


@pytest.mark.parametrize(
    "vector",
    [
        make_sync_vector([1, 8]),
        make_sync_vector([1], projector=-1),
        make_sync_vector([1], connection=-1),
        make_sync_vector([1], ordinal=2**62),
        replace(make_sync_vector([1, 2]), vbuckets=b"\1"),
        replace(make_sync_vector([1, 2]), vbuckets=b"\1\0"),
        replace(make_sync_vector([1, 2]), seqnos=bytes(9)),
        replace(make_sync_vector([1, 2]), vbuuids=bytes(24)),
    ],
)
def test_a_vector_in_which_something_cannot_be_is_a_raw_row(vector: SyncVector) -> None:
    row = {"place": INPUTS.index(SYNC), "partition": 0, "offset": 4, "value": codec.encode(vector)}
    good = make_sync_vector([7], bucket="b")
    rows = [row, {**row, "offset": 5, "value": codec.encode(good)}]
    found = rows_of(table(rows), {"b": 8})
    assert [one.offset for one in found.raw] == [4]
    assert [one.offset.tolist() for one in found.syncs] == [[5]]


def _where(row: Row) -> tuple[int, int, int]:
    return row["place"], row["partition"], row["offset"]


def test_each_partition_goes_on_after_its_last_record() -> None:
    rows = [sync_row(0, 3), sync_row(0, 9), sync_row(2, 5), raw_row(6, 0, 2**40)]
    assert rows_of(table(rows), {}).spans == (
        (0, 0, 3, 10),
        (0, 2, 5, 6),
        (6, 0, 2**40, 2**40 + 1),
    )


@given(st.lists(PLACES, unique_by=lambda place: place[:3]), st.randoms())
def test_tasks_and_the_driver_together_make_the_same_of_it(places: list[Any], chance: Any) -> None:
    """However Spark divides the records among tasks."""
    rows = [
        sync_row(partition, offset, bucket, vbucket=offset % 3)
        if place == 0
        else raw_row(place, partition, offset)
        for place, partition, offset, bucket in places
    ]
    expected = as_lists(rows_of(table(rows), {}))
    tasks: list[list[Row]] = [[], [], []]
    for row in rows:
        chance.choice(tasks).append(row)
    made = [part for task in tasks for part in partials(table(task).to_batches(), {})]
    assert sum(part.num_rows for part in made) <= len([p for p in places if p[0]]) + len(tasks)
    chance.shuffle(made)
    assert as_lists(rows_of(pa.Table.from_batches(made, RECORDS), {})) == expected


def test_a_task_keeps_no_more_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition may have a million SYNCs of a few vbuckets."""
    monkeypatch.setattr(rows_module, "HELD", 10)
    seen = []
    reduced = rows_module._Part.reduced

    def spied(part: Any) -> Any:
        seen.append(len(part.code))
        return reduced(part)

    monkeypatch.setattr(rows_module._Part, "reduced", spied)
    rows = [sync_row(0, offset, vbucket=0) for offset in range(100)]
    (made,) = partials(table(rows).to_batches(), {})
    assert max(seen) <= 1 + 10 + 5
    found = rows_of(pa.Table.from_batches([made], RECORDS), {})
    assert found.count == 100
    assert [one.offset.tolist() for one in found.syncs] == [[99]]


def test_putting_parts_together_takes_room_for_what_is_there_not_for_what_could_be() -> None:
    """Of some buckets, each with a few of its vbuckets, and those with the highest numbers."""
    rows = [
        sync_row(0, number, f"b{number % 4}", vbucket=1_000 + number % 7, connection=number % 3)
        for number in range(400)
    ]
    made = [part for half in (rows[:200], rows[200:]) for part in partials([batch(half)], {})]
    together = pa.Table.from_batches(made, RECORDS)
    rows_of(together, {})
    tracemalloc.start()
    found = rows_of(together, {})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found.syncs) == 4
    assert most < 1_000 * len(rows)


def test_what_one_connection_says_of_two_buckets_stays_apart() -> None:
    rows = [sync_row(0, offset, f"b{offset % 2}", vbucket=1, connection=5) for offset in range(4)]
    found = rows_of(pa.Table.from_batches([*partials([batch(rows)], {})], RECORDS), {})
    assert [(one.bucket, one.seqno.tolist()) for one in found.syncs] == [("b0", [2]), ("b1", [3])]


def test_a_sync_whose_numbers_cannot_be_is_a_raw_row() -> None:
    """So that each becomes a dead letter, and none replaces another."""
    bad: list[dict[str, int]] = [
        *({"ordinal": n} for n in (-1, 2**62)),
        *({"vbucket": n} for n in (-1, 8)),
        {"projector": -1},
        {"connection": -1},
    ]
    rows = [sync_row(0, n, "known", **numbers) for n, numbers in enumerate(bad)]
    rows += [sync_row(0, 50, "new", vbucket=8), sync_row(0, 51, "known", vbucket=7)]
    limits = {"known": 8}
    made = pa.Table.from_batches([*partials(table(rows).to_batches(), limits)], RECORDS)
    for found in (rows_of(table(rows), limits), rows_of(made, limits)):
        assert [row.offset for row in found.raw] == list(range(len(bad)))
        assert [one.offset.tolist() for one in found.syncs] == [[51], [50]]


@pytest.mark.parametrize("number", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_unsigned_numbers_survive(number: int) -> None:
    (found,) = rows_of(table([sync_row(1, 4, vbuuid=number, seqno=number)]), {}).syncs
    [(_, _, record)] = found.records()
    assert record == make_sync(4, projector=1, connection=5, ordinal=4, vbuuid=number, seqno=number)


def test_a_sync_that_was_not_decoded_is_a_raw_row() -> None:
    rows = rows_of(table([sync_row(0, 1), raw_row(0, 0, 2)]), {})
    assert [len(one) for one in rows.syncs] == [1]
    assert [(row.place, row.offset, row.value) for row in rows.raw] == [(0, 2, b"0-0-2")]


def test_an_empty_batch_is_no_rows() -> None:
    assert rows_of(table([]), {}) == NO_ROWS


def test_several_parts_of_a_bucket_are_joined_in_order() -> None:
    one, two = (rows_of(table([sync_row(0, n), sync_row(1, n + 1)]), {}).syncs[0] for n in (1, 5))
    both = SyncRows.joined("b", [one, two])
    assert both.offset.tolist() == [1, 2, 5, 6]
    assert both.vbuuid.dtype == np.uint64
    nothing = SyncRows.joined("b", [])
    assert len(nothing) == 0
    assert [getattr(nothing, name).dtype for name in COLUMNS] == [
        getattr(both, name).dtype for name in COLUMNS
    ]


def test_a_version_that_lacks_a_number_is_decoded_one_by_one(tmp_path: Path) -> None:
    current = json.loads((FOLDER / "Sync.avsc").read_text())
    fields = [{**one, "default": 0} if one["name"] == "seqno" else one for one in current["fields"]]
    older = {**current, "fields": [one for one in fields if one["name"] != "seqno"]}
    (tmp_path / "released").mkdir()
    (tmp_path / "Sync.avsc").write_text(json.dumps({**current, "fields": fields}))
    (tmp_path / "released" / "Sync.1.avsc").write_text(json.dumps(older))
    versions = Registry(tmp_path).versions("Sync")
    assert len(versions) == 2
    assert [one.head for one in layouts(Registry(tmp_path))] == [versions[0].head]
