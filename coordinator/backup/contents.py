"""What a backup holds, and the check that it is all there before any of it is used.

The frames of a backup, in this order:

    MANIFEST   JSON: who made it, of which cluster, up to which CAS, with which digest
    SCHEMAS    JSON: the Avro schemas of all records in it, by fingerprint, for other readers
    AUTHORITY  an AuthoritySnapshot: the Authority as it was at that CAS
    BASE       SnapshotChunks: the state before the first change; empty if all changes are here
    CHANGES    records of `history` as they were written, each with its length before it
    STATE      SnapshotChunks: the state at the CAS

A record is kept as the bytes that were written, since digests are over these (decision 0007).
The base and the changes must fold to the state, and the state must have the digest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, NamedTuple, TypeVar, get_args

from coordinator import codec
from coordinator.backup.container import NUMBER, Frame, Writer, damaged, read_frames
from coordinator.backup.errors import BackupError
from coordinator.core.catalog.outcomes import time_of_uuid7
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk, chunks
from coordinator.core.catalog.state import EMPTY, StateContext, Versioned, restore
from coordinator.core.history.changes import fold, transactions
from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.entities import Entity
from coordinator.core.model.records import AuthoritySnapshot, Event
from coordinator.core.model.types import CAS_MAX, Cas
from schemas.registry import SchemaError, registry

MANIFEST, SCHEMAS, AUTHORITY, BASE, CHANGES, STATE = 1, 2, 3, 4, 5, 6
NAMES = {
    MANIFEST: "manifest",
    SCHEMAS: "schemas",
    AUTHORITY: "Authority",
    BASE: "base",
    CHANGES: "changes",
    STATE: "state",
}
BASE_COPY, STATE_COPY = 1, 2
"""The numbers of the two copies of the state, in the file and on `snapshots`."""

BATCH_BYTES = 256 * 1024
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup says of itself. `history_after`: it has the changes above this CAS; 0: all."""

    cluster: str
    cluster_id: str
    cas: Cas
    digest: str
    history_after: Cas
    made_at_ms: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """A backup that was read to its end, and found to be whole."""

    manifest: Manifest
    authority: AuthorityState
    base: StateContext
    state: StateContext
    changes: int
    newest_ms: int
    """When the newest change was made, by the clock of its master."""
    size: int


MANIFEST_TYPES: dict[str, type] = {
    **dict.fromkeys(("cluster", "cluster_id", "digest", "version"), str),
    **dict.fromkeys(("cas", "history_after", "made_at_ms"), int),
}

EPOCHS = 2**40
UNREADABLE = (SchemaError, TypeError, ValueError, KeyError, OverflowError, RecursionError)
"""What decoding and folding of what somebody has made up may end in."""


class Change(NamedTuple):
    """A record of `history`: the bytes as they were written, and what they say."""

    raw: bytes
    event: Event


# -- writing -------------------------------------------------------------------------------------


class BackupWriter:
    """Writes a backup, part by part, in the order of the frames."""

    def __init__(self, file: BinaryIO, manifest: Manifest, authority: AuthorityState) -> None:
        self._writer = Writer(file)
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        self._writer.frame(MANIFEST, json.dumps(asdict(manifest), indent=1).encode())
        self._writer.frame(SCHEMAS, json.dumps(_schemas()).encode())
        self._writer.frame(AUTHORITY, codec.encode(AuthoritySnapshot(authority.epoch, authority)))

    @property
    def size(self) -> int:
        return self._writer.size

    def base(self, state: StateContext) -> None:
        for chunk in chunks(BASE_COPY, state):
            self._writer.frame(BASE, codec.encode(chunk))

    def change(self, raw: bytes) -> None:
        self._batch.append(NUMBER.pack(len(raw)) + raw)
        self._batch_bytes += len(raw)
        if self._batch_bytes >= BATCH_BYTES:
            self._flush()

    def end(self, state: StateContext) -> None:
        self._flush()
        for chunk in chunks(STATE_COPY, state):
            self._writer.frame(STATE, codec.encode(chunk))
        self._writer.end()

    def _flush(self) -> None:
        if self._batch:
            self._writer.frame(CHANGES, b"".join(self._batch))
        self._batch, self._batch_bytes = [], 0


def _schemas() -> dict[str, Any]:
    """Return all versions of the schemas in use, by the fingerprint that records begin with."""
    kinds = (AuthoritySnapshot, SnapshotChunk, Event, *get_args(Entity))
    return {
        schema.fingerprint: schema.parsed
        for kind in kinds
        for schema in registry().versions(kind.__name__)
    }


# -- reading -------------------------------------------------------------------------------------


def read_backup(file: BinaryIO) -> Backup:
    """Read a backup to its end, and return what it holds once all of it is found to be right.

    Holds two states in memory, and one frame. Raises BackupError, OSError.
    """
    check = _Check()
    for frame in read_frames(_begun(file)):
        check.take(frame)
    return check.result(file.tell())


def read_changes(file: BinaryIO) -> Iterator[Change]:
    """Yield the changes of a backup that `read_backup` has found to be right."""
    for frame in read_frames(_begun(file)):
        if frame.kind == CHANGES:
            yield from _changes(frame.payload)


def _begun(file: BinaryIO) -> BinaryIO:
    file.seek(0)
    return file


class _Check:
    """Takes every frame once, in order, and folds the changes."""

    def __init__(self) -> None:
        self._last = 0
        self._manifest: Manifest | None = None
        self._authority: AuthorityState | None = None
        self._base, self._state = _Copy(BASE_COPY), _Copy(STATE_COPY)
        self._folded: StateContext | None = None
        self._changes = 0
        self._newest_ms = 0
        self._waiting: list[Event] = []

    def take(self, frame: Frame) -> None:
        kind, payload = frame
        once = kind in (MANIFEST, SCHEMAS, AUTHORITY)
        if kind not in NAMES or kind < self._last or (once and kind != self._last + 1):
            raise damaged(f"a frame of kind {kind} does not belong after one of {self._last}")
        self._last = kind
        try:
            self._take(kind, payload)
        except UNREADABLE as error:
            if not isinstance(error, SchemaError):
                raise damaged(f"its {NAMES[kind]}: {type(error).__name__}") from error
            if error.code == "unknown_schema":
                text = f"the backup has records of a newer version: {error}"
                raise BackupError("backup_version", text) from error
            raise damaged(f"its {NAMES[kind]}: {error}") from error

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == MANIFEST:
            self._manifest = _manifest(payload)
        elif kind == AUTHORITY:
            self._authority = _decoded(payload, AuthoritySnapshot).snapshot
        elif kind == BASE:
            self._base.add(_decoded(payload, SnapshotChunk))
        elif kind == CHANGES:
            self._fold(payload)
        elif kind == STATE:
            self._state.add(_decoded(payload, SnapshotChunk))

    def _fold(self, payload: bytes) -> None:
        """Fold a batch; a transaction that it does not end waits for the next one."""
        if self._folded is None:
            self._folded = self._base.state()
        found = [change.event for change in _changes(payload)]
        if not found:
            raise damaged("a batch of changes is empty")
        self._changes += len(found)
        self._newest_ms = max(self._newest_ms, *map(_newest_ms, found))
        events = self._waiting + found
        cas = self._folded.cas
        for event in events:
            if not cas < event.cas <= CAS_MAX:
                raise damaged(f"a change with CAS {event.cas} follows {cas}")
            cas = event.cas
        whole = next((n for n in range(len(events), 0, -1) if _ends(events[n - 1])), 0)
        for transaction in transactions(events[:whole]):
            self._folded, _ = fold(self._folded, transaction)
        self._waiting = events[whole:]

    def result(self, size: int) -> Backup:
        manifest, authority = self._manifest, self._authority
        if manifest is None or authority is None or self._last != STATE:
            raise damaged("a part of it is missing")
        base, state = self._base.state(), self._state.state()
        folded = base if self._folded is None else self._folded
        if state.cas and not self._changes:
            raise damaged("it has no change, so nothing says what came before")
        if not (0 <= authority.epoch < EPOCHS and authority.log_capacity > 0):
            raise damaged("its Authority cannot be one")
        if self._waiting:
            raise damaged("its last transaction is not whole")
        if (folded.cas, folded.digest) != (state.cas, state.digest):
            raise damaged(f"its changes lead to CAS {folded.cas}, and its state is at {state.cas}")
        says = (manifest.cas, manifest.digest)
        if says != (state.cas, digests.text(state.digest)) or says != (
            authority.last_cas,
            digests.text(authority.digest),
        ):
            raise damaged(f"its state is not the one of CAS {manifest.cas} that it says it is")
        return Backup(
            manifest=manifest,
            authority=authority,
            base=base,
            state=state,
            changes=self._changes,
            newest_ms=self._newest_ms,
            size=size,
        )


class _Copy:
    """One of the two copies of the state, put together chunk by chunk."""

    def __init__(self, number: int) -> None:
        self._assembly = Assembly(number)
        self._head: tuple[Cas, int] | None = None
        self._entities: list[tuple[str, Versioned]] = []
        self._state: StateContext | None = None

    def add(self, chunk: SnapshotChunk) -> None:
        head = (chunk.cas, chunk.digest)
        before = len(self._entities)
        if self._assembly.is_whole or (self._head or head) != head:
            raise damaged("a part of a state does not belong to what is before it")
        self._head = head
        self._entities += self._assembly.add(chunk)
        if len(self._entities) - before != len(chunk.entries):
            raise damaged("a part of a state is missing")

    def state(self) -> StateContext:
        """Return the state. Raises BackupError: it is not whole, or not what it says."""
        if self._state is None:
            if not self._assembly.is_whole or self._head is None:
                raise damaged("a state is not whole")
            cas, digest = self._head
            try:
                state = restore(cas, self._entities) if self._entities or cas else EMPTY
            except OverflowError as error:
                raise damaged("a state has a CAS that cannot be") from error
            if state.digest != digest:
                raise damaged(f"the digest of the state at CAS {cas} is wrong")
            self._state, self._entities = state, []
        return self._state


def _newest_ms(event: Event) -> int:
    """Return when an event was made, or its request, by the clock of the client, if that is later.

    What is repeated from before that is refused: nothing is remembered of it.
    """
    return max(event.mutation.at_ms, time_of_uuid7(event.mutation.request) or 0)


def _ends(event: Event) -> bool:
    return event.index == event.count - 1


def _manifest(payload: bytes) -> Manifest:
    try:
        found = Manifest(**json.loads(payload))
        if any(type(getattr(found, name)) is not kind for name, kind in MANIFEST_TYPES.items()):
            raise ValueError("a field has another type")
        return found
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged("its manifest cannot be read") from error


def _decoded(payload: bytes, kind: type[Kind]) -> Kind:
    record = codec.decode(payload)
    if not isinstance(record, kind):
        raise damaged(f"{type(record).__name__} does not belong where it is")
    return record


def _changes(payload: bytes) -> Iterator[Change]:
    position = 0
    while position < len(payload):
        begin = position + NUMBER.size
        if begin > len(payload):
            raise damaged("a change is cut off")
        (length,) = NUMBER.unpack_from(payload, position)
        position = begin + length
        if position > len(payload):
            raise damaged("a change is cut off")
        raw = payload[begin:position]
        yield Change(raw, _decoded(raw, Event))
