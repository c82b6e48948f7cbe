"""Many records read at once are what a decoder of single records reads; the rest is left."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.model.stream_records import Sync
from schemas.registry import Schema, registry
from streaming.timestamps import avro_columns
from streaming.timestamps.avro_columns import TEXT_MAX, decoded, plain_fields

EDGES = [0, 1, -1, 63, 64, -64, -65, 2**27, 2**28 - 1, 2**55 - 1, 2**55, 2**56, 2**62, -(2**62)]
SMALL = [number for number in EDGES if abs(number) < 2**31]
INTS = st.one_of(st.sampled_from(SMALL), st.integers(-(2**31), 2**31 - 1))
LONGS = st.one_of(st.sampled_from([*EDGES, 2**63 - 1, -(2**63)]), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["", "travel", "travel-", "é" * 100]))
KINDS = {"int": INTS, "long": LONGS, "string": TEXTS}


@st.composite
def versions(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]]]:
    """Return a schema of plain fields, and records of it."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5))
    fields = [{"name": f"f{n}", "type": kind} for n, kind in enumerate(kinds)]
    parsed = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields}, _force=True)
    record = st.fixed_dictionaries({one["name"]: KINDS[one["type"]] for one in fields})
    return Schema("R", parsed), draw(st.lists(record, max_size=12))


def read(values: list[bytes | None], schema: Schema) -> dict[int, dict[str, Any]]:
    """Return what is read, by the place of the value."""
    fields = plain_fields(schema)
    assert fields is not None
    found = decoded(pa.array(values, pa.binary()), schema.head, fields)
    columns: dict[str, list[Any]] = {
        name: column.tolist() for name, column in found.numbers.items()
    }
    for name, (known, codes) in found.texts.items():
        columns[name] = [known[code] for code in codes]
    return {
        row: {name: columns[name][number] for name, _ in fields}
        for number, row in enumerate(found.rows.tolist())
    }


def single(value: bytes, schema: Schema) -> dict[str, Any] | None:
    """Return what fastavro reads, None if it does not, or not to the end."""
    if value[: len(schema.head)] != schema.head:
        return None
    body = io.BytesIO(value[len(schema.head) :])
    try:
        found: Any = fastavro.schemaless_reader(body, schema.parsed, None)
    except Exception:
        return None
    return found if not body.read() else None


@given(versions())
def test_all_of_what_was_written_is_read(version: tuple[Schema, list[dict[str, Any]]]) -> None:
    schema, records = version
    found = read([schema.encode(record) for record in records], schema)
    assert found == dict(enumerate(records))


@given(versions(), st.data())
def test_what_is_damaged_is_read_as_one_by_one_or_left(
    version: tuple[Schema, list[dict[str, Any]]], data: st.DataObject
) -> None:
    """Neighbours of what is damaged are read nevertheless."""
    schema, records = version
    whole = [schema.encode(record) for record in records]
    values: list[bytes | None] = []
    for value in whole:
        begin = data.draw(st.integers(0, len(value)))
        end = data.draw(st.integers(begin, len(value)))
        cut_out = value[:begin] + value[end:]
        blotted = value[:begin] + b"\xff" * (end - begin) + value[end:]
        damages = [value, value, value[:end], value + b"\0", cut_out, blotted]
        values.append(data.draw(st.sampled_from(damages)))
    found = read(values, schema)
    for place, value in enumerate(values):
        assert value is not None
        if place in found:
            assert found[place] == single(value, schema)
        else:
            assert value != whole[place]


LAST = {"vbuuid": 2**64 - 1, "seqno": 2**63}


def a_sync(number: int, bucket: str = "travel") -> bytes:
    return codec.encode(
        Sync(
            bucket=bucket,
            vbucket=number,
            projector=1,
            connection=2**62 + number,
            ordinal=number,
            at_ms=4,
            **LAST,
        )
    )


SYNC = registry().current["Sync"]
HEAD = len(SYNC.head)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        SYNC.head,
        SYNC.head[:-1] + b"\0" + a_sync(1)[HEAD:],
        a_sync(1) + b"\0",
        a_sync(1)[:-1],
        SYNC.head + b"\x01" + a_sync(1)[HEAD + 1 :],  # A text of -1 bytes.
        SYNC.head + b"\x0c\xff\xff\xff\xff\xff\xff" + a_sync(1)[HEAD + 7 :],  # No UTF-8.
        a_sync(1, "b" * (TEXT_MAX + 1)),
        SYNC.head + b"\x02b" + b"\xff" * 10 + b"\x01" * 30,  # A number of more than 64 bits.
        SYNC.head + b"\x02b" + b"\xff" * 9 + b"\x03" + b"\x01" * 30,
        SYNC.head + b"\x02b" + b"\x80\x80\x80\x80\x20" + b"\x02" * 6,  # More than an int has.
    ],
)
def test_what_is_not_certain_is_left(value: bytes | None) -> None:
    found = read([a_sync(0), value, a_sync(2)], SYNC)
    assert sorted(found) == [0, 2]
    assert [found[row]["vbucket"] for row in found] == [0, 2]


def test_texts_that_mix_to_the_same_number_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_columns, "PRIME", np.uint64(0))
    found = read([a_sync(n, bucket) for n, bucket in enumerate(("a", "b", "a"))], SYNC)
    assert [(row, one["bucket"]) for row, one in found.items()] == [(0, "a"), (2, "a")]


def test_a_version_with_other_fields_is_not_for_columns() -> None:
    assert plain_fields(registry().current["StabilityTimestamp"]) is None
