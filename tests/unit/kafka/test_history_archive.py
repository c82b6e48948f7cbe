"""The archive's files: whatever byte is damaged, missing or foreign is told of, with the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from coordinator import codec
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka import history_archive
from coordinator.kafka.archive_segments import (
    MAGIC,
    NO_SEAL,
    ArchiveError,
    Header,
    clear_halves,
    encode,
    path_of,
    write_segment,
)
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.settings import BASE_HEADER
from coordinator.runtime.frames import HEAD, NUMBER
from tests.support.changes import ONE, THREE, TWO

EVENTS = [*ONE, *TWO, *THREE]
CODES = ("history_archive_damaged", "history_archive_foreign")


def message(offset: int, value: bytes | None, **more: Any) -> Message:
    times: Any = more.pop("timestamp", (1, 1_000 + offset))
    return Message(
        topic="c.history", partition=0, offset=offset, value=value, timestamp=times, **more
    )


RECORDS = [
    message(3, codec.encode(EVENTS[0]), key=b"config/a", headers=[(BASE_HEADER, b"0 1 2")]),
    *(message(5 + n, codec.encode(e), key=b"k") for n, e in enumerate(EVENTS[1:])),
    message(20, None, key=None, headers=[("é", None), ("empty", b"")]),
    message(30, b"", key=b"", timestamp=(2, 7)),
    *(message(40 + n, bytes([n]) * 200_000, key=b"large") for n in range(4)),
]
PARTS = [RECORDS[:3], RECORDS[3:7], RECORDS[7:]]


def write(folder: Path, begin: int, messages: list[Message], previous: str, **more: Any) -> Header:
    end = Offset(int(messages[-1].offset() or 0) + 1)
    header = Header(
        **{
            "cluster": "c",
            "cluster_id": "id",
            "begin": Offset(begin),
            "end": end,
            "count": len(messages),
            "first_cas": Cas(begin + 1),
            "last_cas": Cas(begin + 2),
            "previous": previous,
            **more,
        }
    )
    write_segment(folder, "node-1", header, messages)
    return header


def filled(folder: Path) -> HistoryArchive:
    """Return an archive of three segments."""
    folder.mkdir()
    archive = HistoryArchive(folder, "c", lambda: "id")
    for messages in PARTS:
        begin, previous = archive.end(), archive.seal_at_end()
        write(folder, begin, messages, previous)
    return archive


def all_of(archive: HistoryArchive, offset: int = 0) -> list[Message]:
    return [one for records, _ in archive.read(Offset(offset)) for one in records]


@pytest.fixture
def archive(tmp_path: Path) -> HistoryArchive:
    return filled(tmp_path / "archived")


def fresh(archive: HistoryArchive) -> HistoryArchive:
    """Return a reader of the same folder that remembers nothing."""
    return HistoryArchive(archive.folder, "c", lambda: "id")


def test_records_come_back_as_they_were(archive: HistoryArchive) -> None:
    found = all_of(archive)
    assert [*map(encode, found)] == [*map(encode, RECORDS)]
    for one, other in zip(found, RECORDS, strict=True):
        assert (one.topic(), one.partition(), one.offset()) == ("c.history", 0, other.offset())
        assert (one.key(), one.value(), one.timestamp()) == (
            *(other.key(), other.value(), other.timestamp()),
        )
        assert (one.headers() or []) == (other.headers() or [])


def test_it_is_read_from_any_offset_on_also_one_that_no_record_has(archive: HistoryArchive) -> None:
    assert archive.end() == 44
    for offset in range(45):
        expected = [one for one in RECORDS if int(one.offset() or 0) >= offset]
        assert [*map(encode, all_of(archive, offset))] == [*map(encode, expected)]


def test_a_file_that_is_there_is_never_written_again(archive: HistoryArchive) -> None:
    file = path_of(archive.folder, archive.begins()[1])
    before, inode = file.read_bytes(), file.stat().st_ino
    write(archive.folder, archive.begins()[1], RECORDS[3:4], NO_SEAL)
    assert (file.read_bytes(), file.stat().st_ino) == (before, inode)
    assert sorted(os.listdir(archive.folder)) == [
        path_of(archive.folder, begin).name for begin in archive.begins()
    ]


def test_what_a_killed_writer_has_left_harms_nobody(archive: HistoryArchive) -> None:
    last = path_of(archive.folder, archive.begins()[-1])
    half = archive.folder / f".{last.name}.node-1.tmp"
    os.link(last, half)  # Killed between the two names of the finished file.
    before = last.read_bytes()
    write(archive.folder, archive.begins()[-1], RECORDS[:1], NO_SEAL)
    assert last.read_bytes() == before
    assert not half.exists()
    theirs = archive.folder / f".{last.name}.node-2.tmp"
    for left in (half, theirs):
        left.write_bytes(b"half")
    clear_halves(archive.folder, "node-1")
    assert (half.exists(), theirs.exists()) == (False, True)
    assert len(all_of(archive)) == len(RECORDS)


# -- damage --------------------------------------------------------------------------------------


def refused(archive: HistoryArchive) -> ArchiveError:
    with pytest.raises(ArchiveError) as caught:
        all_of(fresh(archive))
    assert caught.value.code in CODES
    return caught.value


def places(raw: bytes) -> dict[str, int]:
    """Return a byte of each class of a segment's bytes."""
    head = len(MAGIC) + NUMBER.size
    return {
        "magic": 3,
        "version": len(MAGIC),
        "kind of the head": head,
        "length of the head": head + 1,
        "head": head + HEAD.size + 20,
        "checksum of the head": raw.index(b"}", head) + 1,
        "schemas": raw.index(b'"type"'),
        "a record": len(raw) // 2,
        "the last record": len(raw) - 60,
        "kind of the end": len(raw) - 41,
        "length of the end": len(raw) - 40,
        "seal": len(raw) - 20,
        "checksum of the end": len(raw) - 1,
    }


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("place", places(MAGIC + b'    }"type"' + bytes(100)))
def test_a_damaged_byte_is_told_of_with_its_file(
    archive: HistoryArchive, number: int, place: str
) -> None:
    file = path_of(archive.folder, archive.begins()[number])
    raw = bytearray(file.read_bytes())
    raw[places(bytes(raw))[place]] ^= 0x20
    file.write_bytes(raw)
    assert refused(archive).file == file.name


@pytest.mark.thorough
def test_any_damaged_byte_of_a_small_segment_is_told_of(tmp_path: Path) -> None:
    archive = HistoryArchive(tmp_path, "c", lambda: "id")
    write(tmp_path, 0, RECORDS[:1], NO_SEAL)
    file = path_of(tmp_path, 0)
    whole = file.read_bytes()
    step = max(1, len(whole) // 600)
    for at in [*range(0, len(whole), step), *range(len(whole) - 400, len(whole))]:
        raw = bytearray(whole)
        raw[at] ^= 1
        file.write_bytes(raw)
        assert refused(archive).file == file.name, at


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("left", [0, 1, 20, 30, 200, -60, -36, -1])
def test_a_file_that_is_cut_off_is_told_of(archive: HistoryArchive, number: int, left: int) -> None:
    file = path_of(archive.folder, archive.begins()[number])
    file.write_bytes(file.read_bytes()[:left] if left else b"")
    assert refused(archive).file == file.name


def test_what_follows_the_end_is_told_of(archive: HistoryArchive) -> None:
    file = path_of(archive.folder, 0)
    file.write_bytes(file.read_bytes() + b"x")
    assert refused(archive).file == file.name


@pytest.mark.parametrize("number", range(2))
def test_a_file_that_is_missing_is_named(archive: HistoryArchive, number: int) -> None:
    file = path_of(archive.folder, archive.begins()[number])
    file.unlink()
    assert refused(archive).file == file.name
    with pytest.raises(ArchiveError) as caught:
        fresh(archive).headers()
    assert caught.value.file == file.name


def test_the_newest_file_is_missed_where_the_topic_begins_behind_it(
    archive: HistoryArchive,
) -> None:
    begin = archive.begins()[-1]
    archive.require(Offset(44))
    path_of(archive.folder, begin).unlink()
    archive.require(begin)
    with pytest.raises(ArchiveError) as caught:
        archive.require(Offset(begin + 1))
    assert caught.value.file == path_of(archive.folder, begin).name


@pytest.mark.parametrize("more", [{"cluster_id": "another"}, {"cluster": "another"}])
def test_a_segment_of_another_cluster_is_foreign(
    archive: HistoryArchive, more: dict[str, str]
) -> None:
    file = path_of(archive.folder, 0)
    file.unlink()
    write(archive.folder, 0, PARTS[0], NO_SEAL, **more)
    found = refused(archive)
    assert (found.code, found.file) == ("history_archive_foreign", file.name)


def test_a_segment_of_another_archive_of_the_cluster_does_not_fit(
    archive: HistoryArchive, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    other = HistoryArchive(folder, "c", lambda: "id")
    write(folder, 0, [*PARTS[0][:2], message(6, b"other")], NO_SEAL)
    assert other.end() == archive.begins()[1]
    file = path_of(archive.folder, archive.begins()[1])
    write(folder, other.end(), PARTS[1], other.seal_at_end())
    shutil.copy(path_of(folder, archive.begins()[1]), file)
    assert refused(archive).file == file.name


def test_a_segment_under_another_name_does_not_fit(archive: HistoryArchive) -> None:
    begins = archive.begins()
    shutil.copy(path_of(archive.folder, begins[2]), path_of(archive.folder, begins[1]))
    assert refused(archive).file == path_of(archive.folder, begins[1]).name


BROKEN_HEADS: list[dict[str, Any]] = [
    {"count": 4},
    {"end": Offset(4)},
    {"end": Offset(100)},
    {"begin": Offset(4)},
    {"count": "3"},
    {"previous": "1" * 64},
]


@pytest.mark.parametrize("wrong", BROKEN_HEADS)
def test_a_head_that_tells_of_other_records_is_damage(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    told = {"begin": 0, "previous": NO_SEAL, **wrong}
    begin, previous = told.pop("begin"), told.pop("previous")
    write(tmp_path, begin, PARTS[0], previous, **told)
    good = path_of(tmp_path, 0)
    path_of(tmp_path, begin).rename(good)
    with pytest.raises(ArchiveError) as caught:
        all_of(HistoryArchive(tmp_path, "c"))
    assert caught.value.file == good.name


# -- the folder ----------------------------------------------------------------------------------


def test_a_folder_that_takes_no_files_is_told_of(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    made: list[Callable[[], Any]] = [
        HistoryArchive(file / "below", "c").check_writable,
        HistoryArchive(file, "c").check_writable,
        HistoryArchive(tmp_path / "nowhere", "c").begins,
    ]
    for call in made:
        with pytest.raises(ArchiveError) as caught:
            call()
        assert caught.value.code == "history_archive_unavailable"
    HistoryArchive(tmp_path / "new" / "one", "c").check_writable()
    assert os.listdir(tmp_path / "new" / "one") == []


def test_few_segments_are_held_in_memory(
    archive: HistoryArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_archive, "HELD_MAX", 1)
    for _ in range(2):
        assert len(all_of(archive)) == len(RECORDS)
        assert len(archive._held) == 1
