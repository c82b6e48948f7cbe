"""What the API shows of kv-rollbacks, as JSON values. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordinator.core.catalog.rollbacks import describe_rollback
from coordinator.core.catalog.state import StateContext
from coordinator.core.model.entities import Rollback
from coordinator.core.model.stream_records import HwHeartbeat
from coordinator.core.model.vectors import Vector
from coordinator.http.timestamp_views import places

Heard = Mapping[str, Sequence[HwHeartbeat]]


def rollbacks(context: StateContext, heard: Heard | None) -> dict[str, Any]:
    """Return the last rollback of each bucket that had one, newest first.

    `heard`: what the live indexers say, by bucket; None where the node is not the master.
    """
    found = sorted(context.rollbacks(), key=lambda one: (-one.began_ms, one.bucket))
    rows = [_rollback(one, None if heard is None else heard.get(one.bucket, ())) for one in found]
    return {"rollbacks": rows, "cas": context.cas}


def _rollback(one: Rollback, beats: Sequence[HwHeartbeat] | None) -> dict[str, Any]:
    return {
        **describe_rollback(one),
        "failover": _failover(one),
        "restart": _restart(one),
        "indexers": None if beats is None else [_indexer(beat, one.number) for beat in beats],
    }


def _failover(one: Rollback) -> dict[str, list[str]] | None:
    if not one.failover_vbuuids:
        return None
    return places(one.vbuckets, Vector.from_bytes(one.failover_vbuuids, one.failover_seqnos))


def _restart(one: Rollback) -> dict[str, list[str]] | None:
    """Return after what streams begin again, without the vbuckets of which nobody keeps anything:
    those begin at their beginning."""
    if not one.restart_vbuuids:
        return None
    vector = Vector.from_bytes(one.restart_vbuuids, one.restart_seqnos)
    found = places(range(len(vector)), vector)
    return {vbucket: place for vbucket, place in found.items() if place != NOTHING}


NOTHING = ["0", "0"]


def _indexer(beat: HwHeartbeat, number: int) -> dict[str, Any]:
    return {
        "indexer": beat.indexer,
        "done": beat.rollback >= number,
        "recovering": beat.recovering,
        "branched": len(beat.branched),
    }
