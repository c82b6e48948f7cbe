"""What browsers send on behalf of other sites is refused, by node, indexer and store alike."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.http.app import build_app
from coordinator.runtime.http_guard import (
    Guard,
    add_allowed_host,
    host_name,
    own_hosts,
    warn_unless_local,
)
from coordinator.runtime.threads import Threads
from indexer_sim.scans.api import ScanServer
from projector_sim.kv.api import build_app as build_store
from projector_sim.kv.hub import Hub
from projector_sim.kv.store import KvStore
from tests.support.lone_shell import LoneShell

JSON = {"Content-Type": "application/json"}
OWN = ("node-1.example", "10.0.0.5")
ARRIVED = "192.0.2.7"


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def ask(
    method: str = "GET", headers: list[tuple[str, str]] | None = None, **guard: Any
) -> tuple[int, str]:
    """Return status and code of what is answered to a request with exactly these headers."""
    scope = {
        "type": "http",
        "method": method,
        "server": (ARRIVED, 8600),
        "headers": [(name.encode(), value.encode()) for name, value in headers or []],
    }
    sent: list[Any] = []

    async def run() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        await Guard(_answer, **{"hosts": OWN, **guard})(scope, None, send)  # type: ignore[arg-type]

    asyncio.run(run())
    body = sent[1]["body"]
    return sent[0]["status"], httpx.Response(200, content=body).json()["error"][
        "code"
    ] if body else ""


PASSED, UNKNOWN = (204, ""), (421, "unknown_host")
FOREIGN, UNTYPED = (403, "foreign_origin"), (415, "unsupported_media_type")

HOSTS = [
    ("localhost", PASSED),
    ("LOCALHOST:8600", PASSED),
    ("127.0.0.1:8600", PASSED),
    ("127.8.8.8", PASSED),
    ("[::1]:8600", PASSED),
    ("node-1.example:80", PASSED),
    ("NODE-1.example", PASSED),
    ("10.0.0.5:8600", PASSED),
    (f"{ARRIVED}:8600", PASSED),
    ("evil.example", UNKNOWN),
    ("evil.example:8600", UNKNOWN),
    ("localhost.evil.example", UNKNOWN),
    ("127.0.0.1.evil.example", UNKNOWN),
    ("127.0.0.1@evil.example", UNKNOWN),
    ("evil.example@127.0.0.1", UNKNOWN),
    ("10.0.0.6", UNKNOWN),
    ("0.0.0.0", UNKNOWN),
    ("2130706433", UNKNOWN),
    ("[fe80::1]", UNKNOWN),
    ("[::1", UNKNOWN),
    ("localhost:8600:1", UNKNOWN),
    ("localhost:x", UNKNOWN),
    ("localhost/", UNKNOWN),
    ("", UNKNOWN),
    (" ", UNKNOWN),
]


@pytest.mark.parametrize(("host", "answer"), HOSTS)
def test_a_host_that_is_not_known_is_refused_and_so_is_a_name_that_leads_here(
    host: str, answer: tuple[int, str]
) -> None:
    for method in ("GET", "PUT", "OPTIONS"):
        assert ask(method, [("host", host)]) == answer


def test_a_request_names_one_host() -> None:
    assert ask("GET", []) == UNKNOWN
    assert ask("GET", [("host", "localhost"), ("host", "evil.example")]) == UNKNOWN


ORIGINS = [
    ("http://localhost:8600", PASSED),
    ("https://localhost:8600", PASSED),
    ("HTTP://LOCALHOST:8600", PASSED),
    ("http://evil.example", FOREIGN),
    ("http://localhost:3000", FOREIGN),
    ("http://localhost", FOREIGN),
    ("http://127.0.0.1:8600", FOREIGN),
    ("http://localhost:8600@evil.example", FOREIGN),
    ("http://evil.example@localhost:8600", FOREIGN),
    ("file://localhost:8600", FOREIGN),
    ("http://[", FOREIGN),
    ("null", FOREIGN),
    ("", FOREIGN),
]


@pytest.mark.parametrize(("origin", "answer"), ORIGINS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_pages_of_other_sites_are_refused(
    method: str, origin: str, answer: tuple[int, str]
) -> None:
    sent = [("host", "localhost:8600"), ("origin", origin), ("content-type", "application/json")]
    assert ask(method, sent) == answer


TYPES = [
    ("application/json", PASSED),
    ("application/json; charset=utf-8", PASSED),
    ("Application/JSON", PASSED),
    ("text/plain", UNTYPED),
    ("text/plain; application/json", UNTYPED),
    ("application/x-www-form-urlencoded", UNTYPED),
    ("multipart/form-data; boundary=x", UNTYPED),
    ("application/x-ndjson", UNTYPED),
    ("", UNTYPED),
]


@pytest.mark.parametrize(("media_type", "answer"), TYPES)
def test_a_post_has_a_type_that_no_form_has(media_type: str, answer: tuple[int, str]) -> None:
    sent = [("host", "localhost"), ("content-type", media_type)]
    assert ask("POST", sent) == answer
    for method in ("PUT", "PATCH", "DELETE", "GET"):
        assert ask(method, sent) == PASSED  # A browser asks before these, and is not told yes.


def test_a_post_without_a_type_or_with_two_is_refused() -> None:
    assert ask("POST", [("host", "localhost")]) == UNTYPED
    two = [("content-type", "text/plain"), ("content-type", "application/json")]
    for given in (two, two[::-1]):
        assert ask("POST", [("host", "localhost"), *given]) == UNTYPED
    lines = [("host", "localhost"), ("content-type", "application/x-ndjson")]
    assert ask("POST", lines, media_types=("application/x-ndjson",)) == PASSED


def test_what_is_no_request_goes_through() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(Guard(app)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert seen == ["lifespan"]


# -- the three that use it -----------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[dict[str, tuple[Any, list[tuple[str, str]]]]]:
    """Each application, and the requests that change something without PUT or DELETE."""
    shell: Any = LoneShell()
    store = KvStore(tmp_path)
    reading: Any = None
    scans = ScanServer(reading, 1, Threads(lambda: None), allowed_hosts=["friend.example"])
    yield {
        "node": (
            build_app(shell, ["friend.example"]),
            [
                ("/v1/members/2/leave", "{}"),
                ("/v1/members/step-down", "{}"),
                ("/v1/members/reform", '{"minimum":1}'),
                ("/v1/indexes", '{"name":"x","bucket":"b","primary":true}'),
                ("/v1/indexes/build", '{"bucket":"b"}'),
                ("/v1/scan", '{"bucket":"b","name":"i"}'),
            ],
        ),
        "store": (
            build_store(Hub(store, 1), ["friend.example"]),
            [
                ("/v1/nodes/0/crash", ""),
                ("/v1/faults", '{"kind":"sync","action":"drop"}'),
                ("/v1/buckets/t/documents", '{"id":"a","deleted":true}\n'),
                ("/v1/buckets/t/move", '{"to":1}'),
                ("/v1/streams", "{}"),
            ],
        ),
        "indexer": (scans._server.config.app, [("/v1/slices/scan", "{}")]),
    }
    scans._socket.close()
    store.close()
    shell.examiner.close()


EVIL = {"Origin": "http://evil.example"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["node", "store", "indexer"])
def test_no_page_of_another_site_changes_anything(processes: Any, name: str) -> None:
    app, requests = processes[name]

    async def run() -> None:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:1") as http:

            async def code(path: str, body: str, **headers: str) -> str:
                sent = {name.replace("_", "-"): value for name, value in headers.items()}
                answer = await http.post(path, content=body, headers=sent)
                found: str = answer.json()["error"]["code"]
                return found

            for path, body in requests:
                plain = {"Content_Type": "text/plain"}
                json = {"Content_Type": "application/json"}
                assert await code(path, body) == "unsupported_media_type"
                assert await code(path, body, **plain) == "unsupported_media_type"
                assert await code(path, body, **plain, **EVIL) == "foreign_origin"
                assert await code(path, body, **json, **EVIL) == "foreign_origin"
                assert await code(path, body, **json, Host="evil.example") == "unknown_host"
            for host in ("friend.example", "127.0.0.1"):
                answer = await http.get("/v1/nothing", headers={"Host": host})
                assert answer.status_code == 404
            answer = await http.get("/v1/nothing", headers={"Host": "evil.example"})
            assert answer.status_code == 421
            assert "access-control-allow-origin" not in answer.headers

    asyncio.run(run())


def test_the_documented_requests_need_nothing_more() -> None:
    async def run() -> None:
        shell = LoneShell()
        async with shell.client() as http:
            assert (await http.put("/v1/config/quota", content="41")).status_code == 200
            assert (await http.delete("/v1/config/quota")).status_code == 200
        shell.examiner.close()

    asyncio.run(run())


# -- command lines -------------------------------------------------------------------------------


def test_any_address_is_nobodys_name() -> None:
    assert own_hosts("0.0.0.0", "::", "", "Node.example", "10.0.0.5") == {
        "node.example",
        "10.0.0.5",
    }


def test_allowed_hosts_are_names_or_addresses() -> None:
    parser = argparse.ArgumentParser()
    add_allowed_host(parser)
    given = ["--allowed-host", "Proxy.example", "--allowed-host", "::1"]
    assert parser.parse_args(given).allowed_host == ["proxy.example", "::1"]
    assert parser.parse_args([]).allowed_host == []
    for odd in ("http://x", "x:80", "x/y", "", "a b", "x" * 254):
        with pytest.raises(argparse.ArgumentTypeError):
            host_name(odd)


@pytest.mark.parametrize(
    ("host", "warned"), [("127.0.0.1", 0), ("localhost", 0), ("0.0.0.0", 1), ("10.0.0.5", 1)]
)
def test_who_can_be_reached_from_elsewhere_says_so(
    host: str, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    warn_unless_local(host, logging.getLogger("test"))
    assert caplog.text.count("no_authentication") == warned


@pytest.mark.parametrize("path", ["%FF", "a%fe", "%ED%A0%80", "%C3", "%C3%28"])
def test_a_path_that_is_no_text_names_nothing(tmp_path: Path, path: str) -> None:
    """The server puts one character for all that is no UTF-8: `%FF` and `%FE` were one document."""

    async def run() -> None:
        store = KvStore(tmp_path)
        store.create("b", 4, (0,))
        app = build_store(Hub(store, 1))
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            url = f"/v1/buckets/b/documents/{path}"
            for answer in (await http.put(url, content=b"1"), await http.get(url)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (
                    400,
                    "invalid_request",
                )
            for text in ("%EF%BF%BD", "%C3%A9", "100%25", "a%2Fb"):
                written = await http.put(f"/v1/buckets/b/documents/{text}", content=b"1")
                assert written.status_code == httpx.codes.OK, written.text
        store.close()

    asyncio.run(run())
