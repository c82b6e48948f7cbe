"""What a projector has to do: which connections to have, which indexes they carry, what to answer.

Pure: no Kafka, HTTP or clock. Level-triggered: `plan` compares what the state wants with what runs,
whatever was missed in between. Invariants:

- Maintenance of a bucket runs only under a number that names this life of the projector, and each
  number opens one connection at most. A vbucket is streamed by one of them at a time. A new one
  takes over what is lacking or was lost; the others go on.
- A vbucket is backfilled for a build once under each maintenance number, unless all hosts have it
  already. It goes up to the position that maintenance has then, which carries the index already.
- A vbucket is attached and backfilled again if a host says that it lacks it, after it has read a
  maintenance record that was sent later than the backfill. So a host gets the missing part of a
  build in the end, whatever was lost, and also for an index that is in use already.
- An index leaves a pass that goes on only if no indexer can take the END of that pass for the end
  of its build.
- No stream of any bucket runs while a rollback of one is about to find out after what they begin
  again; each of them begins under a new number then.
- A part that its host fills from other indexers is not backfilled.
- An index is answered only while it is pending, and carried for every vbucket that is owned here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    MAINTENANCE,
    PENDING,
    STREAMED,
    Bucket,
    Entity,
    Index,
    Rollback,
    Source,
    Stream,
)
from coordinator.core.model.records import BackfillProgress, BucketSeen, StreamAwaited
from coordinator.core.model.stream_records import BACKFILL as BACKFILL_KIND
from coordinator.core.model.stream_records import CATCHUP, CatchUpRequested, HwHeartbeat
from coordinator.core.model.stream_records import MAINTENANCE as MAINTENANCE_KIND
from coordinator.core.model.vectors import Vector
from projector_sim.projector.connection_runs import Run
from projector_sim.protocol.source import SourceBucket, mismatch

BEGIN_TIMEOUT_MS = 5_000
"""So long after the last one a vbucket that was asked for does not begin any more."""

LISTEN_MS = 2_000
"""So long, at most, the indexers have to say what they have, before they are sent it again."""

IGNORED_MS, IGNORED_MS_MAX = 2_000, 300_000
"""After so long it is certain that an indexer ignores what is sent under a number; doubled each
time that a new number was of no use."""

PAUSE_MS, PAUSE_MS_MAX = 250, 10_000
"""After a connection that brought nothing, doubled each time."""

SILENT_MS = 5_000
"""Who is not heard for so long is not waited for."""

CONNECTIONS_MAX = 4
"""So many connections bring the mutations of a bucket, at most: a new one takes over from the
smallest."""

LOOK_MS = 1_000
"""So often it is looked whether hosts lack something that was sent to all of them."""

AGAIN_MS, AGAIN_MS_MAX = 2_000, 60_000
"""So long nothing of a build is sent again after it was, doubled each time: a host that cannot take
it, as its branch is another one, must not keep its projector busy."""

Build = tuple[int, int]
"""An index and the number of its build."""


@dataclass(frozen=True, slots=True)
class MakeBucket:
    """Make a bucket in the key-value store, if it has none of that name."""

    name: str
    vbuckets: int


@dataclass(frozen=True, slots=True)
class Open:
    """Open this connection."""

    run: Run


@dataclass(frozen=True, slots=True)
class Close:
    """Close this connection."""

    run: Run
    reason: str


@dataclass(frozen=True, slots=True)
class Carry:
    """The indexes of this connection have changed; send an ATTACH for those that are `attached`.

    In these `vbuckets`, None: in all.
    """

    run: Run
    attached: tuple[int, ...] = ()
    vbuckets: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """Send a record to all who read this connection: their next answers come after it.

    It says how far these `vbuckets` have come.
    """

    run: Run
    vbuckets: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the streams of these vbuckets here: another connection brings them from now on."""

    run: Run
    vbuckets: frozenset[int]


Action = MakeBucket | Open | Close | Carry | Probe | GiveUp


@dataclass(slots=True, kw_only=True)
class _Backfill:
    """How far a build is here: vbuckets by the maintenance number that they were sent under.

    `after` has, of those that a host lacks, the number and the ordinal that maintenance had when
    they had been sent. `again` are those that are sent once more, under which number, and not
    before `again_ms`; `repeats` is how often that was.
    """

    sent_under: dict[int, int] = field(default_factory=dict)
    sent: int = 0
    total: int = 0
    sent_ms: int = 0
    after: dict[int, tuple[int, int]] = field(default_factory=dict)
    again: dict[int, int] = field(default_factory=dict)
    again_ms: int = 0
    repeats: int = 0


@dataclass(frozen=True, slots=True)
class Host:
    """What an indexer has: vbuckets as bits, by build; after which ordinals of which connection.

    `filled` are the builds that others fill there.

    `taken`: numbers of generations with who streams, and the vbuckets, as bits, that it takes so.
    """

    done: Mapping[Build, bytes]
    read: Mapping[tuple[int, int], tuple[int, ...]]
    taken: Mapping[tuple[int, int], bytes]
    filled: frozenset[Build] = frozenset()

    def has(self, build: Build, vbucket: int) -> bool:
        return _has_bit(self.done.get(build, b""), vbucket)

    def has_read(self, connection: tuple[int, int], vbucket: int) -> int:
        """Return the ordinal up to which this has read what is sent of a vbucket."""
        read = self.read.get(connection)
        return read[vbucket % len(read)] if read else 0

    def takes_from_others(self, run: Run, projector: int, vbuckets: set[int]) -> set[int]:
        """Return those of `vbuckets` of which it ignores what `projector` sends by `run`.

        It takes them under a higher number, or from another projector under the same one.
        """
        return {
            vbucket
            for (number, other), bits in self.taken.items()
            if number > run.number or (number == run.number and other != projector)
            for vbucket in vbuckets
            if _has_bit(bits, vbucket)
        }


def _has_bit(bits: bytes, vbucket: int) -> bool:
    byte, bit = divmod(vbucket, 8)
    return byte < len(bits) and bool(bits[byte] >> bit & 1)


@dataclass(slots=True)
class _Patience:
    """Since when a bucket's connections bring nothing."""

    failures: int = 0
    until_ms: int = 0

    def failed(self, now_ms: int) -> None:
        self.until_ms = now_ms + min(PAUSE_MS << min(self.failures, 10), PAUSE_MS_MAX)
        self.failures += 1


@dataclass(slots=True)
class _Ignorance:
    """Since when indexers ignore what is sent of a bucket under a number, and the how many-th."""

    number: int
    since_ms: int
    times: int = 0


class StreamPlanner:
    """What a projector knows, and what it has running.

    Large because what to open and to close follows from everything that is known at once: the
    state, what runs, and what indexers say.
    """

    def __init__(
        self,
        projector: int,
        incarnation: int,
        new_connection: Callable[[], int],
        why_not: Callable[[Index], str],
        listening_since_ms: int = 0,
    ) -> None:
        """`why_not` tells why an index cannot be evaluated, or nothing."""
        self.projector = projector
        self.incarnation = incarnation
        self.complete = False
        self.indexes: dict[int, Index] = {}
        self.buckets: dict[str, Bucket] = {}
        self.streams: dict[str, Stream] = {}
        self.rollbacks: dict[str, Rollback] = {}
        self.kv: Mapping[str, SourceBucket] | None = None
        self.topics: Mapping[str, SourceBucket] = {}
        self.maintenance: dict[str, list[Run]] = {}
        """By bucket, in the order of their numbers; nothing where there are none."""
        self.passes: dict[str, Run] = {}
        self.catchups: list[Run] = []
        self._new_connection = new_connection
        self._why_not = why_not
        self.listening_since_ms = listening_since_ms
        self._unseen: set[str] = set()
        self._used: dict[str, int] = {}
        self._heard: dict[tuple[str, int], Host] = {}
        self._heard_ms: dict[tuple[str, int], int] = {}
        self._backfills: dict[Build, _Backfill] = {}
        self._looked_ms: dict[str, int] = {}
        self._patience: dict[str, _Patience] = {}
        self._ignorance: dict[str, _Ignorance] = {}
        self._requests: list[CatchUpRequested] = []
        self._caught_up: dict[str, set[int]] = {}
        """Vbuckets of which a catch-up has ended, and indexers do not know yet where they are."""

    # -- what is heard -----------------------------------------------------------------------

    def observe(self, key: str, entity: Entity | None) -> None:
        """Note the latest state of an entity, None if it is gone."""
        self._unseen.discard(key)
        kind, _, name = key.partition("/")
        if kind == "index":
            self._note_index(int(name), entity if isinstance(entity, Index) else None)
        elif kind == "bucket":
            _put(self.buckets, name, entity if isinstance(entity, Bucket) else None)
        elif kind == "stream":
            _put(self.streams, name, entity if isinstance(entity, Stream) else None)
        elif kind == "rollback":
            _put(self.rollbacks, name, entity if isinstance(entity, Rollback) else None)

    def _note_index(self, index_id: int, index: Index | None) -> None:
        _put(self.indexes, index_id, index)
        for build in [b for b in self._backfills if b[0] == index_id]:
            if index is None or index.state not in STREAMED or index.build != build[1]:
                del self._backfills[build]

    def read_again(self) -> None:
        """Note that the log is read from its start: what was dropped may not be in it any more."""
        self.complete = False
        self._unseen = {
            *(index.key for index in self.indexes.values()),
            *(bucket.key for bucket in self.buckets.values()),
            *(stream.key for stream in self.streams.values()),
            *(rollback.key for rollback in self.rollbacks.values()),
        }

    def caught_up(self) -> None:
        """Note that the log was read to its end: what it did not name is gone."""
        self.complete = True
        for key in tuple(self._unseen):
            self.observe(key, None)

    def see(self, kv: Mapping[str, SourceBucket] | None) -> None:
        """Note what the key-value store has; None: it is out of reach."""
        self.kv = kv
        if kv is not None:
            self._note_departed(kv, of_topics=False)

    def see_topics(self, topics: Mapping[str, SourceBucket]) -> None:
        """Note the buckets whose topics are there."""
        self.topics = topics
        self._note_departed(topics, of_topics=True)

    def _note_departed(self, found: Mapping[str, SourceBucket], *, of_topics: bool) -> None:
        for name, runs in self.maintenance.items():
            if self.is_of_topic(name) == of_topics:
                owned = found[name].owned if name in found else frozenset()
                for run in runs:
                    run.departed.update(v for v in run.vbuckets if v not in owned)

    def is_of_topic(self, bucket: str) -> bool:
        """Tell whether the documents of a bucket are in a Kafka topic."""
        entity = self.buckets.get(bucket)
        return entity is not None and bool(entity.topic)

    def note_heartbeat(self, record: HwHeartbeat, now_ms: int = 0) -> None:
        """Note what an indexer has."""
        self._heard_ms[record.bucket, record.indexer] = now_ms
        done = {(b.index_id, b.build): b.done for b in record.builds}
        read = {(r.projector, r.connection): r.ordinals for r in record.read}
        taken = {(t.number, t.projector): t.vbuckets for t in record.taken}
        filled = frozenset((b.index_id, b.build) for b in record.builds if b.transfers)
        self._heard[record.bucket, record.indexer] = Host(done, read, taken, filled)

    def request(self, record: CatchUpRequested) -> None:
        """Note that an indexer wants something again."""
        self._requests.append(record)

    def closed(self, run: Run, now_ms: int) -> None:
        """Note that a connection is gone by itself, and how long to wait before the next one."""
        patience = self._patience.setdefault(run.bucket, _Patience())
        if run.vbuuids or run.refused:
            patience.failures = 0
        else:
            patience.failed(now_ms)
        self._take_out(run, now_ms)

    def _take_out(self, run: Run, now_ms: int) -> None:
        runs = self.maintenance.get(run.bucket, [])
        if run in runs:
            runs.remove(run)
            if not runs:
                del self.maintenance[run.bucket]
        if self.passes.get(run.bucket) is run:
            del self.passes[run.bucket]
        if run in self.catchups:
            self.catchups.remove(run)
            self._caught_up.setdefault(run.bucket, set()).update(run.done)
        self._count(run, now_ms)

    # -- what follows ------------------------------------------------------------------------

    def plan(self, now_ms: int) -> list[Action]:
        """Return what to do, and take it for done."""
        if not self.complete:
            return []
        actions: list[Action] = []
        if any(rollback.stops_streams for rollback in self.rollbacks.values()):
            return self._stop_all(now_ms)
        for bucket in self.names():
            streamed = self.streamed(bucket)
            actions += self._keep_up(bucket, streamed, now_ms)
            actions += self._backfill(bucket, streamed, now_ms)
        actions += self._catch_up(now_ms)
        return actions

    def _stop_all(self, now_ms: int) -> list[Action]:
        """Close everything: where it begins again depends on a rollback."""
        self._requests.clear()
        return [self._close(run, "a bucket rolls back", now_ms) for run in self._all()]

    def _all(self) -> list[Run]:
        """Return all connections that there are."""
        maintaining = chain.from_iterable(self.maintenance.values())
        return [*maintaining, *self.passes.values(), *self.catchups]

    def names(self) -> list[str]:
        """Return the buckets that have to do with any index, or with anything that runs."""
        runs = self._all()
        return sorted({i.bucket for i in self.indexes.values()} | {run.bucket for run in runs})

    def streamed(self, bucket: str) -> dict[int, Index]:
        """Return the indexes of a bucket whose items are to be sent, and can be."""
        return {
            index.id: index
            for index in sorted(self.indexes.values(), key=lambda index: index.id)
            if index.bucket == bucket and index.state in STREAMED and not self._why_not(index)
        }

    def _source(self, bucket: str) -> Source | None:
        """Return the entry of this life in the bucket's stream."""
        stream = self.streams.get(bucket)
        for source in stream.sources if stream else ():
            if (source.projector, source.incarnation) == (self.projector, self.incarnation):
                return source
        return None

    def _fitting(self, bucket: str) -> SourceBucket | None:
        """Return a bucket that is there, and as the state says."""
        return None if self._mismatch(bucket) else self._found(bucket)

    def _found(self, bucket: str) -> SourceBucket | None:
        """Return a bucket as its source has it."""
        if self.is_of_topic(bucket):
            return self.topics.get(bucket)
        return self.kv.get(bucket) if self.kv else None

    def _may(self, bucket: str, now_ms: int) -> bool:
        """Tell whether enough time has passed since a connection brought nothing."""
        patience = self._patience.get(bucket)
        return patience is None or now_ms >= patience.until_ms

    # -- maintenance -------------------------------------------------------------------------

    def _keep_up(self, bucket: str, streamed: dict[int, Index], now_ms: int) -> list[Action]:
        runs = list(self.maintenance.get(bucket, ()))
        if not streamed:
            return [self._close(run, "no index", now_ms) for run in runs]
        entity = self.buckets.get(bucket)
        if (
            entity is not None
            and not entity.topic
            and self.kv is not None
            and bucket not in self.kv
        ):
            return [MakeBucket(bucket, entity.vbuckets)]
        here, source, stream = self._fitting(bucket), self._source(bucket), self.streams.get(bucket)
        actions: list[Action] = []
        if here is not None and source is not None and stream is not None and here.owned:
            is_newest = source.number == stream.number > self._used.get(bucket, 0)
            if is_newest and self._may(bucket, now_ms):
                actions = self._begin(stream, source, here, streamed, now_ms)
        for run in self.maintenance.get(bucket, ()):
            actions += self._recarry(run, streamed)
        return actions

    def _begin(
        self,
        stream: Stream,
        source: Source,
        here: SourceBucket,
        streamed: dict[int, Index],
        now_ms: int,
    ) -> list[Action]:
        """Begin, under a new number, the streams that were lost; end them where they were."""
        bucket = stream.bucket
        lost = self._to_begin(bucket, source, here, now_ms)
        self._used[bucket] = stream.number
        if not lost:
            return []
        runs = list(self.maintenance.get(bucket, ()))
        kept = sorted(runs, key=lambda run: len(run.open() - lost))[1 - CONNECTIONS_MAX :]
        for run in runs:
            if run not in kept or not run.open() - lost:
                # What the store refuses goes along: only who was refused knows of it.
                lost |= (run.open() | run.refused_lately()) & here.owned
        actions: list[Action] = []
        for run in runs:
            given = lost & run.unfinished()
            if not run.open() - lost:
                actions.append(self._close(run, "replaced", now_ms))
            elif given:
                run.given_up |= given
                actions.append(GiveUp(run, frozenset(given)))
        return [*actions, self._open_maintenance(stream, tuple(sorted(lost)), streamed, now_ms)]

    def _to_begin(self, bucket: str, source: Source, here: SourceBucket, now_ms: int) -> set[int]:
        """Return the vbuckets whose streams begin under a new number, of those that are owned."""
        used = self._used.get(bucket, 0)
        if not 0 < source.began <= used:
            return set(here.owned)
        named = zip(source.restarted, source.under, strict=True)
        return self.lacking(bucket, here, now_ms) | {
            vbucket for vbucket, number in named if number > used and vbucket in here.owned
        }

    def _open_maintenance(
        self, stream: Stream, vbuckets: tuple[int, ...], streamed: dict[int, Index], now_ms: int
    ) -> Open:
        starts: dict[int, tuple[int, int]] | None = None
        if stream.seqnos:
            vector = Vector.from_bytes(stream.vbuuids, stream.seqnos)
            known = len(vector)
            starts = {
                v: (int(vector.vbuuids[v]), int(vector.seqnos[v])) if v < known else (0, 0)
                for v in vbuckets
            }
        run = Run(
            bucket=stream.bucket,
            kind=MAINTENANCE_KIND,
            connection=self._new_connection(),
            vbuckets=vbuckets,
            carried=streamed,
            opened_ms=now_ms,
            number=stream.number,
            starts=starts,
        )
        self.maintenance.setdefault(stream.bucket, []).append(run)
        return Open(run)

    def _recarry(self, run: Run, streamed: dict[int, Index]) -> list[Action]:
        """Let a connection carry what is streamed now."""
        before = run.carried
        run.carried = streamed
        attached = tuple(
            index.id
            for index in streamed.values()
            if index.id not in before or _route_of(before[index.id]) != _route_of(index)
        )
        if not attached and before.keys() == streamed.keys():
            return []
        return [Carry(run, attached)]

    def _close(self, run: Run, reason: str, now_ms: int) -> Close:
        """Take a connection out that is not wanted any more."""
        self._take_out(run, now_ms)
        return Close(run, reason)

    def lacking(self, bucket: str, there: SourceBucket, now_ms: int) -> set[int]:
        """Return the vbuckets that are owned and not streamed, nor about to be."""
        lacking = set(there.owned)
        ignored: dict[int, int] = {}
        for run in self.maintenance.get(bucket, ()):
            here = run.begun()
            if now_ms - run.heard_ms < BEGIN_TIMEOUT_MS:
                # Of those that were refused, too: who holds what was lost goes back first.
                here |= run.open() | run.refused_lately()
            lacking -= here
            ignored |= dict.fromkeys(self._taken_from(run, here & there.owned), run.number)
        if self._is_ignored_for_long(bucket, max(ignored.values(), default=0), now_ms):
            lacking |= ignored.keys()
        return lacking

    def _taken_from(self, run: Run, vbuckets: set[int]) -> set[int]:
        """Return those of the vbuckets that are streamed by `run` which an indexer takes from
        another.

        The other had them under a higher number, and lost them before this one, which read the
        state late, opened its connection. Or both have the same number, and what the other sent
        first came last.
        """
        found: set[int] = set()
        for (bucket, _), host in self._heard.items():
            if bucket == run.bucket:
                found |= host.takes_from_others(run, self.projector, vbuckets)
        return found

    def _is_ignored_for_long(self, bucket: str, number: int, now_ms: int) -> bool:
        """Tell whether what is sent of a bucket has long been ignored: under this number last, 0:
        nothing is.

        The store may tell late, too, that vbuckets are another's now.
        """
        if not number:
            self._ignorance.pop(bucket, None)
            return False
        known = self._ignorance.setdefault(bucket, _Ignorance(number, now_ms))
        if known.number != number:
            # A new number was of no use: whoever says so may say it of every number.
            known.number, known.since_ms = number, now_ms
            known.times += 1
        return now_ms - known.since_ms >= min(IGNORED_MS << min(known.times, 10), IGNORED_MS_MAX)

    def waiting(self, now_ms: int) -> tuple[StreamAwaited, ...]:
        """Return the buckets that need a new generation of streams here."""
        found: list[StreamAwaited] = []
        for bucket in self.names() if self.complete else ():
            there, source = self._fitting(bucket), self._source(bucket)
            number = source.number if source else 0
            if there is None or not self._may(bucket, now_ms) or not self.streamed(bucket):
                continue
            if self.lacking(bucket, there, now_ms) or self._has_missed(bucket, there, now_ms):
                found.append(StreamAwaited(bucket, number))
        return tuple(found)

    def _has_missed(self, bucket: str, there: SourceBucket, now_ms: int) -> bool:
        """Tell whether streams were to begin under a number that another was given after."""
        source, stream = self._source(bucket), self.streams.get(bucket)
        if source is None or stream is None or source.number == stream.number:
            return False
        is_unused = source.number > self._used.get(bucket, 0)
        return is_unused and bool(self._to_begin(bucket, source, there, now_ms))

    # -- answers -----------------------------------------------------------------------------

    def routed(self) -> list[tuple[Index, str]]:
        """Return the pending indexes that are routed here, or cannot be for the reason with it."""
        if not self.complete:
            return []
        pending = [i for i in self.indexes.values() if i.state == PENDING]
        found: list[tuple[Index, str]] = []
        for index in sorted(pending, key=lambda index: index.id):
            reason = self._why_not(index)
            if not reason and not self._may_be_adopted(index.bucket):
                reason = self._mismatch(index.bucket)
            if reason or self._is_carried(index):
                found.append((index, reason))
        return found

    def _mismatch(self, bucket: str) -> str:
        entity, found = self.buckets.get(bucket), self._found(bucket)
        return mismatch(entity, found.vbuckets) if entity is not None and found is not None else ""

    def _may_be_adopted(self, bucket: str) -> bool:
        """Tell whether the master takes the store's number of vbuckets, or has taken it already:
        it does until something was streamed."""
        entity = self.buckets.get(bucket)
        return entity is not None and not entity.topic and bucket not in self.streams

    def _is_carried(self, index: Index) -> bool:
        there = self._fitting(index.bucket)
        if there is None:
            return False
        begun: set[int] = set()
        for run in self.maintenance.get(index.bucket, ()):
            carried = run.carried.get(index.id)
            if carried is None or carried.build != index.build:
                return False
            begun |= run.begun()
        return there.owned <= begun

    def seen(self) -> tuple[BucketSeen, ...]:
        """Return the buckets of the key-value store."""
        return tuple(BucketSeen(name, b.vbuckets) for name, b in sorted((self.kv or {}).items()))

    # -- backfills ---------------------------------------------------------------------------

    def _backfill(self, bucket: str, streamed: dict[int, Index], now_ms: int) -> list[Action]:
        """Go on with the pass that runs, or begin one for all that is owed."""
        run = self.passes.get(bucket)
        if run is not None:
            return self._tend_pass(run, now_ms)
        sources = self.maintenance.get(bucket, ())
        if not sources or not self._may(bucket, now_ms):
            return []
        if any(not s.is_settled() and now_ms - s.heard_ms < BEGIN_TIMEOUT_MS for s in sources):
            return []
        actions = self._look(bucket, streamed, now_ms)
        for source in sources:
            opened = self._pass(source, streamed, now_ms)
            if opened is not None:
                return [*actions, opened]
        return actions

    def _pass(self, source: Run, streamed: dict[int, Index], now_ms: int) -> Open | None:
        """Begin a pass over the vbuckets of one connection of which anything is owed."""
        builds = [i for i in streamed.values() if self._is_wanted(i) and i.id in source.carried]
        if not builds or not self._has_listened(builds, now_ms):
            return None
        owed = {index.id: self._owed(index, source, now_ms) for index in builds}
        vbuckets = tuple(sorted(set().union(*owed.values())))
        if not vbuckets:
            return None
        carried = {index.id: index for index in builds if owed[index.id]}
        shares = {v: frozenset(i for i in carried if v in owed[i]) for v in vbuckets}
        run = Run(
            bucket=source.bucket,
            kind=BACKFILL_KIND,
            connection=self._new_connection(),
            vbuckets=vbuckets,
            carried=carried,
            opened_ms=now_ms,
            number=source.number,
            starts={v: (source.vbuuids[v], 0) for v in vbuckets},
            until={v: source.positions[v] for v in vbuckets},
            until_on={v: source.vbuuids[v] for v in vbuckets},
            shares={v: share for v, share in shares.items() if len(share) < len(carried)},
        )
        for index in carried.values():
            progress = self._backfills.setdefault((index.id, index.build), _Backfill())
            others = (s for s in self.maintenance[source.bucket] if s is not source)
            later = sum(s.positions[v] for s in others for v in self._owed(index, s, now_ms))
            progress.total = progress.sent + sum(run.until[v] for v in owed[index.id]) + later
        self.passes[source.bucket] = run
        return Open(run)

    def _is_wanted(self, index: Index) -> bool:
        """Tell whether there may be something to backfill for an index."""
        known = self._backfills.get((index.id, index.build))
        return index.state == BACKFILL or (
            index.state == MAINTENANCE and known is not None and bool(known.again)
        )

    def _look(self, bucket: str, streamed: dict[int, Index], now_ms: int) -> list[Action]:
        """Look whether hosts lack what was sent; have attached again what is to be sent again.

        No pass runs, so all that passes have sent was handed over before the next record of
        maintenance.
        """
        if now_ms < self._looked_ms.get(bucket, 0) + LOOK_MS:
            return []
        self._looked_ms[bucket] = now_ms
        there = self._fitting(bucket)
        count = there.vbuckets if there is not None else 0
        whole = ((1 << count) - 1).to_bytes(-(-count // 8), "little")
        missed: dict[int, set[int]] = {}
        for index in streamed.values():
            hosts = self._incomplete(index, whole)
            known = self._backfills.get((index.id, index.build))
            if hosts:
                known = self._backfills.setdefault((index.id, index.build), _Backfill())
                missed[index.id] = self._missed(index, known, hosts, now_ms)
            elif known is not None:
                known.after.clear()
                known.again.clear()
                known.repeats = 0
        builds = ((index_id, streamed[index_id].build) for index_id in missed)
        lacks = chain.from_iterable(self._backfills[build].after.values() for build in builds)
        waited_for = {number for number, _ in lacks}
        actions: list[Action] = []
        for source in self.maintenance[bucket]:
            begun = source.begun()
            again = {index_id: vbuckets & begun for index_id, vbuckets in missed.items()}
            attached = tuple(index_id for index_id, vbuckets in again.items() if vbuckets)
            if attached:
                actions.append(Carry(source, attached, frozenset().union(*again.values())))
            if source.number in waited_for:
                actions.append(Probe(source))
        return actions

    def _incomplete(self, index: Index, whole: bytes) -> list[Host]:
        """Return the hosts that have said what they have, and that it is not all of a build."""
        if index.state not in (BACKFILL, MAINTENANCE):
            return []
        build = (index.id, index.build)
        heard = (self._heard.get((index.bucket, host)) for host in index.hosts)
        return [host for host in heard if host is not None and host.done.get(build) != whole]

    def _missed(
        self, index: Index, known: _Backfill, hosts: Iterable[Host], now_ms: int
    ) -> set[int]:
        """Return the vbuckets that hosts lack though they have read all; they are owed again."""
        missed: dict[int, int] = {}
        for source in self.maintenance[index.bucket]:
            carried = source.carried.get(index.id)
            if carried is not None and carried.build == index.build:
                found = self._missed_of(index, known, source, hosts)
                missed |= dict.fromkeys(found, source.number)
        if not missed or now_ms < known.again_ms:
            return set()
        known.again |= missed
        known.again_ms = now_ms + min(AGAIN_MS << min(known.repeats, 10), AGAIN_MS_MAX)
        known.repeats += 1
        for vbucket in missed:
            del known.after[vbucket]
            known.sent_under.pop(vbucket, None)
        return set(missed)

    def _missed_of(
        self, index: Index, known: _Backfill, source: Run, hosts: Iterable[Host]
    ) -> set[int]:
        """Return those of them that one connection brings."""
        build, connection = (index.id, index.build), (self.projector, source.connection)
        missed: set[int] = set()
        for vbucket in source.begun():
            if known.again.get(vbucket) == source.number:
                continue
            known.again.pop(vbucket, None)
            is_sent = known.sent_under.get(vbucket) == source.number or index.state == MAINTENANCE
            lack = [host for host in hosts if is_sent and not host.has(build, vbucket)]
            if not lack:
                known.after.pop(vbucket, None)
                continue
            number, after = known.after.get(vbucket, (0, 0))
            if number != source.number:
                after = source.ordinal
                known.after[vbucket] = source.number, after
            if any(host.has_read(connection, vbucket) > after for host in lack):
                missed.add(vbucket)
        return missed

    def _has_listened(self, builds: Iterable[Index], now_ms: int) -> bool:
        """Tell whether the hosts have said what they have, or had the time for it."""
        if now_ms - self.listening_since_ms >= LISTEN_MS:
            return True
        return all((i.bucket, host) in self._heard for i in builds for host in i.hosts)

    def _owed(self, index: Index, source: Run, now_ms: int) -> set[int]:
        """Return the vbuckets that are still to be sent for a build."""
        known = self._backfills.setdefault((index.id, index.build), _Backfill())
        begun = source.begun()
        if index.state == MAINTENANCE:
            return {v for v in begun if known.again.get(v) == source.number}
        if not self._is_left_to_projectors(index):
            return set()
        if now_ms < known.sent_ms + LISTEN_MS:
            begun -= known.sent_under.keys()
        return {
            v
            for v in begun
            if known.sent_under.get(v) != source.number and not self._is_done(index, v)
        }

    def _is_left_to_projectors(self, index: Index) -> bool:
        """Tell whether nobody else fills an index: of a part with origins its hosts must say so."""
        if not index.origins:
            return True
        build = (index.id, index.build)
        heard = [self._heard.get((index.bucket, host)) for host in index.hosts]
        return all(
            host is not None and build in host.done and build not in host.filled for host in heard
        )

    def _is_done(self, index: Index, vbucket: int) -> bool:
        """Tell whether all hosts of an index have said that they have this vbucket."""
        heard = (self._heard.get((index.bucket, host)) for host in index.hosts)
        build = (index.id, index.build)
        return all(host is not None and host.has(build, vbucket) for host in heard)

    def _tend_pass(self, run: Run, now_ms: int) -> list[Action]:
        """Let a pass carry what is still wanted of it; end one that could be misunderstood."""
        self._count(run, now_ms)
        wanted: dict[int, Index] = {}
        for index_id, begun in run.carried.items():
            index = self.indexes.get(index_id)
            if index is not None and self._is_wanted(index) and index.build == begun.build:
                wanted[index_id] = index
        if any(self._is_begun_anew(build) for build in run.builds):
            return [self._close(run, "a build was begun anew", now_ms)]
        if self._has_branched(run):
            return [self._close(run, "a vbucket has another branch", now_ms)]
        if not wanted:
            return [self._close(run, "no index", now_ms)]
        if wanted.keys() == run.carried.keys():
            return []
        run.carried = wanted
        return [Carry(run)]

    def _has_branched(self, run: Run) -> bool:
        """Tell whether a vbucket may never get to where it is to end, or may never begin.

        That was on a branch which maintenance is not on any more: the vbucket may have lost it.
        """
        branches: dict[int, int] = {}
        for source in self.maintenance.get(run.bucket, ()):
            branches |= source.vbuuids
        return any(branches.get(v, run.until_on[v]) != run.until_on[v] for v in run.unfinished())

    def _is_begun_anew(self, build: Build) -> bool:
        """Tell whether an index may take the END of another build's pass for its own."""
        index = self.indexes.get(build[0])
        if index is None or index.state == DROPPING:
            return False
        return index.build != build[1] or index.state not in (BACKFILL, MAINTENANCE)

    def _count(self, run: Run, now_ms: int) -> None:
        """Take over what a pass has finished."""
        while run.kind == BACKFILL_KIND and run.done:
            vbucket = run.done.pop()
            share = run.shares.get(vbucket)
            for build in run.builds:
                backfill = self._backfills.get(build)
                if backfill is not None and (share is None or build[0] in share):
                    backfill.again.pop(vbucket, None)
                    backfill.sent_under[vbucket] = run.number
                    backfill.sent_ms = now_ms
                    backfill.sent += run.until[vbucket]

    def carrier(self, run: Run) -> Run | None:
        """Return the maintenance behind which what a pass or a catch-up sends is read."""
        sources = self.maintenance.get(run.bucket, ())
        same = (source for source in sources if source.number == run.number)
        return next(same, sources[-1] if sources else None)

    def read_by_hosts(self, run: Run, now_ms: int) -> int | None:
        """Return up to which ordinal of maintenance all hosts of a connection have read, wherever
        they read least; None: nobody is heard who has anything to read."""
        source = self.carrier(run)
        if source is None:
            return None
        connection = (self.projector, source.connection)
        hosts = frozenset().union(*(index.hosts for index in run.carried.values()))
        if run.indexer is not None:
            hosts &= {run.indexer}
        found: list[int] = []
        for host in hosts:
            heard = self._heard.get((run.bucket, host))
            if heard is not None and now_ms - self._heard_ms[run.bucket, host] < SILENT_MS:
                found.append(min(heard.read.get(connection, ()), default=0))
        return min(found, default=None)

    def keeps_others_waiting(self, run: Run) -> bool:
        """Tell whether an index that is no part waits until this backfill is over."""
        return any(
            index.bucket == run.bucket
            and index.state == BACKFILL
            and not index.part_of
            and index.id not in run.carried
            for index in self.indexes.values()
        )

    def progress(self) -> tuple[BackfillProgress, ...]:
        """Return how far backfills have got, in seqnos."""
        found: list[BackfillProgress] = []
        for (index_id, build), backfill in sorted(self._backfills.items()):
            index = self.indexes.get(index_id)
            if index is None or index.state != BACKFILL or index.build != build:
                continue
            if not self._is_left_to_projectors(index):
                continue
            run = self.passes.get(index.bucket)
            here = 0
            if run is not None and index_id in run.carried:
                here = sum(
                    min(seqno, run.until[v])
                    for v, seqno in run.positions.items()
                    if index_id in run.shares.get(v, run.carried)
                )
            sent = backfill.sent + here
            found.append(BackfillProgress(index_id, build, sent, max(sent, backfill.total)))
        return tuple(found)

    # -- catching up -------------------------------------------------------------------------

    def _catch_up(self, now_ms: int) -> list[Action]:
        """Begin what indexers have asked for and does not run; end what nobody needs."""
        actions: list[Action] = []
        for run in tuple(self.catchups):
            streamed = self.streamed(run.bucket)
            wanted = {i: streamed[i] for i in run.carried if i in streamed}
            if not wanted:
                actions.append(self._close(run, "no index", now_ms))
            elif self._has_branched(run):
                actions.append(self._close(run, "a vbucket has another branch", now_ms))
            elif wanted.keys() != run.carried.keys():
                run.carried = wanted
                actions.append(Carry(run))
        # What has come since a catch-up was asked for is perhaps lost, and nothing follows it.
        caught_up, self._caught_up = self._caught_up, {}
        for bucket, vbuckets in caught_up.items():
            for source in self.maintenance.get(bucket, ()):
                if here := vbuckets & source.begun():
                    actions.append(Probe(source, frozenset(here)))
        requests, self._requests = self._requests, []
        for request in requests:
            for source in self.maintenance.get(request.bucket, ()):
                run_wanted = self._catchup_run(source, request, now_ms)
                if run_wanted is not None:
                    self.catchups.append(run_wanted)
                    actions.append(Open(run_wanted))
        return actions

    def _catchup_run(self, source: Run, request: CatchUpRequested, now_ms: int) -> Run | None:
        """Return what brings an indexer what it asks for, of what `source` brings."""
        size = 8 * len(request.vbuckets)
        if not len(request.seqnos) == len(request.vbuuids) == size:
            return None
        running = {
            vbucket
            for run in self.catchups
            if (run.bucket, run.indexer) == (request.bucket, request.indexer)
            for vbucket in run.vbuckets
            if vbucket not in run.ended and vbucket not in run.refused
        }
        carried = {i.id: i for i in source.carried.values() if request.indexer in i.hosts}
        begun = source.begun() - running
        starts = {
            vbucket: (int(vbuuid), int(seqno))
            for vbucket, vbuuid, seqno in _places(request)
            if vbucket in begun and int(seqno) <= source.positions[vbucket]
        }
        if not starts or not carried:
            return None
        return Run(
            bucket=request.bucket,
            kind=CATCHUP,
            connection=self._new_connection(),
            vbuckets=tuple(sorted(starts)),
            carried=carried,
            opened_ms=now_ms,
            number=source.number,
            starts=starts,
            until={v: source.positions[v] for v in starts},
            until_on={v: source.vbuuids[v] for v in starts},
            indexer=request.indexer,
        )


def _put(table: dict[Any, Any], key: object, value: object | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _route_of(index: Index) -> tuple[object, ...]:
    """Return what an index's ATTACH depends on: the build, and where its keys live."""
    return index.build, [set(piece.hosts) for piece in index.slices], index.bounds_json


def _places(request: CatchUpRequested) -> list[tuple[int, int, int]]:
    vector = Vector.from_bytes(request.vbuuids, request.seqnos)
    return list(zip(request.vbuckets, vector.vbuuids.tolist(), vector.seqnos.tolist(), strict=True))
