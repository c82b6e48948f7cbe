"""Calls from a node to other processes, over connections that are kept.

They run in the node's loop, so the library for them was chosen for its low processor time.
"""

from __future__ import annotations

from typing import NamedTuple

import aiohttp

CONNECTIONS_MAX = 256
CONNECT_TIMEOUT_S = 1.0
KEEP_S = 15.0
HEADERS = {"Content-Type": "application/json"}
REPLY_BYTES_MAX = 8 * 1024 * 1024
"""More than a page of entries ever has, each as long as it may be: what goes on is not listened
to."""


class Silent(Exception):
    """There is no answer; `is_late`: there may be one later."""

    def __init__(self, reason: str, *, is_late: bool = False) -> None:
        super().__init__(reason)
        self.is_late = is_late


class Reply(NamedTuple):
    """What was answered."""

    status: int
    media_type: str
    content: bytes


class Calls:
    """Carries out calls, until it is closed."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        """Return what is answered to something that may be repeated. Raises Silent.

        Who does not accept a connection soon is given up, unless nobody else is left to ask.
        """
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_S, use_dns_cache=False
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent"),
            )
        connect_s = timeout_s if is_last else min(timeout_s, CONNECT_TIMEOUT_S)
        timeout = aiohttp.ClientTimeout(timeout_s, connect=connect_s)
        try:
            try:
                return await self._post(self._session, url, body, timeout)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # It may have been a connection that the other side gave up in the meantime.
                return await self._post(self._session, url, body, timeout)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            is_late = isinstance(error, TimeoutError)
            raise Silent(type(error).__name__, is_late=is_late) from error

    @staticmethod
    async def _post(
        session: aiohttp.ClientSession, url: str, body: bytes, timeout: aiohttp.ClientTimeout
    ) -> Reply:
        # Who was asked answers by itself, or not at all.
        async with session.post(
            url, data=body, headers=HEADERS, timeout=timeout, allow_redirects=False
        ) as response:
            pieces: list[bytes] = []
            size = 0
            async for piece in response.content.iter_any():
                size += len(piece)
                if size > REPLY_BYTES_MAX:
                    raise ValueError(f"an answer of more than {REPLY_BYTES_MAX} bytes")
                pieces.append(piece)
            return Reply(response.status, response.content_type, b"".join(pieces))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
