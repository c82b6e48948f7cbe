"""Scans over real HTTP and real databases, against a list that is sorted by hand."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import orjson
import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.client.client import AsyncClient, Client
from coordinator.core.keys.scan_pages import unpack
from coordinator.core.keys.scans import Cursor
from coordinator.core.model.authority_state import IndexerInfo
from coordinator.core.model.entities import (
    BACKFILL,
    DROPPING,
    ERROR,
    INIT,
    PENDING,
    RANGE,
    READY,
    Index,
    Shard,
)
from coordinator.http.calls import Calls, Silent
from coordinator.http.scan import ARRIVAL_PAUSE_S
from coordinator.http.server import HttpServer
from indexer_sim.scans import api
from indexer_sim.scans.api import SMALL, ScanRefused, Unsettled
from tests.integration.cluster import JSON, wait_until
from tests.integration.scans import START_S, Fleet, Rows, StoredReading, eventually, expected

pytestmark = pytest.mark.integration

CITIES = ["Bergen", "Berlin", "Bern", "Lima", "Lyon", "Paris", "Pärnu", "Ürümqi"]


def some_rows(count: int, seed: int = 1) -> Rows:
    chance = random.Random(seed)
    return [((chance.choice(CITIES), chance.randint(-50, 50)), f"doc-{n}") for n in range(count)]


def scan(http: httpx.Client, index: Index, **more: Any) -> dict[str, Any]:
    response = http.post("/v1/scan", json={"index": str(index.id), **more})
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def refusal(http: httpx.Client, index: Index, **more: Any) -> tuple[int, str]:
    response = http.post("/v1/scan", json={"index": str(index.id), **more})
    return response.status_code, response.json()["error"]["code"]


def ids(body: dict[str, Any]) -> list[str]:
    return [row["id"] for row in body["rows"]]


def all_pages(http: httpx.Client, index: Index, **more: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = None
    while True:
        body = scan(http, index, after=after, **more)
        rows += body["rows"]
        after = body["next"]
        if after is None:
            return rows


# -- what is answered ----------------------------------------------------------------------------

BOUNDS = '[["Bern", 0], ["Lyon"], ["P"]]'
SHAPES = [
    {"slices": 4},
    {"slices": 1},
    {"slices": 7, "replicas": 1},
    {"slices": 4, "partitioning": RANGE, "bounds_json": BOUNDS},
]


@pytest.mark.parametrize("shape", SHAPES, ids=["hash", "one slice", "replicas", "range"])
@pytest.mark.parametrize("expressions", [("city", "n"), ("city", "n DESC")])
def test_a_scan_answers_what_a_sorted_list_would(
    fleet: Fleet, http: httpx.Client, shape: dict[str, Any], expressions: tuple[str, ...]
) -> None:
    index = fleet.index(*expressions, **shape)
    rows = some_rows(3_000)
    fleet.fill(index, rows)
    for asked, within in [
        ({}, lambda key: True),
        ({"equals": ["Bern", 7]}, lambda key: key == ("Bern", 7)),
        ({"prefix": ["Lima"]}, lambda key: key[0] == "Lima"),
        ({"starts_with": "Ber"}, lambda key: key[0].startswith("Ber")),
        ({"range": {"low": ["Bern"], "high": ["Paris"], "include_high": False}},
         lambda key: "Bern" <= key[0] < "Paris"),
    ]:  # fmt: skip
        names = expected(index, rows, within)
        assert ids(scan(http, index, scan=asked, limit=10_000)) == names
        assert ids(scan(http, index, scan=asked, limit=7)) == names[:7]
        assert ids(scan(http, index, scan=asked, limit=7, order="desc")) == names[::-1][:7]
        assert scan(http, index, scan=asked, count=True)["count"] == len(names)
        paged = all_pages(http, index, scan=asked, limit=97, order="desc")
        assert [row["id"] for row in paged] == names[::-1]


def test_a_row_has_its_key_and_the_answer_its_cas(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a", "b")
    fleet.fill(index, [(("x", 2**70), "one"), (("x", {"k": [None, 1.5]}), "zwei-ü")])
    body = scan(http, index)
    assert body["rows"] == [
        {"id": "one", "key": ["x", 2**70]},
        {"id": "zwei-ü", "key": ["x", {"k": [None, 1.5]}]},
    ]
    assert body["cas"] == fleet.node.state.cas
    assert body["consistency"] == {"mode": "any"}


def test_an_index_is_found_by_name_too(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a")
    fleet.fill(index, [((1,), "d")])
    response = http.post("/v1/scan", json={"bucket": index.bucket, "name": index.name})
    assert ids(response.json()) == ["d"]


def test_pages_that_are_full_of_bytes_end_early_and_go_on(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a", slices=5)
    rows: Rows = [((f"{n:04d}" + "k" * 4_000,), f"doc-{n}") for n in range(2_000)]
    fleet.fill(index, rows)
    first = scan(http, index, limit=10_000)
    assert len(first["rows"]) < 2_000
    assert [row["id"] for row in all_pages(http, index, limit=10_000)] == expected(index, rows)


def test_a_scan_of_one_key_asks_one_indexer(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=6)
    fleet.fill(index, some_rows(100))
    scan(http, index, scan={"equals": ["Bern", 1]})
    assert sum(reading.scans for reading in fleet.readings.values()) == 1


# -- failures ------------------------------------------------------------------------------------


def test_a_replica_answers_for_an_indexer_that_is_gone(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=6, replicas=1)
    rows = some_rows(500)
    fleet.fill(index, rows)
    fleet.kill(2)
    assert ids(scan(http, index, limit=1_000)) == expected(index, rows)
    assert scan(http, index, count=True)["count"] == 500


def test_a_replica_goes_on_where_a_host_failed(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=6, replicas=2)
    rows = some_rows(5_000)
    fleet.fill(index, rows)
    after = None
    found: list[str] = []
    for page in range(3):
        body = scan(http, index, limit=2_000, after=after)
        found += ids(body)
        after = body["next"]
        fleet.kill(1 + page) if page < 2 else None
    assert found == expected(index, rows)
    assert after is None


def test_a_replica_answers_for_an_indexer_that_hangs(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=6, replicas=1)
    rows = some_rows(500)
    fleet.fill(index, rows)
    fleet.readings[2].going.clear()
    try:
        assert ids(scan(http, index, limit=1_000, timeout_ms=5_000)) == expected(index, rows)
        fleet.readings[3].going.clear()
        late = {(504, "timeout"), (503, "slice_unavailable")}
        assert refusal(http, index, timeout_ms=500) in late
    finally:
        for reading in fleet.readings.values():
            reading.going.set()


@contextmanager
def once(condition: Callable[[], bool], what: str, act: Callable[[], None]) -> Iterator[None]:
    """Act when a condition holds, beside the block; when that has ended, at the latest."""
    over = threading.Event()

    def wait_and_act() -> None:
        wait_until(lambda: condition() or over.is_set(), what)
        act()

    waiting = eventually(wait_and_act)
    try:
        yield
    finally:
        over.set()
        waiting.join()


def test_an_indexer_that_is_slow_is_asked_again_when_all_others_have_failed(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = fleet.index("city", "n", slices=6, replicas=1)
    rows = some_rows(500)
    fleet.fill(index, rows)
    fleet.kill(3)
    slow = fleet.readings[2]
    slow.going.clear()
    with once(lambda: slow.scans > 1, "it is asked again", slow.going.set):
        assert ids(scan(http, index, limit=1_000, timeout_ms=60_000)) == expected(index, rows)


def test_an_indexer_that_had_too_little_time_is_asked_again(
    fleet: Fleet, http: httpx.Client
) -> None:
    """It answers in time, that it is not so far yet; the replica cannot answer at all."""
    index = fleet.index("city", "n", slices=1, replicas=1)
    rows = some_rows(50)
    fleet.fill(index, rows)
    behind, other = fleet.readings[1], fleet.readings[2]
    other.refusal = ScanRefused("index_recovering", "not yet")
    needed = {"at_least": {"vbuckets": {"0": ["0", "10"]}}}

    def catch_up() -> None:
        behind.seqno = 10

    with once(lambda: other.scans > 0, "the other one is asked", catch_up):
        found = scan(http, index, limit=1_000, timeout_ms=6_000, consistency=needed)
    assert ids(found) == expected(index, rows)
    behind.seqno = 9
    assert refusal(http, index, timeout_ms=500, consistency=needed) in {
        (504, "timestamp_not_reached"),
        (503, "index_recovering"),
    }


@pytest.mark.parametrize("limit", [10, 1_000])
def test_an_indexer_that_holds_the_only_copy_is_waited_for_while_that_changes(
    fleet: Fleet, http: httpx.Client, limit: int
) -> None:
    """Another index of its bucket may be made or dropped there: that takes a few milliseconds."""
    index = fleet.index("city", "n", slices=3)
    rows = some_rows(50)
    fleet.fill(index, rows)
    only = fleet.readings[2]
    only.refusal = Unsettled("what is held is changing")

    def settle() -> None:
        only.refusal = None

    with once(lambda: only.scans > 1, "it is looked at again", settle):
        found = scan(http, index, limit=limit, timeout_ms=60_000)
    assert ids(found) == expected(index, rows)[:limit]
    only.refusal = Unsettled("what is held is changing")
    assert refusal(http, index, timeout_ms=500) == (503, "index_recovering")


@pytest.mark.parametrize("code", ["index_building", "index_rolling_back", "index_recovering"])
def test_an_indexer_that_is_not_ready_is_passed_over(
    fleet: Fleet, http: httpx.Client, code: str
) -> None:
    index = fleet.index("city", "n", slices=6, replicas=1)
    rows = some_rows(200)
    fleet.fill(index, rows)
    fleet.readings[3].refusal = ScanRefused(code, "not yet")
    assert ids(scan(http, index, limit=1_000)) == expected(index, rows)
    fleet.readings[1].refusal = ScanRefused(code, "not yet")
    assert refusal(http, index) == (503, code)


def test_a_slice_that_nobody_has_is_unavailable(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=3)
    fleet.kill(2)
    assert refusal(http, index) == (503, "slice_unavailable")
    fleet.dead.add(2)
    response = http.post("/v1/scan", json={"index": str(index.id)})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "slice_unavailable")
    assert error["details"]["slice"] == 1
    assert error["details"]["indexers"]["2"].startswith("not alive: ")


def test_who_is_not_heard_for_a_moment_answers(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("city", "n", slices=3)
    rows = some_rows(200)
    fleet.fill(index, rows)
    fleet.dead.update(fleet.readings)
    assert ids(scan(http, index, limit=1_000)) == expected(index, rows)


def test_storage_of_another_life_is_not_scanned(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a", slices=1)
    index = fleet.become(index, shards=(Shard(1, 5),))
    fleet.readings[1].shard = 6
    assert refusal(http, index) == (503, "slice_unavailable")


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        (INIT, (409, "index_not_ready")),
        (READY, (409, "index_not_ready")),
        (PENDING, (503, "index_building")),
        (BACKFILL, (503, "index_building")),
        (ERROR, (409, "index_failed")),
        (DROPPING, (404, "index_not_found")),
    ],
)
def test_only_an_index_that_is_kept_up_to_date_is_scanned(
    fleet: Fleet, http: httpx.Client, state: str, answer: tuple[int, str]
) -> None:
    index = fleet.become(fleet.index("a"), state=state)
    assert refusal(http, index) == answer


def test_a_build_is_answered_with_its_progress(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.become(fleet.index("a"), state=BACKFILL)
    response = http.post("/v1/scan", json={"index": str(index.id)})
    assert response.json()["error"]["details"]["progress"]["sent"] == 0


@pytest.mark.parametrize(
    "asked",
    [
        {"scan": {"equals": []}},
        {"scan": {"like": "x"}},
        {"limit": 0},
        {"limit": 10_001},
        {"after": "nonsense"},
        {"consistency": "eventual"},
        {"order": "up"},
        {"distinct": True},
        {"name": "i"},
    ],
)
def test_what_is_no_scan_is_refused(
    fleet: Fleet, http: httpx.Client, asked: dict[str, Any]
) -> None:
    assert refusal(http, fleet.index("a"), **asked) == (400, "invalid_request")


def test_a_cursor_is_of_one_scan_of_an_index_that_is_still_there(
    fleet: Fleet, http: httpx.Client
) -> None:
    """An ALTER that replaces an index ends the scans in it; to misuse a cursor is a mistake."""
    first, other = fleet.index("city", "n"), fleet.index("n", "city")
    fleet.fill(first, some_rows(50))
    begun = scan(http, first, limit=10)["next"]
    assert refusal(http, first, after=begun, order="desc") == (400, "invalid_request")
    assert refusal(http, other, after=begun) == (400, "invalid_request")
    unknown = str(Cursor.read(begun)._replace(index_id=2**60))
    assert refusal(http, other, after=unknown) == (404, "index_not_found")
    fleet.become(first, state=DROPPING)
    assert refusal(http, other, after=begun) == (404, "index_not_found")


def test_an_index_that_is_not_there_is_not_found(fleet: Fleet, http: httpx.Client) -> None:
    for body in ({"index": "9"}, {"index": "x"}, {"bucket": "b", "name": "n"}):
        response = http.post("/v1/scan", json=body)
        assert response.json()["error"]["code"] == "index_not_found"


def test_scans_are_counted_by_what_became_of_them(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a")
    scan(http, index)
    fleet.kill(1)
    refusal(http, index)
    assert fleet.scans_that_were("ok") == 1
    assert fleet.scans_that_were("slice_unavailable") == 1


def test_a_node_that_has_not_caught_up_does_not_say_that_an_index_is_not_there(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = fleet.index("a")
    fleet.fill(index, [((1,), "d")])
    fleet.node.is_following = False
    assert ids(scan(http, index)) == ["d"]
    response = http.post("/v1/scan", json={"index": "9"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")


# -- consistency ---------------------------------------------------------------------------------


def a_snapped_index(fleet: Fleet) -> Index:
    """Return an index with a document before timestamp 7 and one after it."""
    index = fleet.index("a", slices=3)
    fleet.fill(index, [((n,), f"old-{n}") for n in range(9)])
    for reading in fleet.readings.values():
        reading.snap(7)
    fleet.fill(index, [((n,), f"new-{n}") for n in range(9)])
    return index


OLD = [f"old-{n}" for n in range(9)]


def test_a_consistent_scan_reads_all_slices_at_one_timestamp(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = a_snapped_index(fleet)
    body = scan(http, index, consistency="consistent")
    assert ids(body) == OLD
    assert body["consistency"] == {"mode": "consistent", "number": 7, "hash": f"{7 * 17:016x}"}
    assert scan(http, index, consistency="consistent", count=True)["count"] == 9


def test_indexers_that_are_ahead_go_back_to_the_newest_timestamp_that_all_hold(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = a_snapped_index(fleet)
    fleet.readings[1].snap(8)
    fleet.readings[2].snap(8)
    body = scan(http, index, consistency="consistent")
    assert (ids(body), body["consistency"]["number"]) == (OLD, 7)
    fleet.readings[3].snap(8)
    body = scan(http, index, consistency="consistent")
    assert (len(body["rows"]), body["consistency"]["number"]) == (18, 8)


def test_of_several_timestamps_that_all_hold_the_newest_is_read(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = a_snapped_index(fleet)
    for reading in fleet.readings.values():
        reading.snap(8)
    fleet.fill(index, [((n,), f"newest-{n}") for n in range(9)])
    for number in (9, 10):
        fleet.readings[1].snap(number)
    fleet.readings[2].snap(9)
    body = scan(http, index, consistency="consistent")
    assert (len(body["rows"]), body["consistency"]["number"]) == (18, 8)


def test_the_pages_of_a_consistent_scan_have_one_timestamp(
    fleet: Fleet, http: httpx.Client
) -> None:
    index = a_snapped_index(fleet)
    first = scan(http, index, consistency="consistent", limit=4)
    for reading in fleet.readings.values():
        reading.snap(8)
    rest = scan(http, index, consistency="consistent", after=first["next"])
    assert ids(first) + ids(rest) == OLD
    for reading in fleet.readings.values():
        del reading.snapshots[7]
    gone = refusal(http, index, consistency="consistent", after=first["next"])
    assert gone == (410, "timestamp_gone")


def test_a_consistent_scan_waits_for_a_common_timestamp(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a", slices=3)
    fleet.fill(index, [((n,), f"old-{n}") for n in range(9)])
    for number, reading in fleet.readings.items():
        reading.snap(number)
    refused = (504, "timeout")
    for timeout_ms in (2_000, 8_000, 32_000):
        # Where the machine is busy, an indexer's answer at the end of its time may be too late.
        if refused == (504, "timeout"):
            refused = refusal(http, index, consistency="consistent", timeout_ms=timeout_ms)
    assert refused == (503, "no_stability_timestamp")

    def snap_all() -> None:
        time.sleep(0.1)
        for reading in fleet.readings.values():
            reading.snap(4)

    thread = eventually(snap_all)
    assert ids(scan(http, index, consistency="consistent")) == OLD
    thread.join()


def test_a_scan_waits_until_the_indexer_has_come_so_far(fleet: Fleet, http: httpx.Client) -> None:
    index = fleet.index("a", slices=1)
    vector = {"at_least": {"vbuckets": {"0": [2**64 - 1, 10]}}}
    assert refusal(http, index, consistency=vector, timeout_ms=1_000) == (
        504,
        "timestamp_not_reached",
    )

    def arrive() -> None:
        time.sleep(0.1)
        fleet.fill(index, [((1,), "d")])
        fleet.readings[1].seqno = 10

    thread = eventually(arrive)
    body = scan(http, index, consistency=vector)
    assert (ids(body), body["consistency"]) == (["d"], {"mode": "at_least"})
    thread.join()


@pytest.mark.parametrize("while_looking", [False, True])
def test_a_scan_that_waits_looks_again_when_something_was_applied(
    fleet: Fleet, http: httpx.Client, monkeypatch: pytest.MonkeyPatch, while_looking: bool
) -> None:
    """Not only when it has waited for a while, which would be half a minute here."""
    monkeypatch.setattr(api, "POLL_S", 30.0)
    index, reading, server = fleet.index("a", slices=1), fleet.readings[1], fleet.servers[1]
    vector = {"at_least": {"vbuckets": {"0": [2**64 - 1, 10]}}}
    looking = threading.Event()

    def arrive() -> None:
        assert looking.wait(START_S)
        fleet.fill(index, [((1,), "d")])
        reading.seqno = 10
        server.waiting.changed()

    def view(*asked: Any, **more: Any) -> Any:
        first = not looking.is_set()
        try:
            return StoredReading.view(reading, *asked, **more)
        finally:
            looking.set()
            if first and while_looking:
                thread.join()

    monkeypatch.setattr(reading, "view", view)
    thread = eventually(arrive)
    asked = {"limit": 10, "consistency": vector, "timeout_ms": 60_000}
    began_s = time.monotonic()
    assert ids(scan(http, index, **asked)) == ["d"]
    thread.join()
    assert reading.scans == 2
    assert time.monotonic() - began_s < api.POLL_S


def test_a_scan_of_a_large_page_that_waits_looks_again_now_and_then_only(
    fleet: Fleet, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are few threads for it: who waits must not take all their time."""
    index, reading, server = fleet.index("a", slices=1), fleet.readings[1], fleet.servers[1]
    vector = {"at_least": {"vbuckets": {"0": [2**64 - 1, 10]}}}
    monkeypatch.setattr(api, "POLL_S", 0.5)
    monkeypatch.setattr(api, "POLL_S_MAX", 0.5)

    def view(*asked: Any, **more: Any) -> Any:
        server.waiting.changed()
        return StoredReading.view(reading, *asked, **more)

    monkeypatch.setattr(reading, "view", view)
    asked = {"limit": SMALL + 1, "consistency": vector, "timeout_ms": 1_800}
    assert refusal(http, index, **asked) == (504, "timestamp_not_reached")
    assert reading.scans <= 4


def replaced(fleet: Fleet, first: Index) -> tuple[Index, threading.Thread]:
    """An index takes the place of the first: the indexers know it before the node reads of it."""
    second = fleet.index("a", slices=1, name=first.name, replaces=first.id)
    fleet.fill(second, [((1,), "new")])
    reading = fleet.readings[1]
    reading.released.add(first.id)

    def switch() -> None:
        wait_until(lambda: reading.scans, "the first index was asked for")
        fleet.become(second, replaces=0)
        fleet.become(first, state=DROPPING)

    return second, eventually(switch)


def test_a_scan_by_name_goes_on_at_the_index_that_took_the_place(
    fleet: Fleet, http: httpx.Client
) -> None:
    first = fleet.index("a", slices=1, name="i")
    second, switching = replaced(fleet, first)
    answer = http.post("/v1/scan", json={"bucket": first.bucket, "name": "i"})
    switching.join()
    assert (answer.status_code, ids(answer.json())) == (200, ["new"])
    assert answer.json()["index"] == str(second.id)


def test_a_scan_of_an_index_by_its_id_has_no_other_one(fleet: Fleet, http: httpx.Client) -> None:
    first = fleet.index("a", slices=1, name="i")
    _, switching = replaced(fleet, first)
    assert refusal(http, first) == (503, "slice_unavailable")
    switching.join()


@pytest.mark.parametrize("field", ["address", "incarnation"])
def test_nobody_is_asked_at_an_address_that_only_a_heartbeat_names(
    fleet: Fleet, http: httpx.Client, field: str
) -> None:
    index = fleet.index("a", slices=1)
    beat = fleet.node.peers.indexers[1].beat
    registered = getattr(beat, field)
    asked: list[bytes] = []
    with _listening(asked) as elsewhere:
        setattr(beat, field, {"address": elsewhere, "incarnation": 8}[field])
        try:
            assert refusal(http, index, timeout_ms=100) == (503, "slice_unavailable")
        finally:
            setattr(beat, field, registered)
    assert asked == []
    assert scan(http, index)["rows"] == []


@pytest.mark.parametrize("gone", [(), (2,)], ids=["alone", "the other host is gone"])
def test_a_scan_waits_for_an_indexer_that_was_just_started(
    fleet: Fleet, http: httpx.Client, gone: tuple[int, ...]
) -> None:
    """It is heard before it is registered."""
    index = fleet.index("a", slices=1, replicas=len(gone))
    for other in gone:
        fleet.kill(other)
        fleet.dead.add(other)
    beat = fleet.node.peers.indexers[1].beat
    beat.incarnation += 1
    with ThreadPoolExecutor(1) as thread:
        scanning = thread.submit(scan, http, index)
        fleet.run(_turns(3))
        assert not scanning.done()
        fleet.run(_registered(fleet, beat))
        assert scanning.result(10)["rows"] == []


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(ARRIVAL_PAUSE_S)


async def _registered(fleet: Fleet, beat: Any) -> None:
    info = IndexerInfo(1, beat.incarnation, beat.address, "")
    fleet.node.authority.indexers[1] = info


@contextmanager
def _listening(asked: list[bytes]) -> Iterator[str]:
    """Yield the URL of a server that notes what it is sent, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        done = threading.Event()

        def listen() -> None:
            while not done.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    asked.append(connection.recv(1_000))
                    connection.close()

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            done.set()
            thread.join()


def test_a_redirect_of_an_indexer_is_not_followed(fleet: Fleet) -> None:
    """Who was asked answers by itself: nobody sends a node elsewhere."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        headers = [(b"location", b"/elsewhere"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def ask() -> int:
        http = HttpServer(app, "127.0.0.1", 0)
        assert await http.start()
        assert http._socket is not None
        calls = Calls()
        try:
            port = http._socket.getsockname()[1]
            return (await calls.post(f"http://127.0.0.1:{port}/v1/slices/scan", b"", 5)).status
        finally:
            await calls.close()
            await http.stop()

    assert fleet.run(ask()) == 307
    assert asked == ["/v1/slices/scan"]


def test_an_answer_of_an_indexer_is_listened_to_no_further_than_a_page_goes(fleet: Fleet) -> None:
    pieces, sent = 64, 0
    ended = asyncio.Event()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces * 2**20))
        with suppress(ConnectionError):
            for _ in range(pieces):
                writer.write(bytes(2**20))
                await writer.drain()
                sent += 1
        ended.set()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        calls = Calls()
        try:
            with pytest.raises(Silent):
                await calls.post(f"http://127.0.0.1:{port}/v1/slices/scan", b"", 20)
            await ended.wait()
        finally:
            await calls.close()
            server.close()

    fleet.run(ask())
    assert 8 <= sent < pieces // 2


# -- the indexer's own answers -------------------------------------------------------------------


def ask_indexer(fleet: Fleet, number: int, **more: Any) -> httpx.Response:
    body = {"begin": "", "end": "ff", **more}
    url = f"{fleet.servers[number].address}/v1/slices/scan"
    return httpx.post(url, content=orjson.dumps(body), headers=JSON, trust_env=False)


def test_a_page_of_an_indexer_has_the_entries_of_all_slices_that_were_asked_for(
    fleet: Fleet,
) -> None:
    index = fleet.index("city", "n", slices=6)
    rows = some_rows(600)
    fleet.fill(index, rows)
    response = ask_indexer(fleet, 1, index=index.id, slices=[0, 3], limit=50)
    page = unpack(response.content)
    assert page.more
    assert page.entries == sorted(page.entries)
    response = ask_indexer(
        fleet, 1, index=index.id, slices=[0, 3], limit=8_000, after=page.entries[-1].hex()
    )
    rest = unpack(response.content)
    assert not rest.more
    assert set(page.entries).isdisjoint(rest.entries)
    both = ask_indexer(fleet, 1, index=index.id, slices=[0, 3], limit=8_000, order="desc")
    assert unpack(both.content).entries == [*page.entries, *rest.entries][::-1]


def test_an_indexer_refuses_what_is_not_for_it(fleet: Fleet) -> None:
    index = fleet.index("a", slices=3)
    for asked, status, code in [
        ({"index": index.id, "slices": [1]}, 409, "slice_not_here"),
        ({"index": index.id, "slices": [0], "indexer": 2}, 409, "wrong_indexer"),
        ({"index": index.id, "slices": []}, 400, "invalid_request"),
        ({"index": index.id, "slices": [0], "begin": "x"}, 400, "invalid_request"),
        ({"index": index.id, "slices": [0, 1], "count": True}, 400, "invalid_request"),
    ]:
        response = ask_indexer(fleet, 1, **asked)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("limit", [1, SMALL, SMALL + 1])
def test_an_indexer_that_stops_ends_what_it_reads_first(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Its database is closed then."""
    index, server, reading = fleet.index("n", slices=1), fleet.servers[1], fleet.readings[1]
    fleet.fill(index, [((n,), f"d{n}") for n in range(200)])
    monkeypatch.setattr(api, "STOP_S", 0.1)
    reading.going.clear()
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(ask_indexer, fleet, 1, index=index.id, slices=[0], limit=limit)
        wait_until(lambda: reading.scans, "it is being read")
        stopping = pool.submit(server.stop)
        with pytest.raises(TimeoutError):
            stopping.result(1.0)
        reading.going.set()
        stopping.result(START_S)
        with suppress(httpx.HTTPError):
            asked.result(START_S)


@pytest.mark.parametrize("limit", [1, SMALL + 1])
def test_an_indexer_that_stops_says_so_to_a_scan_that_waits(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """It stops to read, with threads and without, before it has answered everybody."""
    index, server, reading = fleet.index("n", slices=1), fleet.servers[1], fleet.readings[1]
    fleet.fill(index, [((1,), "d")])
    reading.refusal = Unsettled("what is held is changing")
    asked = {"index": index.id, "slices": [0], "limit": limit, "timeout_ms": 60_000}
    monkeypatch.setattr(api, "STOP_S", START_S)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask_indexer, fleet, 1, **asked)
        wait_until(lambda: reading.scans > 1, "it is looked at again")
        server.stop()
        refused = answer.result(START_S)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")


# -- clients -------------------------------------------------------------------------------------


def test_the_clients_go_through_all_pages(fleet: Fleet) -> None:
    index = fleet.index("city", "n")
    rows = some_rows(500)
    fleet.fill(index, rows)
    with Client(fleet.url) as client:
        found = [row["id"] for row in client.scan_all(index.id, limit=60, order="desc")]
        named = client.scan(bucket=index.bucket, name=index.name, scan={"prefix": ["Lima"]})
        assert {row["key"][0] for row in named["rows"]} == {"Lima"}
        assert client.scan(index.id, count=True)["count"] == 500

    async def all_rows() -> list[str]:
        async with AsyncClient(fleet.url) as client:
            return [row["id"] async for row in client.scan_all(index.id, limit=60, order="desc")]

    assert found == asyncio.run(all_rows()) == expected(index, rows)[::-1]


def test_indexctl_shows_a_page_of_an_index(fleet: Fleet) -> None:
    index = fleet.index("city", "n")
    fleet.fill(index, some_rows(500))
    arguments = ["scan", f"travel.{index.name}", "--prefix", "Lima", "-n", "3", "--url", fleet.url]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("Lima") == 3
    assert "3 rows (any)" in shown.stdout
