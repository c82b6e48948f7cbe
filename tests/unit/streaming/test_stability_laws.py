"""Laws of the fold of a bucket: against the plain truth, and a plain second implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.model.stream_records import (
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
    Sync,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.settings import TimestampSettings
from streaming.stability.fold import BucketState, Control, Output, fold, pack, unpack
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


class World:
    """A store, two projectors and their topics, as they would be: the plain truth.

    Vbuckets move, projectors are started again with and without a word, and the store loses what
    nobody was told of. At the end everything is streamed, and every owner says how far it is.
    """

    SIZE = 3

    def __init__(self) -> None:
        self.topics: dict[str, list[Sync | Control]] = {
            name: [] for name in ("begin", "end", "sync", "log")
        }
        self.high = [0] * self.SIZE
        self.told = [0] * self.SIZE
        self.logs: list[tuple[tuple[int, int], ...]] = [((100 + v, 0),) for v in range(self.SIZE)]
        self.projector_of = [v % 2 for v in range(self.SIZE)]
        self.owner: list[int | None] = [None] * self.SIZE
        self.connections: dict[int, int] = {}
        self.ordinals: dict[int, int] = {}
        self.generation = 0
        for v in range(self.SIZE):
            self.topics["log"].append(log(v, *self.logs[v]))
        for projector in (0, 1):
            self.start(projector)

    def ordinal(self, connection: int) -> int:
        self.ordinals[connection] = self.ordinals.get(connection, 0) + 1
        return self.ordinals[connection]

    def start(self, projector: int) -> None:
        """A projector streams all that it has, in a new generation."""
        self.generation += 1
        connection = self.connections[projector] = 1_000 + self.generation
        for v in range(self.SIZE):
            if self.projector_of[v] == projector:
                vbuuid, since = self.logs[v][0][0], self.told[v] // 2
                record = begin(
                    v,
                    connection,
                    self.ordinal(connection),
                    since,
                    number=self.generation,
                    projector=projector,
                    vbuuid=vbuuid,
                )
                self.topics["begin"].append(record)
                self.owner[v] = connection

    def stop(self, projector: int, how: int) -> None:
        """A projector ends its streams with ENDs, with its connection's end only, or not at all."""
        connection = self.connections[projector]
        for v in range(self.SIZE):
            if self.owner[v] == connection:
                if how == 0:
                    self.leave(v)
                self.owner[v] = None
        if how < 2:
            record = closed(connection, self.ordinal(connection), projector)
            self.topics["end"].append(record)

    def leave(self, v: int) -> None:
        connection = self.owner[v]
        assert connection is not None
        record = end(v, connection, self.ordinal(connection), projector=self.projector_of[v])
        self.topics["end"].append(record)
        self.owner[v] = None

    def say(self, v: int) -> None:
        connection = self.owner[v]
        if connection is not None:
            self.told[v] = self.high[v]
            vbuuid = self.logs[v][0][0]
            record = sync(v, connection, self.ordinal(connection), self.high[v], vbuuid)
            self.topics["sync"].append(replace(record, projector=self.projector_of[v]))

    def step(self, what: int, v: int, amount: int) -> None:
        projector = self.projector_of[v]
        if what < 3:
            self.high[v] += amount
        elif what < 6:
            self.say(v)
        elif what == 6:
            self.stop(projector, amount % 3)
            self.start(projector)
        elif what == 7:  # A vbucket moves: the other projector streams all anew.
            self.leave(v)
            self.projector_of[v] = 1 - projector
            self.stop(1 - projector, amount % 3)
            self.start(1 - projector)
        else:  # A crash: what nobody was told of may be lost.
            self.high[v] = max(self.told[v], self.high[v] - amount)
            older = tuple((vbuuid, min(at, self.high[v])) for vbuuid, at in self.logs[v])
            self.logs[v] = ((10_000 + self.generation, self.high[v]), *older)
            self.generation += 1
            self.topics["log"].append(log(v, *self.logs[v]))
            self.stop(projector, 0)
            self.start(projector)


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
    for records, after_ms in batches:
        now_ms += after_ms or 0
        given_batch = batch(records, now_ms, after_ms is not None)
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
                assert (after.stable.seqnos >= state.stable.seqnos).all()
                assert after.stable != state.stable
            else:
                restart += 1
                assert output.number == restart
        assert (after.current.seqnos >= state.current.seqnos).all()
        assert not any(array.flags.writeable for array in (after.places, after.early))
        state = after
