"""A RocksDB that closes itself on a refused write, and opens again when it is next used.

RocksDB must not take a later write without the earlier one. Nothing here knows what is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    Snapshot,
    WriteOptions,
)

from projector_sim.kv.errors import KvError

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
CACHE_BYTES = 16 * 1024 * 1024
BLOOM_BITS = 10
OPEN_FILES_MAX = 128


class Database:
    """One folder. Every method raises KvError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db: Rdict | None = None
        self._closed = False
        self._sync, self._plain = WriteOptions(), WriteOptions()
        self._sync.sync = True

    def opened(self) -> Rdict:
        """Return the open database."""
        if self._closed:
            raise KvError("closed", f"{self.folder.name} was closed")
        if self._db is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._db = Rdict(str(self.folder), _options())
            except Exception as error:
                raise self._error("unusable", error) from error
        return self._db

    def get(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        db = self.opened()
        try:
            values: Any = db.get(list(keys))
        except Exception as error:
            raise self._error("unusable", error) from error
        return list(values)

    def last(self, prefix: bytes, highest: bytes) -> bytes | None:
        """Return the last key up to `highest` that begins with `prefix`."""
        cursor = self.opened().iter()
        cursor.seek_for_prev(highest)
        if not cursor.valid():
            return None
        key: bytes = cursor.key()
        return key if key.startswith(prefix) else None

    def snapshot(self) -> Snapshot:
        """Return what is stored now, whatever is written later; it keeps the files open."""
        return self.opened().snapshot()

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records in [begin, end), as they are now."""
        return items(self.snapshot(), begin, end)

    def write(self, batch: Any, *, sync: bool) -> None:
        """Write a batch as one; after an error, whether it took place is open."""
        db = self.opened()
        try:
            db.write(batch, self._sync if sync else self._plain)
        except Exception as error:
            self._let_go()
            raise self._error("refused", error) from error

    def close(self) -> None:
        """Close it for good."""
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception:
                return  # What cannot be written at the end was not promised to anybody.

    def _error(self, code: str, error: Exception) -> KvError:
        """Return an error in one line, and without this machine's path."""
        text = " ".join(f"{error}".split()) or type(error).__name__
        return KvError(code, text.replace(f"{self.folder.parent}/", ""))


def items(snapshot: Snapshot, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a snapshot in [begin, end)."""
    until = ReadOptions()
    until.set_iterate_upper_bound(end)
    # The iterator borrows the bound from `until`, which must live as long: hence a generator.
    found: Any = snapshot.items(from_key=begin, read_opt=until)
    yield from found


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(8 * WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(BLOOM_BITS, False)
    blocks.set_block_cache(Cache(CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return options
