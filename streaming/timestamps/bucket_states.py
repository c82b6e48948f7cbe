"""The state of a bucket, as it is kept on Kafka."""

from __future__ import annotations

from coordinator.core.timestamps.bucket_state import BucketState, TimestampState, pack, unpack


def as_record(state: BucketState, now_ms: int) -> TimestampState:
    return TimestampState(state.bucket, state.vbuckets, now_ms, pack(state))


def from_record(record: TimestampState) -> BucketState:
    """Return the state that was kept. ValueError: it is none."""
    return unpack(record.state)
