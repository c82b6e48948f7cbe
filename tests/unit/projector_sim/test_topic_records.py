"""Records of each format as documents, and what is none: tables, and any bytes at all."""

from __future__ import annotations

import datetime
import io
import json
import struct
import uuid
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.key_versions import DOCUMENT_ID_BYTES_MAX
from coordinator.core.model.entities import DOCUMENT_FORMATS
from projector_sim.sources.topic_records import (
    DOCUMENT_BYTES_MAX,
    INCOMPLETE,
    UNAVAILABLE,
    AvroSchema,
    Document,
    RecordError,
    decoder_of,
    parse_avro,
)

EXAMPLE = Path(__file__).parents[3] / "examples" / "debezium"
WITH_SCHEMAS = Path(__file__).parent / "debezium_with_schemas"
"""The same with --schemas, as the program of the example has recorded it."""

CITY = {
    "type": "record",
    "name": "City",
    "fields": [{"name": "city", "type": "string"}, {"name": "people", "type": ["null", "int"]}],
}
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "below", "type": ["null", "Tree"]}],
}
TYPES = {
    "type": "record",
    "name": "Types",
    "fields": [
        {"name": "raw", "type": "bytes"},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2},
        },
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
EVENT = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", CITY]},
        {"name": "after", "type": ["null", "City"]},
        {"name": "op", "type": "string"},
    ],
}


class Registered:
    """A registry that has these schemas, by number from 1 on."""

    def __init__(self, *schemas: Any) -> None:
        self.schemas = [parse_avro(json.dumps(one), {}) for one in schemas]

    def get(self, number: int) -> AvroSchema:
        if not 1 <= number <= len(self.schemas):
            raise RecordError("unknown_schema", f"the registry has no schema {number}")
        return self.schemas[number - 1]

    def datum(self, number: int, value: Any) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self.schemas[number - 1].parsed, value)
        return struct.pack(">bI", 0, number) + out.getvalue()


REGISTERED = Registered(CITY, KEY, TREE, TYPES, EVENT)


def read(format_name: str, key: bytes | None, value: bytes | None) -> Document | None:
    return decoder_of(format_name, REGISTERED)(key, value)


def reason(format_name: str, key: bytes | None, value: bytes | None) -> str:
    with pytest.raises(RecordError) as caught:
        read(format_name, key, value)
    return caught.value.code


def event(op: str, after: Any, **more: Any) -> bytes:
    return json.dumps({"op": op, "before": None, "after": after, **more}).encode()


# -- what is a document ---------------------------------------------------------------------------


def test_json_is_passed_on_as_it_is() -> None:
    assert read("json", b"d1", b'{"a": 1.50}') == (b"d1", b'{"a": 1.50}')
    assert read("json", b"d1", None) == (b"d1", None)


def test_avro_is_read_by_the_schema_that_it_names() -> None:
    value = REGISTERED.datum(1, {"city": "Zürich", "people": None})
    document = read("avro", b"d1", value)
    assert document is not None
    assert document.id == b"d1"
    assert json.loads(document.body or b"") == {"city": "Zürich", "people": None}
    keyed = read("avro", REGISTERED.datum(2, {"id": 7}), None)
    assert keyed == (b"7", None)


def test_what_json_has_not_is_what_kafka_makes_of_it() -> None:
    made = {
        "raw": b"\x00\xff",
        "day": datetime.date(2026, 11, 26),
        "at": datetime.datetime(2026, 11, 26, 1, 2, 3, tzinfo=datetime.UTC),
        "price": Decimal("19.99"),
        "id": uuid.UUID(int=5),
    }
    document = read("avro", b"d", REGISTERED.datum(4, made))
    assert document is not None
    assert json.loads(document.body or b"") == {
        "raw": "AP8=",
        "day": "2026-11-26",
        "at": "2026-11-26T01:02:03+00:00",
        "price": 19.99,
        "id": str(uuid.UUID(int=5)),
    }


LONG = "12345678901234567890123456.78"


@pytest.mark.parametrize(
    ("price", "shown"),
    [
        ("3.00", 3),
        ("0.10", 0.1),
        ("12345678901234567890123456.78", "12345678901234567890123456.78"),
    ],
)
def test_a_decimal_is_a_number_if_that_has_all_its_digits(price: str, shown: Any) -> None:
    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = {"raw": b"", "day": at.date(), "at": at, "price": Decimal(price), "id": uuid.UUID(int=1)}
    document = read("avro", b"d", REGISTERED.datum(4, made))
    assert document is not None
    assert json.loads(document.body or b"")["price"] == shown


@pytest.mark.parametrize(
    ("key", "id"),
    [
        ({"id": 1004}, b"1004"),
        ({"id": "a-7"}, b"a-7"),
        ({"schema": {"type": "struct"}, "payload": {"id": 5}}, b"5"),
        ({"schema": "a", "payload": "b"}, b'{"schema":"a","payload":"b"}'),
        ({"a": 1, "b": "x"}, b'{"a":1,"b":"x"}'),
        ("plain", b"plain"),
        ({"id": '{"$oid": "5f"}'}, b'{"$oid": "5f"}'),
    ],
)
def test_the_id_of_a_row_is_what_its_key_says(key: Any, id: bytes) -> None:
    assert read("debezium-json", json.dumps(key).encode(), None) == (id, None)


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_the_row_after_a_change_is_the_document(op: str) -> None:
    plain = event(op, {"city": "Bern"}, source={"lsn": 5})
    wrapped = json.dumps({"schema": {"type": "struct"}, "payload": json.loads(plain)}).encode()
    for value in (plain, wrapped):
        assert read("debezium-json", b'{"id":1}', value) == (b"1", b'{"city":"Bern"}')


def test_mongodbs_documents_come_as_a_text() -> None:
    value = event("c", '{"_id": 1, "city": "Bern"}')
    assert read("debezium-json", b'{"id":"1"}', value) == (b"1", b'{"_id":1,"city":"Bern"}')


def test_a_deleted_row_is_a_deletion_and_a_message_is_nothing() -> None:
    assert read("debezium-json", b'{"id":1}', event("d", None)) == (b"1", None)
    assert read("debezium-json", None, event("m", None)) is None


def test_a_text_that_speaks_of_values_that_are_missing_is_one_that_is_there() -> None:
    row = {"a": f"what is {UNAVAILABLE}?", "b": {"c": UNAVAILABLE}}
    assert read("debezium-json", b'{"id":1}', event("u", row)) == (
        b"1",
        json.dumps(row, separators=(",", ":")).encode(),
    )


@pytest.mark.parametrize("folder", [EXAMPLE, WITH_SCHEMAS])
def test_what_debezium_tells_of_a_database_becomes_what_the_database_has(folder: Path) -> None:
    """Its own engine has written these messages, and PostgreSQL the tables."""
    found: dict[str, dict[bytes, Any]] = {}
    refused: list[tuple[str, str]] = []
    for line in (folder / "changes.jsonl").read_text().splitlines():
        record = json.loads(line)
        key, value = (text and text.encode() for text in (record["key"], record["value"]))
        rows = found.setdefault(record["topic"].rpartition(".")[2], {})
        try:
            document = read("debezium-json", key, value)
        except RecordError as error:
            refused.append((record["key"], error.code))
            rows.pop(error.id, None)
            continue
        assert document is not None
        rows.pop(document.id, None)
        if document.body is not None:
            rows[document.id] = json.loads(document.body)
    tables = json.loads((folder / "tables.json").read_text())
    incomplete = tables["letters"].pop(0)
    assert [code for _, code in refused] == ["incomplete_row"]
    assert incomplete["id"] == "a"
    assert '"a"' in refused[0][0]
    for name, wanted in tables.items():
        keys = ("order", "line") if name == "order_lines" else ("id",)
        assert set(found[name]) == {_id(row, keys) for row in wanted}
        rows = [_as_told(found[name][_id(row, keys)]) for row in wanted]
        assert rows == [_as_told(row) for row in wanted]


def _id(row: dict[str, Any], keys: tuple[str, ...]) -> bytes:
    if len(keys) == 1:
        return str(row[keys[0]]).encode()
    return json.dumps({key: row[key] for key in keys}, separators=(",", ":")).encode()


def _as_told(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with dates, times and JSON as values, which both write in their own way."""
    told = dict(row)
    if isinstance(told.get("note"), str):
        told["note"] = json.loads(told["note"])
    if told.get("since"):
        told["since"] = told["since"].removesuffix("Z")
    if told.get("seen"):
        told["seen"] = datetime.datetime.fromisoformat(told["seen"])
    return told


def test_change_events_in_avro() -> None:
    key = REGISTERED.datum(2, {"id": 9})
    row = {"city": "Chur", "people": 3}
    value = REGISTERED.datum(5, {"before": None, "after": row, "op": "u"})
    assert read("debezium-avro", key, value) == (b"9", b'{"city":"Chur","people":3}')
    gone = REGISTERED.datum(5, {"before": row, "after": None, "op": "d"})
    assert read("debezium-avro", key, gone) == (b"9", None)


# -- what is none ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format_name", "key", "value", "code"),
    [
        ("json", None, b"{}", "no_key"),
        ("json", b"", b"{}", "no_key"),
        ("json", b"\xff", b"{}", "bad_key"),
        ("json", b"k" * 4_097, b"{}", "key_too_long"),
        ("avro", b"k", b"", "bad_avro"),
        ("avro", b"k", b"{}", "bad_avro"),
        ("avro", b"k", b"{}....", "bad_avro"),
        ("avro", b"k", struct.pack(">bI", 0, 99), "unknown_schema"),
        ("avro", b"k", struct.pack(">bI", 0, 1), "bad_avro"),
        ("avro", b"k", REGISTERED.datum(1, {"city": "a", "people": 1}) + b"x", "bad_avro"),
        ("debezium-json", None, b"{}", "no_event"),
        ("debezium-json", None, event("c", {}), "no_key"),
        ("debezium-json", None, event("t", None), "unknown_operation"),
        ("debezium-json", b'{"id":18446744073709551616}', None, "bad_key"),
        ("debezium-json", b"{", b"{}", "bad_json"),
        ("debezium-json", b'{"id":1}', b"{", "bad_json"),
        ("debezium-json", b'{"id":1}', b"[]", "no_event"),
        ("debezium-json", b'{"id":1}', b'{"city": "Bern"}', "no_event"),
        ("debezium-json", b'{"id":1}', event("t", None), "unknown_operation"),
        ("debezium-json", b'{"id":1}', event("u", None), "no_document"),
        ("debezium-json", b'{"id":1}', event("c", "{"), "bad_json"),
        ("debezium-json", b"null", event("c", {}), "bad_key"),
        ("debezium-json", b'{"id":null}', event("c", {}), "bad_key"),
        ("debezium-json", b'{"id":""}', event("c", {}), "bad_key"),
    ],
)
def test_what_is_no_document(
    format_name: str, key: bytes | None, value: bytes | None, code: str
) -> None:
    assert reason(format_name, key, value) == code


@pytest.mark.parametrize("value", INCOMPLETE)
def test_a_large_value_that_was_not_logged_makes_a_row_incomplete(value: Any) -> None:
    """Seen of Debezium 3.2, by type of the column: text, bytea, text[], bytea[], uuid[], int[],
    and hstore in both of its shapes."""
    assert (
        reason("debezium-json", b'{"id":1}', event("u", {"a": 1, "b": value})) == "incomplete_row"
    )


def test_what_an_array_of_identifiers_has_is_the_one_that_debezium_makes() -> None:
    assert ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"] in INCOMPLETE


@pytest.mark.parametrize(
    ("format_name", "key", "value", "id"),
    [
        ("avro", b"k", b"{}", b"k"),
        ("debezium-json", b'{"id":1}', b"{", b"1"),
        ("debezium-json", b'{"id":1}', event("t", None), b"1"),
    ],
)
def test_of_a_bad_value_the_id_is_known(
    format_name: str, key: bytes, value: bytes, id: bytes
) -> None:
    with pytest.raises(RecordError) as caught:
        read(format_name, key, value)
    assert caught.value.id == id


def test_a_value_within_itself_may_be_deep_and_ends_nobody() -> None:
    head = struct.pack(">bI", 0, 3)
    assert read("avro", b"k", head + b"\x02" * 10 + b"\x00") is not None
    assert reason("avro", b"k", head + b"\x02" * 100_000 + b"\x00") == "bad_avro"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "e", "type": {"type": "record", "name": "Empty", "fields": []}},
                {"name": "many", "type": {"type": "array", "items": "Empty"}},
            ],
        },
        {"type": "no-such-type"},
        [],
    ],
)
def test_a_schema_whose_data_could_be_without_end_is_refused(schema: Any) -> None:
    if schema == []:
        assert parse_avro(json.dumps(schema), {}).parsed == []
        return
    with pytest.raises(RecordError, match="schema"):
        parse_avro(json.dumps(schema), {})


def test_a_long_decimal_is_refused_at_once() -> None:
    raw = b"\x00" + b"\x7f" * 200_000
    size = io.BytesIO()
    fastavro.schemaless_writer(size, "bytes", raw)
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
    one = Registered({"type": "record", "name": "R", "fields": [{"name": "d", "type": schema}]})
    value = struct.pack(">bI", 0, 1) + size.getvalue()
    with pytest.raises(RecordError, match="a decimal of"):
        decoder_of("avro", one)(b"k", value)


def test_a_schema_that_mentions_a_name_very_often_is_looked_at_once() -> None:
    """Each level mentions the one below it twice: 2 ** 60 records, if each was looked at."""
    fields: list[Any] = [{"name": "a", "type": "int"}]
    schema: Any = {"type": "record", "name": "L0", "fields": fields}
    for level in range(1, 60):
        pair = [{"name": "a", "type": schema}, {"name": "b", "type": f"L{level - 1}"}]
        schema = {"type": "record", "name": f"L{level}", "fields": pair}
    with pytest.raises(RecordError, match="values"):
        parse_avro(json.dumps(schema), {})


def test_a_list_of_many_values_that_take_next_to_nothing_is_refused() -> None:
    nulls = [{"name": f"f{n}", "type": "null"} for n in range(200)]
    item = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}, *nulls]}
    with pytest.raises(RecordError, match="next to no bytes"):
        parse_avro(json.dumps({"type": "array", "items": item}), {})
    fields = [{"name": f"f{n}", "type": ["null", "string"]} for n in range(200)]
    item = {"type": "record", "name": "I", "fields": fields}
    parse_avro(json.dumps({"type": "array", "items": item}), {})


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RecordError, match="schema"):
        parse_avro(text, {})


def test_a_schema_may_be_deep_up_to_a_bound() -> None:
    schema: Any = "string"
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RecordError, match="schema"):
        parse_avro(json.dumps(schema), {})


def test_there_is_a_decoder_for_each_format_and_no_other() -> None:
    for name in DOCUMENT_FORMATS:
        decoder_of(name, REGISTERED)
    with pytest.raises(ValueError, match="xml"):
        decoder_of("xml")


ANY_BYTES = st.none() | st.binary(max_size=64) | st.text(max_size=40).map(str.encode)
DATA = ANY_BYTES | st.tuples(st.integers(0, 7), st.binary(max_size=64)).map(
    lambda one: struct.pack(">bI", 0, one[0]) + one[1]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "after", "payload", "schema", "id"]), inner)
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@pytest.mark.fuzz
@given(st.sampled_from(DOCUMENT_FORMATS), DATA | JSON, DATA | JSON)
def test_whatever_comes_is_a_document_or_a_record_error(
    format_name: str, key: bytes | None, value: bytes | None
) -> None:
    found = None
    with suppress(RecordError):
        found = read(format_name, key, value)
    if found is not None:
        assert 0 < len(found.id) <= DOCUMENT_ID_BYTES_MAX
        found.id.decode()
        if found.body is not None and format_name != "json":
            json.loads(found.body)


def test_a_document_that_unpacks_to_too_much_is_none() -> None:
    large = b"[" + b" " * DOCUMENT_BYTES_MAX + b"]"
    with pytest.raises(RecordError) as refused:
        decoder_of("json")(b"k", large)
    assert (refused.value.code, refused.value.id) == ("bad_document", b"k")


def test_schemas_that_name_each_other_twice_are_looked_at_once_each() -> None:
    """At the thirtieth level there are a thousand million ways to the first one."""
    named: dict[str, Any] = {"R0": "string"}
    for level in range(1, 31):
        named[f"R{level}"] = [f"R{level - 1}", f"R{level - 1}"]
    text = json.dumps({"type": "record", "name": "T", "fields": [{"name": "f", "type": "R30"}]})
    with suppress(RecordError):
        parse_avro(text, named)
