"""The HTTP server of every process: what a client sends before a request begins has bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from coordinator.runtime import asgi
from coordinator.runtime.asgi import HEAD_BYTES_MAX, PIPELINED_MAX, bound, server
from tests.support.fuzzing import holds

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 20.0


class Served:
    """A server of an application that answers `ok`, once it is let to."""

    def __init__(self) -> None:
        self.answer: Callable[[Any, Any, Any], Awaitable[None]] | None = None
        self.begun = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        if self.answer is not None:
            await self.answer(scope, receive, send)
            return
        await self.go_on.wait()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    async def talk(self, *pieces: bytes) -> bytes:
        """Send pieces over one connection, and return all that comes until it is closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        found = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            found = await asyncio.wait_for(reader.read(), PATIENCE_S)
        except ConnectionError:
            pass  # What is not read is reset.
        finally:
            writer.close()
        return found

    async def answers(self) -> bool:
        """Tell whether somebody else is answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(GET)
        head = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.close()
        return head.startswith(b"HTTP/1.1 200")

    port = 0


def serve(check: Callable[[Served], Awaitable[None]]) -> None:
    async def run() -> None:
        served = Served()
        listening = bound("127.0.0.1", 0, 16)
        served.port = listening.getsockname()[1]
        running = server(
            served.app, log_level="critical", interface="asgi3", timeout_graceful_shutdown=1
        )
        task = asyncio.create_task(running.serve(sockets=[listening]))
        try:
            await check(served)
        finally:
            running.should_exit = True
            served.go_on.set()
            await task
            listening.close()

    asyncio.run(run())


LAST = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.thorough
def test_who_does_not_get_on_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing, half a head, a body that stands still, in any number."""
    monkeypatch.setattr(asgi, "REQUEST_S", 0.3)
    half = LAST[: len(LAST) // 2]
    body = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx"

    async def check(served: Served) -> None:
        began_s = time.monotonic()
        cut = [served.talk(*pieces) for pieces in ((), (half,), (GET, half)) for _ in range(20)]
        found = await asyncio.gather(*cut)
        assert found[:40] == [b""] * 40
        assert all(answer.endswith(b"ok") for answer in found[40:])
        served.go_on.clear()
        assert b"200" not in await served.talk(body)
        assert time.monotonic() - began_s < PATIENCE_S
        served.go_on.set()
        assert await served.answers()

    serve(check)


@pytest.mark.thorough
def test_a_body_that_gets_on_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "REQUEST_S", 0.2)
    monkeypatch.setattr(asgi, "BODY_BYTES_PER_S", 1_000)
    head = (
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1000\r\n\r\n"
    )

    async def check(served: Served) -> None:
        served.go_on.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head)
        for _ in range(10):
            writer.write(b"x" * 100)
            await asyncio.sleep(0.05)
        served.go_on.set()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).endswith(b"ok")
        writer.close()

    serve(check)


def test_so_many_connections_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "CONNECTIONS_MAX", 5)

    async def check(served: Served) -> None:
        held = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(5)]
        assert await served.talk(LAST) == b""
        for _, writer in held:
            writer.close()
        while not await served.talk(LAST):
            await asyncio.sleep(0.01)

    serve(check)


def test_requests_are_answered_also_those_that_wait_for_one_another() -> None:
    async def check(served: Served) -> None:
        assert (await served.talk(LAST)).endswith(b"\r\n\r\nok")
        pipelined = await served.talk(GET * (PIPELINED_MAX - 1) + LAST)
        assert pipelined.count(b"200 OK") == PIPELINED_MAX
        long = LAST.replace(b"/x", b"/" + b"x" * (HEAD_BYTES_MAX // 2))
        assert (await served.talk(long)).endswith(b"ok")

    serve(check)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "begin",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"GET / HTTP/1.1\r\n",
    ],
    ids=["url", "header", "headers"],
)
def test_a_head_that_comes_to_no_end_is_not_kept(begin: bytes) -> None:
    more = b"x: y\r\n" if begin.endswith(b"\n") else b"x"
    pieces = [more * (16_384 // len(more))] * 1_000

    async def check(served: Served) -> None:
        answer = await served.talk(begin, *pieces)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert served.begun == 0
        assert await served.answers()

    serve(check)


def test_only_so_many_requests_wait_on_a_connection() -> None:
    async def check(served: Served) -> None:
        served.go_on.clear()
        answer = await served.talk(GET * 5_000)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
        assert served.begun <= 1
        served.go_on.set()
        assert await served.answers()

    serve(check)


PIECES = st.lists(
    st.sampled_from(
        [
            *(b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.0\r\n", b"Host: localhost\r\n", b"\r\n"),
            *(b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"5\r\nhello\r\n"),
            *(b"0\r\n\r\n", b"Content-Length: -1\r\n", b"Connection: upgrade\r\n", b"hello"),
            *(b"Upgrade: websocket\r\n", b"Expect: 100-continue\r\n", b"\x00", b"\xff", b"\n"),
            *(b"GET http://[ HTTP/1.1\r\n", b"GET /%ff HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\n"),
        ]
    )
    | st.binary(max_size=20),
    max_size=8,
)


@pytest.mark.fuzz
def test_no_bytes_keep_others_from_being_answered() -> None:
    async def check(served: Served) -> None:
        loop = asyncio.get_running_loop()

        def law(pieces: list[bytes]) -> None:
            async def send() -> None:
                _, writer = await asyncio.open_connection("127.0.0.1", served.port)
                writer.write(b"".join(pieces))
                writer.close()
                assert await served.answers()

            asyncio.run_coroutine_threadsafe(send(), loop).result(PATIENCE_S)

        await asyncio.to_thread(holds, law, PIECES)

    serve(check)


@pytest.mark.thorough
@pytest.mark.parametrize("pipelined", [1, 2, 5])
def test_an_answer_that_is_under_way_hears_that_the_client_has_left(pipelined: int) -> None:
    """uvicorn tells only the last of the requests that a client has sent without waiting."""

    async def check(served: Served) -> None:
        heard = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"on", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            heard.set()

        served.answer = app
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(GET * pipelined)
        await writer.drain()
        while not served.begun:
            await asyncio.sleep(0.001)
        writer.transport.abort()
        await asyncio.wait_for(heard.wait(), 5.0)

    serve(check)
