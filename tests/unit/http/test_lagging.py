"""A reader that is too slow, over real connections to the real server: what it is told, and when.

The node has no processes; the server, the sockets and what they hold are those of a real one.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from coordinator.client.client import AsyncClient
from coordinator.core.consensus.effects import Publish
from coordinator.core.history.feed import Feed
from coordinator.http import watch
from coordinator.http.app import build_app
from coordinator.http.server import HttpServer
from coordinator.runtime.asgi import bound
from tests.support.lone_shell import LoneShell

pytestmark = pytest.mark.thorough

LOCAL = "127.0.0.1"
VALUE = json.dumps("x" * 60_000)
WRITES_MAX = 2_000
"""Many times what the bound of a watcher and all buffers of a connection hold together."""

PATHS = {
    "a watch": "/v1/watch?after=now&kind=setting",
    "a subscription": "/v1/topics/t/subscriptions/s/watch",
}


class Served:
    """A node whose API is served on a port, and which publishes what it installs."""

    def __init__(self) -> None:
        self.shell = LoneShell()
        self.shell.changes = Feed()
        self.shell.lone.replaced[Publish] = self._publish
        self.written: list[int] = []
        with bound(LOCAL, 0) as found:
            self.port = found.getsockname()[1]
        shell: Any = self.shell
        app = build_app(shell)
        self.server = HttpServer(app, LOCAL, self.port)
        transport = httpx.ASGITransport(app=app)
        self._http = httpx.AsyncClient(transport=transport, base_url=f"http://{LOCAL}")

    async def post(self, path: str, body: Any) -> httpx.Response:
        return await self._http.post(path, json=body)

    def _publish(self, effect: Publish) -> None:
        """As a node does: who is to be told a bookmark must not find a state of which the feed was
        not told."""
        assert len({event.txn for event in effect.events}) == 1
        self.shell.changes.publish(effect.before, effect.events)

    async def write(self) -> None:
        """Write a setting; who watches is handed it."""
        answer = await self._http.put(f"/v1/config/k{len(self.written) % 4}", content=VALUE)
        assert answer.status_code == httpx.codes.OK, answer.text
        self.written.append(answer.json()["cas"])
        await asyncio.sleep(0)

    async def write_until_one_lags(self) -> None:
        """Write until the feed has given up one of its watchers."""
        watchers = len(self.shell.changes)
        assert watchers
        while len(self.shell.changes) == watchers:
            assert len(self.written) < WRITES_MAX
            await self.write()
        await self.write()  # What it is not told any more.

    async def close(self) -> None:
        self.shell.changes.close()
        await self.server.stop()
        await self._http.aclose()
        self.shell.examiner.close()


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    made = Served()
    assert await made.server.start()
    await made.post("/v1/topics", {"name": "t", "filter": {"kind": "setting"}})
    subscribed = await made.post("/v1/topics/t/subscriptions", {"id": "s"})
    assert subscribed.status_code == httpx.codes.CREATED, subscribed.text
    try:
        yield made
    finally:
        await made.close()


async def request(port: int, path: str) -> socket.socket:
    """Ask for a stream, on a connection that holds little for its reader."""
    loop = asyncio.get_running_loop()
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    made.setblocking(False)
    await loop.sock_connect(made, (LOCAL, port))
    await loop.sock_sendall(made, f"GET {path} HTTP/1.1\r\nHost: {LOCAL}\r\n\r\n".encode())
    assert b"200 OK" in await loop.sock_recv(made, 300)
    return made


async def received(made: socket.socket) -> bytes:
    """Return what comes next; a stream that has ended would be read for ever."""
    part = await asyncio.get_running_loop().sock_recv(made, 1 << 20)
    assert part, "the connection was cut off within the stream"
    return part


async def rest_of(made: socket.socket) -> bytes:
    """Return all that comes until the stream ends, without the framing of its chunks."""
    parts = [b"\r\n"]
    while not parts[-1].endswith(b"0\r\n\r\n"):
        parts.append(await received(made))
    return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", b"".join(parts))


def chunks_sent(monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], list[bytes]]:
    """Return lists to which all is added that streams send, and that they send while they rest."""
    sent: list[bytes] = []
    sent_resting: list[bytes] = []
    send, send_at_once = watch.EventStream._sent, watch.sent_at_once

    async def noting(self: watch.EventStream, to: Any, chunk: bytes) -> bool:
        sent.append(chunk)
        return await send(self, to, chunk)

    def noting_at_once(to: Any, chunk: bytes) -> bool:
        was_sent = send_at_once(to, chunk)
        sent_resting.extend([chunk] * was_sent)
        return was_sent

    monkeypatch.setattr(watch.EventStream, "_sent", noting)
    monkeypatch.setattr(watch, "sent_at_once", noting_at_once)
    return sent, sent_resting


def watching(shell: LoneShell, count: int) -> bool:
    return len(shell.changes) == count


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_who_reads_too_slowly_gets_what_was_held_and_is_told_after_which_cas_to_resume(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STUCK_S", 600.0)

    async def scenario() -> None:
        async with served() as node:
            with await request(node.port, path) as slow:
                while not watching(node.shell, 1):
                    await asyncio.sleep(0)
                await node.write_until_one_lags()
                stream = (await rest_of(slow)).decode()
            events = re.findall(r"event: (\w+)\n(?:id: (\d+)\n)?data: (.*)\n", stream)
            told = [int(cas) for name, cas, _ in events if name == "change"]
            assert told == node.written[: len(told)]
            assert len(told) < len(node.written)
            *_, (name, cas, data) = events
            assert (name, cas, json.loads(data)) == ("lagged", "", {"cas": told[-1]})
            resumed = path.partition("?")[0] + f"?after={told[-1]}"
            async with httpx.AsyncClient(trust_env=False) as http:
                url = f"http://{LOCAL}:{node.port}{resumed}"
                async with http.stream("GET", url) as answer:
                    lines = (line async for line in answer.aiter_lines() if line[:4] == "id: ")
                    for following in node.written[len(told) :]:
                        assert await anext(lines) == f"id: {following}"

    asyncio.run(scenario())


def test_a_client_that_lags_resumes_by_itself_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "STUCK_S", 600.0)

    async def scenario() -> None:
        async with served() as node, AsyncClient(f"http://{LOCAL}:{node.port}") as client:
            events = client.watch("now", kind="setting")
            assert (await anext(events))["type"] == "bookmark"
            await node.write_until_one_lags()
            told: list[int] = []
            while len(told) < len(node.written):
                event = await anext(events)
                assert event["type"] in ("change", "bookmark")
                told += [event["cas"]] if event["type"] == "change" else []
            assert told == node.written
            await events.aclose()

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_who_is_behind_is_sent_no_more_at_once_than_a_portion(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a watcher is shared by all; what is sent to one, it holds until it takes it.
    2,000 who took nothing held 30 GB."""
    sent, _ = chunks_sent(monkeypatch)

    async def scenario() -> None:
        async with served() as node:
            for _ in range(30):
                await node.write()
            resumed = path.partition("?")[0] + f"?after={node.written[0] - 1}"
            async with httpx.AsyncClient(trust_env=False) as http:
                url = f"http://{LOCAL}:{node.port}{resumed}"
                async with http.stream("GET", url) as answer:
                    lines = (line async for line in answer.aiter_lines() if line[:4] == "id: ")
                    assert [await anext(lines) for _ in range(30)] == [
                        f"id: {cas}" for cas in node.written
                    ]

    asyncio.run(scenario())
    assert max(map(len, sent)) < watch.PORTION_BYTES + 4 * len(VALUE)


def test_watchers_who_take_the_same_are_sent_what_was_made_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.http.test_lagging.VALUE", "1")
    _, sent = chunks_sent(monkeypatch)

    async def scenario() -> None:
        async with served() as node, AsyncExitStack() as stack:
            readers = [
                stack.enter_context(await request(node.port, PATHS["a watch"])) for _ in range(3)
            ]
            while not watching(node.shell, 3):
                await asyncio.sleep(0)
            for _ in range(10):
                await node.write()
                await asyncio.sleep(0.001)
            last = f"id: {node.written[-1]}\n".encode()
            for reader in readers:
                stream = b""
                while last not in stream:
                    stream += await received(reader)
                found = [int(cas) for cas in re.findall(rb"event: change\nid: (\d+)\n", stream)]
                assert found == node.written

    asyncio.run(scenario())
    assert len(sent) > 6, "they rest between two changes, and are sent the next one at once"
    assert all(chunk.startswith(b"event: change") for chunk in sent)
    assert len({id(chunk) for chunk in sent}) <= len(sent) // 2


def test_who_takes_nothing_is_waited_for_by_nobody_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is new cannot be sent to it while it rests: its own task waits until it takes some."""
    monkeypatch.setattr("tests.unit.http.test_lagging.VALUE", json.dumps("x" * 9_000))
    monkeypatch.setattr(watch, "STUCK_S", 600.0)
    _, sent = chunks_sent(monkeypatch)

    async def scenario() -> None:
        async with served() as node, AsyncExitStack() as stack:
            path = PATHS["a watch"]
            slow, quick = [stack.enter_context(await request(node.port, path)) for _ in range(2)]
            while not watching(node.shell, 2):
                await asyncio.sleep(0)
            stream = b""
            for number in range(1_000):
                await node.write()
                while f"id: {node.written[-1]}\n".encode() not in stream[-20_000:]:
                    stream += await received(quick)
                if number > 20 and len(sent) < 1.5 * number:
                    break
            assert number < 900, "the slow one is full"
            read, last = b"", f"id: {node.written[-1]}\n".encode()
            while last not in read[-20_000:]:
                read += await received(slow)
            for one in (stream, read):
                plain = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", one)
                found = [int(cas) for cas in re.findall(rb"event: change\nid: (\d+)\n", plain)]
                assert found == node.written

    asyncio.run(scenario())


def test_who_rested_is_told_of_a_bookmark_soon_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.unit.http.test_lagging.VALUE", "1")
    monkeypatch.setattr(watch, "BOOKMARK_S", 600.0)
    monkeypatch.setattr(watch, "BOOKMARK_SOON_S", 0.05)

    async def scenario() -> None:
        async with served() as node, AsyncExitStack() as stack:
            reader = stack.enter_context(await request(node.port, PATHS["a watch"]))
            while not watching(node.shell, 1):
                await asyncio.sleep(0)
            stream = b""
            async with asyncio.timeout(60):
                for _ in range(3):
                    await asyncio.sleep(0.01)
                    await node.write()
                    marked = b"event: bookmark\nid: %d\n" % node.written[-1]
                    while marked not in stream:
                        stream += await received(reader)

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_who_leaves_is_handed_nothing_more(path: str) -> None:
    async def scenario() -> None:
        async with served() as node:
            with await request(node.port, path):
                while not watching(node.shell, 1):
                    await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while not watching(node.shell, 0):
                    await asyncio.sleep(0.001)

    asyncio.run(scenario())


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_who_takes_nothing_for_too_long_is_given_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep its place, and what the server holds for it."""
    monkeypatch.setattr(watch, "STUCK_S", 0.05)

    async def scenario() -> None:
        async with served() as node:
            with await request(node.port, path) as slow:
                while not watching(node.shell, 1):
                    await asyncio.sleep(0)
                for _ in range(150):  # More than the connection holds, and less than the feed.
                    await node.write()
                await asyncio.sleep(0)
                async with asyncio.timeout(30):  # The system gives it up after a minute.
                    while not watching(node.shell, 0):
                        await asyncio.sleep(0.001)
                assert slow.fileno() >= 0

    asyncio.run(scenario())
