"""The RocksDB of a bucket, and its moments: views of the database at one instant.

Threads may share it for reading; who writes or closes it holds the lock of the bucket. Closing ends
all moments.
"""

from __future__ import annotations

import resource
import threading
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakSet

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    RdictIter,
)

from coordinator.runtime import rocksdb

WRITE_BUFFER_BYTES = 4 * 1024 * 1024
LEVEL_0_FILES = 16
"""So many files gather before they are merged: documents come in any order of keys, so that each
merge writes all of the next level again. Reading looks at a few more of them."""

OPEN_FILES = range(32, 512 + 1)
"""So many files of one database are open at most. With fewer than it has, each look-up may open a
file and read its index: with 32 a look-up among 1,500,000 documents took half as long again."""

DATABASES = 32
"""So many databases may take all files that a process may open; with more, it takes large ones."""

BLOCK_CACHE_BYTES = 64 * 1024 * 1024
"""Of all databases of a process together."""

DAMAGE = ("Corruption", "No such file")
"""What RocksDB says of files that are not what it wrote."""

BLOOM_BITS, MEMTABLE_BLOOM = 10, 0.05
"""Most look-ups are of documents that are not there yet."""

SIZE_PROPERTIES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


class StorageError(Exception):
    """Storage cannot be opened or written.

    `code` is `folder_mismatch` (another cluster's or indexer's), `unusable`, `refused`, or
    `damaged`: what is in it cannot be read.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class MomentLostError(Exception):
    """The database was closed since."""


class Moment:
    """A database as it was when this was made; any thread may read it, one at a time.

    It is an iterator, which stays at the instant at which it was made, wherever it is moved. There
    is no other way: iterators that the client library makes from a snapshot see later writes.
    """

    def __init__(self, iterator: RdictIter) -> None:
        self._lock = threading.Lock()
        self._iterator: RdictIter | None = iterator

    def keys(self, begin: bytes, end: bytes, count: int) -> list[bytes]:
        """Return the first `count` keys from `begin` on and before `end`. MomentLostError."""
        found: list[bytes] = []
        with self._lock:
            at = self._at()
            at.seek(begin)
            while len(found) < count and at.valid() and (key := at.key()) < end:
                found.append(key)
                at.next()
            at.status()
        return found

    def keys_backwards(self, begin: bytes, end: bytes, count: int) -> list[bytes]:
        """Return the last `count` keys of the same, the last one first. MomentLostError."""
        found: list[bytes] = []
        with self._lock:
            at = self._at()
            at.seek_for_prev(end)
            if at.valid() and at.key() == end:
                at.prev()
            while len(found) < count and at.valid() and (key := at.key()) >= begin:
                found.append(key)
                at.prev()
            at.status()
        return found

    def some(self, begin: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first `count` records from `begin` on and before `end`. MomentLostError."""
        found: list[tuple[bytes, bytes]] = []
        with self._lock:
            at = self._at()
            at.seek(begin)
            while len(found) < count and at.valid() and (key := at.key()) < end:
                found.append((key, at.value()))
                at.next()
            at.status()
        return found

    def _at(self) -> RdictIter:
        if self._iterator is None:
            raise MomentLostError
        return self._iterator

    def close(self) -> None:
        with self._lock:
            self._iterator = None


class Database(rocksdb.Database):
    """The database of a bucket. Every method raises StorageError."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _options)
        self._moments: WeakSet[Moment] = WeakSet()

    def failure(self, doing: str, error: Exception) -> StorageError:
        make = unusable if doing == rocksdb.READING else refusal
        return make(error, self.folder)

    def moment(self) -> Moment | None:
        """Return the database as it is now, None while it is closed. For any thread."""
        db = self._db
        if db is None:
            return None
        try:
            made = Moment(db.iter())
        except DbClosedError:
            return None
        self._moments.add(made)
        if self._db is not db:
            made.close()
        return made

    def holds(self, place: tuple[bytes, bytes]) -> bool:
        """Tell whether there is any key in a range. Raises StorageError."""
        db = self.opened()
        try:
            return any(key < place[1] for key in islice(db.keys(from_key=place[0]), 1))  # type: ignore[operator]
        except Exception as error:
            raise unusable(error, self.folder) from error

    def empty(self, begin: bytes, end: bytes) -> None:
        """Give back the space of deleted keys in [begin, end). Raises StorageError."""
        db = self.opened()
        try:
            db.flush()
            db.compact_range(begin, end)
        except Exception as error:
            self.close()
            raise refusal(error, self.folder) from error

    def scan(self, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return all records under `prefix`. Raises StorageError."""
        db = self.opened()
        found: list[tuple[bytes, bytes]] = []
        try:
            entries: Any = db.items(from_key=prefix)
            for key, value in entries:
                if not key.startswith(prefix):
                    break
                found.append((key, value))
        except Exception as error:
            raise unusable(error, self.folder) from error
        return found

    def some(self, begin: bytes, end: bytes, count: int) -> list[tuple[bytes, bytes]]:
        """Return the first `count` records from `begin` on, before `end`. Raises StorageError."""
        db = self.opened()
        try:
            entries: Any = islice(db.items(from_key=begin), count)
            return [(key, value) for key, value in entries if key < end]
        except Exception as error:
            raise unusable(error, self.folder) from error

    def latest(self) -> int:
        """Return a number that every write makes larger. Raises StorageError."""
        return self.opened().latest_sequence_number()

    def size_bytes(self) -> int:
        """Return what the database takes, on disk and in its buffers; 0 while it is closed."""
        if self._db is None:
            return 0
        return sum(self._db.property_int_value(name) or 0 for name in SIZE_PROPERTIES)

    def end_readers(self) -> None:
        for moment in list(self._moments):
            moment.close()

    def close(self) -> None:
        self.let_go()


def refusal(error: Exception, folder: Path) -> StorageError:
    """Return an error without this machine's path: clients get to read it."""
    return StorageError(
        _code(error, "refused"), rocksdb.one_line(error).replace(f"{folder.parent}/", "")
    )


def unusable(error: Exception, folder: Path) -> StorageError:
    """Return an error of reading."""
    return StorageError(_code(error, "unusable"), f"{folder}: {rocksdb.one_line(error)}")


def _code(error: Exception, otherwise: str) -> str:
    text = f"{error}"
    return "damaged" if any(sign in text for sign in DAMAGE) else otherwise


def _options() -> Options:
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    options = rocksdb.options_of(
        write_buffer_bytes=WRITE_BUFFER_BYTES, files_max=open_files_of(files_max)
    )
    options.set_arena_block_size(64 * 1024)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM)
    options.set_memtable_whole_key_filtering(True)
    options.set_compression_type(DBCompressionType.lz4())
    tables = BlockBasedOptions()
    tables.set_bloom_filter(BLOOM_BITS, False)
    tables.set_block_cache(_block_cache())
    options.set_block_based_table_factory(tables)
    options.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES)
    options.set_level_zero_slowdown_writes_trigger(2 * LEVEL_0_FILES)
    options.set_level_zero_stop_writes_trigger(3 * LEVEL_0_FILES)
    return options


@cache
def _block_cache() -> Cache:
    return Cache(BLOCK_CACHE_BYTES)


def open_files_of(files_max: int) -> int:
    """Return how many files of one database may be open, in a process that may open so many."""
    if files_max == resource.RLIM_INFINITY:
        return OPEN_FILES[-1]
    return min(max(files_max // DATABASES, OPEN_FILES[0]), OPEN_FILES[-1])
