"""What an archive consists of: one file that names all others, replaced as a whole.

`manifest.json` says which Parquet files count, and up to which offset of `history` they go. A file
that it does not name is nothing: a part of a batch that was never finished, or replaced by a larger
one. So one rename makes a batch count, and whoever reads the manifest once sees whole batches only.

Nothing but the standard library is needed to read it.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from coordinator.core.model.types import Cas, Offset
from coordinator.runtime.files import write_text

FORMAT = 1
ARCHIVE = "archive"
"""The archive's folder in a data folder."""

MANIFEST = "manifest.json"
COLUMNS: tuple[tuple[str, str], ...] = (
    ("cas", "BIGINT"),
    ("event", "VARCHAR"),
    ("key", "VARCHAR"),
    ("txn_epoch", "BIGINT"),
    ("txn_seq", "BIGINT"),
    ("index", "INTEGER"),
    ("count", "INTEGER"),
    ("request", "VARCHAR"),
    ("principal", "VARCHAR"),
    ("at_utc", "TIMESTAMP"),
    ("value", "VARCHAR"),
)
"""Of each Parquet file, with their types in SQL."""

PARTITIONS: tuple[tuple[str, str], ...] = (("date", "DATE"), ("kind", "VARCHAR"))
"""Columns that stand in the names of folders."""


class ManifestError(Exception):
    """The manifest is there, and cannot be understood."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file: its path within the archive, its rows, and the range of their CASes."""

    path: str
    rows: int
    first_cas: Cas
    last_cas: Cas

    @property
    def partition(self) -> str:
        """Return the folder that it is in: `date=…/kind=…`."""
        return self.path.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Replaced:
    """A file that counts no longer, and since when: somebody may be reading it still."""

    path: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What `manifest.json` says; `next_offset` is the first of `history` that is not archived."""

    cluster: str
    topic_id: str
    next_offset: Offset = Offset(0)
    last_cas: Cas = Cas(0)
    parts: tuple[Part, ...] = ()
    replaced: tuple[Replaced, ...] = ()

    def after(
        self, parts: tuple[Part, ...], gone: frozenset[str], next_offset: Offset, now_ms: int
    ) -> Manifest:
        """Return the manifest with new parts and without those of the paths `gone`."""
        kept = tuple(part for part in self.parts if part.path not in gone)
        return replace(
            self,
            next_offset=max(self.next_offset, next_offset),
            last_cas=max([self.last_cas, *(part.last_cas for part in parts)]),
            parts=(*kept, *parts),
            replaced=(*self.replaced, *(Replaced(path, now_ms) for path in sorted(gone))),
        )


def read(folder: Path) -> Manifest | None:
    """Return the manifest of an archive, None if there is none. Raises ManifestError, OSError."""
    try:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ManifestError(f"{folder / MANIFEST}: {error}") from error
    try:
        if fields.pop("format") != FORMAT:
            raise ValueError("an unknown format")
        fields["parts"] = tuple(Part(**part) for part in fields["parts"])
        fields["replaced"] = tuple(Replaced(**one) for one in fields["replaced"])
        return Manifest(**fields)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ManifestError(f"{folder / MANIFEST}: {error}") from error


def write(folder: Path, manifest: Manifest) -> None:
    """Make `manifest` that of the archive, durably; all files that it names must be durable."""
    fields = {"format": FORMAT, **asdict(manifest)}
    write_text(folder / MANIFEST, json.dumps(fields, separators=(",", ":")) + "\n")
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
