"""The page of entries that an indexer answers a scan with, as bytes. Pure.

An *entry* is the encoding of a key followed by the id of its document: comparing entries compares
keys, then ids, and no entry is in an index twice. A page is entries in the order of the scan, and
what it was read from; it is laid out so that neither side touches entry by entry:

    version 1, more 1, timestamps 2, entries 4, counted 8, number 8, hash 8 (all big-endian)
    the numbers of the stability timestamps that could be read from, 8 each
    the lengths of the entries, 2 each
    the entries

`more`: there are entries after the last one. `counted`: how many there were, where only counting
was asked for; the last entry is sent along if there are more. `number` and `hash` are those of the
stability timestamp that was read at, 0 if it was not one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

VERSION = 1
HEAD = struct.Struct(">BBHIQQQ")
LENGTH, NUMBER = np.dtype(">u2"), np.dtype(">u8")
MEDIA_TYPE = "application/vnd.index-page"
ENTRIES_MAX = 8_192
"""So many entries at most are in a page: it must not keep anybody for long."""
BYTES_MAX = 1024 * 1024


class Page(NamedTuple):
    """Entries in the order of a scan, and what they were read from."""

    entries: Sequence[bytes]
    more: bool = False
    counted: int = 0
    number: int = 0
    hash: int = 0
    held: tuple[int, ...] = ()


class PageError(ValueError):
    """The bytes are no page."""


def pack(page: Page) -> bytes:
    """Return the bytes of a page."""
    entries, more, counted, number, digest, held = page
    lengths = np.fromiter(map(len, entries), LENGTH, len(entries))
    head = HEAD.pack(VERSION, more, len(held), len(entries), counted, number, digest)
    numbers = np.array(held, NUMBER).tobytes()
    return b"".join((head, numbers, lengths.tobytes(), *entries))


def unpack(raw: bytes) -> Page:
    """Return the page that these bytes are. Raises PageError."""
    if len(raw) < HEAD.size:
        raise PageError("the bytes end in a head")
    version, more, timestamps, size, counted, number, digest = HEAD.unpack_from(raw)
    if version != VERSION:
        raise PageError(f"version {version} is unknown")
    at = HEAD.size
    begin = at + timestamps * NUMBER.itemsize
    body = begin + size * LENGTH.itemsize
    if len(raw) < body:
        raise PageError("the bytes end before the entries")
    held = tuple(np.frombuffer(raw, NUMBER, timestamps, at).tolist())
    lengths = np.frombuffer(raw, LENGTH, size, begin).tolist()
    ends = list(accumulate(lengths, initial=body))
    if ends[-1] != len(raw):
        raise PageError("the entries are not as long as they should be")
    return Page([raw[a:b] for a, b in pairwise(ends)], bool(more), counted, number, digest, held)
