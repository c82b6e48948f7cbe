"""What leaves the topic for the archive, where another master archives at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from coordinator import codec
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import Event
from coordinator.core.model.types import Offset
from coordinator.kafka import history_retention
from coordinator.kafka.archive_segments import Header, write_segment
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.history_retention import HistoryRetention
from coordinator.kafka.log_reader import Read
from tests.support.changes import ONE, THREE, TWO, a_transaction, flat, written

FOUR, NEWEST = (a_transaction(cas, cas, written("c", "1")) for cas in (9, 10))
EVENTS = flat(ONE, TWO, THREE, FOUR, NEWEST)
NOW_MS, RETENTION_MS = 10_000, 1_000


class Log:
    """A log of these events, one for each offset."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._messages = [
            Message(
                topic="c.history",
                partition=0,
                offset=offset,
                key=b"k",
                value=codec.encode(event),
                timestamp=(1, 1_000),
            )
            for offset, event in enumerate(events)
        ]

    def bounds(self) -> tuple[Offset, Offset]:
        return Offset(0), Offset(len(self._messages))

    def read(self, begin: Offset, *_: Any) -> Iterator[Read]:
        yield Read(self._messages[begin:], Offset(len(self._messages)), at_end=True)


def archived_by(writer: str, folder: Path) -> int:
    """Archive what is old; return how many records that was."""
    archive = HistoryArchive(folder, "c", lambda: "id")
    retention = HistoryRetention(
        "127.0.0.1:1",
        archive,
        retention_ms=RETENTION_MS,
        writer=writer,
        stopping=threading.Event(),
    )
    authority = AuthorityState(
        cluster_id="id",
        cas_base=1,
        roster=(1, 2),
        minimum=1,
        log_capacity=10,
        request_window_ms=5,
        last_cas=EVENTS[-1].cas,
    )
    reader: Any = Log(EVENTS)
    return retention._archive_old(reader, authority, NOW_MS)


def test_of_two_masters_that_archive_at_once_one_goes_on_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have divided the log in another way."""
    monkeypatch.setattr(history_retention, "SEGMENT_BYTES", 1)
    begun: list[int] = []

    def late(folder: Path, writer: str, header: Header, messages: Sequence[Message]) -> None:
        if not begun:
            begun.append(header.begin)
            monkeypatch.setattr(history_retention, "SEGMENT_BYTES", 300)
            assert archived_by("node-2", folder) > header.count
            monkeypatch.setattr(history_retention, "SEGMENT_BYTES", 1)
        write_segment(folder, writer, header, messages)

    monkeypatch.setattr(history_retention, "write_segment", late)
    assert archived_by("node-1", tmp_path) == 0
    found = HistoryArchive(tmp_path, "c", lambda: "id").headers()
    assert found[0].count > len(ONE)
    archived_by("node-1", tmp_path)
    assert HistoryArchive(tmp_path, "c", lambda: "id").headers()[-1].last_cas == FOUR[-1].cas
