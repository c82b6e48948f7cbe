"""The shell of an indexer: Kafka in, storage, Kafka out, and the clock. One thread.

It decides nothing: `allocation` does. What it must hold: a position is saved only together with
all that was read before it, and Kafka or the disk going away never ends the process. A log that
is not the one this folder has followed does.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from coordinator import codec
from coordinator.core.authority_state import AuthorityState
from coordinator.core.effects import Answer, Beat, Bury
from coordinator.core.entities import Index, index_key
from coordinator.core.records import (
    ClusterFormed,
    DeadLetter,
    HoldingsReported,
    HoldingsRequested,
    IndexerHeartbeat,
    Mutation,
    SliceAnswered,
)
from coordinator.kafka.producers import PlainProducer
from coordinator.kafka.readers import consumer, decode_event
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DEAD_LETTER,
    HEARTBEAT,
    HOUR_MS,
    STATECONTEXT,
    topic_name,
)
from indexer_sim.allocation import Action, Allocate, Desk, action_id, count
from indexer_sim.storage import Storage, StorageError
from schemas.registry import SchemaError

CALL_TIMEOUT_S = 1.0
"""No call to Kafka may block longer: a stop is due within two seconds."""

PAUSE_S = 0.5
BATCH_MAX = 1_000
FETCH_WAIT_MS = 500
FETCH_BUFFER_KBYTES = 4_096
SIZE_PERIOD_S = 2.0
AWAY_MS_MAX = 12 * HOUR_MS
"""After this long, tombstones past the position may be gone: half of `delete.retention.ms`."""

HOLDINGS_MAX = 1_000
"""So many fit into one part of a report, whatever their slices."""

INDEX_PREFIX = index_key(0)[:-1]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    indexer: int
    cluster: str
    bootstrap_servers: str
    data_dir: Path
    zone: str = ""
    heartbeat_ms: int = 500


class LogReplacedError(Exception):
    """The log is not the one that this folder has followed."""


class Indexer:
    """An indexer between its folder and a Kafka cluster that may come and go."""

    def __init__(self, options: Options, stopping: threading.Event) -> None:
        """Open the folder. Raises StorageError."""
        self.options = options
        self.stopping = stopping
        self.incarnation = secrets.randbits(63)
        self.storage = Storage(
            options.data_dir, f"indexer {options.indexer} of cluster {options.cluster}"
        )
        self.desk = Desk(options.indexer)
        for index_id, value in self.storage.indexes().items():
            self.desk.observe(index_id, codec.decode(value))
        self.desk.hold(self.storage.held, self.storage.shards)
        self.position: int | None = None
        self._saved_ms = 0
        if (place := self.storage.position()) is not None:
            self.position, self._saved_ms = place
        self.cas_base = self.storage.cas_base()
        self._asked: HoldingsRequested | None = None
        self._unsaved: dict[int, bytes | None] = {}
        self._saved = self.position
        self._complaints: set[str] = set()
        self._end = 0
        self._beat_due_s = 0.0
        self._size: tuple[float, int] = (0.0, 0)

    def run(self) -> None:
        """Serve until told to stop. Raises LogReplacedError and StorageError."""
        try:
            while not self.stopping.is_set():
                link = Link(self.options)
                try:
                    self._serve(link)
                except KafkaException as error:
                    self.complain("Kafka", error.args[0].str())
                    self.stopping.wait(PAUSE_S)
                finally:
                    link.close()
        finally:
            self._save()
            self.storage.close()

    def say(self, message: str) -> None:
        """Tell the operator."""
        with suppress(OSError):  # Where stderr goes, the disk may be full.
            print(f"indexer {self.options.indexer}: {message}", file=sys.stderr, flush=True)

    def complain(self, about: str, message: str) -> None:
        """Tell the operator of a fault, once until it is `settled`."""
        if about not in self._complaints:
            self._complaints.add(about)
            self.say(f"{about}: {message}; trying again")

    def settled(self, about: str) -> None:
        """Tell the operator that a fault is over, if it was told of."""
        if about in self._complaints:
            self._complaints.discard(about)
            self.say(f"{about}: well again")

    # -- following ---------------------------------------------------------------------------

    def _serve(self, link: Link) -> None:
        """Follow `statecontext` over one connection until it fails or the process stops."""
        kafka_id = link.connect(self.stopping)
        if kafka_id is None:
            return
        self.storage.bind("kafka", f"Kafka cluster {kafka_id}")
        self._begin(link)
        while not self.stopping.is_set():
            messages = link.read(max(0.0, self._beat_due_s - time.monotonic()))
            if messages:
                self._take(link, messages)
            if not self.desk.complete and (link.at_end or (self.position or 0) >= self._end):
                self._caught_up()
                self._act(link)
            self._report(link)
            if time.monotonic() >= self._beat_due_s:
                self._beat(link)

    def _begin(self, link: Link) -> None:
        """Begin reading at the position, or at the log's start, and note where the log ends now."""
        low, end = link.bounds()
        self._end = end
        if self.position is not None and self.position > end:
            raise LogReplacedError(
                f"this folder has followed {link.topic} up to offset {self.position}, but the log "
                f"ends at {end}: the log was lost or replaced"
            )
        if self.position is None or self.position < low or self._was_away():
            self.desk.read_again()
            self.position = low
        link.follow(self.position, with_commit=self.cas_base is None)
        self.settled("Kafka")
        self.say(f"following {link.topic} from offset {self.position}")

    def _was_away(self) -> bool:
        """Tell whether the log may have forgotten drops that this indexer has not heard of."""
        return not 0 <= wall_ms() - self._saved_ms <= AWAY_MS_MAX

    def _take(self, link: Link, messages: list[Message]) -> None:
        """Note what records say, save it, and act on it."""
        base_known = self.cas_base is not None
        moved = False
        for message in messages:
            if message.topic() == link.heartbeat:
                if self._is_told_to_reread(message):
                    self.position = None
                    self._begin(link)
                    return
                continue
            if message.topic() != link.topic:
                self._learn_base(message)
                continue
            try:
                self._note(message)
            except SchemaError as error:
                link.bury(message, f"{error.code}: {error}")
                self.say(f"offset {message.offset()} cannot be read and is a dead letter: {error}")
            self.position = int(message.offset() or 0) + 1
            moved = True
        if not base_known and self.cas_base is not None:
            link.follow(self.position or 0, with_commit=False)
        if self._unsaved:
            self._save()
        if moved and self.desk.complete:
            self._act(link)

    def _note(self, message: Message) -> None:
        """Note what one record says. Raises SchemaError."""
        mutation = decode_event(message, 0).mutation
        if mutation.key.encode() != message.key():
            raise SchemaError("bad_body", f"the event is about {mutation.key}, its key is another")
        if not mutation.key.startswith(INDEX_PREFIX):
            return
        index_id, index = _index_in(mutation)
        if self.desk.observe(index_id, index):
            self._unsaved[index_id] = mutation.value if index_id in self.desk.indexes else None

    def _is_told_to_reread(self, message: Message) -> bool:
        """Note whether the master asks what is held here; tell whether it distrusts the answer."""
        if message.key() != str(self.options.indexer).encode():
            return False
        try:
            record = codec.decode(message.value() or b"")
        except SchemaError:
            return False  # The nodes read the topic too, and make it a dead letter.
        mine = (self.options.indexer, self.incarnation)
        if (
            not isinstance(record, HoldingsRequested)
            or (record.indexer, record.incarnation) != mine
        ):
            return False
        self._asked = record
        if record.reread:
            self.say("the master finds differences: reading the state from its start")
        return record.reread

    def _report(self, link: Link) -> None:
        """Tell the master everything that is held here, in parts, once it is up to date."""
        asked = self._asked
        if asked is None or not self.desk.complete or self.cas_base is None:
            return
        self._asked = None
        holdings = self.desk.report()
        parts = max(1, -(-len(holdings) // HOLDINGS_MAX))
        for part in range(parts):
            link.answer(
                HoldingsReported(
                    self.options.indexer,
                    self.incarnation,
                    asked.round,
                    self.cas,
                    part,
                    parts,
                    tuple(holdings[part * HOLDINGS_MAX : (part + 1) * HOLDINGS_MAX]),
                )
            )

    @property
    def cas(self) -> int:
        """How far the StateContext was followed, 0 while that is not known."""
        return (self.cas_base or 1) + self.position - 1 if self.position else 0

    def _learn_base(self, message: Message) -> None:
        """Take the base of all CAS from the Authority's log, once."""
        base = base_in(message.value())
        if base is not None and self.cas_base is None:
            self.cas_base = base
            with suppress(StorageError):
                self.storage.save_cas_base(base)

    def _caught_up(self) -> None:
        for index_id in self.desk.caught_up():
            self._unsaved[index_id] = None
        self._save()

    def _save(self, *, touch: bool = False) -> None:
        """Save position and states; what the disk refuses is tried again with the next beat.

        Not before the log was read to its end: a reading from its start that did not get there
        must start again. `touch` saves the time alone, too.
        """
        if self.position is None or not self.desk.complete:
            return
        if self.position == self._saved and not self._unsaved and not touch:
            return
        now_ms = wall_ms()
        try:
            self.storage.save(self.position, self._unsaved, now_ms)
        except StorageError as error:
            self.complain("the position cannot be saved", error.message)
        else:
            self.settled("the position cannot be saved")
            self._unsaved = {}
            self._saved, self._saved_ms = self.position, now_ms

    # -- acting ------------------------------------------------------------------------------

    def _act(self, link: Link) -> None:
        """Do what there is to do and answer what there is to answer."""
        for action in self.desk.plan():
            self._carry_out(action)
        self.desk.hold(self.storage.held, self.storage.shards)
        for reply in self.desk.replies():
            link.answer(
                SliceAnswered(
                    self.options.indexer,
                    self.incarnation,
                    reply.index_id,
                    reply.answer,
                    reply.reason,
                    reply.slices,
                    reply.shard,
                )
            )
        self.desk.close_finished()

    def _carry_out(self, action: Action) -> None:
        """Allocate or release, and say what came of it."""
        number = action_id(action)
        about = f"storage of index {number}"
        try:
            if isinstance(action, Allocate):
                index = action.index
                self.storage.allocate(index.bucket, number, action.slices, codec.encode(index))
            else:
                self.storage.release(number, action.slices)
        except StorageError as error:
            if isinstance(action, Allocate) and self.desk.refuse(action, error.message):
                self.say(f"{about} is refused: {error.message}")
            else:
                self.complain(about, error.message)
        else:
            self.settled(about)
            done = "allocated" if isinstance(action, Allocate) else "released"
            self.say(f"index {number}: {done} {_slices(len(action.slices))}")

    def _beat(self, link: Link) -> None:
        """Send a heartbeat, and repeat every answer that somebody may still wait for."""
        stale = not 0 <= wall_ms() - self._saved_ms < HOUR_MS
        if stale:
            link.bounds()  # Raises where Kafka is out of reach: only contact keeps it fresh.
        self._save(touch=stale)
        if self.storage.tend():
            self.desk.hold(self.storage.held, self.storage.shards)
        if self.desk.open:
            self._act(link)
        now = time.monotonic()
        if now - self._size[0] >= SIZE_PERIOD_S:
            self._size = (now, self.storage.size_bytes())
        link.beat(self._heartbeat())
        self._beat_due_s = now + self.options.heartbeat_ms / 1000

    def _heartbeat(self) -> IndexerHeartbeat:
        return IndexerHeartbeat(
            indexer=self.options.indexer,
            incarnation=self.incarnation,
            address=f"indexer-{self.options.indexer}",
            zone=self.options.zone,
            pid=os.getpid(),
            slices=count(self.desk.held.values()),
            bytes=self._size[1],
            cas=self.cas,
            at_ms=wall_ms(),
        )


class Link:
    """One connection to Kafka: a consumer, a producer, and what they are used for."""

    def __init__(self, options: Options) -> None:
        self.topic = topic_name(options.cluster, STATECONTEXT)
        self.commit = topic_name(options.cluster, COMMIT)
        self.heartbeat = topic_name(options.cluster, HEARTBEAT)
        self._needed = {
            topic_name(options.cluster, name) for name in (COMMIT, ACKS, HEARTBEAT, DEAD_LETTER)
        } | {self.topic}
        self._options = options
        self._consumer = consumer(
            options.bootstrap_servers,
            f"indexer-{options.indexer}",
            **{
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.max.messages.kbytes": FETCH_BUFFER_KBYTES,
            },
        )
        self._producer: PlainProducer | None = None
        self.at_end = False

    def connect(self, stopping: threading.Event) -> str | None:
        """Wait until the topics are there; return the Kafka cluster's id, None if stopped."""
        while not stopping.is_set():
            metadata = self._consumer.list_topics(timeout=CALL_TIMEOUT_S)
            if self._needed <= metadata.topics.keys():
                self._producer = PlainProducer(
                    self._options.bootstrap_servers, self._options.cluster, ignore
                )
                return str(metadata.cluster_id)
            stopping.wait(PAUSE_S)
        return None

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of `statecontext`, and its last stable one."""
        low, end = self._consumer.get_watermark_offsets(
            TopicPartition(self.topic, 0), CALL_TIMEOUT_S
        )
        return int(low), int(end)

    def follow(self, position: int, *, with_commit: bool) -> None:
        """Read `statecontext` from `position` on, what comes on `heartbeat`, and `commit` from
        its start, if asked."""
        places = [
            TopicPartition(self.topic, 0, position),
            TopicPartition(self.heartbeat, 0, OFFSET_END),
        ]
        if with_commit:
            low, _ = self._consumer.get_watermark_offsets(
                TopicPartition(self.commit, 0), CALL_TIMEOUT_S
            )
            places.append(TopicPartition(self.commit, 0, low))
        self.at_end = False
        self._consumer.assign(places)

    def read(self, timeout_s: float) -> list[Message]:
        """Wait for a record, and take what has come with it. Raises KafkaException."""
        first = self._consumer.poll(timeout_s)
        if self._producer is not None:
            self._producer.serve()
        if first is None:
            return []
        found: list[Message] = []
        for message in (first, *self._consumer.consume(BATCH_MAX, 0)):
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                self.at_end = self.at_end or message.topic() == self.topic
            elif not passing(error):
                raise KafkaException(error)
        return found

    def answer(self, record: SliceAnswered | HoldingsReported) -> None:
        if self._producer is not None:
            self._producer.answer(Answer(record))

    def beat(self, record: IndexerHeartbeat) -> None:
        if self._producer is not None:
            self._producer.beat(Beat(record))

    def bury(self, message: Message, reason: str) -> None:
        if self._producer is not None:
            letter = DeadLetter(
                str(message.topic()),
                int(message.partition() or 0),
                int(message.offset() or 0),
                reason,
                message.value() or b"",
                wall_ms(),
            )
            self._producer.bury(Bury(letter))

    def close(self) -> None:
        if self._producer is not None:
            self._producer.flush(CALL_TIMEOUT_S / 2)
        self._consumer.close()


def _index_in(mutation: Mutation) -> tuple[int, Index | None]:
    """Return the index that a mutation is about, and its state. Raises SchemaError."""
    entity = mutation.entity
    digits = mutation.key[len(INDEX_PREFIX) :]
    if not digits.isdecimal():
        raise SchemaError("bad_body", f"{mutation.key} names no index")
    index_id = int(digits)
    if entity is None:
        return index_id, None
    if not isinstance(entity, Index) or entity.id != index_id:
        raise SchemaError("bad_body", f"{mutation.key} holds something else")
    return index_id, entity


def base_in(value: Any) -> int | None:
    """Return the base of all CAS that a record of `commit` carries, if it does."""
    try:
        record = codec.decode(value or b"")
    except SchemaError:
        return None
    if isinstance(record, ClusterFormed):
        return record.cas_base
    snapshot = getattr(record, "snapshot", None)
    return snapshot.cas_base if isinstance(snapshot, AuthorityState) else None


def passing(error: KafkaError) -> bool:
    """Tell whether the client gets over `error` by itself."""
    return bool(error.retriable()) or error.code() in (
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
    )


def ignore(_: Any) -> None:
    """Take no notice: what was lost is sent again with the next heartbeat."""


def _slices(number: int) -> str:
    return "1 slice" if number == 1 else f"{number} slices"


def wall_ms() -> int:
    return time.time_ns() // 1_000_000
