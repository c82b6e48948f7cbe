"""How a bucket goes back to what its key-value store still has, as a master leads it.

Pure. A vbucket has branched below a position that an indexer holds: the histories of the vbuckets
and the high watermarks say so, or an indexer itself. Then the bucket's `Rollback` moves through its
states, each by a transaction; so a new master goes on where the old one was. Everything else
follows the state: projectors stop all streams, indexers go back, nodes refuse scans.

    started     the branch was found; all streams of all buckets stop
    prepare     the failover timestamp is known: up to where what was there before still counts
    restart     the restart timestamp is known: after what the streams of the bucket begin again
    rollback    indexers go back, and streams begin again; who is below them catches up
    done        every live indexer has recovered

An indexer that is away does it by itself when it comes back. A loss that is found after indexers
have gone back is another rollback, which takes the place of this one. Source: specification,
"kv-rollback".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from coordinator.core.consensus.signals import Want
from coordinator.core.consensus.view import NodeView
from coordinator.core.model.commands import MoveRollback
from coordinator.core.model.entities import (
    ROLLBACK,
    ROLLBACK_DONE,
    ROLLBACK_PREPARE,
    ROLLBACK_RESTART,
    ROLLBACK_STARTED,
    Rollback,
)
from coordinator.core.model.stream_records import HwHeartbeat
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import (
    Logs,
    is_shared,
    lost_positions,
    streams_begin,
    surviving,
)


class Heard(NamedTuple):
    """What is known of a bucket: what its live indexers hold, and the histories of its vbuckets.

    `everybody`: all indexers that are sure to hold something have said what.
    """

    vbuckets: int
    beats: Mapping[int, HwHeartbeat]
    logs: Logs
    everybody: bool

    def vector(self, indexer: int) -> Vector:
        beat = self.beats[indexer]
        return Vector.from_bytes(beat.vbuuids, beat.seqnos)

    def held(self) -> dict[int, Vector]:
        """Return what each indexer holds that holds anything."""
        vectors = {indexer: self.vector(indexer) for indexer in self.beats}
        return {i: vector for i, vector in vectors.items() if vector.holds_anything}


class RollbackCoordinator:
    """The part of a master that has buckets go back."""

    def __init__(self) -> None:
        self._waiting_since_ms: dict[str, int] = {}

    def tick(self, view: NodeView, bucket: str, heard: Heard) -> list[Want]:
        """Return the next step of a bucket's rollback, if one is due."""
        held = view.state.rollback(bucket)
        command = self._next(view, bucket, held, heard)
        if command is None:
            return []
        self._waiting_since_ms.pop(bucket, None)
        return [Want(f"rollback/{bucket}", command)]

    def _next(
        self, view: NodeView, bucket: str, held: Rollback | None, heard: Heard
    ) -> MoveRollback | None:
        number = held.number if held else 0
        if held is None or not held.stops_streams:
            lost = lost_vbuckets(heard, number)
            if lost:
                reason = f"{len(lost)} vbuckets have lost what indexers hold"
                return MoveRollback(bucket, number, ROLLBACK_STARTED, lost, reason=reason)
        if held is None or held.is_over:
            return None
        step = MoveRollback(bucket, number, ROLLBACK_DONE)
        if held.state == ROLLBACK_STARTED:
            if not self._may_compute(view, bucket, heard):
                return None
            return _to(step, ROLLBACK_PREPARE, failover_timestamp(held.vbuckets, heard))
        if held.state == ROLLBACK_PREPARE:
            return _to(step, ROLLBACK_RESTART, restart_timestamp(held, heard))
        if held.state == ROLLBACK_RESTART:
            return replace(step, state=ROLLBACK)
        beats = heard.beats.values()
        recovered = all(b.rollback >= number and not b.recovering for b in beats)
        return step if recovered and heard.everybody else None

    def _may_compute(self, view: NodeView, bucket: str, heard: Heard) -> bool:
        """Tell whether all have said what they hold, or had the time for it."""
        now = view.now.mono_ms
        since = self._waiting_since_ms.setdefault(bucket, now)
        return heard.everybody or now - since >= view.config.stream_timeout_ms


def _to(step: MoveRollback, state: str, timestamp: Vector) -> MoveRollback:
    vbuuids, seqnos = timestamp.to_bytes()
    return replace(step, state=state, vbuuids=vbuuids, seqnos=seqnos)


def lost_vbuckets(heard: Heard, last: int) -> tuple[int, ...]:
    """Return the vbuckets that have lost what an indexer holds.

    Who has yet to go back because of the rollback `last` is not looked at: what it holds is about
    to change.
    """
    found: set[int] = set()
    for indexer, beat in heard.beats.items():
        if beat.rollback >= last:
            found |= lost_positions(heard.vector(indexer), heard.logs)
            found.update(v for v in beat.branched if 0 <= v < heard.vbuckets)
    return tuple(sorted(found))


def failover_timestamp(vbuckets: Sequence[int], heard: Heard) -> Vector:
    """Return, for each of `vbuckets`, its present branch, and what is left of what was before.

    That is the least that is left of any position that was lost. If none was, or if the history of
    a vbucket is not known, nothing counts: an indexer itself does not know what it holds of it.
    """
    vbuuids = np.zeros(len(vbuckets), np.uint64)
    seqnos = np.zeros(len(vbuckets), np.uint64)
    vectors = [heard.vector(indexer) for indexer in heard.beats]
    for place, vbucket in enumerate(vbuckets):
        log = heard.logs.get(vbucket, ())
        held = [vector.position(vbucket) for vector in vectors if vbucket < len(vector)]
        left = [surviving(log, *position) for position in held if not is_shared(log, *position)]
        vbuuids[place] = log[0].vbuuid if log else 0
        seqnos[place] = min(left, default=0) if log else 0
    return Vector(vbuuids, seqnos)


def restart_timestamp(held: Rollback, heard: Heard) -> Vector:
    """Return after what the streams of a bucket begin again: the least that anybody will keep.

    At most, that is: who goes back further catches up.
    """
    failover = Vector.from_bytes(held.failover_vbuuids, held.failover_seqnos)
    vectors = []
    for vector in heard.held().values():
        vbuuids, seqnos = vector.vbuuids.copy(), vector.seqnos.copy()
        for place, vbucket in enumerate(held.vbuckets):
            vbuuid, seqno = failover.position(place)
            if vbucket < len(seqnos) and vbuuids[vbucket] != vbuuid:
                vbuuids[vbucket] = vbuuid
                seqnos[vbucket] = min(int(seqnos[vbucket]), seqno)
        vectors.append(Vector(vbuuids, seqnos))
    if not vectors:
        return Vector.zero(heard.vbuckets)
    return streams_begin(vectors, heard.logs)
