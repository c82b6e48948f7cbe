"""Small file tools: the cache folder, whole-file writes, and locks between processes.

A write is all or nothing (a temporary file, then a rename), so that a killed process never leaves
half a file that a later start believes. A lock belongs to the open file, not to the process: a
child that inherits the descriptor goes on holding it after its parent has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

RETRY_S = 0.02


def make_durably(folder: Path) -> None:
    """Make a folder and those above it, so that they survive a power failure. Raises OSError.

    A folder is an entry of the one above it, which is synced each time: whoever made it may have
    been killed before that. What may not be read cannot be synced, and is not this process's.
    """
    if not folder.is_dir():
        make_durably(folder.parent)
        folder.mkdir(exist_ok=True)
    try:
        descriptor = os.open(folder.parent, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def cache_dir() -> Path:
    """Return the per-user cache folder: `INDEXCTL_CACHE`, else the XDG cache folder's."""
    override = os.environ.get("INDEXCTL_CACHE")
    if override:
        return Path(override).expanduser()
    xdg = os.environ.get("XDG_CACHE_HOME")
    base = Path(xdg) if xdg and os.path.isabs(xdg) else Path.home() / ".cache"
    return base / "index-coordinator"


def write_text(path: Path, text: str) -> None:
    """Replace `path` with `text`, durably and as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` with `value` as JSON, durably and as a whole."""
    write_text(path, json.dumps(value, indent=2) + "\n")


class FileLock:
    """An exclusive lock on a file, which ends when its last open descriptor is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, *, timeout_s: float = 0.0) -> bool:
        """Take the lock; return False if another process still holds it after `timeout_s`."""
        assert self._fd is None, "the lock is held already"
        deadline = time.monotonic() + timeout_s
        while True:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if not _lock_until(fd, deadline):
                os.close(fd)
                return False
            if _is_file_at(fd, self.path):
                self._fd = fd
                return True
            os.close(fd)  # Someone removed the file while we waited: lock its successor.

    def release(self) -> None:
        """Let go of the lock; does nothing if it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def fileno(self) -> int:
        """Return the descriptor, for a child that shall hold the lock as well."""
        assert self._fd is not None, "the lock is not held"
        return self._fd


def _lock_until(fd: int, deadline: float) -> bool:
    """Lock `fd`, trying until `deadline` (monotonic): flock itself knows no time limit."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_S)


def _is_file_at(fd: int, path: Path) -> bool:
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


@contextlib.contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock on `path`, having waited for whoever has it."""
    lock = FileLock(path)
    lock.acquire(timeout_s=math.inf)
    try:
        yield
    finally:
        lock.release()


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it is missing."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def last_lines(
    path: Path, count: int, *, since_byte: int = 0, read_bytes_max: int = 64 * 1024
) -> list[str]:
    """Return the last non-empty lines of a text file, oldest first; none if it is missing.

    Looks only at what was written since the file had `since_byte` bytes, or at all of a file that
    is shorter than that: it was rotated.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = since_byte if since_byte <= size else 0
            file.seek(max(begin, size - read_bytes_max))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]
