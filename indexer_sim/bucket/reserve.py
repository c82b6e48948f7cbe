"""Disk space that is kept aside so that a full disk can be emptied.

RocksDB needs room to delete: a log to write to, and on opening a flush of what its log holds.
The reserve is a file of that size. It is given up when a release is refused, and taken again when
there is room for it. It holds nothing.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

CHUNK_BYTES = 1024 * 1024


class Reserve:
    """A file of `size_bytes` at `path`, or none."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.is_allocated = path.exists()

    def allocate(self) -> bool:
        """Allocate the reserve if as much again stays free; tell whether it is there."""
        if self.is_allocated:
            return True
        with suppress(OSError):
            if shutil.disk_usage(self.path.parent).free >= 2 * self.size_bytes:
                self._write()
                self.is_allocated = True
        return self.is_allocated

    def _write(self) -> None:
        """Write the file. Random bytes: file systems may not store zeros, or repetitions."""
        draft = self.path.with_suffix(".draft")
        try:
            with draft.open("wb") as file:
                for _ in range(0, self.size_bytes, CHUNK_BYTES):
                    file.write(os.urandom(min(CHUNK_BYTES, self.size_bytes)))
                file.flush()
                os.fsync(file.fileno())
            draft.rename(self.path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise

    def is_needed(self) -> bool:
        """Tell whether less than the reserve is free."""
        with suppress(OSError):
            return shutil.disk_usage(self.path.parent).free < self.size_bytes
        return False

    def give_up(self) -> bool:
        """Give the space back to the disk; tell whether there was any."""
        if not self.is_allocated:
            return False
        self.is_allocated = False
        with suppress(OSError):
            self.path.unlink(missing_ok=True)
        return True
