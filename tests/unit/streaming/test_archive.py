"""What a record becomes in the archive: rows, tables of Arrow, and reasons why it is none."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from coordinator import codec
from coordinator.core.model.entities import (
    Bucket,
    Entity,
    Index,
    RequestOutcome,
    Setting,
    Slice,
    Source,
    Stream,
)
from coordinator.core.model.records import DeadLetter, Event, Mutation
from coordinator.core.model.stream_records import StabilityTimestamp, Tick
from coordinator.core.model.types import TxnId
from streaming.archive import job as archive_job
from streaming.archive.decoding import RECORD, arrow_schema, decode
from streaming.archive.delta import LOG, UnusableError, forget_unmade
from streaming.archive.job import SHORT_MAX, ArchiveOptions, Archiver, lock_archive
from streaming.archive.place import folder_of, url_of
from streaming.archive.rows import UnreadableError, history_row, stability_row, value_of
from streaming.archive.tables import HISTORY_TABLE, STABILITY_TABLE, ArchiveTable

AT_MS = 1_700_000_000_000


def event(cas: int, entity: Entity | None, key: str = "", at_ms: int = AT_MS) -> bytes:
    value = None if entity is None else codec.encode(entity)
    key = entity.key if entity is not None else key
    mutation = Mutation("Changed", key, value, entity, "r-1", "ann", at_ms)
    return codec.encode(Event(mutation, TxnId(3, 4), 0, 1, cas))


def placed(index: int, count: int) -> bytes:
    """Return the `index`-th event of `count`."""
    bucket = Bucket("b", 1)
    mutation = Mutation("Changed", bucket.key, codec.encode(bucket), bucket, "r-1", "ann", AT_MS)
    return codec.encode(Event(mutation, TxnId(3, 4), index, count, 1))


def stability(seqnos: bytes = b"\xff" * 8, at_ms: int = AT_MS) -> bytes:
    return codec.encode(StabilityTimestamp("b", 3, bytes(8), seqnos, at_ms))


# -- rows ----------------------------------------------------------------------------------------


def test_an_event_becomes_a_row_of_its_day_and_kind() -> None:
    found = history_row(event(42, Bucket("travel", 64)))
    assert (found.date.isoformat(), found.month) == ("2023-11-14", "2023-11")
    assert (found.kind, found.cas) == ("bucket", 42)
    assert found.at_utc == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert (found.txn_epoch, found.txn_seq, found.request) == (3, 4, "r-1")
    value = json.loads(found.value or "")
    assert (value["name"], value["vbuckets"]) == ("travel", 64)


def test_a_drop_has_no_value_and_the_kind_of_its_key() -> None:
    found = history_row(event(42, None, "index/9"))
    assert (found.kind, found.key, found.value) == ("index", "index/9", None)


@pytest.mark.parametrize("key", ["../../etc", "index x/9", "a" * 33 + "/1", ""])
def test_a_key_of_no_kind_is_of_another_kind(key: str) -> None:
    assert history_row(event(42, None, key)).kind == "other"


def test_months_are_text_that_is_ordered_as_they_are() -> None:
    at_ms = int(datetime(2024, 3, 1, tzinfo=UTC).timestamp() * 1000)
    assert history_row(event(42, None, "index/9", at_ms)).month == "2024-03"


def test_a_value_that_is_nested_too_deeply_is_text() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    assert json.loads(value_of(Setting("a", deep))) == {"name": "a", "value": deep}


@pytest.mark.parametrize(
    ("entity", "shown"),
    [
        (Setting("a", '{"b": [1]}'), {"name": "a", "value": {"b": [1]}}),
        (Setting("a", "no json"), {"name": "a", "value": "no json"}),
        (
            Stream(
                "b", 2, (Source(0, 5, 2, 1, (3,), (2,)),), b"\xff" * 8, b"\x01" + bytes(7), "why"
            ),
            {
                "bucket": "b",
                "number": 2,
                "sources": [
                    {
                        "projector": 0,
                        "incarnation": "5",
                        "number": 2,
                        "began": 1,
                        "restarted": [3],
                        "under": [2],
                    }
                ],
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
    index = Index(
        id=2**53 + 1,
        name="i",
        bucket="b",
        expressions=("a",),
        where=None,
        primary=False,
        using="gsi",
        defer_build=False,
        state="init",
        reason=None,
        slices=(Slice(0, 1),),
        request="r",
        created_ms=1,
        replaces=2**53 + 3,
    )
    shown = json.loads(value_of(index))
    assert (shown["id"], shown["replaces"]) == (str(2**53 + 1), str(2**53 + 3))
    assert json.loads(value_of(Setting("a", "1"))) == {"name": "a", "value": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not_avro"),
        (b"no", "not_avro"),
        (b"\xc3\x01" + bytes(8), "unknown_schema"),
        (event(1, Bucket("b", 1))[:-3], "bad_body"),
        (codec.encode(Tick(1, 1)), "Event belongs here, not Tick"),
        (event(0, Bucket("b", 1)), "0 is no CAS"),
        (event(1, Bucket("b", 1), at_ms=2**60), "no time"),
        (placed(2**31, 2**31 + 1), "no place"),
        (placed(1, 1), "no place"),
        (placed(-1, 1), "no place"),
    ],
)
def test_what_is_no_event_is_no_row(data: bytes | None, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        history_row(data)


def test_a_stability_timestamp_becomes_a_row_with_a_number_a_vbucket() -> None:
    vector = np.array([7, 2**64 - 1], "<u8").tobytes()
    found = stability_row(codec.encode(StabilityTimestamp("b", 3, vector, bytes(16), AT_MS)))
    assert (found.bucket, found.number, found.month) == ("b", 3, "2023-11")
    assert (found.vbuuids, found.seqnos) == ([7, 2**64 - 1], [0, 0])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "not_avro"),
        (event(1, Bucket("b", 1)), "StabilityTimestamp belongs here, not Event"),
        (stability(bytes(9)), "no vector"),
        (stability(at_ms=-1), "no time"),
    ],
)
def test_what_is_no_stability_timestamp_is_no_row(data: bytes | None, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        stability_row(data)


# -- tables --------------------------------------------------------------------------------------


def arrow(*values: bytes | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"offset": pa.array(range(len(values)), pa.int64()), "value": pa.array(values, pa.binary())}
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "good"),
    [(HISTORY_TABLE, event(42, Bucket("b", 64))), (STABILITY_TABLE, stability())],
    ids=["history", "stability"],
)
def test_each_record_is_a_row_or_a_reason_with_its_offset(table: ArchiveTable, good: bytes) -> None:
    (found,) = decode(table, iter([arrow(good, b"no", None, good)]))
    assert found.schema == arrow_schema((*table.columns, *RECORD))
    rows = found.to_pylist()
    assert [row["record_offset"] for row in rows] == [0, 1, 2, 3]
    assert [row["reason"] is None for row in rows] == [True, False, False, True]
    assert [row["payload"] for row in rows] == [None, b"no", b"", None]
    assert all(rows[0][name] is not None for name in table.names)
    assert all(rows[1][name] is None for name in table.names)


def test_half_a_surrogate_pair_is_archived_as_the_escape_that_json_has() -> None:
    odd = Setting("a", json.dumps("\ud800"))
    (found,) = decode(HISTORY_TABLE, iter([arrow(event(1, odd))]))
    (row,) = found.to_pylist()
    assert row["reason"] is None
    assert json.loads(row["value"]) == {"name": "a", "value": "\ud800"}


def test_no_records_are_no_rows() -> None:
    (found,) = decode(HISTORY_TABLE, iter([arrow()]))
    assert found.num_rows == 0
    assert found.schema == arrow_schema((*HISTORY_TABLE.columns, *RECORD))


@pytest.mark.parametrize("table", [HISTORY_TABLE, STABILITY_TABLE], ids=lambda table: table.name)
def test_a_row_is_identified_by_columns_that_it_has(table: ArchiveTable) -> None:
    assert {*table.key, table.ascending} <= set(table.names)
    assert table.ascending in table.key


def test_times_of_a_table_are_of_utc_and_timestamps_are_told_apart_by_their_numbers() -> None:
    """Delta has a type of its own for times without a zone, which old readers do not know."""
    assert arrow_schema(HISTORY_TABLE.columns).field("at_utc").type.tz == "UTC"
    assert STABILITY_TABLE.key == ("bucket", "number", "at_utc")


# -- where it is, and who writes -----------------------------------------------------------------


def test_what_has_no_scheme_is_a_folder_of_this_machine(tmp_path: Path) -> None:
    awkward = tmp_path / "it's, [here]*"
    assert folder_of(url_of(awkward)) == awkward.resolve()
    assert url_of("s3a://bucket/archive") == "s3a://bucket/archive"
    assert folder_of("s3a://bucket/archive") is None


def test_a_history_that_has_lost_its_end_is_refused_at_last(tmp_path: Path) -> None:
    options = ArchiveOptions(
        cluster="c",
        bootstrap_servers="127.0.0.1:1",
        data_dir=tmp_path,
        archive=url_of(tmp_path / "archive"),
    )
    archiver = Archiver(options, threading.Event(), threading.Event())
    for _ in range(SHORT_MAX - 1):
        with pytest.raises(KafkaException):
            archiver._check_end("c.history", 10, 9)
    archiver._check_end("c.history", 10, 10)
    with pytest.raises(UnusableError, match="its end was lost"):
        archiver._check_end("c.history", 10, 9)


@pytest.mark.parametrize("left", ["", "_staged_commits/", "_commits/", ".0.json.crc", ".0.a.tmp"])
def test_a_table_whose_maker_was_killed_is_made_again(tmp_path: Path, left: str) -> None:
    """Delta Lake makes folders first. What is left of that is a damaged table to it, for ever."""
    log = tmp_path / "history" / LOG
    (log / left if left.endswith("/") else log).mkdir(parents=True)
    if left.startswith("."):
        (log / left).touch()
    forget_unmade(url_of(tmp_path / "history"))
    assert list(tmp_path.iterdir()) == []
    forget_unmade(url_of(tmp_path / "history"))


@pytest.mark.parametrize(
    "left",
    [
        f"{LOG}/00000000000000000000.json",
        f"{LOG}/_staged_commits/0.uuid.json",
        f"{LOG}/_last_checkpoint",
        "month=2026-11/part-0.parquet",
        "data.csv",
        "empty/",
    ],
)
def test_a_folder_with_anything_else_stays(tmp_path: Path, left: str) -> None:
    kept = tmp_path / left
    (kept if left.endswith("/") else kept.parent).mkdir(parents=True, exist_ok=True)
    (tmp_path / LOG / "_staged_commits").mkdir(parents=True, exist_ok=True)
    if not left.endswith("/"):
        kept.write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    forget_unmade(url_of(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_elsewhere_or_no_folder_of_a_table_is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    (tmp_path / "there" / LOG).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for url in (url_of(tmp_path), f"file://{tmp_path}/link", "s3a://bucket/archive/history"):
        forget_unmade(url)
    assert (tmp_path / "there" / LOG).is_dir()
    assert (tmp_path / "notes").exists()


class Letters:
    """A producer that has no room for every other record at first."""

    def __init__(self, _: Any) -> None:
        self.taken: list[DeadLetter] = []
        self.is_full = False

    def produce(self, topic: str, record: bytes, key: bytes, on_delivery: Any) -> None:
        self.is_full = not self.is_full
        if self.is_full:
            raise BufferError
        assert (topic, len(record) < 1_000_000) == ("c.dead-letter", True)
        self.taken.append(codec.decode(record))

    def poll(self, _: float) -> None:
        pass

    def flush(self, _: float) -> int:
        return 0


def test_dead_letters_fit_on_their_topic_and_wait_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Letters] = []

    def producer(settings: Any) -> Letters:
        made.append(Letters(settings))
        return made[-1]

    monkeypatch.setattr(archive_job, "Producer", producer)
    options = ArchiveOptions(
        cluster="c",
        bootstrap_servers="127.0.0.1:1",
        data_dir=tmp_path,
        archive=url_of(tmp_path / "archive"),
    )
    rows = [(offset, "no event", bytearray(b"x" * 4_190_000)) for offset in range(3)]
    frame: Any = SimpleNamespace(toLocalIterator=lambda: iter(rows))
    Archiver(options, threading.Event(), threading.Event())._send_dead_letters("c.history", frame)
    assert [letter.offset for letter in made[0].taken] == [0, 1, 2]


def test_of_two_writers_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_job, "LOCK_TIMEOUT_S", 0.0)
    first = lock_archive(url_of(tmp_path))
    with pytest.raises(UnusableError, match="another process"):
        lock_archive(url_of(tmp_path))
    assert first is not None
    first.release()
    second: Any = lock_archive(url_of(tmp_path))
    second.release()
