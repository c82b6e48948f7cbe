"""A closed-loop load of writers over HTTP: each client sends its next write when it is answered.

Used by the benchmarks; talks to the coordinator and, for comparison, to etcd's HTTP gateway.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Result:
    """What one load saw: latencies in seconds, and each acknowledged (key, value, version)."""

    wall_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.acknowledged) / self.wall_s

    def quantile_ms(self, q: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1000


Write = Callable[[aiohttp.ClientSession, str, int], Awaitable[int]]
"""Writes (key, value) and returns the version that was acknowledged; raises if it was not."""


def coordinator(url: str) -> Write:
    """Return the write of a setting on the coordinator."""

    async def write(session: aiohttp.ClientSession, key: str, value: int) -> int:
        async with session.put(f"{url}/v1/config/{key}", data=b"%d" % value) as response:
            body = await response.read()
            if response.status != 200:
                raise RuntimeError(f"{response.status} {body[:200]!r}")
            return int(json.loads(body)["cas"])

    return write


def etcd(urls: list[str]) -> Write:
    """Return the write of a key on etcd, spread over its nodes by key."""

    async def write(session: aiohttp.ClientSession, key: str, value: int) -> int:
        body = {
            "key": base64.b64encode(key.encode()).decode(),
            "value": base64.b64encode(b"%d" % value).decode(),
        }
        url = urls[hash(key) % len(urls)]
        async with session.post(f"{url}/v3/kv/put", json=body) as response:
            answer = await response.json(content_type=None)
            return int(answer["header"]["revision"])

    return write


async def run(write: Write, *, clients: int, seconds: float, prefix: str = "k") -> Result:
    """Run `clients` writers with distinct keys for about `seconds`."""
    result = Result()
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector) as session:
        end = time.perf_counter() + seconds

        async def client(number: int) -> None:
            count = 0
            while time.perf_counter() < end:
                key = f"{prefix}-{number}-{count % 50}"
                began = time.perf_counter()
                try:
                    version = await write(session, key, count)
                except Exception as error:
                    result.errors.append(f"{type(error).__name__}: {error}")
                    continue
                result.latencies_s.append(time.perf_counter() - began)
                result.acknowledged.append((key, count, version))
                count += 1

        began = time.perf_counter()
        await asyncio.gather(*(client(number) for number in range(clients)))
        result.wall_s = time.perf_counter() - began
    return result
