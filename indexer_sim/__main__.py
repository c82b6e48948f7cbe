"""The command line of an indexer: `python -m indexer_sim --id 1 --cluster demo …`.

Exit codes: 0 after a stop, 1 if the folder cannot be used now, 2 for a wrong command line, 78 if
no restart can help.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.kafka.arguments import add_cluster, kafka_of
from coordinator.runtime.arguments import within
from coordinator.runtime.garbage import collect_rarely
from coordinator.runtime.http_guard import add_allowed_host, warn_unless_local
from coordinator.runtime.private_files import keep_private
from coordinator.runtime.signals import ignore_stops, on_stop

if TYPE_CHECKING:
    from indexer_sim.process import Options

EX_UNUSABLE, EX_CONFIG = 1, 78
INDEXER_ID_MAX = 250
SWITCH_INTERVAL_S = 0.001
"""A scan takes its turn after this, where a batch is applied: Python's default is 5 ms."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run an indexer until SIGTERM or SIGINT, and return its exit code."""
    arguments = parser().parse_args(argv)
    if trouble := keep_private(arguments.data_dir):
        print(f"indexer {arguments.id}: {trouble}", file=sys.stderr, flush=True)
    stopping = threading.Event()
    on_stop(stopping.set)
    collect_rarely()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    warn_unless_local(arguments.host, logging.getLogger("indexer"))
    from indexer_sim.process import Options

    code = run(
        Options(
            indexer=arguments.id,
            cluster=arguments.cluster,
            bootstrap_servers=kafka_of(arguments),
            data_dir=arguments.data_dir,
            zone=arguments.zone,
            heartbeat_ms=arguments.heartbeat_ms,
            host=arguments.host,
            port=arguments.port,
            checkpoint_s=arguments.checkpoint_s,
            allowed_hosts=tuple(arguments.allowed_host),
        ),
        stopping,
    )
    ignore_stops()
    return code


def run(options: Options, stopping: threading.Event) -> int:
    """Run an indexer until `stopping` is set; an expected fault is one line on stderr."""
    from coordinator.runtime.threads import ThreadEndedError
    from indexer_sim.bucket.database import StorageError
    from indexer_sim.process import Indexer, LogReplacedError, PortTakenError

    try:
        Indexer(options, stopping).run()
    except LogReplacedError as error:
        return _fail(options, str(error), EX_CONFIG)
    except (PortTakenError, ThreadEndedError) as error:
        return _fail(options, str(error), EX_UNUSABLE)
    except StorageError as error:
        final = error.code == "folder_mismatch"
        return _fail(options, error.message, EX_CONFIG if final else EX_UNUSABLE)
    return 0


def _fail(options: Options, message: str, code: int) -> int:
    with suppress(OSError):
        print(f"indexer {options.indexer}: {message}", file=sys.stderr, flush=True)
    return code


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="python -m indexer_sim", description="Run an indexer.")
    found.add_argument(
        "--id", type=_indexer_id, required=True, help="0 to 250, unique in a cluster"
    )
    add_cluster(found)
    found.add_argument("--data-dir", type=Path, required=True, help="folder of this indexer")
    found.add_argument("--zone", default="", help="zone of this indexer, for placement")
    found.add_argument(
        "--heartbeat-ms", type=within(10, 60_000), default=500, help="period of heartbeats (500)"
    )
    found.add_argument(
        "--checkpoint-s",
        type=_seconds,
        default=10.0,
        help="least time between two checkpoints of a bucket (10)",
    )
    found.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    found.add_argument(
        "--port",
        type=within(0, 65_535),
        default=0,
        help="port of the API for scans (0: any free one)",
    )
    add_allowed_host(found)
    return found


def _indexer_id(text: str) -> int:
    number = int(text)
    if not 0 <= number <= INDEXER_ID_MAX:
        raise argparse.ArgumentTypeError(f"an indexer id is 0 to {INDEXER_ID_MAX}")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 86_400:
        raise argparse.ArgumentTypeError("0.1 to 86400")
    return number


if __name__ == "__main__":
    sys.exit(main())
