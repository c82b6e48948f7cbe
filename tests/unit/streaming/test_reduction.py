"""SYNCs may be reduced in any parts, anywhere: the fold makes the same of what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverLog,
    StreamBegin,
    StreamEnd,
    Sync,
)
from streaming.stability.fold import Control, fold
from streaming.stability.positions import Syncs
from streaming.stability.reduction import latest
from tests.support.stability_bench import Bench, batch, begin, columns, end, sync
from tests.support.stability_world import World

U64_MAX = 2**64 - 1
ANY_SYNC = st.builds(
    sync,
    st.integers(0, 3),
    st.sampled_from([0, 1, 2, 2**62]),
    st.integers(0, 5),
    st.sampled_from([0, 1, 2, U64_MAX]),
    st.sampled_from([1, 2, U64_MAX]),
    st.integers(0, 1),
)


def register(syncs: Sequence[Sync]) -> set[Sync]:
    """Return what is to be left: a dictionary in which the last writer wins."""
    left: dict[Any, Sync] = {}
    for one in syncs:
        key = one.connection, one.vbucket, one.vbuuid
        if key not in left or _rank(left[key]) < _rank(one):
            left[key] = one
    return set(left.values())


def _rank(one: Sync) -> tuple[int, int, int]:
    return one.ordinal, one.seqno, one.projector


def reduced(syncs: Sequence[Sync]) -> list[Sync]:
    return [syncs[place] for place in latest(columns(syncs)).tolist()]


@given(st.lists(ANY_SYNC, max_size=40), st.randoms())
def test_the_last_of_each_connection_vbucket_and_branch_is_left(
    syncs: list[Sync], chance: Any
) -> None:
    """Whatever was reduced before, in whatever parts, order and repetition."""
    left = reduced(syncs)
    assert set(left) == register(syncs)
    assert len(left) == len(set(left))
    parts: list[list[Sync]] = [[], [], []]
    for one in [*syncs, *chance.choices(syncs, k=5)] if syncs else []:
        chance.choice(parts).append(one)
    again = [one for part in parts for one in reduced(part)]
    chance.shuffle(again)
    assert set(reduced(again)) == register(syncs)


def test_a_writer_of_many_connections_and_branches_costs_no_more_for_each_of_them() -> None:
    """Nothing is left out then, and the work is one sort."""
    count = 100_000
    numbers = np.arange(count, dtype=np.int64)
    few = np.zeros(count, np.int64)
    unsigned = numbers.astype(np.uint64)
    for connections, branches in ((numbers << 40, few.astype(np.uint64)), (few, unsigned)):
        syncs = Syncs(few, few, connections, numbers, branches, unsigned)
        assert latest(syncs).tolist() == numbers.tolist()


def test_no_syncs_are_none() -> None:
    assert latest(Syncs.none()).tolist() == []


# -- the fold --------------------------------------------------------------------------------------

PERIOD_MS = 1_000
STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, World.SIZE - 1), st.integers(1, 5)), max_size=40
)
CUTS = st.lists(st.sampled_from(["", "", "", "ends", "ticks"]), max_size=120)


@given(STEPS, CUTS)
def test_the_fold_makes_the_same_of_what_is_left(
    steps: list[tuple[int, int, int]], cuts: list[str]
) -> None:
    world = World()
    for step in steps:
        world.step(*step)
    _same(world.records, cuts)


MOVES = st.lists(
    st.tuples(st.sampled_from("sssssemr"), st.integers(0, 2), st.integers(0, 3)), max_size=60
)


@given(MOVES, CUTS)
def test_nor_does_it_matter_that_a_vbucket_comes_back_to_a_connection(
    moves: list[tuple[str, int, int]], cuts: list[str]
) -> None:
    """Two connections that stay, between which vbuckets go to and fro, within one batch too."""
    records: list[Sync | Control] = []
    ordinals = [0, 0]
    owner, seqnos = [0, 1, 0], [0, 0, 0]

    def count(projector: int) -> int:
        ordinals[projector] += 1
        return ordinals[projector]

    def start(vbucket: int) -> None:
        p = owner[vbucket]
        records.append(begin(vbucket, 11 + p, count(p), seqnos[vbucket], projector=p))

    for vbucket in range(3):
        start(vbucket)
    for what, vbucket, amount in moves:
        p = owner[vbucket]
        if what == "s":
            seqnos[vbucket] += amount
            records.append(sync(vbucket, 11 + p, count(p), seqnos[vbucket], projector=p))
            continue
        records.append(end(vbucket, 11 + p, count(p), projector=p, seqno=seqnos[vbucket]))
        owner[vbucket] = 1 - p if what == "m" else p
        start(vbucket)
    for vbucket, p in enumerate(owner):
        records.append(sync(vbucket, 11 + p, count(p), seqnos[vbucket], projector=p))
    _same(records, cuts)


def _same(records: Sequence[Sync | Control], cuts: Sequence[str]) -> None:
    """Fold records in these batches, reduced and not; compare all that comes of them."""
    benches = Bench(World.SIZE), Bench(World.SIZE)
    waiting: list[Sync | Control] = []
    for n, record in enumerate(records):
        waiting.append(record)
        last = n == len(records) - 1
        cut = "ticks" if last else cuts[n] if n < len(cuts) else ""
        if not cut:
            continue
        told = []
        for bench, is_reduced in zip(benches, (False, True), strict=True):
            bench.now_ms += PERIOD_MS if cut == "ticks" else 0
            given = batch(_by_topic(waiting), bench.now_ms, cut == "ticks")
            if is_reduced:
                given = given._replace(syncs=given.syncs.only(latest(given.syncs)))
            bench.state, outputs, refused = fold(bench.state, given, bench.settings)
            assert not refused
            told.append(outputs)
        waiting = []
        assert told[0] == told[1]
        assert benches[0].state == benches[1].state


TOPICS = (Sync, StreamBegin, (StreamEnd, ConnectionClosed), FailoverLog)


def _by_topic(records: Sequence[Sync | Control]) -> list[Sync | Control]:
    return [record for kind in TOPICS for record in records if isinstance(record, kind)]
