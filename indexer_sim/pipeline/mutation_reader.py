"""Reading `mutations` and `stability`: one consumer for all buckets, and a queue with a bound.

What must hold: deliveries come out of the queue in the order of their partitions, and a position
behind all that came before it. Reading begins at the lowest offset that a bucket still needs; what
is below its own, a bucket has already. Where a bucket goes back, all that was read before is void:
`epoch` tells it from what is read after. A record that is none goes to the dead letters, as a
whole, and counts as read. While the queue is full nothing is read, and Kafka keeps it.

An offset means something only in the log that it was taken from. So a bucket keeps the topic's id
and the leader epoch of what lies before its offset. A bucket of which that is not the log any more
(retention took it, a leader without the end of it was elected, the topic was made again) has lost
a part, and is told so before it is given anything that comes later. The same holds for what waits
in the queue (`log_witness`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from coordinator import codec
from coordinator.core.keys.key_versions import (
    ABSENT,
    ATTACH,
    BEGIN,
    DOCUMENT,
    HISTORY,
    UPSERT,
    VBUUID,
    Item,
    begun,
    branches,
    unpack,
)
from coordinator.core.model.stream_records import (
    ConsolidatedStability,
    KeyVersions,
    StabilityTimestamp,
)
from coordinator.core.model.types import Offset
from coordinator.core.model.vectors import Vector
from coordinator.kafka.address import client_settings
from coordinator.kafka.errors import passes_by_itself
from coordinator.kafka.readers import consumer
from coordinator.kafka.stall_detector import StallDetector
from coordinator.kafka.state_follower import CALL_TIMEOUT_S, PAUSE_S
from coordinator.kafka.topics import MUTATIONS, STABILITY, STREAM_PARTITIONS, topic_name
from coordinator.runtime.gathering import Gathering
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.entries import NO_EPOCH
from indexer_sim.pipeline.log_witness import LogWitness, Voucher
from schemas.registry import SchemaError

HEADER = "indexer"
ITEMS_MAX = 32_768
ITEM_BYTES = 320
"""So many items may wait, each of so many bytes: 10 MiB. Larger ones count as several."""

MESSAGES_MAX = 64
FULL = MESSAGES_MAX - STREAM_PARTITIONS
"""So many messages are not all that there was: ends of partitions are among what is taken."""

GROUP_ITEMS = 4_096
"""So many items, about, are put into the queue at once."""

PACE_S, PACE_MOST_S = 0.001, 0.05
"""Who has read all that there was lets so much time pass: the more comes, the more comes together,
and neither this thread nor the next wakes up for a single record."""

PACE_PER_S = 5_000
"""So many items a second are much: then more time passes, and an item costs less."""

POLL_S = 0.2
FETCH_WAIT_MS = 250
FETCH_BUFFER_KBYTES = 8_192


class Delivery(NamedTuple):
    """A record for this indexer, and where it stood."""

    partition: int
    offset: Offset
    head: KeyVersions
    items: list[Item]
    epoch: int = NO_EPOCH


class Position(NamedTuple):
    """All below this offset of a partition was delivered, or is for others.

    `epoch` is the leader epoch of the record before it, here as in a delivery that of its own.
    """

    partition: int
    offset: Offset
    epoch: int = NO_EPOCH


class Lost(NamedTuple):
    """A bucket needs what Kafka does not have any more; it goes on at these offsets, in `topic`."""

    bucket: str
    offsets: Mapping[int, int]
    topic: str = ""


class Follows(NamedTuple):
    """All that comes now is of the topic with this id."""

    topic: str


Stability = StabilityTimestamp | ConsolidatedStability
Read = Delivery | Position | Lost | Follows | Stability


class Stand(NamedTuple):
    """Where a bucket goes on: offsets by partition, and what they are offsets of.

    `epochs` has the leader epoch of the record before an offset, `topic` the id of the topic, both
    where they are known.
    """

    offsets: Mapping[int, int]
    epochs: Mapping[int, int] = {}
    topic: str = ""


class Needed(NamedTuple):
    """Where each bucket goes on; another `epoch` after one has gone back."""

    epoch: int
    stands: Mapping[str, Stand]


class OtherLogError(Exception):
    """What is to be read of a partition is not there, or not what was read before."""

    def __init__(self, partition: int, reason: str) -> None:
        super().__init__(reason)
        self.partition = partition


class Queued(NamedTuple):
    epoch: int
    one: Read


class MutationQueue:
    """What was read and is not applied yet; at most about `items_max` items."""

    def __init__(self, items_max: int = ITEMS_MAX) -> None:
        self.items_max = items_max
        self.waiting = 0
        self._queue: deque[Queued] = deque()
        self._changed = threading.Condition()

    @property
    def free(self) -> int:
        return max(0, self.items_max - self.waiting)

    def put(self, group: Sequence[Queued], timeout_s: float) -> bool:
        """Append all of it, waiting for room; False: there is none yet."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.waiting < self.items_max, timeout_s):
                return False
            for queued in group:
                if self._queue and _follows(self._queue[-1], queued):
                    self._queue.pop()
                self._queue.append(queued)
            self.waiting += sum(map(_weight, group))
            self._changed.notify_all()
        return True

    def take(self, items_max: int, timeout_s: float) -> list[Queued]:
        """Return what waits, in order: until it is more than `items_max` items."""
        taken: list[Queued] = []
        weight = 0
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue), timeout_s)
            while self._queue and weight < items_max:
                taken.append(self._queue.popleft())
                weight += _weight(taken[-1])
            self.waiting -= weight
            self._changed.notify_all()
        return taken

    def clear(self) -> None:
        """Forget all: it is read again. What was lost is not read again: who is to know it, has
        to be told."""
        with self._changed:
            lost = [queued for queued in self._queue if isinstance(queued.one, Lost)]
            self._queue = deque(lost)
            self.waiting = 0
            self._changed.notify_all()


def _weight(queued: Queued) -> int:
    one = queued.one
    return (
        max(len(one.items), len(one.head.items) // ITEM_BYTES) if isinstance(one, Delivery) else 0
    )


def _follows(last: Queued, queued: Queued) -> bool:
    """Tell whether a position makes the last one superfluous."""
    before, after = last.one, queued.one
    return (
        isinstance(before, Position)
        and isinstance(after, Position)
        and before.partition == after.partition
    )


def read_record(value: bytes) -> tuple[KeyVersions, list[Item]]:
    """Return a record of `mutations` with its items. SchemaError, ValueError: it is none."""
    record = codec.decode(value)
    if not isinstance(record, KeyVersions):
        raise SchemaError("bad_body", f"a KeyVersions belongs here, not {type(record).__name__}")
    if len(record.builds) != len(record.indexes):
        raise ValueError("indexes without builds")
    items = list(unpack(record.items))
    places = len(record.indexes)
    for item in items:
        # Places ascend: the last one is the largest.
        if item[0] < DOCUMENT or (item[7] and item[7][-1][0] >= places):
            _check(item, places)
    return record, items


def read_stability(value: bytes) -> Stability | None:
    """Return a record of `stability`, None if it is for others.

    SchemaError, ValueError: it is none, or has no vectors.
    """
    record = codec.decode(value)
    if not isinstance(record, Stability):
        return None
    several = record.timestamps if isinstance(record, ConsolidatedStability) else (record,)
    for timestamp in several:
        Vector.from_bytes(timestamp.vbuuids, timestamp.seqnos)
    return record


def _check(item: Item, places: int) -> None:
    """Refuse an item that does not fit its record. ValueError."""
    if item.kind >= DOCUMENT or (item.place >= places and item.kind in (UPSERT, ABSENT, ATTACH)):
        raise ValueError("an item of no index")
    if item.kind == BEGIN and any(place >= places for place in begun(item)[1]):
        raise ValueError("a BEGIN of no index")
    if item.kind == ATTACH and len(item.payload) != VBUUID.size:
        raise ValueError("an ATTACH without its branch")
    if item.kind == HISTORY:
        branches(item)


class MutationReader:
    """Reads in a thread of its own, as long as there are buckets."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        indexer: int,
        queue: MutationQueue,
        needed: Callable[[], Needed],
        dead_letter: Callable[[Message, str], None],
        failed: Callable[[str], None],
        well: Callable[[], None],
        threads: Threads,
    ) -> None:
        """`needed` tells where each bucket goes on; `failed` hears of faults, `well` of none."""
        self._servers = bootstrap_servers
        self._name = f"indexer-{indexer}-mutations"
        self._mine = str(indexer).encode()
        self._mutations = topic_name(cluster, MUTATIONS)
        self._broken: set[int] = set()
        """Partitions whose log is not the one that was read."""
        self._topic = ""
        self._witness = LogWitness()
        self._stability = topic_name(cluster, STABILITY)
        self._queue = queue
        self._needed = needed
        self._dead_letter = dead_letter
        self._failed = failed
        self._well = well
        self._stopping = threading.Event()
        self._epoch = 0
        self._gathering = Gathering(PACE_S, PACE_MOST_S, PACE_PER_S)
        self._stall_detector: StallDetector
        self._thread = threads.make("mutations", self._run, self._stopping)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(CALL_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._needed().stands:
                self._stopping.wait(POLL_S)
                continue
            reader = consumer(
                self._servers,
                self._name,
                **{
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": FETCH_WAIT_MS,
                    "queued.max.messages.kbytes": FETCH_BUFFER_KBYTES,
                },
            )
            self._stall_detector = StallDetector(reader)
            try:
                while self._read(reader):
                    pass
            except OtherLogError as error:
                self._failed(str(error))
                self._broken.add(error.partition)
                self._stopping.wait(PAUSE_S)
            except KafkaException as error:
                self._failed(error.args[0].str())
                self._stopping.wait(PAUSE_S)
            finally:
                reader.close()

    def _read(self, reader: Consumer) -> bool:
        """Read from where buckets go on until one goes back; False: nobody needs anything."""
        needed = self._needed()
        self._epoch = needed.epoch
        self._queue.clear()
        self._assign(reader, needed)
        self._well()
        while self._is_current() and needed.stands and not self._witness.is_in_doubt:
            messages = self._next(reader)
            if self._hand_over(messages) and 0 < len(messages) < FULL:
                self._stopping.wait(self._gathering.wait_s)
            needed = self._needed()
        return bool(needed.stands) and not self._stopping.is_set()

    def _is_current(self) -> bool:
        return not self._stopping.is_set() and self._needed().epoch == self._epoch

    def _assign(self, reader: Consumer, needed: Needed) -> None:
        """Begin at the lowest offset that is needed, of those that there are.

        Where the leader is known that wrote the record before, it is that record: nothing else
        shows reliably that it is still there. The same holds for the record that was read last,
        which may be applied only now. Whoever has lost a part goes on where it stands, not at the
        start of the log: what it has read once, it must not read again.
        """
        topic = self._topic_id()
        bounds = [_bounds(reader, self._mutations, p) for p in range(STREAM_PARTITIONS)]
        begin_of_stability, _ = _bounds(reader, self._stability, 0)
        # From here on nothing fails: what the witness forgets, everybody is told.
        assigned: list[TopicPartition] = []
        lost: dict[str, dict[int, int]] = {}
        self._witness.begin()
        for partition, (low, high) in enumerate(bounds):
            begin = high
            last = self._witness.last(partition)
            is_cut = partition in self._broken or (last is not None and last.offset >= high)
            if is_cut or self._topic not in ("", topic):
                self._witness.forget(partition)
                last = None
            for bucket, stand in needed.stands.items():
                at = stand.offsets.get(partition, high)
                if is_cut or stand.topic not in ("", topic) or not low <= at <= high:
                    at = lost.setdefault(bucket, {})[partition] = min(max(at, low), high)
                else:
                    known = {at - 1: stand.epochs.get(partition, NO_EPOCH)}
                    if last is not None and partition in stand.offsets:
                        known[last.offset] = last.epoch
                    at = min([at, *self._vouched(bucket, partition, low, known)])
                begin = min(begin, at)
            assigned.append(TopicPartition(self._mutations, partition, begin))
        self._broken.clear()
        self._topic = topic
        for bucket, offsets in lost.items():
            self._put(Lost(bucket, offsets, topic))
        self._put(Follows(topic))
        assigned.append(TopicPartition(self._stability, 0, begin_of_stability))
        reader.assign(assigned)
        self._stall_detector.assigned(assigned)

    def _vouched(
        self, bucket: str, partition: int, low: int, known: Mapping[int, int]
    ) -> list[int]:
        """Have records looked at again that a bucket has read: epochs by offset; return offsets."""
        found = [o for o, epoch in known.items() if epoch != NO_EPOCH and o >= low]
        for offset in found:
            self._witness.vouch(partition, Voucher(bucket, Offset(offset), known[offset]))
        return found

    def _topic_id(self) -> str:
        """Return the id of the topic: another one if it was made again. Raises KafkaException."""
        admin = AdminClient({**client_settings(self._servers), "log_level": 2})
        wanted = TopicCollection([self._mutations])
        answers = admin.describe_topics(wanted, request_timeout=CALL_TIMEOUT_S)
        try:
            return str(answers[self._mutations].result(2 * CALL_TIMEOUT_S).topic_id)
        except TimeoutError:
            said = f"nobody tells which topic {self._mutations} is"
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, said)) from None

    def _next(self, reader: Consumer) -> list[Message]:
        """Wait for a message, and take what has come with it.

        Raises OtherLogError and KafkaException.
        """
        stall_detector = self._stall_detector
        first = reader.poll(POLL_S)
        if first is None:
            stall_detector.check()
            return []
        found = []
        for message in (first, *reader.consume(MESSAGES_MAX, 0)):
            error = message.error()
            if error is None:
                found.append(message)
                stall_detector.note(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                stall_detector.note(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                if message.topic() == self._mutations:
                    raise OtherLogError(int(message.partition() or 0), error.str())
                raise KafkaException(error)
            elif not passes_by_itself(error):
                raise KafkaException(error)
        stall_detector.check()
        return found

    def _hand_over(self, messages: Iterable[Message]) -> bool:
        """Put what messages say into the queue; False: reading is to end.

        What comes after a doubt is read again.
        """
        group: list[Read] = []
        passed: dict[int, Position] = {}
        items, due = 0, GROUP_ITEMS
        for message in messages:
            if self._is_doubtful(message):
                break
            group += self._betrayed(message)
            one = self._said(message)
            if isinstance(one, Position):
                passed[one.partition] = one
                continue
            if isinstance(one, Delivery):
                passed.pop(one.partition, None)
                items += len(one.items)
            if one is not None:
                group.append(one)
            if items >= due:
                if not self._put(*group):
                    return False
                group, due = [], items + GROUP_ITEMS
        self._gathering.passed(items, time.monotonic())
        return self._put(*group, *passed.values())

    def _is_doubtful(self, message: Message) -> bool:
        """Tell whether reading begins anew, to see whether what was read is still there."""
        place = self._place(message)
        return place is not None and self._witness.doubts(*place)

    def _betrayed(self, message: Message) -> list[Lost]:
        """Return who has read a record that is gone, as this one shows."""
        place = self._place(message)
        if place is None:
            return []
        partition = place[0]
        broken = self._witness.broken(*place)
        return [Lost(v.bucket, {partition: v.offset + 1}) for v in broken]

    def _place(self, message: Message) -> tuple[int, Offset, int] | None:
        """Return partition, offset and leader epoch of a record of `mutations`."""
        if message.topic() != self._mutations:
            return None
        offset = Offset(int(message.offset() or 0))
        return int(message.partition() or 0), offset, _epoch_of(message)

    def _said(self, message: Message) -> Read | None:
        """Return what a message says to this indexer, None if that is nothing."""
        partition, offset = int(message.partition() or 0), int(message.offset() or 0)
        value = message.value() or b""
        is_mutations = message.topic() == self._mutations
        try:
            if not is_mutations:
                return read_stability(value)
            headers = dict(message.headers() or ())
            if headers.get(HEADER, self._mine) == self._mine:
                return Delivery(partition, Offset(offset), *read_record(value), _epoch_of(message))
        except Exception as error:
            # Whatever a record does to who decodes it: it is none, and others follow. Were it one
            # after all, the next record of its connection tells that it is missing.
            self._dead_letter(message, f"{type(error).__name__}: {error}")
        return Position(partition, Offset(offset + 1), _epoch_of(message)) if is_mutations else None

    def _put(self, *group: Read) -> bool:
        queued = [Queued(self._epoch, one) for one in group]
        while self._is_current():
            if not queued or self._queue.put(queued, POLL_S):
                return True
        return False


def _bounds(reader: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition and where it ends. Raises KafkaException."""
    low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), CALL_TIMEOUT_S)
    return int(low), int(high)


def _epoch_of(message: Message) -> int:
    epoch = message.leader_epoch()
    return NO_EPOCH if epoch is None else int(epoch)
