"""What executors do: make of each record the columns of a row, or the reason why it is none.

`decode` goes to them by its name. It does nothing else, so that it may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from streaming.archive.rows import UnreadableError
from streaming.archive.tables import ArchiveTable

RECORD: tuple[tuple[str, str], ...] = (
    ("record_offset", "BIGINT"),
    ("reason", "STRING"),
    ("payload", "BINARY"),
)
"""What executors add to the columns of a table: `reason` and `payload` where a record is no row."""


class Decoded(NamedTuple):
    """What a record became: the cells of a row, or none of them and the reason."""

    cells: tuple[Any, ...]
    offset: int
    reason: str | None
    payload: bytes | None


def decoded(table: ArchiveTable, offset: int, data: bytes | None) -> Decoded:
    """Return what the record at an offset becomes."""
    try:
        row = table.row_of(data)
    except UnreadableError as error:
        return Decoded((None,) * len(table.columns), offset, str(error), data or b"")
    return Decoded(tuple(getattr(row, name) for name in table.names), offset, None, None)


def arrow_schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """Return columns of Spark's SQL as a schema of Arrow."""
    types = {
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "ARRAY<DECIMAL(20, 0)>": pa.list_(pa.decimal128(20, 0)),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns])


def spark_schema(columns: tuple[tuple[str, str], ...]) -> str:
    """Return columns as Spark's SQL declares them."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns)


def decode(table: ArchiveTable, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make of offsets and values the columns of a table, and those of `RECORD`."""
    schema = arrow_schema((*table.columns, *RECORD))
    for batch in batches:
        offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        found = [decoded(table, *one) for one in zip(offsets, values, strict=True)]
        rows = [(*one.cells, one.offset, one.reason, one.payload) for one in found]
        columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
        arrays = [pa.array(cells, field.type) for cells, field in zip(columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def decoder(table: ArchiveTable) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return `decode` for one table: executors get it with their tasks."""
    return partial(decode, table)
