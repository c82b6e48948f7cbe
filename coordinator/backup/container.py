"""The file of a backup: frames of bytes, each with a checksum, and an end that seals them all.

Knows nothing of what the frames mean. A reader takes no byte for granted: it refuses a length
before it makes room for it, a frame before it hands it over, and a file without its end.

    file  = MAGIC, version (u32), frame*, the frame END
    frame = kind (u8), length (u32), payload, CRC-32 (u32)

Numbers are little-endian. The CRC-32 of a frame goes on from that of the frame before it, so no
frame can be left out, doubled or moved. The payload of END is the BLAKE2b-256 of all bytes before
that frame; no byte follows it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from typing import BinaryIO, NamedTuple

from coordinator.backup.errors import BackupError

MAGIC = b"indexctl backup\n"
VERSION = 1
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""A record of Kafka weighs 4 MiB at most, and a frame of many is closed far below that."""

HEAD, SUM, NUMBER = struct.Struct("<BI"), struct.Struct("<I"), struct.Struct("<I")
END = 0
SEAL_BYTES = 32


class Frame(NamedTuple):
    """A frame as it was written."""

    kind: int
    payload: bytes


def damaged(what: str) -> BackupError:
    """Return the refusal of a file that is not as it was written."""
    return BackupError("backup_damaged", f"the backup is damaged: {what}; nothing was written")


class Writer:
    """Writes frames to a file that is open for writing, from its start."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._seal = blake2b(digest_size=SEAL_BYTES)
        self._sum = 0
        self.size = 0
        self._put(MAGIC + NUMBER.pack(VERSION))

    def frame(self, kind: int, payload: bytes) -> None:
        """Write a frame. Raises OSError."""
        if len(payload) > FRAME_BYTES_MAX:
            text = f"{len(payload)} bytes do not fit a frame of {FRAME_BYTES_MAX}"
            raise BackupError("backup_failed", text)
        head = HEAD.pack(kind, len(payload))
        self._sum = zlib.crc32(payload, zlib.crc32(head, self._sum))
        self._put(head + payload + SUM.pack(self._sum))

    def end(self) -> None:
        """Seal what was written. Raises OSError."""
        self.frame(END, self._seal.digest())

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._seal.update(data)
        self.size += len(data)


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield the frames of a file that is open for reading, from its start, without its END.

    Whoever has taken the last of them knows that the file is as it was written. Raises BackupError
    `backup_damaged`, `not_a_backup`, `backup_version`; OSError.
    """
    seal = blake2b(digest_size=SEAL_BYTES)
    begin = file.read(len(MAGIC) + NUMBER.size)
    if begin[: len(MAGIC)] != MAGIC[: len(begin)] or not begin:
        raise BackupError("not_a_backup", "that is no file of `indexctl backup`")
    if len(begin) < len(MAGIC) + NUMBER.size:
        raise damaged("it ends in its first bytes")
    (version,) = NUMBER.unpack_from(begin, len(MAGIC))
    if version != VERSION:
        text = f"the backup has format {version}, and this version reads format {VERSION}"
        raise BackupError("backup_version", text)
    seal.update(begin)
    sum_, at = 0, len(begin)
    while True:
        sealed = seal.digest()
        head = _exactly(file, HEAD.size, at)
        kind, length = HEAD.unpack(head)
        if length > FRAME_BYTES_MAX:
            raise damaged(f"a frame at byte {at} says that it has {length} bytes")
        payload = _exactly(file, length, at)
        sum_ = zlib.crc32(payload, zlib.crc32(head, sum_))
        tail = _exactly(file, SUM.size, at)
        if tail != SUM.pack(sum_):
            raise damaged(f"the checksum of the frame at byte {at} is wrong")
        if kind == END:
            if payload != sealed:
                raise damaged("its bytes do not add up to what its end says")
            if file.read(1):
                raise damaged("something follows its end")
            return
        for part in (head, payload, tail):
            seal.update(part)
        at += len(head) + length + len(tail)
        yield Frame(kind, payload)


def _exactly(file: BinaryIO, count: int, at: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise damaged(f"it ends within the frame at byte {at}")
    return found
