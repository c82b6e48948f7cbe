"""The load phase: what the master waits for while indexes are built, and who streams what.

Pure. All of it is derived from the StateContext and from what others repeat until the state moves
on: projectors route an index, indexers have built it, a projector cannot stream a bucket. So a
new master knows as much after a moment, and nothing that is lost on the way is lost for good.

Invariants: an index is backfilled only when every live projector routes this build of it; it takes
scans only when every hosting indexer has this build; a projector streams a bucket's maintenance
only in a life that the bucket's `Stream` names, and begins where no indexer misses anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core.commands import (
    AdoptBucket,
    BuildIndexes,
    MarkBuilt,
    MarkFailed,
    MarkRouted,
    RenewStream,
)
from coordinator.core.decisions import index_in
from coordinator.core.entities import (
    BACKFILL,
    MAINTENANCE,
    PENDING,
    READY,
    STREAMED,
    Bucket,
    Index,
    Stream,
)
from coordinator.core.prepare import REASON_LENGTH_MAX
from coordinator.core.records import ProjectorHeartbeat
from coordinator.core.restarting import Restarting
from coordinator.core.state import StateContext
from coordinator.core.stream_records import (
    FailoverBranch,
    FailoverLog,
    HwHeartbeat,
    IndexBuilt,
    IndexRouted,
)
from coordinator.core.vectors import Vector

if TYPE_CHECKING:
    from coordinator.core.master import Master

AUTOMATIC_MAX = 50
"""So many indexes that were not deferred begin to be built at once, if they fit into a group."""

BUILD_BYTES = 128
"""An index weighs so much more when it is being built, its key included."""

Life = tuple[int, int]
"""A process: its number and its incarnation."""


class Renewal(NamedTuple):
    """A renewal of a bucket's streams: against which generation, for whom, why, and what of
    `restart` it answers."""

    number: int
    lives: tuple[Life, ...]
    why: str
    restart: int

    def command(self, bucket: str, vector: tuple[bytes, bytes]) -> RenewStream:
        return RenewStream(
            bucket, self.number, self.lives, *vector, reason=self.why, restart=self.restart
        )


class Building:
    """The part of a master that has indexes built, and streams opened."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self._routed: dict[int, dict[Life, int]] = {}
        self._built: dict[int, dict[int, int]] = {}
        self._watermarks: dict[tuple[str, int], HwHeartbeat] = {}
        self._logs: dict[str, dict[int, tuple[FailoverBranch, ...]]] = {}
        self._waiting_since_ms: dict[str, int] = {}
        self._streamed_of: tuple[tuple[object, ...], frozenset[str]] = ((), frozenset())
        self.restarting = Restarting(master)

    @property
    def underway(self) -> int:
        """How many indexes are being built."""
        phases = self._state.phases
        return sum(len(phases.get(phase, ())) for phase in (PENDING, BACKFILL))

    @property
    def _state(self) -> StateContext:
        return self.master.node.state

    def _index(self, index_id: int, *states: str) -> Index | None:
        """Return an index if it is in one of these states."""
        return index_in(self._state, index_id, *states)

    # -- what is heard -----------------------------------------------------------------------

    def observe(self, index_id: int, index: Index | None) -> None:
        """Take note of an index's new state; None when it is gone."""
        if index is None or index.state not in STREAMED:
            self._routed.pop(index_id, None)
            self._built.pop(index_id, None)

    def routed(self, record: IndexRouted) -> None:
        """A projector routes a build of an index, or says why it cannot."""
        index = self._index(record.index_id, PENDING)
        if index is None or index.build != record.build:
            return
        if index.bucket in self._misfits(self._projectors()):
            return  # That is about to be put right.
        if record.reason:
            reason = f"projector {record.projector}: {record.reason[:REASON_LENGTH_MAX]}"
            self._want(index.id, MarkFailed(index.id, index.build, reason))
        else:
            life = (record.projector, record.incarnation)
            self._routed.setdefault(index.id, {})[life] = record.build

    def built(self, record: IndexBuilt) -> None:
        """An indexer has built its share of an index."""
        index = self._index(record.index_id, BACKFILL)
        if index is not None and index.build == record.build:
            self._built.setdefault(index.id, {})[record.indexer] = record.build

    def streams_read(self, records: Iterable[HwHeartbeat | FailoverLog]) -> None:
        """Take what indexers hold, and the histories of vbuckets."""
        for record in records:
            if isinstance(record, HwHeartbeat):
                self._watermarks[record.bucket, record.indexer] = record
            else:
                self._logs.setdefault(record.bucket, {})[record.vbucket] = record.branches

    # -- what is due -------------------------------------------------------------------------

    def tick(self) -> None:
        """Take every step of a build, and renew every stream, for which all is there."""
        projectors = self._projectors()
        if not projectors:
            return
        unbuilt = self._unbuilt()
        if unbuilt:
            self.master.want("build", BuildIndexes(unbuilt))
        for bucket, vbuckets in self._misfits(projectors).items():
            self.master.want(f"bucket/{bucket}", AdoptBucket(bucket, vbuckets))
        for index in sorted(self._state.in_phase(PENDING, BACKFILL), key=lambda one: one.id):
            self._step(index, projectors)
        self._renew(projectors)

    def _unbuilt(self) -> tuple[int, ...]:
        """Return the indexes that are to be built by themselves: as many as one group takes."""
        if not self._state.phases.get(READY):
            return ()
        left = self.master.node.config.group_bytes_max
        chosen: list[int] = []
        for index_id in nsmallest(AUTOMATIC_MAX, (i.id for i in self._state.in_phase(READY))):
            held = self._state.index_by_id(index_id)
            left -= len(held.value) + BUILD_BYTES if held else 0
            if chosen and left < 0:
                break
            chosen.append(index_id)
        return tuple(chosen)

    def _step(self, index: Index, projectors: list[ProjectorHeartbeat]) -> None:
        if index.state == PENDING:
            routed = self._routed.get(index.id, {})
            if all(routed.get((p.projector, p.incarnation)) == index.build for p in projectors):
                self._want(index.id, MarkRouted(index.id, index.build))
        elif self._has_built(index):
            self._want(index.id, MarkBuilt(index.id, index.build))

    def _has_built(self, index: Index) -> bool:
        """Tell whether every host has built its share: of this build, not of one before it."""
        built = self._built.get(index.id, {})
        return all(built.get(host) == index.build for host in index.hosts)

    def _want(self, index_id: int, command: MarkRouted | MarkBuilt | MarkFailed) -> None:
        self.master.want(f"build/{index_id}", command)

    def _projectors(self) -> list[ProjectorHeartbeat]:
        """Return the last heartbeats of the projectors that are registered and alive."""
        node, registered = self.master.node, self.master.authority.projectors
        return [
            peer.beat
            for number, peer in sorted(node.projectors.items())
            if number in registered
            and registered[number].incarnation == peer.beat.incarnation
            and node.alive(peer)
        ]

    def _misfits(self, projectors: Iterable[ProjectorHeartbeat]) -> dict[str, int]:
        """Return buckets that the store has with another number of vbuckets than was assumed.

        An index may be created before any projector has told of its bucket. Once something was
        streamed, vectors rest on the number, and it stays.
        """
        state = self.master.node.state
        found: dict[str, int] = {}
        for seen in (bucket for beat in projectors for bucket in beat.buckets):
            held = state.bucket(seen.name)
            entity = held.entity if held else None
            fits = not isinstance(entity, Bucket) or entity.vbuckets == seen.vbuckets
            if not fits and state.stream(seen.name) is None:
                found[seen.name] = seen.vbuckets
        return found

    # -- streams -----------------------------------------------------------------------------

    def _renew(self, projectors: list[ProjectorHeartbeat]) -> None:
        """Renew the streams of buckets that projectors wait for: of all who wait at once."""
        now, config = self.master.node.now.mono_ms, self.master.node.config
        wanted = self._wanted(projectors)
        for bucket in self._waiting_since_ms.keys() - wanted.keys():
            del self._waiting_since_ms[bucket]
        self.restarting.forget_others(set(wanted))
        for bucket, renewal in wanted.items():
            since = now - self._waiting_since_ms.setdefault(bucket, now)
            if len(renewal.lives) < len(projectors) and since < config.stream_hold_ms:
                continue
            vector = self._restart(bucket, since >= config.stream_timeout_ms)
            if vector is not None:
                self.master.want(f"stream/{bucket}", renewal.command(bucket, vector))
                if renewal.restart > self._answered(bucket):
                    self.restarting.renewed(bucket)

    def _wanted(self, projectors: list[ProjectorHeartbeat]) -> dict[str, Renewal]:
        """Return what streams are to be renewed: for who waits, and for who has lost something."""
        found: dict[str, Renewal] = {}
        for bucket, (number, waiting) in self._waiting(projectors).items():
            why = f"for projectors {', '.join(str(projector) for projector, _ in waiting)}"
            found[bucket] = Renewal(number, tuple(waiting), why, self._answered(bucket))
        told_of = {
            bucket: told
            for bucket in self.master.node.timestamps
            if (told := self.restarting.told(bucket, self._answered(bucket))) is not None
        }
        if not told_of:
            return found
        streamed = self._streamed()
        for bucket, told in told_of.items():
            if bucket not in streamed:
                continue
            number, sources = self._sources(bucket)
            lost = {
                (p.projector, p.incarnation) for p in projectors if p.projector in told.projectors
            }
            renewal = found.get(bucket) or Renewal(number, (), told.reason, 0)
            lives = tuple(sorted({*renewal.lives, *(lost & sources.keys())}))
            if lives:
                found[bucket] = renewal._replace(lives=lives, restart=told.number)
        return found

    def _streamed(self) -> frozenset[str]:
        """Return the buckets of which an index is fed by streams.

        It looks at all indexes, but only if one of them has moved since.
        """
        phases = tuple(self._state.phases.get(phase) for phase in sorted(STREAMED))
        known, buckets = self._streamed_of
        if len(known) != len(phases) or any(a is not b for a, b in zip(known, phases, strict=True)):
            buckets = frozenset(index.bucket for index in self._state.in_phase(*STREAMED))
            self._streamed_of = phases, buckets
        return buckets

    def _answered(self, bucket: str) -> int:
        """Return the number of what a renewal of a bucket's streams has answered last."""
        held = self.master.node.state.stream(bucket)
        return held.entity.restart if held and isinstance(held.entity, Stream) else 0

    def _waiting(self, projectors: list[ProjectorHeartbeat]) -> dict[str, tuple[int, list[Life]]]:
        """Return the buckets for which projectors wait, with the newest number, and who waits."""
        found: dict[str, tuple[int, list[Life]]] = {}
        if not any(beat.waiting for beat in projectors):
            return found
        streamed = self._streamed()
        for beat in projectors:
            for awaited in beat.waiting:
                if awaited.bucket not in streamed:
                    continue
                number, sources = self._sources(awaited.bucket)
                if sources.get((beat.projector, beat.incarnation), 0) == awaited.number:
                    _, lives = found.setdefault(awaited.bucket, (number, []))
                    lives.append((beat.projector, beat.incarnation))
        return found

    def _sources(self, bucket: str) -> tuple[int, dict[Life, int]]:
        held = self.master.node.state.stream(bucket)
        stream = held.entity if held else None
        if not isinstance(stream, Stream):
            return 0, {}
        return stream.number, {(s.projector, s.incarnation): s.number for s in stream.sources}

    def _restart(self, bucket: str, overdue: bool) -> tuple[bytes, bytes] | None:
        """Return where a bucket's streams are to begin again; None: an indexer has yet to say.

        Nobody who holds anything must miss anything. An indexer that is away, or does not say
        in time, finds the gap by itself and catches up. Who holds nothing at all, having only just
        come, takes no part: it would send everybody back to the beginning. Empty: nobody holds
        anything.
        """
        vbuckets = self._vbuckets(bucket)
        held: dict[int, Vector] = {}
        for indexer, must_say in self._hosts(bucket):
            vector = self._watermark(bucket, indexer, vbuckets)
            if vector is None and must_say and not overdue:
                return None
            if vector is not None and vector.holds_anything:
                held[indexer] = vector
        if not held:
            return b"", b""
        vector = self.restarting.vector(bucket, vbuckets, list(held.values()), tuple(held))
        return None if vector is None else vector.to_bytes()

    def logs(self, bucket: str) -> dict[int, tuple[FailoverBranch, ...]]:
        """Return what is known of the histories of a bucket's vbuckets."""
        return self._logs.get(bucket, {})

    def _vbuckets(self, bucket: str) -> int:
        held = self.master.node.state.bucket(bucket)
        assert held is not None
        assert isinstance(held.entity, Bucket)
        return held.entity.vbuckets

    def _hosts(self, bucket: str) -> list[tuple[int, bool]]:
        """Return the live indexers that may hold something, and whether they are sure to."""
        node = self.master.node
        sure: dict[int, bool] = {}
        for index in self._state.in_phase(*STREAMED):
            if index.bucket == bucket:
                for host in index.hosts:
                    certain = index.state in (BACKFILL, MAINTENANCE)
                    sure[host] = sure.get(host, False) or certain
        return [(host, sure[host]) for host in sorted(sure) if node.alive(node.indexers.get(host))]

    def _watermark(self, bucket: str, indexer: int, vbuckets: int) -> Vector | None:
        """Return what this life of an indexer says that it holds."""
        record = self._watermarks.get((bucket, indexer))
        peer = self.master.node.indexers.get(indexer)
        if record is None or peer is None or peer.beat.incarnation != record.incarnation:
            return None
        whole = len(record.vbuuids) == len(record.seqnos) == 8 * vbuckets
        return Vector.from_bytes(record.vbuuids, record.seqnos) if whole else None
