"""Keys of indexes for Hypothesis, and the order that they have."""

from __future__ import annotations

import sys
from typing import Any

from hypothesis import strategies as st

from coordinator.core.keys.collation import (
    MISSING,
)

EDGES = [0, 1, 2**52, 2**53 - 1, 2**53, 2**53 + 1, 2**54 + 2, 2**63, 2**64, 2**64 + 1, 10**400]


FLOATS = [0.5, 1.0, 5e-324, sys.float_info.min, 2.0**53, 2.0**64, 1e300, sys.float_info.max]


numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([*EDGES, *FLOATS, -0.0]),
    st.sampled_from([*EDGES, *FLOATS]).map(lambda number: -number),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(2**53, 1e25).map(int),
)


texts = st.text(st.sampled_from("\0\1\2aé\ud800\uffff\U0001f600"), max_size=3) | st.text(max_size=4)


scalars = st.none() | st.booleans() | numbers | texts


values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


components = values | st.just(MISSING)


keys = st.tuples(components, components)


def rank(value: Any) -> int:
    if value is MISSING:
        return 0
    if value is None:
        return 1
    if isinstance(value, bool):
        return 3 if value else 2
    kinds = {int: 4, float: 4, str: 5, list: 6, tuple: 6, dict: 7}
    return kinds[type(value)]


def order(a: Any, b: Any) -> int:
    """Return -1, 0 or 1: a below, equal to or above b."""
    if rank(a) != rank(b):
        return -1 if rank(a) < rank(b) else 1
    if isinstance(a, list | tuple):
        for one, other in zip(a, b, strict=False):
            if order(one, other):
                return order(one, other)
        return order(len(a), len(b))
    if isinstance(a, dict):
        if len(a) != len(b):
            return order(len(a), len(b))
        flat = [[part for name in sorted(one) for part in (name, one[name])] for one in (a, b)]
        return order(*flat)
    if rank(a) in (4, 5):
        return (a > b) - (a < b)
    return 0
