"""A micro-batch as it comes from Spark, put in order: columns of SYNCs, and all other records raw.

Pure. Spark's tasks end in any order, and what is computed must not depend on it: everything here
is sorted by topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from coordinator.core.stream_records import Sync

Numbers = NDArray[Any]

OFFSET_BITS, PARTITION_BITS = 44, 14
"""Of the number by which rows are sorted; the place of the topic comes before."""


class RawRow(NamedTuple):
    """A record that is decoded here, and where it stood. `place` is that of its topic."""

    place: int
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, eq=False)
class SyncRows:
    """SYNCs of one bucket, in order: columns of one length, two of them unsigned."""

    bucket: str
    partition: Numbers
    offset: Numbers
    vbucket: Numbers
    projector: Numbers
    connection: Numbers
    ordinal: Numbers
    vbuuid: Numbers
    seqno: Numbers

    def __len__(self) -> int:
        return len(self.offset)

    @classmethod
    def joined(cls, bucket: str, parts: Sequence[SyncRows]) -> SyncRows:
        """Return the rows of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        kinds = (np.int64,) * 6 + (np.uint64,) * 2
        columns = (
            np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in parts)])
            for name, kind in zip(cls.__slots__[1:], kinds, strict=True)
        )
        return cls(bucket, *columns)

    def where(self, chosen: Numbers) -> SyncRows:
        """Return those rows that a mask or a list of places chooses."""
        columns = (getattr(self, name)[chosen] for name in self.__slots__[1:])
        return SyncRows(self.bucket, *columns)

    def record(self, row: int) -> Sync:
        """Return a row as the record that it was, without its time."""
        return Sync(
            self.bucket,
            int(self.vbucket[row]),
            int(self.projector[row]),
            int(self.connection[row]),
            int(self.ordinal[row]),
            int(self.vbuuid[row]),
            int(self.seqno[row]),
            0,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """A micro-batch: SYNCs by bucket, other records, and the next offset of each partition read."""

    count: int
    syncs: tuple[SyncRows, ...]
    raw: tuple[RawRow, ...]
    next_offsets: tuple[tuple[int, int, int], ...]
    """Place of the topic, partition, offset after the last record."""


NO_ROWS = Rows(0, (), (), ())


def rows_of(table: pa.Table) -> Rows:
    """Return the rows of a table with the columns of `source.columns`, in order."""
    if table.num_rows == 0:
        return NO_ROWS
    table = table.combine_chunks()
    numbers = _numbers(table)
    if np.any(numbers[1:] < numbers[:-1]):
        order = np.argsort(numbers, kind="stable")
        table, numbers = table.take(pa.array(order)), numbers[order]
    is_sync = pc.is_valid(table["connection"])
    return Rows(
        table.num_rows,
        _by_bucket(table.filter(is_sync)),
        _raw(table.filter(pc.invert(is_sync))),
        _next_offsets(numbers),
    )


def _numbers(table: pa.Table) -> Numbers:
    """Return the number of each row by which rows are sorted."""
    place, partition, offset = (_column(table, name) for name in ("place", "partition", "offset"))
    assert int(partition.max()) < 1 << PARTITION_BITS, "too many partitions"
    assert int(offset.max()) < 1 << OFFSET_BITS, "an offset that is too large"
    return ((place << PARTITION_BITS) + partition << OFFSET_BITS) + offset


def _next_offsets(numbers: Numbers) -> tuple[tuple[int, int, int], ...]:
    partitions = numbers >> OFFSET_BITS
    last = np.append(np.flatnonzero(partitions[1:] != partitions[:-1]), len(numbers) - 1)
    found = []
    for number in numbers[last].tolist():
        partition = number >> OFFSET_BITS
        place, partition = partition >> PARTITION_BITS, partition & (1 << PARTITION_BITS) - 1
        found.append((place, partition, (number & (1 << OFFSET_BITS) - 1) + 1))
    return tuple(found)


def _column(table: pa.Table, name: str) -> Numbers:
    column: Numbers = table[name].to_numpy()
    return column.astype(np.int64, copy=False)


def _by_bucket(table: pa.Table) -> tuple[SyncRows, ...]:
    """Return the SYNCs of each bucket, buckets by name."""
    if table.num_rows == 0:
        return ()
    buckets = table["bucket"].combine_chunks().dictionary_encode()
    if isinstance(buckets, pa.ChunkedArray):
        buckets = buckets.combine_chunks()
    names: list[str] = buckets.dictionary.to_pylist()
    signed = ("vbucket", "projector", "connection", "ordinal")
    columns = [_column(table, name) for name in ("partition", "offset", *signed)]
    columns += [_column(table, name).view(np.uint64) for name in ("vbuuid", "seqno")]
    if len(names) == 1:
        return (SyncRows(names[0], *columns),)
    codes = buckets.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    found = []
    for code, name in sorted(enumerate(names), key=lambda pair: pair[1]):
        chosen = order[bounds[code] : bounds[code + 1]]
        found.append(SyncRows(name, *(column[chosen] for column in columns)))
    return tuple(found)


def _raw(table: pa.Table) -> tuple[RawRow, ...]:
    names = ("place", "partition", "offset", "key", "value")
    columns: Sequence[list[Any]] = [table[name].to_pylist() for name in names]
    return tuple(RawRow(*row) for row in zip(*columns, strict=True))
