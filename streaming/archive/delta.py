"""A table of the archive in Delta Lake: what makes a batch count once, and where to go on.

A batch is one transaction of Delta. It inserts the rows that the table does not have, by their
key, and says in the same transaction up to which offset the topic is archived (an application id
and a version, in Delta's terms). So neither a batch that is repeated nor a second writer adds a row
twice, and no other memory of the offset can contradict the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coordinator.core.model.types import Offset
from streaming.archive.decoding import spark_schema
from streaming.archive.place import folder_of
from streaming.archive.tables import MONTH, ArchiveTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CLUSTER, TOPIC_ID = "coordinator.cluster", "coordinator.topicId"
"""Properties of a table: whose records it has."""

SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.optimize.maxThreads": "1",
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of a session that writes Delta: tables of this size need no parallel planning."""

APP_ID = "spark.databricks.delta.write.txnAppId"
APP_VERSION = "spark.databricks.delta.write.txnVersion"

LOG = "_delta_log"
"""In the folder of a table: a file for each version."""

UNFINISHED = re.compile(r"\..+\.(tmp|crc)")
"""A file that was being written, and its checksum."""

RETAIN_HOURS = 7 * 24
"""A file that was replaced stays for so long: versions of this age can still be read."""


class UnusableError(Exception):
    """This is not, or no longer, the archive of this topic; no restart can help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Whose records a table has: `topic_id` is Kafka's; a topic that is made anew has another."""

    cluster: str
    topic_id: str

    @property
    def app_id(self) -> str:
        """Return the application id under which Delta keeps the next offset."""
        return f"{self.cluster}.{self.topic_id}"


def forget_unmade(url: str) -> None:
    """Delete the folder of a table whose maker was killed before its first version: Delta Lake
    takes it for a table that is damaged. Raises OSError.

    A folder stays that has anything else than an empty log. Elsewhere than on this machine nothing
    is looked at, for nobody is locked out there.
    """
    folder = folder_of(url)
    if folder is None or folder.is_symlink() or not (folder / LOG).is_dir():
        return
    log = folder / LOG
    folders = [log / "_staged_commits", log / "_commits", log]
    there = set(_below(folder))
    unfinished = {path for path in there if path.parent == log and UNFINISHED.fullmatch(path.name)}
    if there <= unfinished | set(folders):
        for file in unfinished:
            file.unlink()
        for one in (*folders, folder):
            if one in there or one == folder:
                one.rmdir()


def _below(folder: Path) -> Iterator[Path]:
    """Yield all that is in a folder, and in folders in it. Raises OSError: one cannot be read."""
    with os.scandir(folder) as found:
        for one in found:
            yield Path(one.path)
            if one.is_dir(follow_symlinks=False):
                yield from _below(Path(one.path))


class Batch(NamedTuple):
    """What a batch has of one topic: the offset after it, and how many of its records are no rows.

    `months` are those of its rows. `least` is the least value of the ascending column, a time in
    microseconds since 1970; None where there are no rows.
    """

    next_offset: Offset
    unreadable: int
    months: list[str]
    least: int | None


class ArchivedTable:
    """One table of the archive, as its writer sees it."""

    def __init__(
        self, spark: SparkSession, table: ArchiveTable, folder: str, compact_every: int
    ) -> None:
        """`folder` is that of the archive: any URL that Spark can write to.

        After `compact_every` batches small files become large ones.
        """
        self.table = table
        self.url = f"{folder.rstrip('/')}/{table.name}"
        self._spark = spark
        self._compact_every = compact_every
        self._source: Source | None = None
        self._batches = 0

    @property
    def source(self) -> Source:
        assert self._source is not None, "the table is not open"
        return self._source

    @property
    def _name(self) -> str:
        return f"delta.`{self.url.replace('`', '``')}`"

    def open(self, source: Source) -> None:
        """Make the table if it is not there. Raises UnusableError: it is that of another topic; and
        OSError."""
        forget_unmade(self.url)
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({spark_schema(self.table.columns)}) "
            f"USING DELTA PARTITIONED BY ({MONTH}) TBLPROPERTIES ('delta.appendOnly' = 'true', "
            f"'{CLUSTER}' = '{source.cluster}', '{TOPIC_ID}' = '{source.topic_id}')"
        )
        (found,) = self._spark.sql(f"DESCRIBE DETAIL {self._name}").select("properties").collect()
        there = Source(
            cluster=found.properties.get(CLUSTER, ""), topic_id=found.properties.get(TOPIC_ID, "")
        )
        if there != source:
            raise UnusableError(
                f"{self.url} is the archive of another history (cluster {there.cluster}, topic id "
                f"{there.topic_id}; here {source.cluster}, {source.topic_id}): use another folder "
                "[archive_of_another]"
            )
        self._source = source

    def next_offset(self) -> Offset:
        """Return the first offset of the topic that is not archived, 0 for a table that is new."""
        jvm: Any = self._spark._jvm
        none = jvm.scala.Option.empty()
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.url)
        versions = log.update(False, none, none).transactions()
        found = versions.get(self.source.app_id)
        return Offset(int(found.get()) if found.isDefined() else 0)

    def look_at(self, decoded: DataFrame) -> Batch | None:
        """Return what a batch has, in one pass over it; None: no record of this topic."""
        column = f"`{self.table.ascending}`"
        number = f"unix_micros({column})" if self._by_time else column
        asked = ("max(record_offset)", "count(reason)", f"collect_set(`{MONTH}`)", f"min({number})")
        ((last, unreadable, months, least),) = decoded.selectExpr(*asked).collect()
        return None if last is None else Batch(Offset(last + 1), unreadable, sorted(months), least)

    @property
    def _by_time(self) -> bool:
        return dict(self.table.columns)[self.table.ascending] == "TIMESTAMP"

    def insert(self, rows: DataFrame, batch: Batch) -> None:
        """Insert the rows that are not there, all of them or none, and move the offset."""
        session = rows.sparkSession
        rows.dropDuplicates(list(self.table.key)).createOrReplaceTempView("batch")
        session.conf.set(APP_ID, self.source.app_id)
        session.conf.set(APP_VERSION, str(batch.next_offset))
        try:
            session.sql(
                f"MERGE INTO {self._name} AS t USING batch AS s ON {self._is_there(batch)} "
                "WHEN NOT MATCHED THEN INSERT *"
            )
        finally:
            session.conf.unset(APP_ID)
            session.conf.unset(APP_VERSION)
        self._batches += 1
        if self._batches % self._compact_every == 0:
            self.compact()

    def _is_there(self, batch: Batch) -> str:
        """Return the condition that a row is there; only files that may have one are read."""
        table = self.table
        same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (MONTH, *table.key))
        if not batch.months:
            return same
        oldest = f"timestamp_micros({batch.least})" if self._by_time else str(batch.least)
        named = ", ".join(f"'{month}'" for month in batch.months)
        return f"{same} AND t.`{MONTH}` IN ({named}) AND t.`{table.ascending}` >= {oldest}"

    def compact(self) -> None:
        """Make small files large ones, and delete what was replaced a while ago."""
        self._spark.sql(f"OPTIMIZE {self._name}")
        self._spark.sql(f"VACUUM {self._name} RETAIN {RETAIN_HOURS} HOURS")
