"""An answer in lines of JSON, sent one by one as they come, until there are no more.

Whoever makes the lines makes the next one when this one is taken: a client that reads slowly holds
one line, and is disconnected where it takes nothing for a while. Who leaves ends the making.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

MEDIA_TYPE = "application/x-ndjson"
PIECE_BYTES, STUCK_S = 256 * 1024, 30.0
"""A client takes so many bytes within so long."""

log = logging.getLogger("coordinator")


class Lines(Response):
    """An answer of lines; it closes what yields them, however it ends."""

    media_type = MEDIA_TYPE

    def __init__(
        self, lines: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(headers={**(headers or {}), "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.wait((sending,))
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        try:
            async with aclosing(self._lines) as lines:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                async for line in lines:
                    for at in range(0, len(line), PIECE_BYTES):
                        await _taken(send, line[at : at + PIECE_BYTES], more=True)
                await _taken(send, b"", more=False)
        except TimeoutError:
            log.info("a client took less than %d bytes of lines in %g s", PIECE_BYTES, STUCK_S)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _taken(send: Send, body: bytes, *, more: bool) -> None:
    async with asyncio.timeout(STUCK_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})
