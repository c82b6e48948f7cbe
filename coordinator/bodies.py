"""Bodies of HTTP requests, read no further than they may be long."""

from __future__ import annotations

from starlette.requests import Request


class BodyTooLarge(Exception):
    """A body is longer than `limit` bytes; what is beyond was not kept."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"a body has at most {limit} bytes")
        self.limit = limit


async def read_body(request: Request, limit: int) -> bytes:
    """Return the body of a request. BodyTooLarge: reading stopped at the limit.

    A length that is announced and too large is believed at once. ClientDisconnect: it came to no
    end.
    """
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and len(announced.lstrip("0")) > 18:
        raise BodyTooLarge(limit)
    if announced.isascii() and announced.isdigit() and int(announced) > limit:
        raise BodyTooLarge(limit)
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(limit)
        pieces.append(piece)
    return b"".join(pieces)
