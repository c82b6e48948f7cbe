"""What indexers and projectors tell the cluster, simulated ones and real ones alike.

Where a record lets the master go on, the judge takes note of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coordinator.core.model.entities import Index
from coordinator.core.model.records import (
    ALLOCATED,
    BucketSeen,
    Holding,
    HoldingsReported,
    HoldingsRequested,
    ProjectorHeartbeat,
    SliceAnswered,
    StreamAwaited,
)
from coordinator.core.model.stream_records import IndexBuilt, IndexRouted
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import ACKS, HEARTBEAT, HW
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.clock import WALL_MS
from tests.support.indexes import make_indexer_beat, make_watermarks

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

Parts = Sequence[tuple[Holding, ...]]


class Voice(Actor):
    """One incarnation of an indexer or a projector, as it names itself."""

    world: Cluster
    number: int
    incarnation: int

    def _send(self, topic: str, record: Any, late_ms: int = 0) -> None:
        self.world.network.send(topic, record, late_ms)


class IndexerVoice(Voice):
    """What an indexer tells."""

    def say_alive(self) -> None:
        beat = make_indexer_beat(
            self.number,
            incarnation=self.incarnation,
            address=f"indexer{self.number}",
            at_ms=WALL_MS,
        )
        self._send(HEARTBEAT, beat)

    def is_asked(self, record: HoldingsRequested) -> bool:
        return (record.indexer, record.incarnation) == (self.number, self.incarnation)

    def say_holdings(self, asked: HoldingsRequested, position: int, parts: Parts) -> None:
        cas = self.world.cas_base + position - 1
        for part, some in enumerate(parts):
            process_id = self.number, self.incarnation
            self._send(
                ACKS, HoldingsReported(*process_id, asked.round, cas, part, len(parts), some)
            )

    def say_slices(
        self, index_id: int, answer: str, reason: str, slices: tuple[int, ...], shard: int
    ) -> None:
        if answer == ALLOCATED:
            self.world.judge.allocated.add((self.number, index_id))
        process_id = self.number, self.incarnation
        self._send(ACKS, SliceAnswered(*process_id, index_id, answer, reason, slices, shard))

    def say_held(self, bucket: str, vector: Vector, indexes: tuple[int, ...], **more: Any) -> None:
        record = make_watermarks(
            self.number,
            vector,
            incarnation=self.incarnation,
            bucket=bucket,
            indexes=indexes,
            free=1,
            at_ms=WALL_MS,
            **more,
        )
        self._send(HW, record)

    def say_built(self, index: Index, shard: int, late_ms: int) -> None:
        self.world.judge.built.add((self.number, index.id, index.build, shard))
        record = IndexBuilt(self.number, self.incarnation, index.id, index.build)
        self._send(ACKS, record, late_ms)


class ProjectorVoice(Voice):
    """What a projector tells."""

    def say_alive(
        self, buckets: tuple[BucketSeen, ...], waiting: tuple[StreamAwaited, ...], **more: Any
    ) -> None:
        beat = ProjectorHeartbeat(
            projector=self.number,
            incarnation=self.incarnation,
            address=f"projector{self.number}",
            pid=1,
            at_ms=WALL_MS,
            kv="kv",
            buckets=buckets,
            waiting=waiting,
            **more,
        )
        self._send(HEARTBEAT, beat)

    def say_routed(self, index_id: int, build: int, reason: str) -> None:
        if not reason:
            self.world.judge.routed.add((self.number, self.incarnation, index_id, build))
        self._send(ACKS, IndexRouted(self.number, self.incarnation, index_id, build, reason))
