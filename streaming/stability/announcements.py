"""The outputs for a bucket: timestamps and rollback enquiries, numbered in the order they are made.

Pure, but for the object itself, which lives for one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from coordinator.core.model.stream_records import (
    HwHeartbeat,
    PromotionRequested,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.algorithms import Watermark, mean_by_heartbeat, promote, restart
from coordinator.core.timestamps.bucket_state import (
    NEVER,
    NOBODY,
    UNTIMED,
    BucketState,
    Heard,
    heard_of,
)
from coordinator.core.timestamps.settings import HEARTBEAT, TimestampSettings
from streaming.stability.positions import Positions

INDEXERS_MAX = 64

HURRIED_PERIOD_MS = 500
"""The period while a query waits, if it is longer: indexers keep only the last few snapshots."""

HURRIED_MS_MAX = 60_000
"""So long one request hurries at most, as long as a scan may wait."""

Output = StabilityTimestamp | RestartTimestamp | RollbackEnquiry


class Announcer:
    """Makes the outputs of one batch; knows the high watermarks of the indexers."""

    def __init__(
        self, state: BucketState, positions: Positions, settings: TimestampSettings, now_ms: int
    ) -> None:
        self.bucket, self.now_ms, self.settings = state.bucket, now_ms, settings
        self.positions, self.rows = positions, positions.rows
        self.heard = dict(state.heard)
        self.stability_number, self.restart_number = state.stability_number, state.restart_number
        self.published_ms, self.hurried_until_ms = state.published_ms, state.hurried_until_ms
        self.outputs: list[Output] = []

    # -- indexers --------------------------------------------------------------------------------

    def note_heartbeat(self, record: HwHeartbeat) -> None:
        """Take what an indexer says that it holds."""
        self.heard[record.indexer] = heard_of(record, self.heard.get(record.indexer), self.now_ms)
        if len(self.heard) > INDEXERS_MAX:
            del self.heard[min(self.heard, key=lambda indexer: self.heard[indexer].since_ms)]

    def time_heard(self) -> None:
        """Who was heard before the first tick was heard now."""
        for indexer, heard in self.heard.items():
            if heard.since_ms == UNTIMED:
                self.heard[indexer] = heard._replace(since_ms=self.now_ms)

    def set_on(self, stepped_ms: int) -> None:
        """A clock has stepped: indexers were heard so much later."""
        if stepped_ms:
            for indexer, heard in self.heard.items():
                if heard.since_ms != UNTIMED:
                    since_ms = min(heard.since_ms + stepped_ms, self.now_ms)
                    self.heard[indexer] = heard._replace(since_ms=since_ms)

    def is_fresh(self, heard: Heard | None) -> bool:
        """Tell whether an indexer was heard lately."""
        if heard is None:
            return False
        return self.now_ms - (heard.since_ms or self.now_ms) <= self.settings.heartbeat_stale_ms

    # -- outputs ---------------------------------------------------------------------------------

    def restart(
        self,
        reason: str,
        vbuckets: Sequence[int],
        projectors: Sequence[int],
        asked: int = 0,
        vectors: Sequence[Vector] | None = None,
    ) -> None:
        """Tell from where on streams are to begin again; no vbuckets, nothing to tell."""
        if not vbuckets:
            return
        if vectors is None:
            vectors = [
                heard.vector
                for heard in self.heard.values()
                if self.is_fresh(heard) and heard.hosts and heard.vector.holds_anything
            ]
        found = restart(vectors or [self.rows.current], self.positions.logs, vbuckets)
        vbuuids, seqnos = found.vector.to_bytes()
        self.restart_number += 1
        self.outputs.append(
            RestartTimestamp(
                bucket=self.bucket,
                number=self.restart_number,
                round=asked,
                vbuckets=tuple(vbuckets),
                vbuuids=vbuuids,
                seqnos=seqnos,
                branched=found.branched,
                projectors=tuple(sorted(set(projectors) - {NOBODY})),
                reason=reason,
                at_ms=self.now_ms,
            )
        )

    def tell_enquiries(self) -> None:
        """Tell what positions enquire about."""
        for found in self.positions.enquiries():
            self.restart_number += 1
            vbuuid, seqno = found.stood
            self.outputs.append(
                RollbackEnquiry(
                    bucket=self.bucket,
                    number=self.restart_number,
                    vbucket=found.vbucket,
                    vbuuid=vbuuid,
                    seqno=seqno,
                    seen_vbuuid=found.vbuuid,
                    seen_seqno=found.seqno,
                    projector=found.projector,
                    connection=found.connection,
                    reason=found.reason,
                    at_ms=self.now_ms,
                )
            )

    def hurry(self, record: PromotionRequested) -> None:
        """Have the next stability timestamps told soon, for as long as a query waits for them.

        From now on: the clock of who asks may be another one. Before the first tick nobody knows
        the time, and how long that would be.
        """
        if self.now_ms:
            until_ms = self.now_ms + min(record.wait_ms, HURRIED_MS_MAX)
            self.hurried_until_ms = max(self.hurried_until_ms, until_ms)

    def publish(self, *, ticked: bool) -> None:
        """Tell the next stability timestamp, if it is due and anything has advanced."""
        period_ms = self.settings.period_ms
        if self.now_ms < self.hurried_until_ms:
            period_ms = min(period_ms, HURRIED_PERIOD_MS)
        elif not ticked:
            return
        if self.published_ms != NEVER and self.now_ms - self.published_ms < period_ms:
            return
        stable = self.rows.stable
        if self.settings.algorithm == HEARTBEAT:
            advanced = mean_by_heartbeat(
                [
                    Watermark(heard.vector, heard.growing and heard.free > 0)
                    for heard in self.heard.values()
                    if self.is_fresh(heard) and heard.hosts
                ],
                stable,
                self.positions.logs,
            )
        else:
            advanced = promote(stable, self.rows.current, self.positions.logs)
        if advanced is None:
            return
        self.rows.promote(advanced)
        self.stability_number += 1
        self.published_ms = self.now_ms
        self.outputs.append(
            StabilityTimestamp(
                self.bucket, self.stability_number, *advanced.to_bytes(), self.now_ms
            )
        )
