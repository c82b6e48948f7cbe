"""Input that nobody should send, by what it is for."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from coordinator import codec
from schemas.registry import registry
from tests.support.fuzzing import (
    fields_of,
)

SCHEMAS = {name: schema for name, schema in registry().current.items() if name in codec.FROM_AVRO}


NAMED = {name: schema.parsed for name, schema in registry().current.items()}


def _of(name: str) -> st.SearchStrategy[bytes]:
    schema = SCHEMAS[name]
    fields = fields_of(schema.parsed, NAMED)
    if name in ("Event", "Mutation"):
        fields = st.builds(lambda f, v: {**f, "value": v}, fields, ENTITY_BYTES)
    elif name == "TransactionProposed":
        fields = st.builds(_with_values, fields, ENTITY_BYTES)
    return fields.map(schema.encode)


def _with_values(fields: dict[str, Any], value: bytes) -> dict[str, Any]:
    return {**fields, "mutations": [{**m, "value": value} for m in fields["mutations"]]}


ENTITY_BYTES = st.sampled_from(
    ["Index", "Bucket", "Setting", "RequestOutcome", "Consumed", "Stream"]
).flatmap(lambda name: fields_of(SCHEMAS[name].parsed, NAMED).map(SCHEMAS[name].encode))


WORDS = (
    *("CREATE", "DROP", "BUILD", "INDEX", "PRIMARY", "IF", "NOT", "EXISTS", "ON", "WHERE", "USING"),
    *("WITH", "i", "b", "`c d`", "(", ")", ",", ";", ".", "[", "]", "{", "}", ":", '"slices"', "1"),
    *("-1", "1e999", "'x'", "''", '"', "'", "`", "--x\n", "/*", "*/", "ASC", "DESC", "AND", "OR"),
    *("IS", "NULL", "MISSING", "VALUED", "LIKE", "ESCAPE", "BETWEEN", "IN", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "CAST", "AS", "INT", "DATE", "INTERVAL", "EXTRACT", "FROM", "META()", ".id"),
    *("LOWER", "SUBSTR", "TRIM", "BOTH", "ROUND", "COALESCE", "||", "+", "-", "*", "/", "%", "<=>"),
    *("=", "<", ">=", "!=", "~", "^", "|", "&", "@", "#", "$", "?", "\\", "\x00", "\ud800", "é"),
    *("0x1F", "x'ab'", "1.e", ".5", "1_000", "TRUE", "::", "->", "=>", "LATERAL", "ANY", "ARRAY"),
    *("SELECT", "OVER", "FILTER", "COLLATE", "DISTINCT", "LAMBDA", "ILIKE", "STRUCT", "MAP", "{fn"),
    *("CONVERT", "PRIOR", "IFMISSING", "NULLIF", "GREATEST", "TYPEOF", "ABS", "SQRT", "RETURNING"),
)


SQL = st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=30)


NESTS = st.builds(
    lambda opening, closing, depth, core: opening * depth + core + closing * depth,
    st.sampled_from(["(", "[", "NOT ", "- ", "LOWER(", "CASE WHEN ", "a[", "(a AND ", "CAST("]),
    st.sampled_from([")", "]", "", " THEN 1 END", " AS INT)", " IS NULL", ".a", "[0]", " + a - a"]),
    st.integers(0, 400),
    st.sampled_from(["a", "1", "'x'", ""]),
)


EXPRESSIONS = SQL | NESTS
