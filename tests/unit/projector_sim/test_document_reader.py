"""Who reads only the fields that an index refers to evaluates as who reads all of the document."""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.core.model.entities import Index
from coordinator.language.expressions import EvaluationError, compile_whole
from projector_sim.projector.document_reader import FIELDS_MAX, reader_of
from tests.support.indexes import make_index

INDEXES = [
    make_index(number, expressions=keys, where=where)
    for number, (keys, where) in enumerate(
        [
            (("a",), None),
            (("a", "b.c DESC"), "c = 'x'"),
            (('`a"\\ü`',), "a IS NOT MISSING"),
            (("META().id", "b[0].c"), None),
            (("META().id",), "b[-1] > 2 OR c IN ['x', 1]"),
            (("CASE WHEN a > 1 THEN b ELSE c END",), None),
            (("COALESCE(a, b, MISSING, 1)",), "LOWER(c) LIKE 'x%'"),
            (("DISTINCT b",), None),
            (("DISTINCT ARRAY x.c FOR x IN b WHEN x.a = a END", "c"), None),
            (("a", "DISTINCT ARRAY DISTINCT ARRAY b FOR b IN a.b END FOR a IN b END"), None),
            (("ARRAY c FOR c IN b END",), "c <> a"),
            (("b[a]",), None),
            (("`ü`",), '`"a` > 0'),
        ],
        start=1,
    )
]
PRIMARY = make_index(99, primary=True, expressions=(), where=None)

INTEGERS = st.integers(-(2**63), 2**64 - 1)
SCALARS = (
    *(st.none(), st.booleans(), INTEGERS, st.text(max_size=6), st.sampled_from(["x", "xy"])),
    st.floats(allow_nan=False, allow_infinity=False),
)
NAMES = st.sampled_from(["a", "b", "c", "x", 'a"\\ü', "ü", '"a', "A", "", "d"])
VALUES = st.recursive(
    st.one_of(SCALARS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=6) | VALUES


compiled = cache(compile_whole)


def fields_of(index: Index) -> frozenset[str]:
    return compiled(index).fields


def evaluated(index: Index, document: Any) -> Any:
    try:
        return compiled(index).evaluate("id", document)
    except EvaluationError as error:
        return error.code


@given(DOCUMENTS)
@example({"a": 2**64 - 1, "b": [-(2**63), 1e308, 5e-324, -0.0], "c": "x"})
@example({"b": [{"a": 1, "c": "x"}, {"a": 1}], "a": 1})
def test_what_is_not_referred_to_changes_no_key(document: Any) -> None:
    text = orjson.dumps(document)
    everything = orjson.loads(text)
    for index in (*INDEXES, PRIMARY):
        found = reader_of(fields_of(index))(text)
        assert evaluated(index, found) == evaluated(index, everything), index.expressions
    together = frozenset().union(*map(fields_of, INDEXES))
    found = reader_of(together)(text)
    for index in INDEXES:
        assert evaluated(index, found) == evaluated(index, everything), index.expressions


@given(VALUES)
def test_what_a_field_says_is_the_same(value: Any) -> None:
    text = orjson.dumps({"other": value, "a": value})
    found = reader_of(frozenset(["a"]))(text)
    assert found.keys() == {"a"}
    assert repr(found["a"]) == repr(orjson.loads(text)["a"])  # 1 and 1.0, 0.0 and -0.0.


@pytest.mark.parametrize(
    "text",
    [b"1", b'"a"', b"null", b"[]", b"{}", b'{"a":1}', b'{"a":' + b"[" * 252 + b"]" * 252 + b"}"],
)
def test_documents_that_are_no_object_and_deep_ones_are_read(text: bytes) -> None:
    assert reader_of(frozenset(["a"]))(text) == orjson.loads(text)
    without = reader_of(frozenset())(text)
    assert without == ({} if text.startswith(b"{") else orjson.loads(text))


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":}', b"{'a':1}", b'{"a":1}}', b"\xff"])
def test_what_is_no_json_is_told(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        reader_of(frozenset(["a"]))(text)


def test_of_many_fields_all_are_read() -> None:
    document = {f"f{number}": number for number in range(FIELDS_MAX + 2)}
    some = frozenset(sorted(document)[: FIELDS_MAX + 1])
    assert reader_of(some)(orjson.dumps(document)) == document
    fewer = frozenset(sorted(document)[:FIELDS_MAX])
    assert reader_of(fewer)(orjson.dumps(document)).keys() == fewer


def test_the_fields_of_an_index_are_those_of_its_keys_and_its_predicate() -> None:
    named = make_index(1, expressions=("a.b", "c[0] DESC"), where="d = 'x' AND `e f` > META().id")
    assert fields_of(named) == {"a", "c", "d", "e f"}
    assert fields_of(PRIMARY) == frozenset()
