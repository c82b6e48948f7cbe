"""Batches of Kafka as bytes, and how to have a broker take them: what no client would send."""

from __future__ import annotations

import socket
import struct
import time

from aiokafka.record.util import calc_crc32c, encode_varint

ZSTD, MAGIC = 4, 2
PRODUCE, PRODUCE_VERSION, ALL = 0, 7, -1
BLOCK_BYTES = 128 * 1024
RAW, REPEATED = 0, 1
KEY = b"k"
BOMB_BYTES = 150 * 1024 * 1024
"""Kafka's client unpacks no batch of more than 100 MB."""


def _varint(number: int) -> bytes:
    found = bytearray()
    encode_varint(number, found.append)
    return bytes(found)


def _block(kind: int, size: int, content: bytes, *, is_last: bool = False) -> bytes:
    return ((size << 3) | (kind << 1) | is_last).to_bytes(3, "little") + content


def zstd_bomb(count: int = 1) -> bytes:
    """Return records as zstd packs them, by hand; the value of the last one unpacks to spaces, so
    many as `BOMB_BYTES`. Source: RFC 8878, the formats of frames and of blocks."""
    head = b"".join(_record(number, b"x") for number in range(count - 1))
    body = _head(count - 1) + _varint(BOMB_BYTES)
    head += _varint(len(body) + BOMB_BYTES + 1) + body
    blocks = [_block(RAW, len(head), head)]
    blocks += [_block(REPEATED, BLOCK_BYTES, b" ")] * (BOMB_BYTES // BLOCK_BYTES)
    blocks.append(_block(RAW, 1, b"\0", is_last=True))
    window = 7 << 3  # 128 KiB
    return b"\x28\xb5\x2f\xfd" + bytes((0, window)) + b"".join(blocks)


def _head(number: int) -> bytes:
    """Return what a record begins with; without a key, a compacted topic would take none."""
    return b"\0" + _varint(0) + _varint(number) + _varint(len(KEY)) + KEY


def _record(number: int, value: bytes) -> bytes:
    body = _head(number) + _varint(len(value)) + value + b"\0"
    return _varint(len(body)) + body


def batch(packed: bytes, count: int = 1, codec: int = ZSTD) -> bytes:
    """Return a batch of so many records, which are packed."""
    now_ms = int(time.time() * 1000)
    rest = struct.pack(">hiqqqhii", codec, count - 1, now_ms, now_ms, -1, -1, -1, count) + packed
    tail = struct.pack(">ibI", -1, MAGIC, calc_crc32c(rest)) + rest
    return struct.pack(">qi", 0, len(tail)) + tail


def produce(servers: str, topic: str, partition: int, sent: bytes) -> int:
    """Have a broker take a batch; return its first offset."""
    host, _, port = servers.partition(",")[0].rpartition(":")
    name = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hhih", PRODUCE, PRODUCE_VERSION, 1, -1)
    about = struct.pack(">hhi", -1, ALL, 30_000) + struct.pack(">i", 1) + name
    body = head + about + struct.pack(">iii", 1, partition, len(sent)) + sent
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        (length,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(length, socket.MSG_WAITALL)
    _, code, offset = struct.unpack_from(">ihq", answer, 4 + 4 + len(name) + 4)
    assert code == 0, code
    return int(offset)
