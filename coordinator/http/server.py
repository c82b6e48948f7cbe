"""uvicorn inside the node's own loop: no signal handlers of its own, a port bound at the start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from coordinator.runtime.asgi import bound, server

SEND = "coordinator.send"
"""Where the scope of a request has what sends to the client past all middleware."""

GRACE_S = 2
BACKLOG = 2_048


def sent_at_once(send: Send, body: bytes) -> bool:
    """Send a part of the answer's body; False: the client would have to be waited for, or it is not
    known. Then nothing was sent."""
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.flow.write_paused or cycle.disconnected:
        return False
    sending = send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(StopIteration):
        sending.__await__().__next__()
        raise RuntimeError("an answer that is not held back has waited")
    return True


class HttpServer:
    """Serves an ASGI application on one address."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None

        async def direct(scope: Scope, receive: Receive, send: Send) -> None:
            scope[SEND] = send
            try:
                await app(scope, receive, send)
            finally:
                del scope[SEND]  # It holds the scope: only the collector would free them.

        self._server = server(direct, log_level="warning", timeout_graceful_shutdown=GRACE_S)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> bool:
        """Listen and serve; False if the port is taken. Whoever connects then, is answered."""
        try:
            listening = bound(*self._address)
        except OSError:
            return False
        listening.listen(BACKLOG)
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
