"""Ends transactions that Kafka has forgotten to end.

A transaction ends with a marker on each partition that it wrote. Kafka's transaction coordinator
writes the markers, and retries. But where a partition has no leader at that moment, Kafka 4.3 takes
the topic for deleted, leaves the marker out, and counts the transaction as complete. So it was seen
on a single broker that had stood still for longer than its session: it is fenced, and for some
milliseconds nobody leads. Nothing ends the transaction on that partition then. Its last stable
offset stays where it is, and whoever reads committed records waits for ever.

Who has initialised a transactional id knows that no transaction of an earlier epoch is under way:
Kafka answers when it has ended them all. One that is still open hangs. It is ended as the
coordinator decided, which the coordinator's own log, `__transaction_state`, tells: other partitions
may have their markers, and what belongs together must not differ. The requests are those of Kafka's
tool `kafka-transactions`.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from io import BytesIO
from typing import NamedTuple

from aiokafka import errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.types import Array, CompactArray, Int32, Schema, String
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from coordinator.kafka import readers
from coordinator.kafka.requests import DescribeProducersRequest, WriteTxnMarkersRequest, by_topic

log = logging.getLogger("coordinator")

TRANSACTION_STATE = "__transaction_state"
LAST = 50_000
"""So many records of the coordinator's log are looked at: a claim adds two, and each transaction
of anybody five."""

READ_S = 3.0
PARTITIONS_0 = Array(("topic", String("utf-8")), ("partitions", Array(Int32)))
PARTITIONS = by_topic(CompactArray(Int32))
"""How a record lists partitions: in its first version, and since."""

HEAD = struct.Struct(">hqhib")
"""How the value of a record begins: version, producer, its epoch, time-out, state."""


class State(IntEnum):
    """What the coordinator's log says of a transactional id."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


class Entry(NamedTuple):
    """A record of the coordinator's log about one transactional id.

    `partitions` are those that the transaction wrote, topic and number. The coordinator names them
    while it has to end it.
    """

    producer: int
    epoch: int
    state: State
    partitions: frozenset[tuple[str, int]] = frozenset()


class Writer(NamedTuple):
    """Who writes to a partition, as its leader says; `begins` is the first offset of a transaction
    that is open there, or negative."""

    producer: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    begins: int

    def hangs(self, producer: int, epoch: int) -> bool:
        """Tell whether this is a transaction of an earlier epoch of a producer."""
        return self.begins >= 0 and self.producer == producer and self.epoch < epoch


class Hanging(NamedTuple):
    """A transaction that is open on a partition, and that nobody will end."""

    topic: str
    partition: int
    leader: int
    writer: Writer


async def end_hanging(
    client: AIOKafkaClient,
    bootstrap_servers: str,
    transactional_id: str,
    producer: int,
    epoch: int,
    topics: Iterable[str],
) -> int:
    """End what hangs of a producer on these topics; return on how many partitions something did.

    `producer` and `epoch` are what the initialisation of `transactional_id` gave: whatever has an
    earlier epoch hangs. What cannot be ended now is told of, and left to the next one. Raises
    KafkaException, and KafkaError of aiokafka.
    """
    found = await _hanging(client, producer, epoch, sorted(set(topics)))
    if not found:
        return 0
    entries = await asyncio.to_thread(read_entries, bootstrap_servers, transactional_id)
    ended = 0
    for one in found:
        where = f"{one.topic}-{one.partition} from offset {one.writer.begins} on"
        committed = decision(entries, one)
        if committed is None:
            log.error("a transaction hangs on %s; what became of it is not known", where)
            continue
        try:
            await _end(client, one, committed)
        except errors.KafkaError as error:
            log.error("a transaction hangs on %s, and cannot be ended: %r", where, error)
            continue
        ended += 1
        verb = "committed" if committed else "aborted"
        log.warning("a transaction that Kafka had not ended hung on %s: %s it", where, verb)
    return ended


def decision(entries: Sequence[Entry], one: Hanging) -> bool | None:
    """Tell whether a transaction was committed; None: nobody knows.

    `entries` are in order. The last decision that names the partition counts: an earlier one would
    have been ended with it. Where the coordinator raises the epoch with the end of a transaction,
    or to fence its producer, the decision has the next epoch. If none names the partition, those of
    the epoch itself count where they are all the same.
    """
    writer, place = one.writer, (one.topic, one.partition)
    decided = [
        entry
        for entry in entries
        if entry.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        and entry.producer == writer.producer
        and entry.epoch in (writer.epoch, writer.epoch + 1)
    ]
    named = [entry.state for entry in decided if place in entry.partitions]
    own = [entry for entry in decided if entry.epoch == writer.epoch] or decided
    states = named[-1:] or {entry.state for entry in own}
    if len(states) != 1:
        return None
    return State.PREPARE_COMMIT in states


def read_entries(bootstrap_servers: str, transactional_id: str) -> list[Entry]:
    """Read what the coordinator's log says last of a transactional id. Raises KafkaException, also
    where it cannot be read to its end in time.
    """
    reader = readers.consumer(bootstrap_servers, "transaction-state")
    try:
        topic = reader.list_topics(TRANSACTION_STATE, READ_S).topics[TRANSACTION_STATE]
        if not topic.partitions:
            return []
        partition = partition_of(transactional_id, len(topic.partitions))
        place = TopicPartition(TRANSACTION_STATE, partition)
        low, end = readers.bounds(reader, place, READ_S)
        place.offset = max(low, end - LAST)
        reader.assign([place])
        entries: list[Entry] = []
        position = place.offset
        until_s = time.monotonic() + READ_S
        while position < end:
            if time.monotonic() > until_s:
                text = f"{TRANSACTION_STATE} was read up to {position}, and ends at {end}"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
            for message in readers.available(reader):
                if message.error() is None:
                    position = int(message.offset() or 0) + 1
                    entries += entries_in(message.key(), message.value(), transactional_id)
        return entries
    finally:
        reader.close()


def entries_in(key: object, value: object, transactional_id: str) -> Iterator[Entry]:
    """Yield what a record of the coordinator's log says, if it is about a transactional id."""
    name = transactional_id.encode()
    if key != struct.pack(">hh", 0, len(name)) + name:
        return
    if not isinstance(value, bytes) or len(value) < HEAD.size:
        return
    version, producer, epoch, _, state = HEAD.unpack_from(value)
    if state not in iter(State):
        return
    lists = Schema(("partitions", PARTITIONS if version else PARTITIONS_0))
    (listed,) = lists.decode(BytesIO(value[HEAD.size :]))
    partitions = frozenset((topic, n) for topic, numbers, *_ in listed or () for n in numbers)
    yield Entry(producer, epoch, State(state), partitions)


def partition_of(transactional_id: str, partitions: int) -> int:
    """Return the partition of the coordinator's log: the absolute value of Java's hash of the text,
    where the smallest integer counts as 0."""
    code = 0
    for (unit,) in struct.iter_unpack(">H", transactional_id.encode("utf-16-be")):
        code = (31 * code + unit) & 0xFFFF_FFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


async def _hanging(
    client: AIOKafkaClient, producer: int, epoch: int, topics: Sequence[str]
) -> list[Hanging]:
    """Ask the leaders of all partitions who has a transaction open there."""
    await client.set_topics([*topics])
    asked: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for topic in topics:
        for partition in client.cluster.partitions_for_topic(topic) or ():
            leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
            if leader is not None and leader >= 0:
                asked[leader][topic].append(partition)
            else:
                log.warning("%s-%d has no leader: what hangs there is not seen", topic, partition)
    requests = (client.send(n, DescribeProducersRequest(p)) for n, p in asked.items())
    answers = await asyncio.gather(*requests, return_exceptions=True)
    found = []
    for leader, answer in zip(asked, answers, strict=True):
        if isinstance(answer, BaseException):
            log.warning("broker %d does not say what hangs on it: %r", leader, answer)
            continue
        for topic, partitions, _ in answer.topics:
            for partition, error, _, active, _ in partitions:
                if error:
                    log.warning("%s-%d: who writes there is not told: %d", topic, partition, error)
                for one in active:
                    writer = Writer(*one[:-1])
                    if writer.hangs(producer, epoch):
                        found.append(Hanging(topic, partition, leader, writer))
    return found


async def _end(client: AIOKafkaClient, one: Hanging, committed: bool) -> None:
    """Write the marker that is missing. Raises KafkaError of aiokafka."""
    topic, partition, leader, writer = one
    epoch = max(0, writer.coordinator_epoch)
    request = WriteTxnMarkersRequest(
        topic, partition, writer.producer, writer.epoch, epoch, committed=committed
    )
    answer = await client.send(leader, request)
    for _, ended, _ in answer.markers:
        for _, partitions, _ in ended:
            for _, error, _ in partitions:
                if error:
                    raise errors.for_code(error)(f"the marker for {topic}-{partition}")
