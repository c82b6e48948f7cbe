"""Laws of entries and of the back-index, on a real RocksDB, against dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from rocksdict import WriteBatch

from coordinator.core.keys.key_versions import MANY, NO_SLICE, ItemsError, pack_many
from coordinator.core.model.types import Seqno
from indexer_sim.bucket import back_index
from indexer_sim.bucket.back_index import BackIndex
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.entries import (
    BACK,
    BACK_HEAD,
    DATA,
    SIZE,
    SLICE_KEY,
    TOMBSTONE,
    UNSWEPT,
    places_in,
)
from indexer_sim.bucket.snapshots import OVERLAID_BYTES, sizes_of, taken_back
from indexer_sim.bucket.tracker import NO_INDEX, Change, Scope
from tests.support.sizes import counted, scanned

INDEXES = (1, 2, 3)
PIECES = frozenset({0, 1})
ALL = frozenset(INDEXES)
IDS = range(10)
"""The place of an index among these is its id."""

LOGGED, GUARDED = Scope(ALL, NO_INDEX), Scope(NO_INDEX, ALL)


def opened(folder: Path) -> Bucket:
    bucket = Bucket("b", folder, 1)
    bucket.load()
    return bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    made = opened(tmp_path)
    for index_id in INDEXES:
        made.allocate(index_id, PIECES, b"", {})
    yield made
    made.database.close()


def told(
    seqno: int,
    document: bytes,
    *placed: tuple[int, int, bytes],
    others: bool = True,
    scope: Scope = LOGGED,
) -> Change:
    return Change(document, Seqno(seqno), 0, placed, others, scope, IDS)


def entries(bucket: Bucket) -> set[tuple[int, int, bytes]]:
    """Return index, slice, and key with id of all entries."""
    head = len(DATA) + SLICE_KEY.size
    return {
        (*SLICE_KEY.unpack_from(key, len(DATA)), key[head:])
        for key, _ in bucket.database.scan(DATA)
    }


def tombstones(bucket: Bucket) -> int:
    return len(bucket.database.scan(TOMBSTONE))


def test_one_change_tells_of_all_indexes(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", (1, 0, b"a"), (2, 1, b"b"), (3, 0, b"c"))], {})
    assert entries(bucket) == {(1, 0, b"ad"), (2, 1, b"bd"), (3, 0, b"cd")}
    bucket.apply([told(2, b"d", (1, 1, b"a"), (2, 1, b"b"))], {})
    assert entries(bucket) == {(1, 1, b"ad"), (2, 1, b"bd")}
    assert len(bucket.database.scan(BACK)) == 1
    bucket.apply([told(3, b"d")], {})
    assert entries(bucket) == set()
    assert bucket.database.scan(BACK) == []
    assert tombstones(bucket) == 0


def test_where_nothing_is_said_of_other_indexes_they_stay_as_they_are(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", (1, 0, b"a"), (2, 1, b"b"))], {})
    bucket.apply([told(2, b"d", (1, 0, b"x"), others=False)], {})
    assert entries(bucket) == {(1, 0, b"xd"), (2, 1, b"bd")}


def test_indexes_out_of_the_scope_stay_as_they_are(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", (1, 0, b"a"), (2, 1, b"b"), (3, 0, b"c"))], {})
    scope = Scope(frozenset({1}), frozenset({3}))
    bucket.apply([told(2, b"d", (1, 0, b"x"), (2, 0, b"y"), scope=scope)], {})
    assert entries(bucket) == {(1, 0, b"xd"), (2, 1, b"bd")}
    assert tombstones(bucket) == 1


def test_each_index_has_the_newest_that_was_told_of_it(bucket: Bucket) -> None:
    """Of one the document is known later than of another: a backfill brings it."""
    bucket.apply([told(9, b"d", (1, 0, b"new"), scope=Scope(frozenset({1}), NO_INDEX))], {})
    bucket.apply([told(5, b"d", (1, 0, b"old"), (2, 0, b"old"), scope=GUARDED)], {})
    assert entries(bucket) == {(1, 0, b"newd"), (2, 0, b"oldd")}
    bucket.apply([told(6, b"d", scope=GUARDED)], {})
    assert entries(bucket) == {(1, 0, b"newd")}
    bucket.apply([told(5, b"d", (2, 0, b"old"), (3, 0, b"old"), scope=GUARDED)], {})
    assert entries(bucket) == {(1, 0, b"newd")}, "6 has left tombstones"


def test_within_one_batch_the_newest_counts(bucket: Bucket) -> None:
    changes = [told(n, b"d", (1, n % 2, b"k%d" % n), (2, 0, b"k")) for n in range(1, 6)]
    bucket.apply([*changes, told(6, b"d", (1, 0, b"k6"))], {})
    assert entries(bucket) == {(1, 0, b"k6d")}
    assert len(bucket.timeline.changes_since(0)) == 0


def test_an_index_that_begins_anew_has_nothing_and_the_others_have_all(bucket: Bucket) -> None:
    names = [b"d%d" % n for n in range(5)]
    bucket.apply([told(1, n, (1, 0, b"a"), (2, 0, b"b")) for n in names], {})
    bucket.begin_builds({1: 1})
    assert {index_id for index_id, *_ in entries(bucket)} == {2}
    bucket.apply([told(1, b"d0", (1, 1, b"z"), others=False)], {})
    assert (1, 1, b"zd0") in entries(bucket), "what it had there before does not count"
    bucket.release(2, PIECES)
    assert entries(bucket) == {(1, 1, b"zd0")}
    bucket.allocate(2, PIECES, b"", {})
    bucket.apply([told(2, b"d1", (2, 0, b"b"))], {})
    assert entries(bucket) == {(1, 1, b"zd0"), (2, 0, b"bd1")}


def test_no_life_is_given_twice_also_after_a_restart(bucket: Bucket, tmp_path: Path) -> None:
    """The index that began last goes; what it has left behind is no other one's."""
    bucket.apply([told(1, b"d", (1, 0, b"a"), (3, 0, b"c"))], {})
    bucket.release(3, PIECES)
    bucket.database.close()
    again = opened(tmp_path)
    again.allocate(4, PIECES, b"", {})
    scope = Scope(frozenset({4}), NO_INDEX)
    again.apply([told(1, b"d", (4, 1, b"x"), scope=scope)], {})
    assert entries(again) == {(1, 0, b"ad"), (4, 1, b"xd")}
    again.database.close()


def many(index_id: int, *places: tuple[int, bytes]) -> tuple[int, int, bytes]:
    return index_id, MANY, pack_many(places)


def test_a_document_may_have_several_keys_in_an_index(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", many(1, (0, b"a"), (1, b"b"), (1, b"c")), (2, 0, b"x"))], {})
    assert entries(bucket) == {(1, 0, b"ad"), (1, 1, b"bd"), (1, 1, b"cd"), (2, 0, b"xd")}
    assert {place: size.entries for place, size in bucket.sizes.all()} == {
        (1, 0): 1,
        (1, 1): 2,
        (2, 0): 1,
    }
    assert {place: size.changes for place, size in bucket.sizes.all()} == {
        (1, 0): 1,
        (1, 1): 1,
        (2, 0): 1,
    }
    bucket.apply([told(2, b"d", many(1, (0, b"a"), (0, b"z")), (2, 0, b"x"))], {})
    assert entries(bucket) == {(1, 0, b"ad"), (1, 0, b"zd"), (2, 0, b"xd")}
    bucket.apply([told(2, b"d", (1, 1, b"late"))], {})
    bucket.apply([told(3, b"d", (1, 1, b"one"), (2, 0, b"x"))], {})
    assert entries(bucket) == {(1, 1, b"oned"), (2, 0, b"xd")}
    bucket.apply([told(4, b"d", many(1, (0, b"p"), (0, b"q")))], {})
    bucket.apply([told(5, b"d", scope=GUARDED)], {})
    assert entries(bucket) == set()
    assert tombstones(bucket) == 3
    assert counted(bucket) == scanned(bucket)


def test_several_keys_are_seen_as_they_were_before(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", many(1, (0, b"a"), (0, b"b"), (1, b"c")))], {})
    before = len(bucket.timeline.changes_since(0))
    bucket.apply([told(2, b"d", many(1, (0, b"b"), (0, b"x"), (1, b"y")))], {})
    bucket.apply([told(3, b"d", (1, 0, b"b"))], {})
    later = list(bucket.timeline._changes)[1:]
    assert before == 0
    assert taken_back(later) == {
        (1, 0): [(b"ad", True), (b"bd", True), (b"xd", False)],
        (1, 1): [(b"cd", True), (b"yd", False)],
    }
    batch = WriteBatch(raw_mode=True)
    bucket._settlement().put_back(batch, later)
    bucket.sizes.put(batch)
    bucket.write(batch, sync=False)
    assert entries(bucket) == {(1, 0, b"ad"), (1, 0, b"bd"), (1, 1, b"cd")}
    assert counted(bucket) == scanned(bucket)


def test_of_several_keys_those_are_put_back_whose_slice_is_here(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", many(1, (0, b"a"), (1, b"b"), (1, b"c")))], {})
    bucket.apply([told(2, b"d")], {})
    later = list(bucket.timeline._changes)[1:]
    bucket.release(1, frozenset({0}))
    batch = WriteBatch(raw_mode=True)
    bucket._settlement().put_back(batch, later)
    bucket.sizes.put(batch)
    bucket.write(batch, sync=False)
    assert entries(bucket) == {(1, 1, b"bd"), (1, 1, b"cd")}
    ((_, raw),) = bucket.database.scan(BACK)
    assert places_in(bucket.back_index.read(raw)[1]) == [(1, b"b"), (1, b"c")]
    assert counted(bucket) == scanned(bucket)


def test_what_has_gone_of_several_keys_is_swept_out(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", many(1, (0, b"a"), (1, b"b"), (1, b"c")))], {})
    bucket.apply([told(1, b"e", many(1, (1, b"b"), (1, b"c")))], {})
    bucket.release(1, frozenset({1}))
    while not bucket.back_index.is_swept:
        bucket.sweep()
    ((key, raw),) = bucket.database.scan(BACK)
    assert key == BACK + b"d"
    assert places_in(bucket.back_index.read(raw)[1]) == [(0, b"a")]
    assert len(raw) == BACK_HEAD.size + 1, "one key is kept as one"


def test_several_keys_weigh_as_much_as_they_take_in_a_snapshot(bucket: Bucket) -> None:
    """What is kept to undo changes is bounded, and each key of a change is an entry to undo."""
    bucket.apply([told(1, b"d", many(1, *((0, b"%d" % n) for n in range(500))))], {})
    bucket.apply([told(2, b"d", (1, 0, b"a"))], {})
    bucket.apply([told(3, b"d", (1, 0, b"b"))], {})
    made, gone, plain = bucket.timeline._changes
    assert sizes_of([made])[0] > 500 * OVERLAID_BYTES
    assert sizes_of([gone])[0] > 500 * OVERLAID_BYTES
    assert sizes_of([plain])[0] < 1_000


@pytest.mark.parametrize("damage", [b"\0", b"\0\1\0\5abc", b"\0\1\0\1ab"])
def test_damaged_keys_are_none(bucket: Bucket, damage: bytes) -> None:
    with pytest.raises(ItemsError):
        bucket.apply([told(1, b"d", (1, MANY, damage))], {})


def test_there_is_nothing_to_sweep_where_an_index_had_nothing(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", (1, 0, b"a"))], {})
    bucket.begin_builds({2: 1})
    bucket.release(3, PIECES)
    assert bucket.back_index.is_swept
    bucket.begin_builds({1: 1})
    assert not bucket.back_index.is_swept


def test_sweeping_goes_on_after_a_restart_and_takes_out_what_does_not_count(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_index, "SWEPT_AT_ONCE", 10)
    names = [b"d%02d" % n for n in range(35)]
    bucket.apply([told(1, n, (1, 0, b"a"), (2, n[-1] % 2, b"b")) for n in names], {})
    bucket.apply([told(1, b"only", (1, 0, b"a"))], {})
    assert bucket.back_index.is_swept
    bucket.begin_builds({1: 1})
    bucket.sweep()
    assert not bucket.back_index.is_swept
    assert bucket.database.scan(UNSWEPT)
    bucket.load()
    steps = 0
    while not bucket.back_index.is_swept:
        bucket.sweep()
        steps += 1
    assert steps == 4
    assert not bucket.database.scan(UNSWEPT)
    records = bucket.database.scan(BACK)
    assert len(records) == 35
    assert {len(value) for _, value in records} == {BACK_HEAD.size + 1}
    bucket.release(2, frozenset({1}))
    while not bucket.back_index.is_swept:
        bucket.sweep()
    assert len(bucket.database.scan(BACK)) == 18
    assert counted(bucket) == scanned(bucket)


def test_what_goes_while_sweeping_is_half_done_is_swept_too(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(back_index, "SWEPT_AT_ONCE", 10)
    names = [b"d%02d" % n for n in range(35)]
    bucket.apply([told(1, n, (1, 0, b"a"), (2, 0, b"b")) for n in names], {})
    bucket.begin_builds({1: 1})
    bucket.sweep()
    bucket.begin_builds({2: 1})
    while not bucket.back_index.is_swept:
        bucket.sweep()
    assert bucket.database.scan(BACK) == []


def test_what_comes_twice_counts_once(bucket: Bucket) -> None:
    change = told(1, b"d", (1, 0, b"a"), (2, 1, b"b"))
    bucket.apply([change], {})
    sizes, undone = bucket.sizes.all(), len(bucket.timeline._changes)
    bucket.apply([change], {})
    assert (bucket.sizes.all(), len(bucket.timeline._changes)) == (sizes, undone)


@pytest.mark.thorough
def test_what_is_told_is_what_is_there_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of any form, new builds, slices that come and go, sweeping, restarts."""
    monkeypatch.setattr(back_index, "SWEPT_AT_ONCE", 3)
    for seed in range(25):
        _walk(tmp_path / str(seed), Random(seed))


def _walk(folder: Path, chance: Random) -> None:
    bucket = opened(folder)
    for index_id in INDEXES:
        bucket.allocate(index_id, PIECES, b"", {})
    held: Held = {}
    build = dict.fromkeys(INDEXES, 0)
    for seqno in range(1, 120):
        event = chance.randrange(20)
        index_id = chance.choice(INDEXES)
        if event == 0:
            build[index_id] += 1
            bucket.begin_builds({index_id: build[index_id]})
            held = {at: places for at, places in held.items() if at[0] != index_id}
        elif event == 1:
            gone = bucket.slices[index_id] & {chance.randrange(2)}
            if 0 < len(gone) < len(bucket.slices[index_id]):
                bucket.release(index_id, gone)
                held = {
                    at: [p for p in places if at[0] != index_id or p[0] not in gone]
                    for at, places in held.items()
                }
        elif event == 2:
            bucket.allocate(index_id, PIECES, b"", {})
            held = {at: places for at, places in held.items() if at[0] != index_id}
        elif event == 3:
            bucket.database.close()
            bucket = opened(folder)
        elif event == 4:
            bucket.sweep()
        else:
            _tell(bucket, held, seqno, chance)
        weighed = {SLICE_KEY.unpack(k[len(SIZE) :]) for k, _ in bucket.database.scan(SIZE)}
        assert all(piece in bucket.slices[i] for i, piece in weighed)
        wanted = {(i, piece, key + d) for (i, d), p in held.items() for piece, key in p}
        assert entries(bucket) == wanted
        assert {k: v for k, v in counted(bucket).items() if v[0]} == {
            k: v for k, v in scanned(bucket).items() if v[0]
        }
    bucket.database.close()


Held = dict[tuple[int, bytes], list[tuple[int, bytes]]]
"""Slices and keys, by index and document."""


def _tell(bucket: Bucket, held: Held, seqno: int, chance: Random) -> None:
    document, others = b"d%d" % chance.randrange(6), chance.random() < 0.7
    named = sorted(chance.sample(INDEXES, chance.randrange(4)))
    places = {i: _places(chance) for i in named}
    placed = [
        (i, *some[0]) if len(some) == 1 else (i, MANY, pack_many(some))
        for i, some in places.items()
    ]
    scope = chance.choice((LOGGED, GUARDED, Scope(frozenset({1, 2}), frozenset({3}))))
    bucket.apply([told(seqno, document, *placed, others=others, scope=scope)], {})
    for index_id in INDEXES:
        if index_id in named or others:
            held.pop((index_id, document), None)
    for index_id, some in places.items():
        here = [place for place in some if place[0] in bucket.slices[index_id]]
        held[index_id, document] = list(dict.fromkeys(here))


def _places(chance: Random) -> list[tuple[int, bytes]]:
    """Return where a document is in an index, or that it is nowhere; of a message that was sent
    twice by mistake, each place twice."""
    if chance.random() < 0.6:
        return [(chance.choice((NO_SLICE, 0, 1)), b"k" * chance.randrange(4))]
    some = [(chance.choice((0, 1, 7)), b"k" * n) for n in range(chance.randrange(2, 5))]
    return some * chance.choice((1, 1, 2))


def test_an_empty_record_of_the_back_index_says_nothing() -> None:
    assert BackIndex().read(b"") == {}


def test_a_tombstone_counts_in_its_batch_already(bucket: Bucket) -> None:
    """Of what moves, two backfills may tell at once."""
    changes = [told(6, b"d", scope=GUARDED), told(5, b"d", (1, 0, b"old"), scope=GUARDED)]
    bucket.apply(changes, {})
    assert entries(bucket) == set()
    assert tombstones(bucket) == 3


def test_what_a_backfill_brings_is_not_taken_back(bucket: Bucket) -> None:
    """No snapshot shows an index before it is complete."""
    bucket.apply([told(5, b"d", (1, 0, b"k"), scope=GUARDED)], {})
    assert len(bucket.timeline._changes) == 0


def test_a_document_that_leaves_what_is_here_is_a_change_there(bucket: Bucket) -> None:
    bucket.apply([told(1, b"d", (1, 0, b"k"))], {})
    bucket.apply([told(2, b"d", (1, 7, b"k"))], {})
    sizes = dict(bucket.sizes.all())
    assert (sizes[1, 0].entries, sizes[1, 0].changes) == (0, 2)
