"""The job that archives topics in Delta Lake: every record once, decoded by Spark's executors.

Spark decides which records make a batch, and reads what is committed; `delta` makes the records of
each topic count in one transaction, with the offset at which to go on. A query never outlives that:
each one begins with an empty checkpoint, at the offsets of the tables. A checkpoint that is lost,
too old or too new therefore does no harm, because none is ever read.

A record that is no row is put on `dead-letter`, under its offset, before its batch counts:
killed in between, the job puts it there again, under the same key.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coordinator import codec
from coordinator.core.model.records import DeadLetter
from coordinator.core.model.types import Offset
from coordinator.kafka.address import client_settings
from coordinator.kafka.delivery import produce_when_there_is_room
from coordinator.kafka.producers import bounded, dead_letter_key
from coordinator.kafka.readers import BEGINNING
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import DEAD_LETTER, topic_name
from coordinator.runtime.files import FileLock
from streaming.archive.decoding import RECORD, decoder, spark_schema
from streaming.archive.delta import SESSION, ArchivedTable, Source, UnusableError
from streaming.archive.place import folder_of
from streaming.archive.tables import TABLES, ArchiveTable
from streaming.spark.crash_points import AFTER, BEFORE, Crasher
from streaming.spark.executors import executors_watched
from streaming.spark.kafka_source import KAFKA, bounds, connection, starting_offsets
from streaming.spark.queries import (
    FAILURES_MAX,
    LostError,
    StoppedError,
    end_query,
    end_session,
    error_of,
    first_line,
    unpaced,
    wait_for,
)
from streaming.spark.session import SparkOptions, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OWN_FOLDER = "archiver"
"""In the data folder: what the job keeps while it runs."""

LOCK = "archive.lock"
LOCK_TIMEOUT_S = 5.0
"""Whoever was killed needs a moment to let go of it."""

CALL_TIMEOUT_S = 5.0
PAUSE_S = 1.0
DEAD_LETTER_TIMEOUT_S = 15.0
SHORT_MAX = 5
"""So often in a row a topic may end too early: a new leader needs a moment to know its end."""

OFFSETS_MAX = 100_000
"""At most so many records a batch."""

COMPACT_EVERY = 64
"""After so many batches of a table its small files become large ones."""

UNHURRIED = {"kafka.fetch.max.wait.ms": "500", "kafka.max.poll.records": "5000"}
"""An archive is in no hurry, and must cost little."""

Starting = dict[tuple[str, int], int]
"""The first offset to read of each topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What the command line says; `archive` is a URL that Spark can write to."""

    cluster: str
    bootstrap_servers: str
    data_dir: Path
    archive: str
    spark_master: str = "local[1]"
    trigger_ms: int = 10_000
    offsets_max: int = OFFSETS_MAX
    compact_every: int = COMPACT_EVERY
    heap_mb: int = 512
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark, which override those of the job."""
    ready_file: Path | None = None
    crash_at: str = ""
    until_read: bool = False
    """End when all that is there now was read."""

    @property
    def own_folder(self) -> Path:
        return self.data_dir / OWN_FOLDER


class Archiver:
    """One life of the job. `run` returns when it was told to stop."""

    def __init__(
        self, options: ArchiveOptions, stopping: threading.Event, wake: threading.Event
    ) -> None:
        """`wake` is set with `stopping`, and also when the query ends."""
        self.options = options
        self._stopping = stopping
        self._wake = wake
        self._crasher = Crasher(options.crash_at)
        self._status_log = StatusLog("archive")
        self._tables: tuple[ArchivedTable, ...] = ()
        self._busy = threading.Lock()
        self._fault: BaseException | None = None
        self._failures = 0
        self._short = 0
        self._ready = False

    def run(self) -> None:
        """Start Spark, and archive. Raises UnusableError, LostError, OSError, EmbeddedError."""
        options = self.options
        lock = lock_archive(options.archive)
        try:
            name = f"{options.cluster}.archive"
            conf = {**SESSION, **options.spark_conf}
            spark = start(
                SparkOptions(name, options.spark_master, options.own_folder, options.heap_mb, conf),
                with_delta=True,
            )
            try:
                with executors_watched(spark, self._status_log):
                    self.follow(spark)
            finally:
                end_session(spark)
        finally:
            if lock is not None:
                lock.release()

    def follow(self, spark: SparkSession) -> None:
        """Archive until told to stop; the archive is locked. Raises UnusableError, LostError."""
        options = self.options
        self._tables = tuple(
            ArchivedTable(spark, one, options.archive, options.compact_every) for one in TABLES
        )
        if self.options.ready_file is not None:
            self.options.ready_file.unlink(missing_ok=True)
        while not self._stopping.is_set():
            if self._run_query(spark):
                return
            if self._failures >= FAILURES_MAX:
                raise LostError(f"{self._failures} attempts in a row have failed [attempts_failed]")

    def _run_query(self, spark: SparkSession) -> bool:
        """Run a query until it ends; return whether it has read all that it was to read."""
        self._fault = None
        try:
            starting = self._begin()
        except KafkaException as error:
            self._status_log.problem("Kafka", str(error.args[0]))
            self._stopping.wait(PAUSE_S)
            return False
        except (Py4JError, PySparkException, OSError) as error:
            self._failures += 1
            self._status_log.problem("the archive", first_line(error))
            self._stopping.wait(PAUSE_S)
            return False
        self._status_log.resolved("Kafka")
        self._status_log.resolved("the archive")
        self._failures += 1
        query = self._start(spark, starting)
        try:
            self._report_ready(starting)
            wait_for(query, self._stopping, self._wake)
        finally:
            end_query(query, self._busy)
        return self._judge(query)

    def _begin(self) -> Starting:
        """Open the tables; return at which offsets a new query begins.

        Raises KafkaException, also while the topics are not there; UnusableError.
        """
        servers = self.options.bootstrap_servers
        topics = {self._topic(one.table): one for one in self._tables}
        dead_letters = topic_name(self.options.cluster, DEAD_LETTER)
        found = bounds(servers, [*topics, dead_letters], CALL_TIMEOUT_S)
        if found is None:
            text = f"not all topics of the cluster {self.options.cluster} are there [no_cluster]"
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, text))
        ids = topic_ids(servers, list(topics))
        starting = {}
        for topic, table in topics.items():
            table.open(Source(cluster=self.options.cluster, topic_id=ids[topic]))
            starting[topic, 0] = self._starting(topic, table, *found[topic, 0])
        self._short = 0
        return starting

    def _topic(self, table: ArchiveTable) -> str:
        return topic_name(self.options.cluster, table.topic)

    def _starting(self, topic: str, table: ArchivedTable, low: int, end: int) -> int:
        """Return the offset of a topic at which a query begins, and tell of what was lost."""
        offset = table.next_offset()
        self._check_end(topic, offset, end)
        if offset >= low:
            return offset
        if offset:
            self._status_log.info(
                f"offsets {offset} to {low - 1} of {topic} were deleted before they were read"
            )
        return BEGINNING

    def _check_end(self, topic: str, offset: Offset, end: int) -> None:
        """Refuse a topic that ends before what is archived. Raises UnusableError at last."""
        if offset <= end:
            return
        self._short += 1
        if self._short < SHORT_MAX:
            raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
        raise UnusableError(
            f"{topic} ends at {end}, and {self.options.archive} has it up to {offset}: "
            "its end was lost; use another folder [archive_ahead]"
        )

    def _start(self, spark: SparkSession, starting: Starting) -> StreamingQuery:
        options = self.options
        checkpoint = options.own_folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        frame = (
            spark.readStream.format("kafka")
            .options(**connection(options.bootstrap_servers))
            .option("subscribe", ",".join(topic for topic, _ in starting))
            .option("startingOffsets", starting_offsets(starting))
            .option("maxOffsetsPerTrigger", options.offsets_max)
            .options(**{**KAFKA, **UNHURRIED})
            .load()
            .select("topic", "offset", "value")
        )
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if options.until_read:
            return writer.trigger(availableNow=True).start()
        return unpaced(spark, writer, options.trigger_ms).start()

    def _judge(self, query: StreamingQuery) -> bool:
        """Look at what a query ended with; return whether it has done what it was to do."""
        if self._stopping.is_set():
            return False
        if isinstance(self._fault, AssertionError):
            raise self._fault
        error = error_of(query)
        if error is None and self._fault is None:
            return self.options.until_read
        self._status_log.problem("the query", first_line(self._fault or error))
        self._stopping.wait(PAUSE_S)
        return False

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Archive one micro-batch of Spark. What it raises ends the query."""
        with self._busy:
            if self._stopping.is_set():
                raise StoppedError("stopping")
            began_s = time.monotonic()
            frame.persist()
            try:
                for table in self._tables:
                    self._archive(frame, table)
            except BaseException as error:
                self._fault = error
                raise
            finally:
                frame.unpersist()
        self._failures = 0
        self._status_log.resolved("the query")
        if not self.options.until_read:
            self._stopping.wait(began_s + self.options.trigger_ms / 1000 - time.monotonic())

    def _archive(self, frame: DataFrame, table: ArchivedTable) -> None:
        """Archive the records of one topic, of which a batch may have none."""
        topic, columns = self._topic(table.table), table.table.columns
        records = frame.where(frame.topic == topic).select("offset", "value")
        decoded = records.mapInArrow(decoder(table.table), spark_schema((*columns, *RECORD)))
        decoded.persist()
        try:
            batch = table.look_at(decoded)
            if batch is None:
                return
            self._crasher.passes(BEFORE)
            if batch.unreadable:
                undecodable = decoded.where("reason IS NOT NULL")
                self._send_dead_letters(topic, undecodable.select(*(name for name, _ in RECORD)))
            table.insert(decoded.where("reason IS NULL").select(*table.table.names), batch)
            self._crasher.passes(AFTER)
        finally:
            decoded.unpersist()

    def _send_dead_letters(self, topic: str, undecodable: DataFrame) -> None:
        """Put what is no row on `dead-letter`. Raises KafkaException if not all are there."""
        timeout_ms = int(DEAD_LETTER_TIMEOUT_S * 1000)
        servers = self.options.bootstrap_servers
        producer = Producer(plain_settings(servers, **{"message.timeout.ms": timeout_ms}))
        failed: list[KafkaError] = []
        for offset, reason, payload in undecodable.toLocalIterator():
            self._status_log.info(f"{topic}, offset {offset}, is not archived: {reason}")
            letter = DeadLetter(topic, 0, Offset(offset), reason, bytes(payload), wall_ms())
            produce_when_there_is_room(
                producer,
                topic_name(self.options.cluster, DEAD_LETTER),
                codec.encode(bounded(letter)),
                dead_letter_key(letter),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
            if failed:
                break
        if producer.flush(2 * DEAD_LETTER_TIMEOUT_S) or failed:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))

    def _report_ready(self, starting: Starting) -> None:
        if self._ready:
            return
        self._ready = True
        where = ", ".join(f"{topic} from {offset}" for (topic, _), offset in starting.items())
        self._status_log.info(f"archiving {where}, to {self.options.archive}")
        if self.options.ready_file is not None:
            self.options.ready_file.parent.mkdir(parents=True, exist_ok=True)
            offsets = {topic: offset for (topic, _), offset in starting.items()}
            self.options.ready_file.write_text(json.dumps({"offsets": offsets}) + "\n")


def lock_archive(url: str) -> FileLock | None:
    """Be the only writer on this machine, until this process ends; None where none can be held.

    Two writers are no danger to the rows: one of them fails at each batch. Raises UnusableError,
    OSError.
    """
    folder = folder_of(url)
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    if not lock.acquire(timeout_s=LOCK_TIMEOUT_S):
        raise UnusableError(f"another process writes the archive {folder} [archive_in_use]")
    return lock


def topic_ids(bootstrap_servers: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the id that Kafka gave each topic: another one is another topic.

    Raises KafkaException.
    """
    client = AdminClient({**client_settings(bootstrap_servers), "log_level": 2})
    asked = client.describe_topics(TopicCollection(list(topics)), request_timeout=CALL_TIMEOUT_S)
    return {topic: str(asked[topic].result().topic_id) for topic in topics}
