"""The core's fold of one bucket, as it is called here, and its state as it is kept on Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coordinator.core.bucket_state import BucketState, TimestampState, pack, unpack
from coordinator.core.stability import Batch, Control, Folded, Syncs, fold
from coordinator.core.stream_records import StabilityTimestamp
from coordinator.core.timestamp_settings import TimestampSettings


def new_state(bucket: str, vbuckets: int, published: StabilityTimestamp | None) -> BucketState:
    """Return the state of a bucket of which nothing is known but what was published last."""
    state = BucketState.new(bucket, vbuckets)
    return state if published is None else replace(state, stability_number=published.number)


def as_record(state: BucketState, query: str, batch: int, now_ms: int) -> TimestampState:
    return TimestampState(state.bucket, query, batch, state.vbuckets, now_ms, pack(state))


def from_record(record: TimestampState) -> BucketState:
    """Return the state that was kept. ValueError: it is none."""
    return unpack(record.state)


def folded(
    state: BucketState,
    syncs: Syncs,
    control: Sequence[Control],
    now_ms: int,
    ticked: bool,
    settings: TimestampSettings,
) -> Folded:
    """Return what a batch makes of a bucket's state; the same state if nothing has changed."""
    return fold(state, Batch(syncs, control, now_ms, ticked), settings)
