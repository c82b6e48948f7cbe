"""Laws of the key-value store's folder: which buckets there are, after whatever happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from projector_sim.kv.bucket import make_bucket
from projector_sim.kv.errors import KvError
from projector_sim.kv.store import BUCKETS, TRASH, KvStore


def test_a_restart_finds_each_bucket_as_it_was(tmp_path: Path) -> None:
    store = KvStore(tmp_path)
    names = ["a", "A", "travel-sample", "x.y", "#", "n" * 100, "n" * 101, "N" * 101, "n" * 128]
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
    with pytest.raises(ValueError):
        store.create("c", 3)
    assert len(list((tmp_path / BUCKETS).iterdir())) == 1
    store.close()


@pytest.mark.parametrize("name", ["", "a b", "..", ".", "a/b", "1a", "é", "a\n", "\0", "n" * 129])
def test_a_bucket_has_a_name_that_an_index_can_name_and_a_url_can_carry(
    tmp_path: Path, name: str
) -> None:
    """A projector asks for a bucket by its URL, where `..` is another address: it would look at no
    bucket any more."""
    store = KvStore(tmp_path)
    with pytest.raises(ValueError, match="a letter, _ or #"):
        store.create(name, 2)
    assert not list(tmp_path.glob(f"{BUCKETS}/*"))
    store.close()


def test_a_bucket_that_was_made_under_an_older_rule_is_found_and_can_be_dropped(
    tmp_path: Path,
) -> None:
    make_bucket(tmp_path / BUCKETS / b"a b".hex(), 2, [0])
    store = KvStore(tmp_path)
    assert list(store.buckets) == ["a b"]
    store.drop("a b")
    assert not store.buckets
    store.close()
