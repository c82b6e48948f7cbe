"""Reading `mutations` and `stability`: one consumer for all buckets, and a queue with a bound.

What must hold: deliveries come out of the queue in the order of their partitions, and a position
behind all that came before it. Reading begins at the lowest offset that a bucket still needs; what
is below its own, a bucket has already. Where a bucket goes back, all that was read before is void:
`epoch` tells it from what is read after. A record that is none goes to the dead letters, as a
whole, and counts as read. While the queue is full nothing is read, and Kafka keeps it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from coordinator import codec
from coordinator.core.key_versions import ABSENT, ATTACH, BEGIN, VBUUID, Item, begun, unpack
from coordinator.core.stream_records import (
    ConsolidatedStability,
    KeyVersions,
    StabilityTimestamp,
)
from coordinator.kafka.following import CALL_TIMEOUT_S, PAUSE_S, passing
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import MUTATIONS, STABILITY, STREAM_PARTITIONS, topic_name
from coordinator.kafka.vigil import Vigil
from schemas.registry import SchemaError

HEADER = "indexer"
ITEMS_MAX = 32_768
"""So many items may wait, about 10 MiB of them."""

MESSAGES_MAX = 64
GROUP_ITEMS = 4_096
"""So many items, about, are put into the queue at once."""

PACE_S = 0.005
"""Who has read all that there was lets so much time pass: the more comes, the more comes together,
and neither this thread nor the next wakes up for a single record."""

POLL_S = 0.2
FETCH_WAIT_MS = 100
FETCH_BUFFER_KBYTES = 8_192


class Delivery(NamedTuple):
    """A record for this indexer, and where it stood."""

    partition: int
    offset: int
    head: KeyVersions
    items: list[Item]


class Position(NamedTuple):
    """All below this offset of a partition was delivered, or is for others."""

    partition: int
    offset: int


class Lost(NamedTuple):
    """A bucket needs what Kafka does not have any more; it goes on at these offsets."""

    bucket: str
    offsets: Mapping[int, int]


Stability = StabilityTimestamp | ConsolidatedStability
Read = Delivery | Position | Lost | Stability


class Needed(NamedTuple):
    """Where each bucket goes on, by partition; another `epoch` after one has gone back."""

    epoch: int
    offsets: Mapping[str, Mapping[int, int]]


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
        """Forget all: it is read again."""
        with self._changed:
            self._queue.clear()
            self.waiting = 0
            self._changed.notify_all()


def _weight(queued: Queued) -> int:
    return len(queued.one.items) if isinstance(queued.one, Delivery) else 0


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
        if item[0] > ABSENT or item[3] >= places:
            _check(item, places)
    return record, items


def _check(item: Item, places: int) -> None:
    """Refuse an item that does not fit its record. ValueError."""
    if item.place >= places and item.kind in (*range(ABSENT + 1), ATTACH):
        raise ValueError("an item of no index")
    if item.kind == BEGIN and any(place >= places for place in begun(item)[1]):
        raise ValueError("a BEGIN of no index")
    if item.kind == ATTACH and len(item.payload) != VBUUID.size:
        raise ValueError("an ATTACH without its branch")


class MutationReader:
    """Reads in a thread of its own, as long as there are buckets."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        indexer: int,
        queue: MutationQueue,
        needed: Callable[[], Needed],
        bury: Callable[[Message, str], None],
        failed: Callable[[str], None],
        well: Callable[[], None],
    ) -> None:
        """`needed` tells where each bucket goes on; `failed` hears of faults, `well` of none."""
        self._servers = bootstrap_servers
        self._name = f"indexer-{indexer}-mutations"
        self._mine = str(indexer).encode()
        self._mutations = topic_name(cluster, MUTATIONS)
        self._stability = topic_name(cluster, STABILITY)
        self._queue = queue
        self._needed = needed
        self._bury = bury
        self._failed = failed
        self._well = well
        self._stopping = threading.Event()
        self._epoch = 0
        self._vigil: Vigil
        self._thread = threading.Thread(target=self._run, name="mutations", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        self._thread.join(CALL_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._needed().offsets:
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
            self._vigil = Vigil(reader)
            try:
                while self._read(reader):
                    pass
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
        while self._is_current() and needed.offsets:
            messages = _next(reader, self._vigil)
            if self._hand_over(messages) and 0 < len(messages) < MESSAGES_MAX:
                self._stopping.wait(PACE_S)
            needed = self._needed()
        return bool(needed.offsets) and not self._stopping.is_set()

    def _is_current(self) -> bool:
        return not self._stopping.is_set() and self._needed().epoch == self._epoch

    def _assign(self, reader: Consumer, needed: Needed) -> None:
        """Begin at the lowest offset that is needed, of those that there are."""
        begin: dict[int, int] = {}
        lost: dict[str, dict[int, int]] = {}
        for partition in range(STREAM_PARTITIONS):
            low, high = _bounds(reader, self._mutations, partition)
            places = [high]
            for bucket, offsets in needed.offsets.items():
                at = offsets.get(partition, high)
                if not low <= at <= high:
                    at = lost.setdefault(bucket, {})[partition] = low
                places.append(at)
            begin[partition] = min(places)
        for bucket, offsets in lost.items():
            self._put(Lost(bucket, offsets))
        assigned = [TopicPartition(self._mutations, p, offset) for p, offset in begin.items()]
        assigned.append(TopicPartition(self._stability, 0, _bounds(reader, self._stability, 0)[0]))
        reader.assign(assigned)
        self._vigil.assigned(assigned)

    def _hand_over(self, messages: Iterable[Message]) -> bool:
        """Put what messages say into the queue; False: reading is to end."""
        group: list[Read] = []
        passed: dict[int, int] = {}
        items = 0
        for message in messages:
            one = self._said(message)
            if isinstance(one, Position):
                passed[one.partition] = one.offset
                continue
            if isinstance(one, Delivery):
                passed.pop(one.partition, None)
                items += len(one.items)
            if one is not None:
                group.append(one)
            if items >= GROUP_ITEMS:
                if not self._put(*group):
                    return False
                group, items = [], 0
        return self._put(*group, *(Position(*place) for place in passed.items()))

    def _said(self, message: Message) -> Read | None:
        """Return what a message says to this indexer, None if that is nothing."""
        partition, offset = int(message.partition() or 0), int(message.offset() or 0)
        value = message.value() or b""
        is_mutations = message.topic() == self._mutations
        try:
            if not is_mutations:
                record = codec.decode(value)
                return record if isinstance(record, Stability) else None
            headers = dict(message.headers() or ())
            if headers.get(HEADER, self._mine) == self._mine:
                return Delivery(partition, offset, *read_record(value))
        except ValueError as error:
            self._bury(message, f"{type(error).__name__}: {error}")
        return Position(partition, offset + 1) if is_mutations else None

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


def _next(reader: Consumer, vigil: Vigil) -> list[Message]:
    """Wait for a message, and take what has come with it. Raises KafkaException."""
    first = reader.poll(POLL_S)
    if first is None:
        vigil.look()
        return []
    found = []
    for message in (first, *reader.consume(MESSAGES_MAX, 0)):
        error = message.error()
        if error is None:
            found.append(message)
            vigil.heard(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            vigil.heard(message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET or not passing(error):
            raise KafkaException(error)
    vigil.look()
    return found
