"""The file of a backup: a file of frames (`runtime.frames`) with the refusals of a backup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from coordinator.backup.errors import BackupError
from coordinator.runtime.frames import (
    END,
    FRAME_BYTES_MAX,
    HEAD,
    NUMBER,
    SEAL_BYTES,
    SUM,
    BadFrames,
    Frame,
    FrameTooLong,
    FrameWriter,
    OtherMagic,
    OtherVersion,
    frames_in,
)

__all__ = [
    "END",
    "FRAME_BYTES_MAX",
    "HEAD",
    "MAGIC",
    "NUMBER",
    "SEAL_BYTES",
    "SUM",
    "VERSION",
    "Frame",
    "Writer",
    "damaged",
    "read_frames",
]

MAGIC = b"indexctl backup\n"
VERSION = 1


def damaged(what: str) -> BackupError:
    """Return the refusal of a file that is not as it was written."""
    return BackupError("backup_damaged", f"the backup is damaged: {what}; nothing was written")


class Writer(FrameWriter):
    """Writes frames to a file that is open for writing, from its start."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, MAGIC, VERSION)

    def frame(self, kind: int, payload: bytes) -> None:
        """Write a frame. Raises BackupError `backup_failed`, OSError."""
        try:
            super().frame(kind, payload)
        except FrameTooLong as error:
            raise BackupError("backup_failed", str(error)) from None


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield the frames of a file that is open for reading, from its start, without its END.

    Whoever has taken the last of them knows that the file is as it was written. Raises BackupError
    `backup_damaged`, `not_a_backup`, `backup_version`; OSError.
    """
    try:
        for frame in frames_in(file, MAGIC, VERSION):
            if frame.kind != END:
                yield frame
    except OtherMagic:
        raise BackupError("not_a_backup", "that is no file of `indexctl backup`") from None
    except OtherVersion as error:
        text = f"the backup has format {error.version}, and this version reads format {VERSION}"
        raise BackupError("backup_version", text) from None
    except BadFrames as error:
        raise damaged(str(error)) from None
