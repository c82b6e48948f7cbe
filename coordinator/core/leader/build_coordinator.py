"""The load phase: what the master waits for while indexes are built, and who streams what.

Pure. The master derives it from the StateContext, and from answers that other processes repeat
until the state changes: a projector routes an index, an indexer has built it, a projector cannot
stream a bucket. So a new master soon knows as much as the old one, and a lost answer comes again.

Invariants: an index is backfilled only when every live projector routes this build of it; it takes
scans only when every hosting indexer has this build; a projector streams a bucket's maintenance
only if the bucket's `Stream` names its incarnation, and begins where no indexer misses anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import NamedTuple

from coordinator.core.catalog.decisions import index_in
from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus.signals import Result, Want
from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.leader.lapsed_projectors import LapsedProjectors
from coordinator.core.leader.prepare import REASON_LENGTH_MAX
from coordinator.core.leader.rollback_coordinator import Heard, RollbackCoordinator
from coordinator.core.leader.stream_restart import StreamRestart
from coordinator.core.model.commands import (
    AdoptBucket,
    BuildIndexes,
    MarkBuilt,
    MarkFailed,
    MarkRouted,
    ReadTopicAgain,
    RenewStream,
)
from coordinator.core.model.entities import (
    BACKFILL,
    MAINTENANCE,
    PENDING,
    READY,
    ROLLBACK_STARTED,
    STREAMED,
    Bucket,
    Index,
    Source,
    Stream,
)
from coordinator.core.model.records import ProjectorHeartbeat
from coordinator.core.model.stream_records import (
    FailoverBranch,
    FailoverLog,
    HwHeartbeat,
    IndexBuilt,
    IndexRouted,
)
from coordinator.core.model.types import Epoch
from coordinator.core.timestamps.algorithms import newest_vbuuids

AUTOMATIC_MAX = 50
"""So many indexes that were not deferred begin to be built at once, if they fit into a group."""

BUILD_BYTES = 128
"""An index weighs so much more when it is being built, its key included."""

VBUCKETS = range(2**16)
"""The numbers that a vbucket can have."""

STRANGE_MAX = 64
"""Of so many buckets that there are not histories are kept: one may be on its way."""

ProcessId = tuple[int, int]
"""A process: its number and its incarnation."""


Hosts = list[tuple[int, bool]]
"""Live indexers that may hold something of a bucket, and whether they are sure to."""


class Renewal(NamedTuple):
    """A renewal of a bucket's streams.

    `number` is the generation that it replaces, `projectors` stream from then on, and `restart` is
    the number of the last record on `restart` that it acts on. Streams of `vbuckets` were lost,
    and all streams of the projectors in `whole`. `is_spaced`: not again at once.
    """

    number: int
    projectors: tuple[ProcessId, ...]
    why: str
    restart: int
    is_spaced: bool = False
    vbuckets: tuple[int, ...] = ()
    whole: frozenset[ProcessId] = frozenset()

    def command(self, bucket: str, vector: tuple[bytes, bytes]) -> RenewStream:
        vbuuids, seqnos = vector
        return RenewStream(
            bucket=bucket,
            number=self.number,
            projectors=self.projectors,
            vbuuids=vbuuids,
            seqnos=seqnos,
            reason=self.why,
            restart=self.restart,
            vbuckets=self.vbuckets,
            whole=self.whole,
        )


class BuildCoordinator:
    """The part of a master that has indexes built, and streams opened."""

    def __init__(self, epoch: Epoch) -> None:
        self._routed: dict[int, dict[ProcessId, int]] = {}
        self._built: dict[int, dict[int, int]] = {}
        self._watermarks: dict[tuple[str, int], HwHeartbeat] = {}
        self._logs: dict[str, dict[int, tuple[FailoverBranch, ...]]] = {}
        self._waiting_since_ms: dict[str, int] = {}
        self._streamed_of: tuple[tuple[object, ...], frozenset[str]] = ((), frozenset())
        self._newest: dict[str, bytes] = {}
        self._suspects: set[str] = set()
        """Buckets of which something was heard that may tell of a loss, since it was looked at."""
        self.restarting = StreamRestart(epoch)
        self.rolling_back = RollbackCoordinator()
        self._lapsed = LapsedProjectors()

    # -- what is heard -----------------------------------------------------------------------

    def observe(self, index_id: int, index: Index | None) -> None:
        """Take note of an index's new state; None when it is gone."""
        if index is None or index.state not in STREAMED:
            self._routed.pop(index_id, None)
            self._built.pop(index_id, None)

    def routed(self, view: NodeView, record: IndexRouted) -> list[Result]:
        """A projector routes a build of an index, or says why it cannot."""
        index = index_in(view.state, record.index_id, PENDING)
        if index is None or index.build != record.build:
            return []
        if index.bucket in _misfits(view.state, _projectors(view)):
            return []  # That is about to be put right.
        if record.reason:
            reason = f"projector {record.projector}: {record.reason[:REASON_LENGTH_MAX]}"
            return [_step_of(index, MarkFailed(index.id, index.build, reason))]
        process_id = (record.projector, record.incarnation)
        self._routed.setdefault(index.id, {})[process_id] = record.build
        return []

    def built(self, view: NodeView, record: IndexBuilt) -> None:
        """An indexer has built its share of an index."""
        index = index_in(view.state, record.index_id, BACKFILL)
        if index is not None and index.build == record.build:
            self._built.setdefault(index.id, {})[record.indexer] = record.build

    def streams_read(self, view: NodeView, records: Iterable[HwHeartbeat | FailoverLog]) -> None:
        """Take what indexers hold, and the histories of vbuckets."""
        for record in records:
            if isinstance(record, HwHeartbeat):
                self._watermarks[record.bucket, record.indexer] = record
                if record.branched or record.vbuuids != self._newest_vbuuids(record):
                    self._suspects.add(record.bucket)
            elif record.vbucket in VBUCKETS:
                self._suspects.add(record.bucket)
                self._newest.pop(record.bucket, None)
                self._make_room(view, record.bucket)
                self._logs.setdefault(record.bucket, {})[record.vbucket] = record.branches

    def _newest_vbuuids(self, record: HwHeartbeat) -> bytes:
        """Return the branch that each vbucket of a heartbeat's bucket has now."""
        found = self._newest.get(record.bucket, b"")
        if len(found) != len(record.vbuuids):
            logs = self._logs.get(record.bucket, {})
            found = newest_vbuuids(len(record.vbuuids) // 8, logs).astype("<u8").tobytes()
            self._newest[record.bucket] = found
        return found

    def _make_room(self, view: NodeView, bucket: str) -> None:
        """Forget the history of a bucket that there is not, if there are too many of them."""
        if bucket in self._logs or view.state.bucket(bucket) is not None:
            return
        strange = [name for name in self._logs if view.state.bucket(name) is None]
        if len(strange) >= STRANGE_MAX:
            del self._logs[strange[0]]
            self._newest.pop(strange[0], None)

    def has_heard(self, view: NodeView) -> bool:
        """Tell whether it is known how far indexers are, and which histories vbuckets have."""
        for bucket, hosts in _hosts_by_bucket(view).items():
            heard = self._heard(view, bucket, hosts)
            if not heard.everybody or (heard.beats and len(heard.logs) < heard.vbuckets):
                return False
        return True

    def is_computing(self, view: NodeView) -> bool:
        """Tell whether timestamps are being computed: who takes part must not change meanwhile."""
        begun = any(one.state == ROLLBACK_STARTED for one in view.state.rollbacks())
        return begun or self.restarting.is_asking(view)

    # -- what is due -------------------------------------------------------------------------

    def tick(self, view: NodeView) -> list[Result]:
        """Take every step of a build, and renew every stream, for which all is there."""
        projectors, state = _projectors(view), view.state
        found: list[Result] = [*self._roll_back(view), *self._lapsed.tick(view)]
        if not projectors:
            return found
        unbuilt = _unbuilt(view)
        if unbuilt:
            found.append(Want("build", BuildIndexes(unbuilt)))
        for bucket, vbuckets in _misfits(state, projectors).items():
            found.append(Want(f"bucket/{bucket}", AdoptBucket(bucket, vbuckets)))
        for bucket, reading in _forgetful(state, projectors).items():
            found.append(Want(f"bucket/{bucket}", ReadTopicAgain(bucket, reading)))
        for index in sorted(state.in_phase(PENDING, BACKFILL), key=lambda one: one.id):
            found += self._step(index, projectors)
        if state.streams_are_stopped:
            return found
        return found + self._renew(view, projectors)

    def _roll_back(self, view: NodeView) -> list[Want]:
        """Take the next step of each rollback, and look for losses where something was heard."""
        suspects, self._suspects = self._suspects, set()
        active = {one.bucket for one in view.state.rollbacks() if not one.is_over}
        found: list[Want] = []
        for bucket in sorted(suspects | active):
            if view.state.bucket(bucket) is not None:
                found += self.rolling_back.tick(view, bucket, self._heard(view, bucket))
        return found

    def _heard(self, view: NodeView, bucket: str, hosts: Hosts | None = None) -> Heard:
        """Return what the live indexers of a bucket hold, and the histories of its vbuckets."""
        vbuckets = _vbuckets(view.state, bucket)
        beats: dict[int, HwHeartbeat] = {}
        everybody = True
        for indexer, must_say in _hosts(view, bucket) if hosts is None else hosts:
            record = self._beat(view, bucket, indexer, vbuckets)
            if record is not None:
                beats[indexer] = record
            elif must_say:
                everybody = False
        return Heard(vbuckets, beats, self._logs.get(bucket, {}), everybody)

    def _step(self, index: Index, projectors: list[ProjectorHeartbeat]) -> list[Result]:
        """Return the next step of a build, if all that it rests on is there."""
        if index.state == PENDING:
            ids = [(p.projector, p.incarnation) for p in projectors]
            if is_routed(index, self._routed.get(index.id, {}), ids):
                return [_step_of(index, MarkRouted(index.id, index.build))]
        elif is_built(index, self._built.get(index.id, {})):
            return [_step_of(index, MarkBuilt(index.id, index.build))]
        return []

    # -- streams -----------------------------------------------------------------------------

    def _renew(self, view: NodeView, projectors: list[ProjectorHeartbeat]) -> list[Result]:
        """Renew the streams of buckets that projectors wait for: of all who wait at once."""
        now, config = view.now.mono_ms, view.config
        wanted = self._wanted(view, projectors)
        for bucket in self._waiting_since_ms.keys() - wanted.keys():
            del self._waiting_since_ms[bucket]
        self.restarting.forget_others(set(wanted))
        found: list[Result] = []
        for bucket, renewal in wanted.items():
            since = now - self._waiting_since_ms.setdefault(bucket, now)
            if len(renewal.projectors) < len(projectors) and since < config.stream_hold_ms:
                continue
            vector, asked = self._restart(view, bucket, since >= config.stream_timeout_ms)
            found += asked
            if vector is not None:
                found.append(Want(f"stream/{bucket}", renewal.command(bucket, vector)))
                if renewal.is_spaced:
                    self.restarting.renewed(view, bucket)
        return found

    def _wanted(self, view: NodeView, projectors: list[ProjectorHeartbeat]) -> dict[str, Renewal]:
        """Return what streams are to be renewed: for who waits, and for who has lost something."""
        state = view.state
        found: dict[str, Renewal] = {}
        for bucket, (number, waiting) in self._waiting(state, projectors).items():
            why = f"for projectors {', '.join(str(projector) for projector, _ in waiting)}"
            found[bucket] = Renewal(number, tuple(waiting), why, _answered(state, bucket))
        sources_of = {bucket: _sources(state, bucket)[1] for bucket in self._lapsed.buckets}
        for bucket, returned in self._lapsed.returned(projectors, sources_of).items():
            if self.restarting.is_quiet(view, bucket):
                continue
            why = "connections were closed for projectors that had lapsed"
            fresh = Renewal(_sources(state, bucket)[0], (), why, _answered(state, bucket))
            renewal = found.get(bucket) or fresh
            ids = tuple(sorted({*renewal.projectors, *returned}))
            found[bucket] = renewal._replace(
                projectors=ids, is_spaced=True, whole=frozenset(returned)
            )
        told_of = {
            bucket: told
            for bucket in view.timestamps
            if (told := self.restarting.told(view, bucket, _answered(state, bucket))) is not None
        }
        if not told_of:
            return found
        streamed = self._streamed(state)
        for bucket, told in told_of.items():
            if bucket not in streamed:
                continue
            number, sources = _sources(state, bucket)
            lost = {one for one in sources if told.is_partial or one[0] in told.projectors}
            renewal = found.get(bucket) or Renewal(number, (), told.reason, 0)
            alive = {(p.projector, p.incarnation) for p in projectors}
            if renewal.projectors or lost & alive:
                # Who is silent for a moment, too: what was told is answered for all of them.
                found[bucket] = renewal._replace(
                    projectors=tuple(sorted({*renewal.projectors, *lost})),
                    restart=told.number,
                    is_spaced=True,
                    vbuckets=tuple(sorted(told.vbuckets)),
                    whole=renewal.whole | lost if told.is_partial else renewal.whole,
                )
        return found

    def _streamed(self, state: StateContext) -> frozenset[str]:
        """Return the buckets of which an index is fed by streams.

        It looks at all indexes, but only if one of them has moved since.
        """
        phases = tuple(state.phases.get(phase) for phase in sorted(STREAMED))
        known, buckets = self._streamed_of
        if len(known) != len(phases) or any(a is not b for a, b in zip(known, phases, strict=True)):
            buckets = frozenset(index.bucket for index in state.in_phase(*STREAMED))
            self._streamed_of = phases, buckets
        return buckets

    def _waiting(
        self, state: StateContext, projectors: list[ProjectorHeartbeat]
    ) -> dict[str, tuple[int, list[ProcessId]]]:
        """Return the buckets for which projectors wait, with the newest number, and who waits."""
        found: dict[str, tuple[int, list[ProcessId]]] = {}
        if not any(beat.waiting for beat in projectors):
            return found
        streamed = self._streamed(state)
        for beat in projectors:
            for awaited in beat.waiting:
                if awaited.bucket not in streamed:
                    continue
                number, sources = _sources(state, awaited.bucket)
                source = sources.get((beat.projector, beat.incarnation))
                if (source.number if source is not None else 0) == awaited.number:
                    _, ids = found.setdefault(awaited.bucket, (number, []))
                    ids.append((beat.projector, beat.incarnation))
        return found

    def _restart(
        self, view: NodeView, bucket: str, overdue: bool
    ) -> tuple[tuple[bytes, bytes] | None, Iterable[Result]]:
        """Return where a bucket's streams are to begin again, and what to ask; None: somebody has
        yet to say.

        Nobody who holds anything must miss anything. An indexer that is away, or does not say
        in time, finds the gap by itself and catches up. Who holds nothing at all, having only just
        come, takes no part: it would send everybody back to the beginning. Empty: nobody holds
        anything.
        """
        rollback, number = view.state.rollback(bucket), _sources(view.state, bucket)[0]
        if rollback is not None and number < rollback.barrier:
            return (rollback.restart_vbuuids, rollback.restart_seqnos), ()
        heard = self._heard(view, bucket)
        if not (heard.everybody or overdue):
            return None, ()
        held = heard.held()
        if not held:
            return (b"", b""), ()
        found, asked = self.restarting.vector(view, bucket, held, heard.logs)
        return None if found is None else found.to_bytes(), asked

    def _beat(self, view: NodeView, bucket: str, indexer: int, vbuckets: int) -> HwHeartbeat | None:
        """Return the last heartbeat of this incarnation of an indexer, if its vector fits."""
        record = self._watermarks.get((bucket, indexer))
        peer = view.peers.indexers.get(indexer)
        if record is None or peer is None or peer.beat.incarnation != record.incarnation:
            return None
        whole = len(record.vbuuids) == len(record.seqnos) == 8 * vbuckets
        return record if whole else None


def is_routed(
    index: Index, routed: Mapping[ProcessId, int], projectors: Iterable[ProcessId]
) -> bool:
    """Tell whether every live projector routes an index; `routed` has the build that each named.

    Only then is the index backfilled: what a projector that does not route it streams meanwhile
    would be missing.
    """
    return all(routed.get(process_id) == index.build for process_id in projectors)


def is_built(index: Index, built: Mapping[int, int]) -> bool:
    """Tell whether every host has built its share; `built` has the build that each named.

    Only then does the index take scans. A share of a build before this one does not count.
    """
    return all(built.get(host) == index.build for host in index.hosts)


def _step_of(index: Index, command: MarkRouted | MarkBuilt | MarkFailed) -> Want:
    return Want(f"build/{index.id}", command)


def _unbuilt(view: NodeView) -> tuple[int, ...]:
    """Return the indexes that are to be built by themselves: as many as one group takes."""
    state = view.state
    if not state.phases.get(READY):
        return ()
    left = view.config.group_bytes_max
    chosen: list[int] = []
    for index_id in nsmallest(AUTOMATIC_MAX, (i.id for i in state.in_phase(READY))):
        held = state.index_by_id(index_id)
        left -= len(held.value) + BUILD_BYTES if held else 0
        if chosen and left < 0:
            break
        chosen.append(index_id)
    return tuple(chosen)


def _projectors(view: NodeView) -> list[ProjectorHeartbeat]:
    """Return the last heartbeats of the projectors that are registered and alive."""
    registered = authority_of(view).projectors
    return [
        peer.beat
        for number, peer in sorted(view.peers.projectors.items())
        if number in registered
        and registered[number].incarnation == peer.beat.incarnation
        and view.peers.alive(peer)
    ]


def _misfits(state: StateContext, projectors: Iterable[ProjectorHeartbeat]) -> dict[str, int]:
    """Return buckets that the store has with another number of vbuckets than was assumed.

    An index may be created before any projector has told of its bucket. Once something was
    streamed, vectors rest on the number, and it stays.
    """
    found: dict[str, int] = {}
    for seen in (bucket for beat in projectors for bucket in beat.buckets):
        held = state.bucket(seen.name)
        entity = held.entity if held else None
        fits = not isinstance(entity, Bucket) or entity.topic or entity.vbuckets == seen.vbuckets
        if not fits and state.stream(seen.name) is None:
            found[seen.name] = seen.vbuckets
    return found


def _forgetful(state: StateContext, projectors: Iterable[ProjectorHeartbeat]) -> dict[str, int]:
    """Return the buckets whose topic has to be read again, with the reading that missed something.

    Where a bucket goes back already, that comes first.
    """
    found: dict[str, int] = {}
    for seen in (topic for beat in projectors for topic in beat.topics):
        held = state.bucket(seen.name)
        entity = held.entity if held else None
        rollback = state.rollback(seen.name)
        is_of_now = isinstance(entity, Bucket) and entity.reading == seen.forgetful
        if is_of_now and (rollback is None or rollback.is_over):
            found[seen.name] = seen.forgetful
    return found


def _answered(state: StateContext, bucket: str) -> int:
    """Return the number of what a renewal of a bucket's streams has answered last."""
    held = state.stream(bucket)
    return held.entity.restart if held and isinstance(held.entity, Stream) else 0


def _sources(state: StateContext, bucket: str) -> tuple[int, dict[ProcessId, Source]]:
    """Return the generation of a bucket's streams, and each incarnation that streams it."""
    held = state.stream(bucket)
    stream = held.entity if held else None
    if not isinstance(stream, Stream):
        return 0, {}
    return stream.number, {(s.projector, s.incarnation): s for s in stream.sources}


def _vbuckets(state: StateContext, bucket: str) -> int:
    held = state.bucket(bucket)
    assert held is not None
    assert isinstance(held.entity, Bucket)
    return held.entity.vbuckets


def _hosts(view: NodeView, bucket: str) -> Hosts:
    """Return the live indexers that may hold something of a bucket."""
    indexes = (one for one in view.state.in_phase(*STREAMED) if one.bucket == bucket)
    return _hosts_of(view, indexes)


def _hosts_by_bucket(view: NodeView) -> dict[str, Hosts]:
    """Return the same of all buckets, with one look at each index."""
    found: dict[str, list[Index]] = {}
    for index in view.state.in_phase(*STREAMED):
        found.setdefault(index.bucket, []).append(index)
    return {bucket: _hosts_of(view, indexes) for bucket, indexes in found.items()}


def _hosts_of(view: NodeView, indexes: Iterable[Index]) -> Hosts:
    sure: dict[int, bool] = {}
    for index in indexes:
        for host in index.hosts:
            certain = index.state in (BACKFILL, MAINTENANCE)
            sure[host] = sure.get(host, False) or certain
    return [(host, sure[host]) for host in sorted(sure) if view.peers.indexer_alive(host)]
