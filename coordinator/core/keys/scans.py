"""Scans: which part of an index they cover, where they go on, and how their parts are merged. Pure.

An entry is what `coordinator.core.keys.scan_pages` says: key and document as bytes in the order of
the index. A scan covers the entries within bounds, ascending or descending; it goes on after the
last entry that was answered, so that a cursor holds for as long as the index does, whoever answers.

Invariant of a gathering: an entry is released only when no part can still deliver an earlier one.
"""

from __future__ import annotations

import base64
import binascii
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple
from zlib import crc32

from coordinator.core.keys.collation import EVERYTHING, Bounds, after
from coordinator.core.keys.key_order import KeyOrder
from coordinator.core.keys.topology import RangeTopology, topology_of
from coordinator.core.model.entities import Index


class ScanError(ValueError):
    """What was asked for is no scan of this index."""


# -- what is covered -----------------------------------------------------------------------------


class Cover(NamedTuple):
    """The part of an index that is scanned; `key` if that is one key: all of its bytes."""

    bounds: Bounds
    key: bytes | None = None


ALL = Cover(EVERYTHING)
FORMS = ("equals", "prefix", "range", "starts_with")
RANGE_FIELDS = frozenset({"low", "high", "include_low", "include_high"})


def cover_of(scan: Mapping[str, Any], order: KeyOrder) -> Cover:
    """Return what a scan covers: one of `FORMS`, or nothing for all. Raises ScanError."""
    if len(scan) > 1 or not set(scan).issubset(FORMS):
        raise ScanError(f"a scan is one of {', '.join(FORMS)}, or empty for all of the index")
    if not scan:
        return ALL
    ((form, value),) = scan.items()
    try:
        return _MAKERS[form](value, order)
    except ScanError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise ScanError(f"{form}: {error}") from error


def _equals(value: Any, order: KeyOrder) -> Cover:
    key = _components("equals", value)
    size = len(order.descending)
    if len(key) < size:
        raise ScanError(f"equals: a key of this index has {size} components; for fewer use prefix")
    return _prefix(key, order)


def _prefix(value: Any, order: KeyOrder) -> Cover:
    key = _components("prefix", value)
    whole = len(key) == len(order.descending)
    return Cover(order.prefix_bounds(key), order.encode(key) if whole else None)


def _range(value: Any, order: KeyOrder) -> Cover:
    if not isinstance(value, Mapping) or set(value) - RANGE_FIELDS:
        raise ScanError(f"range: an object with {', '.join(sorted(RANGE_FIELDS))}")
    low, high = value.get("low"), value.get("high")
    include = {name: value.get(name, True) for name in ("include_low", "include_high")}
    if not all(isinstance(flag, bool) for flag in include.values()):
        raise ScanError("range: include_low and include_high are true or false")
    return Cover(
        order.range_bounds(
            None if low is None else _components("low", low),
            None if high is None else _components("high", high),
            **include,
        )
    )


def _starts_with(value: Any, order: KeyOrder) -> Cover:
    key = _components("starts_with", [value] if isinstance(value, str) else value)
    if not key or not isinstance(key[-1], str):
        raise ScanError("starts_with: a string, or components of which the last one is a string")
    begin = order.encode(key)[:-1]  # Without the byte that ends a string, all longer ones begin so.
    return Cover(Bounds(begin, after(begin)))


def _components(what: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ScanError(f"{what}: a list of the components of a key")
    return tuple(value)


_MAKERS = {"equals": _equals, "prefix": _prefix, "range": _range, "starts_with": _starts_with}


def slices_of(index: Index, cover: Cover) -> tuple[int, ...]:
    """Return the numbers of the slices that can have what a scan covers, in the index's order."""
    topology = topology_of(index)
    if cover.key is not None:
        return (topology.slice_of(cover.key).number,)
    if not isinstance(topology, RangeTopology):
        return tuple(piece.number for piece in index.slices)
    first = bisect_right(topology.bounds, cover.bounds.begin)
    partitions = topology.partitions[first : bisect_left(topology.bounds, cover.bounds.end) + 1]
    return tuple(piece.number for partition in partitions for piece in partition.slices)


# -- cursors -------------------------------------------------------------------------------------

CURSOR = struct.Struct(">BQ8sQQ")
CHECKSUM = struct.Struct(">I")
CURSOR_VERSION = 3
CURSOR_LENGTH_MAX = 16_384


def scan_digest(index_id: int, bounds: Bounds, descending: bool) -> bytes:
    """Return what tells a scan from others: a cursor is for one scan only."""
    parts = (b"%d" % index_id, b"\x01" if descending else b"\x00", bounds.begin, bounds.end)
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return blake2b(framed, digest_size=8).digest()


class Cursor(NamedTuple):
    """Where a scan of an index goes on: after `entry`, at the stability timestamp `number` (0: at
    none). `cas` is how far the node was that planned the page before.

    A checksum is in it: of a part of a cursor, rows would be skipped in silence.
    """

    index_id: int
    scan: bytes
    number: int
    cas: int
    entry: bytes

    def __str__(self) -> str:
        head = CURSOR.pack(CURSOR_VERSION, self.index_id, self.scan, self.number, self.cas)
        raw = head + self.entry
        return base64.urlsafe_b64encode(raw + CHECKSUM.pack(crc32(raw))).rstrip(b"=").decode()

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Return the cursor that `text` is. Raises ScanError."""
        if len(text) > CURSOR_LENGTH_MAX:
            raise ScanError("after: that is no cursor")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
            version, index_id, scan, number, cas = CURSOR.unpack_from(raw)
        except (ValueError, binascii.Error, struct.error) as error:
            raise ScanError("after: that is no cursor") from error
        if version != CURSOR_VERSION:
            raise ScanError("after: that is no cursor of this version")
        cursor = cls(index_id, scan, number, cas, raw[CURSOR.size : -CHECKSUM.size])
        if str(cursor) != text:
            raise ScanError("after: that is a part of a cursor, or a changed one")
        return cursor


def rest_of(bounds: Bounds, after: bytes | None, descending: bool) -> Bounds:
    """Return what of `bounds` comes after an entry, in the order of the scan."""
    if after is None:
        return bounds
    if descending:
        return Bounds(bounds.begin, min(bounds.end, after))
    return Bounds(max(bounds.begin, after + b"\x00"), bounds.end)


# -- gathering -----------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Part:
    """Slices that are scanned together: what came of them, and whether there is more.

    `after` is the last entry that came, also if it was released since.
    """

    slices: tuple[int, ...]
    after: bytes | None = None
    more: bool = True
    waiting: Sequence[bytes] = ()


@dataclass(slots=True)
class Gathering:
    """Merges the pages of the parts of a scan until `limit` entries are released."""

    limit: int
    descending: bool
    parts: list[Part] = field(default_factory=list)
    released: list[bytes] = field(default_factory=list)

    def missing(self) -> list[Part]:
        """Release what can be, and return the parts whose next page is needed to go on."""
        self._release()
        if len(self.released) >= self.limit:
            return []
        return [part for part in self.parts if part.more and not part.waiting]

    def add(self, part: Part, entries: Sequence[bytes], more: bool) -> None:
        """Note the next page of a part that was missing."""
        part.more = more
        if entries:
            part.waiting = entries
            part.after = entries[-1]

    def split(self, part: Part, groups: Iterable[tuple[int, ...]]) -> list[Part]:
        """Go on with the slices of a part that is missing in these groups; return their parts."""
        parts = [Part(group, part.after) for group in groups]
        self.parts.remove(part)
        self.parts.extend(parts)
        return parts

    @property
    def more(self) -> bool:
        """Tell whether there are, or may be, entries after the released ones."""
        return any(part.more or part.waiting for part in self.parts)

    def _release(self) -> None:
        room = self.limit - len(self.released)
        if room <= 0 or any(part.more and not part.waiting for part in self.parts):
            return
        bound = self._bound()
        ready = [self._pop_ready(part, bound) for part in self.parts]
        if sum(map(bool, ready)) == 1:
            merged: Sequence[bytes] = next(filter(None, ready))
        else:
            # Sorting merges runs, and does so several times faster than heapq.merge.
            merged = sorted(chain.from_iterable(ready), reverse=self.descending)
        self.released.extend(merged[:room])
        if len(merged) > room:
            self._give_back(ready, merged[room])

    def _bound(self) -> bytes | None:
        """Return the entry up to which nothing can come before what waits; None for no bound."""
        lasts = [part.waiting[-1] for part in self.parts if part.more]
        if not lasts:
            return None
        return max(lasts) if self.descending else min(lasts)

    def _pop_ready(self, part: Part, bound: bytes | None) -> Sequence[bytes]:
        """Take what waits of a part up to `bound`."""
        waiting = part.waiting
        if bound is None or not waiting:
            part.waiting = ()
            return waiting
        if self.descending:
            end = bisect_left(waiting, True, key=lambda entry: entry < bound)
        else:
            end = bisect_left(waiting, True, key=lambda entry: entry > bound)
        part.waiting = waiting[end:]
        return waiting[:end]

    def _give_back(self, taken: list[Sequence[bytes]], first: bytes) -> None:
        """Let wait again what was taken of the parts, from the entry `first` on."""
        for part, entries in zip(self.parts, taken, strict=True):
            if self.descending:
                begin = bisect_left(entries, True, key=lambda entry: entry <= first)
            else:
                begin = bisect_left(entries, True, key=lambda entry: entry >= first)
            part.waiting = [*entries[begin:], *part.waiting]
