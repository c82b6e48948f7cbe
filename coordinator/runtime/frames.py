"""Files of frames: bytes with a checksum each, and an end that seals them all.

Knows nothing of what the frames mean. A reader takes no byte for granted: it refuses a length
before it makes room for it, a frame before it hands it over, and a file without its end.

    file  = magic, version (u32), frame*, the frame END
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

FRAME_BYTES_MAX = 8 * 1024 * 1024
"""A record of Kafka weighs 4 MiB at most, and a frame of many is closed far below that."""

HEAD, SUM, NUMBER = struct.Struct("<BI"), struct.Struct("<I"), struct.Struct("<I")
END = 0
SEAL_BYTES = 32


class Frame(NamedTuple):
    """A frame as it was written."""

    kind: int
    payload: bytes


class FrameTooLong(Exception):
    """A frame was to be written that no reader would take."""


class BadFrames(Exception):
    """A file is not as it was written; the message says where."""


class OtherMagic(BadFrames):
    """A file begins as another kind of file does."""


class OtherVersion(BadFrames):
    """A file has another version of the format."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it has format {version}")
        self.version = version


class FrameWriter:
    """Writes frames to a file that is open for writing, from its start."""

    def __init__(self, file: BinaryIO, magic: bytes, version: int) -> None:
        self._file = file
        self._seal = blake2b(digest_size=SEAL_BYTES)
        self._sum = 0
        self.size = 0
        self._put(magic + NUMBER.pack(version))

    def frame(self, kind: int, payload: bytes) -> None:
        """Write a frame. Raises FrameTooLong, OSError."""
        if len(payload) > FRAME_BYTES_MAX:
            text = f"{len(payload)} bytes do not fit a frame of {FRAME_BYTES_MAX}"
            raise FrameTooLong(text)
        head = HEAD.pack(kind, len(payload))
        self._sum = zlib.crc32(payload, zlib.crc32(head, self._sum))
        self._put(head + payload + SUM.pack(self._sum))

    def end(self) -> bytes:
        """Seal what was written, and return the seal. Raises OSError."""
        seal = self._seal.digest()
        self.frame(END, seal)
        return seal

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._seal.update(data)
        self.size += len(data)


def frames_in(file: BinaryIO, magic: bytes, version: int) -> Iterator[Frame]:
    """Yield the frames of a file that is open for reading, from its start; END is the last.

    Whoever has been given END knows that the file is as it was written. Raises BadFrames, OSError.
    """
    seal = blake2b(digest_size=SEAL_BYTES)
    begin = file.read(len(magic) + NUMBER.size)
    if begin[: len(magic)] != magic[: len(begin)] or not begin:
        raise OtherMagic("it is another kind of file")
    if len(begin) < len(magic) + NUMBER.size:
        raise BadFrames("it ends in its first bytes")
    (found,) = NUMBER.unpack_from(begin, len(magic))
    if found != version:
        raise OtherVersion(found)
    seal.update(begin)
    sum_, at = 0, len(begin)
    while True:
        sealed = seal.digest()
        head = _exactly(file, HEAD.size, at)
        kind, length = HEAD.unpack(head)
        if length > FRAME_BYTES_MAX:
            raise BadFrames(f"a frame at byte {at} says that it has {length} bytes")
        payload = _exactly(file, length, at)
        sum_ = zlib.crc32(payload, zlib.crc32(head, sum_))
        tail = _exactly(file, SUM.size, at)
        if tail != SUM.pack(sum_):
            raise BadFrames(f"the checksum of the frame at byte {at} is wrong")
        if kind == END:
            if payload != sealed:
                raise BadFrames("its bytes do not add up to what its end says")
            if file.read(1):
                raise BadFrames("something follows its end")
            yield Frame(kind, payload)
            return
        for part in (head, payload, tail):
            seal.update(part)
        at += len(head) + length + len(tail)
        yield Frame(kind, payload)


def _exactly(file: BinaryIO, count: int, at: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise BadFrames(f"it ends within the frame at byte {at}")
    return found
