"""Laws of what scans read, on real RocksDBs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rocksdict import WriteBatch

from coordinator.core.keys.collation import EVERYTHING, Bounds, encode_key, range_bounds
from indexer_sim.bucket.entries import (
    INDEX_KEY,
    STATE,
    State,
    entries_prefix,
    pack_state,
)
from indexer_sim.bucket.leases import LEASES_MAX
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import ScanRefused, Unsettled, Wanted
from indexer_sim.scans.reader import StorageReading

INDEX, BUILD = 7, 1
KEYS = [encode_key((number,)) for number in range(10)]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path, "indexer 1 of cluster demo")
    made.allocate("b", INDEX, frozenset({0, 1}), b"")
    yield made
    made.close()


def complete(storage: Storage, build: int = BUILD) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(STATE + INDEX_KEY.pack(INDEX), pack_state(State(build, True)))
    bucket = storage.bucket_of(INDEX)
    assert bucket is not None
    bucket.write(batch, sync=False)
    bucket.load()


def put(storage: Storage, piece: int, *keys: bytes) -> None:
    batch = WriteBatch(raw_mode=True)
    for key in keys:
        batch.put(entries_prefix(INDEX, piece) + key, b"")
    bucket = storage.bucket_of(INDEX)
    assert bucket is not None
    bucket.write(batch, sync=False)


def view(storage: Storage, *slices: int, shard: int = 0, build: int = 0, wanted: Wanted = Wanted()):
    return closing(
        StorageReading(storage).view(INDEX, slices, shard=shard, build=build, wanted=wanted)
    )


def test_entries_come_in_order_from_one_slice_within_the_bounds(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, *(key + b"doc" for key in KEYS))
    put(storage, 1, b"\x80other")
    bounds = range_bounds((2,), (5,))
    with view(storage, 0) as seen:
        expected = [key + b"doc" for key in KEYS[2:6]]
        assert list(seen.entries(0, bounds, backwards=False)) == expected
        assert list(seen.entries(0, bounds, backwards=True)) == expected[::-1]
        assert len(list(seen.entries(0, EVERYTHING, backwards=True))) == 10
        assert list(seen.entries(1, EVERYTHING, backwards=False)) == [b"\x80other"]


def test_a_key_at_the_end_of_the_bounds_is_not_in_them(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, *KEYS)
    bounds = range_bounds((2,), (5,), include_high=False)
    with view(storage, 0) as seen:
        assert list(seen.entries(0, bounds, backwards=False)) == KEYS[2:5]
        assert list(seen.entries(0, bounds, backwards=True)) == KEYS[2:5][::-1]


def test_a_view_stays_as_it_was_in_any_thread(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, KEYS[0])
    found: list[bytes] = []
    with view(storage, 0) as seen:
        put(storage, 0, KEYS[1])
        storage.allocate("b", 8, frozenset({0}), b"")
        reader = threading.Thread(
            target=lambda: found.extend(seen.entries(0, EVERYTHING, backwards=False))
        )
        reader.start()
        reader.join()
    assert found == [KEYS[0]]


def test_what_is_not_here_or_not_whole_is_refused(storage: Storage) -> None:
    def refusal(*slices: int, shard: int = 0, build: int = 0) -> str:
        with pytest.raises(ScanRefused) as caught:
            view(storage, *slices, shard=shard, build=build)
        return caught.value.code

    assert refusal(0) == "index_building"
    complete(storage)
    assert refusal(0, 2) == "slice_not_here"
    assert refusal(0, shard=storage.shards[INDEX] + 1) == "slice_not_here"
    assert refusal(0, build=BUILD + 1) == "index_building"
    view(storage, 0, 1, shard=storage.shards[INDEX], build=BUILD)
    storage.release(INDEX, frozenset({0, 1}))
    assert refusal(0) == "index_not_found"


def test_what_the_store_has_lost_is_not_shown(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, *KEYS)
    bucket = storage.bucket("b")
    assert bucket is not None
    for changed in ({"branched": (1, 5)}, {"recovering": True, "gaps": (1, 5)}):
        bucket.published = replace(bucket.published, **changed)
        for wanted in (Wanted(), Wanted(timestamp=0)):
            with pytest.raises(ScanRefused) as caught:
                view(storage, 0, wanted=wanted)
            refusal = caught.value.code, caught.value.details
            assert refusal == ("index_rolling_back", {"vbuckets": 2})
        bucket.publish()


def test_a_rollback_that_the_node_knows_of_must_have_been_done_here(storage: Storage) -> None:
    complete(storage)
    bucket = storage.bucket("b")
    assert bucket is not None
    bucket.published = replace(bucket.published, rollback=6)
    view(storage, 0, wanted=Wanted(rollback=6))
    for wanted in (Wanted(rollback=7), Wanted(rollback=7, last_good=True)):
        with pytest.raises(ScanRefused) as caught:
            view(storage, 0, wanted=wanted)
        assert caught.value.code == "index_rolling_back"


def test_the_last_good_snapshot_is_shown_while_a_bucket_recovers(storage: Storage) -> None:
    complete(storage)
    bucket = storage.bucket("b")
    assert bucket is not None
    bucket.published = replace(bucket.published, recovering=True)
    view(storage, 0, wanted=Wanted(last_good=True))
    bucket.published = replace(bucket.published, branched=(1,))
    with pytest.raises(ScanRefused, match="goes back"):
        view(storage, 0, wanted=Wanted(last_good=True))
    nothing = {INDEX: State(BUILD, complete=False)}
    bucket.published = replace(bucket.published, branched=(), states=nothing)
    with pytest.raises(ScanRefused, match="no snapshot") as caught:
        view(storage, 0, wanted=Wanted(last_good=True))
    assert caught.value.code == "index_rolling_back"


def test_storage_that_is_allocated_again_begins_empty(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, *KEYS)
    storage.allocate("b", INDEX, frozenset({2}), b"")
    complete(storage)
    with view(storage, 0) as seen:
        assert list(seen.entries(0, EVERYTHING, backwards=False)) == []


def test_more_entries_than_are_read_at_once_come_once_each(storage: Storage) -> None:
    complete(storage)
    many = [encode_key((number,)) + b"d" for number in range(1_000)]
    put(storage, 0, *many)
    with view(storage, 0) as seen:
        assert list(seen.entries(0, EVERYTHING, backwards=False)) == many
        assert list(seen.entries(0, EVERYTHING, backwards=True)) == many[::-1]
        assert list(seen.entries(0, Bounds(many[300], many[100]), backwards=False)) == []


def test_a_view_ends_when_the_database_is_closed_and_it_opens_again(storage: Storage) -> None:
    complete(storage)
    put(storage, 0, *KEYS)
    bucket = storage.bucket_of(INDEX)
    assert bucket is not None
    with view(storage, 0) as seen:
        bucket.database.close()
        with pytest.raises(ScanRefused, match="opened again"):
            list(seen.entries(0, EVERYTHING, backwards=False))
        with pytest.raises(ScanRefused, match="opened again"):
            view(storage, 0)
        bucket.load()
    with view(storage, 0) as seen:
        assert len(list(seen.entries(0, EVERYTHING, backwards=False))) == len(KEYS)


def test_a_snapshot_of_an_older_build_is_not_shown(storage: Storage) -> None:
    complete(storage)
    bucket = storage.bucket_of(INDEX)
    assert bucket is not None
    older: Any = SimpleNamespace(number=3, builds={INDEX: BUILD - 1})
    bucket.timeline.kept = (older,)
    reading = StorageReading(storage)
    with pytest.raises(ScanRefused) as refused:
        reading.view(INDEX, (0,), shard=0, build=0, wanted=Wanted(timestamp=3))
    assert refused.value.code == "no_stability_timestamp"


def test_who_finds_a_bucket_changing_has_read_no_page_and_renews_no_lease(
    storage: Storage,
) -> None:
    """Snapshots of which several pages were read are kept before others."""
    complete(storage)
    bucket = storage.bucket_of(INDEX)
    assert bucket is not None
    made: Any = [
        SimpleNamespace(number=n, builds={INDEX: BUILD}, overlay={}, moment=None, digest=1)
        for n in range(1, LEASES_MAX + 3)
    ]

    def look(number: int = 0) -> None:
        StorageReading(storage).view(INDEX, (0,), shard=0, build=0, wanted=Wanted(timestamp=number))

    *others, mine, newest = made
    for one in others:
        bucket.timeline.kept = (one,)
        with bucket._remade(), pytest.raises(Unsettled):
            look()
        look()
    bucket.timeline.kept = (mine,)
    look()
    bucket.timeline.kept = (newest,)
    look(mine.number)
    bucket.timeline.kept = ()


@pytest.mark.parametrize(("wanted", "is_known"), [((3,), True), ((4,), False), ((), True)])
def test_a_scan_waits_until_what_the_store_has_lost_is_known(
    storage: Storage, wanted: tuple[int, ...], is_known: bool
) -> None:
    complete(storage)
    reading = StorageReading(storage, heard=lambda _: (3,))
    asked = Wanted(failover_log=wanted)
    if is_known:
        reading.view(INDEX, (0,), shard=0, build=0, wanted=asked).close()
    else:
        with pytest.raises(ScanRefused) as refused:
            reading.view(INDEX, (0,), shard=0, build=0, wanted=asked)
        assert refused.value.code == "timestamp_not_reached"
