"""The storage of an indexer: one RocksDB a bucket, slices as key prefixes; one for its position.

A slice exists once its metadata record is synced; a slice is gone once that record's deletion
is. The metadata records alone say what is allocated, so that a restart finds it. A database that
refuses a write is closed, and opened again for the next: RocksDB must not take a later write
without the earlier one. Nothing here knows Kafka or decides anything. Not for several threads.

Layout of the folder: `meta/` (identity, position, index states), `buckets/<name>/`, `reserve`.
Keys in a bucket: `m` + index id + slice number (the definition), `s` + index id (the shard: which
life of the index's storage this is), `d` + index id + slice number + … (data).
"""

from __future__ import annotations

import os
import secrets
import shutil
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from indexer_sim.allocation import NONE, Slices
from indexer_sim.reserve import Reserve

META, BUCKETS, TRASH, RESERVE = "meta", "buckets", "trash", "reserve"
SLICE, SHARD, DATA = b"m", b"s", b"d"
SHARD_BITS = 48
SLICE_KEY = struct.Struct(">QI")

IDENTITY, POSITION, CAS_BASE, INDEX = b"identity/", b"position", b"cas-base", b"index/"
NUMBER = struct.Struct(">Q")
WHOLE = struct.Struct(">q")
PLACE = struct.Struct(">qq")

WRITE_BUFFER_BYTES = 4 * 1024 * 1024
RESERVE_BYTES = 2 * WRITE_BUFFER_BYTES
OPEN_FILES_MAX = 32
SIZE_PROPERTIES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")

PLAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-#.")


class StorageError(Exception):
    """Storage cannot be opened or written.

    `code` is `folder_mismatch` (another cluster's or indexer's), `unusable` or `refused`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# -- names of folders ----------------------------------------------------------------------------


def folder_name(bucket: str) -> str:
    """Return the name of a bucket's folder: no two buckets share one, on any file system.

    Capitals become small letters, and a mask after `~` says where they were; characters that
    some file system dislikes become `%` and two hexadecimal digits a byte.
    """
    small: list[str] = []
    mask = 0
    for place, character in enumerate(bucket):
        if character.isascii() and character.isupper():
            mask |= 1 << place
            character = character.lower()
        if character in PLAIN_CHARACTERS and not (character == "." and place == 0):
            small.append(character)
        else:
            small.extend(f"%{byte:02x}" for byte in character.encode())
    return "".join(small) + (f"~{mask:x}" if mask else "")


def bucket_name(folder: str) -> str:
    """Return the bucket whose folder this is: the inverse of `folder_name`."""
    text, _, mask = folder.partition("~")
    raw = bytearray()
    place = 0
    while place < len(text):
        if text[place] == "%":
            raw.append(int(text[place + 1 : place + 3], 16))
            place += 3
        else:
            raw.append(ord(text[place]))
            place += 1
    capitals = int(mask or "0", 16)
    return "".join(
        character.upper() if capitals >> place & 1 else character
        for place, character in enumerate(raw.decode())
    )


# -- one database --------------------------------------------------------------------------------


class Database:
    """A RocksDB that closes itself on any error, and opens again when it is next used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._db: Rdict | None = None
        self._sync = WriteOptions()
        self._sync.sync = True
        self._plain = WriteOptions()

    def opened(self) -> Rdict:
        """Return the open database. Raises StorageError."""
        if self._db is None:
            try:
                make_durably(self.folder)
                self._db = Rdict(str(self.folder), _options())
            except Exception as error:
                raise _refusal(error, self.folder) from error
        return self._db

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises StorageError."""
        db = self.opened()
        try:
            value: bytes | None = db.get(key)
        except Exception as error:
            raise StorageError("unusable", f"{self.folder}: {_line(error)}") from error
        return value

    def write(self, batch: Any, *, sync: bool) -> None:
        """Write a batch as one. Raises StorageError; then whether it took place is open."""
        db = self.opened()
        try:
            db.write(batch, self._sync if sync else self._plain)
        except Exception as error:
            self.close()
            raise _refusal(error, self.folder) from error

    def empty(self, begin: bytes, end: bytes) -> None:
        """Give back the space of deleted keys in [begin, end). Raises StorageError."""
        db = self.opened()
        try:
            db.flush()
            db.compact_range(begin, end)
        except Exception as error:
            self.close()
            raise _refusal(error, self.folder) from error

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
            raise StorageError("unusable", f"{self.folder}: {_line(error)}") from error
        return found

    def size_bytes(self) -> int:
        """Return what the database takes, on disk and in its buffers; 0 while it is closed."""
        if self._db is None:
            return 0
        return sum(self._db.property_int_value(name) or 0 for name in SIZE_PROPERTIES)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            try:
                db.close()
            except Exception:
                return  # What cannot be written at the end was not promised to anybody.


class Bucket:
    """The slices of one bucket."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.database = Database(folder)
        self.slices: dict[int, Slices] = {}
        self.shards: dict[int, int] = {}
        self.stale = True
        """A write failed: whether it took place, only the database can tell."""

    def load(self) -> None:
        """Find out what is allocated. Raises StorageError."""
        found: dict[int, set[int]] = {}
        for key, _ in self.database.scan(SLICE):
            index_id, number = SLICE_KEY.unpack(key[len(SLICE) :])
            found.setdefault(index_id, set()).add(number)
        self.slices = {index_id: frozenset(numbers) for index_id, numbers in found.items()}
        self.shards = {
            NUMBER.unpack(key[len(SHARD) :])[0]: NUMBER.unpack(value)[0]
            for key, value in self.database.scan(SHARD)
        }
        self.stale = False

    def write(self, batch: Any) -> None:
        """Write a batch, synced. Raises StorageError."""
        self.stale = True
        self.database.write(batch, sync=True)
        self.stale = False

    def allocate(self, index_id: int, numbers: Slices, definition: bytes) -> None:
        """Allocate all of these slices, or none; what the index holds is another shard then."""
        shard = 1 + secrets.randbits(SHARD_BITS)
        batch = WriteBatch(raw_mode=True)
        batch.put(SHARD + NUMBER.pack(index_id), NUMBER.pack(shard))
        for number in numbers:
            batch.put(SLICE + SLICE_KEY.pack(index_id, number), definition)
        self.write(batch)
        self.slices[index_id] = self.slices.get(index_id, NONE) | numbers
        self.shards[index_id] = shard

    def release(self, index_id: int, numbers: Slices) -> None:
        """Delete these slices and give their space back."""
        batch = WriteBatch(raw_mode=True)
        ranges = [_data_range(index_id, number) for number in sorted(numbers)]
        for number, (begin, end) in zip(sorted(numbers), ranges, strict=True):
            batch.delete(SLICE + SLICE_KEY.pack(index_id, number))
            batch.delete_range(begin, end)
        left = self.slices[index_id] - numbers
        if not left:
            batch.delete(SHARD + NUMBER.pack(index_id))
        self.write(batch)
        if left:
            self.slices[index_id] = left
        else:
            del self.slices[index_id]
            self.shards.pop(index_id, None)
        for begin, end in ranges:
            self.database.empty(begin, end)


# -- all of them ---------------------------------------------------------------------------------


class Storage:
    """An indexer's folder."""

    def __init__(self, folder: Path, identity: str) -> None:
        """Open the folder, or make it and bind it to `identity`. Raises StorageError."""
        self.folder = folder
        self._meta = Database(folder / META)
        self._buckets: dict[str, Bucket] = {}
        self._reserve = Reserve(folder / RESERVE, RESERVE_BYTES)
        try:
            self._open(identity)
        except StorageError:
            self.close()
            # Another process may use this folder, and its reserve: only a full disk is a reason.
            if not (self._reserve.is_needed() and self._reserve.give_up()):
                raise
            self._open(identity)
        self._reserve.take()

    def _open(self, identity: str) -> None:
        self._meta.opened()
        self.bind("indexer", identity)
        shutil.rmtree(self.folder / TRASH, ignore_errors=True)
        for path in sorted((self.folder / BUCKETS).glob("*")):
            bucket = Bucket(bucket_name(path.name), path)
            self._buckets[bucket.name] = bucket
            bucket.load()
            if not bucket.slices:
                self._discard(bucket)

    def close(self) -> None:
        for bucket in self._buckets.values():
            bucket.database.close()
        self._meta.close()

    def bind(self, what: str, identity: str) -> None:
        """Bind the folder to `identity`, or refuse one that is bound to another."""
        key = IDENTITY + what.encode()
        held = self._meta.get(key)
        if held is None:
            if what == "indexer" and any((self.folder / BUCKETS).glob("*")):
                raise StorageError(
                    "folder_mismatch",
                    f"{self.folder} holds buckets, but not whose they are: use another folder",
                )
            batch = WriteBatch(raw_mode=True)
            batch.put(key, identity.encode())
            self._meta.write(batch, sync=True)
        elif held.decode() != identity:
            raise StorageError(
                "folder_mismatch",
                f"{self.folder} belongs to {held.decode()}, not to {identity}: use another folder",
            )

    # -- slices ------------------------------------------------------------------------------

    @property
    def held(self) -> dict[int, Slices]:
        """The slices that are allocated, by index."""
        return {
            index_id: numbers
            for bucket in self._buckets.values()
            for index_id, numbers in bucket.slices.items()
        }

    @property
    def shards(self) -> dict[int, int]:
        """The shard of each index: a number that no other life of its storage had."""
        return {i: shard for bucket in self._buckets.values() for i, shard in bucket.shards.items()}

    def tend(self) -> bool:
        """Open again what failed, where that can be; tell whether `held` may have changed."""
        self._reserve.take()
        stale = [bucket for bucket in self._buckets.values() if bucket.stale]
        for bucket in stale:
            with suppress(StorageError):
                bucket.load()
        return bool(stale)

    def size_bytes(self) -> int:
        """Return the bytes that all buckets take."""
        return sum(bucket.database.size_bytes() for bucket in self._buckets.values())

    def allocate(self, bucket: str, index_id: int, slices: Slices, definition: bytes) -> None:
        """Make storage for slices, durably: all or none. Raises StorageError."""
        place = self._buckets.get(bucket)
        if place is None:
            place = Bucket(bucket, self.folder / BUCKETS / folder_name(bucket))
        try:
            if place.stale:
                place.load()
            place.allocate(index_id, slices, definition)
        except StorageError:
            if bucket not in self._buckets:
                with suppress(StorageError):
                    self._discard(place)
            raise
        self._buckets[bucket] = place

    def release(self, index_id: int, slices: Slices) -> None:
        """Delete slices; the last ones take the bucket's folder along. Raises StorageError.

        Must succeed on a full disk, or nothing would ever make room: it may use the reserve.
        """
        try:
            self._release(index_id, slices)
        except StorageError:
            if not self._reserve.give_up():
                raise
            self._release(index_id, slices)

    def _release(self, index_id: int, slices: Slices) -> None:
        for bucket in list(self._buckets.values()):
            if bucket.stale:
                bucket.load()
            here = bucket.slices.get(index_id, NONE) & slices
            if not here:
                continue
            if bucket.slices == {index_id: here}:
                self._discard(bucket)
            else:
                bucket.release(index_id, here)

    def _discard(self, bucket: Bucket) -> None:
        """Delete a bucket's folder. Moved away first, so that no half of it is ever opened."""
        bucket.database.close()
        trash = self.folder / TRASH
        try:
            shutil.rmtree(trash, ignore_errors=True)
            if bucket.database.folder.exists():
                bucket.database.folder.rename(trash)
                shutil.rmtree(trash, ignore_errors=True)
        except OSError as error:
            raise _refusal(error, bucket.database.folder) from error
        self._buckets.pop(bucket.name, None)

    # -- position ----------------------------------------------------------------------------

    def position(self) -> tuple[int, int] | None:
        """Return the first offset that was not applied yet, and when it was saved (wall, ms)."""
        held = self._meta.get(POSITION)
        return None if held is None else PLACE.unpack(held)

    def cas_base(self) -> int | None:
        """Return the base of all CAS, or None while it is not known."""
        held = self._meta.get(CAS_BASE)
        return None if held is None else WHOLE.unpack(held)[0]

    def save_cas_base(self, base: int) -> None:
        """Save the base of all CAS. Raises StorageError."""
        batch = WriteBatch(raw_mode=True)
        batch.put(CAS_BASE, WHOLE.pack(base))
        self._meta.write(batch, sync=False)

    def indexes(self) -> dict[int, bytes]:
        """Return the index states as they were at `position`."""
        return {NUMBER.unpack(key[len(INDEX) :])[0]: value for key, value in self._meta.scan(INDEX)}

    def save(self, position: int, changes: Mapping[int, bytes | None], at_ms: int) -> None:
        """Save a position, and with it the states that were read before it: all as one.

        Synced if there are changes. Raises StorageError.
        """
        batch = WriteBatch(raw_mode=True)
        for index_id, value in changes.items():
            key = INDEX + NUMBER.pack(index_id)
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        batch.put(POSITION, PLACE.pack(position, at_ms))
        self._meta.write(batch, sync=bool(changes))


def make_durably(folder: Path) -> None:
    """Make a folder and those above it, so that they survive a power failure."""
    if folder.is_dir():
        return
    make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def data_prefix(index_id: int, number: int) -> bytes:
    """Return the prefix of the keys of one slice's data."""
    return DATA + SLICE_KEY.pack(index_id, number)


def _data_range(index_id: int, number: int) -> tuple[bytes, bytes]:
    begin = data_prefix(index_id, number)
    end = (int.from_bytes(begin, "big") + 1).to_bytes(len(begin), "big")
    return begin, end


def _refusal(error: Exception, folder: Path) -> StorageError:
    """Return an error without this machine's path: clients get to read it."""
    return StorageError("refused", _line(error).replace(f"{folder.parent}/", ""))


def _line(error: BaseException) -> str:
    """Return an error in one line."""
    return " ".join(f"{error}".split()) or type(error).__name__


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_arena_block_size(64 * 1024)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(1)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options
