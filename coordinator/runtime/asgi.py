"""How every process serves HTTP: uvicorn as a part of the process, which keeps its own signals.

uvicorn keeps whatever a client sends before a request begins: the line, the headers, the requests
that follow without waiting for an answer. It waits for the rest of a request for ever, and for any
number of connections. Here all of that has bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Generator
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES_MAX = 64 * 1024
"""What the line and the headers of a request may come to."""

PIPELINED_MAX = 16
"""So many requests may wait for the answer to the one before: a packet has room for thousands."""

CONNECTIONS_MAX = min(4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
"""So many connections at once; the other descriptors are for Kafka and the store."""

UNREAD_MS_MAX = 60_000
"""A client that does not take for so long what was sent to it is cut off by the system."""

REQUEST_S = 20.0
BODY_BYTES_PER_S = 16 * 1024
"""A request, the first of a connection too, is whole after so long, and as much longer as its bytes
take at that rate. Otherwise it is cut off."""


class Protocol(HttpToolsProtocol):
    """One connection. What goes beyond the bounds is answered 400, and the connection closed."""

    _head_bytes = 0
    _is_in_head = False
    _patience: asyncio.TimerHandle | None = None
    _since_s = 0.0
    _received = 0
    _cycles: tuple[RequestResponseCycle, ...] = ()
    """The requests that are not answered yet."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.close()
        else:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        # uvicorn tells only the last one, and the one that is being answered goes on.
        for cycle in self._cycles:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._cycles = ()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        """From now on a request is on its way, and must come to its end."""
        self._expect_nothing()
        self._since_s, self._received = self.loop.time(), 0
        self._patience = self.loop.call_later(REQUEST_S, self._look)

    def _expect_nothing(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _look(self) -> None:
        """Cut a request off that takes too long; when this process does not read does not count."""
        now_s = self.loop.time()
        if self.flow.read_paused:
            self._since_s, self._received = now_s, 0
        left_s = self._since_s + REQUEST_S + self._received / BODY_BYTES_PER_S - now_s
        if left_s > 0:
            self._patience = self.loop.call_later(left_s, self._look)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            # Requests that ended in these bytes count, too: of a piece at most.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX + len(data):
                self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        self._head_bytes, self._is_in_head = 0, True
        self._expect_request()
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._expect_nothing()
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if len(self.pipeline) >= PIPELINED_MAX:
            raise httptools.HttpParserError("too many requests wait")
        super().on_headers_complete()
        if self.cycle is not None:
            left = (cycle for cycle in self._cycles if not cycle.response_complete)
            self._cycles = (*left, self.cycle)


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
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS_MAX)
    try:
        found.bind((host, port))
        if backlog:
            found.listen(backlog)
    except OSError:
        found.close()
        raise
    return found
