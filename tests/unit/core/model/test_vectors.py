"""Vectors: whole 64-bit numbers, copied in, never compared across branches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.vectors import Places, Vector

U64 = st.integers(0, 2**64 - 1)
PAIRS = st.lists(st.tuples(U64, U64), max_size=5)


def of(pairs: list[tuple[int, int]]) -> Vector:
    return Vector([v for v, _ in pairs], [s for _, s in pairs])


@given(PAIRS)
def test_a_vector_survives_as_bytes(pairs: list[tuple[int, int]]) -> None:
    vector = of(pairs)
    again = Vector.from_bytes(*vector.to_bytes())
    assert again == vector
    assert (again.digest(), hash(again)) == (vector.digest(), hash(vector))
    assert 0 < vector.digest() < 2**63


@given(PAIRS, PAIRS)
def test_another_vector_has_another_digest(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    assert (of(one) == of(other)) == (of(one).digest() == of(other).digest()) == (one == other)


def test_arrays_are_copied_in_and_read_only() -> None:
    seqnos = np.array([1, 2], np.uint64)
    vector = Vector(seqnos, seqnos)
    seqnos[0] = 9
    assert vector.seqnos.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        vector.seqnos[0] = 9


@pytest.mark.parametrize(
    ("mine", "other", "covers"),
    [
        ([(7, 5)], [(7, 5)], True),
        ([(7, 5)], [(7, 6)], False),
        ([(7, 5)], [(8, 1)], False),
        ([(0, 0)], [(8, 0)], True),
        ([(7, 2**64 - 1)], [(7, 2**64 - 1)], True),
        ([(7, 5), (7, 1)], [(7, 5), (7, 2)], False),
        ([(7, 5)], [(7, 5), (7, 0)], False),
    ],
)
def test_what_is_covered_is_on_the_same_branch(
    mine: list[tuple[int, int]], other: list[tuple[int, int]], covers: bool
) -> None:
    assert of(mine).covers(of(other)) is covers


SMALL = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=3, max_size=3)


@given(SMALL, SMALL, SMALL)
def test_covering_is_a_partial_order(
    a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]
) -> None:
    """Of what is held: a seqno of 0 is nothing, whatever branch it names."""
    assert of(a).covers(of(a))
    if of(a).covers(of(b)) and of(b).covers(of(c)):
        assert of(a).covers(of(c))
    if of(a).covers(of(b)) and of(b).covers(of(a)):
        assert [p for p in a if p[1]] == [p for p in b if p[1]]
    plain = all(s == 0 or (v == u and s <= r) for (u, r), (v, s) in zip(a, b, strict=True))
    assert of(a).covers(of(b)) == plain
    places = Places.of(dict(enumerate(b)))
    assert (of(a).lacking(places) is None) == plain


def test_halves_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="1 vbuuids and 2 seqnos"):
        Vector([1], [1, 2])
