"""RocksDB as every process uses it: one folder, and no later write without the earlier one.

A database closes itself on a refused write, and opens again when it is next used: RocksDB must not
take a later batch without the one that was refused. Nothing here knows what is stored, nor what an
error is called by those who store it: they say so in `failure`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteOptions

from coordinator.runtime.files import make_durably

OPENING, READING, WRITING = "opening", "reading", "writing"
KEPT_LOGS = 2
LOG_BYTES_MAX = 1024 * 1024


class Database:
    """One folder. Every method that reaches the files raises what `failure` returns."""

    def __init__(self, folder: Path, options: Callable[[], Options]) -> None:
        self.folder = folder
        self._options = options
        self._db: Rdict | None = None
        self._sync, self._plain = WriteOptions(), WriteOptions()
        self._sync.sync = True

    def failure(self, doing: str, error: Exception) -> Exception:
        """Return what to raise for an error of the client while OPENING, READING or WRITING."""
        raise NotImplementedError

    def opened(self) -> Rdict:
        """Return the open database; its folder survives a power failure."""
        if self._db is None:
            try:
                make_durably(self.folder)
                self._db = Rdict(str(self.folder), self._options())
            except Exception as error:
                raise self.failure(OPENING, error) from error
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self.get_all([key])[0]

    def get_all(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        db = self.opened()
        try:
            values: Any = db.get(list(keys))
        except Exception as error:
            raise self.failure(READING, error) from error
        return list(values)

    def write(self, batch: Any, *, sync: bool) -> None:
        """Write a batch as one; after an error, whether it took place is open."""
        db = self.opened()
        try:
            db.write(batch, self._sync if sync else self._plain)
        except Exception as error:
            self.let_go()
            raise self.failure(WRITING, error) from error

    def end_readers(self) -> None:
        """End what still reads: it would keep the files, and opening again be refused."""

    def let_go(self) -> None:
        """Close it until it is next used."""
        db, self._db = self._db, None
        self.end_readers()
        if db is not None:
            try:
                db.close()
            except Exception:
                return  # What cannot be written at the end was not promised to anybody.


def options_of(*, write_buffer_bytes: int, files_max: int, jobs: int = 1) -> Options:
    """Return what all databases are set to: small, few threads, and quiet."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_background_jobs(jobs)
    options.set_max_open_files(files_max)
    options.set_keep_log_file_num(KEPT_LOGS)
    options.set_max_log_file_size(LOG_BYTES_MAX)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def one_line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{error}".split()) or type(error).__name__
