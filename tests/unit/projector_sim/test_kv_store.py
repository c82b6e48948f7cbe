"""Laws of the key-value store's folder: which buckets there are, after whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector_sim.kv.errors import KvError
from projector_sim.kv.store import BUCKETS, TRASH, KvStore


def test_a_restart_finds_each_bucket_as_it_was(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    names = ["a", "A", "travel-sample", "x.y", "é"]
    for name in names:
        store.create(name, 4, [1, 2]).upsert(b"key", name.encode())
    before = {name: (b.high_seqnos(), b.vbuuids()) for name, b in store.buckets.items()}
    store.close()
    store = KvStore(tmp_path)
    assert set(store.buckets) == set(names)
    assert {name: (b.high_seqnos(), b.vbuuids()) for name, b in store.buckets.items()} == before
    for name in names:
        assert store.bucket(name).get(b"key") == name.encode()
        assert store.bucket(name).owners() == [1, 1, 2, 2]
    store.close()


def test_a_bucket_that_was_dropped_and_made_again_has_other_histories(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    first = store.create("b", 4)
    first.upsert(b"key", b"{}")
    vbuuids = first.vbuuids()
    store.drop("b")
    assert dict(store.buckets) == {}
    assert not list((tmp_path / BUCKETS).iterdir())
    with pytest.raises(KvError, match="closed"):
        first.get(b"key")
    second = store.create("b", 2)
    assert second.high_seqnos() == [0, 0]
    assert not set(vbuuids) & set(second.vbuuids())
    store.close()


def test_what_a_crash_left_half_made_or_half_deleted_is_cleared_away(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    store.create("whole", 2)
    store.close()
    (tmp_path / BUCKETS / b"begun".hex()).mkdir()
    (tmp_path / TRASH / "half").mkdir(parents=True)
    store = KvStore(tmp_path)
    assert list(store.buckets) == ["whole"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [BUCKETS]
    assert [path.name for path in (tmp_path / BUCKETS).iterdir()] == [b"whole".hex()]
    store.close()


def test_what_cannot_be_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    store.create("b", 2)
    with pytest.raises(KvError) as refused:
        store.create("b", 4)
    assert refused.value.code == "exists"
    for missing in (store.bucket, store.drop):
        with pytest.raises(KvError) as refused:
            missing("c")
        assert refused.value.code == "not_found"
    for name, vbuckets in (("", 2), ("n" * 101, 2), ("c", 3)):
        with pytest.raises(ValueError):
            store.create(name, vbuckets)
    assert len(list((tmp_path / BUCKETS).iterdir())) == 1
    store.close()
