"""Laws of the fold of a bucket: against the plain truth, and a plain second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from coordinator.core.model.stream_records import (
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.fold import BucketState, Output, Syncs, fold, pack, unpack
from tests.support.stability_bench import (
    TOP,
    A,
    B,
    Bench,
    C,
    asked,
    batch,
    begin,
    closed,
    end,
    heartbeat,
    hurried,
    log,
    sync,
)
from tests.support.stability_plain import Plain
from tests.support.stability_world import World

STEPS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, World.SIZE - 1), st.integers(1, 5)), max_size=20
)


@given(STEPS, st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.booleans()))
def test_whatever_the_topics_order_and_the_batches_the_end_is_the_same(
    steps: list[tuple[int, int, int]], turns: list[int], cuts: list[bool]
) -> None:
    world = World()
    for step in steps:
        world.step(*step)
    for v in range(World.SIZE):
        world.say(v)
    bench = Bench(World.SIZE)
    reached = bench.state.current
    for given_batch in _batches(_interleaved(list(world.topics.values()), turns), cuts):
        outputs = bench.fold(given_batch)
        assert not bench.refused
        assert outputs == []
        assert (bench.state.current.seqnos >= reached.seqnos).all()
        reached = bench.state.current
    assert bench.owners == world.owner
    assert bench.seqnos == world.high
    assert [v if s else 0 for v, s in zip(bench.vbuuids, world.high, strict=True)] == [
        log[0][0] if s else 0 for log, s in zip(world.logs, world.high, strict=True)
    ]
    assert (bench.state.held, bench.state.early_ends, len(bench.state.early)) == ({}, {}, 0)


def _interleaved(topics: list[list[Any]], turns: list[int]) -> list[Any]:
    """Merge topics, each in its own order."""
    queues, merged, turn = [list(topic) for topic in topics], [], 0
    while any(queues):
        wanted = turns[turn % len(turns)] + turn // len(turns)
        queue = next(q for q in (queues[(wanted + n) % len(queues)] for n in range(9)) if q)
        merged.append(queue.pop(0))
        turn += 1
    return merged


def _batches(records: list[Any], cuts: list[bool]) -> list[list[Any]]:
    found: list[list[Any]] = [[]]
    for n, record in enumerate(records):
        found[-1].append(record)
        if n < len(cuts) and cuts[n]:
            found.append([])
    return found


# -- the second implementation ---------------------------------------------------------------------

VBUCKET = st.integers(0, 1)
CONNECTION = st.integers(10, 12)
ORDINAL = st.integers(0, 9)
BRANCH = st.sampled_from((A, B, C))
SEQNO = st.one_of(st.integers(0, 6), st.sampled_from((TOP - 1, TOP)))

ANY_SYNC = st.builds(sync, VBUCKET, CONNECTION, ORDINAL, SEQNO, BRANCH)
ANY_BEGIN = st.builds(
    begin,
    VBUCKET,
    CONNECTION,
    ORDINAL,
    SEQNO,
    number=st.integers(0, 3),
    projector=st.integers(0, 1),
    vbuuid=BRANCH,
)
ANY_END = st.builds(
    end, VBUCKET, CONNECTION, ORDINAL, reason=st.sampled_from(("moved", "moved", "rollback"))
)
ANY_CLOSED = st.builds(closed, CONNECTION, ORDINAL)
ANY_LOG = st.builds(
    lambda vbucket, names, seqnos: log(vbucket, *zip(names, seqnos, strict=False)),
    VBUCKET,
    st.permutations((A, B, C)),
    st.lists(st.integers(0, 6), min_size=1, max_size=3).map(lambda s: sorted(s, reverse=True)),
)
ANY_HURRY = st.builds(
    hurried, st.sampled_from((0, 1_000, 5_000, 2**62)), st.sampled_from((0, 999_000, 1_003_000))
)
TICK = st.sampled_from((1, 499, 1_000, 2_999, 3_000, 60_000))
ANYTHING = st.one_of(
    ANY_SYNC, ANY_SYNC, ANY_BEGIN, ANY_BEGIN, ANY_END, ANY_CLOSED, ANY_LOG, ANY_HURRY
)


@given(st.lists(st.one_of(ANYTHING, ANYTHING, TICK), max_size=30))
def test_records_do_what_they_do_to_a_plain_bucket(records: list[Any]) -> None:
    bench = Bench(2)
    plain = Plain(2, bench.settings, bench.now_ms)
    for record in records:
        if isinstance(record, int):
            found, expected = _plainly(bench.tick(record)), plain.tick(record)
        else:
            found, expected = _plainly(bench.read(record)), plain.read(record)
        assert sorted(found, key=repr) == sorted(expected, key=repr)
        assert bench.owners == [
            p.owner.connection if p.owner and p.owner.ended is None else None for p in plain.places
        ]
        assert _pairs(*bench.state.current.to_bytes()) == tuple(p.current for p in plain.places)
        assert _pairs(*bench.state.stable.to_bytes()) == tuple(p.stable for p in plain.places)
        early = bench.state.early[["connection", "vbucket", "ordinal", "since_ms"]]
        assert sorted(early.tolist()) == sorted(
            (*key, kept.ordinal, since) for key, (kept, since) in plain.syncs.items()
        )
        assert {k: [tuple(e) for e in v] for k, v in bench.state.early_ends.items()} == plain.ends
        assert bench.state.hurried_until_ms == plain.hurried
        assert {v: [h.connection for h in held] for v, held in bench.state.held.items()} == {
            v: [h.connection for h, _ in held] for v, held in plain.waiting.items() if held
        }


def _plainly(outputs: list[Output]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for output in outputs:
        match output:
            case StabilityTimestamp():
                found.append(("stable", _pairs(output.vbuuids, output.seqnos)))
            case RestartTimestamp():
                at = _pairs(output.vbuuids, output.seqnos)
                found.append(("restart", output.reason, output.vbuckets, at))
            case RollbackEnquiry():
                seen = (output.seen_vbuuid, output.seen_seqno)
                found.append(("enquiry", output.reason, output.vbucket, *seen))
    return found


def _pairs(vbuuids: bytes, seqnos: bytes) -> tuple[tuple[int, int], ...]:
    vector = Vector.from_bytes(vbuuids, seqnos)
    return tuple(zip(vector.vbuuids.tolist(), vector.seqnos.tolist(), strict=True))


@given(st.lists(st.tuples(VBUCKET, CONNECTION, ORDINAL, SEQNO), max_size=40))
def test_a_batch_of_syncs_is_its_syncs_one_after_the_other(
    rows: list[tuple[int, int, int, int]],
) -> None:
    syncs = [sync(*row) for row in rows]
    control = [begin(0, 10, 3), begin(1, 11, 5, projector=1), begin(0, 12, 4, projector=1)]
    at_once, one_by_one = Bench(2), Bench(2)
    for bench in (at_once, one_by_one):
        bench.read(*control)
    at_once.fold(syncs)
    one_by_one.read(*syncs)
    assert at_once.state.current == one_by_one.state.current
    fields = ["connection", "vbucket", "ordinal"]
    assert at_once.state.early[fields].tolist() == one_by_one.state.early[fields].tolist()


# -- laws of any batches ---------------------------------------------------------------------------

SOUND = st.builds(
    heartbeat,
    st.integers(1, 3),
    st.lists(st.tuples(BRANCH, SEQNO), min_size=2, max_size=2).map(
        lambda pairs: Vector([v for v, _ in pairs], [s for _, s in pairs])
    ),
    indexes=st.sampled_from(((), (7,))),
    queue=st.integers(0, 2),
)
QUESTION = st.builds(asked, st.integers(1, 3), st.sampled_from(((), (1,), (1, 2))), st.just(2))
BATCHES = st.lists(
    st.tuples(st.lists(st.one_of(ANYTHING, SOUND, QUESTION), max_size=8), st.none() | TICK),
    max_size=8,
)


@given(BATCHES, st.sampled_from(("promotion", "heartbeat")))
def test_outputs_ascend_states_are_bytes_and_a_batch_may_be_done_again(
    batches: list[tuple[list[Any], int | None]], algorithm: str
) -> None:
    settings = TimestampSettings(algorithm=algorithm)
    state, now_ms = BucketState.new("b", 2), 0
    stability, restart = 0, 0
    moved = np.zeros(2, np.bool_)
    for records, after_ms in batches:
        now_ms += after_ms or 0
        given_batch = batch(records, now_ms, after_ms is not None)
        moved |= _may_move(state, given_batch.syncs)
        before, columns = pack(state), [column.copy() for column in given_batch.syncs]
        after, outputs, refused = fold(state, given_batch, settings)
        again = fold(unpack(before), given_batch, settings)
        assert pack(state) == before
        assert all(map(np.array_equal, columns, given_batch.syncs))
        assert not refused
        assert (pack(again.state), again.outputs) == (pack(after), outputs)
        assert unpack(pack(after)) == after
        assert (pack(after) == before) == (after is state) or after == state
        for output in outputs:
            assert output.at_ms == now_ms
            if isinstance(output, StabilityTimestamp):
                stability += 1
                assert output.number == stability
                assert _never_less(state.stable, after.stable, moved)
                assert after.stable != state.stable
            else:
                restart += 1
                assert output.number == restart
        assert _never_less(state.current, after.current, moved)
        assert not any(array.flags.writeable for array in (after.places, after.early))
        state = after


def _may_move(state: BucketState, syncs: Syncs) -> NDArray[np.bool_]:
    """Tell which vbuckets may go to another branch: what was lost with the one before may come back
    with less if somebody says, as no sound connection does, that it is on that branch again."""
    vbuckets = np.concatenate([syncs.vbucket, state.early["vbucket"]])
    vbuuids = np.concatenate([syncs.vbuuid, state.early["vbuuid"]])
    stands = state.current.vbuuids[vbuckets]
    found = np.zeros(state.vbuckets, np.bool_)
    found[vbuckets[(stands != 0) & (vbuuids != stands)]] = True
    return found


def _never_less(before: Vector, after: Vector, moved: NDArray[np.bool_]) -> bool:
    """Tell whether no seqno has become less on one branch, of what has stayed on one."""
    stayed = ~moved & (before.vbuuids == after.vbuuids)
    return bool((~stayed | (after.seqnos >= before.seqnos)).all())
