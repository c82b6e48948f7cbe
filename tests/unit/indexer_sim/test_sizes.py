"""Sizes of slices are counted right, and told when they change; so are the mutations a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from coordinator import codec
from coordinator.core.keys.key_versions import NO_SLICE
from coordinator.core.model.records import SLICE_LOADS_MAX, SliceLoads
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.tracker import NO_INDEX, Change, Scope
from indexer_sim.pipeline.slice_loads import PERIOD_S, REPEAT_S, SliceLoadMeter
from tests.support.sizes import counted, scanned

INDEX, SECOND = 7, 8
LIFE = (1, 99)


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path, "indexer 1 of cluster demo")
    made.know("b", 1)
    for index_id in (INDEX, SECOND):
        made.allocate("b", index_id, frozenset({0, 1}), b"")
    yield made
    made.close()


def bucket_of(storage: Storage) -> Bucket:
    found = storage.bucket("b")
    assert found is not None
    return found


class Writer:
    """Applies changes to a bucket, each with a seqno of its own."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.seqno = 0

    def write(self, *changes: tuple[int, bytes, int, bytes]) -> None:
        """Each is an index, a document, the slice where it is now, and its key there."""
        made = []
        for index_id, document, piece, key in changes:
            self.seqno += 1
            scope = Scope(frozenset({index_id}), NO_INDEX)
            placed = ((index_id, piece, key),)
            made.append(Change(document, self.seqno, 0, placed, False, scope, range(10)))
        self.bucket.apply(made, {0: self.seqno})

    def fill(self, piece: int, count: int, index_id: int = INDEX) -> None:
        self.write(*((index_id, b"%d-%d" % (piece, n), piece, b"k") for n in range(count)))


def test_sizes_are_those_of_what_is_there_whatever_is_written(storage: Storage) -> None:
    bucket, chance = bucket_of(storage), Random(3)
    writer = Writer(bucket)
    for _ in range(60):
        writer.write(
            *(
                (
                    chance.choice((INDEX, SECOND)),
                    b"d%d" % chance.randrange(30),
                    chance.choice((NO_SLICE, 0, 1)),
                    b"k" * chance.randrange(9),
                )
                for _ in range(chance.randrange(1, 9))
            )
        )
        assert counted(bucket) == scanned(bucket)


def test_sizes_outlive_a_restart(storage: Storage, tmp_path: Path) -> None:
    Writer(bucket_of(storage)).fill(0, 5)
    before = counted(bucket_of(storage))
    storage.close()
    again = Storage(tmp_path, "indexer 1 of cluster demo")
    assert counted(bucket_of(again)) == before == scanned(bucket_of(again))
    again.close()


def test_what_is_released_or_begins_anew_weighs_nothing(storage: Storage) -> None:
    bucket = bucket_of(storage)
    writer = Writer(bucket)
    for piece in (0, 1):
        writer.fill(piece, 3)
        writer.fill(piece, 3, SECOND)
    storage.release(INDEX, frozenset({0}))
    bucket.begin_builds({SECOND: 2})
    assert counted(bucket) == {(INDEX, 1): scanned(bucket)[INDEX, 1]}
    storage.reload(bucket)
    assert set(counted(bucket)) == {(INDEX, 1)}


# -- what is told --------------------------------------------------------------------------------


def told(meter: SliceLoadMeter, storage: Storage, now_s: float) -> SliceLoads:
    found = meter.due(storage.buckets(), now_s, 5)
    assert found is not None
    return found


def test_the_largest_slice_comes_first_and_an_empty_one_is_not_told(storage: Storage) -> None:
    writer = Writer(bucket_of(storage))
    writer.fill(0, 10)
    writer.fill(1, 30)
    bucket_of(storage).size_bytes = 4_000
    found = told(SliceLoadMeter(LIFE), storage, 0)
    assert [(one.index_id, one.slice, one.entries) for one in found.loads] == [
        (INDEX, 1, 30),
        (INDEX, 0, 10),
    ]
    assert [one.bytes for one in found.loads] == pytest.approx([3_000, 1_000], rel=0.05)
    assert (found.indexer, found.incarnation, found.left_out, found.at_ms) == (*LIFE, 0, 5)


def test_mutations_a_second_are_those_since_the_last_time(storage: Storage) -> None:
    writer, meter = Writer(bucket_of(storage)), SliceLoadMeter(LIFE)
    writer.fill(0, 10)
    assert [one.mutations for one in told(meter, storage, 0).loads] == [0]
    for _ in range(4):
        writer.fill(0, 10)
    assert [one.mutations for one in told(meter, storage, PERIOD_S).loads] == [8]
    assert [one.mutations for one in told(meter, storage, 2 * PERIOD_S).loads] == [0]


def test_what_does_not_change_is_seldom_told(storage: Storage) -> None:
    writer, meter = Writer(bucket_of(storage)), SliceLoadMeter(LIFE)
    writer.fill(0, 1)
    assert told(meter, storage, 0)
    writer.fill(1, 10)
    assert meter.due(storage.buckets(), PERIOD_S / 2, 0) is None
    assert told(meter, storage, PERIOD_S)
    assert told(meter, storage, 2 * PERIOD_S), "a second without mutations"
    quiet = [meter.due(storage.buckets(), n * PERIOD_S, 0) for n in range(3, 20)]
    assert 2 <= sum(one is not None for one in quiet) <= 17 * PERIOD_S / REPEAT_S + 1


def test_there_is_a_bound_of_what_is_told(storage: Storage) -> None:
    bucket = bucket_of(storage)
    for number in range(SLICE_LOADS_MAX + 3):
        bucket.sizes.count((number, 0), 2**40, number * 1000)
    bucket.size_bytes = 2**60
    found = told(SliceLoadMeter(LIFE), storage, 0)
    assert (len(found.loads), found.left_out) == (SLICE_LOADS_MAX, 3)
    assert found.loads[0].index_id == SLICE_LOADS_MAX + 2
    assert len(codec.encode(found)) < 80_000
