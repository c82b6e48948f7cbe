"""uvicorn inside the node's own loop: no signal handlers of its own, a port bound at the start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn

GRACE_S = 2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class HttpServer:
    """Serves an ASGI application on one address."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._server = _Server(
            uvicorn.Config(
                app,
                loop="none",
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                log_level="warning",
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Bind and serve; False if the port is taken."""
        # Without the protocol's number asyncio would not turn off Nagle's delays.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(self._address)
        except OSError:
            listening.close()
            return False
        self._socket = listening
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        return True

    async def stop(self) -> None:
        """Finish what is being answered, within bounds, and release the port."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._task, GRACE_S + 1)
        if self._socket is not None:
            self._socket.close()
