"""Lets old records of `history` go: into the archive first, and only then from the topic.

In this order, each step behind the one before it, however often a master dies between two:

1. Records that are older than the retention are written to segments, each synced to the disk.
2. A copy of the state above them, of which `commit` tells, is read back from `snapshots`. It is as
   old as they are: whoever was away for less than that goes on from there by the topic alone.
3. The segments are read back from the disk, and compared with the topic, record by record.
4. The records are deleted from the topic, up to the end of the last segment that was compared.

It rests on nothing but the folder and the topics. So any number of masters may do it at once: who
has been deposed, and does not know it yet, deletes only what it has found in the archive itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import KafkaException, Message

from coordinator import codec
from coordinator.core.consensus.authority import SNAPSHOTS_MAX
from coordinator.core.history.retention import Portion, Seen, left_by
from coordinator.core.model.authority_state import AuthorityState, SnapshotInfo
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.archive_segments import (
    Header,
    clear_halves,
    damaged,
    encode,
    path_of,
    unavailable,
    write_segment,
)
from coordinator.kafka.history_archive import GONE, HistoryArchive
from coordinator.kafka.log_reader import BadRecord, LogReader, ignore, stopped
from coordinator.kafka.state_sources import SnapshotLost, Sources
from coordinator.kafka.topics import HISTORY, delete_records, topic_name
from schemas.registry import SchemaError

GROUP = "history-retention"
SEGMENT_BYTES = 8 * 1024 * 1024
"""A segment is read as a whole, so it must fit the memory."""

SILENCE_S = 30.0

log = logging.getLogger("coordinator")


class Passed(NamedTuple):
    """What one pass has done."""

    archived: int
    """So many records went into the archive."""

    low: Offset
    """The topic begins with this offset now."""

    oldest: Cas
    """The CAS of its first event; 0: there is none."""

    wants_copy: bool
    """Records could go, if there were a copy of the state above them."""


class HistoryRetention:
    """Archives and deletes for one cluster. One thread at a time may use it."""

    def __init__(
        self,
        bootstrap_servers: str,
        archive: HistoryArchive,
        *,
        retention_ms: int,
        writer: str,
        stopping: threading.Event,
        bad: BadRecord = ignore,
    ) -> None:
        """`writer` names the node: no two use one name at a time."""
        self._servers = bootstrap_servers
        self._archive = archive
        self._retention_ms = retention_ms
        self._writer = writer
        self._stopping = stopping
        self._topic = topic_name(archive.cluster, HISTORY)
        self._sources = Sources(bootstrap_servers, archive.cluster, stopping, bad)

    def run(self, authority: AuthorityState, now_ms: int) -> Passed:
        """Let go what may go. Raises ArchiveError, KafkaException.

        `authority` is that of now: it has the newest CAS, and tells of the copies of the state.
        """
        with closing(LogReader(self._servers, self._topic, GROUP)) as reader:
            archived, wants_copy = 0, False
            try:
                archived = self._archive_old(reader, authority, now_ms)
                wants_copy = self._let_go(reader, authority, now_ms)
            except KafkaException as error:
                _raise_unless_gone(error)
                log.info("another master lets records of history go: %s", error)
            low, oldest = self._beginning(reader, authority)
        return Passed(archived, low, oldest, wants_copy)

    def _beginning(self, reader: LogReader, authority: AuthorityState) -> tuple[Offset, Cas]:
        """Return the first offset of the topic, and the CAS of its first event."""
        low, before = reader.bounds()[0], None
        while low != before:
            before = low
            try:
                for message in self._committed(reader, low):
                    event = _seen(message).event
                    if event is not None and event.cas <= authority.last_cas:
                        return low, event.cas
            except KafkaException as error:
                _raise_unless_gone(error)
                low = reader.bounds()[0]
        return low, Cas(0)

    # -- into the archive --------------------------------------------------------------------

    def _archive_old(self, reader: LogReader, authority: AuthorityState, now_ms: int) -> int:
        """Write what is older than the retention to segments; return how many records that is."""
        try:
            clear_halves(self._archive.folder, self._writer)
        except OSError as error:
            raise unavailable(self._archive.folder, error) from None
        held = self._archive.headers()
        begin = held[-1].end if held else Offset(0)
        self._archive.require(reader.bounds()[0])
        above = held[-1].last_cas if held else Cas(0)
        count = 0
        for portion, messages in self._portions(reader, begin, above, authority, now_ms):
            end = Offset(int(messages[-1].offset() or 0) + 1)
            header = Header(
                cluster=self._archive.cluster,
                cluster_id=authority.cluster_id,
                begin=begin,
                end=end,
                count=len(messages),
                first_cas=portion.first_cas,
                last_cas=portion.last_cas,
                previous=self._archive.seal_at_end(),
            )
            try:
                write_segment(self._archive.folder, self._writer, header, messages)
            except OSError as error:
                raise unavailable(path_of(self._archive.folder, begin), error) from None
            if self._archive.header(begin) != header:
                log.info("another master has archived history from offset %d on", begin)
                break
            begin, count = end, count + len(messages)
        return count

    def _portions(
        self,
        reader: LogReader,
        begin: Offset,
        above: Cas,
        authority: AuthorityState,
        now_ms: int,
    ) -> Iterator[tuple[Portion, Sequence[Message]]]:
        """Yield what may go from an offset on, in portions that each fill a segment."""
        before_ms = now_ms - self._retention_ms
        portion = Portion(above, authority.last_cas, before_ms, SEGMENT_BYTES)
        held: list[Message] = []
        for message in self._committed(reader, begin):
            if not portion.takes(_seen(message)):
                break
            held.append(message)
            if portion.is_full:
                yield portion, held
                above, held = portion.last_cas, []
                portion = Portion(above, authority.last_cas, before_ms, SEGMENT_BYTES)
        if portion.whole:
            yield portion, held[: portion.whole]

    def _committed(self, reader: LogReader, begin: Offset) -> Iterator[Message]:
        """Yield the committed records from an offset on, to the last stable one of now."""
        _, end = reader.bounds()
        if begin >= end:
            return
        for found in reader.read(begin, self._stopping, SILENCE_S):
            yield from found.records
            if found.at_end or found.position >= end:
                return
        raise stopped()

    # -- from the topic ----------------------------------------------------------------------

    def _let_go(self, reader: LogReader, authority: AuthorityState, now_ms: int) -> bool:
        """Delete what is in the archive and below a copy; return whether a copy is wanted."""
        low, _ = reader.bounds()
        waiting = [header for header in self._archive.headers() if header.end > low]
        if not waiting:
            return False
        above = [info for info in authority.snapshots if info.cas > waiting[0].last_cas]
        before_ms = now_ms - self._retention_ms
        old = [info for info in above if info.at_ms < before_ms]
        # One from the future, of a master whose clock was ahead, is not waited for.
        is_awaited = any(before_ms <= info.at_ms <= now_ms for info in above)
        if not old and len(above) >= SNAPSHOTS_MAX:
            # They come so fast that the Authority knows of none that is old; there are some.
            old = above
        copy = self._newest(old)
        for header in left_by(waiting, low, copy):
            self._compare(reader, header.begin, low)
            delete_records(self._servers, self._topic, header.end)
            low = header.end
            log.info("history up to offset %d is in the archive alone", low)
        return copy is None and not is_awaited

    def _newest(self, copies: Sequence[SnapshotInfo]) -> SnapshotInfo | None:
        """Return the newest copy of the state that can be read back. Raises KafkaException."""
        for info in reversed(copies):
            try:
                found = self._sources.read_copy(info.copy, info.offset)
            except SnapshotLost as error:
                log.warning("the copy of the state at CAS %d is lost: %s", info.cas, error)
                continue
            except KafkaException as error:
                _raise_unless_gone(error)
                log.warning("the copy of the state at CAS %d is gone: %s", info.cas, error)
                continue
            if (found.cas, found.digest) == (info.cas, info.digest):
                return info
            log.warning("the copy of the state at CAS %d is another one", info.cas)
        return None

    def _compare(self, reader: LogReader, begin: Offset, low: Offset) -> None:
        """Compare a segment with what the topic has of it, from `low` on. Raises ArchiveError."""
        segment = self._archive.read_back(begin)
        first, end = Offset(max(begin, low)), segment.header.end
        kept = [m for m in segment.messages if int(m.offset() or 0) >= first]
        there = self._until(reader, first, end)
        if [*map(encode, kept)] != [*map(encode, there)]:
            text = "the segment has other records than the topic: nothing is deleted"
            raise damaged(path_of(self._archive.folder, begin), text)

    def _until(self, reader: LogReader, first: Offset, end: Offset) -> Iterator[Message]:
        """Yield the committed records of the topic from one offset on, below another."""
        for found in reader.read(first, self._stopping, SILENCE_S):
            yield from (m for m in found.records if int(m.offset() or 0) < end)
            if found.position >= end or found.at_end:
                return
        raise stopped()


def _raise_unless_gone(error: KafkaException) -> None:
    """Raise an error again, unless it says that the records have left their topic meanwhile."""
    if error.args[0].code() not in GONE:
        raise error


def _seen(message: Message) -> Seen:
    """Return what matters of a record; one that cannot be read is none that a master wrote."""
    value = message.value() or b""
    try:
        record = codec.decode(value)
    except SchemaError:
        record = None
    size = len(value) + len(message.key() or b"")
    return Seen(message.timestamp()[1], size, record if isinstance(record, Event) else None)
