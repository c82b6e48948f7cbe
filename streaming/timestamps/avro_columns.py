"""Avro records of plain fields, read many at once: column by column, not record by record.

Records are framed as `schemas.registry` says. A writer's version whose fields are all `int`, `long`
or `string` is read here, some ten operations of numpy a field. What is not certain to be read as a
decoder of single records would read it is left to one: an unknown version, a number that is too
large, a text that is no UTF-8, a byte too few or too many. Nothing is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from schemas.registry import HEAD_BYTES, Schema

Numbers = NDArray[Any]
Fields = tuple[tuple[str, str], ...]
"""Names and kinds of a writer's fields, in order."""

PLAIN = frozenset({"int", "long", "string"})
TEXT_MAX = 256
"""Longer texts are left to the other decoder, in bytes."""

PADDING = 16
"""So many bytes after the last one may be looked at."""

WORD = np.uint64
STOP = WORD(0x8080_8080_8080_8080)
"""The bit of each byte that tells that the number goes on."""

PAIRS = (
    (WORD(0x007F_007F_007F_007F), WORD(0x7F00_7F00_7F00_7F00), WORD(1)),
    (WORD(0x0000_3FFF_0000_3FFF), WORD(0x3FFF_0000_3FFF_0000), WORD(2)),
    (WORD(0x0000_0000_0FFF_FFFF), WORD(0x0FFF_FFFF_0000_0000), WORD(4)),
)
"""Neighbours that are moved together: groups of 7 bits to one of 56."""

PRIME = WORD(0x9E37_79B9_7F4A_7C15)
ZERO, ONE = WORD(0), WORD(1)


class Decoded(NamedTuple):
    """The rows that were read, ascending, and their columns: numbers signed, texts as codes."""

    rows: NDArray[np.intp]
    numbers: Mapping[str, NDArray[np.int64]]
    texts: Mapping[str, tuple[Sequence[str], NDArray[np.intp]]]


def plain_fields(schema: Schema) -> Fields | None:
    """Return the fields of a version, None if it has others than plain ones."""
    found = tuple((field["name"], field["type"]) for field in schema.parsed["fields"])
    is_plain = all(isinstance(kind, str) and kind in PLAIN for _, kind in found)
    return found if is_plain else None


def decoded(values: pa.BinaryArray, head: bytes, fields: Fields) -> Decoded:
    """Read all records of one version, whose fields are plain, among the values."""
    words, at, end = _bytes_of(values)
    rows = np.flatnonzero(end - at >= HEAD_BYTES)
    at, end = at[rows], end[rows]
    first, second = WORD(int.from_bytes(head[:8], "little")), int.from_bytes(head[8:], "little")
    chosen = (_word(words, at) == first) & (_word(words, at + 8) & WORD(0xFFFF) == WORD(second))
    rows, at, end = rows[chosen], at[chosen] + HEAD_BYTES, end[chosen]
    reading = _Reading(words, at, end)
    numbers = {}
    texts = {}
    for name, kind in fields:
        if kind == "string":
            texts[name] = reading.text()
        else:
            numbers[name] = reading.number(kind)
    good = reading.good & (reading.at == end)
    if good.all():
        return Decoded(rows, numbers, texts)
    return Decoded(
        rows[good],
        {name: column[good] for name, column in numbers.items()},
        {name: (known, codes[good]) for name, (known, codes) in texts.items()},
    )


class _Reading:
    """Where each record is read, and whether all was well so far. `at` is never after its end."""

    def __init__(self, words: Numbers, at: Numbers, end: Numbers) -> None:
        self.at = at
        self.good: Any = np.ones(len(at), np.bool_)
        self._words = words
        self._end = end

    def number(self, kind: str) -> NDArray[np.int64]:
        """Return the next field of every record: a varint, zigzag."""
        word = _word(self._words, self.at)
        stop = ~word & STOP
        lowest = stop & (~stop + ONE)
        mask = lowest ^ (lowest - ONE)  # All of it, if the number is longer than a word.
        bits = word & mask & ~STOP
        for low, high, shift in PAIRS:
            bits = (bits & low) | ((bits & high) >> shift)
        size = (np.bitwise_count(mask) >> 3).astype(np.int64)
        long = np.flatnonzero(stop == ZERO)
        if len(long):
            rest = _word(self._words, self.at[long] + 8)
            goes_on = rest >> WORD(7) & ONE
            tenth = rest >> WORD(8) & WORD(0xFF)
            bits[long] |= (rest & WORD(0x7F)) << WORD(56) | (goes_on & tenth) << WORD(63)
            size[long] = 9 + goes_on.astype(np.int64)
            self.good[long] &= (goes_on == ZERO) | (tenth <= ONE)
        self._pass(size)
        found: NDArray[np.int64] = (bits >> ONE ^ (~(bits & ONE) + ONE)).view(np.int64)
        if kind == "int":
            self.good &= found == found.astype(np.int32)
        return found

    def text(self) -> tuple[Sequence[str], NDArray[np.intp]]:
        """Return what texts the next field is, and for every record which of them."""
        sizes = self.number("long")
        self.good &= (sizes >= 0) & (sizes <= np.minimum(TEXT_MAX, self._end - self.at))
        sizes[~self.good] = 0
        words = [
            _word(self._words, self.at + np.minimum(begin, sizes)) & _lowest(sizes - begin)
            for begin in range(0, int(sizes.max(initial=0)), 8)
        ]
        mixed = sizes.view(WORD) * PRIME
        for word in words:
            mixed = (mixed ^ word) * PRIME
            mixed ^= mixed >> WORD(32)
        encoded = pa.array(mixed).dictionary_encode()
        codes = encoded.indices.to_numpy().astype(np.intp)
        first = np.zeros(len(encoded.dictionary), np.intp)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        of_code = first[codes]
        columns: Sequence[Numbers] = (sizes, *words)
        for column in columns:  # Two texts may have mixed to the same.
            self.good &= column == column[of_code]
        known = [self._text(words, int(sizes[row]), row) for row in first.tolist()]
        unknown = [code for code, text in enumerate(known) if text is None]
        if unknown:
            self.good[np.isin(codes, unknown)] = False
        self._pass(sizes)
        return [text or "" for text in known], codes

    def _text(self, words: Sequence[Numbers], size: int, row: int) -> str | None:
        try:
            return b"".join(word[row].tobytes() for word in words)[:size].decode()
        except UnicodeDecodeError:
            return None

    def _pass(self, sizes: Numbers) -> None:
        self.at = self.at + sizes
        self.good &= self.at <= self._end
        self.at = np.minimum(self.at, self._end)


def _bytes_of(values: pa.BinaryArray) -> tuple[Numbers, Numbers, Numbers]:
    """Return all bytes as words of eight, and where each value begins and ends."""
    _, offsets, data = values.buffers()
    where = np.frombuffer(offsets, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
    begin, end = int(where[0]), int(where[-1])
    padded = np.zeros((end - begin + PADDING + 7) // 8 + 1, WORD)
    if data is not None:
        held = np.frombuffer(data, np.uint8)[begin:end]
        padded.view(np.uint8)[: len(held)] = held
    where -= begin
    return padded, where[:-1], where[1:]


def _word(words: Numbers, at: Numbers) -> Numbers:
    """Return the eight bytes from each place on; the first is the lowest."""
    place, shift = at >> 3, ((at & 7) << 3).view(WORD)
    found: Numbers = (words[place] >> shift) | (words[place + 1] << ONE << (WORD(63) - shift))
    return found


def _lowest(count: Numbers) -> Numbers:
    """Return words of which the lowest bytes are set, none to all eight."""
    bits = np.clip(count, 0, 8) << 3
    return np.where(bits == 64, ~ZERO, (ONE << np.minimum(bits, 63).view(WORD)) - ONE)
