"""The shell of an indexer: Kafka in, storage, Kafka out, and the clock. One thread.

It decides nothing: `allocation` does. What it must hold: a position is saved only together with
all that was read before it, and Kafka or the disk going away never ends the process. A log that
is not the one this folder has followed does.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from coordinator import codec
from coordinator.core.catalog.rebalance_settings import REBALANCE, rebalance_of
from coordinator.core.model.entities import (
    Bucket,
    Entity,
    Index,
    Rollback,
    bucket_key,
    index_key,
    setting_key,
)
from coordinator.core.model.records import (
    HoldingsReported,
    HoldingsRequested,
    IndexerHeartbeat,
    Mutation,
    SliceAnswered,
)
from coordinator.core.model.types import Cas
from coordinator.kafka.log_reader import base_in, decode_event
from coordinator.kafka.producers import DeadLetters, PlainProducer
from coordinator.kafka.readers import TOGETHER, LogProbe
from coordinator.kafka.state_follower import (
    CALL_TIMEOUT_S,
    PAUSE_S,
    Link,
    StatusLog,
    WatchedConsumer,
    ignore,
    wall_ms,
)
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DEAD_LETTER,
    FAILOVER_LOG,
    HEARTBEAT,
    HOUR_MS,
    MUTATIONS,
    STABILITY,
    STREAM_PARTITIONS,
    topic_name,
)
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.allocation import (
    NONE,
    Action,
    Allocate,
    AllocationPlanner,
    action_id,
    count,
)
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.transfers import Giving
from indexer_sim.pipeline.data_plane import DataPlane
from indexer_sim.pipeline.histories import Histories
from indexer_sim.pipeline.late_beats import LateBeats
from indexer_sim.scans.api import ScanServer
from indexer_sim.scans.reader import StorageReading
from schemas.registry import SchemaError

SIZE_PERIOD_S = 2.0

LISTEN_S = 0.05
"""So long nobody looks whether the master asks for something."""

ACT_S = 0.2
AWAY_MS_MAX = 12 * HOUR_MS
"""After this long, tombstones past the position may be gone: half of `delete.retention.ms`."""

AHEAD_S = 30.0
"""The state is read long before that."""

SHORT_S = 10.0
"""So long it may look as if the log ended before the position."""

HOLDINGS_MAX = 1_000
"""So many fit into one part of a report, whatever their slices."""

INDEX_PREFIX = index_key(0)[:-1]
BUCKET_PREFIX = bucket_key("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    indexer: int
    cluster: str
    bootstrap_servers: str
    data_dir: Path
    zone: str = ""
    heartbeat_ms: int = 500
    host: str = "127.0.0.1"
    port: int = 0
    checkpoint_s: float = 10.0
    allowed_hosts: tuple[str, ...] = ()


class LogReplacedError(Exception):
    """The log is not the one that this folder has followed."""


class PortTakenError(Exception):
    """Scans cannot be answered at the address that was given."""


class Indexer:
    """An indexer between its folder and a Kafka cluster that may come and go.

    Large because it puts all parts of an indexer together and takes them apart again.
    """

    def __init__(self, options: Options, stopping: threading.Event) -> None:
        """Open the folder, and take the port. Raises StorageError and PortTakenError."""
        self.options = options
        self.stopping = stopping
        self.incarnation = secrets.randbits(63)
        self.storage = Storage(
            options.data_dir, f"indexer {options.indexer} of cluster {options.cluster}"
        )
        self.planner = AllocationPlanner(indexer=options.indexer)
        for index_id, value in self.storage.indexes().items():
            self.planner.observe(index_id, codec.decode(value))
        self.planner.hold(self.storage.held, self.storage.shards)
        self.position: int | None = None
        self._saved_ms = 0
        if (place := self.storage.position()) is not None:
            self.position, self._saved_ms = place
        self.cas_base = self.storage.cas_base()
        self._asked: HoldingsRequested | None = None
        self._unsaved: dict[int, bytes | None] = {}
        self._is_behind = False
        """There is more to do than was done at once."""
        self._saved = self.position
        self.threads = Threads(stopping.set)
        status_log = StatusLog(f"indexer {options.indexer}")
        self.info, self.problem, self.resolved = (
            status_log.info,
            status_log.problem,
            status_log.resolved,
        )
        self._end = 0
        self._short_since_s: float | None = None
        """Since when every broker that was asked has said that the log ends before the position."""
        self._beat_due_s = 0.0
        self._late_beats = LateBeats(options.heartbeat_ms / 1000)
        self._size: tuple[float, int] = (0.0, 0)
        self._ahead_since: dict[int, float] = {}
        self._dead_letters = DeadLetters(options.cluster)
        self.histories = Histories(self.storage)
        self.giving = Giving(self.storage, options.indexer)
        self.scans = self._scan_server()
        self.data = DataPlane(
            options.bootstrap_servers,
            options.cluster,
            (options.indexer, self.incarnation),
            options.heartbeat_ms / 1000,
            options.checkpoint_s,
            self.storage,
            status_log,
            self.threads,
            self._dead_letters,
            self._late_beats,
            self.scans.waiting.changed,
        )
        for value in self.storage.rollbacks():
            self.data.applier.roll_back(codec.decode(value))
        if setting := self.storage.rebalance():
            self._slow_down(codec.decode(setting))

    def _slow_down(self, setting: Entity | None) -> None:
        self.data.documents_per_s = rebalance_of(setting).documents_per_s

    def _scan_server(self) -> ScanServer:
        host, port = self.options.host, self.options.port
        try:
            return ScanServer(
                StorageReading(self.storage, self.histories.heard),
                self.options.indexer,
                self.threads,
                host,
                port,
                self.options.allowed_hosts,
                self.giving,
            )
        except OSError as error:
            self.storage.close()
            raise PortTakenError(f"{host}:{port}: {error.strerror}") from error

    def run(self) -> None:
        """Serve until told to stop. Raises LogReplacedError, StorageError, ThreadEndedError."""
        self.scans.start()
        try:
            while not self.stopping.is_set():
                link = IndexerLink(self.options, self._dead_letters)
                try:
                    self._serve(link)
                except KafkaException as error:
                    self.problem("Kafka", error.args[0].str())
                    self.stopping.wait(PAUSE_S)
                finally:
                    link.close()
        finally:
            self.data.end()
            self._save()
            self.scans.stop()
            self.data.stop()
            self._send_dead_letters()
            self.storage.close()
        self.threads.check()

    def _send_dead_letters(self) -> None:
        """Send the dead letters that were written last; where Kafka is away, they are lost."""
        if self._dead_letters:
            options = self.options
            last = PlainProducer(
                options.bootstrap_servers, options.cluster, ignore, self._dead_letters
            )
            last.close(CALL_TIMEOUT_S)

    # -- following ---------------------------------------------------------------------------

    def _serve(self, link: IndexerLink) -> None:
        """Follow `statecontext` over one connection until it fails or the process stops."""
        kafka_id = link.connect(self.stopping)
        if kafka_id is None:
            return
        self.storage.bind("kafka", f"Kafka cluster {kafka_id}")
        self._begin(link)
        while not self.stopping.is_set():
            is_behind = self._is_behind or self.histories.are_waiting
            wait_s = 0.0 if is_behind else self._beat_due_s - time.monotonic()
            messages = link.read(max(0.0, wait_s))
            if messages:
                self._handle_messages(link, messages)
            self.histories.ends(link.reached(link.failover_log))
            self.histories.tell()
            if self._is_behind:
                self._act(link)
            if not self.planner.complete and (link.at_end or (self.position or 0) >= self._end):
                self._caught_up()
                self._act(link)
            self._report(link)
            if time.monotonic() >= self._beat_due_s:
                self._beat(link)

    def _begin(self, link: IndexerLink) -> None:
        """Begin reading at the position, or at the log's start, and note where the log ends now."""
        low, end = link.bounds()
        self._end = end
        self.histories.begin()
        self._check_end(link.topic, end)
        if self.position is None or self.position < low or self._was_away():
            self.planner.read_again()
            self.position = low
        link.follow(self.position, with_commit=self.cas_base is None)
        self.resolved("Kafka")
        self.info(f"following {link.topic} from offset {self.position}")

    def _check_end(self, topic: str, end: int) -> None:
        """Refuse a log that ends before the position. Raises LogReplacedError, KafkaException.

        Not at once: a broker that has hung for a while may not know yet that another one leads.
        """
        if self.position is None or self.position <= end:
            self._short_since_s = None
            return
        text = f"followed {topic} up to offset {self.position}, but the log ends at {end}"
        now = time.monotonic()
        self._short_since_s = self._short_since_s or now
        if now - self._short_since_s < SHORT_S:
            raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, text))
        raise LogReplacedError(f"this folder has {text}: the log was lost or replaced")

    def _was_away(self) -> bool:
        """Tell whether the log may have forgotten drops that this indexer has not heard of."""
        return not 0 <= wall_ms() - self._saved_ms <= AWAY_MS_MAX

    def _handle_messages(self, link: IndexerLink, messages: list[Message]) -> None:
        """Note what records say, save it, and act on it."""
        rereads = False
        for message in messages:
            if message.topic() == link.heartbeat:
                rereads |= self._is_told_to_reread(message)
        if rereads:
            self.position = None
            self._begin(link)
            return
        base_known = self.cas_base is not None
        moved = False
        for message in messages:
            if message.topic() == link.heartbeat:
                continue
            if message.topic() == link.failover_log:
                self.histories.note(message)
                continue
            if message.topic() != link.topic:
                self._learn_base(message)
                continue
            try:
                self._note(message)
            except SchemaError as error:
                self._dead_letter(link, message, f"{error.code}: {error}")
            except (StorageError, KafkaException):
                raise
            except Exception as error:
                # Whatever a record does to who reads it: others follow.
                self._dead_letter(link, message, f"{type(error).__name__}: {error}")
            self.position = int(message.offset() or 0) + 1
            moved = True
        if not base_known and self.cas_base is not None:
            link.follow(self.position or 0, with_commit=False)
        if self._unsaved:
            self._save()
        if moved and self.planner.complete:
            self._act(link)

    def _dead_letter(self, link: IndexerLink, message: Message, reason: str) -> None:
        link.dead_letter(message, reason)
        self.info(f"offset {message.offset()} cannot be read and is a dead letter: {reason}")

    def _note(self, message: Message) -> None:
        """Note what one record says. Raises SchemaError."""
        mutation = decode_event(message, 0).mutation
        if mutation.key.encode() != message.key():
            raise SchemaError("bad_body", f"the event is about {mutation.key}, its key is another")
        if mutation.key.startswith(BUCKET_PREFIX):
            if isinstance(mutation.entity, Bucket):
                self.storage.know(mutation.entity.name, mutation.entity.vbuckets)
            return
        if isinstance(mutation.entity, Rollback):
            self.storage.know_rollback(mutation.entity.bucket, mutation.value or b"")
            self.data.applier.roll_back(mutation.entity)
        if mutation.key == setting_key(REBALANCE):
            self.storage.know_rebalance(mutation.value or b"")
            self._slow_down(mutation.entity)
        if not mutation.key.startswith(INDEX_PREFIX):
            return
        index_id, index = _index_in(mutation)
        if self.planner.observe(index_id, index):
            self._unsaved[index_id] = mutation.value if index_id in self.planner.indexes else None

    def _is_told_to_reread(self, message: Message) -> bool:
        """Note whether the master asks what is held here; tell whether it distrusts the answer."""
        if message.key() != str(self.options.indexer).encode():
            self._meet(message)
            return False
        try:
            record = codec.decode(message.value() or b"")
        except Exception:
            return False  # Whatever it is: the nodes read the topic too, and make it a dead letter.
        mine = (self.options.indexer, self.incarnation)
        if (
            not isinstance(record, HoldingsRequested)
            or (record.indexer, record.incarnation) != mine
        ):
            return False
        self._asked = record
        if record.reread:
            self.info("the master finds differences: reading the state from its start")
        return record.reread

    def _meet(self, message: Message) -> None:
        """Note where another indexer answers, if something is filled from others."""
        if self.data.filler.fillings.are_idle:
            return
        with suppress(Exception):  # As above.
            record = codec.decode(message.value() or b"")
            if isinstance(record, IndexerHeartbeat):
                self.data.filler.meet(record.indexer, record.address)

    def _report(self, link: IndexerLink) -> None:
        """Tell the master everything that is held here, in parts, once it is up to date."""
        asked = self._asked
        if asked is None or not self.planner.complete or self.cas_base is None:
            return
        self._asked = None
        holdings = self.planner.report()
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
    def cas(self) -> Cas:
        """How far the StateContext was followed, 0 while that is not known."""
        if self.cas_base is None or not self.position:
            return Cas(0)
        return Cas(self.cas_base + self.position - 1)

    def _learn_base(self, message: Message) -> None:
        """Take the base of all CAS from the Authority's log, once."""
        base = base_in(message.value())
        if base is not None and self.cas_base is None:
            self.cas_base = base
            with suppress(StorageError):
                self.storage.save_cas_base(base)

    def _caught_up(self) -> None:
        for index_id in self.planner.caught_up():
            self._unsaved[index_id] = None
        self._save()

    def _save(self, *, touch: bool = False) -> None:
        """Save position and states; what the disk refuses is tried again with the next beat.

        Not before the log was read to its end: a reading from its start that did not get there
        must start again. `touch` saves the time alone, too.
        """
        if self.position is None or not self.planner.complete:
            return
        if self.position == self._saved and not self._unsaved and not touch:
            return
        now_ms = wall_ms()
        try:
            self.storage.save(self.position, self._unsaved, now_ms)
        except StorageError as error:
            self.problem("the position cannot be saved", error.message)
        else:
            self.resolved("the position cannot be saved")
            self._unsaved = {}
            self._saved, self._saved_ms = self.position, now_ms

    # -- acting ------------------------------------------------------------------------------

    def _act(self, link: IndexerLink) -> None:
        """Do what there is to do, for a moment, and answer what there is to answer.

        What is left waits until the heartbeat is sent and others are heard: opening many buckets
        takes long, and an indexer that says nothing counts as dead.
        """
        until_s = time.monotonic() + ACT_S
        self._is_behind = False
        for action in self.planner.plan():
            if self._is_behind:
                break
            self._carry_out(action, link)
            self._is_behind = time.monotonic() > until_s
        self.planner.hold(self.storage.held, self.storage.shards)
        for reply in self.planner.replies():
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
        self.planner.close_finished()
        if self.planner.complete:
            self.data.know(self.planner.indexes)

    def _carry_out(self, action: Action, link: IndexerLink) -> None:
        """Allocate or release, and say what came of it."""
        number = action_id(action)
        about = f"storage of index {number}"
        try:
            if isinstance(action, Allocate):
                index = action.index
                # Before it is answered: all that is sent for it comes after this.
                ends = {} if self.storage.bucket(index.bucket) else link.ends()
                definition = codec.encode(index)
                self.storage.allocate(index.bucket, number, action.slices, definition, ends)
            else:
                self.storage.release(number, action.slices)
        except StorageError as error:
            if isinstance(action, Allocate) and self.planner.refuse(action, error.message):
                self.info(f"{about} is refused: {error.message}")
            else:
                self.problem(about, error.message)
        else:
            self.resolved(about)
            done = "allocated" if isinstance(action, Allocate) else "released"
            self.info(f"index {number}: {done} {_slices(len(action.slices))}")

    def _beat(self, link: IndexerLink) -> None:
        """Send a heartbeat, and repeat every answer that somebody may still wait for."""
        stale = not 0 <= wall_ms() - self._saved_ms < HOUR_MS
        if stale:
            link.bounds()  # Raises where Kafka is out of reach: only contact keeps it fresh.
        self._save(touch=stale)
        self.storage.tend()
        self.giving.expire()
        while self.storage.recovered:
            self.info(f"bucket {self.storage.recovered.pop(0)}: its database was damaged")
        self._mend_builds()
        self.planner.hold(self.storage.held, self.storage.shards)
        if self.planner.open:
            self._act(link)
        now = time.monotonic()
        if now - self._size[0] >= SIZE_PERIOD_S:
            self._size = (now, self.storage.size_bytes())
        beat = self._heartbeat()
        link.beat(beat)
        self._late_beats.sent(beat, now)
        self._beat_due_s = now + self.options.heartbeat_ms / 1000

    def _mend_builds(self) -> None:
        """Allocate anew what is held under a build that the state has not come to know.

        An event that no verdict counts may have told projectors of it. As another shard, the
        index is built again.
        """
        now = time.monotonic()
        ahead = self.planner.ahead(self.storage.builds) if self.planner.complete else set()
        self._ahead_since = {i: self._ahead_since.get(i, now) for i in ahead}
        for index_id, since in list(self._ahead_since.items()):
            if now - since >= AHEAD_S:
                index, slices = (
                    self.planner.indexes[index_id],
                    self.planner.held.get(index_id, NONE),
                )
                self.info(f"index {index_id} is held under a build that nobody means")
                with suppress(StorageError):
                    self.storage.allocate(index.bucket, index_id, slices, codec.encode(index))
                    del self._ahead_since[index_id]

    def _heartbeat(self) -> IndexerHeartbeat:
        return IndexerHeartbeat(
            indexer=self.options.indexer,
            incarnation=self.incarnation,
            address=self.scans.address,
            zone=self.options.zone,
            pid=os.getpid(),
            slices=count(self.planner.held.values()),
            bytes=self._size[1],
            cas=self.cas,
            at_ms=wall_ms(),
            period_ms=self.options.heartbeat_ms,
        )


class IndexerLink(Link):
    """The connection of an indexer, which listens to the master, too.

    What is on `heartbeat` has a consumer of its own: every process of the cluster writes there, and
    each record would end a fetch of everything else.
    """

    def __init__(self, options: Options, dead_letters: DeadLetters) -> None:
        super().__init__(
            options.bootstrap_servers,
            options.cluster,
            f"indexer-{options.indexer}",
            (COMMIT, ACKS, HEARTBEAT, DEAD_LETTER, MUTATIONS, STABILITY, FAILOVER_LOG),
            dead_letters,
        )
        self.commit = topic_name(options.cluster, COMMIT)
        self.heartbeat = topic_name(options.cluster, HEARTBEAT)
        self.mutations = topic_name(options.cluster, MUTATIONS)
        self.failover_log = topic_name(options.cluster, FAILOVER_LOG)
        who = f"indexer-{options.indexer}-heartbeats"
        self._beats = WatchedConsumer(options.bootstrap_servers, who, **TOGETHER)
        self._probe = LogProbe(options.bootstrap_servers)

    def ends(self) -> dict[int, int]:
        """Return where the partitions of `mutations` end now. Raises KafkaException."""
        partitions = range(STREAM_PARTITIONS)
        return {p: self._probe.end(self.mutations, CALL_TIMEOUT_S, p) for p in partitions}

    def follow(self, position: int, *, with_commit: bool) -> None:
        """Read `statecontext` from `position` on, what comes on `heartbeat`, `failover-log` from
        its start, and `commit`, too, if asked. Raises KafkaException.

        `heartbeat` is read on where it is, from where it ends when this is called first: no
        question of the master is passed over.
        """
        if not self._beats.client.assignment():
            end = self._probe.end(self.heartbeat, CALL_TIMEOUT_S)
            self._beats.assign([TopicPartition(self.heartbeat, 0, end)])
        places = [
            TopicPartition(self.topic, 0, position),
            *(
                TopicPartition(self.failover_log, partition, OFFSET_BEGINNING)
                for partition in range(STREAM_PARTITIONS)
            ),
        ]
        if with_commit:
            places.append(TopicPartition(self.commit, 0, self.bounds(self.commit)[0]))
        self.assign(places)

    def read(self, timeout_s: float) -> list[Message]:
        """Wait for a record of either consumer, and take what has come with it."""
        end_s = time.monotonic() + timeout_s
        while True:
            found = super().read(min(LISTEN_S, max(0.0, end_s - time.monotonic())))
            found += self._beats.read(0)
            if found or time.monotonic() >= end_s:
                return found

    def close(self) -> None:
        with ExitStack() as closing:
            closing.callback(super().close)
            closing.callback(self._beats.client.close)
            closing.callback(self._probe.close)


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


def _slices(number: int) -> str:
    return "1 slice" if number == 1 else f"{number} slices"
