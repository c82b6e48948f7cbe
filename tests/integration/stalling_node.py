"""A node's process of which one part stops silently at SIGUSR1: `FILE` and the node's arguments.

The file says by then which part. Nothing raises and nothing ends: it just does nothing any more.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from coordinator import process
from coordinator.kafka.topics import COMMIT
from coordinator.node.shell import Shell

shells: list[Shell] = []


class Kept(Shell):
    """The production shell, within reach."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        shells.append(self)


def stall_reader(shell: Shell) -> None:
    """Faust's consumer stays connected, and fetches nothing."""
    fold = shell._fold
    assert fold is not None
    consumer: Any = fold.app.consumer
    consumer._thread._consumer.pause(TopicPartition(*fold._place(COMMIT)))


def stall_producer(shell: Shell) -> None:
    """What is sent stays in the process."""
    shell._plain._send = lambda *given, **more: None  # type: ignore[method-assign]


def stall_heartbeats(shell: Shell) -> None:
    """The reader of `heartbeat` never polls again."""
    assert shell._beats is not None
    shell._beats._pause_while = lambda: True


def stall_store(shell: Shell) -> None:
    """A write does not return."""
    shell._store.save = lambda save: threading.Event().wait()  # type: ignore


PARTS = {
    "reader": stall_reader,
    "producer": stall_producer,
    "heartbeats": stall_heartbeats,
    "store": stall_store,
}


def main() -> None:
    file = Path(sys.argv.pop(1))
    process.Shell = Kept  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, lambda *_: PARTS[file.read_text()](shells[0]))
    process.main()


if __name__ == "__main__":
    main()
