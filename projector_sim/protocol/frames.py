"""The frames of a stream, as bytes: what the key-value store sends and a projector reads. Pure.

frame       u32 length of the rest, u8 type, body; all numbers are big-endian
BEGIN       u16 vbucket, u64 vbuuid, u64 seqno, u16 n, n times u64 vbuuid, u64 seqno
MUTATIONS   u16 vbucket, then mutations: u64 seqno, u8 live, u16 length of the id,
            u32 length of the document, id, document
SYNC        n times u16 vbucket, u64 seqno
END         u16 vbucket, u64 seqno, u8 reason
ROLLBACK    u16 vbucket, u64 seqno
CLOSE       the reason, as UTF-8
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coordinator.core.model.types import Seqno, Vbuuid
from projector_sim.protocol.failover import Branch, FailoverLog


class Kind(enum.IntEnum):
    """The types of frames."""

    BEGIN = 1
    MUTATIONS = 2
    SYNC = 3
    END = 4
    ROLLBACK = 5
    CLOSE = 6


class Reason(enum.IntEnum):
    """Why a vbucket's stream came to its end."""

    DONE = 0
    MOVED = 1
    CRASHED = 2
    CLOSED = 3
    DROPPED = 4


class Begin(NamedTuple):
    """From here on: the mutations of a vbucket after `seqno`, on the history `vbuuid`."""

    vbucket: int
    vbuuid: Vbuuid
    seqno: Seqno
    failover_log: FailoverLog


class Mutated(NamedTuple):
    """A document, or with `document` None its deletion."""

    vbucket: int
    seqno: Seqno
    key: bytes
    document: bytes | None


class Sync(NamedTuple):
    """The ends of snapshots that were reached: vbucket and seqno."""

    seqnos: tuple[tuple[int, int], ...]


class End(NamedTuple):
    """Nothing more comes of this vbucket; `seqno` is the last that there was."""

    vbucket: int
    seqno: Seqno
    reason: Reason


class Rollback(NamedTuple):
    """The vbucket is not streamed: who asked has to go back to `seqno`, at least."""

    vbucket: int
    seqno: Seqno


class Close(NamedTuple):
    """The server ends the connection."""

    reason: str


Frame = Begin | Mutated | Sync | End | Rollback | Close

HEAD = struct.Struct(">IB")
MUTATION = struct.Struct(">QBHI")
_BEGIN = struct.Struct(">HQQH")
_PAIR = struct.Struct(">QQ")
_VBUCKET = struct.Struct(">H")
_SEQNO = struct.Struct(">HQ")
_END = struct.Struct(">HQB")
_MUTATIONS_HEAD = struct.Struct(">IBH")


def pack_mutation(seqno: Seqno, key: bytes, value: bytes | None) -> bytes:
    """Return one mutation, as a part of a MUTATIONS frame."""
    if value is None:
        return MUTATION.pack(seqno, 0, len(key), 0) + key
    return MUTATION.pack(seqno, 1, len(key), len(value)) + key + value


def mutations_head(vbucket: int, size: int) -> bytes:
    """Return what comes before `size` bytes of mutations."""
    return _MUTATIONS_HEAD.pack(size + 3, Kind.MUTATIONS, vbucket)


def begin(vbucket: int, vbuuid: Vbuuid, seqno: Seqno, log: FailoverLog) -> bytes:
    pairs = b"".join(_PAIR.pack(*branch) for branch in log)
    return _frame(Kind.BEGIN, _BEGIN.pack(vbucket, vbuuid, seqno, len(log)) + pairs)


def sync(seqnos: Iterable[tuple[int, int]]) -> bytes:
    return _frame(Kind.SYNC, b"".join(_SEQNO.pack(*pair) for pair in seqnos))


def end(vbucket: int, seqno: Seqno, reason: Reason) -> bytes:
    return _frame(Kind.END, _END.pack(vbucket, seqno, reason))


def rollback(vbucket: int, seqno: Seqno) -> bytes:
    return _frame(Kind.ROLLBACK, _SEQNO.pack(vbucket, seqno))


def close(reason: str) -> bytes:
    return _frame(Kind.CLOSE, reason.encode())


def _frame(kind: Kind, body: bytes) -> bytes:
    return HEAD.pack(len(body) + 1, kind) + body


class Decoder:
    """Frames out of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete; ValueError: that is no stream of frames.

        To be read to its end before the next piece is fed.
        """
        data = self._rest + data
        place, limit = 0, len(data) - HEAD.size
        while place <= limit:
            size, kind = HEAD.unpack_from(data, place)
            after = place + HEAD.size + size - 1
            if after > len(data):
                break
            try:
                yield from _read(kind, data, place + HEAD.size, after)
            except struct.error as error:
                raise ValueError(f"a frame of {size} bytes: {error}") from error
            place = after
        self._rest = data[place:]


def _read(kind: int, data: bytes, place: int, after: int) -> Iterator[Frame]:
    if kind == Kind.MUTATIONS:
        (vbucket,) = _VBUCKET.unpack_from(data, place)
        place += _VBUCKET.size
        while place < after:
            seqno, live, key_size, size = MUTATION.unpack_from(data, place)
            place += MUTATION.size
            body = place + key_size
            yield Mutated(
                vbucket, seqno, data[place:body], data[body : body + size] if live else None
            )
            place = body + size
    elif kind == Kind.BEGIN:
        vbucket, vbuuid, seqno, _ = _BEGIN.unpack_from(data, place)
        pairs = _PAIR.iter_unpack(data[place + _BEGIN.size : after])
        yield Begin(vbucket, vbuuid, seqno, tuple(Branch(*pair) for pair in pairs))
    elif kind == Kind.SYNC:
        yield Sync(tuple(_SEQNO.iter_unpack(data[place:after])))
    elif kind == Kind.END:
        vbucket, seqno, reason = _END.unpack_from(data, place)
        yield End(vbucket, seqno, Reason(reason))
    elif kind == Kind.ROLLBACK:
        yield Rollback(*_SEQNO.unpack_from(data, place))
    elif kind == Kind.CLOSE:
        yield Close(data[place:after].decode())
    else:
        raise ValueError(f"there are no frames of type {kind}")
