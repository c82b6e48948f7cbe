"""What a shard goes on with where the buckets were divided in another way before."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator import codec
from coordinator.core.model.types import Offset
from coordinator.core.timestamps.bucket_state import BucketState
from coordinator.core.timestamps.progress import NextOffset, TimestampProgress
from coordinator.core.timestamps.shards import WHOLE, BucketShard
from streaming.timestamps import state_store
from streaming.timestamps.bucket_states import as_record
from streaming.timestamps.query_state import keys_of
from streaming.timestamps.state_store import Kept

FIRST, SECOND = BucketShard(1, 2), BucketShard(2, 2)
BUCKETS = [f"b{n}" for n in range(8)]


@pytest.fixture(autouse=True)
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_store, "_records", lambda *_: ())


def kept(**read: tuple[BucketShard, dict[int, int]]) -> Kept:
    """Return what is kept of these shards, which have read up to offsets of partitions of `t`."""
    newest = {name: codec.encode(as_record(BucketState.new(name, 1), 1)) for name in BUCKETS}
    for shard, offsets in read.values():
        nexts = tuple(NextOffset("t", p, Offset(offset)) for p, offset in offsets.items())
        newest[keys_of(shard).progress] = codec.encode(TimestampProgress(100, nexts))
    return Kept("c", newest)


def begun(found: Kept, shard: BucketShard) -> tuple[dict[int, int], tuple[str, ...], set[str]]:
    state: Any = found.query_state("", shard)
    offsets = {one.partition: one.offset for one in state.progress.offsets}
    return offsets, state.obsolete, set(state.states)


def test_a_shard_begins_where_the_slowest_was_and_goes_on_where_it_was_itself() -> None:
    undivided = WHOLE, {0: 5, 1: 8}
    assert begun(kept(whole=undivided), FIRST)[0] == {0: 5, 1: 8}
    assert begun(kept(whole=undivided, first=(FIRST, {0: 9, 1: 9})), FIRST)[0] == {0: 9, 1: 9}
    parts = kept(first=(FIRST, {0: 9, 1: 3}), second=(SECOND, {0: 4, 1: 7}))
    assert begun(parts, WHOLE)[0] == {0: 4, 1: 3}


def test_what_was_kept_before_goes_once_all_shards_have_begun_with_it() -> None:
    undivided, first, second = (WHOLE, {0: 5}), (FIRST, {0: 6}), (SECOND, {0: 7})
    assert begun(kept(whole=undivided), FIRST)[1] == ()
    assert begun(kept(whole=undivided, first=first), FIRST)[1] == ()
    both = kept(whole=undivided, first=first, second=second)
    assert begun(both, FIRST)[1] == (keys_of(WHOLE).progress,)
    assert begun(kept(first=first, second=second), FIRST)[1] == ()


def test_each_shard_has_the_states_of_its_own_buckets() -> None:
    found = kept(first=(FIRST, {0: 6}), second=(SECOND, {0: 7}))
    states = {shard.number: begun(found, shard)[2] for shard in (FIRST, SECOND)}
    assert states == {s.number: {b for b in BUCKETS if s.owns(b)} for s in (FIRST, SECOND)}
    assert min(map(len, states.values())) > 0
