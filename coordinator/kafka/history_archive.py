"""The archive of `history`: a folder of segments, which has what the topic has no more.

It begins with offset 0, and each segment goes on where the one before it ends. Nobody changes a
segment. So a reader need not agree with whoever writes: it finds the segments that there are.
Whatever is missing or damaged is an `ArchiveError` that names the file; nothing is left out.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.core.model.types import Offset
from coordinator.kafka.archive_segments import (
    NO_SEAL,
    ArchiveError,
    Header,
    Segment,
    begins_in,
    damaged,
    path_of,
    read_header,
    read_seal,
    read_segment,
    unavailable,
)
from coordinator.kafka.log_reader import LogReader, Read
from coordinator.kafka.topics import HISTORY, topic_name
from coordinator.runtime.files import make_durably

HELD_MAX = 2
"""So many segments are held in memory: a search looks at the same ones again and again."""

PROBE = ".writable"


def no_cluster_id() -> str:
    """Say that it is not known yet which cluster this is."""
    return ""


class HistoryArchive:
    """The archive of one cluster in a folder. Any thread may ask."""

    def __init__(
        self, folder: Path, cluster: str, cluster_id: Callable[[], str] = no_cluster_id
    ) -> None:
        """`cluster_id` returns the id of the cluster, or nothing while that is not known."""
        self.folder = folder
        self.cluster = cluster
        self._cluster_id = cluster_id
        self._topic = topic_name(cluster, HISTORY)
        self._turn = threading.Lock()
        self._held: OrderedDict[Offset, Segment] = OrderedDict()
        self._headers: dict[Offset, Header] = {}

    def check_writable(self) -> None:
        """Make the folder, and see that it takes files. Raises ArchiveError."""
        probe = self.folder / f"{PROBE}.{os.getpid()}"
        try:
            make_durably(self.folder)
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            raise unavailable(self.folder, error) from None

    def begins(self) -> list[Offset]:
        """Return where the segments begin, in order. Raises ArchiveError."""
        try:
            found = begins_in(self.folder)
        except OSError as error:
            raise unavailable(self.folder, error) from None
        if found and found[0] != 0:
            raise damaged(path_of(self.folder, 0), "the segment is missing")
        return found

    def header(self, begin: Offset) -> Header:
        """Return what the segment says of itself that begins at an offset. Raises ArchiveError."""
        held = self._headers.get(begin)
        if held is None:
            held = self._headers[begin] = self._own(read_header(path_of(self.folder, begin)), begin)
        return held

    def headers(self) -> list[Header]:
        """Return what all segments say, in order, if each goes on where the last one ends.

        Raises ArchiveError.
        """
        found = [self.header(begin) for begin in self.begins()]
        end = Offset(0)
        for header in found:
            if header.begin != end:
                raise damaged(path_of(self.folder, end), "the segment is missing")
            end = header.end
        return found

    def end(self) -> Offset:
        """Return the offset up to which the archive has everything; 0: it has nothing.

        Raises ArchiveError.
        """
        begins = self.begins()
        return self.header(begins[-1]).end if begins else Offset(0)

    def require(self, low: Offset) -> None:
        """Raises ArchiveError unless the archive goes up to where the topic begins."""
        end = self.end()
        if end < low:
            text = f"the segment is missing, and the topic begins with offset {low}"
            raise damaged(path_of(self.folder, end), text)

    def read(self, offset: Offset) -> Iterator[tuple[tuple[Message, ...], Offset]]:
        """Yield the records from an offset on, and how far they are read. Raises ArchiveError."""
        begins = self.begins()
        at = bisect_right(begins, offset) - 1
        while at >= 0:
            segment = self.segment(begins[at])
            end = segment.header.end
            if offset < end:
                yield tuple(m for m in segment.messages if int(m.offset() or 0) >= offset), end
                offset = end
            at += 1
            if at == len(begins):
                return
            if begins[at] != end:
                raise damaged(path_of(self.folder, end), "the segment is missing")

    def segment(self, begin: Offset) -> Segment:
        """Return the segment that begins at an offset. Raises ArchiveError."""
        with self._turn:
            held = self._held.get(begin)
            if held is None:
                held = self._held[begin] = self.read_back(begin)
            self._held.move_to_end(begin)
            while len(self._held) > HELD_MAX:
                self._held.popitem(last=False)
            return held

    def read_back(self, begin: Offset) -> Segment:
        """Return a segment as the disk has it now, once it fits the one before it.

        Raises ArchiveError.
        """
        file = path_of(self.folder, begin)
        segment = read_segment(file, self._topic)
        self._own(segment.header, begin)
        if segment.header.previous != self._seal_before(begin):
            raise damaged(file, "the segment does not belong after the one before it")
        return segment

    def _seal_before(self, begin: Offset) -> str:
        """Return the seal of the segment that ends at an offset."""
        if begin == 0:
            return NO_SEAL
        begins = self.begins()
        before = begins[begins.index(begin) - 1]
        if self.header(before).end != begin:
            raise damaged(path_of(self.folder, self.header(before).end), "the segment is missing")
        return read_seal(path_of(self.folder, before))

    def seal_at_end(self) -> str:
        """Return what the next segment has to say of the one before it. Raises ArchiveError."""
        begins = self.begins()
        return self.read_back(begins[-1]).seal if begins else NO_SEAL

    def _own(self, header: Header, begin: Offset) -> Header:
        file = path_of(self.folder, begin)
        expected = self._cluster_id() or header.cluster_id
        if (header.cluster, header.cluster_id) != (self.cluster, expected):
            text = f"the segment is of the cluster {header.cluster!r} ({header.cluster_id})"
            raise ArchiveError("history_archive_foreign", f"{file}: {text}", file.name)
        if header.begin != begin or header.end <= begin:
            raise damaged(file, "the segment has another name than it was written with")
        return header


GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class ArchivedLog(LogReader):
    """Reads `history` as if nothing had ever left it: what the topic has not, the archive has."""

    def __init__(
        self, bootstrap_servers: str, group: str, archive: HistoryArchive, **more: Any
    ) -> None:
        super().__init__(bootstrap_servers, topic_name(archive.cluster, HISTORY), group, **more)
        self._archive = archive
        self._low: Offset | None = None

    def bounds(self) -> tuple[Offset, Offset]:
        """Return the first offset and the last stable one. Raises KafkaException, ArchiveError."""
        low, high = self.topic_bounds()
        if low == 0:
            return low, high
        self._archive.require(low)
        return Offset(0), high

    def topic_bounds(self) -> tuple[Offset, Offset]:
        """Return those of the topic itself. Raises KafkaException."""
        self._low, high = super().topic_bounds()
        return self._low, high

    def read(self, offset: Offset, *given: Any, **more: Any) -> Iterator[Read]:
        """Yield what comes from `offset` on: see `LogReader.read`. Raises ArchiveError, too."""
        position = offset
        while True:
            low = self._low if self._low is not None else self.topic_bounds()[0]
            if position < low:
                self._archive.require(low)
                for records, end in self._archive.read(position):
                    position = end
                    yield Read([*records], position, False)
                    if position >= low:
                        break
            try:
                for found in super().read(position, *given, **more):
                    position = found.position
                    yield found
                return
            except KafkaException as error:
                # It has left the topic meanwhile, for the archive.
                if error.args[0].code() not in GONE or self.topic_bounds()[0] <= position:
                    raise


def history_reader(
    bootstrap_servers: str,
    cluster: str,
    group: str,
    archive: HistoryArchive | None = None,
    **more: Any,
) -> LogReader:
    """Return a reader of `history`, and of the archive, if there is one. The caller closes it."""
    if archive is not None:
        return ArchivedLog(bootstrap_servers, group, archive, **more)
    return LogReader(bootstrap_servers, topic_name(cluster, HISTORY), group, **more)
