"""Several applications share the buckets: each bucket is in one part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.timestamps.shards import PARTS_MAX, WHOLE, BucketShard, shard_of


@given(st.text(max_size=20), st.integers(1, PARTS_MAX))
def test_each_bucket_is_in_one_part(bucket: str, parts: int) -> None:
    owning = [n for n in range(1, parts + 1) if BucketShard(n, parts).owns(bucket)]
    assert len(owning) == 1
    assert WHOLE.owns(bucket)


def test_every_part_has_some_of_many_buckets() -> None:
    owned = [sum(BucketShard(n, 3).owns(f"bucket-{b}") for b in range(900)) for n in (1, 2, 3)]
    assert min(owned) > 200


@given(st.integers(1, PARTS_MAX), st.integers(1, PARTS_MAX))
def test_a_name_says_which(number: int, parts: int) -> None:
    shard = BucketShard(min(number, parts), parts)
    assert shard_of(shard.name) == shard
    assert (shard.name == "") == (parts == 1)


@pytest.mark.parametrize(
    "name", ["0/1", "2/1", "1/65", "1", "1/", "/2", "01/2", "1/2 ", "a/b", "-1/2"]
)
def test_what_names_no_part_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a shard is I/K"):
        shard_of(name)
