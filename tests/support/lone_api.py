"""Requests to the real HTTP API on a node without processes, one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.support.lone_shell import LoneShell


class LoneApi:
    """The API of a node."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.shell = LoneShell()
        self._http = self.shell.client()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        asked = self._http.request(method, path, json=body, headers=headers)
        return self.loop.run_until_complete(asked)

    def close(self) -> None:
        self.loop.run_until_complete(self._http.aclose())
        self.shell.examiner.close()
        self.loop.close()
