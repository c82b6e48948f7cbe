"""A master that archives `history` once, and is killed at a step of it: `SERVERS FOLDER STEP`.

The Authority comes as a record on standard input. Where the step is never come to, it ends with 0.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coordinator import codec
from coordinator.core.model.records import AuthoritySnapshot
from coordinator.kafka import archive_segments, history_retention
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.history_retention import HistoryRetention
from coordinator.kafka.state_sources import Sources
from coordinator.runtime.frames import FrameWriter


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def then_die(call: Callable[..., Any]) -> Callable[..., None]:
    def called(*given: Any, **more: Any) -> None:
        call(*given, **more)
        die()

    return called


def half_written(writer: FrameWriter) -> bytes:
    writer._file.flush()
    die()
    return b""


STEPS: dict[str, tuple[Any, str, Any]] = {
    "nothing is written": (history_retention, "write_segment", die),
    "a segment is half-written": (FrameWriter, "end", half_written),
    "a segment has no name": (archive_segments.os, "link", die),
    "a segment has two names": (archive_segments.os, "link", then_die(os.link)),
    "a segment is archived": (
        *(history_retention, "write_segment"),
        then_die(history_retention.write_segment),
    ),
    "the copy is to be read back": (Sources, "read_copy", die),
    "the segment is to be read back": (HistoryArchive, "read_back", die),
    "the segment was compared": (history_retention, "delete_records", die),
    "records were deleted": (
        *(history_retention, "delete_records"),
        then_die(history_retention.delete_records),
    ),
}


def main() -> None:
    servers, folder, step = sys.argv[1:]
    record = codec.decode(sys.stdin.buffer.read())
    assert isinstance(record, AuthoritySnapshot)
    cluster = Path(folder).name
    setattr(*STEPS[step])
    passes = HistoryRetention(
        servers,
        HistoryArchive(Path(folder), cluster, lambda: record.snapshot.cluster_id),
        retention_ms=1,
        writer="node-1",
        stopping=threading.Event(),
    )
    passes.run(record.snapshot, time.time_ns() // 1_000_000)


if __name__ == "__main__":
    main()
