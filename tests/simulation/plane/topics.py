"""Topics of Kafka as a source: logs with leaders, transactions and compaction, and who reads them.

What a connection makes of records is the real thing (`TopicReading`). A log does here what Kafka
does: a leader that is elected begins an epoch, with all that there was, or without the last records
(an unclean election); what is written in a transaction can be read when it has ended, or never; the
cleaner takes records away that newer ones of the same key supersede, and deletions some time later;
a topic is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import TopicSeen
from coordinator.core.model.topic_logs import Cleaning, Epoch, History
from projector_sim.kv.vbuckets import spread, vbucket_of
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.stream_planner import SourceBucket, StreamPlanner
from projector_sim.protocol.failover import FailoverLog
from projector_sim.protocol.frames import Reason
from projector_sim.sources.deletions import DeletionWatch
from projector_sim.sources.topic_reading import ReadPartition, TopicBranches, TopicReading
from projector_sim.sources.topic_records import Document, RecordError
from tests.simulation.kernel.actor import Actor
from tests.simulation.plane.connection import SourceConnection
from tests.simulation.plane.store import INBOX_MAX, NODES, PIECE, Mutation

if TYPE_CHECKING:
    from tests.simulation.plane.projector import ProjectorProcess
    from tests.simulation.plane.world import PlaneWorld

GARBAGE = b"!"
ENDED_MS = (5, 60, 700)
"""So long after its first record a transaction ends."""

SOON_MS = 200
"""So soon after a leader without the last records there may be another one."""

NOTICED_MS = (1, 200, 1_500)
"""So long after a partition was dealt to another projector the first one reads it, too."""

KEPT_MS = (1_200, 2_500, 10**9)
"""So long after the cleaner has seen a deletion it leaves it there."""

LOOK_MS = range(50, 100)
"""So often it is looked whether one was missed."""

TOLD_MS = 1_000
"""Who would hide that begins when it was said for so long."""

CLEANING_MS = 100
CLEANED = 0.1
"""So likely the cleaner goes over a part of a log when something is written to it."""


@dataclass(eq=False)
class TopicLog:
    """A partition: `history[n]` has the offset n, and the seqno n + 1; without a key it is none
    that anybody reads. `states[n]` is all there is after seqno n."""

    number: int
    owner: int
    topic_id: str
    reading: int = 0
    epochs: list[Epoch] = field(default_factory=lambda: [Epoch(0, 0)])
    history: list[Mutation] = field(default_factory=list)
    states: list[dict[bytes, Mutation]] = field(default_factory=lambda: [{}])
    times: list[int] = field(default_factory=list)
    """When each record was written."""
    garbage: set[int] = field(default_factory=set)
    """Seqnos of records that are no documents: they delete theirs."""
    open: set[int] = field(default_factory=set)
    """Seqnos of the transaction that has not ended."""
    also_read_by: set[int] = field(default_factory=set)
    """Projectors that do not know yet that it is dealt to another one."""
    superseded: dict[int, int] = field(default_factory=dict)
    """Seqnos that the cleaner has taken away, and of what replaces each."""
    cleanings: int = 0
    kept_until: dict[int, int] = field(default_factory=dict)
    """Deletions that the cleaner has seen: when it may take each away."""
    forgotten: set[int] = field(default_factory=set)
    missed_in: int = -1
    slow_in: int = -1
    """The readings in which something may have been missed, as somebody has said; in the second one
    reading anew would not help."""

    @property
    def is_slow(self) -> bool:
        return self.slow_in == self.reading

    @property
    def is_doubtful(self) -> bool:
        return self.missed_in == self.reading or self.is_slow

    @property
    def branches(self) -> TopicBranches:
        return TopicBranches(self.topic_id, self.reading)

    @property
    def high(self) -> int:
        """Up to where it can be read."""
        return min(self.open) - 1 if self.open else len(self.history)

    @property
    def known(self) -> History:
        return History(0, self.high, len(self.history), tuple(self.epochs))

    @property
    def log(self) -> FailoverLog:
        return self.branches.log(self.number, self.known)

    @property
    def vbuuid(self) -> int:
        return self.log[0].vbuuid

    def append(self, key: bytes, document: bytes | None, now: int) -> int:
        """Write a record; return its seqno."""
        mutation = Mutation(len(self.history) + 1, key, document)
        self.history.append(mutation)
        self.times.append(now)
        self.states.append({**self.states[-1], key: mutation} if key else self.states[-1])
        return mutation.seqno

    def end(self, now: int, *, commits: bool) -> None:
        """End the transaction: without it, nobody reads what was written in it."""
        if self.open:
            begun = min(self.open)
            again = [*zip(self.history[begun - 1 :], self.times[begun - 1 :], strict=True)]
            self._cut(begun - 1)
            for mutation, written in again:
                is_there = commits or mutation.seqno not in self.open
                self.append(mutation.key if is_there else b"", mutation.document, written)
            self.open.clear()
            self.append(b"", None, now)

    def _cut(self, seqno: int) -> None:
        del self.history[seqno:], self.states[seqno + 1 :], self.times[seqno:]

    def elect(self, lost: int, step: int) -> None:
        """Another leader begins, without the last records."""
        left = max(0, len(self.history) - lost)
        self._cut(left)
        self.garbage = {seqno for seqno in self.garbage if seqno <= left}
        self.open = {seqno for seqno in self.open if seqno <= left}
        # The cleaner of the new leader has not seen what is lost.
        self.superseded = {old: new for old, new in self.superseded.items() if new <= left}
        self.kept_until = {one: ms for one, ms in self.kept_until.items() if one <= left}
        self.forgotten = {one for one in self.forgotten if one <= left}
        newest = self.epochs[0].number + step
        # An epoch without a record is forgotten.
        self.epochs = [Epoch(newest, left), *(e for e in self.epochs if e.start < left)]

    def clean(self, seqno: int, now: int, kept_ms: int) -> None:
        """Take away what is superseded, up to a seqno that can be read; of deletions, those that it
        has seen long ago."""
        self.cleanings += 1
        newest: dict[bytes, int] = {m.key: m.seqno for m in self.history[:seqno] if m.key}
        for mutation in self.history[:seqno]:
            if mutation.key and newest[mutation.key] != mutation.seqno:
                self.superseded.setdefault(mutation.seqno, newest[mutation.key])
            elif self._is_deletion(mutation) and now >= self.kept_until.setdefault(
                mutation.seqno, now + kept_ms
            ):
                self.forgotten.add(mutation.seqno)

    def _is_deletion(self, mutation: Mutation) -> bool:
        is_one = bool(mutation.key) and mutation.document is None
        return is_one and mutation.seqno not in self.garbage

    def is_there(self, mutation: Mutation) -> bool:
        """Tell whether a record can be read: it has not been taken away, and says something."""
        is_gone = mutation.seqno in self.superseded or mutation.seqno in self.forgotten
        return bool(mutation.key) and not is_gone

    def first_since(self, at_ms: int) -> int:
        """Return the offset of the first record that is not older, of those that can be read."""
        found = (m.seqno - 1 for m in self.history[: self.high] if self.is_there(m))
        return next((n for n in found if self.times[n] >= at_ms), self.high)

    def records_after(self, seqno: int, limit: int) -> list[Mutation]:
        """Return what can be read after a seqno."""
        left = self.history[seqno : self.high]
        found = (m for m in left if self.is_there(m))
        return [m for m, _ in zip(found, range(limit), strict=False)]

    def epoch_of(self, seqno: int) -> int:
        return next(e.number for e in self.epochs if e.start < seqno)


class Fetched(NamedTuple):
    """A record, as Kafka's client has it since it was fetched."""

    log: TopicLog
    mutation: Mutation
    epoch: int
    is_garbage: bool

    def partition(self) -> int:
        return self.log.number

    def offset(self) -> int:
        return self.mutation.seqno - 1

    def leader_epoch(self) -> int:
        return self.epoch

    def key(self) -> bytes:
        return self.mutation.key

    def value(self) -> bytes | None:
        return GARBAGE if self.is_garbage else self.mutation.document


LOST = "lost"


@dataclass(eq=False)
class Client:
    """What Kafka's client has of one partition: its position, with the epoch of the record before,
    and what it has fetched, which nobody has taken yet: records, ends (an offset) and `LOST`.
    `log_end` was the end of the log when it fetched last, after so many `cleanings`."""

    position: int
    epoch: int = -1
    queue: list[Any] = field(default_factory=list)
    end_told: int = -1
    log_end: int = 0
    cleanings: int = 0

    @property
    def is_lost(self) -> bool:
        return LOST in self.queue

    def fetch(self, log: TopicLog, limit: int) -> None:
        """Fetch some records, or hear that there are none, or that the log has lost some."""
        if self.is_lost or len(self.queue) >= INBOX_MAX:
            return
        if self.position > len(log.history) or self._is_truncated(log):
            self.queue.append(LOST)
            return
        self.log_end, self.cleanings = len(log.history), log.cleanings
        found = log.records_after(self.position, limit)
        for mutation in found:
            self.position, self.epoch = mutation.seqno, log.epoch_of(mutation.seqno)
            is_garbage = mutation.seqno in log.garbage
            self.queue.append(Fetched(log, mutation, self.epoch, is_garbage))
        if not found and log.high >= self.position:
            self.position = log.high
            if self.end_told != log.high:
                self.end_told = log.high
                self.queue.append(log.high)

    def _is_truncated(self, log: TopicLog) -> bool:
        """Tell whether the epoch of the record before ended in front of the position (KIP-320)."""
        later = [epoch.start for epoch in log.epochs if epoch.number > self.epoch >= 0]
        return bool(later) and min(later) < self.position


def decode(key: bytes | None, value: bytes | None) -> Document:
    assert key is not None
    if value == GARBAGE:
        raise RecordError("bad_json", "no document", key)
    return Document(key, value)


class TopicStore(Actor):
    """A topic for each bucket."""

    is_topic = True

    def __init__(self, world: PlaneWorld, buckets: tuple[str, ...], vbuckets: int) -> None:
        self.world = world
        self.connections: list[TopicConnection] = []
        self.cleaning = {
            name: Cleaning(
                is_compacted=world.clock.hit(0.5),
                is_truncated=False,
                delete_retention_ms=world.clock.chance.choice(KEPT_MS),
            )
            for name in buckets
        }
        self.aborting = world.clock.chance.choice((0.0, 0.3, 0.9))
        self.resting = world.clock.chance.choice((0.0, 0.9))
        """So likely a document that was deleted is not written again."""
        self.beginning = world.clock.chance.choice((0.05, 0.15, 0.4))
        self._made = 0
        self.readings = 0
        """So often a topic was read again."""
        self.cut = 0
        """So many records of logs were lost by elections."""
        self.buckets: dict[str, list[TopicLog]] = {
            name: self._topic(spread(vbuckets, NODES), 0) for name in buckets
        }
        self._position = 0
        world.broker["statecontext"].listeners.append(self._state_moved)
        world.clock.at(CLEANING_MS, self._clean)

    def _topic(self, owners: Sequence[int], reading: int) -> list[TopicLog]:
        self._made += 1
        topic_id = f"topic {self._made}"
        return [TopicLog(number, owner, topic_id, reading) for number, owner in enumerate(owners)]

    def _state_moved(self) -> None:
        """Hear which readings there are."""
        partition = self.world.broker["statecontext"]
        for record in partition.read(self._position):
            entity = record.value.mutation.entity
            if isinstance(entity, Bucket):
                self.readings += entity.reading > 0
                for log in self.buckets[entity.name]:
                    log.reading = entity.reading
        self._position = partition.stable

    def open(
        self, run: Run, reader: ProjectorProcess, woken: Callable[[], None]
    ) -> TopicConnection:
        return TopicConnection(self, run, reader, woken)

    def tell(self, planner: StreamPlanner, seen: dict[str, SourceBucket]) -> None:
        planner.see({})
        planner.see_topics(seen)

    def log_of(self, bucket: str, number: int, known: Mapping[str, Bucket]) -> FailoverLog:
        """Return the log as a projector has it that knows these buckets."""
        log, entity = self.buckets[bucket][number], known.get(bucket)
        reading = entity.reading if entity is not None else log.reading
        return TopicBranches(log.topic_id, reading).log(number, log.known)

    def status(self, reader: ProjectorProcess) -> tuple[TopicSeen, ...]:
        """Return what a projector tells of the topics."""
        known, forgotten = reader.planner.buckets, reader.forgotten
        return tuple(
            TopicSeen(name, 1, 0, "", one.reading if forgotten.get(name, (None,))[0] == one else -1)
            for name, one in sorted(known.items())
        )

    def unsettled(self) -> str:
        logs = [log for topic in self.buckets.values() for log in topic]
        if any(log.missed_in == log.reading for log in logs):
            return "a topic is to be read again"
        return "a transaction goes on" if any(log.open for log in logs) else ""

    def write(self, bucket: str, key: bytes, document: bytes | None) -> None:
        chance = self.world.clock.chance
        log = self.buckets[bucket][vbucket_of(key, len(self.buckets[bucket]))]
        newest = log.states[-1].get(key)
        if newest is not None and newest.document is None and self.world.clock.hit(self.resting):
            return
        seqno = log.append(key, document, self.world.clock.now)
        if document is None and chance.random() < 0.2:
            log.garbage.add(seqno)
        dice = chance.random()
        if dice < (0.5 if log.open else self.beginning):
            if not log.open:
                self.world.clock.at(chance.choice(ENDED_MS), self._end, bucket, log)
            log.open.add(seqno)
        if self.cleaning[bucket].is_compacted and chance.random() < CLEANED:
            self._clean_some(bucket, log)
        self._wake(bucket)

    def _clean(self) -> None:
        """The cleaner goes over something now and then, also where nothing is written."""
        self.world.clock.at(CLEANING_MS, self._clean)
        chance = self.world.clock.chance
        name = chance.choice(sorted(self.buckets))
        if self.cleaning[name].is_compacted:
            for log in self.buckets[name]:
                if chance.random() < 0.5:
                    self._clean_some(name, log)

    def _clean_some(self, bucket: str, log: TopicLog) -> None:
        clock = self.world.clock
        kept_ms = self.cleaning[bucket].delete_retention_ms
        upto = log.high if clock.chance.random() < 0.5 else clock.chance.randint(0, log.high)
        log.clean(upto, clock.now, kept_ms)

    def _end(self, bucket: str, log: TopicLog) -> None:
        log.end(self.world.clock.now, commits=not self.world.clock.hit(self.aborting))
        self._wake(bucket)

    def seen_by(self, node: int, known: Mapping[str, Bucket]) -> dict[str, SourceBucket]:
        """Return what a projector is told of the buckets that it knows."""
        return {
            name: SourceBucket(
                len(logs), frozenset(log.number for log in logs if log.owner == node)
            )
            for name, logs in self.buckets.items()
            if name in known
        }

    def move(self, bucket: str, number: int, node: int) -> None:
        """Deal a partition out to another projector."""
        log = self.buckets[bucket][number]
        if log.owner != node:
            later_ms = self.world.clock.chance.choice(NOTICED_MS)
            self.world.clock.at(later_ms, self._tell_moved, bucket, log, log.owner)
            log.also_read_by = {log.owner}
            log.owner = node
            self.world.trace(f"topic: {bucket}/{number} is dealt to {node}")
            self._wake(bucket)
            self.world.owners_changed()

    def _tell_moved(self, bucket: str, log: TopicLog, node: int) -> None:
        log.also_read_by.discard(node)
        self._wake(bucket)

    def crash(self, bucket: str, number: int, lost: int) -> None:
        """Elect a leader that is without the last records, perhaps with all of them."""
        self.world.trace(f"topic: {bucket}/{number} has another leader, without {lost}")
        log = self.buckets[bucket][number]
        self.cut += min(lost, len(log.history))
        log.elect(lost, self.world.clock.chance.choice((1, 1, 3)))
        if lost and self.world.clock.hit(0.5):
            again = self.world.clock.chance.choice((0, 1, 2))
            self.world.clock.at(SOON_MS, self.crash, bucket, number, again)
        self._wake(bucket)

    def make_anew(self, bucket: str) -> None:
        """Delete a topic with all of it, and make it again under its name."""
        self.world.trace(f"topic: {bucket} is made anew")
        before = self.buckets[bucket]
        self.buckets[bucket] = self._topic([log.owner for log in before], before[0].reading)
        self._wake(bucket)
        self.world.owners_changed()

    def _wake(self, bucket: str) -> None:
        for connection in self.connections:
            if connection.run.bucket == bucket:
                connection.wake()


class TopicConnection(SourceConnection):
    """A connection to a topic."""

    def __init__(
        self, store: TopicStore, run: Run, reader: ProjectorProcess, woken: Callable[[], None]
    ) -> None:
        super().__init__(store, run, reader.number, woken)
        self._reader = reader
        self._entity = reader.planner.buckets[run.bucket]
        self._topic: list[TopicLog] = []
        self._clients: dict[int, Client] = {}
        self._deletions = DeletionWatch(
            store.cleaning[run.bucket], self._entity.read_from_ms, LOOK_MS
        )

    # -- what is read ------------------------------------------------------------------------

    def _opened(self) -> None:
        run = self.run
        self._topic = self.store.buckets[run.bucket]
        self._reading = TopicReading(
            TopicBranches(self._topic[0].topic_id, self._entity.reading),
            lambda numbers: {number: self._topic[number].known for number in numbers},
            decode,
            lambda record, error: None,
            until=run.until,
            is_compacted=self.store.cleaning[run.bucket].is_compacted,
        )
        for number in run.vbuckets:
            start = run.starts[number] if run.starts is not None else None
            if self._is_owned(number):
                self._begin(number, start)
            else:
                self._reading.refuse(number, start[1] if start is not None else 0)
        self._look_for_deletions()
        self._hand_over()
        self.wake()

    def _begin(self, number: int, start: tuple[int, int] | None) -> None:
        log, now_ms = self._topic[number], self.store.world.wall_ms()
        since_ms = self._deletions.kept_since_ms(now_ms)
        kept_from = None if since_ms is None else self._first_since(log, since_ms)
        known = log.known
        hides = self._deletions.begin(number, known, start, kept_from, now_ms)
        self._reading.begin(number, known, start, lambda: hides and self._is_refused(number))

    def _first_since(self, log: TopicLog, since_ms: int) -> int:
        return log.first_since(since_ms - self.store.world.wall_ms() + self.clock.now)

    def _is_refused(self, number: int) -> bool:
        self._topic[number].missed_in = self._entity.reading
        return not self._note_forgotten(number)

    def _note_forgotten(self, number: int) -> bool:
        """Say that something may have been missed; tell whether that was said for long."""
        reader, now = self._reader, self.clock.now
        if reader.planner.buckets.get(self.run.bucket) != self._entity:
            return False
        told, since = reader.forgotten.get(self.run.bucket, (self._entity, now))
        since = since if told == self._entity else now
        reader.forgotten[self.run.bucket] = self._entity, since
        return now >= since + TOLD_MS

    def _look_for_deletions(self) -> None:
        if self.closed:
            return
        self.clock.at(LOOK_MS[0], self._look_for_deletions)
        now_ms = self.store.world.wall_ms()
        if not self._deletions.is_due(now_ms):
            return
        places = {number: one.reached for number, one in self._reading.partitions.items()}
        ends = {number: self._topic[number].high for number in places}
        missed, slow = self._deletions.look(places, ends, now_ms)
        for number in (*missed, *slow):
            # Of the first ones that is told, too; if the projector dies at once, nobody hears it.
            self._topic[number].slow_in = self._entity.reading
        for number in missed:
            self._note_forgotten(number)

    def _is_owned(self, number: int) -> bool:
        topic = self.store.buckets[self.run.bucket]
        log = topic[number]
        is_same = self._reader.planner.buckets.get(self.run.bucket) == self._entity
        return (
            is_same
            and topic is self._topic
            and (log.owner == self.node or self.node in log.also_read_by)
        )

    def _pump(self) -> None:
        """Read a little of some partition."""
        chance, reading = self.clock.chance, self._reading
        if len(self.inbox) < INBOX_MAX:
            left = sorted(reading.partitions)
            if left and chance.random() < 0.9:
                self._read_some(chance.choice(left), chance)
            for number in tuple(reading.partitions):
                if chance.random() < 0.3:
                    reading.note_log_end(number, self._client(number).log_end)
                reading.end_portion(number)
            for number in tuple(reading.partitions):
                if not self._is_owned(number) and chance.random() < 0.5:
                    reading.end(number, Reason.MOVED)
            if not self.run.until and chance.random() < 0.2:
                reading.note_leaders({n: self._topic[n].epochs[0].number for n in left})
            if chance.random() < 0.5:
                reading.sync()
            for number in tuple(reading.gone_over):
                self._clients.pop(number, None)
                reading.begin_anew(number)
            self._hand_over()
        if self._has_more():
            self.wake()

    def _client(self, number: int) -> Client:
        if number not in self._clients:
            self._clients[number] = Client(self._reading.partitions[number].next_offset)
        return self._clients[number]

    def _read_some(self, number: int, chance: Any) -> None:
        """Fetch something, and take some of what was fetched."""
        client = self._client(number)
        if client.cleanings != self._topic[number].cleanings:
            self._reading.doubt_log_end(number)
        if chance.random() < 0.8:
            client.fetch(self._topic[number], chance.randint(1, PIECE))
        count = chance.randint(1, PIECE + 1) if chance.random() < 0.7 else 0
        taken, client.queue = client.queue[:count], client.queue[count:]
        for one in taken:
            if number not in self._reading.partitions:
                return
            if one == LOST:
                self._reading.end(number, Reason.CRASHED)
            elif isinstance(one, int):
                self._reading.reach_end(number, one)
                self._deletions.reach_end(number, one, self.store.world.wall_ms())
            else:
                self._reading.take(one)
                if self.run.until:
                    self.store.world.writer.tease(self.run.bucket, [one.mutation])

    def _has_more(self) -> bool:
        if self._reading.pending:
            return True
        return any(self._lacks(n, one) for n, one in self._reading.partitions.items())

    def _lacks(self, number: int, partition: ReadPartition) -> bool:
        """Tell whether there is something to read of a partition, or to say."""
        log = self._topic[number]
        is_led_on = not self.run.until and partition.epoch < log.epochs[0].number
        client = self._client(number)
        is_behind = partition.at != log.high or bool(client.queue) or client.end_told != log.high
        return not self._is_owned(number) or is_behind or is_led_on

    def _hand_over(self) -> None:
        self.inbox += self._reading.drain()
        if not self._reading.partitions:
            self.close("all that was asked for was sent")
        self.woken()
