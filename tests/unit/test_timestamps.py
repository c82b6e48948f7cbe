"""Restart timestamps against a plain second implementation, vbucket by vbucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.stream_records import FailoverBranch
from coordinator.core.timestamps import is_shared, restart
from coordinator.core.vectors import Vector

TOP = 2**64 - 1
VBUUIDS = st.sampled_from((0, 1, 2, 3, TOP))
SEQNOS = st.one_of(st.integers(0, 9), st.sampled_from((2**63, TOP - 1, TOP)))
SIZE = 4

vectors = st.lists(st.tuples(VBUUIDS, SEQNOS), min_size=SIZE, max_size=SIZE).map(
    lambda pairs: Vector([v for v, _ in pairs], [s if v else 0 for v, s in pairs])
)
logs = st.dictionaries(
    st.integers(0, SIZE - 1),
    st.lists(st.tuples(st.sampled_from((1, 2, 3, TOP)), st.integers(0, 9)), max_size=3).map(
        lambda pairs: tuple(FailoverBranch(v, s) for v, s in dict(pairs).items())
    ),
)


def plainly(participants: list[Vector], log: dict[int, tuple[FailoverBranch, ...]]) -> object:
    """The same, one vbucket and one participant at a time, in Python's own numbers."""
    positions, branched = [], []
    for vbucket in range(SIZE):
        held = [(int(v.seqnos[vbucket]), int(v.vbuuids[vbucket])) for v in participants]
        lowest = min(seqno for seqno, _ in held)
        among = [vbuuid for seqno, vbuuid in held if seqno == lowest]
        positions.append((0 if 0 in among else among[0], lowest))
        history = log.get(vbucket, ())
        for seqno, vbuuid in held:
            if seqno and history and not _kept(history, vbuuid, seqno):
                branched.append(vbucket)
                break
    return positions, branched


def _kept(history: tuple[FailoverBranch, ...], vbuuid: int, seqno: int) -> bool:
    names = [branch.vbuuid for branch in history]
    if vbuuid not in names:
        return False
    place = names.index(vbuuid)
    return place == 0 or seqno <= history[place - 1].seqno


@given(st.lists(vectors, min_size=1, max_size=4), logs)
def test_streams_begin_at_the_lowest_position_of_each_vbucket(
    participants: list[Vector], log: dict[int, tuple[FailoverBranch, ...]]
) -> None:
    before = [vector.to_bytes() for vector in participants]
    found = restart(participants, log)
    positions = [(int(v), int(s)) for v, s in zip(*_arrays(found.vector), strict=True)]
    assert (positions, list(found.branched)) == plainly(participants, log)
    assert [vector.to_bytes() for vector in participants] == before


def _arrays(vector: Vector) -> tuple[list[int], list[int]]:
    return vector.vbuuids.tolist(), vector.seqnos.tolist()


@given(st.lists(vectors, min_size=1, max_size=4))
def test_nobody_who_takes_part_misses_anything(participants: list[Vector]) -> None:
    found = restart(participants, {}).vector
    assert all((found.seqnos <= vector.seqnos).all() for vector in participants)


def test_who_holds_nothing_makes_a_vbucket_begin_at_its_beginning() -> None:
    found = restart([Vector([7, 7], [5, 5]), Vector([0, 7], [0, 9])], {}).vector
    assert found == Vector([0, 7], [0, 5])


def test_a_position_keeps_its_own_branch() -> None:
    log = {0: (FailoverBranch(8, 6), FailoverBranch(7, 0))}
    found = restart([Vector([7], [5]), Vector([8], [9])], log)
    assert found == (Vector([7], [5]), ())


def test_what_was_lost_is_reported_and_not_mixed_up() -> None:
    log = {0: (FailoverBranch(8, 4), FailoverBranch(7, 0))}
    assert restart([Vector([7], [5])], log).branched == (0,)
    assert restart([Vector([7], [4])], log).branched == ()
    assert restart([Vector([9], [1])], log).branched == (0,)


@pytest.mark.parametrize("participants", [[], [Vector.zero(2), Vector.zero(3)]])
def test_vectors_that_cannot_be_compared_are_refused(participants: list[Vector]) -> None:
    with pytest.raises(ValueError, match="participants"):
        restart(participants, {})


def test_the_beginning_is_part_of_every_history() -> None:
    assert is_shared((FailoverBranch(8, 4),), 99, 0)
