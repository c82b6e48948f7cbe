"""Copies of a bucket's database on disk, for when it is damaged; the newest few are kept.

RocksDB makes a copy at little cost: it links files that never change. A file beside the copy
describes it (`About`): its number, the vector of its stability timestamp, if it has one, and the
changes to undo to get exactly there; with a checksum. A checkpoint counts once it has its final
name.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from rocksdict import Checkpoint, Rdict

from coordinator.core.model.vectors import Vector
from coordinator.runtime.files import make_durably
from indexer_sim.bucket.snapshots import Undo

KEPT = 3
DRAFT, DATABASE, ABOUT = "draft", "db", "about"
ABOUT_HEAD = struct.Struct(">qQI")
UNDO_HEAD = struct.Struct(">HQQHii")
CHECKSUM = struct.Struct(">I")
TABLE = ".sst"


@dataclass(frozen=True, slots=True)
class About:
    """What a checkpoint is: of this timestamp (0: of none), once `changes` are undone."""

    number: int
    vector: Vector
    changes: tuple[Undo, ...] = ()

    def pack(self) -> bytes:
        head = ABOUT_HEAD.pack(self.number, len(self.vector), len(self.changes))
        text = b"".join((head, *self.vector.to_bytes(), *map(_pack_undo, self.changes)))
        return text + CHECKSUM.pack(crc32(text))

    @classmethod
    def unpack(cls, raw: bytes) -> About:
        """Return what `pack` made these bytes of. ValueError: they are none."""
        raw, checksum = raw[: -CHECKSUM.size], raw[-CHECKSUM.size :]
        if checksum != CHECKSUM.pack(crc32(raw)):
            raise ValueError("a checkpoint that is not what was written")
        number, vbuckets, count = ABOUT_HEAD.unpack_from(raw)
        at, size = ABOUT_HEAD.size, 8 * vbuckets
        vector = Vector.from_bytes(raw[at : at + size], raw[at + size : at + 2 * size])
        at += 2 * size
        changes: list[Undo] = []
        for _ in range(count):
            change, at = _unpack_undo(raw, at)
            changes.append(change)
        return cls(number, vector, tuple(changes))


def _pack_undo(undo: Undo) -> bytes:
    before, after = undo.before, undo.after
    head = UNDO_HEAD.pack(
        undo.vbucket,
        undo.seqno,
        undo.index_id,
        len(undo.document),
        -1 if before is None else len(before),
        -1 if after is None else len(after),
    )
    return head + undo.document + (before or b"") + (after or b"")


def _unpack_undo(raw: bytes, at: int) -> tuple[Undo, int]:
    vbucket, seqno, index_id, *sizes = UNDO_HEAD.unpack_from(raw, at)
    at += UNDO_HEAD.size
    texts: list[bytes | None] = []
    for size in sizes:
        texts.append(None if size < 0 else raw[at : at + size])
        at += max(0, size)
    document, before, after = texts
    return Undo(vbucket, seqno, index_id, document or b"", before, after), at


class Checkpoints:
    """The checkpoints of one bucket, in a folder of their own."""

    def __init__(self, folder: Path, kept: int = KEPT) -> None:
        self.folder = folder
        self._kept = kept

    def found(self) -> list[Path]:
        """Return the checkpoints, the newest first."""
        if not self.folder.is_dir():
            return []
        names = [path for path in self.folder.iterdir() if path.name.isdecimal()]
        return sorted(names, reverse=True)

    def make(self, database: Rdict, about: About) -> Path:
        """Make a checkpoint, and delete the oldest. Raises OSError, and whatever RocksDB does."""
        newest = next(iter(self.found()), None)
        made = self.folder / f"{int(newest.name) + 1 if newest else 1:012d}"
        draft = self.folder / DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        make_durably(draft)
        try:
            Checkpoint(database).create_checkpoint(str(draft / DATABASE))
            with (draft / ABOUT).open("wb") as file:
                file.write(about.pack())
                file.flush()
                os.fsync(file.fileno())
            draft.rename(made)
        except Exception:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self.prune(self._kept)
        return made

    def prune(self, kept: int) -> None:
        """Delete all but the newest few, and the newest that is of a timestamp: after a restart
        those that are made are of none for a while."""
        stays = True
        for place, path in enumerate(self.found()):
            is_newest = stays and _has_timestamp(path)
            stays = stays and not is_newest
            if place >= kept and not is_newest:
                shutil.rmtree(path, ignore_errors=True)

    def discard(self) -> None:
        """Delete all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)


def about(checkpoint: Path) -> About | None:
    """Return of what a checkpoint is; None if it does not say so any more."""
    with suppress(OSError, ValueError, struct.error):
        return About.unpack((checkpoint / ABOUT).read_bytes())
    return None


def _has_timestamp(checkpoint: Path) -> bool:
    """Tell whether a checkpoint says that it is of a timestamp."""
    try:
        with (checkpoint / ABOUT).open("rb") as file:
            return bool(ABOUT_HEAD.unpack(file.read(ABOUT_HEAD.size))[0])
    except (OSError, struct.error):
        return False


def copy(checkpoint: Path, target: Path) -> None:
    """Copy the database of a checkpoint; tables are linked, they never change. Raises OSError."""
    copied(checkpoint, target).rename(target)


def copied(checkpoint: Path, target: Path) -> Path:
    """Return a copy that is not at its place yet, but beside it. Raises OSError."""
    draft = draft_of(target)
    shutil.rmtree(draft, ignore_errors=True)
    make_durably(draft)
    _copy_files((checkpoint / DATABASE).iterdir(), draft)
    return draft


def draft_of(target: Path) -> Path:
    """Return where a copy is before it is at its place."""
    return target.with_name(f".{target.name}.draft")


def ready_of(target: Path) -> Path:
    """Return where a database is that is to take the place of another, which is not needed any
    more."""
    return target.with_name(f".{target.name}.ready")


def _copy_files(files: Iterable[Path], target: Path) -> None:
    for path in files:
        if path.suffix == TABLE:
            os.link(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
