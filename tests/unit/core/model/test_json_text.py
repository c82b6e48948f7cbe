"""JSON from outside: its depth is known before it is read, and has one bound."""

from __future__ import annotations

import inspect
import json
import sys
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model import json_text
from coordinator.core.model.json_text import (
    DEPTH_MAX,
    TooDeep,
    TooMany,
    check_shape,
    end_of,
    parse,
    shown,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([0.5, -0.0])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner)
)


def depth_of(value: Any) -> int:
    """The depth by the definition."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def least_bound(text: bytes) -> int:
    """Return the lowest bound that a text passes."""
    for bound in count():
        try:
            check_shape(text, bound)
        except TooDeep:
            continue
        return bound
    raise AssertionError


@given(VALUES, st.booleans())
def test_the_depth_is_that_of_the_value_whatever_its_strings_are(value: Any, ascii_: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_).encode("utf-8", "surrogatepass")
    assert least_bound(text) == depth_of(value)
    string = b'"' + b'[{\\"\\\\' * 100 + b'"'
    assert least_bound(b"[" + string + b"," + text + b"]") == 1 + depth_of(value)


@given(VALUES)
def test_what_is_not_too_deep_is_read_as_it_was(value: Any) -> None:
    text = json.dumps(value)
    assert parse(text) == parse(text.encode()) == json.loads(text)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":', '["[",'])
@pytest.mark.parametrize("closed", [True, False])
def test_too_deep_is_refused_before_it_is_read(opening: str, closed: bool) -> None:
    levels = sum(opening.replace('"["', "").count(mark) for mark in "[{")
    closing = "".join({"[": "]", "{": "}"}[mark] for mark in opening if mark in "[{")[:levels]
    for depth in (DEPTH_MAX, DEPTH_MAX + levels, 949, 100_000):
        number = depth // levels
        text = opening * number + "1" + closing[::-1] * number * closed
        if number * levels > DEPTH_MAX:
            with pytest.raises(TooDeep):
                parse(text)
        elif closed:
            assert depth_of(parse(text)) == number * levels


def test_too_many_arrays_and_objects_are_refused_before_they_are_made() -> None:
    for one in ("[]", "{}", '{"a":[]}'):
        number = json_text.CONTAINERS_MAX // (one.count("[") + one.count("{"))
        fine = "[" + ",".join([one] * (number - 1)) + "]"
        assert len(parse(fine)) == number - 1
        with pytest.raises(TooMany):
            parse(fine[:-1] + f",{one},{one}]")
    assert len(parse(json.dumps(["[{"] * json_text.CONTAINERS_MAX))) == json_text.CONTAINERS_MAX


def test_the_bound_leaves_most_of_the_stack_to_the_caller() -> None:
    text = "[" * DEPTH_MAX + "]" * DEPTH_MAX
    frames = len(inspect.stack(0))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(frames + 2 * DEPTH_MAX + 20)
    try:
        assert json.dumps(parse(text)) == text
    finally:
        sys.setrecursionlimit(before)


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\1é', max_size=60).map(str.encode))
def test_garbage_is_a_value_or_a_value_error(data: bytes) -> None:
    try:
        parse(data)
    except ValueError:
        return
    json.loads(data)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "[1e999]", "", "1 2", "9" * 5_000, b"\xff"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_bytes_are_utf_8_and_nothing_else() -> None:
    """Brackets could hide in the bytes of another encoding."""
    deep = ("[" * 500 + "]" * 500).encode("utf-16-le")
    with pytest.raises(ValueError, match=r"."):
        parse(deep)


def test_a_stored_text_that_is_too_deep_is_shown_as_it_stands() -> None:
    assert shown('{"a": [1]}') == {"a": [1]}
    deep = "[" * 900 + "]" * 900
    assert shown(deep) == deep


@given(VALUES.filter(lambda value: isinstance(value, dict | list)), st.text(max_size=10))
def test_an_object_ends_where_its_reader_would_stop(value: Any, behind: str) -> None:
    text = json.dumps(value)
    assert end_of("x " + text + behind, 2) == 2 + len(text)


def test_an_object_that_is_not_closed_ends_with_the_text() -> None:
    assert end_of('{"a": "}', 0) == len('{"a": "}')
    with pytest.raises(TooDeep):
        end_of("[" * (json_text.DEPTH_MAX + 1), 0)


def test_what_is_let_in_may_stand_inside_an_answer() -> None:
    """The deepest and the richest value, with levels around it that have a bound of their own."""
    deepest = "[" * json_text.DEPTH_MAX + "]" * json_text.DEPTH_MAX
    richest = "[" + ",".join(["[]"] * (json_text.CONTAINERS_MAX - 1)) + "]"
    for value in (deepest, richest):
        json_text.parse(value)
        answer = '{"details":{"value":' + value + "}}"
        json_text.parse(answer, json_text.DEPTH_MAX + 2)
        with pytest.raises(ValueError, match=r"at most|nested deeper"):
            json_text.parse(answer)
