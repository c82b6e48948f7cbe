"""Reading the body of an HTTP request, no further than a limit.

A server that reads a body to its end before it looks at its length holds whatever a client sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request

DIGITS_MAX = 18
"""A longer length is too large, whatever the limit."""


class BodyTooLongError(Exception):
    """The body of a request has more bytes than may be; the rest of it was not read.

    Close the connection after the answer: what the client still sends is for nobody.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"a body has at most {limit_bytes} bytes")
        self.limit_bytes = limit_bytes


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return the body of a request.

    Raises BodyTooLongError as soon as more than `limit_bytes` are announced or have come, and
    starlette's ClientDisconnect.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit():
        digits = announced.lstrip("0") or "0"
        if len(digits) > DIGITS_MAX or int(digits) > limit_bytes:
            raise BodyTooLongError(limit_bytes)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit_bytes:
            raise BodyTooLongError(limit_bytes)
        pieces.append(piece)
    return b"".join(pieces)
