"""The archive as rows and files: what a record becomes, and what counts after a kill."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaException

from coordinator import codec
from coordinator.core.model.entities import Bucket, Entity, RequestOutcome, Setting, Source, Stream
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.stream_records import Tick
from coordinator.core.model.types import TxnId
from streaming.archive import files as archive_files
from streaming.archive import manifest as archive_manifest
from streaming.archive.files import PARTS_MAX, REPLACED_MS, Archive, UnusableError
from streaming.archive.job import SHORT_MAX, ArchiveOptions, Archiver
from streaming.archive.manifest import MANIFEST, ManifestError
from streaming.archive.rows import Row, UnreadableError, row_of, value_of
from streaming.spark.crash_points import CRASH_POINTS, Crasher

AT_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class Killed(Exception):
    """In place of a SIGKILL."""


class Killer(Crasher):
    """Stops at a point once, as a kill would."""

    def passes(self, point: str) -> None:
        if point == self._point:
            self._point = ""
            raise Killed


class Clock:
    def __init__(self) -> None:
        self.now_ms = AT_MS

    def __call__(self) -> int:
        return self.now_ms


def opened(folder: Path, point: str = "", clock: Clock | None = None) -> Archive:
    folder.mkdir(exist_ok=True)
    archive = Archive(folder, clock or Clock(), Killer(point))
    archive.open("c", "topic-1")
    return archive


def event(cas: int, entity: Entity | None, key: str = "", at_ms: int = AT_MS) -> bytes:
    value = None if entity is None else codec.encode(entity)
    key = entity.key if entity is not None else key
    mutation = Mutation("Changed", key, value, entity, "r-1", "ann", at_ms)
    return codec.encode(Event(mutation, TxnId(3, 4), 0, 1, cas))


def row(offset: int, cas: int = 0, days: int = 0) -> Row:
    data = event(cas or offset + 1, Bucket(f"b{offset}", 64), at_ms=AT_MS + days * DAY_MS)
    return row_of(offset, data)


def cases(folder: Path) -> list[int]:
    """Return the CASes that a reader of the manifest sees, in order."""
    manifest = archive_manifest.read(folder)
    assert manifest is not None
    tables = [pq.ParquetFile(folder / part.path).read() for part in manifest.parts]
    assert [table.num_rows for table in tables] == [part.rows for part in manifest.parts]
    return sorted(cas for table in tables for cas in table["cas"].to_pylist())


# -- rows ----------------------------------------------------------------------------------------


def test_an_event_becomes_a_row_of_its_day_and_kind() -> None:
    found = row_of(7, event(42, Bucket("travel", 64)))
    assert (found.date, found.kind, found.cas, found.offset) == ("2023-11-14", "bucket", 42, 7)
    assert (found.txn_epoch, found.txn_seq, found.request) == (3, 4, "r-1")
    assert json.loads(found.value or "") == {"name": "travel", "vbuckets": 64}


def test_a_drop_has_no_value_and_the_kind_of_its_key() -> None:
    found = row_of(7, event(42, None, "index/9"))
    assert (found.kind, found.key, found.value) == ("index", "index/9", None)


def test_a_key_of_no_kind_names_no_folder() -> None:
    assert row_of(7, event(42, None, "../../etc")).partition == "date=2023-11-14/kind=other"


@pytest.mark.parametrize(
    ("entity", "shown"),
    [
        (Setting("a", '{"b": [1]}'), {"name": "a", "value": {"b": [1]}}),
        (Setting("a", "no json"), {"name": "a", "value": "no json"}),
        (
            Stream("b", 2, (Source(0, 5, 2),), b"\xff" * 8, b"\x01" + bytes(7), "why"),
            {
                "bucket": "b",
                "number": 2,
                "sources": [{"projector": 0, "incarnation": 5, "number": 2}],
                "vbuuids": [str(2**64 - 1)],
                "seqnos": ["1"],
                "reason": "why",
                "restart": 0,
            },
        ),
    ],
)
def test_a_value_can_be_read_without_the_codec(entity: Entity, shown: dict[str, object]) -> None:
    assert json.loads(value_of(entity)) == shown


def test_numbers_beyond_json_are_strings() -> None:
    outcome = RequestOutcome(
        id="r",
        status="done",
        fingerprint=2**62 + 1,
        index_id=2**62 + 3,
        txn_epoch=1,
        txn_seq=1,
        distance=1,
        answer_json="{}",
        error_code="",
        error_message="",
        error_details_json="null",
        by_topic=False,
        at_ms=1,
    )
    shown = json.loads(value_of(outcome))
    assert (shown["fingerprint"], shown["index_id"]) == (str(2**62 + 1), str(2**62 + 3))
    assert (shown["answer"], shown["error_details"]) == ({}, None)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not_avro"),
        (b"no", "not_avro"),
        (b"\xc3\x01" + bytes(8), "unknown_schema"),
        (event(1, Bucket("b", 1))[:-3], "bad_body"),
        (codec.encode(Tick(1, 1)), "an Event belongs here, not Tick"),
        (event(0, Bucket("b", 1)), "0 is no CAS"),
        (event(1, Bucket("b", 1), at_ms=2**60), "no time"),
    ],
)
def test_what_is_no_event_is_no_row(data: bytes | None, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        row_of(0, data)


# -- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_batch_counts_once_wherever_it_was_killed(tmp_path: Path, point: str) -> None:
    opened(tmp_path).append([row(0), row(1)], 2)
    batch = [row(2), row(3, days=1)]
    with pytest.raises(Killed):
        opened(tmp_path, point).append(batch, 4)
    assert cases(tmp_path) in ([1, 2], [1, 2, 3, 4])
    again = opened(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*/*")}
    assert left == {part.path for part in again.manifest.parts}
    again.append([*batch, row(4)], 5)
    assert cases(tmp_path) == [1, 2, 3, 4, 5]
    assert again.manifest.next_offset == 5


def test_a_batch_may_be_cut_differently_after_a_kill(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        opened(tmp_path, CRASH_POINTS[1]).append([row(n) for n in range(5)], 5)
    opened(tmp_path).append([row(n) for n in range(3)], 3)
    opened(tmp_path).append([row(n) for n in range(9)], 9)
    assert cases(tmp_path) == list(range(1, 10))


def test_a_cas_that_history_has_twice_is_archived_once(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    assert archive.append([row(0, 10), row(1, 12), row(2, 12)], 3) == 2
    assert archive.append([row(3, 10), row(4, 11), row(5, 13)], 6) == 2
    assert cases(tmp_path) == [10, 11, 12, 13]


@pytest.mark.parametrize("point", ["", *CRASH_POINTS])
def test_small_files_become_one_and_go_later(tmp_path: Path, point: str) -> None:
    clock = Clock()
    archive = opened(tmp_path, clock=clock)
    for offset in range(PARTS_MAX):
        archive.append([row(offset)], offset + 1)
    old = [part.path for part in archive.manifest.parts]
    assert len(old) == PARTS_MAX
    if point:
        with pytest.raises(Killed):
            opened(tmp_path, point).append([row(PARTS_MAX)], PARTS_MAX + 1)
        archive = opened(tmp_path, clock=clock)
    archive.append([row(PARTS_MAX), row(PARTS_MAX + 1)], PARTS_MAX + 2)
    assert len(archive.manifest.parts) <= 2
    assert cases(tmp_path) == list(range(1, PARTS_MAX + 3))
    assert all((tmp_path / path).exists() for path in old), "somebody may be reading them"
    clock.now_ms += REPLACED_MS + 1
    archive.append([row(PARTS_MAX + 2)], PARTS_MAX + 3)
    assert not any((tmp_path / path).exists() for path in old)
    archive.append([row(PARTS_MAX + 3)], PARTS_MAX + 4)
    assert opened(tmp_path).manifest.replaced == ()
    assert cases(tmp_path) == list(range(1, PARTS_MAX + 5))


def test_large_files_are_left_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_files, "SMALL_ROWS", 2)
    archive = opened(tmp_path)
    for offset in range(0, 2 * PARTS_MAX + 4, 2):
        archive.append([row(offset), row(offset + 1)], offset + 2)
    assert len(archive.manifest.parts) == PARTS_MAX + 2
    assert archive.manifest.replaced == ()


def test_another_history_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).append([row(0)], 1)
    with pytest.raises(UnusableError, match="another history"):
        Archive(tmp_path, Clock(), Crasher()).open("c", "topic-2")


def test_files_without_a_manifest_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).append([row(0)], 1)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(UnusableError, match=MANIFEST):
        opened(tmp_path)
    assert list(tmp_path.glob("*/*/*.parquet")), "nothing is deleted"


def test_a_history_that_has_lost_its_end_is_refused_at_last(tmp_path: Path) -> None:
    options = ArchiveOptions(
        cluster="c",
        bootstrap_servers="127.0.0.1:1",
        data_dir=tmp_path,
        archive=tmp_path / "archive",
    )
    archiver = Archiver(options, threading.Event(), threading.Event())
    for _ in range(SHORT_MAX - 1):
        with pytest.raises(KafkaException):
            archiver._check_end(10, 9)
    archiver._check_end(10, 10)
    for _ in range(SHORT_MAX - 1):
        with pytest.raises(KafkaException):
            archiver._check_end(10, 9)
    with pytest.raises(UnusableError, match="its end was lost"):
        archiver._check_end(10, 9)


def test_of_two_writers_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "LOCK_TIMEOUT_S", 0.0)
    first, second = (Archive(tmp_path, Clock(), Crasher()) for _ in range(2))
    first.lock()
    with pytest.raises(UnusableError, match="another process"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "x": 1}'])
def test_a_manifest_that_is_none_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ManifestError):
        archive_manifest.read(tmp_path)
    with pytest.raises(UnusableError):
        opened(tmp_path)


def test_no_rows_still_move_the_offset(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    assert archive.append([], 9) == 0
    assert opened(tmp_path).manifest == replace(archive.manifest, next_offset=9)


def test_a_row_fits_the_columns_that_are_promised() -> None:
    assert archive_files.SCHEMA.names == [name for name, _ in archive_manifest.COLUMNS]
    rows: Sequence[Row] = [row(0), row_of(1, event(2, None, "index/1"))]
    table = archive_files.table_of(rows)
    assert table["cas"].to_pylist() == [1, 2]
    assert table["at_utc"].to_pylist()[0].isoformat() == "2023-11-14T22:13:20"


def test_the_last_cas_again_is_not_archived_again(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.append([row(0, 10), row(1, 12)], 2)
    assert archive.append([row(2, 12)], 3) == 0
    assert cases(tmp_path) == [10, 12]


def test_a_table_is_on_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    opened(tmp_path).append([row(0)], 1)
    tables = [path.stat().st_ino for path in tmp_path.rglob("*.parquet")]
    assert tables
    assert set(tables) <= set(synced)


def test_a_dead_letter_at_the_end_of_a_batch_is_not_read_again() -> None:
    said: list[tuple[int, int]] = []
    buried: list[Any] = []
    archive = SimpleNamespace(append=lambda rows, end: said.append((len(rows), end)))
    archiver: Any = SimpleNamespace(topic="c.history", _bury=buried.extend, archive=archive)
    Archiver._archive(archiver, [(0, event(1, Bucket("b", 64))), (1, b"x")])
    assert said == [(1, 2)]
    assert [letter.offset for letter in buried] == [1]
