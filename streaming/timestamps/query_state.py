"""What the application knows between two micro-batches, and what a micro-batch makes of it.

Pure: no Spark, Kafka or clock. `fold_batch` is the whole of it. The same batches always give the
same records, so a batch whose transaction failed is simply computed again. Everything that is
known is also on Kafka: `QueryState` is what can be read back.

A record that cannot be used becomes a dead letter, and the rest goes on. One of a bucket that is
not known yet waits: topics have no common order, so it may be read before the bucket is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from coordinator import codec
from coordinator.core.model.entities import Bucket, Setting, Stream, bucket_key, setting_key
from coordinator.core.model.names import is_name
from coordinator.core.model.records import DeadLetter, Event
from coordinator.core.model.stream_records import (
    ConnectionClosed,
    ConsolidatedStability,
    FailoverLog,
    HwHeartbeat,
    PromotionRequested,
    RestartRequested,
    StabilityTimestamp,
    StreamBegin,
    StreamEnd,
    Sync,
    SyncVector,
    Tick,
)
from coordinator.core.model.types import Offset
from coordinator.core.timestamps.bucket_state import BucketState
from coordinator.core.timestamps.progress import (
    NextOffset,
    TimestampContext,
    TimestampProgress,
    TimestampWaiting,
)
from coordinator.core.timestamps.settings import (
    PREFIX,
    TimestampSettings,
    is_setting,
    merged,
    parse,
    setting_name,
)
from coordinator.core.timestamps.shards import WHOLE, BucketShard, shard_of
from coordinator.kafka.producers import bounded, dead_letter_key
from coordinator.kafka.topics import (
    DEAD_LETTER,
    FAILOVER_LOG,
    HW,
    RESTART,
    RESTART_REQUEST,
    STABILITY,
    STABILITY_HISTORY,
    STATECONTEXT,
    STREAM_BEGIN,
    STREAM_END,
    TICK,
    TIMESTAMP_STATE,
    topic_name,
)
from coordinator.kafka.topics import SYNC as SYNC_TOPIC
from schemas.registry import SchemaError
from streaming.stability.fold import Batch, Control, Output, fold
from streaming.stability.positions import sound
from streaming.stability.quiet import ALWAYS, quiet_until
from streaming.timestamps import clock
from streaming.timestamps.bucket_states import as_record
from streaming.timestamps.clock import Clock
from streaming.timestamps.inputs import COMPACTED, INPUTS, QUIET
from streaming.timestamps.outputs import Outputs
from streaming.timestamps.rows import ANY_VBUCKETS, RawRow, Rows, Span, SyncRows

EVERY_BUCKET = "*"
"""The key of a message about several buckets; of those that follow it, with a number behind."""


class OwnKeys(NamedTuple):
    """The keys of what is no bucket on `timestamp-state`; names of buckets have no `*`."""

    progress: str
    context: str
    waiting: str


def keys_of(shard: BucketShard) -> OwnKeys:
    """Return the keys of a shard's records."""
    own = f"{EVERY_BUCKET}@{shard.name}" if shard.name else EVERY_BUCKET
    return OwnKeys(own, f"{own}/context", f"{own}/waiting")


def shard_of_progress(key: str) -> BucketShard | None:
    """Return whose progress is kept under a key; None if that is something else."""
    if key == EVERY_BUCKET:
        return WHOLE
    if not key.startswith(f"{EVERY_BUCKET}@"):
        return None
    try:
        return shard_of(key.removeprefix(f"{EVERY_BUCKET}@"))
    except ValueError:
        return None


TOGETHER_BYTES_MAX = 1_000_000
TIMESTAMP_OVERHEAD_BYTES = 1_000
"""What a timestamp weighs besides its vectors: above all the name of its bucket."""

WAITING_MS = 60_000
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 1024 * 1024
"""Of records of unknown buckets: what is older or more is a dead letter."""

BELONGS: Mapping[str, tuple[type, ...]] = {
    SYNC_TOPIC: (Sync, SyncVector),
    STREAM_BEGIN: (StreamBegin,),
    STREAM_END: (StreamEnd, ConnectionClosed),
    HW: (HwHeartbeat,),
    FAILOVER_LOG: (FailoverLog,),
    RESTART_REQUEST: (RestartRequested, PromotionRequested),
    TICK: (Tick,),
    STATECONTEXT: (Event,),
}

VBUCKETS_MAX = 1 << 16
"""The numbers that a vbucket can have."""

NO_SYNC = "no numbers of a SYNC of this bucket"

NOTHING_READ = TimestampProgress(0, ())
NOTHING_KNOWN = TimestampContext(Offset(0), (), ())


class Record(NamedTuple):
    """A record to write: short name of the topic, key, value; None is a tombstone."""

    topic: str
    key: str
    value: Any


class Quiet(NamedTuple):
    """Until when a tick alone changes nothing in a bucket's state, under these settings."""

    state: BucketState
    settings: TimestampSettings
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    """All that is known. `published` is each bucket's last stability timestamp; `restarts` has a
    number that its last restart timestamp or enquiry had at least, for where its state is lost.
    `quiet` is not kept on Kafka: it follows from the states."""

    cluster: str = field(kw_only=False)
    shard: BucketShard = WHOLE
    progress: TimestampProgress = NOTHING_READ
    context: TimestampContext = NOTHING_KNOWN
    waiting: tuple[DeadLetter, ...] = ()
    states: Mapping[str, BucketState] = field(default_factory=dict)
    published: Mapping[str, StabilityTimestamp] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    quiet: Mapping[str, Quiet] = field(default_factory=dict, compare=False)
    obsolete: tuple[str, ...] = ()
    """Keys of shards among which the buckets were divided before: nobody needs them any more."""


class Place(NamedTuple):
    """Where a record stands that is read now, or was kept: full name of the topic."""

    topic: str
    partition: int
    offset: Offset
    value: bytes


class BatchResult(NamedTuple):
    """The state after a batch, and the records that belong into one transaction."""

    query_state: QueryState
    records: list[Record]
    quiet: bool = False
    """Nothing was read but what is written all the time, and nothing but the state follows."""


def fold_batch(query_state: QueryState, rows: Rows) -> BatchResult:
    """Return what a batch leads to."""
    work = _Work(query_state, rows)
    work.learn()
    work.sort()
    states, published, outputs = work.fold()
    progress = TimestampProgress(
        work.now_ms,
        _moved_on(query_state, rows.spans),
        work.clock.writer,
        work.clock.said_ms,
    )
    after = replace(
        query_state,
        progress=progress,
        context=work.context,
        waiting=tuple(work.waiting),
        states=states,
        published=published,
        quiet=work.quiet,
        obsolete=(),
    )
    records = [*outputs, *map(_dead_letter_record, work.dead_letters)]
    hurried = any(state.hurried_until_ms > work.now_ms for state in states.values())
    silent = not rows.syncs and all(INPUTS[row.place] in QUIET for row in rows.raw)
    quiet = (silent or _is_as_before(query_state, after)) and not records and not hurried
    return BatchResult(after, [*records, *_kept(query_state, after)], quiet)


def _is_as_before(before: QueryState, after: QueryState) -> bool:
    """Tell whether a batch has changed nothing but how far was read: nobody had a use for it."""
    states = before.states
    if any(states.get(name) is not state for name, state in after.states.items()):
        return False  # Most batches: what waits need not be compared.
    known = (before.context.buckets, before.context.settings, before.waiting)
    return known == (after.context.buckets, after.context.settings, after.waiting)


def next_due_ms(query_state: QueryState) -> int:
    """Return the time from which on a tick alone may change something, in milliseconds of the
    application's time; `quiet.ALWAYS`: it never does."""
    settings = {one.name: one.value_json for one in query_state.context.settings}
    found = [ALWAYS, *(letter.at_ms + WAITING_MS for letter in query_state.waiting)]
    for name, state in query_state.states.items():
        rules = merged(settings.get(PREFIX), settings.get(setting_name(name)))
        found.append(_quiet_of(query_state, state, rules).until_ms)
    return min(found)


def _quiet_of(query_state: QueryState, state: BucketState, rules: TimestampSettings) -> Quiet:
    """Return until when a bucket is quiet; it is computed if it is not known."""
    known = query_state.quiet.get(state.bucket)
    if known is None or known.state is not state or known.settings != rules:
        known = Quiet(state, rules, quiet_until(state, rules))
    return known


def is_possible(bucket: Bucket) -> bool:
    """Tell whether there can be such a bucket: state and arrays are made for it."""
    return is_name(bucket.name) and 1 <= bucket.vbuckets <= VBUCKETS_MAX


def with_buckets(query_state: QueryState, events: Iterable[Event]) -> QueryState:
    """Return the state that knows the buckets of these events of the StateContext already.

    They are read again as records of the query, with settings; but a query that has much to catch
    up with reads all topics little by little, and would meet records of a bucket long before it.
    """
    buckets = {one.name: one for one in query_state.context.buckets}
    restarts: dict[str, int] = {}
    for event in events:
        entity = event.mutation.entity
        if (
            isinstance(entity, Bucket)
            and is_possible(entity)
            and query_state.shard.owns(entity.name)
        ):
            buckets.setdefault(entity.name, entity)
        elif isinstance(entity, Stream):
            restarts[entity.bucket] = max(entity.restart, restarts.get(entity.bucket, 0))
    known = tuple(buckets[name] for name in sorted(buckets))
    context = replace(query_state.context, buckets=known)
    return seeded(replace(query_state, context=context), Outputs(restarts=restarts))


def seeded(query_state: QueryState, outputs: Outputs) -> QueryState:
    """Return the state that is not behind what was told: no number or position goes back, no time.

    That changes nothing, unless the state was lost, or its end. What was read after it is read
    again, and told again under new numbers.
    """
    progress = query_state.progress
    if outputs.at_ms > progress.now_ms:
        # Of whom this time is, is not known: whoever ticks next is another writer.
        now_ms = min(outputs.at_ms, clock.TICK_MS_MAX)
        progress = replace(progress, now_ms=now_ms, writer=0, said_ms=0)
    owns = query_state.shard.owns
    told = {name: one for name, one in outputs.stability.items() if owns(name)}
    published = {**query_state.published, **told}
    restarts = dict(query_state.restarts)
    for bucket, number in outputs.restarts.items():
        restarts[bucket] = max(number, restarts.get(bucket, 0))
    states = {
        name: state.caught_up(published.get(name), restarts.get(name, 0))
        for name, state in query_state.states.items()
    }
    return replace(
        query_state, progress=progress, states=states, published=published, restarts=restarts
    )


def forgotten(query_state: QueryState, places: Iterable[tuple[str, int]]) -> QueryState:
    """Return the state for which these partitions, by full name, were never read: they are anew."""
    gone = frozenset(places)
    progress = query_state.progress
    left = tuple(one for one in progress.offsets if (one.topic, one.partition) not in gone)
    return replace(query_state, progress=replace(progress, offsets=left))


def adopted(shard: BucketShard, others: Iterable[QueryState]) -> QueryState:
    """Return what a shard begins with where the buckets were divided in another way before.

    It goes on where the slowest of the others was. What a faster one had read is read again, and
    told again under new numbers.
    """
    known = list(others)
    offsets: dict[tuple[str, int], Offset] = {}
    for one in (one for state in known for one in state.progress.offsets):
        where = one.topic, one.partition
        offsets[where] = min(one.offset, offsets.get(where, one.offset))
    buckets = {b.name: b for s in known for b in s.context.buckets if shard.owns(b.name)}
    oldest_first = sorted(known, key=lambda state: state.context.offset)
    settings = {one.name: one for state in oldest_first for one in state.context.settings}
    return QueryState(
        cluster=known[0].cluster,
        shard=shard,
        progress=TimestampProgress(
            max(state.progress.now_ms for state in known),
            tuple(NextOffset(*where, offset) for where, offset in sorted(offsets.items())),
        ),
        context=TimestampContext(
            min(state.context.offset for state in known),
            tuple(buckets[name] for name in sorted(buckets)),
            tuple(settings[name] for name in sorted(settings)),
        ),
        waiting=tuple(
            letter
            for state in known
            for letter in state.waiting
            if shard.owns(codec.decode(letter.value).bucket)
        ),
    )


class Jump(NamedTuple):
    """A partition, by full name, of which a batch does not begin where the one before it ended."""

    topic: str
    partition: int
    expected: int
    found: int


def jumps(query_state: QueryState, rows: Rows) -> list[Jump]:
    """Return where a batch does not follow on the state; not of topics that are compacted."""
    known = {(one.topic, one.partition): one.offset for one in query_state.progress.offsets}
    found = []
    for span in rows.spans:
        name = INPUTS[span.place]
        topic = topic_name(query_state.cluster, name)
        expected = known.get((topic, span.partition), span.first)
        if span.first < expected or (span.first > expected and name not in COMPACTED):
            found.append(Jump(topic, span.partition, expected, span.first))
    return found


def _moved_on(query_state: QueryState, read: Iterable[Span]) -> tuple[NextOffset, ...]:
    """Return the next offsets after these were read; none moves back."""
    known = {(one.topic, one.partition): one.offset for one in query_state.progress.offsets}
    for span in read:
        where = (topic_name(query_state.cluster, INPUTS[span.place]), span.partition)
        known[where] = Offset(max(span.next, known.get(where, 0)))
    return tuple(NextOffset(*where, offset) for where, offset in sorted(known.items()))


def _kept(before: QueryState, after: QueryState) -> list[Record]:
    """Return the records on `timestamp-state` that say how `after` differs."""
    progress = after.progress
    keys = keys_of(after.shard)
    found = []
    for bucket, state in after.states.items():
        if before.states.get(bucket) is not state:
            value = as_record(state, progress.now_ms)
            found.append(Record(TIMESTAMP_STATE, bucket, value))
    found += [
        Record(TIMESTAMP_STATE, bucket, None)
        for bucket in before.states.keys() - after.states.keys()
    ]
    found += [Record(TIMESTAMP_STATE, key, None) for key in before.obsolete]
    if after.context != before.context:
        found.append(Record(TIMESTAMP_STATE, keys.context, after.context))
    if after.waiting != before.waiting:
        found.append(Record(TIMESTAMP_STATE, keys.waiting, TimestampWaiting(after.waiting)))
    return [*found, Record(TIMESTAMP_STATE, keys.progress, progress)]


def _dead_letter_record(letter: DeadLetter) -> Record:
    return Record(DEAD_LETTER, dead_letter_key(letter).decode(), bounded(letter))


# -- one batch -------------------------------------------------------------------------------------


class _Work:
    """One batch on its way through: learn what buckets there are, sort records to them, fold."""

    def __init__(self, query_state: QueryState, rows: Rows) -> None:
        self.query_state = query_state
        self.rows = rows
        self.context = query_state.context
        progress = query_state.progress
        self.clock = Clock(progress.now_ms, progress.writer, progress.said_ms)
        self.ticked = False
        self.unwatched_ms = self.stepped_ms = 0
        self.dead_letters: list[DeadLetter] = []
        self.waiting: list[DeadLetter] = []
        self._known = frozenset(one.name for one in query_state.context.buckets)
        self._control: dict[str, list[tuple[Place, Control]]] = {}
        self._syncs: dict[str, list[SyncRows]] = {}
        self._waiting_bytes = 0
        self._waits_since_ms: dict[str, int] = {}
        self._decoded: list[tuple[Place, Any]] = []
        self.quiet = {n: q for n, q in query_state.quiet.items() if n in query_state.states}

    # -- what is learnt ----------------------------------------------------------------------

    def learn(self) -> None:
        """Read buckets, settings and ticks, which hold for the whole batch wherever they stand."""
        context = []
        # Ticks first: dead letters tell the time of their batch.
        for row in sorted(self.rows.raw, key=lambda row: INPUTS[row.place] != TICK):
            name = INPUTS[row.place]
            if name == STATECONTEXT:
                context.append(row)
                continue
            decoded = self._decode(self._place(row), name)
            if isinstance(decoded, Tick):
                self._note_tick(self._place(row), decoded)
            elif decoded is not None:
                self._decoded.append((self._place(row), decoded))
        if context:
            self._learn_context(context)

    @property
    def now_ms(self) -> int:
        """The time that the ticks have told so far."""
        return self.clock.now_ms

    def _note_tick(self, place: Place, tick: Tick) -> None:
        if tick.shard != self.query_state.shard.name:
            return  # Each shard has a clock of its own: by what it was there to read.
        if problem := clock.fault(tick):
            self._dead_letter(place, problem)
            return
        self.ticked = True
        self.clock, unwatched_ms, stepped_ms = clock.after(self.clock, tick)
        self.unwatched_ms += unwatched_ms
        self.stepped_ms += stepped_ms

    def _place(self, row: RawRow) -> Place:
        topic = topic_name(self.query_state.cluster, INPUTS[row.place])
        return Place(topic, row.partition, row.offset, row.value or b"")

    def _decode(self, place: Place, name: str) -> Any:
        """Return the record that stands at `place`; None if there is none that belongs there."""
        if not place.value and name == FAILOVER_LOG:
            return None  # A tombstone: the topic is compacted.
        try:
            record = codec.decode(place.value)
        except SchemaError as error:
            self._dead_letter_once(place, f"{error.code}: {error}")
            return None
        if not isinstance(record, BELONGS[name]):
            self._dead_letter_once(place, f"a {type(record).__name__} does not belong on {name}")
            return None
        return record

    def _owns(self, bucket: str) -> bool:
        return self.query_state.shard.owns(bucket)

    def _dead_letter(self, place: Place, reason: str) -> None:
        self.dead_letters.append(DeadLetter(*place[:3], reason, place.value, self.now_ms))

    def _dead_letter_once(self, place: Place, reason: str) -> None:
        """Every shard reads what belongs to no bucket: the first one makes a dead letter of it."""
        if self.query_state.shard.number == 1:
            self._dead_letter(place, reason)

    def _learn_context(self, found: list[RawRow]) -> None:
        buckets = {one.name: one for one in self.context.buckets}
        settings = {one.name: one for one in self.context.settings}
        seen = self.context.offset
        for row in found:
            if row.offset < seen:
                continue  # A query that began anew reads what is known already.
            seen = Offset(row.offset + 1)
            key = (row.key or b"").decode(errors="replace")
            if row.value is None:
                buckets.pop(key.removeprefix(bucket_key("")), None)
                settings.pop(key.removeprefix(setting_key("")), None)
                continue
            event = self._decode(self._place(row), STATECONTEXT)
            entity = None if event is None else event.mutation.entity
            if isinstance(entity, Bucket):
                if not is_possible(entity):
                    problem = f"a bucket of {entity.vbuckets} vbuckets, with this name"
                    self._dead_letter_once(self._place(row), problem)
                elif self._owns(entity.name):
                    buckets[entity.name] = entity
            elif isinstance(entity, Setting) and self._is_fit(self._place(row), entity):
                settings[entity.name] = entity
        self.context = TimestampContext(
            seen,
            tuple(buckets[name] for name in sorted(buckets)),
            tuple(settings[name] for name in sorted(settings)),
        )
        self._known = frozenset(buckets)

    def _is_fit(self, place: Place, setting: Setting) -> bool:
        """Tell whether a setting is one of ours that holds; if it does not, the old one does."""
        if not is_setting(setting.name):
            return False
        try:
            parse(setting.value_json)
        except ValueError as error:
            self._dead_letter_once(place, f"setting {setting.name}: {error}")
            return False
        return True

    # -- what is sorted ----------------------------------------------------------------------

    def sort(self) -> None:
        """Hand each record to its bucket: what has waited, then control records, then SYNCs."""
        if self._goes_on_waiting():
            self.waiting = list(self.query_state.waiting)
        else:
            self._hand_out_waiting()
        for place, record in self._decoded:
            if self._owns(record.bucket):
                self._assign(place, record)
        for syncs in self.rows.syncs:
            if self._owns(syncs.bucket):
                self._syncs.setdefault(syncs.bucket, []).append(syncs)
        for bucket in sorted(self._syncs.keys() - self._known):
            syncs = SyncRows.joined(bucket, self._syncs.pop(bucket)).reduced()
            for place in self._places_of(syncs):
                self._wait(place, bucket)

    def _goes_on_waiting(self) -> bool:
        """Tell whether all that waits goes on waiting, with nothing beside it: the usual case, for
        which thousands of records need not be looked at in each batch."""
        letters = self.query_state.waiting
        oldest_ms = min((letter.at_ms for letter in letters), default=0)
        if not oldest_ms or self.unwatched_ms or self.now_ms - oldest_ms > WAITING_MS:
            return False
        if self._known != {one.name for one in self.query_state.context.buckets}:
            return False
        read = {record.bucket for _, record in self._decoded}
        read |= {syncs.bucket for syncs in self.rows.syncs}
        return not any(self._owns(bucket) for bucket in read - self._known)

    def _hand_out_waiting(self) -> None:
        for letter in self.query_state.waiting:
            place = Place(letter.topic, letter.partition, letter.offset, letter.value)
            record = codec.decode(letter.value)
            if record.bucket not in self._known:
                since_ms = letter.at_ms and min(letter.at_ms + self.unwatched_ms, self.now_ms)
                self._waits_since_ms.setdefault(record.bucket, since_ms)
            self._assign(place, record)

    def _assign(self, place: Place, record: Any) -> None:
        if isinstance(record, Sync | SyncVector):
            try:
                syncs = SyncRows.of(place.partition, place.offset, record)
            except ValueError as error:
                self._dead_letter(place, str(error))
                return
            is_sound = sound(syncs.columns, ANY_VBUCKETS)
            for bad in self._places_of(syncs.where(~is_sound)):
                self._dead_letter(bad, NO_SYNC)
            syncs = syncs.where(is_sound)
            self._syncs.setdefault(record.bucket, []).append(syncs)
        elif record.bucket in self._known:
            self._control.setdefault(record.bucket, []).append((place, record))
        else:
            self._wait(place, record.bucket)

    def _places_of(self, syncs: SyncRows) -> Iterator[Place]:
        topic = topic_name(self.query_state.cluster, SYNC_TOPIC)
        for partition, offset, record in syncs.records():
            yield Place(topic, partition, offset, codec.encode(record))

    def _wait(self, place: Place, bucket: str) -> None:
        """Keep a record of a bucket that is not known; for how long, ticks tell."""
        since_ms = self._waits_since_ms.get(bucket) or self.now_ms
        reason = f"bucket {bucket} is not known"
        size = self._waiting_bytes + len(place.value)
        if self.now_ms - since_ms > WAITING_MS:
            self._dead_letter(place, f"{reason}, and was not for {WAITING_MS // 1000} s")
        elif len(self.waiting) >= WAITING_MAX or size > WAITING_BYTES_MAX:
            self._dead_letter(place, f"{reason}, and too much waits already")
        else:
            self._waiting_bytes = size
            self.waiting.append(DeadLetter(*place[:3], reason, place.value, since_ms))

    # -- what follows ------------------------------------------------------------------------

    def fold(
        self,
    ) -> tuple[Mapping[str, BucketState], Mapping[str, StabilityTimestamp], list[Record]]:
        """Return the states, what was published last of each bucket, and the outputs."""
        before = self.query_state.states
        states, published = {}, dict(self.query_state.published)
        outputs: list[Record] = []
        consolidated: set[str] = set()
        advanced = False
        settings = {one.name: one.value_json for one in self.context.settings}
        for bucket in self.context.buckets:
            name = bucket.name
            state = before.get(name)
            if state is None or state.vbuckets != bucket.vbuckets:
                new = BucketState.new(name, bucket.vbuckets)
                restart = max(
                    self.query_state.restarts.get(name, 0), state.restart_number if state else 0
                )
                state = new.caught_up(published.get(name), restart)
            rules = merged(settings.get(PREFIX), settings.get(setting_name(name)))
            if rules.consolidate:
                consolidated.add(name)
            is_read = name in self._syncs or name in self._control
            if is_read or (self.ticked and not self._is_quiet(state, rules)):
                state, found = self._fold_one(state, rules)
                for output in found:
                    if isinstance(output, StabilityTimestamp):
                        published[name] = output
                        advanced |= rules.consolidate
                    outputs += _published(output, rules.consolidate)
            states[name] = state
        if advanced:
            # All that are consolidated: the topic is compacted, and the message replaces the last.
            whole = tuple(published[name] for name in sorted(published) if name in consolidated)
            outputs += _together(whole, keys_of(self.query_state.shard).progress)
        return states, published, outputs

    def _is_quiet(self, state: BucketState, rules: TimestampSettings) -> bool:
        """Tell whether this tick changes nothing in a bucket of which nothing was read."""
        if self.unwatched_ms or self.stepped_ms:
            return False
        known = self.quiet[state.bucket] = _quiet_of(self.query_state, state, rules)
        return self.now_ms < known.until_ms

    def _fold_one(
        self, state: BucketState, rules: TimestampSettings
    ) -> tuple[BucketState, list[Output]]:
        """Fold what one bucket was handed; what is refused becomes dead letters."""
        syncs = SyncRows.joined(state.bucket, self._syncs.get(state.bucket, []))
        control = self._control.get(state.bucket, [])
        records = [record for _, record in control]
        batch = Batch(
            *(syncs.columns, records, self.now_ms, self.ticked),
            unwatched_ms=self.unwatched_ms,
            stepped_ms=self.stepped_ms,
        )
        done = fold(state, batch, rules)
        for place in self._places_of(syncs.where(done.refused.syncs)):
            self._dead_letter(place, NO_SYNC)
        for number, reason in done.refused.control:
            self._dead_letter(control[number][0], reason)
        return done.state, done.outputs


def _published(output: Output, together: bool) -> list[Record]:
    """Return where an output goes; a stability timestamp that goes `together` has its own record
    in the history only."""
    if isinstance(output, StabilityTimestamp):
        alone = [] if together else [Record(STABILITY, output.bucket, output)]
        return [*alone, Record(STABILITY_HISTORY, output.bucket, output)]
    return [Record(RESTART, output.bucket, output)]


def _together(timestamps: Sequence[StabilityTimestamp], key: str) -> list[Record]:
    """Return timestamps in as few messages as they fit in; each message has a key of its own."""
    parts: list[list[StabilityTimestamp]] = []
    size = TOGETHER_BYTES_MAX
    for one in timestamps:
        weight = len(one.vbuuids) + len(one.seqnos) + TIMESTAMP_OVERHEAD_BYTES
        if size + weight > TOGETHER_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += weight
    return [
        Record(
            STABILITY,
            f"{key}/{n}" if n else key,
            ConsolidatedStability(tuple(part)),
        )
        for n, part in enumerate(parts)
    ]
