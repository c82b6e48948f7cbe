"""The children of a run: how each is started, and how one knows that it is ready."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .ports import LOOPBACK

PROBE_TIMEOUT_S = 2.0
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
) -> tuple[str, ...]:
    """Return the command of IndexManager node `node`; `http_port` is that of node 1."""
    return (
        *(sys.executable, "-m", "coordinator.process"),
        *("--node", str(node), "--roster", ",".join(map(str, roster))),
        *("--cluster", cluster, "--bootstrap-servers", bootstrap_servers),
        *("--data-dir", str(data_dir / f"node-{node}")),
        *("--host", LOOPBACK, "--port", str(http_port + node - 1)),
        *("--replication-factor", str(replication_factor)),
        *(() if durable else ("--not-durable",)),
        *(() if log_capacity is None else ("--log-capacity", str(log_capacity))),
    )


def indexer_argv(
    indexer: int, *, cluster: str, bootstrap_servers: str, data_dir: Path
) -> tuple[str, ...]:
    """Return the command of indexer `indexer`."""
    return (
        *(sys.executable, "-m", "indexer_sim"),
        *("--id", str(indexer), "--cluster", cluster),
        *("--bootstrap-servers", bootstrap_servers),
        *("--data-dir", str(data_dir / f"indexer-{indexer}")),
    )


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
        return status == 200 and indexer_is_alive(body, indexer)

    return probe


def indexer_is_alive(body: bytes, indexer: int) -> bool:
    """Return whether the answer to `GET /v1/indexers` lists `indexer` as alive."""
    try:
        listed = json.loads(body)["indexers"]
        return any(str(one["id"]) == str(indexer) and one["alive"] is True for one in listed)
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
