"""Timestamps against plain second implementations: vbucket by vbucket, in Python's own numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import FailoverBranch
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import (
    Succession,
    Watermark,
    is_shared,
    mean_by_heartbeat,
    promote,
    restart,
    succession,
    surviving,
)

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
    newer = history[: names.index(vbuuid)]
    return all(seqno <= branch.seqno for branch in newer)


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


# -- branches --------------------------------------------------------------------------------------

LOG = (FailoverBranch(9, 20), FailoverBranch(8, 10), FailoverBranch(7, 0))


@pytest.mark.parametrize(
    ("vbuuid", "seqno", "survives"),
    [(9, 99, 99), (8, 20, 20), (8, 21, 20), (7, 10, 10), (7, 15, 10), (6, 5, 0), (6, 0, 0)],
)
def test_what_survives_of_a_branch(vbuuid: int, seqno: int, survives: int) -> None:
    assert surviving(LOG, vbuuid, seqno) == survives


def test_a_branch_that_began_later_but_lower_counts_for_all_before_it() -> None:
    log = (FailoverBranch(9, 4), FailoverBranch(8, 10), FailoverBranch(7, 0))
    assert surviving(log, 7, 99) == 4


@pytest.mark.parametrize(
    ("old", "seqno", "new", "verdict"),
    [
        (7, 10, 8, Succession.COVERED),
        (7, 11, 8, Succession.LOST),
        (7, 10, 9, Succession.COVERED),
        (8, 5, 7, Succession.LATE),
        (7, 5, 6, Succession.UNKNOWN),
        (6, 5, 9, Succession.LOST),
        (6, 0, 9, Succession.COVERED),
        (9, 30, 9, Succession.COVERED),
    ],
)
def test_what_becomes_of_an_old_branch(old: int, seqno: int, new: int, verdict: Succession) -> None:
    assert succession(LOG, old, seqno, new) is verdict


@given(logs, VBUUIDS, SEQNOS)
def test_nothing_is_discarded_that_the_log_still_covers(
    some: dict[int, tuple[FailoverBranch, ...]], vbuuid: int, seqno: int
) -> None:
    for log in some.values():
        kept = surviving(log, vbuuid, seqno)
        assert kept <= seqno
        assert kept == 0 or _kept(log, vbuuid, kept)
        assert kept == seqno or not _kept(log, vbuuid, kept + 1)
        assert is_shared(log, vbuuid, seqno) == (kept == seqno)


# -- promotion -------------------------------------------------------------------------------------


Logs = dict[int, tuple[FailoverBranch, ...]]


def _may_follow(old: tuple[int, int], new: tuple[int, int], log: Logs, vbucket: int) -> bool:
    """Tell in plain words whether a position may take the place of another one."""
    (vbuuid, seqno), (branch, reached) = old, new
    if branch == 0 or old == new:
        return False
    if vbuuid == branch:
        return reached > seqno
    if seqno == 0:
        return reached > 0 or vbuuid == 0
    history = log.get(vbucket, ())
    return _is_lost(history, branch, vbuuid, seqno) or (
        reached >= seqno and _is_of(history, branch, vbuuid, seqno)
    )


def _is_lost(history: tuple[FailoverBranch, ...], branch: int, vbuuid: int, seqno: int) -> bool:
    """Tell whether a branch is known, not older than the position, and does not have it."""
    names = [one.vbuuid for one in history]
    if branch not in names or vbuuid in names[: names.index(branch)]:
        return False
    return not _is_of(history, branch, vbuuid, seqno)


def _is_of(history: tuple[FailoverBranch, ...], branch: int, vbuuid: int, seqno: int) -> bool:
    """Tell whether a position is part of a branch's history."""
    while history and history[0].vbuuid != branch:
        history = history[1:]
    return bool(history) and (seqno == 0 or _kept(history, vbuuid, seqno))


def _pairs(vector: Vector) -> list[tuple[int, int]]:
    return list(zip(*_arrays(vector), strict=True))


def _covers(held: Vector, wanted: Vector, log: Logs) -> bool:
    return all(
        seqno == 0
        or (branch == vbuuid and reached >= seqno)
        or (branch != vbuuid and reached >= seqno and _is_of(log.get(v, ()), branch, vbuuid, seqno))
        or _is_lost(log.get(v, ()), branch, vbuuid, seqno)
        for v, ((branch, reached), (vbuuid, seqno)) in enumerate(
            zip(_pairs(held), _pairs(wanted), strict=True)
        )
    )


@given(vectors, vectors, logs)
def test_promotion_moves_each_vbucket_as_far_as_it_may(
    stable: Vector, current: Vector, log: Logs
) -> None:
    before = stable.to_bytes(), current.to_bytes()
    found = promote(stable, current, log)
    expected = [
        new if _may_follow(old, new, log, v) else old
        for v, (old, new) in enumerate(zip(_pairs(stable), _pairs(current), strict=True))
    ]
    assert (stable.to_bytes(), current.to_bytes()) == before
    assert (_pairs(stable) if found is None else _pairs(found)) == expected
    assert (found is None) == (expected == _pairs(stable))
    if found is not None:
        assert _covers(found, stable, log)
        assert promote(found, current, log) is None


def test_an_idle_bucket_is_not_promoted() -> None:
    assert promote(Vector.zero(2), Vector.zero(2), {}) is None
    assert promote(Vector([7], [5]), Vector([7], [5]), {}) is None


def test_an_empty_vbucket_holds_nobody_back() -> None:
    found = promote(Vector([7, 0], [5, 0]), Vector([7, 0], [6, 0]), {})
    assert found == Vector([7, 0], [6, 0])


@pytest.mark.parametrize("reached", [4, 9])
def test_what_a_vbucket_has_lost_is_stable_no_more(reached: int) -> None:
    log = {0: (FailoverBranch(8, 4), FailoverBranch(7, 0))}
    found = promote(Vector([7, 7], [5, 5]), Vector([8, 7], [reached, TOP]), log)
    assert found == Vector([8, 7], [reached, TOP])
    assert promote(Vector([8], [reached]), Vector([7], [9]), log) is None, "it does not come back"


def test_a_branch_is_not_left_on_nobodys_word() -> None:
    assert promote(Vector([7], [5]), Vector([8], [9]), {}) is None


def test_vectors_of_different_buckets_are_refused() -> None:
    with pytest.raises(ValueError, match="vectors of 2 and 3"):
        promote(Vector.zero(2), Vector.zero(3), {})


# -- the mean of heartbeats ------------------------------------------------------------------------


def _plain_mean(watermarks: list[Watermark], stable: Vector, log: Logs) -> list[tuple[int, int]]:
    """The same, one vbucket at a time."""
    found = []
    for v, old in enumerate(_pairs(stable)):
        held = [(_pairs(w.vector)[v], w.leaning) for w in watermarks]
        names = [vbuuid for (vbuuid, _), _ in held if vbuuid]
        newest = log[v][0].vbuuid if log.get(v) else 0
        if newest in names and newest:
            branch = newest
        elif names:
            votes = {n: sum(vb == n and s > 0 for (vb, s), _ in held) for n in names}
            branch = max(names, key=lambda n: (votes[n], n == old[0], n))
        else:
            branch = 0
        counting = [(s, leans) for (vb, s), leans in held if vb == branch]
        seqnos = [s for s, _ in counting]
        mean = sum(seqnos) // len(seqnos) if seqnos else 0
        fastest = max(seqnos, default=0)
        if any(leans and s == fastest for s, leans in counting):
            mean += (fastest - mean) // 2
        found.append((branch, mean) if _may_follow(old, (branch, mean), log, v) else old)
    return found


watermarks = st.lists(st.builds(Watermark, vectors, st.booleans()), max_size=4)


@given(watermarks, vectors, logs)
def test_the_mean_is_that_of_each_vbucket(held: list[Watermark], stable: Vector, log: Logs) -> None:
    before = [w.vector.to_bytes() for w in held]
    found = mean_by_heartbeat(held, stable, log)
    after = _pairs(stable) if found is None else _pairs(found)
    assert after == (_plain_mean(held, stable, log) if held else _pairs(stable))
    assert (found is None) == (after == _pairs(stable))
    assert [w.vector.to_bytes() for w in held] == before
    for v, (new, old) in enumerate(zip(after, _pairs(stable), strict=True)):
        assert new[1] >= old[1] or new[0] != old[0]
        assert new == old or new[1] <= max(int(w.vector.seqnos[v]) for w in held)


def test_the_mean_is_rounded_down_and_does_not_overflow() -> None:
    held = [Watermark(Vector([7, 7], [TOP, 3])), Watermark(Vector([7, 7], [TOP - 1, 4]))]
    assert mean_by_heartbeat(held, Vector.zero(2), {}) == Vector([7, 7], [TOP - 1, 3])


def test_the_mean_leans_half_way_to_the_fast_indexer() -> None:
    held = [Watermark(Vector([7], [0])), Watermark(Vector([7], [TOP]), leaning=True)]
    found = mean_by_heartbeat(held, Vector.zero(1), {})
    assert found == Vector([7], [TOP // 2 + (TOP - TOP // 2) // 2])
    assert mean_by_heartbeat([held[1]], Vector.zero(1), {}) == Vector([7], [TOP])


def test_who_is_slow_has_no_queue_that_matters() -> None:
    held = [Watermark(Vector([7], [10]), leaning=True), Watermark(Vector([7], [30]))]
    assert mean_by_heartbeat(held, Vector.zero(1), {}) == Vector([7], [20])


def test_branches_are_not_mixed_into_one_mean() -> None:
    held = [Watermark(Vector([v], [s])) for v, s in ((7, 10), (7, 20), (8, 90))]
    assert mean_by_heartbeat(held, Vector.zero(1), {}) == Vector([7], [15])
    log = {0: (FailoverBranch(8, 50), FailoverBranch(7, 0))}
    assert mean_by_heartbeat(held, Vector.zero(1), log) == Vector([8], [90])


def test_who_has_only_just_come_does_not_hold_the_others_back() -> None:
    held = [Watermark(Vector([7, 7], [9, 9])), Watermark(Vector([0, 7], [0, 0]))]
    assert mean_by_heartbeat(held, Vector.zero(2), {}) == Vector([7, 7], [9, 4])


def test_without_heartbeats_nothing_advances() -> None:
    assert mean_by_heartbeat([], Vector.zero(1), {}) is None


# -- a part of the vbuckets ------------------------------------------------------------------------


@given(
    st.lists(vectors, min_size=1, max_size=3),
    logs,
    st.lists(st.integers(0, SIZE - 1), unique=True),
)
def test_the_restart_of_some_vbuckets_is_that_part_of_the_whole(
    participants: list[Vector], log: Logs, some: list[int]
) -> None:
    whole, part = restart(participants, log), restart(participants, log, some)
    assert _pairs(part.vector) == [_pairs(whole.vector)[v] for v in some]
    assert part.branched == tuple(v for v in whole.branched if v in some)
