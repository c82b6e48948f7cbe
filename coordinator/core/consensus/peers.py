"""Who else is alive: the last heartbeat of each process, and when it was heard.

Pure. The clock that measures silence advances only while heartbeats arrive, of whatever process.
So a node that was stopped, or that hears no process at all, suspects nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from typing import Any, Protocol

from coordinator.core.catalog.loads import NOTHING, Load, Reported, Reports, together
from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.build_progress import Progresses
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.records import (
    Heartbeat,
    IndexerHeartbeat,
    NodeHeartbeat,
    ProjectorHeartbeat,
    SliceLoads,
    TimestampsHeartbeat,
)
from coordinator.core.model.stream_records import HwHeartbeat
from coordinator.core.model.types import Instant
from coordinator.core.timestamps.shards import BucketShard, shard_of

PERIOD_MS_MAX = 60_000
"""No process sends its heartbeats less often, whatever it says."""


@dataclass(slots=True)
class Peer:
    """The last heartbeat of another process, and when it was heard (`Peers.clock_ms`)."""

    heard_ms: int
    beat: Any


class PeersView(Protocol):
    """What the parts of a node may know of other processes."""

    @property
    def clock_ms(self) -> int: ...
    @property
    def nodes(self) -> Mapping[int, Peer]: ...
    @property
    def indexers(self) -> Mapping[int, Peer]: ...
    @property
    def projectors(self) -> Mapping[int, Peer]: ...
    @property
    def loads(self) -> Mapping[int, SliceLoads]: ...
    @property
    def reported(self) -> Reports: ...
    @property
    def applications(self) -> Mapping[BucketShard, Peer]: ...
    def alive(self, peer: Peer | None) -> bool: ...
    def application_of(self, bucket: str) -> Peer | None: ...
    def node_alive(self, number: int) -> bool: ...
    def indexer_alive(self, number: int) -> bool: ...
    def indexer_lost(self, number: int) -> bool: ...
    def projector_lapsed(self, number: int) -> bool: ...


class Peers:
    """All processes that were ever heard, by kind and number."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self.clock_ms = 0
        """For how long this node has been hearing heartbeats."""
        self.nodes: dict[int, Peer] = {}
        self.indexers: dict[int, Peer] = {}
        self.projectors: dict[int, Peer] = {}
        self.loads: dict[int, SliceLoads] = {}
        """What the slices of each indexer weigh, as it was told last."""
        self.reported = Reports()
        """The same for each indexer as a whole."""
        self.applications: dict[BucketShard, Peer] = {}
        """Those that compute timestamps, by what they have of the buckets."""
        self.watermarks: dict[tuple[str, int], HwHeartbeat] = {}
        """By bucket and indexer; only a master hears them."""
        self.progress = Progresses()
        self._heard_at_ms = 0

    def alive(self, peer: Peer | None) -> bool:
        """Tell whether a process was heard within its liveness period."""
        return peer is not None and self._silent_ms(peer) <= self._liveness_ms(peer)

    def _liveness_ms(self, peer: Peer | None) -> int:
        """Return how long a process counts as alive after its last heartbeat.

        That is the time of four of its heartbeats, or of this node's if it sends them more often.
        """
        period_ms = getattr(peer.beat, "period_ms", 0) if peer is not None else 0
        return max(self._config.liveness_ms, 4 * min(period_ms, PERIOD_MS_MAX))

    def node_alive(self, number: int) -> bool:
        """Tell whether the node with this number was heard within the liveness period."""
        return self.alive(self.nodes.get(number))

    def indexer_alive(self, number: int) -> bool:
        """Likewise an indexer."""
        return self.alive(self.indexers.get(number))

    def indexer_lost(self, number: int) -> bool:
        """Tell whether an indexer was silent for so long that nobody waits for it any more."""
        return self.silent_ms(number) > self._config.lost_indexer_ms

    def silent_ms(self, number: int) -> int:
        """Return for how long nothing was heard of an indexer: while this node has listened."""
        return self._silent_ms(self.indexers.get(number))

    def projector_lapsed(self, number: int) -> bool:
        """Tell whether a projector was silent for so long that its connections are closed."""
        peer = self.projectors.get(number)
        limit_ms = max(self._config.lapsed_projector_ms, self._liveness_ms(peer))
        return self._silent_ms(peer) > limit_ms

    def _silent_ms(self, peer: Peer | None) -> int:
        return self.clock_ms - (peer.heard_ms if peer is not None else 0)

    def application_of(self, bucket: str) -> Peer | None:
        """Return the living application that computes a bucket's timestamps, None if none does."""
        living = (
            peer
            for shard, peer in self.applications.items()
            if shard.owns(bucket) and self.alive(peer)
        )
        return max(living, key=lambda peer: peer.heard_ms, default=None)

    def listen(self, now: Instant) -> None:
        """Let the clock go on: heartbeats came, whosever they are."""
        step_ms = min(now.mono_ms - self._heard_at_ms, 2 * self._config.heartbeat_ms)
        self.clock_ms += max(0, step_ms)
        self._heard_at_ms = now.mono_ms

    def remember(self, beat: Heartbeat, now: Instant) -> None:
        """Remember a heartbeat; records that are none are passed over."""
        heard = Peer(self.clock_ms, beat)
        match beat:
            case NodeHeartbeat():
                self.nodes[beat.node] = heard
            case IndexerHeartbeat():
                self.indexers[beat.indexer] = heard
            case SliceLoads():
                self.loads[beat.indexer] = beat
                self.reported.note(beat.indexer, _reported_by(beat))
            case ProjectorHeartbeat():
                self.projectors[beat.projector] = heard
                self.progress.note(beat, now.mono_ms)
            case TimestampsHeartbeat():
                with suppress(ValueError):  # No shard: it computes nothing for anybody.
                    self.applications[shard_of(beat.shard)] = heard


def _reported_by(beat: SliceLoads) -> Reported:
    """Return what the slices of an indexer weigh together, and those of each index."""
    of_index: dict[int, Reported] = {}
    for one in beat.loads:
        slices, load, _ = of_index.get(one.index_id, NOTHING)
        more = (max(0, one.entries), max(0, one.bytes), max(0, one.mutations))
        of_index[one.index_id] = Reported(slices + 1, Load(*map(add, load, more)))
    return together(of_index)


def impossible(beat: Heartbeat | HwHeartbeat) -> bool:
    """Tell whether this names a process that cannot be: each number that is heard is kept."""
    numbers = (getattr(beat, name, 0) for name in ("node", "indexer", "projector"))
    return any(authorities.impossible_id(number) for number in numbers)
