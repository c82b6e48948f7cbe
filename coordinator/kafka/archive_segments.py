"""The files of the archive of `history`: segments of the log, each in a file that never changes.

A segment is a file of frames (`runtime.frames`). It says of which cluster it is, which offsets it
stands for, which CAS it has, and the seal of the segment before it: so none can be left out,
changed or taken from another archive. It also has the schemas of its records, for other readers.

    HEAD     JSON: see `Header`
    SCHEMAS  JSON: the Avro schemas, by the fingerprint that records begin with
    RECORDS  records as they were written, with offset, time, key, value and headers

Its name is the offset with which it begins. Whoever writes one first has written it: nobody
replaces it, so two masters that archive at once agree on what there is.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, get_args

from confluent_kafka import Message

from coordinator.core.model.entities import Entity
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.runtime.frames import (
    END,
    SEAL_BYTES,
    SUM,
    BadFrames,
    Frame,
    FrameWriter,
    frames_in,
)
from schemas.registry import registry

MAGIC = b"indexctl history segment\n"
VERSION = 1
HEAD, SCHEMAS, RECORDS = 1, 2, 3
SUFFIX, HALF_SUFFIX = ".segment", ".tmp"
PREFIX = "history-"
NO_SEAL = "0" * (2 * SEAL_BYTES)
"""What the first segment says of the one before it."""

BATCH_BYTES = 256 * 1024
RECORD = struct.Struct("<qBqiiI")
"""Offset, type of the time, time, length of key and of value (-1: there is none), headers."""

NAME, VALUE = struct.Struct("<H"), struct.Struct("<i")
UNREADABLE = (BadFrames, struct.error, TypeError, ValueError, KeyError, RecursionError)


class ArchiveError(Exception):
    """The archive cannot be used; `code` is stable, `file` is what is wrong or missing."""

    def __init__(self, code: str, message: str, file: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.file = file


def damaged(file: Path, what: str) -> ArchiveError:
    return ArchiveError("history_archive_damaged", f"{file}: {what}", file.name)


def unavailable(path: Path, error: OSError) -> ArchiveError:
    text = f"{path} cannot be used: {error.strerror or error}"
    return ArchiveError("history_archive_unavailable", text, path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a segment says of itself.

    It stands for the offsets from `begin` on, below `end`: what it does not have of them are marks
    of transactions, and records that were rolled back.
    """

    cluster: str
    cluster_id: str
    begin: Offset
    end: Offset
    count: int
    first_cas: Cas
    last_cas: Cas
    previous: str
    """The seal of the segment before it."""


class Segment(NamedTuple):
    """A segment that was read to its end, and found to be whole."""

    header: Header
    messages: tuple[Message, ...]
    seal: str


def path_of(folder: Path, begin: int) -> Path:
    """Return the file of the segment that begins at an offset."""
    return folder / f"{PREFIX}{begin:020d}{SUFFIX}"


def begins_in(folder: Path) -> list[Offset]:
    """Return where the segments of a folder begin, in order. Raises OSError."""
    names = (name for name in os.listdir(folder) if name.startswith(PREFIX))
    numbers = (name[len(PREFIX) : -len(SUFFIX)] for name in names if name.endswith(SUFFIX))
    return sorted(Offset(int(number)) for number in numbers if number.isdecimal())


# -- writing -------------------------------------------------------------------------------------


def write_segment(folder: Path, writer: str, header: Header, messages: Sequence[Message]) -> None:
    """Write a segment, unless somebody has written the one that begins there. Raises OSError.

    `writer` is whoever writes: no two write under one name at a time. When this returns, the
    segment is on the disk; whose it is, whoever reads it back finds out.
    """
    final = path_of(folder, header.begin)
    half = folder / f".{final.name}.{writer}{HALF_SUFFIX}"
    # It may be the segment itself, by a second name: whoever was killed has not taken that away.
    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            _write(file, header, messages)
            file.flush()
            os.fsync(file.fileno())
            # So that what is read back is what the disk has.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(FileExistsError):
            os.link(half, final)
    finally:
        half.unlink(missing_ok=True)
    sync_folder(folder)


def clear_halves(folder: Path, writer: str) -> None:
    """Delete what this writer has left half-written in an earlier life. Raises OSError."""
    for half in folder.glob(f".{PREFIX}*.{writer}{HALF_SUFFIX}"):
        half.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power failure. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(file: BinaryIO, header: Header, messages: Iterable[Message]) -> None:
    writer = FrameWriter(file, MAGIC, VERSION)
    writer.frame(HEAD, json.dumps(asdict(header), indent=1).encode())
    writer.frame(SCHEMAS, json.dumps(_schemas()).encode())
    batch = b""
    for message in messages:
        batch += encode(message)
        if len(batch) >= BATCH_BYTES:
            writer.frame(RECORDS, batch)
            batch = b""
    if batch:
        writer.frame(RECORDS, batch)
    writer.end()


def _schemas() -> dict[str, Any]:
    return {
        schema.fingerprint: schema.parsed
        for kind in (Event, *get_args(Entity))
        for schema in registry().versions(kind.__name__)
    }


def encode(message: Message) -> bytes:
    """Return all that a record is: two that are encoded alike are the same record."""
    key, value = message.key(), message.value()
    headers: Any = message.headers() or ()
    kind, at_ms = message.timestamp()
    offset = int(message.offset() or 0)
    parts = [
        RECORD.pack(offset, kind, at_ms, _length(key), _length(value), len(headers)),
        key or b"",
        value or b"",
    ]
    for name, content in headers:
        raw = name.encode()
        parts += [NAME.pack(len(raw)), raw, VALUE.pack(_length(content)), content or b""]
    return b"".join(parts)


def _length(content: bytes | None) -> int:
    return -1 if content is None else len(content)


# -- reading -------------------------------------------------------------------------------------


def read_header(file: Path) -> Header:
    """Return what a segment says of itself, without reading all of it. Raises ArchiveError."""
    try:
        with file.open("rb") as opened:
            return _header(next(frames_in(opened, MAGIC, VERSION)))
    except UNREADABLE as error:
        raise damaged(file, _reason(error)) from None
    except OSError as error:
        raise _missing_or(file, error) from None


def read_seal(file: Path) -> str:
    """Return the seal with which a file ends, whatever it is. Raises ArchiveError."""
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(0, size - SEAL_BYTES - SUM.size))
            return opened.read(SEAL_BYTES).hex()
    except OSError as error:
        raise _missing_or(file, error) from None


def read_segment(file: Path, topic: str) -> Segment:
    """Return a segment, whose records are those of a topic, once all of it is found to be right.

    Raises ArchiveError.
    """
    try:
        with file.open("rb") as opened:
            return _read(opened, topic)
    except UNREADABLE as error:
        raise damaged(file, _reason(error)) from None
    except OSError as error:
        raise _missing_or(file, error) from None


def _read(opened: BinaryIO, topic: str) -> Segment:
    header: Header | None = None
    messages: list[Message] = []
    seal = ""
    for number, frame in enumerate(frames_in(opened, MAGIC, VERSION)):
        if frame.kind == END:
            seal = frame.payload.hex()
        elif number == 0:
            header = _header(frame)
        elif frame.kind == RECORDS and number > 1:
            messages += _records(frame.payload, topic)
        elif (frame.kind, number) != (SCHEMAS, 1):
            raise BadFrames(f"a frame of kind {frame.kind} does not belong there")
    if header is None:
        raise BadFrames("it has nothing in it")
    offsets = [int(message.offset() or 0) for message in messages]
    ascend = all(one < other for one, other in pairwise(offsets))
    fits = bool(offsets) and header.begin <= offsets[0] and offsets[-1] == header.end - 1
    if len(messages) != header.count or not ascend or not fits:
        raise BadFrames("its records are not those that its head tells of")
    return Segment(header, tuple(messages), seal)


def _header(frame: Frame) -> Header:
    if frame.kind != HEAD:
        raise BadFrames("it does not begin with its head")
    told = json.loads(frame.payload)
    found = {field.name: told[field.name] for field in fields(Header)}
    for name, value in found.items():
        kind = str if name in ("cluster", "cluster_id", "previous") else int
        if type(value) is not kind:
            raise BadFrames(f"its head has no {name}")
    return Header(**found)


def _records(payload: bytes, topic: str) -> Iterator[Message]:
    at = 0

    def take(length: int) -> bytes | None:
        nonlocal at
        if length < 0:
            return None
        found = payload[at : at + length]
        if len(found) < length:
            raise BadFrames("a record is cut off")
        at += length
        return found

    while at < len(payload):
        offset, kind, at_ms, key, value, count = RECORD.unpack_from(payload, at)
        at += RECORD.size
        parts = take(key), take(value)
        headers: list[tuple[str, Any]] = []
        for _ in range(count):
            (length,) = NAME.unpack_from(payload, at)
            at += NAME.size
            name = (take(length) or b"").decode()
            (length,) = VALUE.unpack_from(payload, at)
            at += VALUE.size
            headers.append((name, take(length)))
        yield Message(
            topic=topic,
            partition=0,
            offset=offset,
            key=parts[0],
            value=parts[1],
            headers=headers or None,
            timestamp=(kind, at_ms),
        )


def _reason(error: Exception) -> str:
    if isinstance(error, BadFrames):
        return f"the segment is damaged: {error}"
    return f"the segment is damaged: {type(error).__name__}"


def _missing_or(file: Path, error: OSError) -> ArchiveError:
    if isinstance(error, FileNotFoundError) and file.parent.is_dir():
        return damaged(file, "the segment is missing")
    return unavailable(file, error)
