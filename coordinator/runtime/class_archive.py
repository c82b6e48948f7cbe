"""Class archives: what a JVM has loaded of its jars, for the next JVM to map into memory.

A start is for its most part the loading of classes. With an archive (some 50 MB, written by a JVM
at its exit) it takes half the processor time. A JVM passes over an archive that does not fit its
version or its jars. With one that is damaged it crashes at its start: who started it deletes the
archive, and starts it again. An archive saves time, and is needed by nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from coordinator.runtime.files import cache_dir

FOLDER = "classes"
KEPT_MAX = 4
"""So many a cache has: each virtual environment has jars of its own, and so an archive."""

QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off", "-Xshare:auto")


def archive_path(java: Path, classpath: str) -> Path | None:
    """Return where the archive of this Java and these jars is kept, there or not yet.

    None if the cache cannot be written, or a jar not be found.
    """
    folder = cache_dir() / FOLDER
    paths = (java.resolve(), *map(Path, classpath.split(os.pathsep)))
    try:
        key = "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in paths)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def flags_with(archive: Path | None) -> list[str]:
    """Return the flags of a JVM that uses `archive`, if there is one."""
    if archive is None or not os.access(archive, os.R_OK):
        return list(QUIET)
    with contextlib.suppress(OSError):  # Somebody else's can be used, too.
        os.utime(archive)
    return [*QUIET, f"-XX:SharedArchiveFile={archive}"]


def flags_to_write(path: Path) -> list[str]:
    """Return the flags of a JVM that writes an archive to `path` when it exits."""
    return [*QUIET, f"-XX:ArchiveClassesAtExit={path}"]


def keep(written: Path, archive: Path) -> None:
    """Move what a JVM has written to its place, durably and as a whole, unless one is there."""
    temporary = archive.with_name(f".{archive.name}.{os.getpid()}.tmp")
    try:
        if written.exists() and not archive.exists():
            with open(temporary, "wb") as file:  # They may be on different file systems.
                file.write(written.read_bytes())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, archive)
            _forget_unused(archive.parent)
    except OSError:
        forget(temporary)
    forget(written)


def forget(archive: Path) -> bool:
    """Delete an archive; tell whether there was one."""
    try:
        archive.unlink()
    except OSError:
        return False
    return True


def _forget_unused(folder: Path) -> None:
    """Delete the archives that were not used for the longest, and what was left half written.

    A JVM that has one keeps it.
    """
    newest_first = sorted(folder.glob("*.jsa"), key=lambda one: one.stat().st_mtime, reverse=True)
    for unused in (*newest_first[KEPT_MAX:], *folder.glob(".*.jsa.*.tmp")):
        forget(unused)
