"""A process of which one thread dies of something odd: `NAME` of the thread, and its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from indexer_sim import __main__ as indexer
from indexer_sim.pipeline.applier import Applier
from indexer_sim.pipeline.mutation_reader import MutationReader
from indexer_sim.pipeline.progress_reporter import ProgressReporter
from indexer_sim.scans.api import ScanServer
from projector_sim.kv import server as kv_server
from projector_sim.projector import process as projector_process
from projector_sim.projector.state_follower import Follower
from projector_sim.sources.kv_source import KvOrders, KvWatch
from streaming import __main__ as streaming
from streaming.timestamps.ticker import Ticker

PARTS: dict[str, tuple[Any, str, Callable[[list[str]], int]]] = {
    "mutations": (MutationReader, "_run", indexer.main),
    "applier": (Applier, "_run", indexer.main),
    "progress-reporter": (ProgressReporter, "_run", indexer.main),
    "scan-server": (ScanServer, "_serve", indexer.main),
    "following": (Follower, "_run", projector_process.main),
    "kv-watch": (KvWatch, "_run", projector_process.main),
    "kv-orders": (KvOrders, "_run", projector_process.main),
    "expiry": (kv_server, "_expire", kv_server.main),
    "ticks": (Ticker, "_run", streaming.main),
}


class Odd(BaseException):
    """What nobody has thought of."""


def die(*_: Any) -> None:
    raise Odd("planted")


async def die_in_the_loop(*_: Any) -> None:
    raise RuntimeError("planted")


def main() -> int:
    where, name, run = PARTS[sys.argv[1]]
    setattr(where, name, die_in_the_loop if sys.argv[1] == "expiry" else die)
    return run(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
