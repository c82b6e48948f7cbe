"""A body is read no further than its limit, whoever announces what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import repeat

import pytest
from starlette.requests import ClientDisconnect, Request

from coordinator.bodies import BodyTooLongError, read_body

LIMIT = 1_000


class Sent:
    """A client that sends pieces, and counts how many were taken."""

    def __init__(self, pieces: Iterable[bytes], length: str | None = None) -> None:
        self.taken = 0
        self._pieces: Iterator[bytes] = iter(pieces)
        headers = [] if length is None else [(b"content-length", length.encode())]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        self.request = Request(scope, self._receive)

    async def _receive(self) -> dict[str, object]:
        piece = next(self._pieces, None)
        if piece is None:
            return {"type": "http.request", "body": b"", "more_body": False}
        self.taken += 1
        return {"type": "http.request", "body": piece, "more_body": True}

    def read(self) -> bytes:
        return asyncio.run(read_body(self.request, LIMIT))


@pytest.mark.parametrize("length", [None, str(LIMIT), "no number"])
def test_a_body_up_to_the_limit_is_read_whole(length: str | None) -> None:
    assert Sent([b"x" * 100] * 10, length).read() == b"x" * LIMIT


def test_a_body_without_an_end_is_read_to_the_limit() -> None:
    sent = Sent(repeat(b"x" * 100))
    with pytest.raises(BodyTooLongError, match="at most 1000 bytes"):
        sent.read()
    assert sent.taken == 11


def test_a_body_that_is_announced_as_too_long_is_not_read() -> None:
    sent = Sent(repeat(b"x"), str(LIMIT + 1))
    with pytest.raises(BodyTooLongError):
        sent.read()
    assert sent.taken == 0


def test_a_body_that_is_longer_than_was_announced_is_refused() -> None:
    with pytest.raises(BodyTooLongError):
        Sent(repeat(b"x" * 100), "7").read()


def test_a_client_that_goes_is_an_error_of_its_own() -> None:
    async def gone() -> dict[str, object]:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    with pytest.raises(ClientDisconnect):
        asyncio.run(read_body(Request(scope, gone), LIMIT))
