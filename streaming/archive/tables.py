"""The tables of the archive: the topic of each, its columns, and what identifies a row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coordinator.kafka.topics import HISTORY, STABILITY_HISTORY
from streaming.archive.rows import history_row, stability_row

MONTH = "month"
"""The column by which tables are partitioned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTable:
    """A table: `columns` have the types of Spark's SQL, `key` identifies a row.

    `ascending` is the column of the key whose old rows a new row can hardly meet.
    """

    name: str
    topic: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]
    ascending: str
    row_of: Callable[[bytes | None], Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in their order."""
        return tuple(name for name, _ in self.columns)


HISTORY_TABLE = ArchiveTable(
    name="history",
    topic=HISTORY,
    columns=(
        ("cas", "BIGINT"),
        ("event", "STRING"),
        ("kind", "STRING"),
        ("key", "STRING"),
        ("txn_epoch", "BIGINT"),
        ("txn_seq", "BIGINT"),
        ("index", "INT"),
        ("count", "INT"),
        ("request", "STRING"),
        ("principal", "STRING"),
        ("at_utc", "TIMESTAMP"),
        ("date", "DATE"),
        (MONTH, "STRING"),
        ("value", "STRING"),
    ),
    key=("cas",),
    ascending="cas",
    row_of=history_row,
)

STABILITY_TABLE = ArchiveTable(
    name="stability",
    topic=STABILITY_HISTORY,
    columns=(
        ("bucket", "STRING"),
        ("number", "BIGINT"),
        ("at_utc", "TIMESTAMP"),
        (MONTH, "STRING"),
        ("seqnos", "ARRAY<DECIMAL(20, 0)>"),
        ("vbuuids", "ARRAY<DECIMAL(20, 0)>"),
    ),
    key=("bucket", "number", "at_utc"),
    ascending="at_utc",
    row_of=stability_row,
)

TABLES = (HISTORY_TABLE, STABILITY_TABLE)
