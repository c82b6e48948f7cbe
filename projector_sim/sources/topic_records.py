"""Records of a topic as documents: what a format takes for the id, the document and its deletion.

Formats: `json` (Couchbase's connector with raw JSON writes it, too), `avro` with a schema registry,
and Debezium's change events in both. A record that is no document in its format raises
`RecordError`; whoever reads goes on with the next one. Pure, but for the registry.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
import struct
import uuid
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, NamedTuple, Protocol

import fastavro
import fastavro._read_py
import fastavro.read
import orjson

from coordinator.core.catalog.buckets import needs_registry
from coordinator.core.keys.key_versions import DOCUMENT_ID_BYTES_MAX
from coordinator.core.model.entities import DOCUMENT_FORMATS

MAGIC = struct.Struct(">bI")
"""What comes before an Avro datum: a zero, and the id of its schema."""

DEEPER_MAX = 256
VALUES_MAX = 100_000
VALUES_PER_BYTE_MAX = 4
"""A record of one byte could be very many values otherwise, and take all memory."""

DECIMAL_BYTES_MAX = 64
DOCUMENT_BYTES_MAX = 16 * 1024 * 1024
PROBLEM_LENGTH_MAX = 300
WHOLE_MAX = 2**53
"""Beyond that a number of JSON may have been another one."""


class RecordError(ValueError):
    """A record is no document; `code` says what is wrong with it."""

    def __init__(self, code: str, message: str, id: bytes = b"") -> None:
        """`id`: of the document, where that much can be read."""
        super().__init__(message)
        self.code = code
        self.id = id


class RegistryClosed(Exception):
    """Nobody waits for the registry of schemas any more."""


class Document(NamedTuple):
    """A document as JSON, or with `body` None its deletion."""

    id: bytes
    body: bytes | None


class Schemas(Protocol):
    """Where the schemas of Avro data are."""

    def get(self, number: int) -> AvroSchema:
        """Return a schema. RecordError: there is none; RegistryClosed: nobody waits any more."""
        ...


class AvroSchema(NamedTuple):
    """A schema as fastavro has parsed it; `is_recursive`: it may contain itself."""

    parsed: Any
    is_recursive: bool


Decoder = Callable[[bytes | None, bytes | None], Document | None]
"""Turns key and value of a record into a document; None: it is about none. Raises RecordError."""


def decoder_of(format_name: str, schemas: Schemas | None = None) -> Decoder:
    """Return the decoder of a format. Raises ValueError: there is no such format."""
    if format_name not in DOCUMENT_FORMATS:
        raise ValueError(f"there is no format {format_name!r}")
    if not needs_registry(format_name):
        return _json if format_name == "json" else _debezium(_loaded)
    assert schemas is not None
    known = schemas

    def datum(text: bytes) -> Any:
        return read_avro(text, known)

    return _avro(datum) if format_name == "avro" else _debezium(datum)


# -- plain documents -----------------------------------------------------------------------------


def _json(key: bytes | None, value: bytes | None) -> Document:
    """The value is the document: whether it is JSON at all shows when it is evaluated."""
    id = _text_id(key)
    _require_small(value, id)
    return Document(id, value)


def _require_small(value: bytes | None, id: bytes = b"") -> None:
    """RecordError: a document is larger than anybody should read. A few KB may unpack to that."""
    if value is not None and len(value) > DOCUMENT_BYTES_MAX:
        text = f"the document has {len(value)} bytes; at most {DOCUMENT_BYTES_MAX}"
        raise RecordError("bad_document", text, id)


def _avro(datum: Callable[[bytes], Any]) -> Decoder:
    def decode(key: bytes | None, value: bytes | None) -> Document:
        is_datum = key is not None and len(key) > MAGIC.size and key[0] == 0
        id = _id_of(datum(key)) if key is not None and is_datum else _text_id(key)
        if value is None:
            return Document(id, None)
        try:
            return Document(id, _dumped(datum(value)))
        except RecordError as error:
            raise RecordError(error.code, str(error), id) from error

    return decode


def _text_id(key: bytes | None) -> bytes:
    if not key:
        raise RecordError("no_key", "the record has no key, and so the document no id")
    if len(key) > DOCUMENT_ID_BYTES_MAX:
        text = f"the key has {len(key)} bytes; a document's id has at most {DOCUMENT_ID_BYTES_MAX}"
        raise RecordError("key_too_long", text)
    try:
        key.decode()
    except UnicodeDecodeError as error:
        raise RecordError("bad_key", f"the key is no UTF-8: {error}") from error
    return key


# -- Debezium ------------------------------------------------------------------------------------

READ_OPERATIONS = ("c", "u", "r")
DELETED, MESSAGE = "d", "m"
UNAVAILABLE = "__debezium_unavailable_value"
"""What a column has instead of a large value of PostgreSQL or Oracle that was not logged."""
UNAVAILABLE_64 = base64.b64encode(UNAVAILABLE.encode()).decode()
"""The same where the column has bytes; below, where it has other types, or several of them."""
UNAVAILABLE_ID = str(uuid.UUID(bytes=hashlib.md5(UNAVAILABLE.encode()).digest(), version=3))
UNAVAILABLE_NUMBERS = list(UNAVAILABLE.encode())
UNAVAILABLE_MAP = {UNAVAILABLE: UNAVAILABLE}
INCOMPLETE = (
    *(UNAVAILABLE, UNAVAILABLE_64, [UNAVAILABLE], [UNAVAILABLE_64], [UNAVAILABLE_ID]),
    *(UNAVAILABLE_NUMBERS, UNAVAILABLE_MAP, orjson.dumps(UNAVAILABLE_MAP).decode()),
)
MARKS = tuple(
    text.encode()
    for text in (
        *(UNAVAILABLE, UNAVAILABLE_64, UNAVAILABLE_ID),
        orjson.dumps(UNAVAILABLE_NUMBERS).decode(),
    )
)
"""A document without any of these has all its values."""


def _debezium(datum: Callable[[bytes], Any]) -> Decoder:
    def decode(key: bytes | None, value: bytes | None) -> Document | None:
        if key is None and value is not None:
            operation = _operation(datum(value))
            if operation == MESSAGE:
                return None
            if operation not in (*READ_OPERATIONS, DELETED):
                _after(_payload(datum(value)))
        if not key:
            raise RecordError("no_key", "the record has no key: its table has no primary key")
        id = _id_of(_payload(datum(key)))
        if value is None:
            return Document(id, None)
        try:
            return Document(id, _after(_payload(datum(value))))
        except RecordError as error:
            raise RecordError(error.code, str(error), id) from error

    return decode


def _operation(event: Any) -> Any:
    payload = _payload(event)
    return payload.get("op") if isinstance(payload, dict) else None


def _payload(datum: Any) -> Any:
    """Return what a datum says, without the schema that JSON may have beside it."""
    is_wrapped = isinstance(datum, dict) and datum.keys() == {"schema", "payload"}
    if is_wrapped and isinstance(datum["schema"], dict) and "type" in datum["schema"]:
        return datum["payload"]
    return datum


def _after(event: Any) -> bytes | None:
    """Return the document after a change event, None if it was deleted."""
    if not isinstance(event, dict) or "op" not in event:
        raise RecordError("no_event", "the value is no change event: it has no `op`")
    operation = event["op"]
    if operation == DELETED:
        return None
    if operation not in READ_OPERATIONS:
        raise RecordError("unknown_operation", f"a change event of the kind {operation!r:.40}")
    after = event.get("after")
    if isinstance(after, str):
        # MongoDB's documents come as a text.
        after = _loaded(after.encode())
    if not isinstance(after, dict):
        raise RecordError("no_document", f"a change event {operation!r} without the row after it")
    body = _dumped(after)
    if any(mark in body for mark in MARKS):
        _check_is_whole(body)
    return body


def _check_is_whole(body: bytes) -> None:
    """Refuse a row with a column that the database did not log, as it stayed as it was."""
    for name, value in orjson.loads(body).items():
        if value in INCOMPLETE:
            problem = f"the change event has no value for {name:.80}, which is large and stayed"
            raise RecordError("incomplete_row", f"{problem}: set REPLICA IDENTITY FULL")


def _id_of(key: Any) -> bytes:
    """Return the id for a key: that of its one field, or all of it as JSON."""
    if isinstance(key, dict) and len(key) == 1:
        (key,) = key.values()
    if key is None or key == "":
        raise RecordError("bad_key", f"the key is {'null' if key is None else 'empty'}")
    parts = key.values() if isinstance(key, dict) else (key,)
    if any(isinstance(part, float) and abs(part) >= WHOLE_MAX for part in parts):
        raise RecordError("bad_key", "the key has a number beyond what JSON tells apart")
    text = key if isinstance(key, str) else _dumped(key).decode()
    return _text_id(text.encode())


# -- JSON and Avro -------------------------------------------------------------------------------


def _loaded(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RecordError("bad_json", f"that is no JSON: {error}") from error


def read_avro(text: bytes, schemas: Schemas) -> Any:
    """Return the datum that a record has, as Avro with the id of its schema in front."""
    if len(text) < MAGIC.size:
        raise RecordError("bad_avro", f"{len(text)} bytes are no Avro with the id of a schema")
    magic, number = MAGIC.unpack_from(text)
    if magic != 0:
        raise RecordError(
            "bad_avro", "the first byte is not the zero of a schema registry's format"
        )
    schema = schemas.get(number)
    # The compiled reader has no bound on depth: only a schema within itself goes deep.
    read = (
        fastavro._read_py.schemaless_reader if schema.is_recursive else fastavro.schemaless_reader
    )
    left = io.BytesIO(text[MAGIC.size :])
    try:
        datum = read(left, schema.parsed, None)
    except Exception as error:
        problem = f"no datum of schema {number}: {type(error).__name__}: {error}"
        raise RecordError("bad_avro", problem) from error
    if left.read(1):
        raise RecordError("bad_avro", f"something comes after the datum of schema {number}")
    return datum


def _dumped(datum: Any) -> bytes:
    try:
        text = orjson.dumps(datum, default=_as_json, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError("bad_document", f"that cannot be JSON: {error}") from error
    if len(text) > DOCUMENT_BYTES_MAX:
        raise RecordError("bad_document", f"as JSON it has {len(text)} bytes")
    return text


def _as_json(value: Any) -> Any:
    """Return what Avro has and JSON has not, as Kafka's own JSON has it."""
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"a {type(value).__name__}")


def _number(value: Decimal) -> int | float | str:
    """Return a decimal as a number where that has all its digits, else as a text."""
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


# -- schemas -------------------------------------------------------------------------------------


def parse_avro(text: str, named: dict[str, Any]) -> AvroSchema:
    """Return a schema that its data can be read by; `named` has those that it refers to.

    RecordError: it is none, or one of which a few bytes could be very many values.
    """
    try:
        plain = json.loads(text)
        parsed = fastavro.parse_schema(plain, named_schemas=dict(named))
        looked = _Look(named)
        weight = looked.at(parsed, 0)
    except RecordError:
        raise
    except Exception as error:
        problem = f"the registry's schema cannot be read: {type(error).__name__}: {error}"
        raise RecordError("bad_schema", problem[:PROBLEM_LENGTH_MAX]) from error
    if weight.values > VALUES_MAX:
        raise RecordError("bad_schema", f"a datum of the schema has over {VALUES_MAX} values")
    return AvroSchema(parsed, looked.is_recursive)


class _Weight(NamedTuple):
    """What a datum takes: bytes at least, and values (of one element of each list)."""

    bytes: int
    values: int


class _Look:
    """Goes through a schema: does it contain itself, and lists of what takes next to no bytes?

    Each name is looked at once: a schema may mention it very often.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self.is_recursive = False
        self._schemas = dict(named)
        self._weights: dict[str, _Weight | None] = {}
        """None while it is being looked at."""

    def at(self, schema: Any, depth: int) -> _Weight:
        """Return what a datum of a part takes. RecordError: more than is good."""
        if depth > DEEPER_MAX:
            raise RecordError("bad_schema", f"the schema is nested deeper than {DEEPER_MAX}")
        if isinstance(schema, list):
            parts = [self.at(one, depth + 1) for one in schema] or [_Weight(0, 1)]
            return _Weight(1 + min(p.bytes for p in parts), max(p.values for p in parts))
        if isinstance(schema, str):
            return self._named(schema, depth)
        kind = schema["type"]
        if kind in ("record", "error"):
            name = schema["name"]
            self._weights[name] = None
            parts = [self.at(field["type"], depth + 1) for field in schema["fields"]]
            found = _Weight(sum(p.bytes for p in parts), 1 + sum(p.values for p in parts))
            self._weights[name] = found
            return found
        if kind in ("array", "map"):
            part = self.at(schema["items" if kind == "array" else "values"], depth + 1)
            per_item = part.bytes + (kind == "map")
            if part.values > VALUES_PER_BYTE_MAX * per_item:
                text = "the schema has lists of what takes next to no bytes"
                raise RecordError("bad_schema", text)
            return _Weight(1, 1 + part.values)
        if kind in ("enum", "fixed"):
            found = _Weight(1 if kind == "enum" else int(schema["size"]), 1)
            self._weights[schema["name"]] = found
            return found
        return self.at(kind, depth + 1)

    def _named(self, name: str, depth: int) -> _Weight:
        if name in self._weights:
            known = self._weights[name]
            if known is None:
                self.is_recursive = True
                return _Weight(1, 1)
            return known
        if name in self._schemas:
            # Known from then on: what refers to each other twice would be looked at twice as often
            # at each level.
            found = self._weights[name] = self.at(self._schemas[name], depth + 1)
            return found
        return _Weight(0 if name == "null" else 1, 1)


# -- decimals --------------------------------------------------------------------------------------


def _read_decimal(data: bytes, schema: Any = None, _: Any = None) -> Decimal:
    """Return a decimal; to read a very long one would hold up everybody for minutes."""
    if len(data) > DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal of {len(data)} bytes; at most {DECIMAL_BYTES_MAX}")
    unscaled = int.from_bytes(data, "big", signed=True)
    scale = int((schema or {}).get("scale", 0))
    return Decimal(unscaled).scaleb(-scale, LARGE)


LARGE = Context(prec=3 * DECIMAL_BYTES_MAX)

for _readers in (fastavro.read.LOGICAL_READERS, vars(fastavro._read_py)["LOGICAL_READERS"]):
    for _name in ("bytes-decimal", "fixed-decimal"):
        _readers[_name] = _read_decimal
