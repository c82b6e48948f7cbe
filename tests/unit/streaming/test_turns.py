"""The order in which records of a batch take turns, and SYNCs that are handed out once."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import StreamBegin
from streaming.stability.turns import Said, in_turn
from tests.support.stability_bench import begin, closed, columns, end, sync

X, Y = 11, 12
"""Connections."""


def test_a_connection_ends_behind_all_that_is_older_on_it_wherever_that_stands() -> None:
    """BEGINs of two vbuckets are in no order: the newest of a connection may come first."""
    begins = [begin(1, X, 5), begin(0, X, 2), begin(2, Y, 1), begin(3, X, 9)]
    for order in permutations(begins):
        found = in_turn([*order, closed(X, 7)])
        at = found.index(closed(X, 7))
        before = {one.ordinal for one in found[:at] if one.connection == X}
        assert {2, 5} <= before
        assert [one for one in found if isinstance(one, StreamBegin)] == list(order)


def test_an_end_comes_behind_the_begin_that_it_ends_and_before_the_next() -> None:
    first, second = begin(0, X, 1), begin(0, X, 5)
    ends = end(0, X, 7), end(0, X, 3)
    assert in_turn([first, second, *ends]) == [first, ends[1], second, ends[0]]
    assert in_turn([second, end(0, X, 4)]) == [end(0, X, 4), second]


PLACES = st.tuples(st.integers(0, 1), st.sampled_from((X, Y)), st.integers(0, 9))
QUESTIONS = st.tuples(
    st.integers(0, 1), st.sampled_from((X, Y)), st.integers(0, 9), st.integers(0, 10)
)


@given(st.lists(PLACES, unique=True, max_size=30), st.lists(QUESTIONS, max_size=8))
def test_a_sync_is_handed_out_once_or_is_left(
    places: list[tuple[int, int, int]], questions: list[tuple[int, int, int, int]]
) -> None:
    syncs = columns(sync(*place, seqno=1) for place in places)
    said = Said(syncs, np.array([ordinal for _, _, ordinal in places], np.int64))
    given_out = []
    for vbucket, connection, begun, before in questions:
        found = said.up_to(vbucket, connection, begun, before)
        assert set(found.vbucket.tolist()) <= {vbucket}
        assert set(found.connection.tolist()) <= {connection}
        ordinals = found.ordinal.tolist()
        assert ordinals == sorted(ordinals)
        assert all(begun < one < before for one in ordinals)
        given_out += [(vbucket, connection, one) for one in ordinals]
    rest, since = said.rest()
    left = [*zip(*(rest[n].tolist() for n in (0, 2, 3)), strict=True)]
    assert since.tolist() == rest.ordinal.tolist()
    assert sorted(given_out + left) == sorted(places)


def test_all_that_an_owner_has_said_is_handed_out() -> None:
    syncs = columns(sync(0, X, ordinal, seqno=ordinal) for ordinal in (4, 1, 3, 2))
    said = Said(syncs, np.zeros(4, np.int64))
    assert said.up_to(0, X, begun=1, before=3).ordinal.tolist() == [2]
    assert said.up_to(0, X, begun=2).ordinal.tolist() == [3, 4]
    assert said.up_to(0, X, begun=0).ordinal.tolist() == []
    assert said.rest()[0].ordinal.tolist() == [1]
