"""The archive as files: Parquet by date and kind, few of them, and one manifest that they count by.

A batch is written in three steps: its files, durably, under names that nothing refers to yet; the
manifest, by one rename; then files that have been replaced for a while are deleted. Killed before
the rename, nothing has happened, and what lies about is deleted at the next start. The manifest
also says where to go on, so that no other memory of it is needed, and none can contradict it.

A CAS is archived once, even if `history` has it twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coordinator.core.model.types import Offset
from coordinator.runtime.files import FileLock
from streaming.archive import manifest as manifests
from streaming.archive.manifest import MANIFEST, Manifest, ManifestError, Part, sync_folder
from streaming.archive.rows import Row
from streaming.spark.crash_points import AFTER, BEFORE, WITHIN, Crasher

LOCK = "archive.lock"
LOCK_TIMEOUT_S = 5.0
"""Whoever was killed needs a moment to let go of it."""

PARTS_MAX = 16
"""So many small files a date and kind; with one more they become one."""

SMALL_ROWS = 100_000
"""A file with fewer rows is small."""

REPLACED_MS = 600_000
"""A file that counts no longer is kept for so long: a reader may have begun with it."""

SCHEMA = pa.schema(
    [
        pa.field("cas", pa.int64(), nullable=False),
        pa.field("event", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("txn_epoch", pa.int64(), nullable=False),
        pa.field("txn_seq", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("request", pa.string(), nullable=False),
        pa.field("principal", pa.string(), nullable=False),
        pa.field("at_utc", pa.timestamp("ms"), nullable=False),
        pa.field("value", pa.string()),
    ]
)


class UnusableError(Exception):
    """This folder is not, or no longer, the archive of this history; no restart can help."""


class Archive:
    """The one writer of an archive."""

    def __init__(self, folder: Path, now_ms: Callable[[], int], crasher: Crasher) -> None:
        self.folder = folder
        self._now_ms = now_ms
        self._crasher = crasher
        self._lock = FileLock(folder / LOCK)
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        assert self._manifest is not None, "the archive is not open"
        return self._manifest

    def lock(self) -> None:
        """Be the only writer, until this process ends. Raises UnusableError, OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire(timeout_s=LOCK_TIMEOUT_S):
            raise UnusableError(f"another process writes the archive {self.folder}")

    def unlock(self) -> None:
        self._lock.release()

    def open(self, cluster: str, topic_id: str) -> None:
        """Read the manifest, or begin one, and delete what it does not name.

        Raises UnusableError: the folder has the archive of another history, or no manifest.
        """
        try:
            found = manifests.read(self.folder)
        except ManifestError as error:
            raise UnusableError(str(error)) from error
        if found is None:
            if next(self._files(), None) is not None:
                raise UnusableError(
                    f"{self.folder} has Parquet files, but no {MANIFEST}: bring it back, or begin "
                    "with an empty folder; all of history is archived again then"
                )
            found = Manifest(cluster, topic_id)
            manifests.write(self.folder, found)
        if (found.cluster, found.topic_id) != (cluster, topic_id):
            raise UnusableError(
                f"{self.folder} is the archive of another history (cluster {found.cluster}, topic "
                f"id {found.topic_id}; here {cluster}, {topic_id}): use another folder"
            )
        self._manifest = found
        self._tidy()

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("date=*/kind=*/*.parquet*")

    def _tidy(self) -> None:
        """Delete parts of batches that were never finished."""
        named = {part.path for part in self.manifest.parts}
        named |= {one.path for one in self.manifest.replaced}
        for path in self._files():
            if str(path.relative_to(self.folder)) not in named:
                path.unlink(missing_ok=True)

    def append(self, rows: Sequence[Row], next_offset: Offset) -> int:
        """Make rows part of the archive, all of them or none; return how many are new.

        `next_offset` is the offset after the last record read. Raises OSError.
        """
        self._crasher.passes(BEFORE)
        fresh = self._fresh([row for row in rows if row.offset >= self.manifest.next_offset])
        by_partition: dict[str, list[Row]] = {}
        for row in fresh:
            by_partition.setdefault(row.partition, []).append(row)
        made, gone = [], set()
        for partition, own in by_partition.items():
            merged = self._to_merge(partition)
            made.append(self._write(partition, own, merged))
            gone |= {part.path for part in merged}
        self._crasher.passes(WITHIN)
        self._commit(self.manifest.after(tuple(made), frozenset(gone), next_offset, self._now_ms()))
        self._crasher.passes(AFTER)
        self._delete_replaced()
        return len(fresh)

    def _commit(self, manifest: Manifest) -> None:
        manifests.write(self.folder, manifest)
        self._manifest = manifest

    def _fresh(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows whose CAS is not archived, the first one of each CAS."""
        known = self._known([row.cas for row in rows if row.cas <= self.manifest.last_cas])
        found: dict[int, Row] = {}
        for row in rows:
            if row.cas not in known:
                found.setdefault(row.cas, row)
        return list(found.values())

    def _known(self, cases: Sequence[int]) -> set[int]:
        """Return those of some old CASes that are archived; there are none of them, normally."""
        wanted, found = set(cases), set()
        for part in self.manifest.parts:
            if any(part.first_cas <= cas <= part.last_cas for cas in wanted):
                column = pq.ParquetFile(self.folder / part.path).read(columns=["cas"])["cas"]
                found |= wanted.intersection(column.to_pylist())
        return found

    def _to_merge(self, partition: str) -> list[Part]:
        """Return the small files of a partition, if there are too many of them."""
        small = [
            part
            for part in self.manifest.parts
            if part.partition == partition and part.rows < SMALL_ROWS
        ]
        return small if len(small) >= PARTS_MAX else []

    def _write(self, partition: str, rows: Sequence[Row], merged: Sequence[Part]) -> Part:
        """Write rows, with those of other files, as one; return it. It does not count yet."""
        tables = [pq.ParquetFile(self.folder / part.path).read() for part in merged]
        whole = pa.concat_tables([*tables, table_of(rows)]).sort_by("cas")
        firsts = [_first_offset(part) for part in merged]
        first, last = min([rows[0].offset, *firsts]), rows[-1].offset
        path = f"{partition}/{first}-{last}.parquet"
        write_table(self.folder, path, whole)
        cas = whole["cas"]
        return Part(path, whole.num_rows, cas[0].as_py(), cas[-1].as_py())

    def _delete_replaced(self) -> None:
        """Delete what nobody reads any more; it is forgotten with the next batch."""
        before_ms = self._now_ms() - REPLACED_MS
        old = tuple(one for one in self.manifest.replaced if one.since_ms <= before_ms)
        for one in old:
            (self.folder / one.path).unlink(missing_ok=True)
        kept = tuple(one for one in self.manifest.replaced if one not in old)
        self._manifest = replace(self.manifest, replaced=kept)


def _first_offset(part: Part) -> int:
    return int(part.path.rpartition("/")[2].partition("-")[0])


def table_of(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table of `SCHEMA`."""
    columns = [
        [row.at_ms if name == "at_utc" else getattr(row, name) for row in rows]
        for name in SCHEMA.names
    ]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_table(folder: Path, path: str, table: pa.Table) -> None:
    """Write a file below `folder`, durably and as a whole."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.tmp")
    pq.write_table(table, temporary, compression="zstd")
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(target)
    for above in (target.parent, target.parent.parent, folder):
        sync_folder(above)
