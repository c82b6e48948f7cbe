"""The children of a run: how each is started, and how one knows that it is ready."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.embedded.ports import LOOPBACK
from coordinator.kafka.address import KafkaAddress

PROBE_TIMEOUT_S = 2.0
TIMESTAMPS, READY = "timestamps", "ready"
ARCHIVER = "archiver"
Probe = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child process: its name, command, log file, and the probe that says it is ready."""

    name: str
    argv: tuple[str, ...]
    log: Path
    ready: Probe
    pass_fds: tuple[int, ...] = ()
    """Descriptors that it inherits."""


def kafka_options(bootstrap_servers: str) -> tuple[str, ...]:
    """Return the options that tell a process where Kafka is, and how to log in there."""
    named = ("--bootstrap-servers", str(bootstrap_servers))
    file = bootstrap_servers.file if isinstance(bootstrap_servers, KafkaAddress) else None
    return named if file is None else (*named, "--kafka-conf", str(file))


def node_argv(
    node: int,
    *,
    roster: Sequence[int],
    cluster: str,
    bootstrap_servers: str,
    data_dir: Path,
    http_port: int,
    durable: bool,
    replication_factor: int = 1,
    log_capacity: int | None = None,
    sync_partitions: int | None = None,
    request_window_ms: int | None = None,
    history_archive: Path | None = None,
    history_retention: str | None = None,
) -> tuple[str, ...]:
    """Return the command of IndexManager node `node`; `http_port` is that of node 1."""
    return (
        *(sys.executable, "-m", "coordinator.process"),
        *("--node", str(node), "--roster", ",".join(map(str, roster))),
        *("--cluster", cluster, *kafka_options(bootstrap_servers)),
        *("--data-dir", str(data_dir / f"node-{node}")),
        *("--host", LOOPBACK, "--port", str(http_port + node - 1)),
        *("--replication-factor", str(replication_factor)),
        *(() if durable else ("--not-durable",)),
        *(() if log_capacity is None else ("--log-capacity", str(log_capacity))),
        *(() if sync_partitions is None else ("--sync-partitions", str(sync_partitions))),
        *(() if request_window_ms is None else ("--request-window-ms", str(request_window_ms))),
        *(() if history_archive is None else ("--history-archive", str(history_archive))),
        *(() if history_retention is None else ("--history-retention", history_retention)),
    )


def indexer_argv(
    indexer: int, *, cluster: str, bootstrap_servers: str, data_dir: Path
) -> tuple[str, ...]:
    """Return the command of indexer `indexer`."""
    return (
        *(sys.executable, "-m", "indexer_sim"),
        *("--id", str(indexer), "--cluster", cluster),
        *kafka_options(bootstrap_servers),
        *("--data-dir", str(data_dir / f"indexer-{indexer}")),
    )


def kv_argv(*, port: int, data_dir: Path, nodes: int) -> tuple[str, ...]:
    """Return the command of the key-value store, with as many nodes as there are projectors."""
    return (
        *(sys.executable, "-m", "projector_sim", "kv"),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--data-dir", str(data_dir / "kv"), "--nodes", str(nodes)),
    )


def projector_argv(
    projector: int, *, cluster: str, bootstrap_servers: str, kv: str
) -> tuple[str, ...]:
    """Return the command of projector `projector`, which streams what that node of `kv` owns."""
    return (
        *(sys.executable, "-m", "projector_sim", "projector"),
        *("--projector", str(projector), "--cluster", cluster),
        *(*kafka_options(bootstrap_servers), "--kv", kv),
    )


def timestamps_argv(
    *, cluster: str, bootstrap_servers: str, data_dir: Path, spark_master: str
) -> tuple[str, ...]:
    """Return the command of the application on Spark that computes timestamps."""
    return (
        *(sys.executable, "-m", "streaming", "timestamps", "--cluster", cluster),
        *(*kafka_options(bootstrap_servers), "--data-dir", str(data_dir / TIMESTAMPS)),
        *("--spark-master", spark_master),
        *("--ready-file", str(data_dir / TIMESTAMPS / READY)),
    )


def timestamps_ready(data_dir: Path) -> Probe:
    """Return a probe: the application has finished a batch in this life of it."""

    async def probe() -> bool:
        return (data_dir / TIMESTAMPS / READY).exists()

    return probe


def archiver_argv(*, cluster: str, bootstrap_servers: str, data_dir: Path) -> tuple[str, ...]:
    """Return the command of the job on Spark that archives the history in Delta Lake."""
    return (
        *(sys.executable, "-m", "streaming", "archive", "--cluster", cluster),
        *(*kafka_options(bootstrap_servers), "--data-dir", str(data_dir)),
        *("--ready-file", str(data_dir / ARCHIVER / READY)),
    )


def archiver_ready(data_dir: Path) -> Probe:
    """Return a probe: the job reads, in this life of it."""

    async def probe() -> bool:
        return (data_dir / ARCHIVER / READY).exists()

    return probe


def kv_ready(port: int) -> Probe:
    """Return a probe: the key-value store at `port` answers."""

    async def probe() -> bool:
        status, _ = await http_get(port, "/v1/nodes")
        return status == 200

    return probe


def projector_ready(port: int, projector: int) -> Probe:
    """Return a probe: the node at `port` hears from `projector`."""

    async def probe() -> bool:
        status, body = await http_get(port, "/v1/projectors")
        return status == 200 and is_listed_alive(body, "projectors", projector)

    return probe


def node_ready(port: int) -> Probe:
    """Return a probe: the node at `port` says that it is ready."""

    async def probe() -> bool:
        status, _ = await http_get(port, "/readyz")
        return status == 200

    return probe


def indexer_ready(port: int, indexer: int) -> Probe:
    """Return a probe: the node at `port` hears from `indexer`."""

    async def probe() -> bool:
        status, body = await http_get(port, "/v1/indexers")
        return status == 200 and is_listed_alive(body, "indexers", indexer)

    return probe


def is_listed_alive(body: bytes, kind: str, number: int) -> bool:
    """Return whether the answer to `GET /v1/indexers` or `/v1/projectors` lists it as alive."""
    try:
        listed = json.loads(body)[kind]
        return any(str(one["id"]) == str(number) and one["alive"] is True for one in listed)
    except (ValueError, KeyError, TypeError):
        return False


async def http_get(port: int, path: str) -> tuple[int, bytes]:
    """Return status and body of a GET on loopback; status 0 if there was no sensible answer."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            try:
                request = f"GET {path} HTTP/1.0\r\nHost: {LOOPBACK}:{port}\r\n\r\n"
                writer.write(request.encode("ascii"))
                answer = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return 0, b""
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    return (int(words[1]), body) if len(words) > 1 and words[1].isdigit() else (0, b"")
