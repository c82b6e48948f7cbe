"""The RocksDB of a bucket: closed for good where its bucket is dropped."""

from __future__ import annotations

from collections.abc import Iterator
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
)

from coordinator.runtime import rocksdb
from projector_sim.kv.errors import KvError

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
CACHE_BYTES = 16 * 1024 * 1024
BLOOM_BITS = 10
OPEN_FILES_MAX = 128


class Database(rocksdb.Database):
    """One folder. Every method raises KvError."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, _options)
        self._closed = False

    def opened(self) -> Rdict:
        """Return the open database."""
        if self._closed:
            raise KvError("closed", f"{self.folder.name} was closed")
        return super().opened()

    def failure(self, doing: str, error: Exception) -> KvError:
        """Return an error in one line, and without this machine's path."""
        code = "refused" if doing == rocksdb.WRITING else "unusable"
        return KvError(code, rocksdb.one_line(error).replace(f"{self.folder.parent}/", ""))

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

    def close(self) -> None:
        """Close it for good."""
        self._closed = True
        self.let_go()


def items(snapshot: Snapshot, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of a snapshot in [begin, end)."""
    until = ReadOptions()
    until.set_iterate_upper_bound(end)
    # The iterator borrows the bound from `until`, which must live as long: hence a generator.
    found: Any = snapshot.items(from_key=begin, read_opt=until)
    yield from found


def _options() -> Options:
    options = rocksdb.options_of(
        write_buffer_bytes=WRITE_BUFFER_BYTES, files_max=OPEN_FILES_MAX, jobs=2
    )
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(8 * WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.lz4())
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(BLOOM_BITS, False)
    blocks.set_block_cache(Cache(CACHE_BYTES))
    options.set_block_based_table_factory(blocks)
    return options
