"""The process of the key-value store: `python -m projector_sim kv --port 0 --data-dir …`.

Exit codes: 0 after a stop, 1 if the folder or the port cannot be used now, 2 for a wrong command
line, 78 if no restart can help.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import uvloop

from coordinator.runtime.asgi import bound, server
from coordinator.runtime.files import make_durably
from coordinator.runtime.garbage import collect_rarely
from coordinator.runtime.http_guard import add_allowed_host, own_hosts, warn_unless_local
from coordinator.runtime.private_files import keep_private
from coordinator.runtime.signals import ignore_stops, on_stop_in
from projector_sim.kv.api import build_app
from projector_sim.kv.errors import KvError
from projector_sim.kv.hub import Hub
from projector_sim.kv.store import KvStore

log = logging.getLogger("kv")

EX_UNUSABLE, EX_CONFIG = 1, 78
NODES, NODES_MAX = 2, 1_000
EXPIRY_S = 0.25
GRACE_S = 1
BACKLOG = 256
KEEP_ALIVE_S = 60
"""Longer than the clients keep a connection: they would ask again on one that is just closed."""

FINAL = ("damaged", "too_few_nodes")
"""What a restart cannot mend."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the store until SIGTERM or SIGINT, and return its exit code."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s kv %(levelname)s %(message)s"
    )
    if trouble := keep_private(arguments.data_dir):
        log.warning("%s", trouble)
    try:
        with _locked(arguments.data_dir):
            collect_rarely()
            return _run(arguments)
    except KvError as error:
        print(f"kv: {error.message} [{error.code}]", file=sys.stderr, flush=True)
        return EX_CONFIG if error.code in FINAL else EX_UNUSABLE


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m projector_sim kv", description="Run the key-value store."
    )
    found.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add_allowed_host(found)
    found.add_argument(
        "--port", type=_port, required=True, help="port of the API (0: any free one)"
    )
    found.add_argument("--data-dir", type=Path, required=True, help="folder of the store")
    found.add_argument(
        "--nodes", type=_nodes, default=NODES, help="number of nodes that own vbuckets"
    )
    found.add_argument(
        "--announce-file",
        type=Path,
        help="file for the address of the store, as JSON, written once it answers",
    )
    return found


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError("0 to 65535")
    return int(text)


def _nodes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= NODES_MAX:
        raise argparse.ArgumentTypeError(f"1 to {NODES_MAX}")
    return int(text)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None, None, None]:
    """Hold the folder. KvError `locked`, `unusable`."""
    try:
        make_durably(folder)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        text = f"{folder} cannot be used: {error.strerror}"
        raise KvError("unusable", text) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KvError("locked", f"{folder} is in use by another process") from None
        yield
    finally:
        os.close(descriptor)


def _run(arguments: argparse.Namespace) -> int:
    try:
        store = KvStore(arguments.data_dir)
    except KvError as error:
        code = "damaged" if _is_damage(error) else error.code
        raise KvError(code, f"{arguments.data_dir}: {error.message}") from None
    try:
        return uvloop.run(_serve(Hub(store, arguments.nodes), arguments))
    finally:
        store.close()


def _is_damage(error: KvError) -> bool:
    """Return whether files are broken or missing: RocksDB says it in these words."""
    return "orruption" in error.message or "No such file" in error.message


async def _serve(hub: Hub, arguments: argparse.Namespace) -> int:
    """Answer until a signal comes; streams are told, and cut off if they do not read."""
    listening = _listen(arguments.host, arguments.port)
    url = f"http://{arguments.host}:{listening.getsockname()[1]}"
    warn_unless_local(arguments.host, log)
    http = server(
        build_app(hub, own_hosts(arguments.host, *arguments.allowed_host)),
        timeout_keep_alive=KEEP_ALIVE_S,
        # It takes a stream that is broken on purpose for a fault; we log our own.
        log_level="critical",
        timeout_graceful_shutdown=GRACE_S,
    )
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_stop_in(loop, stopping.set)
    serving = asyncio.create_task(http.serve(sockets=[listening]))
    expiring = asyncio.create_task(_expire(hub))
    _announce(arguments.announce_file, url)
    log.info("%d nodes at %s", arguments.nodes, url)
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait((serving, expiring, stopped), return_when=asyncio.FIRST_COMPLETED)
    if expiring.done():
        log.critical("documents expire no more: the store ends", exc_info=expiring.exception())
    hub.stop()
    expiring.cancel()
    http.should_exit = True
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(serving, GRACE_S + 0.5)
    ignore_stops()
    return 0 if stopping.is_set() else EX_UNUSABLE


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. KvError `port_taken`."""
    try:
        return bound(host, port, BACKLOG)
    except OSError as error:
        raise KvError("port_taken", f"cannot listen on {host}:{port}: {error.strerror}") from None


def _announce(file: Path | None, url: str) -> None:
    """Write the address, as a whole or not at all."""
    if file is None:
        return
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"kv": url, "pid": os.getpid()}) + "\n")
    temporary.replace(file)


async def _expire(hub: Hub) -> None:
    """Delete what expires, as time goes by."""
    while True:
        await asyncio.sleep(EXPIRY_S)
        try:
            await hub.expire(int(time.time() * 1000))
        except KvError as error:
            log.error("cannot expire documents: %s", error.message)
