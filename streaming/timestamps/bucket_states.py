"""The state of a bucket: how it begins, and how it is kept on Kafka."""

from __future__ import annotations

from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.timestamps.bucket_state import BucketState, TimestampState, pack, unpack


def new_state(bucket: str, vbuckets: int, published: StabilityTimestamp | None) -> BucketState:
    """Return the state of a bucket of which nothing is known but what was published last."""
    if published is None:
        return BucketState.new(bucket, vbuckets)
    return BucketState.resumed(bucket, vbuckets, published)


def as_record(state: BucketState, query: str, batch: int, now_ms: int) -> TimestampState:
    return TimestampState(state.bucket, query, batch, state.vbuckets, now_ms, pack(state))


def from_record(record: TimestampState) -> BucketState:
    """Return the state that was kept. ValueError: it is none."""
    return unpack(record.state)
