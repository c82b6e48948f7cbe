"""How every process serves HTTP: uvicorn as a part of the process, which keeps its own signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn


class Server(uvicorn.Server):
    """A server that leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def server(app: Any, **more: Any) -> Server:
    """Return a server of an ASGI application, for a loop that runs; `more` is for uvicorn."""
    return Server(
        uvicorn.Config(
            app,
            loop="none",
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            **more,
        )
    )


def bound(host: str, port: int, backlog: int = 0) -> socket.socket:
    """Return a socket at an address; with a `backlog` it listens. OSError: the address is taken."""
    # Without the protocol's number asyncio would not turn off Nagle's delays.
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
        if backlog:
            found.listen(backlog)
    except OSError:
        found.close()
        raise
    return found
