"""Topics of Kafka as a source: logs with leaders, transactions and compaction, and who reads them.

What a connection makes of records is the real thing (`TopicReading`). A log does here what Kafka
does: a leader that is elected begins an epoch, with all that there was, or without the last records
(an unclean election); what is written in a transaction can be read when it has ended, or never; the
cleaner takes records away that newer ones of the same key supersede; a topic is made anew. The
cleaner leaves deletions: that a bucket is read again where they are forgotten is not shown here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.core.model.topic_logs import Epoch, History
from projector_sim.kv.vbuckets import spread, vbucket_of
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.stream_planner import SourceBucket
from projector_sim.protocol.failover import FailoverLog
from projector_sim.protocol.frames import Reason
from projector_sim.sources.topic_reading import ReadPartition, TopicBranches, TopicReading
from projector_sim.sources.topic_records import Document, RecordError
from tests.simulation.kernel.actor import Actor
from tests.simulation.plane.connection import SourceConnection
from tests.simulation.plane.store import INBOX_MAX, NODES, PIECE, Mutation

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld

GARBAGE = b"!"
ENDED_MS = (5, 60, 700)
"""So long after its first record a transaction ends."""

SOON_MS = 200
"""So soon after a leader without the last records there may be another one."""

NOTICED_MS = (1, 200, 1_500)
"""So long after a partition was dealt to another projector the first one reads it, too."""

CLEANED = 0.1
"""So likely the cleaner goes over a part of a log when something is written to it."""


@dataclass(eq=False)
class TopicLog:
    """A partition: `history[n]` has the offset n, and the seqno n + 1; without a key it is none
    that anybody reads. `states[n]` is all there is after seqno n."""

    number: int
    owner: int
    branches: TopicBranches
    epochs: list[Epoch] = field(default_factory=lambda: [Epoch(0, 0)])
    history: list[Mutation] = field(default_factory=list)
    states: list[dict[bytes, Mutation]] = field(default_factory=lambda: [{}])
    garbage: set[int] = field(default_factory=set)
    """Seqnos of records that are no documents: they delete theirs."""
    open: set[int] = field(default_factory=set)
    """Seqnos of the transaction that has not ended."""
    also_read_by: set[int] = field(default_factory=set)
    """Projectors that do not know yet that it is dealt to another one."""
    superseded: dict[int, int] = field(default_factory=dict)
    """Seqnos that the cleaner has taken away, and of what replaces each."""

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

    def append(self, key: bytes, document: bytes | None) -> int:
        """Write a record; return its seqno."""
        mutation = Mutation(len(self.history) + 1, key, document)
        self.history.append(mutation)
        self.states.append({**self.states[-1], key: mutation} if key else self.states[-1])
        return mutation.seqno

    def end(self, *, commits: bool) -> None:
        """End the transaction: without it, nobody reads what was written in it."""
        if self.open:
            begun = min(self.open)
            again = self.history[begun - 1 :]
            del self.history[begun - 1 :], self.states[begun:]
            for mutation in again:
                is_there = commits or mutation.seqno not in self.open
                self.append(mutation.key if is_there else b"", mutation.document)
            self.open.clear()
            self.append(b"", None)

    def elect(self, lost: int, step: int) -> None:
        """Another leader begins, without the last records."""
        left = max(0, len(self.history) - lost)
        del self.history[left:], self.states[left + 1 :]
        self.garbage = {seqno for seqno in self.garbage if seqno <= left}
        self.open = {seqno for seqno in self.open if seqno <= left}
        # The cleaner of the new leader has not seen what is lost.
        self.superseded = {old: new for old, new in self.superseded.items() if new <= left}
        newest = self.epochs[0].number + step
        # An epoch without a record is forgotten.
        self.epochs = [Epoch(newest, left), *(e for e in self.epochs if e.start < left)]

    def clean(self, seqno: int) -> None:
        """Take away what is superseded, up to a seqno that can be read."""
        newest: dict[bytes, int] = {m.key: m.seqno for m in self.history[:seqno] if m.key}
        for mutation in self.history[:seqno]:
            if mutation.key and newest[mutation.key] != mutation.seqno:
                self.superseded.setdefault(mutation.seqno, newest[mutation.key])

    def records_after(self, seqno: int, limit: int) -> list[Mutation]:
        """Return what can be read after a seqno."""
        left = self.history[seqno : self.high]
        found = (m for m in left if m.key and m.seqno not in self.superseded)
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
    `log_end` was the end of the log when it fetched last."""

    position: int
    epoch: int = -1
    queue: list[Any] = field(default_factory=list)
    end_told: int = -1
    log_end: int = 0

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
        self.log_end = len(log.history)
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
        self.compacted = {name: world.clock.chance.random() < 0.5 for name in buckets}
        self.aborting = world.clock.chance.choice((0.0, 0.3, 0.9))
        self.beginning = world.clock.chance.choice((0.05, 0.15, 0.4))
        self._made = 0
        self.cut = 0
        """So many records of logs were lost by elections."""
        self.buckets: dict[str, list[TopicLog]] = {
            name: self._topic(spread(vbuckets, NODES)) for name in buckets
        }

    def _topic(self, owners: Sequence[int]) -> list[TopicLog]:
        self._made += 1
        branches = TopicBranches(f"topic {self._made}")
        return [TopicLog(number, owner, branches) for number, owner in enumerate(owners)]

    def open(self, run: Run, node: int, woken: Callable[[], None]) -> TopicConnection:
        return TopicConnection(self, run, node, woken)

    def unsettled(self) -> str:
        logs = [log for topic in self.buckets.values() for log in topic]
        return "a transaction goes on" if any(log.open for log in logs) else ""

    def write(self, bucket: str, key: bytes, document: bytes | None) -> None:
        chance = self.world.clock.chance
        log = self.buckets[bucket][vbucket_of(key, len(self.buckets[bucket]))]
        seqno = log.append(key, document)
        if document is None and chance.random() < 0.2:
            log.garbage.add(seqno)
        dice = chance.random()
        if dice < (0.5 if log.open else self.beginning):
            if not log.open:
                self.world.clock.at(chance.choice(ENDED_MS), self._end, bucket, log)
            log.open.add(seqno)
        if self.compacted[bucket] and chance.random() < CLEANED:
            log.clean(chance.randint(0, log.high))
        self._wake(bucket)

    def _end(self, bucket: str, log: TopicLog) -> None:
        log.end(commits=not self.world.clock.hit(self.aborting))
        self._wake(bucket)

    def seen_by(self, node: int) -> dict[str, SourceBucket]:
        """Return what a projector is told of the buckets."""
        return {
            name: SourceBucket(
                len(logs), frozenset(log.number for log in logs if log.owner == node)
            )
            for name, logs in self.buckets.items()
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
        self.buckets[bucket] = self._topic([log.owner for log in self.buckets[bucket]])
        self._wake(bucket)
        self.world.owners_changed()

    def _wake(self, bucket: str) -> None:
        for connection in self.connections:
            if connection.run.bucket == bucket:
                connection.wake()


class TopicConnection(SourceConnection):
    """A connection to a topic."""

    def __init__(self, store: TopicStore, run: Run, node: int, woken: Callable[[], None]) -> None:
        super().__init__(store, run, node, woken)
        self._topic: list[TopicLog] = []
        self._clients: dict[int, Client] = {}

    # -- what is read ------------------------------------------------------------------------

    def _opened(self) -> None:
        run = self.run
        self._topic = self.store.buckets[run.bucket]
        self._reading = TopicReading(
            self._topic[0].branches,
            lambda numbers: {number: self._topic[number].known for number in numbers},
            decode,
            lambda record, error: None,
            until=run.until,
            is_compacted=self.store.compacted[run.bucket],
        )
        for number in run.vbuckets:
            start = run.starts[number] if run.starts is not None else None
            if self._is_owned(number):
                self._reading.begin(number, self._topic[number].known, start)
            else:
                self._reading.refuse(number, start[1] if start is not None else 0)
        self._hand_over()
        self.wake()

    def _is_owned(self, number: int) -> bool:
        topic = self.store.buckets[self.run.bucket]
        log = topic[number]
        return topic is self._topic and (log.owner == self.node or self.node in log.also_read_by)

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
