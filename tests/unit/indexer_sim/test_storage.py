"""Laws of an indexer's storage, on real RocksDBs."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import WriteBatch

from coordinator.core.model.types import Seqno
from indexer_sim.bucket.database import StorageError, open_files_of
from indexer_sim.bucket.entries import FORMAT, entries_prefix
from indexer_sim.bucket.names import bucket_name, folder_name
from indexer_sim.bucket.reserve import Reserve
from indexer_sim.bucket.storage import (
    BUCKETS,
    DAMAGED,
    META,
    RESERVE,
    Storage,
)
from indexer_sim.bucket.tracker import NO_INDEX, Change, Scope
from tests.conftest import examples
from tests.support.limits import file_size_limit

IDENTITY = "indexer 1 of cluster demo"
ONE, TWO = frozenset({0}), frozenset({0, 1})


@contextmanager
def opened(folder: Path, identity: str = IDENTITY) -> Iterator[Storage]:
    storage = Storage(folder, identity)
    try:
        yield storage
    finally:
        storage.close()


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.sst"))


def put_data(storage: Storage, bucket: str, index_id: int, number: int, size_bytes: int) -> None:
    batch = WriteBatch(raw_mode=True)
    for place in range(size_bytes // 1024):
        key = entries_prefix(index_id, number) + place.to_bytes(4, "big")
        batch.put(key, os.urandom(1024))
    storage._buckets[bucket].database.write(batch, sync=False)


# -- names ---------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_a_folder_name_is_safe_and_can_be_read_back(bucket: str) -> None:
    name = folder_name(bucket)
    assert bucket_name(name) == bucket
    assert name == name.lower()
    assert not name.startswith(".")
    assert not set(name) & set('/\\:*?"<>|\0 ')


@pytest.mark.parametrize(
    ("bucket", "folder"),
    [
        ("travel", "travel"),
        ("Travel", "travel~1"),
        ("a.b#c-1", "a.b#c-1"),
        ("..", "%2e."),
        ("a/b", "a%2fb"),
        ("a~1", "a%7e1"),
    ],
)
def test_folder_names(bucket: str, folder: str) -> None:
    assert folder_name(bucket) == folder


def test_the_longest_legal_name_fits_a_file_system() -> None:
    assert len(folder_name("A#.-" * 32)) <= 255


# -- slices --------------------------------------------------------------------------------------


def test_a_restart_keeps_what_was_allocated(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.allocate("Tra.vel#", 7, TWO, b"definition")
        storage.allocate("other", 8, ONE, b"definition")
        storage.save(41, {7: b"seven", 8: b"eight"}, 5)
        storage.save(42, {8: None}, 6)
        storage.save_cas_base(9)
        held = storage.held
    assert held == {7: TWO, 8: ONE}
    with opened(tmp_path) as storage:
        assert storage.held == held
        assert storage.position() == (42, 6)
        assert storage.indexes() == {7: b"seven"}
        assert storage.cas_base() == 9


def test_a_new_folder_has_no_position(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        assert (storage.position(), storage.indexes(), storage.held) == (None, {}, {})
        assert storage.cas_base() is None


def test_release_gives_the_space_back_and_leaves_the_others(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.allocate("b", 1, TWO, b"")
        storage.allocate("b", 2, ONE, b"")
        for index_id, number in ((1, 0), (1, 1), (2, 0)):
            put_data(storage, "b", index_id, number, 1_000_000)
        storage._buckets["b"].database.opened().flush()
        assert used_bytes(tmp_path / BUCKETS) > 2_900_000
        storage.release(1, ONE)
        assert storage.held == {1: frozenset({1}), 2: ONE}
        assert used_bytes(tmp_path / BUCKETS) < 2_100_000
        assert storage.size_bytes() < 2_100_000
        storage.release(1, frozenset({1}))
        assert used_bytes(tmp_path / BUCKETS) < 1_100_000
        assert len(storage._buckets["b"].database.scan(entries_prefix(2, 0))) == 976
    with opened(tmp_path) as storage:
        assert storage.held == {2: ONE}
        storage.release(2, ONE)
        assert list((tmp_path / BUCKETS).iterdir()) == []
        assert storage.size_bytes() == 0
        storage.release(2, ONE)


def placed(seqno: int, piece: int) -> Change:
    """A document lies in a slice of index 1; older items of it may follow."""
    scope = Scope(NO_INDEX, frozenset({1}))
    return Change(b"d", Seqno(seqno), 0, ((1, piece, b"k"),), True, scope, range(2))


@pytest.mark.parametrize("swept", [False, True])
def test_what_was_in_a_released_slice_does_not_come_back_with_an_older_item(
    tmp_path: Path, swept: bool
) -> None:
    """A backfill may send an older state of a document after maintenance has sent the newer one."""
    with opened(tmp_path) as storage:
        storage.know("b", 1)
        storage.allocate("b", 1, TWO, b"")
        bucket = storage._buckets["b"]
        assert not bucket.tracker.indexes[1].state.complete
        for seqno, piece in ((9, 0), (5, 1)):
            if piece:
                storage.release(1, ONE)
                if swept:
                    bucket.sweep()
            bucket.apply([placed(seqno, piece)], {0: seqno})
        assert bucket.database.scan(entries_prefix(1, 1)) == []
        bucket.apply([placed(10, 1)], {0: 10})
        assert len(bucket.database.scan(entries_prefix(1, 1))) == 1


def test_a_bucket_of_an_older_format_begins_as_if_it_had_never_been_there(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.know("b", 1)
        storage.allocate("b", 1, ONE, b"")
        storage.make_checkpoint(storage._buckets["b"])
        storage._buckets["b"].database.write(batch_without_format(), sync=True)
    with opened(tmp_path) as storage:
        assert storage.held == {1: ONE}, "a checkpoint of this format is as good"
        for checkpoint in storage.checkpoints(storage._buckets["b"]).found():
            shutil.rmtree(checkpoint)
        storage._buckets["b"].database.write(batch_without_format(), sync=True)
    with opened(tmp_path) as storage:
        assert storage.held == {}
        storage.allocate("b", 1, ONE, b"")
    with opened(tmp_path) as storage:
        assert storage.held == {1: ONE}


def batch_without_format() -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    batch.delete(FORMAT)
    return batch


steps = st.lists(
    st.tuples(
        st.sampled_from(("allocate", "release", "restart")),
        st.integers(0, 3),
        st.frozensets(st.integers(0, 2), min_size=1),
    ),
    max_size=12,
)


@pytest.mark.thorough
@examples(25)
@given(history=steps)
def test_what_is_held_is_what_was_allocated_and_not_released(
    tmp_path_factory: pytest.TempPathFactory, history: list
) -> None:
    folder = tmp_path_factory.mktemp("storage")
    storage = Storage(folder, IDENTITY)
    expected: dict[int, frozenset[int]] = {}
    try:
        for what, index_id, slices in history:
            if what == "allocate":
                storage.allocate(f"b{index_id % 2}", index_id, slices, b"d")
                expected[index_id] = expected.get(index_id, frozenset()) | slices
            elif what == "release":
                storage.release(index_id, slices)
                expected[index_id] = expected.get(index_id, frozenset()) - slices
            else:
                storage.close()
                storage = Storage(folder, IDENTITY)
            assert storage.held == {i: numbers for i, numbers in expected.items() if numbers}
    finally:
        storage.close()


# -- faults --------------------------------------------------------------------------------------


def test_the_folder_of_another_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.bind("kafka", "one")
        storage.bind("kafka", "one")
        with pytest.raises(StorageError) as caught:
            storage.bind("kafka", "two")
        assert caught.value.code == "folder_mismatch"
    with pytest.raises(StorageError) as caught, opened(tmp_path, "indexer 2 of cluster demo"):
        pass
    assert caught.value.code == "folder_mismatch"
    assert "belongs to indexer 1 of cluster demo" in caught.value.message


def test_buckets_without_an_owner_are_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.allocate("b", 1, ONE, b"")
    (tmp_path / META).rename(tmp_path / "lost")
    with pytest.raises(StorageError) as caught, opened(tmp_path):
        pass
    assert caught.value.code == "folder_mismatch"


def flip(path: Path) -> None:
    """Turn every bit of a file over."""
    path.write_bytes(bytes(255 - byte for byte in path.read_bytes()))


def lose(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, lose])
@pytest.mark.parametrize("what", ["CURRENT", "MANIFEST-*"])
def test_what_belongs_to_a_damaged_meta_is_put_aside(
    tmp_path: Path, what: str, damage: Callable[[Path], None]
) -> None:
    """Whose it is nobody can tell; others have it, or the source."""
    for _ in range(2):  # What was put aside before makes room.
        with opened(tmp_path) as storage:
            storage.allocate("travel", 7, ONE, b"definition")
        for path in list((tmp_path / META).glob(what)):
            damage(path)
        with opened(tmp_path) as storage:
            assert storage.held == {}
            assert len(storage.recovered) == 1
            assert [*(tmp_path / DAMAGED / BUCKETS).glob("*")]
            storage.allocate("travel", 7, ONE, b"definition")
        with opened(tmp_path) as storage:
            assert storage.held == {7: ONE}
            assert storage.recovered == []


def test_a_refused_allocation_leaves_nothing_and_storage_recovers(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.allocate("b", 1, ONE, b"")
        with file_size_limit(0):
            for bucket, index_id in (("b", 2), ("new", 3), ("x" * 300, 4)):
                with pytest.raises(StorageError) as caught:
                    storage.allocate(bucket, index_id, ONE, b"")
                assert caught.value.code == "refused"
                assert str(tmp_path) not in caught.value.message
                assert "\n" not in caught.value.message
            with pytest.raises(StorageError):
                storage.save(1, {1: b"one"}, 0)
            assert storage.held == {1: ONE}
        assert [path.name for path in (tmp_path / BUCKETS).iterdir()] == ["b"]
        storage.tend()
        storage.save(1, {1: b"one"}, 0)
        storage.allocate("b", 2, ONE, b"")
        storage.allocate("new", 3, ONE, b"")
        held = storage.held
    assert held == {1: ONE, 2: ONE, 3: ONE}
    with opened(tmp_path) as storage:
        assert storage.held == held


def test_a_folder_in_use_is_refused_and_keeps_its_reserve(tmp_path: Path) -> None:
    with opened(tmp_path):
        with pytest.raises(StorageError, match="lock"), opened(tmp_path):
            pass
        assert (tmp_path / RESERVE).exists()


def test_a_bucket_that_was_only_begun_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        storage.allocate("b", 1, ONE, b"")
        (tmp_path / BUCKETS / "begun").mkdir()
    with opened(tmp_path) as storage:
        assert storage.held == {1: ONE}
        assert [path.name for path in (tmp_path / BUCKETS).iterdir()] == ["b"]


def test_a_reserve_is_taken_given_up_and_taken_again(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 3_000_000)
    assert not reserve.give_up()
    assert reserve.allocate()
    assert reserve.path.stat().st_size >= 3_000_000
    assert Reserve(reserve.path, 3_000_000).is_allocated
    assert reserve.give_up()
    assert not reserve.path.exists()
    with file_size_limit(1_000_000):
        assert not reserve.allocate()
    assert list(tmp_path.iterdir()) == []
    assert reserve.allocate()


def test_no_reserve_is_taken_from_a_disk_that_has_little_left(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve", 1 << 60)
    assert not reserve.allocate()
    assert not reserve.path.exists()


def test_as_many_files_are_open_as_many_databases_may_have_together() -> None:
    assert [open_files_of(n) for n in (256, 1_024, 4_096, 20_000)] == [32, 32, 128, 512]
    assert open_files_of(resource.RLIM_INFINITY) == 512
