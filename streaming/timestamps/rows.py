"""A micro-batch, read: SYNCs as columns, of which the last are left, and all other records raw.

SYNC is nearly all of it. A projector sends a vector of them, as columns (`SyncVector`); one from an
older version a record for each vbucket (`Sync`). Read as columns such a record takes a fifth of a
microsecond here; decoded in the JVM, it took two there, and travelled as fifteen columns instead of
five. What is read is reduced at once (`streaming.stability.reduction`), wherever that is:

- A small batch is read by the driver: `rows_of` takes the records as Spark hands them over.
- Of a large one each task makes a partial in its executor, with `partials`; the driver's `rows_of`
  puts these together. A partial is one row for all SYNCs of the task, packed, and a row for each
  other record, as it came.

Pure. Spark's tasks end in any order, and what is computed must not depend on it: everything here
is sorted by topic, partition and offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import compress, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coordinator import codec
from coordinator.core.model.stream_records import Sync, SyncVector
from coordinator.core.model.types import Offset, Seqno, Vbuuid
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.kafka.topics import SYNC
from schemas.registry import HEAD_BYTES, Registry, registry
from streaming.stability.grouping import firsts
from streaming.stability.positions import Syncs, sound
from streaming.stability.reduction import latest
from streaming.timestamps.avro_columns import Fields, decoded, plain_fields
from streaming.timestamps.inputs import INPUTS

Numbers = NDArray[Any]

SYNC_NUMBERS = ("vbucket", "projector", "connection", "ordinal", "vbuuid", "seqno")
COLUMNS: dict[str, type[np.int64] | type[np.uint64]] = {
    "partition": np.int64,
    "offset": np.int64,
    **dict.fromkeys(SYNC_NUMBERS[:-2], np.int64),
    **dict.fromkeys(SYNC_NUMBERS[-2:], np.uint64),
}
"""What is known of a SYNC beside its bucket: where it stood, and what it says."""

RECORDS = pa.schema(
    [
        ("place", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
RECORDS_DDL = "place int, partition int, offset bigint, key binary, value binary"
"""Rows as Spark hands them over, for Arrow and for Spark; `place` is that of the topic."""

PARTIAL = -1
"""The place of a row that has the SYNCs of a task."""

ANY_VBUCKETS = 2**20
"""No bucket has more."""

TOGETHER = 16_384
"""Vectors are looked at together until they name so many vbuckets."""

HELD = 200_000
"""So many SYNCs more than were left are gathered before they are reduced again."""


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
        columns = (
            np.concatenate([np.zeros(0, kind), *(getattr(part, name) for part in parts)])
            for name, kind in COLUMNS.items()
        )
        return cls(bucket, *columns)

    @property
    def columns(self) -> Syncs:
        """Return what the fold takes of them."""
        return Syncs(*(getattr(self, name) for name in SYNC_NUMBERS))

    def reduced(self) -> SyncRows:
        """Return the rows that say everything."""
        return self.where(latest(self.columns))

    def where(self, chosen: Numbers | slice) -> SyncRows:
        """Return those rows that a mask, a list of places or a slice chooses."""
        return SyncRows(self.bucket, *(getattr(self, name)[chosen] for name in COLUMNS))

    @classmethod
    def of(cls, partition: int, offset: Offset, record: Sync | SyncVector) -> SyncRows:
        """Return what a record says, a row for each vbucket. ValueError: a vector that is none."""
        if isinstance(record, SyncVector):
            check(record)
            return replace(of_vectors([(partition, offset, record)])[0], bucket=record.bucket)
        signed = (partition, offset, record.vbucket, record.projector, record.connection)
        return cls(
            record.bucket,
            *(np.array([number], np.int64) for number in (*signed, record.ordinal)),
            *(np.array([number], np.uint64) for number in (record.vbuuid, record.seqno)),
        )

    def records(self) -> Iterator[tuple[int, Offset, Sync | SyncVector]]:
        """Yield the records that said this, without their times: partition, offset, record.

        Those of a topic that was made again may stand where others stood before.
        """
        names = ("partition", "offset", "connection", "projector", "ordinal")
        rows = self.where(np.lexsort([getattr(self, name) for name in reversed(names)]))
        first = firsts(*(getattr(rows, name) for name in names))
        for begin, end in pairwise([*np.flatnonzero(first).tolist(), len(rows)]):
            one = rows.where(slice(begin, end))
            yield int(one.partition[0]), Offset(int(one.offset[0])), one._record()

    def _record(self) -> Sync | SyncVector:
        """Return rows of one record as such a record."""
        projector, connection = int(self.projector[0]), int(self.connection[0])
        if len(self) > 1:
            return SyncVector(
                bucket=self.bucket,
                projector=projector,
                connection=connection,
                ordinal=int(self.ordinal[0]),
                vbuckets=self.vbucket.astype("<u2").tobytes(),
                vbuuids=self.vbuuid.astype("<u8").tobytes(),
                seqnos=self.seqno.astype("<u8").tobytes(),
                at_ms=0,
            )
        return Sync(
            bucket=self.bucket,
            vbucket=int(self.vbucket[0]),
            projector=projector,
            connection=connection,
            ordinal=int(self.ordinal[0]),
            vbuuid=Vbuuid(int(self.vbuuid[0])),
            seqno=Seqno(int(self.seqno[0])),
            at_ms=0,
        )


def check(vector: SyncVector) -> None:
    """Raise ValueError if the columns of a vector have different lengths."""
    size = 4 * len(vector.vbuckets)
    if len(vector.vbuckets) % 2 or len(vector.vbuuids) != size or len(vector.seqnos) != size:
        raise ValueError("a SYNC whose columns have different lengths")


Placed = tuple[int, Offset, SyncVector]
"""A vector, and where it stood: partition and offset."""


def of_vectors(found: Sequence[Placed]) -> tuple[SyncRows, NDArray[np.intp]]:
    """Return what vectors that were checked say, and of each row which of them says it.

    All at once: it takes the same time for many small ones as for a large one.
    """
    vectors = [vector for *_, vector in found]
    which = np.repeat(np.arange(len(found)), [len(one.vbuckets) // 2 for one in vectors])

    def of_each(numbers: Iterable[int]) -> Numbers:
        return np.fromiter(numbers, np.int64, len(found))[which]

    rows = SyncRows(
        SEVERAL,
        partition=of_each(partition for partition, *_ in found),
        offset=of_each(offset for _, offset, _ in found),
        vbucket=np.frombuffer(b"".join(one.vbuckets for one in vectors), "<u2").astype(np.int64),
        projector=of_each(one.projector for one in vectors),
        connection=of_each(one.connection for one in vectors),
        ordinal=of_each(one.ordinal for one in vectors),
        vbuuid=np.frombuffer(b"".join(one.vbuuids for one in vectors), "<u8").astype(np.uint64),
        seqno=np.frombuffer(b"".join(one.seqnos for one in vectors), "<u8").astype(np.uint64),
    )
    return rows, which


class Span(NamedTuple):
    """The records of a partition that a batch has: offset of the first, and after the last one."""

    place: int
    partition: int
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A micro-batch: SYNCs by bucket, other records, and what of which partitions was read."""

    count: int
    """Of records, those included that others replaced."""
    syncs: tuple[SyncRows, ...]
    raw: tuple[RawRow, ...]
    spans: tuple[Span, ...]


NO_ROWS = Rows(0, (), (), ())


Limits = Mapping[str, int]
"""How many vbuckets the buckets have that are known."""


def rows_of(
    table: pa.Table,
    limits: Limits,
    versions: Sequence[Layout] | None = None,
    shard: BucketShard = WHOLE,
) -> Rows:
    """Return the rows of a table with the columns of `RECORDS`, or of the partials of one.

    `versions` are those of SYNC, by default the released ones. A SYNC of none of them is a raw row,
    and so is one whose numbers cannot be those of a SYNC. A SYNC of a bucket of another shard is
    passed over.
    """
    if table.num_rows == 0:
        return NO_ROWS
    gathered = _Gathered(limits, versions, shard)
    raw: list[RawRow] = []
    for one in table.to_batches():
        raw += _raw(gathered.take(one))
    raw.sort(key=lambda row: row[:3])
    return Rows(gathered.count + len(raw), gathered.syncs(), tuple(raw), gathered.spans())


def partials(
    batches: Iterable[pa.RecordBatch], limits: Limits, shard: BucketShard = WHOLE
) -> Iterator[pa.RecordBatch]:
    """Return the same records, with one row for all SYNCs: what a task does in its executor."""
    gathered = _Gathered(limits, None, shard)
    for one in batches:
        left = gathered.take(one)
        if left.num_rows:
            yield left
    if gathered.count:
        row = {"place": PARTIAL, "partition": 0, "offset": 0, "value": gathered.packed()}
        yield pa.RecordBatch.from_pylist([row], RECORDS)


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


@cache
def heads_of_vectors() -> frozenset[bytes]:
    """Return the heads of all released versions of a vector of SYNCs."""
    return frozenset(version.head for version in registry().versions(SyncVector.__name__))


class _Gathered:
    """What was read so far: the SYNCs that are left, and what of which partition was read."""

    def __init__(
        self, limits: Limits, versions: Sequence[Layout] | None, shard: BucketShard
    ) -> None:
        self._shard = shard
        self.count = 0
        """Of SYNCs, those included that others replaced."""
        self._limits = limits
        self._versions = known_layouts() if versions is None else versions
        self._names: dict[str, int] = {}
        self._parts = [_Part(np.zeros(0, np.int64), SyncRows.joined(SEVERAL, []))]
        self._held = self._left = 0
        self._spans: dict[tuple[int, int], tuple[int, int]] = {}

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Take SYNCs and partials; return the other records."""
        packed = np.flatnonzero(batch["place"].to_numpy() == PARTIAL)
        if len(packed):
            for value in batch["value"].take(pa.array(packed)).to_pylist():
                self._unpack(value)
            batch = batch.take(pa.array(np.delete(np.arange(batch.num_rows), packed)))
        self._note(batch)
        is_sync = np.zeros(batch.num_rows, np.bool_)
        left = np.flatnonzero(batch["place"].to_numpy() == INPUTS.index(SYNC))
        for head, fields in self._versions:
            if not len(left):
                break
            whole = len(left) == batch.num_rows
            values = batch["value"] if whole else batch["value"].take(pa.array(left))
            found = decoded(values, head, fields)
            names, codes = found.texts["bucket"]
            vbuckets = np.array([self._limits.get(name, ANY_VBUCKETS) for name in names], np.int64)
            rows = left[found.rows]
            columns = {
                "partition": _column(batch, "partition")[rows],
                "offset": _column(batch, "offset")[rows],
                **{name: found.numbers[name] for name in SYNC_NUMBERS},
            }
            made = SyncRows(SEVERAL, *(columns[name].view(kind) for name, kind in COLUMNS.items()))
            part = _Part(self._ours(names)[codes], made)
            good = sound(made.columns, vbuckets[codes])
            is_sync[rows[good]] = True
            self.count += int(good.sum())
            good &= np.array([*map(self._shard.owns, names)], np.bool_)[codes]
            self._hold(part if good.all() else part.only(good))
            left = np.delete(left, found.rows)
        is_sync[self._take_vectors(batch, left)] = True
        if not is_sync.any():
            return batch
        return batch.take(pa.array(np.flatnonzero(~is_sync)))

    def _take_vectors(self, batch: pa.RecordBatch, left: NDArray[np.intp]) -> list[int]:
        """Take the sound vectors among these rows; return which rows they are."""
        partition, offset = _column(batch, "partition"), _column(batch, "offset")
        values = batch["value"].take(pa.array(left)).to_pylist()
        taken: list[int] = []
        found: list[Placed] = []
        places: list[int] = []
        size = 0
        for row, value in zip(left.tolist(), values, strict=True):
            if value is None or value[:HEAD_BYTES] not in heads_of_vectors():
                continue
            try:
                vector = codec.decode(value)
                check(vector)
            except ValueError:
                continue
            found.append((int(partition[row]), Offset(int(offset[row])), vector))
            places.append(row)
            size += len(vector.vbuckets) // 2
            if size >= TOGETHER:
                taken += compress(places, self._take(found))
                found, places, size = [], [], 0
        return [*taken, *compress(places, self._take(found))]

    def _take(self, found: Sequence[Placed]) -> NDArray[np.bool_]:
        """Take those vectors that are sound; tell which these are."""
        if not found:
            return np.zeros(0, np.bool_)
        rows, which = of_vectors(found)
        names = [vector.bucket for *_, vector in found]
        limits = np.array([self._limits.get(name, ANY_VBUCKETS) for name in names], np.int64)
        good = np.ones(len(found), np.bool_)
        good[which[~sound(rows.columns, limits[which])]] = False
        self.count += int(good.sum())
        ours = good & np.array([*map(self._shard.owns, names)], np.bool_)
        codes = np.full(len(found), -1, np.int64)
        codes[ours] = self._ours([*compress(names, ours)])
        part = _Part(codes[which], rows)
        self._hold(part if ours.all() else part.only(ours[which]))
        return good

    def syncs(self) -> tuple[SyncRows, ...]:
        """Return the SYNCs of each bucket, buckets by name; those of a bucket by their place."""
        part = self._reduced()
        part = part.only(np.lexsort((part.rows.offset, part.rows.partition, part.code)))
        bounds = np.searchsorted(part.code, np.arange(len(self._names) + 1))
        return tuple(
            replace(part.rows.where(slice(bounds[code], bounds[code + 1])), bucket=name)
            for name, code in sorted(self._names.items())
            if bounds[code] < bounds[code + 1]
        )

    def spans(self) -> tuple[Span, ...]:
        """Return what was read of which partitions, in order."""
        return tuple(Span(*where, *span) for where, span in sorted(self._spans.items()))

    # -- across processes ------------------------------------------------------------------------

    def packed(self) -> bytes:
        """Return all of it as bytes: a stream of Arrow."""
        part = self._reduced()
        said = {"count": self.count, "names": [*self._names], "spans": self.spans()}
        schema = pa.schema(
            [(name, pa.from_numpy_dtype(kind)) for name, kind in PACKED.items()],
            {"gathered": json.dumps(said)},
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            columns = [part.code, *(getattr(part.rows, name) for name in COLUMNS)]
            writer.write_batch(pa.RecordBatch.from_arrays([*map(pa.array, columns)], schema=schema))
        return bytes(sink.getvalue())

    def _unpack(self, value: bytes) -> None:
        table = pa.ipc.open_stream(value).read_all()
        said = json.loads(table.schema.metadata[b"gathered"])
        code, *columns = (table[name].to_numpy() for name in PACKED)
        part = _Part(code, SyncRows(SEVERAL, *columns))
        self._hold(part._replace(code=self._ours(said["names"])[part.code]))
        self.count += said["count"]
        for place, partition, first, after in said["spans"]:
            self._extend(place, partition, first, after)

    # -- what is held ----------------------------------------------------------------------------

    def _ours(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return our numbers of the buckets of these names."""
        return np.array([self._names.setdefault(n, len(self._names)) for n in names], np.int64)

    def _hold(self, part: _Part) -> None:
        self._parts.append(part)
        self._held += len(part.code)
        if self._held > self._left + HELD:
            self._reduced()

    def _reduced(self) -> _Part:
        """Reduce what is held, and return it."""
        codes, rows = zip(*self._parts, strict=True)
        part = _Part(np.concatenate(codes), SyncRows.joined(SEVERAL, rows)).reduced()
        self._parts, self._held = [part], len(part.code)
        self._left = self._held
        return part

    def _note(self, batch: pa.RecordBatch) -> None:
        """Note which records these are."""
        if not batch.num_rows:
            return
        place, partition, offset = (_column(batch, n) for n in ("place", "partition", "offset"))
        where = (place << PARTITION_BITS) + partition
        assert int(partition.max()) < 1 << PARTITION_BITS, "too many partitions"
        for number in np.unique(where).tolist():
            offsets = offset[where == number]
            first, after = int(offsets.min()), int(offsets.max()) + 1
            self._extend(number >> PARTITION_BITS, number % (1 << PARTITION_BITS), first, after)

    def _extend(self, place: int, partition: int, first: int, after: int) -> None:
        known = self._spans.get((place, partition), (first, after))
        self._spans[place, partition] = min(first, known[0]), max(after, known[1])


class _Part(NamedTuple):
    """SYNCs of several buckets: the number of each one's bucket, and its row."""

    code: Numbers
    rows: SyncRows

    def only(self, chosen: Numbers | slice) -> _Part:
        return _Part(self.code[chosen], self.rows.where(chosen))

    def reduced(self) -> _Part:
        """Return the SYNCs that say everything."""
        rows = self.rows
        width = int(rows.vbucket.max(initial=0)) + 1
        apart = rows.columns._replace(vbucket=self.code * width + rows.vbucket)
        return self.only(latest(apart, rows.offset, rows.partition))


SEVERAL = ""
"""Stands for the name of the bucket where rows of several are together."""

PACKED = {"code": np.int64, **COLUMNS}
PARTITION_BITS = 14


def _column(batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = batch[name].to_numpy().astype(np.int64, copy=False)
    return found


def _raw(batch: pa.RecordBatch) -> Iterator[RawRow]:
    columns: Sequence[list[Any]] = [batch[name].to_pylist() for name in RECORDS.names]
    return (RawRow(*row) for row in zip(*columns, strict=True))
