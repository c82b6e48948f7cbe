"""Laws of the collation, against a comparison that shares no code with it."""

from __future__ import annotations

import json
import sys
from functools import cmp_to_key
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.collation import (
    EVERYTHING,
    MISSING,
    NESTED_MAX,
    decode,
    decode_key,
    decode_some,
    encode,
    encode_key,
    prefix_bounds,
    range_bounds,
)
from tests.conftest import examples
from tests.support.keys import (
    EDGES,
    keys,
    numbers,
    order,
    scalars,
    values,
)

EDGES += [int(sys.float_info.max) - 1, int(sys.float_info.max), int(sys.float_info.max) + 1]


# -- the comparison, by the book -----------------------------------------------------------------


def compare(a: Any, b: Any) -> int:
    return (a > b) - (a < b)


# -- laws ----------------------------------------------------------------------------------------


@examples(150)
@given(st.lists(values, min_size=2, max_size=6))
def test_bytes_compare_as_values_do(some: list[Any]) -> None:
    for a in some:
        for b in some:
            assert compare(encode(a), encode(b)) == order(a, b)


@examples(150)
@given(st.lists(numbers, min_size=2, max_size=8))
def test_numbers_compare_exactly_whether_int_or_float(some: list[Any]) -> None:
    assert sorted(some, key=encode) == sorted(some)
    for a, b in pairwise(some):
        assert (encode(a) == encode(b)) == (a == b)


@examples(100)
@given(st.lists(keys, min_size=2, max_size=5))
def test_composite_keys_compare_component_by_component(some: list[tuple[Any, ...]]) -> None:
    for a in some:
        for b in some:
            assert compare(encode_key(a), encode_key(b)) == order(a, b)


@examples(100)
@given(keys, st.binary(max_size=4))
def test_a_key_is_decoded_to_what_it_was_whatever_follows_it(key: Any, rest: bytes) -> None:
    raw = encode_key(key)
    assert decode_key(raw) == key
    assert order(decode_key(raw), key) == 0  # Python takes True for 1.
    assert decode_some(raw + rest, 2) == (key, len(raw))
    assert decode_some(rest + raw, 2, len(rest)) == (key, len(rest) + len(raw))


@examples(100)
@given(values, values)
def test_no_encoding_begins_another(a: Any, b: Any) -> None:
    assert encode(a) == encode(b) or not encode(a).startswith(encode(b))


@examples(150)
@given(
    st.lists(st.tuples(scalars | st.just("a"), scalars, st.binary(max_size=2)), max_size=12),
    st.lists(scalars | st.just("a"), max_size=2),
    st.lists(scalars | st.just("a"), max_size=2),
    st.booleans(),
    st.booleans(),
)
def test_bounds_hold_what_a_filter_of_all_entries_finds(
    entries: list[tuple[Any, Any, bytes]], low: Any, high: Any, low_in: bool, high_in: bool
) -> None:
    entries += [(*[*low, 1, 1][:2], b"\xff\xff"), (*[*high, 1, 1][:2], b"")]
    stored = [encode_key(entry[:2]) + entry[2] for entry in entries]

    def found(bounds: Any) -> list[bytes]:
        prefix = b"\xff\x00"
        inside = bounds.under(prefix)
        assert [raw in bounds for raw in stored] == [prefix + raw in inside for raw in stored]
        return [raw for raw in stored if raw in bounds]

    def expected(accept: Any) -> list[bytes]:
        return [raw for raw, entry in zip(stored, entries, strict=True) if accept(list(entry[:2]))]

    def above(key: Any) -> bool:
        return order(key[: len(low)], low) >= (0 if low_in else 1)

    def below(key: Any) -> bool:
        return order(key[: len(high)], high) <= (0 if high_in else -1)

    both = range_bounds(low, high, include_low=low_in, include_high=high_in)
    assert found(both) == expected(lambda key: above(key) and below(key))
    assert found(range_bounds(low, include_low=low_in)) == expected(above)
    assert found(range_bounds(high=high, include_high=high_in)) == expected(below)
    assert found(prefix_bounds(low)) == expected(lambda key: order(key[: len(low)], low) == 0)
    assert found(EVERYTHING) == found(range_bounds()) == stored


# -- cases ---------------------------------------------------------------------------------------


def test_the_order_of_types_is_the_documented_one() -> None:
    ascending = [
        *(MISSING, None, False, True),
        *(-(10**400), -1e300, -(2**53) - 1, -(2**53), -1.5, -1, -5e-324, 0, 5e-324, 0.1, 1, 1.5),
        *(2**53, 2**53 + 1, 2**53 + 2, 2**64, 1e300, sys.float_info.max, 10**400),
        *("", "\0", "\0\0", "\0\1", "\1", "A", "a", "a\0", "aa", "é", "\ud800", "\uffff", "😀"),
        *([], [None], ["a"], ["a", None], ["b"], [[]]),
        *({}, {"b": 1}, {"b": 2}, {"c": 0}, {"a": 1, "b": 1}, {"a": 1, "c": 0}),
        *({"a": 2, "b": 0}, {"a": {}, "b": 0}, {"b": 0, "c": 0}),
    ]
    shuffled = sorted(ascending, key=repr)
    assert sorted(ascending, key=cmp_to_key(order)) == ascending
    # Lists may be equal though the types differ (0 == False): compare what is written, too.
    assert repr(sorted(shuffled, key=encode)) == repr(ascending)


@pytest.mark.parametrize(
    ("value", "canonical"),
    [
        *[(1.0, "1"), (-0.0, "0"), (-3.0, "-3"), (0.5, "0.5"), (2.0**63, str(2**63))],
        *[(2**64, str(2.0**64)), (2**64 + 1, str(2**64 + 1)), (-(2**70), str(-(2.0**70)))],
    ],
)
def test_equal_numbers_come_back_as_the_canonical_one(value: float, canonical: str) -> None:
    assert repr(decode(encode(value))) == canonical
    assert decode(encode(value)) == value


def test_arrays_may_be_nested_up_to_a_bound() -> None:
    deep: Any = "x"
    for _ in range(NESTED_MAX):
        deep = [deep]
    back = decode(encode(deep))
    while isinstance(back, list):
        (back,) = back
    assert back == "x"
    for deeper in ([deep], {"a": deep}, [1, {"a": deep}]):
        with pytest.raises(ValueError, match="nested deeper"):
            encode(deeper)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), [float("nan")]])
def test_what_is_no_json_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        encode(value)


@pytest.mark.parametrize("value", [b"", (1,), {1}, [MISSING], {"a": MISSING}, {1: 2}, [b"\0"]])
def test_what_is_no_json_value_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_each_cut_of_a_key_is_refused() -> None:
    raw = encode(json.loads('{"a": [1, -2.5, "text\\u0000"], "b": [36893488147419103233]}'))
    assert decode(raw) == {"a": [1, -2.5, "text\0"], "b": [2**65 + 1]}
    for cut in range(len(raw)):
        with pytest.raises(ValueError):
            decode(raw[:cut])
    for garbage in (b"\xff", b"\x00", b"\x01", b"\x90\xff\x00", raw + b"\x04"):
        with pytest.raises(ValueError):
            decode(garbage)
