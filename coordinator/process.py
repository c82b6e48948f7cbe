"""The process of one IndexManager node: `python -m coordinator.process --node 1 …`.

Puts node, store, shell and HTTP together and takes them apart again. Expected faults end it with
one line and an exit code: 78 where starting again would only fail again.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import secrets
import sys
import uuid
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay

from coordinator.codec import Codec
from coordinator.core.consensus.inputs import Started
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.types import Offset
from coordinator.core.node import Node
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.arguments import add_kafka, kafka_of
from coordinator.kafka.errors import KafkaRefusal, explain, may_pass
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.readers import watermarks
from coordinator.kafka.topics import COMMIT, ensure_topics, topic_name
from coordinator.node.shell import EXIT_FAILED, EXIT_REFUSED, Shell
from coordinator.node.store import Store, StoreError, open_or_replace
from coordinator.runtime.arguments import cluster, duration_ms
from coordinator.runtime.files import make_durably
from coordinator.runtime.http_guard import add_allowed_host, warn_unless_local
from coordinator.runtime.private_files import keep_private
from coordinator.runtime.signals import ignore_stops, on_stop_in

log = logging.getLogger("coordinator")

TIMINGS = {
    "heartbeat_ms": "period of heartbeats",
    "election_timeout_ms": "how long the master may send no heartbeat before another node claims",
    "ack_timeout_ms": "how long the master waits for answers before it repeats a proposal",
    "ddl_timeout_ms": "how long indexers may take to allocate storage",
    "request_window_ms": "how long outcomes of requests are kept; counts at the first start",
    "stall_ms": "how long a stalled reader or producer may last before the process ends",
    "scrub_ms": "period at which the master compares statecontext with its state",
    "copy_wait_ms": "how long a node waits for a copy of the state before it asks another node",
    "snapshot_bytes": "bytes of the commit topic between two snapshots of the state",
}
"""The periods and sizes of `NodeConfig` that can be set from outside, with their help texts."""

CHOSEN = (*TIMINGS, "log_capacity", "minimum", "sync_partitions")
"""What can be chosen; the last three count when the cluster is formed, and stay so."""

LOG_CAPACITY_MAX = 10_000
"""A snapshot of the Authority carries all of it, in one record."""

NODES_MAX = 250
"""The number of a node is no higher, either: heartbeats of others are not heard."""

PORT_MAX, REPLICAS_MAX, NUMBER_MAX = 65_535, 2**15 - 1, 2**31 - 1
DIGITS_MAX = 10

SYNC_PARTITIONS_MAX = 1_024

TOPICS_COME_S = 120.0
"""How long new topics may lack a leader: a broker makes them one by one, and flushes each."""

GARBAGE_OBJECTS = 10_000
"""Python looks for garbage among new objects after so many of them, not after each 700."""

SWITCH_INTERVAL_S = 0.001
"""Threads hand each other small things: Python's default of 5 ms would show as latency."""


def main() -> None:
    arguments = _arguments()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format=f"%(asctime)s node-{arguments.node} %(levelname)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        code = _run(arguments)
    except (KafkaRefusal, StoreError, ArchiveError) as error:
        print(f"error: {error.message} [{error.code}]", file=sys.stderr)
        final = error.code in ("topic_mismatch", "data_folder_mismatch")
        code = EXIT_REFUSED if final else EXIT_FAILED
    sys.stderr.flush()
    # Client libraries keep threads that a plain exit would wait for.
    os._exit(code)


def options() -> argparse.ArgumentParser:
    """Return the parser of all options of a node."""
    parser = argparse.ArgumentParser(
        prog="python -m coordinator.process",
        description="Run one node. Exit code 78: a restart does not help.",
    )
    parser.add_argument("--node", type=_up_to(NODES_MAX), required=True, help="number of this node")
    parser.add_argument("--roster", type=_roster, required=True, help="numbers of all nodes: 1,2,3")
    parser.add_argument(
        "--cluster",
        type=cluster,
        required=True,
        help="name of the cluster, the prefix of its topics",
    )
    add_kafka(parser)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of this node")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_up_to(PORT_MAX), required=True, help="port of the HTTP API")
    add_allowed_host(parser)
    parser.add_argument(
        "--replication-factor",
        type=_up_to(REPLICAS_MAX),
        default=1,
        help="replicas of new topics (1)",
    )
    parser.add_argument(
        "--not-durable", action="store_true", help="new topics: Kafka need not flush each message"
    )
    parser.add_argument(
        "--log-capacity",
        type=_up_to(LOG_CAPACITY_MAX),
        help="transactions that `indexctl transactions` can show; counts at the first start",
    )
    parser.add_argument(
        "--sync-partitions",
        type=_up_to(SYNC_PARTITIONS_MAX),
        help="partitions of sync, stream-begin and stream-end (4); counts at the first start",
    )
    parser.add_argument(
        "--minimum",
        type=_up_to(NODES_MAX),
        help="nodes that must hold a change to commit it (a majority); counts at the first start",
    )
    parser.add_argument(
        "--history-archive",
        type=Path,
        help="folder, shared by all nodes, for changes that were moved out of the topic history",
    )
    parser.add_argument(
        "--history-retention",
        type=duration_ms,
        metavar="DURATION",
        help="move changes that are older, such as 30d, from the topic history to the archive",
    )
    defaults = {field.name: field.default for field in fields(NodeConfig)}
    for name, what in TIMINGS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=_up_to(NUMBER_MAX), help=f"{what} ({defaults[name]:,})")
    return parser


def _arguments() -> argparse.Namespace:
    arguments = options().parse_args()
    arguments.bootstrap_servers = kafka_of(arguments)
    return arguments


def _config(arguments: argparse.Namespace) -> NodeConfig:
    return NodeConfig(
        node=arguments.node,
        roster=arguments.roster,
        address=f"http://{arguments.host}:{arguments.port}",
        pid=os.getpid(),
        incarnation=secrets.randbits(62),
        cluster_id=uuid.uuid4().hex,
        **{name: given for name in CHOSEN if (given := getattr(arguments, name)) is not None},
    )


def _up_to(limit: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or len(text) > DIGITS_MAX or not 1 <= int(text) <= limit:
            raise argparse.ArgumentTypeError(f"a number from 1 to {limit}")
        return int(text)

    return number


def _roster(text: str) -> tuple[int, ...]:
    numbers = tuple(sorted(map(_up_to(NODES_MAX), text.split(","))))
    if len(set(numbers)) < len(numbers):
        raise argparse.ArgumentTypeError("each node once")
    return numbers


def _run(arguments: argparse.Namespace) -> int:
    nodes = len(arguments.roster)
    if (arguments.minimum or 0) > nodes:
        print(f"error: {nodes} nodes hold no {arguments.minimum} copies [usage]", file=sys.stderr)
        return EXIT_REFUSED
    if arguments.history_retention is not None and arguments.history_archive is None:
        text = "--history-retention needs --history-archive FOLDER"
        print(f"error: {text} [usage]", file=sys.stderr)
        return EXIT_REFUSED
    kafka_id, arguments.sync_partitions = ensure_topics(
        arguments.bootstrap_servers,
        arguments.cluster,
        replication_factor=arguments.replication_factor,
        durable=not arguments.not_durable,
        sync_partitions=arguments.sync_partitions,
    )
    if trouble := keep_private(arguments.data_dir):
        log.warning("%s", trouble)
    if arguments.history_retention is not None:
        HistoryArchive(arguments.history_archive, arguments.cluster).check_writable()
    try:
        make_durably(arguments.data_dir)
    except OSError as error:
        raise StoreError("store_unusable", f"{arguments.data_dir}: {error.strerror}") from error
    store, damage = open_or_replace(arguments.data_dir)
    if damage:
        log.error("%s: synchronising in full [store_damaged]", damage)
    store.claim_identity(f"cluster {arguments.cluster} on Kafka {kafka_id}, node {arguments.node}")
    low, high = _ends_of_commit(arguments)
    try:
        restored = store.restore()
    except StoreError as error:
        log.error("%s: synchronising in full [%s]", error.message, error.code)
        restored = None
    import uvloop

    return uvloop.run(_serve(arguments, store, Started(restored, low, high)))


def _ends_of_commit(arguments: argparse.Namespace) -> tuple[Offset, Offset]:
    """Return the first offset of `commit` and its last stable one, once it has a leader.

    Raises KafkaRefusal.
    """
    topic = topic_name(arguments.cluster, COMMIT)

    def say(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("waiting for %s: %s", topic, error.args[0].str() if error else "")

    attempts = Retrying(
        retry=retry_if_exception(may_pass),
        stop=stop_after_delay(TOPICS_COME_S),
        before_sleep=say,
        reraise=True,
    )
    try:
        return attempts(watermarks, arguments.bootstrap_servers, topic)
    except KafkaException as error:
        raise explain(error, arguments.bootstrap_servers) from error


async def _serve(arguments: argparse.Namespace, store: Store, started: Started) -> int:
    """Run node and HTTP server until a signal comes or the node halts."""
    from coordinator.http.app import build_app
    from coordinator.http.server import HttpServer

    node = Node(_config(arguments), Codec())
    # What was restored stays: the collector need not go through it again and again.
    gc.collect()
    gc.freeze()
    shell = Shell(
        node,
        store,
        arguments.bootstrap_servers,
        arguments.cluster,
        str(arguments.data_dir),
        history_archive=arguments.history_archive,
        history_retention_ms=arguments.history_retention,
    )
    loop = asyncio.get_running_loop()
    on_stop_in(loop, shell.stop)
    warn_unless_local(arguments.host, log)
    app = build_app(shell, arguments.allowed_host)
    server = HttpServer(app, arguments.host, arguments.port)
    if not await server.start():
        advice = "end what listens there, or choose another with --port"
        print(f"error: port {arguments.port} is taken: {advice} [port_taken]", file=sys.stderr)
        return EXIT_FAILED
    _spare_what_stays()
    running: asyncio.Task[Any] = asyncio.create_task(shell.run(started))
    await shell.stopped.wait()
    await running
    await server.stop()
    await app.state.calls.close()
    await shell.close()
    ignore_stops()
    return shell.exit_code


def _spare_what_stays() -> None:
    """Have Python's search for garbage leave out what there is now: it stays as long as the node.

    The search stops everything else. Modules and the restored state are nearly all that it would
    look at, and it begins whenever a client has sent many small things.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS)


if __name__ == "__main__":
    main()
