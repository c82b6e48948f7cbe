"""A micro-batch as it comes from Spark, put in order: SYNCs as columns, all other records raw.

SYNC is nearly all of it. Read as columns it takes a fifth of a microsecond a record here; decoded
in the JVM, it took two there, and travelled as fifteen columns instead of five.

Pure. Spark's tasks end in any order, and what is computed must not depend on it: everything here
is sorted by topic, partition and offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coordinator.core.model.stream_records import Sync
from coordinator.core.model.types import Offset, Seqno, Vbuuid
from coordinator.kafka.topics import SYNC
from schemas.registry import Registry, registry
from streaming.timestamps.avro_columns import Fields, decoded, plain_fields
from streaming.timestamps.inputs import INPUTS

Numbers = NDArray[Any]

SYNC_NUMBERS = ("vbucket", "projector", "connection", "ordinal", "vbuuid", "seqno")

OFFSET_BITS, PARTITION_BITS = 44, 14
"""Of the number by which rows are sorted; the place of the topic comes before."""


class RawRow(NamedTuple):
    """A record that is decoded here, and where it stood. `place` is that of its topic."""

    place: int
    partition: int
    offset: Offset
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
            bucket=self.bucket,
            vbucket=int(self.vbucket[row]),
            projector=int(self.projector[row]),
            connection=int(self.connection[row]),
            ordinal=int(self.ordinal[row]),
            vbuuid=Vbuuid(int(self.vbuuid[row])),
            seqno=Seqno(int(self.seqno[row])),
            at_ms=0,
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """A micro-batch: SYNCs by bucket, other records, and where it begins and ends in each partition
    of which it has a record."""

    count: int
    syncs: tuple[SyncRows, ...]
    raw: tuple[RawRow, ...]
    next_offsets: tuple[tuple[int, int, int], ...]
    """Place of the topic, partition, offset after the last record."""
    first_offsets: tuple[tuple[int, int, int], ...] = ()
    """Place of the topic, partition, offset of the first record."""


NO_ROWS = Rows(0, (), (), ())


def rows_of(table: pa.Table, versions: Sequence[Layout] | None = None) -> Rows:
    """Return the rows of a table with the columns of `source.columns`, in order.

    `versions` are those of SYNC, by default the released ones; a SYNC of none of them is a raw row.
    """
    if table.num_rows == 0:
        return NO_ROWS
    versions = known_layouts() if versions is None else versions
    parts = table.to_batches()
    numbers = np.concatenate([_numbers(one) for one in parts])
    order = np.argsort(numbers, kind="stable")
    buckets = _Buckets(table.num_rows)
    begin = 0
    for one in parts:
        buckets.read(one, begin, versions)
        begin += one.num_rows
    numbers = numbers[order]
    return Rows(
        table.num_rows,
        buckets.rows(order, numbers),
        _raw(table.take(pa.array(order[~buckets.is_sync[order]]))),
        *_bounds(numbers),
    )


class Layout(NamedTuple):
    """How the records of one version of SYNC are told from others, and read as columns."""

    head: bytes
    fields: Fields


def layouts(schemas: Registry) -> tuple[Layout, ...]:
    """Return those of all versions that can be read as columns, the current one first."""
    found = []
    for version in schemas.versions(Sync.__name__):
        fields = plain_fields(version)
        kinds = dict(fields or ())
        numbers_are_there = all(kinds.get(name) in ("int", "long") for name in SYNC_NUMBERS)
        if fields is not None and numbers_are_there and kinds.get("bucket") == "string":
            found.append(Layout(version.head, fields))
    return tuple(found)


@cache
def known_layouts() -> tuple[Layout, ...]:
    """Return the layouts of the versions that were released."""
    return layouts(registry())


class _Buckets:
    """The columns of all SYNCs of a table, as far as they could be read."""

    def __init__(self, count: int) -> None:
        self.is_sync = np.zeros(count, np.bool_)
        self._codes = np.zeros(count, np.intp)
        self._columns = {name: np.zeros(count, np.int64) for name in SYNC_NUMBERS}
        self._names: dict[str, int] = {}

    def read(self, batch: pa.RecordBatch, begin: int, versions: Sequence[Layout]) -> None:
        """Read a part of the table that begins with this row of it."""
        left = np.flatnonzero(batch["place"].to_numpy() == INPUTS.index(SYNC))
        for head, fields in versions:
            if not len(left):
                return
            whole = len(left) == batch.num_rows
            values = batch["value"] if whole else batch["value"].take(pa.array(left))
            found = decoded(values, head, fields)
            rows = left[found.rows] + begin
            self.is_sync[rows] = True
            for name, column in self._columns.items():
                column[rows] = found.numbers[name]
            known, codes = found.texts["bucket"]
            ours = [self._names.setdefault(name, len(self._names)) for name in known]
            self._codes[rows] = np.array(ours, np.intp)[codes]
            left = np.delete(left, found.rows)

    def rows(self, order: Numbers, numbers: Numbers) -> tuple[SyncRows, ...]:
        """Return the SYNCs of each bucket, buckets by name; `numbers` are in that order."""
        chosen = self.is_sync[order]
        order, numbers = order[chosen], numbers[chosen]
        codes = self._codes[order]
        by_bucket = np.argsort(codes, kind="stable") if len(self._names) > 1 else slice(None)
        order, numbers, codes = order[by_bucket], numbers[by_bucket], codes[by_bucket]
        bounds = np.searchsorted(codes, np.arange(len(self._names) + 1))
        columns = [
            numbers >> OFFSET_BITS & (1 << PARTITION_BITS) - 1,
            numbers & (1 << OFFSET_BITS) - 1,
            *(column[order] for column in self._columns.values()),
        ]
        columns[-2:] = [column.view(np.uint64) for column in columns[-2:]]
        return tuple(
            SyncRows(name, *(column[bounds[code] : bounds[code + 1]] for column in columns))
            for name, code in sorted(self._names.items())
            if bounds[code] < bounds[code + 1]
        )


def _numbers(batch: pa.RecordBatch) -> Numbers:
    """Return the number of each row by which rows are sorted."""
    place, partition, offset = (
        batch[name].to_numpy().astype(np.int64, copy=False)
        for name in ("place", "partition", "offset")
    )
    assert int(partition.max(initial=0)) < 1 << PARTITION_BITS, "too many partitions"
    assert int(offset.max(initial=0)) < 1 << OFFSET_BITS, "an offset that is too large"
    found: Numbers = ((place << PARTITION_BITS) + partition << OFFSET_BITS) + offset
    return found


Offsets = tuple[tuple[int, int, int], ...]


def _bounds(numbers: Numbers) -> tuple[Offsets, Offsets]:
    """Return the offset after the last record of each partition, and that of the first one."""
    partitions = numbers >> OFFSET_BITS
    changes = np.flatnonzero(partitions[1:] != partitions[:-1])
    last = _places(numbers[np.append(changes, len(numbers) - 1)])
    first = _places(numbers[np.append(0, changes + 1)])
    return tuple((place, number, offset + 1) for place, number, offset in last), first


def _places(numbers: Numbers) -> Offsets:
    """Return the place of the topic, the partition and the offset that are in each number."""
    found = []
    for number in numbers.tolist():
        partition = number >> OFFSET_BITS
        place, partition = partition >> PARTITION_BITS, partition & (1 << PARTITION_BITS) - 1
        found.append((place, partition, number & (1 << OFFSET_BITS) - 1))
    return tuple(found)


def _raw(table: pa.Table) -> tuple[RawRow, ...]:
    names = ("place", "partition", "offset", "key", "value")
    columns: Sequence[list[Any]] = [table[name].to_pylist() for name in names]
    return tuple(RawRow(*row) for row in zip(*columns, strict=True))
