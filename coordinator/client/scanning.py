"""All pages of a scan: in which order they come, and where they go on.

The decisions are here, without I/O; the two clients carry them out. The first page is an ordinary
call, which is repeated at other nodes like any. The rest comes as a stream, which is faster, as
nobody waits for the next request. Where a stream breaks, the next page is an ordinary call again:
it tells what is wrong, if it is not over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.client.errors import error_of

LINES = "application/x-ndjson"
ANSWER_S = 5.0
"""A node says itself that a page takes too long: it is waited for so much longer than that."""

TIMEOUT_MS = 10_000
"""So long a page may take if the call does not say."""

Body = dict[str, Any]


class LineBuffer:
    """Makes lines of parts of a text that end anywhere."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def receive(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that a part completes, without their ends."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line, self._begun = b"".join((*self._begun, end)), []
            yield line
        self._begun.append(rest)


class Pages:
    """One scan of all that there is, page by page."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """`asked` is the body of `POST /v1/scan`. Raises CoordinatorError: a count has no rows."""
        if asked.get("count"):
            raise error_of("invalid_request", "a count has no rows: use `scan`, with `count`")
        self._asked = dict(asked)
        self._lines = LineBuffer()
        self.has_ended = False
        self.has_broken = False
        """Whether a stream has brought something that is no page: it brings no more."""

    @property
    def body(self) -> Body:
        """What asks for the next page."""
        return dict(self._asked)

    def begin_stream(self) -> bytes:
        """Return what asks for all further pages."""
        self._lines, self.has_broken = LineBuffer(), False
        return json.dumps({**self._asked, "stream": True}, allow_nan=False).encode()

    @property
    def read_timeout_s(self) -> float:
        return float(self._asked.get("timeout_ms", TIMEOUT_MS)) / 1000 + ANSWER_S

    def take(self, page: Mapping[str, Any]) -> list[Body]:
        """Return the rows of a page that has come; the next one begins behind it."""
        rows: list[Body] = page["rows"]
        self._asked["after"] = following = page["next"]
        self.has_ended = following is None
        return rows

    def receive(self, chunk: bytes) -> Iterator[list[Body]]:
        """Yield the rows of each page that a part of a stream completes."""
        for line in self._lines.receive(chunk):
            try:
                rows = self.take(json.loads(line))
            except (ValueError, TypeError, KeyError):
                self.has_broken = True
                return
            yield rows
