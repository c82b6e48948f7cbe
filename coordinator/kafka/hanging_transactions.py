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
may have their markers, and what belongs together must not differ. Kafka's requests for this are
those of its tool `kafka-transactions`; the Python clients do not have them.
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
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaError as KafkaTrouble
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place

from coordinator.kafka import readers

log = logging.getLogger("coordinator")

TRANSACTION_STATE = "__transaction_state"
LAST = 50_000
"""So many records of the coordinator's log are looked at: a claim adds two, and each transaction
of anybody five."""

READ_S = 3.0
PARTITIONS_0 = Array(("topic", String("utf-8")), ("partitions", Array(Int32)))
PARTITIONS = CompactArray(
    ("topic", CompactString("utf-8")), ("partitions", CompactArray(Int32)), ("tags", TaggedFields)
)
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
        except KafkaError as error:
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
        place = Place(TRANSACTION_STATE, partition)
        low, end = readers.bounds(reader, place, READ_S)
        place.offset = max(low, end - LAST)
        reader.assign([place])
        entries: list[Entry] = []
        position = place.offset
        until_s = time.monotonic() + READ_S
        while position < end:
            if time.monotonic() > until_s:
                text = f"{TRANSACTION_STATE} was read up to {position}, and ends at {end}"
                raise KafkaException(KafkaTrouble(KafkaTrouble._TIMED_OUT, text))
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
    requests = (client.send(n, DescribeProducersRequest([*p.items()])) for n, p in asked.items())
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
    writer = one.writer
    topics: list[Any] = [(one.topic, [one.partition], {})]
    epoch = max(0, writer.coordinator_epoch)
    marker: tuple[Any, ...] = (writer.producer, writer.epoch, committed, topics, epoch, {})
    answer = await client.send(one.leader, WriteTxnMarkersRequest([marker]))
    for _, ended, _ in answer.markers:
        for _, partitions, _ in ended:
            for _, error, _ in partitions:
                if error:
                    raise for_code(error)(f"the marker for {one.topic}-{one.partition}")


# -- Kafka's requests, which the clients do not have ---------------------------------------------


class DescribeProducersAnswer(Response):  # type: ignore[misc]
    """Who writes to partitions, and since when a transaction is open there."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("error_message", CompactString("utf-8")),
                        (
                            "active",
                            CompactArray(
                                ("producer", Int64),
                                ("epoch", Int32),
                                ("last_sequence", Int32),
                                ("last_timestamp", Int64),
                                ("coordinator_epoch", Int32),
                                ("transaction_begins", Int64),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersStruct(RequestStruct):  # type: ignore[misc]
    """Asks the leader of partitions."""

    API_KEY = 61
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeProducersAnswer
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeProducersRequest(Request[DescribeProducersStruct]):  # type: ignore[misc]
    """The same in the version that a broker knows."""

    API_KEY = 61

    def __init__(self, places: Sequence[tuple[str, Sequence[int]]]) -> None:
        """`places` are partitions by topic."""
        self._places = places

    def build(self, request_struct_class: type[RequestStruct]) -> DescribeProducersStruct:
        return DescribeProducersStruct([(t, [*p], {}) for t, p in self._places], {})


class WriteTxnMarkersAnswer(Response):  # type: ignore[misc]
    """What became of each marker."""

    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer", Int64),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        (
                            "partitions",
                            CompactArray(
                                ("partition", Int32),
                                ("error_code", Int16),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class WriteTxnMarkersStruct(RequestStruct):  # type: ignore[misc]
    """Asks the leader of partitions to write markers."""

    API_KEY = 27
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = WriteTxnMarkersAnswer
    SCHEMA = Schema(
        (
            "markers",
            CompactArray(
                ("producer", Int64),
                ("epoch", Int16),
                ("committed", Boolean),
                (
                    "topics",
                    CompactArray(
                        ("name", CompactString("utf-8")),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("coordinator_epoch", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class WriteTxnMarkersRequest(Request[WriteTxnMarkersStruct]):  # type: ignore[misc]
    """The same in the version that a broker knows."""

    API_KEY = 27

    def __init__(self, markers: Sequence[tuple[Any, ...]]) -> None:
        self._markers = markers

    def build(self, request_struct_class: type[RequestStruct]) -> WriteTxnMarkersStruct:
        return WriteTxnMarkersStruct([*self._markers], {})
