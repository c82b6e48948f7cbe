"""Until when a tick alone changes nothing: of many buckets most have nothing due. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coordinator.core.timestamps.bucket_state import (
    MISSING,
    NEVER,
    NOBODY,
    OPEN,
    REFUSED,
    REGRESSED,
    UNTIMED,
    Array,
    BucketState,
)
from coordinator.core.timestamps.settings import HEARTBEAT, TimestampSettings
from streaming.stability.announcements import HURRIED_PERIOD_MS

ALWAYS = 2**63 - 1


def quiet_until(state: BucketState, settings: TimestampSettings) -> int:
    """Return the time, in milliseconds, from which on a tick may change a state; ALWAYS: none may.

    That holds as long as nothing of the bucket is read, its settings stay, and no time passes
    unwatched. `fold` of a tick before that returns the same state, and no outputs.
    """
    if UNTIMED in _times(state):
        return UNTIMED
    return min(_dues(state, settings), default=ALWAYS)


def _times(state: BucketState) -> Iterator[int]:
    """Yield times that the next tick may replace, for they were noted before the first one."""
    for name in ("heard_ms", "lost_ms", "asked_ms", "doubt_ms"):
        if (state.places[name] == UNTIMED).any():
            yield UNTIMED
    yield from _smallest(state.early["since_ms"])
    yield from (held.since_ms for waiting in state.held.values() for held in waiting)
    yield from (end.since_ms for ends in state.early_ends.values() for end in ends)
    yield from (heard.since_ms for heard in state.heard.values())
    yield from (question.since_ms for question in state.questions)


def _dues(state: BucketState, settings: TimestampSettings) -> Iterator[int]:
    """Yield when each limit and period is over that counts; see `limits` and `announcements`."""
    for since_ms in _smallest(state.early["since_ms"]):
        yield since_ms + settings.sync_missing_ms
    for waiting in state.held.values():
        yield min(held.since_ms for held in waiting) + settings.begin_held_ms
    for ends in state.early_ends.values():
        yield min(end.since_ms for end in ends) + settings.end_unmatched_ms
    for question in state.questions:
        yield question.since_ms + settings.heartbeat_stale_ms
    yield from _of_vbuckets(state.places, settings)
    if _may_publish(state, settings):
        if state.published_ms == NEVER:
            yield UNTIMED
        yield state.published_ms + min(settings.period_ms, _hurried_ms(state))


def _of_vbuckets(places: Array, settings: TimestampSettings) -> Iterator[int]:
    owned = (places["connection"] != NOBODY) & (places["ended"] == OPEN)
    silent = owned & (places["enquired"] & MISSING == 0)
    yield from _smallest(places["heard_ms"][silent] + settings.sync_missing_ms)
    doubted = (places["doubt_ms"] != NEVER) & (places["enquired"] & REGRESSED == 0)
    yield from _smallest(places["doubt_ms"][doubted] + settings.begin_held_ms)
    lost = places[(places["lost_ms"] != NEVER) & (places["enquired"] & REFUSED == 0)]
    first = lost["asked_ms"] == NEVER
    yield from _smallest(lost["lost_ms"][first] + settings.begin_held_ms)
    asked = lost[~first]
    pause = np.maximum(settings.sync_missing_ms, asked["asked_ms"] - asked["lost_ms"])
    yield from _smallest(asked["asked_ms"] + pause)


def _may_publish(state: BucketState, settings: TimestampSettings) -> bool:
    """Tell whether there may be another stability timestamp: it is not computed for that."""
    places = state.places
    if settings.algorithm == HEARTBEAT and any(heard.hosts for heard in state.heard.values()):
        return True
    return bool(
        (places["vbuuid"] != places["stable_vbuuid"]).any()
        or (places["seqno"] != places["stable_seqno"]).any()
    )


def _hurried_ms(state: BucketState) -> int:
    hurried = state.hurried_until_ms > state.published_ms
    return HURRIED_PERIOD_MS if hurried else ALWAYS


def _smallest(times: Array) -> Iterator[int]:
    if len(times):
        yield int(times.min())
