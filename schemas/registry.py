"""Loads every `.avsc` of this folder, and finds the writer's schema of a record by fingerprint.

Records are framed by Avro's single-object encoding: `C3 01`, the little-endian CRC-64-AVRO
fingerprint of the schema's canonical form, the body. Every schema version that was ever released
stays in `released/<Name>.<fingerprint>.avsc`; the current ones are `<Name>.avsc`. Nothing here
knows what records mean.
"""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, load_schema, to_parsing_canonical_form

FOLDER = Path(__file__).parent
MAGIC = b"\xc3\x01"
HEAD_BYTES = 10

RECORD_BYTES_MAX = 4 * 1024 * 1024
"""What a record may weigh. No producer of ours sends more, but a batch of a few kilobytes that a
stranger compressed may hold one of a gigabyte, and decoding holds the interpreter."""


class SchemaError(ValueError):
    """A record that cannot be decoded.

    `code` is `too_large`, `not_avro`, `unknown_schema` or `bad_body`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Schema:
    """One version of one record's schema: `parsed` as it is in JSON, `ready` to read and write."""

    def __init__(self, name: str, parsed: Any) -> None:
        self.name = name
        self.parsed = parsed
        self.ready = _ready(parsed)
        self.fingerprint = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
        self.head = MAGIC + bytes.fromhex(self.fingerprint)

    def encode(self, fields: dict[str, Any]) -> bytes:
        """Return the single-object encoding of a record given as a dict."""
        out = io.BytesIO()
        out.write(self.head)
        fastavro.schemaless_writer(out, self.ready, fields)
        return out.getvalue()


def _ready(parsed: Any) -> Any:
    """Return a copy of a parsed schema in which what is bytes by default is bytes.

    JSON has no bytes: a schema says them as text, a byte a character. fastavro takes the default
    as it stands, so that a field that an older record does not have would be read as text.
    """
    named = {"bytes"}

    def copied(node: Any) -> Any:
        if isinstance(node, list):
            return [copied(inner) for inner in node]
        if not isinstance(node, dict):
            return node
        ready = {name: copied(inner) for name, inner in node.items()}
        if node.get("type") == "fixed":
            named.add(node["name"])
        kind, default = node.get("type"), node.get("default")
        if isinstance(kind, dict):
            kind = kind["name"] if kind["type"] == "fixed" else kind["type"]
        if isinstance(default, str) and isinstance(kind, str) and kind in named:
            ready["default"] = default.encode("latin-1")
        return ready

    return copied(parsed)


class Registry:
    """All schemas, by name (current) and by fingerprint (every version)."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.current: dict[str, Schema] = {}
        self._by_head: dict[bytes, Schema] = {}
        for path in sorted(folder.glob("*.avsc")):
            schema = Schema(path.stem, load_schema(str(path)))
            self.current[schema.name] = schema
            self._by_head[schema.head] = schema
        self._released = folder / "released"
        self._released_loaded = False

    def _load_released(self) -> None:
        """Load the older versions: only a record written by one of them needs them."""
        self._released_loaded = True
        for path in sorted(self._released.glob("*.avsc")):
            parsed = fastavro.parse_schema(json.loads(path.read_text()), _force=True)
            schema = Schema(path.name.partition(".")[0], parsed)
            self._by_head.setdefault(schema.head, schema)

    def versions(self, name: str) -> tuple[Schema, ...]:
        """Return all versions of a record's schema, the current one first."""
        if not self._released_loaded:
            self._load_released()
        older = (schema for schema in self._by_head.values() if schema.name == name)
        return tuple({schema.head: schema for schema in (self.current[name], *older)}.values())

    def decode(self, data: bytes) -> tuple[str, dict[str, Any]]:
        """Return the name and the fields of a record, read into the current schema.

        Total: raises SchemaError, and nothing else. No schema contains itself, so that no record
        is nested deeper than its schema is; what is behind a count or a length has to be there.
        """
        if len(data) > RECORD_BYTES_MAX:
            raise SchemaError("too_large", f"{len(data)} bytes; at most {RECORD_BYTES_MAX}")
        writer = self._by_head.get(bytes(data[:HEAD_BYTES]))
        if writer is None:
            if data[:2] != MAGIC or len(data) < HEAD_BYTES:
                raise SchemaError("not_avro", "no Avro single-object encoding")
            if not self._released_loaded:
                self._load_released()
                return self.decode(data)
            raise SchemaError("unknown_schema", f"unknown schema {data[2:HEAD_BYTES].hex()}")
        reader = self.current[writer.name]
        body = io.BytesIO(data)
        body.seek(HEAD_BYTES)
        target = None if reader is writer else reader.ready
        try:
            fields: Any = fastavro.schemaless_reader(body, writer.ready, target)
        except Exception as error:
            message = f"{writer.name}: {type(error).__name__}: {error}"
            raise SchemaError("bad_body", message) from error
        if body.tell() != len(data):
            raise SchemaError(
                "bad_body", f"{writer.name}: {len(data) - body.tell()} bytes too many"
            )
        return writer.name, fields


@cache
def registry() -> Registry:
    """Return the schemas of this folder, loaded once."""
    return Registry()
