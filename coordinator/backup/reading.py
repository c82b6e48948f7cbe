"""Makes a backup from the topics of a cluster, whether its nodes run or not.

The Authority on `commit` says up to which CAS there are changes, and which digest they lead to.
`history` has them as they were written. What is committed meanwhile is not in the backup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka.admin import AdminClient

from coordinator import codec
from coordinator.backup.contents import BackupWriter, Change, Manifest
from coordinator.backup.errors import BackupError
from coordinator.core.catalog.state import EMPTY, StateContext
from coordinator.core.consensus.authority import fold as fold_authority
from coordinator.core.history.changes import fold, whole_transactions, without_outcomes
from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import CommitRecord, Event, Unreadable
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.address import client_settings
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.errors import explain
from coordinator.kafka.history_archive import HistoryArchive, history_reader
from coordinator.kafka.history_log import END_WAIT_S, HistoryLog
from coordinator.kafka.log_reader import decoded, read_to_end
from coordinator.kafka.topics import COMMIT, topic_name
from schemas.registry import SchemaError

GROUP = "backup"
SILENCE_S = 60.0
METADATA_S = 10.0
TOLD_EVERY = 10_000
"""The progress is reported each so many changes."""

Progress = Callable[[int], None]


def write_backup(
    file: BinaryIO,
    servers: str,
    cluster: str,
    *,
    after: Cas,
    version: str,
    progress: Progress,
    archive: Path | None = None,
) -> tuple[Manifest, int, int]:
    """Write a backup of a cluster; return its manifest, its changes and its bytes.

    `after`: with the changes above this CAS alone. `archive`: the folder that has what the topic
    `history` has no more. Raises BackupError, KafkaRefusal, OSError.
    """
    try:
        authority = read_authority(servers, cluster)
        history = _History(servers, cluster, archive, authority.cluster_id)
        return _write(file, history, authority, after=after, version=version, progress=progress)
    except KafkaException as error:
        raise explain(error, servers) from error
    except ArchiveError as error:
        raise BackupError(error.code, f"{error.message}: no backup was made") from error


class _History:
    """Where the history of a cluster is."""

    def __init__(self, servers: str, cluster: str, folder: Path | None, cluster_id: str) -> None:
        self.servers, self.cluster = servers, cluster
        self.archive = (
            HistoryArchive(folder, cluster, lambda: cluster_id) if folder is not None else None
        )


def read_authority(servers: str, cluster: str) -> AuthorityState:
    """Return the Authority of a cluster as of now. Raises BackupError `no_cluster`."""
    name = topic_name(cluster, COMMIT)
    admin = AdminClient({**client_settings(servers), "log_level": 2})
    state: AuthorityState | None = None
    if name in admin.list_topics(timeout=METADATA_S).topics:
        for message in read_to_end(servers, name, GROUP):
            offset = Offset(int(message.offset() or 0))
            state = fold_authority(state, offset, _record(message)).state
    if state is None:
        text = f"there is no cluster {cluster!r} on the Kafka at {servers}"
        raise BackupError("no_cluster", f"{text}: name it with --cluster")
    return state


def _record(message: Message) -> CommitRecord:
    try:
        record: CommitRecord = codec.decode(message.value() or b"")
    except SchemaError as error:
        return Unreadable(str(error))
    return record if isinstance(record, CommitRecord) else Unreadable("it does not belong here")


def _write(
    file: BinaryIO,
    history: _History,
    authority: AuthorityState,
    *,
    after: Cas,
    version: str,
    progress: Progress,
) -> tuple[Manifest, int, int]:
    base = _base(history, authority.last_cas)
    manifest = Manifest(
        cluster=history.cluster,
        cluster_id=authority.cluster_id,
        cas=authority.last_cas,
        digest=digests.text(authority.digest),
        # The last transaction is always there: it says what came before it.
        history_after=max(base.cas, min(after, Cas(authority.last_cas - 1))),
        made_at_ms=time.time_ns() // 1_000_000,
        version=version,
    )
    writer = BackupWriter(file, manifest, authority)
    state, has_base, count = base, False, 0
    for transaction in _transactions(history, base.cas, authority.last_cas):
        events = tuple(change.event for change in transaction)
        if not has_base and events[-1].cas > manifest.history_after:
            writer.base(state)
            has_base = True
        state = _folded(state, events)
        for change in transaction if has_base else ():
            writer.change(change.raw)
            count += 1
            if count % TOLD_EVERY == 0:
                progress(count)
    if not has_base:
        writer.base(state)
    if (state.cas, state.digest) != (authority.last_cas, authority.digest):
        text = f"history leads to digest {digests.text(state.digest)} at CAS {state.cas}"
        raise BackupError(
            "history_damaged",
            f"{text}, and {manifest.digest} at {manifest.cas} was committed: no backup was made",
        )
    writer.end(state)
    return manifest, count, writer.size


def _base(history: _History, newest: Cas) -> StateContext:
    """Return the state that `history` begins with: an empty one, or what a restore began with."""
    found = HistoryLog(history.servers, history.cluster, archive=history.archive)
    with closing(found) as log:
        if not log.oldest(newest):
            return EMPTY
        base = log.base()
    if base is None:
        text = "the first records of history are gone, and what they led to is not known"
        if history.archive is None:
            text += ": if they are in an archive, give it with --history-archive"
        raise BackupError("history_damaged", f"{text}: no backup was made")
    return base


def _folded(state: StateContext, events: tuple[Event, ...]) -> StateContext:
    """Return the state after a transaction, without what older versions kept as entities."""
    kept = without_outcomes(events)
    return fold(state, kept)[0] if kept else state


def _transactions(history: _History, above: Cas, up_to: Cas) -> Iterator[tuple[Change, ...]]:
    """Yield the transactions between two CAS, each record of `history` as it was written."""
    raw: dict[Cas, bytes] = {}

    def events() -> Iterator[Event]:
        for change in _changes(history, above, up_to):
            raw[change.event.cas] = change.raw
            yield change.event

    for transaction in whole_transactions(events()):
        yield tuple(Change(raw[event.cas], event) for event in transaction)
        raw.clear()


def _changes(history: _History, above: Cas, up_to: Cas) -> Iterator[Change]:
    seen, heard_s = above, time.monotonic()
    reader = history_reader(history.servers, history.cluster, GROUP, history.archive)
    with closing(reader) as log:
        low, _ = log.bounds()
        for found in log.read(low, patience_s=SILENCE_S):
            if seen >= up_to:
                return
            for message, event in decoded(found.records, Event):
                # What is above is newer than the backup, or a stranger's.
                if seen < event.cas <= up_to:
                    seen = event.cas
                    yield Change(bytes(message.value() or b""), event)
            if found.records:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > END_WAIT_S:
                text = f"history shows nothing above CAS {seen}, though {up_to} was committed"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, text))
