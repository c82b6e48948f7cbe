"""How every process serves HTTP: uvicorn as a part of the process, which keeps its own signals.

uvicorn keeps whatever a client sends before a request begins: the line, the headers, the requests
that follow without waiting for an answer. Here all of that has bounds.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_MAX = 64 * 1024
"""What the line and the headers of a request may come to."""

PIPELINED_MAX = 16
"""So many requests may wait for the answer to the one before: a packet has room for thousands."""


class Protocol(HttpToolsProtocol):
    """One connection. What goes beyond the bounds is answered 400, and the connection closed."""

    _head_bytes = 0
    _is_in_head = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            # Requests that ended in these bytes count, too: of a piece at most.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + len(data):
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._head_bytes, self._is_in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            raise httptools.HttpParserError("too many requests wait")
        super().on_headers_complete()


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
            http=Protocol,
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
