"""However records fall into batches, a bucket comes to the same, and to nothing but the truth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverLog,
    RollbackEnquiry,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
    Sync,
)
from coordinator.core.model.vectors import Vector
from streaming.stability.fold import Control, owners
from streaming.stability.ownership import OWNING_MAX
from tests.support.stability_bench import Bench, begin, closed, end, sync
from tests.support.stability_world import World

PERIOD_MS = 1_000
X, Y, Z = 11, 12, 13
"""Connections."""

STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, World.SIZE - 1), st.integers(1, 5)), max_size=20
)
MOVES = STEPS.map(lambda steps: [(what if what < 8 else 7, v, much) for what, v, much in steps])


def test_the_last_word_of_an_owner_counts_where_it_leaves_in_the_same_batch() -> None:
    bench = Bench(1)
    bench.read(begin(0, X, 1), sync(0, X, 2, 40))
    bench.fold(
        [
            sync(0, X, 3, 100),
            begin(0, Y, 1, 100, projector=1),
            end(0, X, 4, seqno=100),
        ]
    )
    assert (bench.owners, bench.seqnos) == ([Y], [100])


A_LIFE: dict[str, list[Sync | Control]] = {
    "another projector has it between": [
        begin(0, Y, 1, 40, projector=1),
        end(0, X, 4, seqno=40),
        sync(0, Y, 2, 70, projector=1),
        end(0, Y, 3, seqno=70, projector=1),
        begin(0, Z, 1, 40, projector=2),
    ],
    "its connection is closed": [
        begin(0, Y, 1, 40, projector=1),
        closed(X, 4),
        sync(0, Y, 2, 70, projector=1),
        closed(Y, 3, projector=1),
        begin(0, Z, 1, 40, projector=2),
    ],
    "a newer generation takes over": [
        sync(0, X, 3, 70),
        begin(0, Z, 1, 40, number=2),
    ],
    "it begins again on the same connection": [
        sync(0, X, 3, 60),
        end(0, X, 4, seqno=60),
        begin(0, X, 5, 40),
        sync(0, X, 6, 70),
        end(0, X, 7, seqno=70),
        begin(0, Z, 1, 40, projector=2),
    ],
}


@pytest.mark.parametrize("case", A_LIFE)
def test_who_owns_a_vbucket_for_a_part_of_a_batch_is_heard(case: str) -> None:
    records = A_LIFE[case]
    for order in (records, _by_topic(records)):
        bench = Bench(1)
        bench.read(begin(0, X, 1), sync(0, X, 2, 40))
        bench.fold(order)
        assert (bench.owners, bench.seqnos) == ([Z], [70])


def test_what_came_before_its_begin_counts_where_that_ends_in_the_same_batch() -> None:
    bench = Bench(1)
    bench.read(begin(0, X, 1), sync(0, X, 2, 40), sync(0, Y, 2, 70, projector=1))
    bench.fold(
        [
            begin(0, Y, 1, 40, projector=1),
            begin(0, Z, 1, 40, projector=2),
            end(0, X, 3),
            end(0, Y, 3, projector=1),
        ]
    )
    assert (bench.owners, bench.seqnos) == ([Z], [70])


@given(STEPS, st.lists(st.booleans(), max_size=80), st.lists(st.booleans(), max_size=80))
def test_a_batch_is_its_records_one_after_the_other(
    steps: list[tuple[int, int, int]], cuts: list[bool], ticks: list[bool]
) -> None:
    """In the order in which they came to be; a tick ends its batch, for it holds for all of it."""
    world = World()
    for step in steps:
        world.step(*step)
    at_once, one_by_one = Bench(World.SIZE), Bench(World.SIZE)
    waiting: list[Sync | Control] = []
    told: tuple[list[Any], list[Any]] = ([], [])
    for n, record in enumerate(world.records):
        waiting.append(record)
        told[1].extend(_enquiries(one_by_one.read(record)))
        last = n == len(world.records) - 1
        if not last and not (n < len(cuts) and cuts[n]):
            continue
        if last or (n < len(ticks) and ticks[n]):
            found = at_once.tick(PERIOD_MS, *_by_topic(waiting)), one_by_one.tick(PERIOD_MS)
            assert _vectors(found[0]) == _vectors(found[1])
            told[1].extend(_enquiries(found[1]))
        else:
            found = at_once.fold(_by_topic(waiting)), []
        told[0].extend(_enquiries(found[0]))
        waiting = []
        assert at_once.owners == one_by_one.owners
        assert at_once.state.current == one_by_one.state.current
        assert at_once.state.stable == one_by_one.state.stable
        assert set(told[0]) == set(told[1])


def test_the_seqno_of_an_end_is_no_position() -> None:
    """A stream may end within a snapshot, and a projector that lost Kafka has sent less than that.

    Where the next stream begins above what was said, indexers know that they miss something.
    """
    bench = Bench(1)
    bench.read(begin(0, X, 1), sync(0, X, 2, 40), end(0, X, 3, seqno=100))
    assert bench.seqnos == [40]
    bench.fold([begin(0, Y, 1, 60, projector=1), end(0, Y, 2, seqno=90, projector=1)])
    assert bench.seqnos == [40]


TOPICS = (Sync, StreamBegin, (StreamEnd, ConnectionClosed), FailoverLog)


def _by_topic(records: list[Sync | Control]) -> list[Sync | Control]:
    """Return records as a micro-batch has them: topic after topic, each in its own order."""
    return [record for kind in TOPICS for record in records if isinstance(record, kind)]


def _enquiries(outputs: list[Any]) -> list[tuple[str, int]]:
    return [(one.reason, one.vbucket) for one in outputs if isinstance(one, RollbackEnquiry)]


def _vectors(outputs: list[Any]) -> list[Vector]:
    return [
        Vector.from_bytes(one.vbuuids, one.seqnos)
        for one in outputs
        if isinstance(one, StabilityTimestamp)
    ]


@given(
    MOVES,
    st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.lists(st.booleans(), max_size=80),
)
def test_no_position_is_beyond_what_was_said(
    steps: list[tuple[int, int, int]], turns: list[int], cuts: list[bool]
) -> None:
    """Whatever topic is read first, and wherever batches end."""
    world = World()
    for step in steps:
        world.step(*step)
    queues = [list(topic) for topic in world.topics.values()]
    bench, batch, n = Bench(World.SIZE), [], 0
    said = [0] * World.SIZE
    while any(queues):
        wanted = turns[n % len(turns)] + n // len(turns)
        record = next(q for q in (queues[(wanted + k) % 4] for k in range(4)) if q).pop(0)
        batch.append(record)
        if isinstance(record, Sync | StreamBegin):
            said[record.vbucket] = max(said[record.vbucket], record.seqno)
        if not any(queues) or (n < len(cuts) and cuts[n]):
            found = _vectors(bench.tick(PERIOD_MS, *batch))
            assert all(v <= s for v, s in zip(bench.seqnos, said, strict=True))
            for vector in found:
                assert all(v <= s for v, s in zip(vector.seqnos.tolist(), said, strict=True))
            batch = []
        n += 1


@pytest.mark.thorough
def test_of_very_many_connections_those_that_own_nothing_are_forgotten_first() -> None:
    """The END of an owner that nobody remembers would end nothing."""
    size = 512
    bench = Bench(size)
    bench.read(*(begin(v, 1, v + 1, 0, number=9, projector=0) for v in range(size)))
    for n in range(OWNING_MAX + 9):
        bench.read(begin(n % size, 100 + n, 1, 0, number=9, projector=1 + n % 3))
    assert len(bench.state.connections) == OWNING_MAX
    assert 1 in bench.state.connections
    bench.read(*(end(v, 1, 9_000 + v, projector=0) for v in range(size)))
    assert all(owner.connection != 1 for owner in owners(bench.state))
