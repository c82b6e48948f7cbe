"""A node's RocksDB: its state, the Authority, the prepared transaction, all at one applied offset.

Each `Save` is one WriteBatch, so that the parts never disagree. A write that fails breaks the
store until `probe` has reopened it: RocksDB must not take a later batch without the earlier one.
Nothing here knows the protocol.

Keys: `e/<entity key>` (CAS, then the value as it was written), `g/<CAS>` (a group of outcomes of
requests: when it was made and recorded, the ids, then the group as it was written), `t/<number>`
(a row of the rolling log of transactions), `a` (the Authority), `l` (the prepared transaction), `m`
(applied offset, CAS).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from immutables import Map
from rocksdict import DbClosedError, Options, Rdict, WriteBatch, WriteOptions

from coordinator import codec
from coordinator.core.catalog import state as states
from coordinator.core.catalog.outcomes import KeptGroup
from coordinator.core.catalog.state import Versioned
from coordinator.core.consensus.effects import Save
from coordinator.core.consensus.inputs import PreparedTransaction, Restored
from coordinator.core.model.authority_state import AuthorityState, TransactionStatus
from coordinator.runtime.files import make_durably
from coordinator.runtime.rocksdb import options_of

ENTITY, GROUP, ROW = b"e/", b"g/", b"t/"
AUTHORITY, PREPARED, META, IDENTITY, REBUILD = b"a", b"l", b"m", b"identity", b"rebuild"

CAS = struct.Struct("<q")
NUMBER = struct.Struct(">q")
META_FIELDS = struct.Struct("<qq")
GROUP_CHECK_BYTES = 8
"""Before a group's head: a hash of its CAS, head and ids, which no digest of the log covers."""

GROUP_HEAD = struct.Struct("<qqI")
"""When its newest request was made, when the group was recorded, how many bytes its ids take."""

WRITE_BUFFER_BYTES = 8 * 1024 * 1024
OPEN_FILES_MAX = 64
CHUNK_BYTES = 4 * 1024 * 1024


class StoreError(Exception):
    """The store cannot be opened, read or written.

    `code` is `store_unusable`, `store_damaged`, `store_refused` or `data_folder_mismatch`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Store:
    """One node's folder. Not shared between threads or processes."""

    def __init__(self, folder: Path) -> None:
        """Open the folder, or make it. Raises StoreError with what to do."""
        self.folder = folder
        self._sync = WriteOptions()
        self._sync.sync = True
        self._plain = WriteOptions()
        self._broken = ""
        self._db = self._open()

    def close(self) -> None:
        # A probe that failed half way has closed it already.
        with contextlib.suppress(DbClosedError):
            self._db.close()

    def _open(self) -> Rdict:
        try:
            make_durably(self.folder)
            return Rdict(str(self.folder), _options())
        except Exception as error:
            code = "store_damaged" if "Corruption" in str(error) else "store_unusable"
            raise StoreError(code, f"{self.folder}: {error}") from error

    # -- identity ----------------------------------------------------------------------------

    def claim_identity(self, identity: str) -> None:
        """Bind the folder to a cluster and node, or refuse one that belongs to another."""
        held = self._db.get(IDENTITY)
        if held is None:
            self._db.put(IDENTITY, identity.encode(), self._sync)
        elif held.decode() != identity:
            raise StoreError(
                "data_folder_mismatch",
                f"{self.folder} belongs to {held.decode()}, not to {identity}: "
                "use another folder, or `indexctl reset`",
            )

    # -- writing -----------------------------------------------------------------------------

    def save(self, effect: Save) -> None:
        """Write one batch, synced if the effect says so. Raises StoreError."""
        if self._broken:
            raise StoreError("store_refused", self._broken)
        try:
            if effect.wipe:
                self._wipe()
            batch = WriteBatch(raw_mode=True)
            for key, versioned in effect.changes:
                _put_entity(batch, key, versioned)
                if batch.size_in_bytes() > CHUNK_BYTES and effect.wipe:
                    # Nothing counts before the last batch has brought META back.
                    self._db.write(batch, self._plain)
                    batch = WriteBatch(raw_mode=True)
            _put_outcomes(batch, effect)
            _put_head(batch, effect)
            self._db.write(batch, self._sync if effect.sync else self._plain)
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}"
            raise StoreError("store_refused", self._broken) from error

    def _wipe(self) -> None:
        batch = WriteBatch(raw_mode=True)
        for key in (META, AUTHORITY, PREPARED, REBUILD):
            batch.delete(key)
        for prefix in (ENTITY, GROUP, ROW):
            batch.delete_range(prefix, prefix[:-1] + b"0")
        self._db.write(batch, self._sync)

    def probe(self) -> None:
        """Reopen a broken store and write to it. Raises StoreError while it still refuses."""
        if not self._broken:
            return
        try:
            self.close()
            self._db = self._open()
            self._db.put(b"probe", b"x" * 4096, self._sync)
            self._db.delete(b"probe", self._sync)
        except Exception as error:
            raise StoreError("store_refused", f"{type(error).__name__}: {error}") from error
        self._broken = ""

    def demand_rebuild(self) -> None:
        """Make the next start synchronise in full: what is here is not to be trusted."""
        self._db.put(REBUILD, b"1", self._sync)

    # -- reading -----------------------------------------------------------------------------

    def restore(self) -> Restored | None:
        """Return what the last batches left, or None for an empty or unfinished folder.

        The digest is computed from the bytes read, so that the node notices damage. Raises
        StoreError where records cannot be read at all.
        """
        try:
            meta = self._db.get(META)
            encoded = self._db.get(AUTHORITY)
            if meta is None or encoded is None or self._db.get(REBUILD) is not None:
                return None
            applied, cas = META_FIELDS.unpack(meta)
            state = states.restore(cas, self._entities())
            return Restored(
                applied, self._authority(encoded), state, self._prepared(), tuple(self._outcomes())
            )
        except Exception as error:
            raise StoreError("store_damaged", f"{self.folder}: {error}") from error

    def _entities(self) -> Iterator[tuple[str, Versioned]]:
        for key, held in self._scan(ENTITY):
            value = held[CAS.size :]
            yield (
                key[len(ENTITY) :].decode(),
                Versioned(CAS.unpack_from(held)[0], value, codec.decode(value)),
            )

    def _outcomes(self) -> Iterator[KeptGroup]:
        for key, held in self._scan(GROUP):
            born_ms, at_ms, size = GROUP_HEAD.unpack_from(held, GROUP_CHECK_BYTES)
            begin = GROUP_CHECK_BYTES + GROUP_HEAD.size
            end = begin + size
            if held[:GROUP_CHECK_BYTES] != _check(key, held[GROUP_CHECK_BYTES:end]):
                raise ValueError(f"the outcomes under {key!r} are damaged")
            ids = tuple(json.loads(held[begin:end]))
            yield KeptGroup(NUMBER.unpack(key[len(GROUP) :])[0], held[end:], ids, born_ms, at_ms)

    def _authority(self, encoded: bytes) -> AuthorityState:
        """Return the Authority with the newest rows of its log."""
        authority: AuthorityState = codec.decode(encoded)
        oldest = authority.log_next - authority.log_capacity
        rows: dict[int, TransactionStatus] = {}
        for key, held in self._scan(ROW, NUMBER.pack(max(0, oldest))):
            number = NUMBER.unpack(key[len(ROW) :])[0]
            if number < authority.log_next:
                rows[number] = codec.decode(held)
        return replace(authority, log=Map(rows))

    def _prepared(self) -> PreparedTransaction | None:
        held = self._db.get(PREPARED)
        if held is None:
            return None
        raw = held[CAS.size :]
        return PreparedTransaction(CAS.unpack_from(held)[0], codec.decode(raw), raw)

    def _scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        entries: Any = self._db.items(from_key=prefix + start)
        for key, value in entries:
            if not key.startswith(prefix):
                return
            yield key, value


def open_or_replace(folder: Path) -> tuple[Store, str]:
    """Open the folder, and say what was wrong with it where a new one had to take its place.

    A folder that RocksDB finds damaged is moved aside, to `<name>.damaged`; the log has all that
    it held. One that cannot be moved, such as a mount point, keeps the old files in `damaged/`.
    Raises StoreError where the folder cannot be used for another reason.
    """
    try:
        return Store(folder), ""
    except StoreError as error:
        if error.code != "store_damaged":
            raise
        problem = error.message
    try:
        aside = _moved_aside(folder)
    except OSError as error:
        raise StoreError("store_unusable", f"{problem}; it stays in the way: {error}") from error
    return Store(folder), f"{problem} (moved to {aside})"


def _moved_aside(folder: Path) -> str:
    """Make room for a new store, and say where the old one is. Raises OSError."""
    aside = folder.with_name(folder.name + ".damaged")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        folder.rename(aside)
    except OSError:
        inside = folder / "damaged"
        shutil.rmtree(inside, ignore_errors=True)
        inside.mkdir()
        for entry in set(folder.iterdir()) - {inside}:
            entry.rename(inside / entry.name)
        return f"{folder.name}/{inside.name}"
    return aside.name


def _put_entity(batch: Any, key: str, versioned: Versioned | None) -> None:
    name = ENTITY + key.encode()
    if versioned is None:
        batch.delete(name)
    else:
        batch.put(name, CAS.pack(versioned.cas) + versioned.value)


def _put_outcomes(batch: Any, effect: Save) -> None:
    for cas, group in effect.outcomes:
        if group is None:
            batch.delete(GROUP + NUMBER.pack(cas))
        else:
            key, ids = GROUP + NUMBER.pack(cas), json.dumps(group.ids).encode()
            head = GROUP_HEAD.pack(group.born_ms, group.at_ms, len(ids)) + ids
            batch.put(key, _check(key, head) + head + group.value)


def _check(key: bytes, head: bytes) -> bytes:
    return hashlib.blake2b(key + head, digest_size=GROUP_CHECK_BYTES).digest()


def _put_head(batch: Any, effect: Save) -> None:
    """Add what every batch carries: offset, Authority, its new rows, the prepared transaction."""
    if effect.authority is None:
        batch.delete(AUTHORITY)
    else:
        batch.put(AUTHORITY, codec.encode_authority_without_log(effect.authority))
    for number, row in effect.rows:
        batch.put(ROW + NUMBER.pack(number), codec.encode(row))
        if effect.authority is not None and number >= effect.authority.log_capacity:
            batch.delete(ROW + NUMBER.pack(number - effect.authority.log_capacity))
    if effect.prepared is None:
        batch.delete(PREPARED)
    else:
        batch.put(PREPARED, CAS.pack(effect.prepared.offset) + effect.prepared.raw)
    batch.put(META, META_FIELDS.pack(effect.applied, effect.cas))


def _options() -> Options:
    options = options_of(write_buffer_bytes=WRITE_BUFFER_BYTES, files_max=OPEN_FILES_MAX)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(4 * WRITE_BUFFER_BYTES)
    return options
