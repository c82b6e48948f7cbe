"""The setting of timestamps: what is taken, what is refused, and what lies over what."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.timestamps.settings import (
    DEFAULTS,
    TimestampSettings,
    is_setting,
    merged,
    parse,
    setting_name,
)


def test_an_empty_object_is_the_defaults() -> None:
    assert parse("{}") == DEFAULTS == TimestampSettings()


def test_fields_that_are_left_out_keep_what_they_were() -> None:
    base = TimestampSettings(period_ms=50)
    assert parse('{"algorithm": "heartbeat"}', base) == TimestampSettings("heartbeat", 50)


def test_the_buckets_setting_lies_over_that_of_all() -> None:
    everywhere, here = '{"period_ms": 50, "consolidate": true}', '{"period_ms": 70}'
    assert merged(everywhere, here) == TimestampSettings(period_ms=70, consolidate=True)
    assert merged(everywhere, None) == TimestampSettings(period_ms=50, consolidate=True)
    assert merged(None, here) == TimestampSettings(period_ms=70)
    assert merged(None, None) == DEFAULTS


def test_a_setting_that_cannot_be_read_is_as_if_it_were_not_there() -> None:
    assert merged("nonsense", '{"period_ms": 70}') == TimestampSettings(period_ms=70)
    assert merged('{"period_ms": 70}', '{"period_ms": 1}') == TimestampSettings(period_ms=70)


@pytest.mark.parametrize("name", ["timestamps", "timestamps/b", setting_name("a/b")])
def test_names(name: str) -> None:
    assert is_setting(name)
    assert not is_setting(name.replace("timestamps", "timestampsx"))


REFUSED = {
    "": "no JSON",
    "[]": "object",
    "null": "object",
    "[" * 100_000: "no JSON",
    '{"algorithm": "median"}': "promotion or heartbeat",
    '{"algorithm": ["promotion"]}': "promotion or heartbeat",
    '{"consolidate": 1}': "true or false",
    '{"period_ms": 9}': "10 to 3600000",
    '{"period_ms": 3600001}': "10 to 3600000",
    '{"period_ms": 1e3}': "10 to 3600000",
    '{"period_ms": true}': "10 to 3600000",
    '{"period_ms": null}': "10 to 3600000",
    '{"period": 1000}': "'period'",
}


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: value[:30])
def test_what_is_refused_says_why(value: str) -> None:
    with pytest.raises(ValueError, match=REFUSED[value]):
        parse(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("algorithm", "period_ms", "consolidate", "x")), inner)
    ),
    max_leaves=5,
)


@given(st.text(max_size=20) | JSON.map(json.dumps))
def test_nothing_else_is_raised(value: str) -> None:
    with contextlib.suppress(ValueError):
        assert 10 <= parse(value).period_ms <= 3_600_000
