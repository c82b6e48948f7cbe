"""What a micro-batch makes of the books: pure, so it is tried without Spark and Kafka."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator import codec
from coordinator.core.model.entities import Bucket, Entity, Setting, Stream
from coordinator.core.model.records import DeadLetter, Event, Mutation
from coordinator.core.model.stream_records import (
    MAINTENANCE,
    NOT_SAID,
    ConnectionClosed,
    ConsolidatedStability,
    PromotionRequested,
    RestartRequested,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
    Sync,
    SyncVector,
    Tick,
)
from coordinator.core.model.types import TxnId
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.bucket_state import BucketState, pack, unpack
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from coordinator.kafka.producers import DEAD_LETTER_BYTES_MAX
from coordinator.kafka.topics import (
    DEAD_LETTER,
    FAILOVER_LOG,
    HW,
    RESTART,
    RESTART_REQUEST,
    STABILITY,
    STABILITY_HISTORY,
    STATECONTEXT,
    STREAM_BEGIN,
    STREAM_END,
    TICK,
    TIMESTAMP_STATE,
)
from coordinator.kafka.topics import SYNC as SYNC_TOPIC
from streaming.stability.quiet import ALWAYS
from streaming.timestamps import query_state as query_state_module
from streaming.timestamps.inputs import INPUTS
from streaming.timestamps.outputs import Outputs, outputs_of
from streaming.timestamps.query_state import (
    WAITING_MAX,
    WAITING_MS,
    BatchResult,
    QueryState,
    Record,
    adopted,
    fold_batch,
    keys_of,
    next_due_ms,
    seeded,
    with_buckets,
)
from streaming.timestamps.rows import RawRow, Rows, Span, SyncRows
from tests.support.indexes import make_sync, make_sync_vector, make_watermarks, syncs_of

CLUSTER = "c"
PROGRESS_KEY, CONTEXT_KEY, _ = keys_of(WHOLE)
VBUCKETS = 4
NOW_MS = 1_000_000


class Feed:
    """Numbers records as Kafka does, and makes batches of them."""

    def __init__(self) -> None:
        self._next = dict.fromkeys(INPUTS, 0)

    def batch(self, *records: tuple[str, Any]) -> Rows:
        """Return a batch of (topic, record); SYNCs come as columns, bytes as they are."""
        raw, syncs = [], []
        first = {INPUTS.index(topic): self._next[topic] for topic, _ in records}
        for topic, record in records:
            offset, place = self._next[topic], INPUTS.index(topic)
            self._next[topic] += 1
            if isinstance(record, Sync):
                syncs.append((offset, record))
            elif isinstance(record, RawRow):
                raw.append(record._replace(offset=offset))
            else:
                value = record if isinstance(record, bytes) else codec.encode(record)
                raw.append(RawRow(place, 0, offset, None, value))
        return Rows(
            len(records),
            columns(syncs),
            tuple(sorted(raw)),
            tuple(
                Span(place, 0, offset, self._next[INPUTS[place]])
                for place, offset in sorted(first.items())
            ),
        )


def columns(found: Iterable[tuple[int, Sync]]) -> tuple[SyncRows, ...]:
    by_bucket: dict[str, list[Any]] = {}
    for offset, one in found:
        row = (0, offset, one.vbucket, one.projector, one.connection, one.ordinal)
        by_bucket.setdefault(one.bucket, []).append((*row, one.vbuuid, one.seqno))
    kinds = (np.int64,) * 6 + (np.uint64,) * 2
    return tuple(
        SyncRows(name, *map(np.array, zip(*rows, strict=True), kinds))
        for name, rows in sorted(by_bucket.items())
    )


def written(entity: Entity) -> tuple[str, Any]:
    """Return the record of `statecontext` that has this entity."""
    event = Event(Mutation("Changed", entity.key, codec.encode(entity), entity), TxnId(1, 1), 0, 1)
    row = RawRow(INPUTS.index(STATECONTEXT), 0, 0, entity.key.encode(), codec.encode(event))
    return STATECONTEXT, row


def gone(key: str) -> tuple[str, Any]:
    return STATECONTEXT, RawRow(INPUTS.index(STATECONTEXT), 0, 0, key.encode(), None)


def a_bucket(name: str = "b", vbuckets: int = VBUCKETS) -> tuple[str, Any]:
    return written(Bucket(name, vbuckets))


def begins(bucket: str = "b", connection: int = 7) -> list[tuple[str, Any]]:
    return [
        (
            STREAM_BEGIN,
            StreamBegin(
                bucket=bucket,
                vbucket=v,
                kind=MAINTENANCE,
                projector=1,
                connection=connection,
                ordinal=v,
                vbuuid=50 + v,
                seqno=0,
                at_ms=1,
                number=1,
            ),
        )
        for v in range(VBUCKETS)
    ]


def syncs(seqno: int, bucket: str = "b", connection: int = 7) -> list[tuple[str, Any]]:
    first = VBUCKETS + seqno * VBUCKETS
    return [
        (
            SYNC_TOPIC,
            make_sync(
                v,
                bucket=bucket,
                projector=1,
                connection=connection,
                ordinal=first + v,
                vbuuid=50 + v,
                seqno=seqno,
            ),
        )
        for v in range(VBUCKETS)
    ]


def tick(at_ms: int = NOW_MS, elapsed_ms: int = NOT_SAID) -> tuple[str, Any]:
    return TICK, Tick(at_ms, 3, elapsed_ms)


def on(topic: str, done: BatchResult) -> list[Any]:
    return [record.value for record in done.records if record.topic == topic]


def on_all(topic: str, run: Run) -> list[Any]:
    return [record.value for record in run.records if record.topic == topic]


def seqnos(timestamp: StabilityTimestamp) -> list[int]:
    return np.frombuffer(timestamp.seqnos, "<u8").tolist()


class Run:
    """Batch after batch; `records` are all that was written."""

    def __init__(self, query_state: QueryState | None = None) -> None:
        self.feed = Feed()
        self.query_state = query_state or QueryState(CLUSTER)
        self.records: list[Record] = []

    def step(self, *records: tuple[str, Any]) -> BatchResult:
        done = fold_batch(self.query_state, self.feed.batch(*records))
        self.query_state = done.query_state
        self.records += done.records
        return done


def test_syncs_become_a_stability_timestamp_and_the_state_goes_with_it() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    done = run.step(*syncs(9), tick(NOW_MS + 5_000))
    (timestamp,) = on(STABILITY, done)
    assert seqnos(timestamp) == [9] * VBUCKETS
    assert on(STABILITY_HISTORY, done) == [timestamp]
    kept = {record.key: record.value for record in done.records if record.topic == TIMESTAMP_STATE}
    assert set(kept) == {"b", PROGRESS_KEY}
    assert kept[PROGRESS_KEY].now_ms == NOW_MS + 5_000
    assert run.query_state.published == {"b": timestamp}


def test_the_same_batch_is_the_same_records() -> None:
    query_state, batches = QueryState(CLUSTER), []
    feed = Feed()
    batches.append(feed.batch(a_bucket(), *begins(), *syncs(1, "x"), *syncs(5), tick()))
    batches.append(feed.batch((SYNC_TOPIC, b"garbage"), *syncs(9), tick(NOW_MS + 5_000)))
    for rows in batches:
        done = fold_batch(query_state, rows)
        assert fold_batch(query_state, rows).records == done.records
        query_state = done.query_state


def test_bad_records_are_dead_letters_and_the_rest_goes_on() -> None:
    run = Run()
    run.step(a_bucket(), tick())
    done = run.step(
        (SYNC_TOPIC, b"garbage"),
        (SYNC_TOPIC, codec.encode(Tick(1, 1))),
        (
            HW,
            make_watermarks(1, (b"short", b"short"), indexes=(7,)),
        ),
        (STREAM_END, b""),
        (
            SYNC_TOPIC,
            make_sync(VBUCKETS, projector=1, connection=7, ordinal=3, vbuuid=50, seqno=1),
        ),
        *begins(),
        *syncs(4),
        tick(NOW_MS + 2_000),
    )
    letters: list[DeadLetter] = on(DEAD_LETTER, done)
    places = {(letter.topic, letter.offset) for letter in letters}
    assert places == {("c.sync", 0), ("c.sync", 1), ("c.sync", 2), ("c.hw", 0), ("c.stream-end", 0)}
    assert all(letter.reason and letter.at_ms == NOW_MS + 2_000 for letter in letters)
    assert codec.decode(next(one.value for one in letters if one.offset == 2)).vbucket == VBUCKETS
    assert seqnos(on(STABILITY, done)[0]) == [4] * VBUCKETS


def test_records_of_a_bucket_wait_until_it_is_known() -> None:
    run = Run()
    early = run.step(*begins(), *syncs(5), tick())
    assert on(DEAD_LETTER, early) == []
    assert len(run.query_state.waiting) == 2 * VBUCKETS
    done = run.step(a_bucket(), tick(NOW_MS + 2_000))
    assert seqnos(on(STABILITY, done)[0]) == [5] * VBUCKETS
    assert run.query_state.waiting == ()


def a_vector(seqno: int, vbuckets: Sequence[int] = range(VBUCKETS)) -> tuple[str, Any]:
    """Return what `syncs` says, as one record."""
    said = make_sync_vector(
        vbuckets, projector=1, connection=7, ordinal=10 + seqno, vbuuid=50, seqno=seqno
    )
    return SYNC_TOPIC, codec.encode(said)


def test_a_vector_of_a_bucket_that_is_not_known_waits_as_one() -> None:
    run = Run()
    run.step(*begins(), a_vector(4), a_vector(5), tick())
    waiting = [codec.decode(one.value) for one in run.query_state.waiting]
    assert [one.seqnos for one in waiting if isinstance(one, SyncVector)] == [
        make_sync_vector(range(VBUCKETS), seqno=5).seqnos
    ]
    assert len(waiting) == VBUCKETS + 1
    done = run.step(a_bucket(), tick(NOW_MS + 2_000))
    assert seqnos(on(STABILITY, done)[0]) == [5] * VBUCKETS
    assert on(DEAD_LETTER, done) == []


def test_of_a_vector_what_cannot_be_is_one_dead_letter_and_the_rest_counts() -> None:
    run = Run()
    run.step(a_bucket(), tick())
    (topic, value) = a_vector(5, range(VBUCKETS + 3))
    broken = codec.encode(replace(codec.decode(value), vbuuids=b"short"))
    done = run.step(*begins(), (topic, value), (topic, broken), tick(NOW_MS + 2_000))
    some, whole = sorted(on(DEAD_LETTER, done), key=lambda letter: letter.offset)
    refused = syncs_of(codec.decode(some.value))
    assert [one.vbucket for one in refused] == [VBUCKETS, VBUCKETS + 1, VBUCKETS + 2]
    assert (whole.offset, whole.value) == (1, broken)
    assert "lengths" in whole.reason
    assert seqnos(on(STABILITY, done)[0]) == [5] * VBUCKETS


@pytest.mark.parametrize("number", ["vbucket", "ordinal", "projector", "connection"])
def test_what_cannot_be_is_a_dead_letter_also_of_a_bucket_that_is_not_known(number: str) -> None:
    """And what can be waits beside it."""
    run = Run()
    bad = replace(make_sync(0, projector=1, connection=7, ordinal=3), **{number: -1})
    done = run.step(*begins(), *syncs(5), (SYNC_TOPIC, codec.encode(bad)), tick())
    (letter,) = on(DEAD_LETTER, done)
    assert codec.decode(letter.value) == bad
    assert len(run.query_state.waiting) == 2 * VBUCKETS
    done = run.step(a_bucket(), tick(NOW_MS + 2_000))
    assert seqnos(on(STABILITY, done)[0]) == [5] * VBUCKETS


def test_who_waits_too_long_for_its_bucket_is_a_dead_letter() -> None:
    run = Run()
    run.step(*begins()[:1])
    for second in range(WAITING_MS // 1_000 + 1):
        assert on(DEAD_LETTER, run.step(tick(NOW_MS + 1_000 * second))) == []
    (letter,) = on(DEAD_LETTER, run.step(tick(NOW_MS + WAITING_MS + 1)))
    assert (letter.topic, letter.offset) == ("c.stream-begin", 0)
    assert "bucket b is not known" in letter.reason
    assert run.query_state.waiting == ()


def test_of_syncs_only_the_newest_of_each_connection_waits() -> None:
    run = Run()
    for seqno in range(20):
        done = run.step(*syncs(seqno), *syncs(seqno, connection=8))
        assert on(DEAD_LETTER, done) == []
    assert len(run.query_state.waiting) == 2 * VBUCKETS
    assert {codec.decode(one.value).seqno for one in run.query_state.waiting} == {19}


@pytest.mark.thorough
def test_no_more_wait_than_there_is_room_for() -> None:
    run = Run()
    done = run.step(*begins() * (WAITING_MAX // VBUCKETS + 1))
    assert len(run.query_state.waiting) == WAITING_MAX
    letters = on(DEAD_LETTER, done)
    assert len(letters) == VBUCKETS
    assert all("too much waits" in letter.reason for letter in letters)


def test_buckets_may_be_known_before_the_query_reads_of_them() -> None:
    (_, row), (_, setting) = a_bucket(), written(Setting("timestamps", '{"period_ms": 60000}'))
    events = [codec.decode(one.value) for one in (row, setting)]
    run = Run(with_buckets(QueryState(CLUSTER), events))
    assert run.query_state.context.offset == 0
    assert run.query_state.context.settings == ()
    run.step(*begins(), *syncs(5), tick())
    assert run.query_state.waiting == ()
    run.step(a_bucket(), tick(NOW_MS + 1))
    assert run.query_state.context.offset == 1


def test_settings_hold_from_their_batch_on_and_a_bad_one_leaves_the_old_one() -> None:
    run = Run()
    slow = written(Setting("timestamps", '{"period_ms": 60000}'))
    run.step(a_bucket(), slow, *begins(), *syncs(5), tick())
    assert on(STABILITY, run.step(*syncs(6), tick(NOW_MS + 5_000))) == []
    bad = run.step(written(Setting("timestamps", '{"period_ms": "soon"}')), tick(NOW_MS + 6_000))
    (letter,) = on(DEAD_LETTER, bad)
    assert "period_ms" in letter.reason
    assert on(STABILITY, run.step(*syncs(7), tick(NOW_MS + 7_000))) == []
    fast = written(Setting("timestamps/b", '{"period_ms": 1000}'))
    assert len(on(STABILITY, run.step(fast, tick(NOW_MS + 8_000)))) == 1


def test_a_query_that_reads_the_state_again_learns_nothing_old() -> None:
    run = Run()
    run.step(a_bucket(), written(Setting("timestamps", '{"period_ms": 60000}')))
    run.step(written(Setting("timestamps", '{"period_ms": 20}')))
    known = run.query_state.context
    run.feed = Feed()
    again = run.step(a_bucket(), written(Setting("timestamps", '{"period_ms": 60000}')))
    assert run.query_state.context == known
    assert CONTEXT_KEY not in {record.key for record in again.records}


def test_offsets_never_move_back() -> None:
    run = Run()
    run.step(*syncs(1), tick())
    before = run.query_state.progress.offsets
    run.feed = Feed()
    run.step(*syncs(1)[:1])
    assert run.query_state.progress.offsets == before


def test_several_buckets_go_out_as_one_message_when_asked_to() -> None:
    run = Run()
    together = written(Setting("timestamps", '{"consolidate": true}'))
    alone = written(Setting("timestamps/e", '{"consolidate": false}'))
    run.step(a_bucket("b"), a_bucket("d"), together, *begins("b"), *begins("d", 8), tick())
    run.step(a_bucket("e"), alone, *begins("e", 9), *syncs(5, "e", 9), tick(NOW_MS + 1))
    both = run.step(*syncs(5, "b"), *syncs(6, "d", 8), tick(NOW_MS + 5_000))
    one = run.step(*syncs(7, "b"), tick(NOW_MS + 10_000))
    assert [record.key for record in both.records if record.topic == STABILITY] == ["*"]
    (message,) = on(STABILITY, one)
    assert isinstance(message, ConsolidatedStability)
    assert {t.bucket: seqnos(t)[0] for t in message.timestamps} == {"b": 7, "d": 6}
    assert [t.bucket for t in on(STABILITY_HISTORY, one)] == ["b"]


def test_numbers_go_on_where_the_state_was_lost_and_what_was_published_was_not() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    done = run.step(*syncs(9), tick(NOW_MS + 5_000))
    number = on(STABILITY, done)[0].number
    run.query_state = replace(run.query_state, states={})
    again = run.step(*begins(connection=8), *syncs(12, connection=8), tick(NOW_MS + 9_000))
    assert on(STABILITY, again)[0].number > number


def test_of_a_long_record_the_dead_letter_fits_on_its_topic() -> None:
    """Else Kafka would refuse the batch for ever."""
    run = Run()
    (letter,) = on(DEAD_LETTER, run.step((HW, b"x" * 1_048_000), tick()))
    assert len(codec.encode(letter)) < DEAD_LETTER_BYTES_MAX + 1_000


def test_timestamps_that_go_out_together_fit_in_their_messages() -> None:
    run = Run()
    run.step(written(Setting("timestamps", '{"consolidate": true}')), tick())
    names = [f"bucket{n:02}" for n in range(80)]
    run.step(*(a_bucket(name, 1_024) for name in names))
    for n, name in enumerate(names):
        run.step(*begins(name, 100 + n), *syncs(5, name, 100 + n))
    done = run.step(tick(NOW_MS + 1_000))
    messages = [record for record in done.records if record.topic == STABILITY]
    assert [message.key for message in messages] == ["*", "*/1"]
    assert all(len(codec.encode(message.value)) < 1_048_576 for message in messages)
    told = [one.bucket for message in messages for one in message.value.timestamps]
    assert told == names


def restarts(run: Run) -> list[int]:
    return [record.number for record in on_all(RESTART, run)]


def asked(number: int) -> tuple[str, Any]:
    return RESTART_REQUEST, RestartRequested("b", number, VBUCKETS, (), "bootstrap", 0)


def test_numbers_of_restarts_go_on_where_the_state_was_lost() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), asked(1), asked(2), tick())
    assert restarts(run) == [1, 2]
    outputs = read_back(run)
    later = Run(seeded(QueryState(CLUSTER), outputs))
    later.step(a_bucket(), *begins(connection=8), asked(3), tick(NOW_MS + 1_000))
    assert restarts(later) == [3]


def test_numbers_of_restarts_go_on_above_what_the_cluster_has_acted_on() -> None:
    """`restart` keeps its records for an hour only."""
    stream = Stream("b", 5, (), b"", b"", "bootstrap", 37)
    event = Event(Mutation("Changed", stream.key, b"", stream), TxnId(1, 1), 0, 1)
    run = Run(with_buckets(QueryState(CLUSTER), [event]))
    run.step(a_bucket(), *begins(), asked(1), tick())
    assert restarts(run) == [38]


def test_a_state_that_is_older_than_its_outputs_takes_nothing_back() -> None:
    """As if Kafka had lost the end of the state, and no output."""
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), asked(1), tick())
    older = run.query_state
    for n in range(1, 4):
        run.step(*syncs(5 + n), asked(1 + n), tick(NOW_MS + 5_000 * n))
    outputs = read_back(run)
    last = outputs.stability["b"]
    later = Run(seeded(older, outputs))
    later.feed = Feed()
    later.step(*syncs(6), asked(2), tick(NOW_MS + 5_000))
    assert on_all(STABILITY, later) == []
    later.step(*syncs(9), tick(NOW_MS + 30_000))
    (found,) = on_all(STABILITY, later)
    assert (found.number, seqnos(found)) == (last.number + 1, [9] * VBUCKETS)
    assert restarts(later)[0] == restarts(run)[-1] + 1
    assert [one.at_ms for one in on_all(STABILITY, later)] > [last.at_ms]


def test_a_state_that_has_its_outputs_is_not_changed_by_them() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), asked(1), tick())
    before = run.query_state
    after = seeded(before, read_back(run))
    assert after.states["b"] is before.states["b"]
    assert after.progress == before.progress


def read_back(run: Run) -> Outputs:
    """Return what the outputs of a run say."""
    return outputs_of(
        [record.value for record in run.records if record.topic == STABILITY],
        [record.value for record in run.records if record.topic == RESTART],
    )


def test_a_batch_of_ticks_and_heartbeats_is_quiet_unless_something_follows() -> None:
    run = Run()
    zeros = bytes(8 * VBUCKETS)
    beat = (HW, make_watermarks(1, (zeros, zeros), indexes=(7,)))
    assert not run.step(a_bucket(), *begins(), tick()).quiet
    assert run.step(beat, tick(NOW_MS + 1)).quiet
    assert not run.step(*syncs(5)).quiet
    assert not run.step(tick(NOW_MS + 5_000)).quiet, "it is published now"
    assert run.step(tick(NOW_MS + 5_250)).quiet
    assert not run.step((HW, b"garbage")).quiet


def test_limits_do_not_run_while_there_was_no_application() -> None:
    """It was away for two minutes; who was silent since the last tick was so for a second."""
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    for at_ms in (NOW_MS + 1_000, NOW_MS + 121_000, NOW_MS + 122_000):
        assert on(RESTART, run.step(tick(at_ms))) == []
    later = [NOW_MS + 122_000 + 1_000 * second for second in range(70)]
    asked = [record for at_ms in later for record in on(RESTART, run.step(tick(at_ms)))]
    assert sorted(record.vbucket for record in asked) == list(range(VBUCKETS))


HOUR_MS = 3_600_000


def told(run: Run, *records: tuple[str, Any]) -> list[StabilityTimestamp]:
    return on(STABILITY, run.step(*records))


def test_a_clock_that_has_stepped_ahead_and_back_holds_no_timestamp_up() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    assert len(on(STABILITY, run.step(*syncs(6), tick(NOW_MS + HOUR_MS)))) == 1
    later = [NOW_MS + 250 * quarter for quarter in range(240)]
    found = [one for n, at in enumerate(later) for one in told(run, *syncs(7 + n), tick(at))]
    assert 45 < len(found) <= 60
    assert seqnos(found[-1])[0] > 240
    history = on_all(STABILITY_HISTORY, run)
    assert [one.at_ms for one in history] == sorted(one.at_ms for one in history)


def test_after_a_step_ahead_nothing_is_over_sooner() -> None:
    """A BEGIN that is held, an END without BEGIN, a silent owner, a bucket that is not known."""
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick(NOW_MS, 0))
    ending = StreamEnd(
        bucket="b",
        vbucket=1,
        kind=MAINTENANCE,
        projector=1,
        connection=99,
        ordinal=9,
        vbuuid=51,
        seqno=5,
        reason="moved",
        at_ms=1,
    )
    (held, *_) = begins(connection=8)
    run.step((STREAM_END, ending), held, *begins("unknown"), tick(NOW_MS + 250, 250))
    done = run.step(tick(NOW_MS + HOUR_MS, 500))
    assert (on(RESTART, done), on(DEAD_LETTER, done)) == ([], [])
    assert on(RESTART, run.step(tick(NOW_MS + HOUR_MS + 2_000, 2_500))) == []
    done = run.step(tick(NOW_MS + HOUR_MS + 2_760, 3_260))
    assert {one.reason for one in on(RESTART, done)} == {"begin_held", "end_unmatched"}
    assert len(run.query_state.waiting) == VBUCKETS


def test_after_a_step_ahead_an_indexer_is_not_silent() -> None:
    """Else a restart timestamp would leave out what it does not hold yet."""
    run = Run()
    held = Vector([50 + v for v in range(VBUCKETS)], [3] * VBUCKETS)
    run.step(a_bucket(), *begins(), *syncs(5), tick(NOW_MS, 0))
    run.step((HW, make_watermarks(1, held, indexes=(7,))), tick(NOW_MS + 250, 250))
    asked = (RESTART_REQUEST, RestartRequested("b", 1, VBUCKETS, (1,), "bootstrap", 0))
    (answer,) = on(RESTART, run.step(asked, tick(NOW_MS + HOUR_MS, 500)))
    assert Vector.from_bytes(answer.vbuuids, answer.seqnos) == held


def test_what_no_clock_shows_is_a_dead_letter_and_time_goes_on() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    for at_ms in (2**62, -1, 0):
        (letter,) = on(DEAD_LETTER, run.step(tick(at_ms)))
        assert "is no time" in letter.reason
    assert len(on(STABILITY, run.step(*syncs(6), tick(NOW_MS + 1_000)))) == 1


def test_the_clocks_of_projectors_and_nodes_do_not_matter() -> None:
    def outputs(at_ms: int) -> list[Record]:
        run = Run()
        run.step(a_bucket(), written(Setting("timestamps", '{"period_ms": 60000}')), tick())
        hurried = (RESTART_REQUEST, PromotionRequested("b", 5_000, at_ms))
        early = [(t, replace(r, at_ms=at_ms)) for t, r in [*begins(), *syncs(5)]]
        run.step(*early, tick(NOW_MS + 1_000))
        run.step(*[(t, replace(r, at_ms=at_ms)) for t, r in syncs(6)], hurried)
        run.step(tick(NOW_MS + 2_000))
        return [record for record in run.records if record.topic == STABILITY]

    assert len(outputs(NOW_MS)) == 2
    assert outputs(0) == outputs(NOW_MS) == outputs(NOW_MS + 10**12)


def test_shards_together_tell_what_one_application_tells() -> None:
    """Each of its own buckets; the first one also of what belongs to none."""
    names = ["b", "c", "d", "e"]
    shards = [BucketShard(number, 2) for number in (1, 2)]
    told = []
    for shard in (WHOLE, *shards):
        feed = Feed()
        query_state = QueryState(CLUSTER, shard=shard)
        records: list[Record] = []
        for number in range(4):
            given = [one for name in names for one in (a_bucket(name), *begins(name, connection=7))]
            given = given if not number else []
            given += [one for name in names for one in syncs(5 + number, name)]
            given += [(SYNC_TOPIC, b"garbage"), *syncs(5, "unknown"), *syncs(5, "other")]
            at_ms = NOW_MS + 1_000 * number
            clocks = ((one, 0 if one == shard else 7_777) for one in (WHOLE, *shards))
            ticks = [(TICK, Tick(at_ms + ahead_ms, 1, -1, s.name)) for s, ahead_ms in clocks]
            done = fold_batch(query_state, feed.batch(*given, *ticks))
            query_state = done.query_state
            records += done.records
        assert query_state.progress.now_ms == NOW_MS + 3_000
        assert {one.name for one in query_state.context.buckets} == set(filter(shard.owns, names))
        told.append([one for one in records if one.topic != TIMESTAMP_STATE])
        kept = {one.key for one in records if one.topic == TIMESTAMP_STATE}
        assert kept == {*filter(shard.owns, names), *keys_of(shard)}
    whole, *parts = told
    assert [len({one.key for one in part if one.topic == STABILITY}) for part in parts] == [2, 2]
    assert sorted(map(repr, parts[0] + parts[1])) == sorted(map(repr, whole))


def test_who_divides_the_buckets_otherwise_goes_on_where_the_slowest_was() -> None:
    shards = [BucketShard(number, 2) for number in (1, 2)]
    states = []
    for shard, count in zip(shards, (1, 3), strict=True):
        feed, query_state = Feed(), QueryState(CLUSTER, shard=shard)
        for number in range(count):
            given = [a_bucket("b"), a_bucket("c"), *begins("b"), *begins("c")] if not number else []
            at_ms = NOW_MS + 1_000 * number
            ticked = (TICK, Tick(at_ms, 1, at_ms, shard.name))
            batch = feed.batch(*given, *syncs(number, "b"), *syncs(1, "new"), ticked)
            query_state = fold_batch(query_state, batch).query_state
        states.append(query_state)
    whole = adopted(WHOLE, states)
    ends = {one.topic: one.offset for one in whole.progress.offsets}
    assert ends["c.sync"] == 2 * VBUCKETS
    assert whole.progress.now_ms == NOW_MS + 2_000
    assert whole.progress.writer == 0
    assert [one.name for one in whole.context.buckets] == ["b", "c"]
    assert len(whole.waiting) == VBUCKETS


def test_a_bucket_in_which_nothing_is_due_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a thousand, and ticks come four times a second."""
    run = Run()
    run.step(a_bucket(), a_bucket("idle"), *begins(), *syncs(5), tick())
    folded: list[str] = []
    computed: list[str] = []
    fold_one, until = query_state_module.fold, query_state_module.quiet_until

    def spied(state: BucketState, *more: Any) -> Any:
        folded.append(state.bucket)
        return fold_one(state, *more)

    def counted(state: BucketState, *more: Any) -> int:
        computed.append(state.bucket)
        return until(state, *more)

    monkeypatch.setattr(query_state_module, "fold", spied)
    monkeypatch.setattr(query_state_module, "quiet_until", counted)
    for number in range(1, 6):
        run.step(tick(NOW_MS + 1_000 * number))
    assert (folded, computed) == ([], ["b"])
    run.step(*syncs(6))
    assert folded == ["b"]
    run.step(tick(NOW_MS + 6_000))
    run.step(tick(NOW_MS + 6_250))
    assert (folded, computed.count("idle")) == (["b", "b"], 0)
    run.step(written(Setting("timestamps/idle", '{"sync_missing_ms": 100}')), tick(NOW_MS + 6_500))
    assert computed.count("idle") == 1, "other settings"
    run.step(tick(NOW_MS + 3_600_000))
    assert folded[-2:] == ["b", "idle"], "what nobody watched sets all limits on"


@pytest.mark.parametrize("waits_ms", [0, 250, 699])
def test_nothing_follows_of_a_tick_before_something_is_due(waits_ms: int) -> None:
    assert next_due_ms(QueryState(CLUSTER)) == ALWAYS
    run = Run()
    run.step(a_bucket(), a_bucket("other"), *begins(), tick())
    rules = written(Setting("timestamps/b", '{"sync_missing_ms": 40000, "period_ms": 700}'))
    run.step(rules, *syncs(5), tick(NOW_MS + 1))
    assert next_due_ms(run.query_state) == NOW_MS + 700
    assert run.step(tick(NOW_MS + waits_ms)).quiet
    assert next_due_ms(run.query_state) == NOW_MS + 700, "the same, now that it is remembered"
    assert on(STABILITY, run.step(tick(NOW_MS + 700)))
    assert next_due_ms(run.query_state) == NOW_MS + 1 + 40_000, "since the last SYNC"


@pytest.mark.thorough
def test_what_waits_is_not_looked_at_before_something_can_come_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to ten thousand records may wait, and a batch of ticks must not cost half a second."""
    plain, quick = Run(), Run()
    looked: list[int] = []
    alone = {True: 0, False: 0}
    """Batches of a tick alone while something waits: in so many that was looked at, or not."""
    hand_out = query_state_module._Work._hand_out_waiting

    def counted(work: Any) -> None:
        looked.append(len(work.query_state.waiting))
        hand_out(work)

    monkeypatch.setattr(query_state_module._Work, "_hand_out_waiting", counted)
    chance = random.Random(7)
    for number in range(400):
        some: list[tuple[str, Any]] = [tick(NOW_MS + 400 * number)]
        if chance.random() < 0.1:
            some += chance.choice([begins("u"), syncs(number, "u"), syncs(number, "v"), begins()])
        if chance.random() < 0.03:
            some.append(a_bucket(chance.choice(["u", "v", "w"])))
        if chance.random() < 0.03:
            some.append(gone(Bucket(chance.choice(["u", "v"]), VBUCKETS).key))
        with monkeypatch.context() as always:
            always.setattr(query_state_module._Work, "_goes_on_waiting", lambda work: False)
            expected = plain.step(*some)
        looked.clear()
        assert quick.step(*some).records == expected.records
        if quick.query_state.waiting and len(some) == 1:
            alone[bool(looked)] += 1
    assert alone[False] > 5 * alone[True] > 0


def test_a_record_that_waits_for_its_bucket_is_due_when_it_has_waited_long_enough() -> None:
    run = Run()
    run.step(*begins("unknown"), tick())
    assert next_due_ms(run.query_state) == NOW_MS + WAITING_MS
    for gone_ms in range(1_000, WAITING_MS + 1, 1_000):
        assert run.step(tick(NOW_MS + gone_ms)).quiet
    assert on(DEAD_LETTER, run.step(tick(NOW_MS + WAITING_MS + 1)))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"reason": "x" * 1_001}, "a reason of 1001 characters"),
        ({"participants": tuple(range(1_001))}, "1001 participants"),
    ],
)
def test_a_question_that_no_answer_has_room_for_is_a_dead_letter(
    more: dict[str, Any], said: str
) -> None:
    """Kafka would refuse the answer, and with it the batch, at every start again."""
    run = Run()
    run.step(a_bucket(), *begins(), tick())
    question = replace(RestartRequested("b", 1, VBUCKETS, (), "why", NOW_MS), **more)
    done = run.step((RESTART_REQUEST, question), tick(NOW_MS + 1))
    assert [said in letter.reason for letter in on(DEAD_LETTER, done)] == [True]
    assert on(RESTART, done) == []


def test_a_batch_that_nobody_had_a_use_for_is_quiet() -> None:
    """Or records of no use would keep the application busy, however few they are."""
    run = Run()
    run.step(a_bucket(), *begins(), *syncs(5), tick())
    run.step(tick(NOW_MS + 5_000))
    assert run.step((FAILOVER_LOG, b""), tick(NOW_MS + 5_250)).quiet
    assert not run.step(*begins("unknown"), tick(NOW_MS + 5_500)).quiet, "they wait"
    assert not run.step(a_bucket("new"), tick(NOW_MS + 5_750)).quiet
    rules = Setting("timestamps/b", '{"period_ms": 700}')
    assert not run.step(written(rules), tick(NOW_MS + 6_000)).quiet


@pytest.mark.parametrize(
    "bucket",
    [
        Bucket("b", 0),
        Bucket("b", -1),
        Bucket("b", 2**31 - 1),
        Bucket("*", 4),
        Bucket("*/context", 4),
    ],
)
def test_what_can_be_no_bucket_is_a_dead_letter_and_nothing_is_made_for_it(bucket: Bucket) -> None:
    """The topic is compacted: the record is there at every start."""
    run = Run()
    done = run.step(written(bucket), tick())
    assert len(on(DEAD_LETTER, done)) == 1
    assert (run.query_state.context.buckets, run.query_state.states) == ((), {})
    value = codec.encode(bucket)
    event = Event(Mutation("BucketDiscovered", bucket.key, value, bucket), TxnId(1, 1), 0, 1)
    assert with_buckets(QueryState(CLUSTER), [event]).context.buckets == ()


@pytest.mark.thorough
def test_what_indexers_said_is_left_out_where_a_message_has_no_room_for_it() -> None:
    vbuckets = 4_096
    run = Run()
    run.step(a_bucket(vbuckets=vbuckets), tick())
    chance = np.random.default_rng(5)

    def heard(indexers: int) -> int:
        for indexer in range(indexers):
            vbuuids = chance.integers(1, 2**63, vbuckets, dtype=np.uint64)
            vector = Vector(vbuuids, chance.integers(0, 2**24, vbuckets, dtype=np.uint64))
            run.step((HW, make_watermarks(indexer, vector)), tick(NOW_MS + indexer))
        return len(pack(run.query_state.states["b"]))

    few = heard(16)
    assert len(unpack(pack(run.query_state.states["b"])).heard) == 16
    assert few > 500_000
    assert heard(64) < 100_000
    assert unpack(pack(run.query_state.states["b"])).heard == {}


def test_a_connection_that_is_closed_again_and_again_is_heard_out_once() -> None:
    run, other = Run(), Run()
    for each in (run, other):
        each.step(a_bucket(), *begins(), *syncs(5), tick())
    closed = ConnectionClosed("b", MAINTENANCE, 1, 7, 100, "gone", NOW_MS)
    once = run.step((STREAM_END, closed), tick(NOW_MS + 4_000))
    often = other.step(*[(STREAM_END, closed)] * 50, tick(NOW_MS + 4_000))
    assert on_both(once) == on_both(often)


def on_both(done: BatchResult) -> Any:
    return [(r.topic, r.value) for r in done.records if r.topic in (RESTART, STABILITY)]


def test_a_bucket_that_is_gone_leaves_no_state() -> None:
    run = Run()
    run.step(a_bucket(), *begins(), tick())
    done = run.step(gone("bucket/b"), tick(NOW_MS + 1))
    assert Record(TIMESTAMP_STATE, "b", None) in done.records
    assert run.query_state.states == {}


def test_a_consolidated_timestamp_that_is_older_does_not_count() -> None:
    def one(number: int) -> StabilityTimestamp:
        return StabilityTimestamp("b", number, *Vector([1], [number]).to_bytes(), 0)

    found = outputs_of([one(7), ConsolidatedStability((one(3),))], [])
    assert found.stability["b"].number == 7
