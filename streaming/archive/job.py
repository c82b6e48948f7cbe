"""The job that archives `history` as Parquet: one Spark query, every event exactly once.

Spark decides which records make a batch, and reads what is committed; `files` makes the
batch count by one rename, with the offset at which to go on. A query never outlives that: each one
begins with an empty checkpoint, at the manifest's offset. A checkpoint that is lost, too old or
too new therefore does no harm, because none is ever read.

A record that is no event is put on `dead-letter`, under its offset, before its batch counts:
killed in between, the job puts it there again, under the same key.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient

from coordinator import codec
from coordinator.core.model.records import DeadLetter
from coordinator.core.model.types import Offset
from coordinator.kafka.producers import letter_key
from coordinator.kafka.readers import BEGINNING
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.state_follower import StatusLog, wall_ms
from coordinator.kafka.topics import DEAD_LETTER, HISTORY, topic_name
from streaming.archive.files import Archive, UnusableError
from streaming.archive.rows import Row, UnreadableError, row_of
from streaming.spark.crash_points import Crasher
from streaming.spark.kafka_source import KAFKA, bounds, starting_offsets
from streaming.spark.queries import (
    FAILURES_MAX,
    LostError,
    StoppedError,
    end_query,
    end_session,
    error_of,
    first_line,
    wait_for,
)
from streaming.spark.session import SparkOptions, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

OWN_FOLDER = "archiver"
"""In the data folder: what the job keeps while it runs."""

CALL_TIMEOUT_S = 5.0
PAUSE_S = 1.0
LETTER_TIMEOUT_S = 15.0
SHORT_MAX = 5
"""So often in a row the topic may end too early: a new leader needs a moment to know its end."""

OFFSETS_MAX = 10_000
"""At most so many records a batch: all of it is in memory."""

UNHURRIED = {"kafka.fetch.max.wait.ms": "500", "kafka.max.poll.records": "5000"}
"""An archive is in no hurry, and must cost little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """What the command line says."""

    cluster: str
    bootstrap_servers: str
    data_dir: Path
    archive: Path
    spark_master: str = "local[1]"
    trigger_ms: int = 10_000
    offsets_max: int = OFFSETS_MAX
    heap_mb: int = 512
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
        self.topic = topic_name(options.cluster, HISTORY)
        self.archive = Archive(options.archive, wall_ms, Crasher(options.crash_at))
        self._stopping = stopping
        self._wake = wake
        self._status_log = StatusLog("archive")
        self._busy = threading.Lock()
        self._fault: BaseException | None = None
        self._failures = 0
        self._short = 0
        self._ready = False

    def run(self) -> None:
        """Start Spark, and archive. Raises UnusableError, LostError, OSError, EmbeddedError."""
        options = self.options
        self.archive.lock()
        try:
            with suppress(KafkaException):  # Away, perhaps; what is refused is refused soon.
                self._begin()
            name = f"{options.cluster}.archive"
            folder, heap_mb = options.own_folder, options.heap_mb
            spark = start(SparkOptions(name, options.spark_master, folder, heap_mb))
            try:
                self.follow(spark)
            finally:
                end_session(spark)
        finally:
            self.archive.unlock()

    def follow(self, spark: SparkSession) -> None:
        """Archive until told to stop; the archive is locked. Raises UnusableError, LostError."""
        if self.options.ready_file is not None:
            self.options.ready_file.unlink(missing_ok=True)
        while not self._stopping.is_set():
            if self._run_query(spark):
                return
            if self._failures >= FAILURES_MAX:
                raise LostError(f"{self._failures} attempts in a row have failed")

    def _run_query(self, spark: SparkSession) -> bool:
        """Run a query until it ends; return whether it has read all that it was to read."""
        self._fault = None
        try:
            offset = self._begin()
        except KafkaException as error:
            self._status_log.complain("Kafka", str(error.args[0]))
            self._stopping.wait(PAUSE_S)
            return False
        self._status_log.settled("Kafka")
        self._failures += 1
        query = self._start(spark, Offset(offset))
        try:
            self._report_ready()
            wait_for(query, self._stopping, self._wake)
        finally:
            end_query(query, self._busy)
        return self._judge(query)

    def _begin(self) -> int:
        """Open the archive; return the offset of `history` at which a new query begins.

        Raises KafkaException, also while the topics are not there; UnusableError.
        """
        servers = self.options.bootstrap_servers
        letters = topic_name(self.options.cluster, DEAD_LETTER)
        found = bounds(servers, [self.topic, letters], CALL_TIMEOUT_S)
        if found is None:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        self.archive.open(self.options.cluster, topic_id(servers, self.topic))
        offset = self.archive.manifest.next_offset
        low, end = found[self.topic, 0]
        self._check_end(offset, end)
        if offset >= low:
            return offset
        if offset:
            self._status_log.say(
                f"offsets {offset} to {low - 1} of {self.topic} were deleted before they were read"
            )
        return BEGINNING

    def _check_end(self, offset: Offset, end: int) -> None:
        """Refuse a topic that ends before what is archived. Raises UnusableError at last."""
        if offset <= end:
            self._short = 0
            return
        self._short += 1
        if self._short < SHORT_MAX:
            raise KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))
        raise UnusableError(
            f"{self.topic} ends at {end}, and {self.archive.folder} has it up to {offset}: "
            "its end was lost; use another folder"
        )

    def _start(self, spark: SparkSession, offset: Offset) -> StreamingQuery:
        options = self.options
        checkpoint = options.own_folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        frame = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", options.bootstrap_servers)
            .option("subscribe", self.topic)
            .option("startingOffsets", starting_offsets({(self.topic, 0): offset}))
            .option("maxOffsetsPerTrigger", options.offsets_max)
            .options(**{**KAFKA, **UNHURRIED})
            .load()
            .select("offset", "value")
        )
        writer = frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(checkpoint))
        if options.until_read:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{options.trigger_ms} milliseconds").start()

    def _judge(self, query: StreamingQuery) -> bool:
        """Look at what a query ended with; return whether it has done what it was to do."""
        if self._stopping.is_set():
            return False
        if isinstance(self._fault, AssertionError):
            raise self._fault
        error = error_of(query)
        if error is None and self._fault is None:
            return self.options.until_read
        self._status_log.complain("the query", first_line(self._fault or error))
        self._stopping.wait(PAUSE_S)
        return False

    def _on_batch(self, frame: DataFrame, batch: int) -> None:
        """Archive one micro-batch of Spark. What it raises ends the query."""
        with self._busy:
            if self._stopping.is_set():
                raise StoppedError("stopping")
            try:
                table = frame.toArrow()
                records = zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True)
                self._archive(sorted(records, key=lambda record: record[0]))
            except BaseException as error:
                self._fault = error
                raise
        self._failures = 0
        self._status_log.settled("the query")

    def _archive(self, records: Sequence[tuple[int, bytes | None]]) -> None:
        if not records:
            return
        rows: list[Row] = []
        letters: list[DeadLetter] = []
        for offset, value in records:
            try:
                rows.append(row_of(Offset(offset), value))
            except UnreadableError as error:
                letters.append(
                    DeadLetter(self.topic, 0, Offset(offset), str(error), value or b"", wall_ms())
                )
        if letters:
            self._bury(letters)
        self.archive.append(rows, Offset(records[-1][0] + 1))

    def _bury(self, letters: Sequence[DeadLetter]) -> None:
        """Put letters on `dead-letter`. Raises KafkaException if not all are known to be there."""
        for one in letters:
            self._status_log.say(f"{one.topic}, offset {one.offset}, is not archived: {one.reason}")
        timeout_ms = int(LETTER_TIMEOUT_S * 1000)
        servers = self.options.bootstrap_servers
        producer = Producer(plain_settings(servers, **{"message.timeout.ms": timeout_ms}))
        failed: list[KafkaError] = []
        for one in letters:
            producer.produce(
                topic_name(self.options.cluster, DEAD_LETTER),
                codec.encode(one),
                letter_key(one),
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        if producer.flush(2 * LETTER_TIMEOUT_S) or failed:
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))

    def _report_ready(self) -> None:
        if self._ready:
            return
        self._ready = True
        offset = self.archive.manifest.next_offset
        self._status_log.say(
            f"archiving {self.topic} from offset {offset} to {self.archive.folder}"
        )
        if self.options.ready_file is not None:
            self.options.ready_file.parent.mkdir(parents=True, exist_ok=True)
            self.options.ready_file.write_text(json.dumps({"offset": offset}) + "\n")


def topic_id(bootstrap_servers: str, topic: str) -> str:
    """Return the id that Kafka gave a topic: another one is another topic. Raises KafkaException"""
    client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    asked = client.describe_topics(TopicCollection([topic]), request_timeout=CALL_TIMEOUT_S)
    return str(asked[topic].result().topic_id)
