"""Large answers, as long as clients have not taken them: all of them together have a bound.

The server holds an answer until its client has taken it, and cuts off who takes nothing after a
minute only: some hundred of them that asked for the whole state would take all memory.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.errors import ApiError, error_response

LARGE_BYTES = 64 * 1024
"""Smaller answers do not count: there are no more of them than connections."""

UNDER_WAY_BYTES_MAX = 256 * 1024 * 1024
"""So many bytes of large answers may be under way, or one answer."""

PIECE_BYTES, STUCK_S = 1024 * 1024, 30.0
"""A client takes so many bytes within so long. Otherwise it is disconnected."""

log = logging.getLogger("coordinator")


class BoundedAnswers:
    """ASGI middleware that refuses a large answer as `overloaded` where too many are under way.

    It sends one piece by piece. Streams go through: they have a bound of their own.
    """

    def __init__(self, app: ASGIApp, bytes_max: int = UNDER_WAY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max
        self.under_way = 0
        """The bytes of the large answers that are being sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun: Message | None = None

        async def bounded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start" and _has_length(message):
                begun = message
            elif begun is None:
                await send(message)
            else:
                begin, begun = begun, None
                if len(message.get("body", b"")) <= LARGE_BYTES:
                    await send(begin)
                    await send(message)
                else:
                    await self._answer(begin, message["body"], scope, receive, send)

        await self._app(scope, receive, bounded)

    async def _answer(
        self, begin: Message, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send a large answer, or its refusal."""
        if self.under_way and self.under_way + len(body) > self._bytes_max:
            text = f"{self.under_way} bytes of answers wait for their clients to take them: retry"
            await error_response(ApiError("overloaded", text))(scope, receive, send)
            return
        self.under_way += len(body)
        try:
            await send(begin)
            for at in range(0, len(body), PIECE_BYTES):
                async with asyncio.timeout(STUCK_S):
                    await send(_part(body[at : at + PIECE_BYTES], more=True))
            async with asyncio.timeout(STUCK_S):
                await send(_part(b"", more=False))
        except TimeoutError:
            log.info("a client took less than %d bytes of its answer in %g s", PIECE_BYTES, STUCK_S)
        finally:
            self.under_way -= len(body)


def _part(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _has_length(begin: Message) -> bool:
    """Tell whether an answer comes as a whole: only that says how long it is."""
    return any(name == b"content-length" for name, _ in begin["headers"])
