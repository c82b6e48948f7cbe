"""Scans whose pages come as a stream, over real HTTP and real databases."""

from __future__ import annotations

import json
import random
import socket
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import pytest

from coordinator.client.client import Client
from coordinator.core.model.entities import RANGE, Index
from coordinator.http import lines, scan, scatter
from indexer_sim.scans.api import ScanRefused
from tests.integration.cluster import wait_until
from tests.integration.scans import Fleet, Rows, expected

pytestmark = pytest.mark.integration

CUT_S = 30.0
"""Before the system gives up a connection whose other side takes nothing."""


def some_rows(count: int) -> Rows:
    chance = random.Random(1)
    return [((chance.randint(-50, 50), chance.choice("abc")), f"doc-{n}") for n in range(count)]


def large_rows(mib: int) -> Rows:
    return [((n, "x" * 1_000), f"doc-{n:07}") for n in range(mib * 1_000)]


class Stream:
    """A stream that is open: its lines one by one."""

    def __init__(self, http: httpx.Client, index: Index, **more: Any) -> None:
        body = {"index": str(index.id), "stream": True, **more}
        request = http.build_request("POST", "/v1/scan", json=body)
        self.response = http.send(request, stream=True)
        self._lines = self.response.iter_lines()

    def line(self) -> dict[str, Any] | None:
        """Return the next line, None at the end."""
        text = next(self._lines, None)
        found: dict[str, Any] | None = None if text is None else json.loads(text)
        return found

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self._lines]

    def close(self) -> None:
        self.response.close()


def streamed(http: httpx.Client, index: Index, **more: Any) -> list[dict[str, Any]]:
    with closing(Stream(http, index, **more)) as stream:
        assert stream.response.status_code == 200
        assert stream.response.headers["content-type"] == lines.MEDIA_TYPE
        return stream.rest()


def ids(pages: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for page in pages for row in page["rows"]]


@pytest.mark.parametrize("slices", [1, 3, 7])
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_line_is_what_a_scan_of_that_page_answers(
    fleet: Fleet, http: httpx.Client, slices: int, order: str
) -> None:
    index = fleet.index("n", "c DESC", slices=slices)
    rows = some_rows(1_000)
    fleet.fill(index, rows)
    names = expected(index, rows)[:: 1 if order == "asc" else -1]
    for limit in (97, 250, 8_192):
        pages = streamed(http, index, order=order, limit=limit)
        assert ids(pages) == names
        after = None
        for page in pages:
            asked = {"index": str(index.id), "order": order, "limit": limit, "after": after}
            assert page == http.post("/v1/scan", json=asked).json()
            after = page["next"]
        assert after is None


def test_what_was_fetched_for_a_line_is_not_fetched_again(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c", slices=3)
    rows = some_rows(6_000)
    fleet.fill(index, rows)
    assert len(streamed(http, index, limit=600)) == 10
    asked = sum(reading.scans for reading in fleet.readings.values())
    assert asked == 3, "each indexer was asked once for all that it has"


def test_a_stream_has_no_rows_or_is_of_one_page(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c")
    (page,) = streamed(http, index)
    assert (page["rows"], page["next"]) == ([], None)
    fleet.fill(index, [((1, "a"), "d")])
    (page,) = streamed(http, index)
    assert (page["rows"], page["next"]) == ([{"id": "d", "key": [1, "a"]}], None)


def test_a_consistent_stream_stays_at_its_timestamp(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c")
    rows = some_rows(500)
    fleet.fill(index, rows)
    for reading in fleet.readings.values():
        reading.snap(1)
    with closing(Stream(http, index, limit=50, consistency="consistent")) as stream:
        first = stream.line()
        assert first is not None
        fleet.fill(index, [((n, "z"), f"new-{n}") for n in range(-50, 50)])
        for reading in fleet.readings.values():
            reading.snap(2)
        pages = [first, *stream.rest()]
    assert ids(pages) == expected(index, rows)
    assert {page["consistency"]["number"] for page in pages} == {1}


def test_a_page_goes_on_with_the_consistency_of_the_one_before(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = fleet.index("n", "c")
    fleet.fill(index, some_rows(50))
    for reading in fleet.readings.values():
        reading.snap(1)
        reading.snap(2)
    asked = {"index": str(index.id), "limit": 10}

    def after(consistency: Any) -> str:
        body = {**asked, "consistency": consistency}
        return str(http.post("/v1/scan", json=body).json()["next"])

    for begun, going_on, status in [
        ("consistent", "consistent", 200),
        ("consistent", "last_good", 200),
        ("consistent", {"consistent": 2}, 200),
        ({"consistent": 1}, {"consistent": 1}, 200),
        ("any", "any", 200),
        ("consistent", "any", 400),
        ("any", "consistent", 400),
        ({"consistent": 1}, {"consistent": 2}, 400),
    ]:
        for stream in (False, True):
            body = {**asked, "consistency": going_on, "after": after(begun), "stream": stream}
            answer = http.post("/v1/scan", json=body)
            assert answer.status_code == status, (begun, going_on, answer.text)


@pytest.mark.parametrize("consistency", ["consistent", "any"])
def test_who_keeps_a_snapshot_for_a_stream_is_asked_again_in_time(
    fleet: Fleet, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, consistency: str
) -> None:
    """The last ranges are not merged for long: their indexers would give the snapshot up."""
    monkeypatch.setattr(scatter, "RENEW_S", 0.0)
    monkeypatch.setattr(scatter, "READ_AHEAD", 3_000)
    bounds = json.dumps([[0], [100]])
    index = fleet.index("n", "c", slices=3, partitioning=RANGE, bounds_json=bounds)
    rows = [((-1 - n % 50, "a"), f"low-{n}") for n in range(9_000)]
    rows += [((150, "a"), "high"), ((50, "a"), "middle")]
    fleet.fill(index, rows)
    for reading in fleet.readings.values():
        reading.snap(1)
    pages = streamed(http, index, limit=1_000, consistency=consistency)
    assert ids(pages) == expected(index, rows)
    asked = [fleet.readings[host].scans for host in (2, 3)]
    assert asked == ([1, 1] if consistency == "any" else [len(pages) - 1] * 2)


def test_what_ends_a_stream_early_is_its_last_line(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c")
    rows = large_rows(20)
    fleet.fill(index, rows)
    with closing(Stream(http, index, limit=500)) as stream:
        first = stream.line()
        for reading in fleet.readings.values():
            reading.refusal = ScanRefused("index_recovering", "a moment")
        *pages, error = [first, *stream.rest()]
    assert error["error"]["code"] == "index_recovering"
    assert pages[-1]["next"] is not None
    assert ids(pages) == expected(index, rows)[: len(ids(pages))]
    for reading in fleet.readings.values():
        reading.refusal = None
    left = streamed(http, index, limit=1_000, after=pages[-1]["next"])
    assert ids([*pages, *left]) == expected(index, rows)


def test_a_page_that_cannot_be_read_is_an_error_in_the_last_line(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = fleet.index("n", "c", slices=1)
    fleet.fill(index, some_rows(100))
    fleet.readings[1].put(index.id, [(0, b"\x81nonsense")])
    *pages, error = streamed(http, index, limit=60)
    assert (len(ids(pages)), error["error"]["code"]) == (60, "internal")


def test_a_stream_that_cannot_begin_is_refused(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c")
    for reading in fleet.readings.values():
        reading.refusal = ScanRefused("index_building", "not yet")
    for more, status, code in [
        ({}, 503, "index_building"),
        ({"count": True}, 400, "invalid_request"),
        ({"limit": 10_001}, 400, "invalid_request"),
        ({"after": "x"}, 400, "invalid_request"),
    ]:
        refused = http.post("/v1/scan", json={"index": str(index.id), "stream": True, **more})
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


def test_a_stream_follows_a_slice_that_moves(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("n", "c", slices=2)
    rows = large_rows(20)
    left, right = index.slices
    moved = (left, replace(right, master=3))
    fleet.fill(index, rows)
    fleet.fill(replace(index, slices=moved), rows)
    with closing(Stream(http, index, limit=500)) as stream:
        first = stream.line()
        fleet.become(index, slices=moved)
        fleet.readings[2].released.add(index.id)
        pages = [first, *stream.rest()]
    assert ids(pages) == expected(index, rows)
    assert fleet.readings[3].scans


def test_so_many_streams_at_once_and_who_leaves_makes_room(
    fleet: Fleet, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "STREAMS_MAX", 2)
    index = fleet.index("n", "c")
    fleet.fill(index, large_rows(12))
    open_ones = [Stream(http, index) for _ in range(2)]
    for one in open_ones:
        assert one.line()
    first, refused = streamed(http, index)
    assert first["next"] is not None
    assert refused["error"]["code"] == "overloaded"
    with Client(fleet.url) as client:
        assert len([*client.scan_all(index.id, limit=1_000)]) == 12_000, "page by page, then"
    open_ones[0].close()
    wait_until(lambda: "error" not in streamed(http, index)[-1], "a stream has room")
    open_ones[1].close()


def test_who_takes_nothing_holds_two_pages_and_is_cut_off(
    fleet: Fleet, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "STREAMS_MAX", 1)
    monkeypatch.setattr(lines, "STUCK_S", 2.0)
    index = fleet.index("n", "c", slices=1)
    fleet.fill(index, large_rows(40))
    url = httpx.URL(fleet.url)
    body = json.dumps({"index": str(index.id), "stream": True, "limit": 1_000}).encode()
    with socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        idle.connect((url.host, url.port))
        head = "POST /v1/scan HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n"
        head += "Content-Length: {}\r\n\r\n"
        idle.sendall(head.format(url.netloc.decode(), len(body)).encode() + body)
        begun = b""
        while b'"rows"' not in begun:
            begun += idle.recv(64)
        assert "error" in streamed(http, index, limit=1_000)[-1]
        wait_until(
            lambda: "error" not in streamed(http, index, limit=10_000)[-1], "it is cut off", CUT_S
        )
    assert len(ids(streamed(http, index))) == 40_000
