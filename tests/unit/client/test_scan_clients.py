"""How `indexctl scan` and the clients ask for scans, against a node that writes it down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator.cli.main import app
from coordinator.client.client import AsyncClient, Client
from coordinator.client.errors import CoordinatorError
from coordinator.client.scanning import LINES
from tests.support.http_node import Answer, Node, Request, members, redirect_to, refusal

INDEX = {"id": "7", "bucket": "travel", "name": "by_city", "expressions": ["city", "zip DESC"]}
ROWS: list[dict[str, Any]] = [
    {"id": "d1", "key": ["Paris", 75]},
    {"id": "d2", "key": ["75", None], "missing": [1]},
]
ANY = {"mode": "any"}


class Scanned:
    """A node with one index, of which it answers `pages`."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.pages: list[Answer] = []
        self.streams: list[str] = []
        """What each stream brings; without one, the node knows none."""

    def __call__(self, request: Request) -> Answer:
        if request.path == "/v1/scan":
            body = json.loads(request.body)
            self.asked.append(body)
            if body.get("stream"):
                if not self.streams:
                    return refusal(400, "invalid_request")
                return Answer(200, self.streams.pop(0), {"Content-Type": LINES})
            if self.pages:
                return self.pages.pop(0)
            if body.get("count"):
                return Answer(200, {"index": "7", "count": 3, "consistency": ANY, "cas": 1})
            return page(ROWS)
        if request.path == "/v1/indexes":
            return Answer(200, {"indexes": [INDEX, {**INDEX, "id": "8", "name": "a.b"}], "cas": 1})
        return Answer(200, {"index": INDEX, "cas": 1})


def page(rows: list[dict[str, Any]], after: str | None = None) -> Answer:
    return Answer(200, {"index": "7", "rows": rows, "next": after, "consistency": ANY, "cas": 1})


def line(rows: list[dict[str, Any]], after: str | None = None) -> str:
    return json.dumps(page(rows, after).body, ensure_ascii=False) + "\n"


@pytest.fixture
def scanned() -> Scanned:
    return Scanned()


@pytest.fixture
def node(scanned: Scanned) -> Iterator[Node]:
    made = Node(scanned)
    yield made
    made.stop()


def run(node: Node, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["scan", *arguments, "--url", node.url])


@pytest.mark.parametrize(
    ("options", "form"),
    [
        ([], {}),
        (["--equals", "Paris", "--equals", "75"], {"equals": ["Paris", 75]}),
        (["--equals", '"75"', "--equals", "null"], {"equals": ["75", None]}),
        (["--prefix", "Paris"], {"prefix": ["Paris"]}),
        (["--from", "A", "--from", "1", "--to", "B"], {"range": {"low": ["A", 1], "high": ["B"]}}),
        (["--before", "B"], {"range": {"high": ["B"], "include_high": False}}),
        (["--starts-with", "Pa"], {"starts_with": ["Pa"]}),
        (["--starts-with", "1", "--starts-with", "75"], {"starts_with": [1, "75"]}),
    ],
)
def test_values_are_json_or_strings(
    node: Node, scanned: Scanned, options: list[str], form: dict[str, Any]
) -> None:
    assert run(node, "7", *options).exit_code == 0
    assert scanned.asked[0].get("scan", {}) == form


@pytest.mark.parametrize(
    "options",
    [
        ["--equals", "a", "--prefix", "b"],
        ["--to", "a", "--before", "b"],
        ["--order", "up"],
        ["--all", "--limit", "5"],
        ["--all", "--count"],
        ["--consistency", "at-least"],
        ["--consistency", "any", "--at-least", "{}"],
        ["--at-least", "no/such/file"],
        ["--at-least", '{"foo": 1}'],
        ["--at-least", '{"7": [1]}'],
        ["--at-least", '{"vbuckets": 7}'],
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(node: Node, options: list[str]) -> None:
    assert run(node, "7", *options).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "index"),
    [(["7"], "7"), (["travel.by_city"], "7"), (["by_city", "-b", "travel"], "7")],
)
def test_an_index_is_named_by_id_or_bucket_and_name(
    node: Node, scanned: Scanned, arguments: list[str], index: str
) -> None:
    assert run(node, *arguments).exit_code == 0
    assert scanned.asked[0]["index"] == index


def test_a_name_with_a_dot_is_found(node: Node, scanned: Scanned) -> None:
    assert run(node, "travel.a.b").exit_code == 0
    assert scanned.asked[0]["index"] == "8"
    assert run(node, "travel.b").exit_code == 3


def test_the_table_tells_a_string_from_a_number_and_null_from_nothing(node: Node) -> None:
    shown = run(node, "7").stdout.split("\n")
    assert shown[1].split() == ["city", "zip", "DESC", "document"]
    assert shown[3].split() == ["Paris", "75", "d1"]
    assert shown[4].split() == ['"75"', "-", "d2"]


def test_the_vector_may_be_given_as_json_or_in_a_file(
    node: Node, scanned: Scanned, tmp_path: Any
) -> None:
    file = tmp_path / "vector.json"
    file.write_text('{"7": [1, 2]}')
    assert run(node, "7", "--at-least", str(file)).exit_code == 0
    assert run(node, "7", "--at-least", '{"vbuckets": {"7": [1, 2]}}').exit_code == 0
    wanted = {"at_least": {"vbuckets": {"7": [1, 2]}}}
    assert [asked["consistency"] for asked in scanned.asked] == [wanted, wanted]


def test_a_timestamp_may_be_required_to_have_a_vector(node: Node, scanned: Scanned) -> None:
    options = ("--consistency", "consistent", "--at-least", '{"7": [1, 2]}')
    assert run(node, "7", *options).exit_code == 0
    wanted = {"consistent": 0, "at_least": {"vbuckets": {"7": [1, 2]}}}
    assert [asked["consistency"] for asked in scanned.asked] == [wanted]


def test_all_pages_are_rows_of_json(node: Node, scanned: Scanned) -> None:
    scanned.pages = [page(ROWS[:1], "c1"), page(ROWS[1:])]
    lines = run(node, "7", "--all", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == ROWS
    assert [asked.get("after") for asked in scanned.asked] == [None, "c1", "c1"]


MANY = [{"id": f"d{n}\u2028", "key": [n]} for n in range(7)]
FAILED = json.dumps(refusal(503, "index_recovering").body) + "\n"


@pytest.mark.parametrize(
    ("streams", "asked"),
    [
        ((line(MANY[1:3], "c3") + line(MANY[3:]),), [(None, False), ("c1", True)]),
        (
            (line(MANY[1:3], "c3") + FAILED, line(MANY[4:])),
            [(None, False), ("c1", True), ("c3", False), ("c4", True)],
        ),
        (
            (line(MANY[1:3], "c3") + line(MANY[3:])[:-9], line(MANY[4:])),
            [(None, False), ("c1", True), ("c3", False), ("c4", True)],
        ),
        (
            ('{"next": null}\n' + line(MANY[3:]), "", line(MANY[5:])),
            [(None, False), ("c1", True), ("c1", False), ("c3", True), ("c3", False), ("c5", True)],
        ),
    ],
    ids=["whole", "an error", "cut off", "nonsense"],
)
def test_a_scan_of_all_goes_on_where_a_stream_has_ended(
    node: Node, scanned: Scanned, streams: tuple[str, ...], asked: list[tuple[str | None, bool]]
) -> None:
    """Each row comes once, in order, and what a stream could not bring an ordinary call does."""
    ordinary = [after for after, is_stream in asked if not is_stream]
    ends = [1, *(int(str(after)[1:]) for after, is_stream in asked[3:] if is_stream)]
    begins = [0, *(int(str(after)[1:]) for after in ordinary[1:])]

    def answers() -> list[Answer]:
        pairs = zip(begins, ends, strict=True)
        return [page(MANY[begin:end], f"c{end}") for begin, end in pairs]

    scanned.pages, scanned.streams = answers(), [*streams]
    with Client(node.url) as client:
        assert [*client.scan_all(7, limit=2)] == MANY
    assert [(one.get("after"), one.get("stream", False)) for one in scanned.asked] == asked
    assert {one["limit"] for one in scanned.asked} == {2}

    async def found() -> list[Any]:
        async with AsyncClient(node.url) as awaited:
            return [row async for row in awaited.scan_all(7, limit=2)]

    scanned.pages, scanned.streams = answers(), [*streams]
    assert asyncio.run(found()) == MANY


def test_a_count_is_not_all_rows(node: Node, scanned: Scanned) -> None:
    with Client(node.url) as client, pytest.raises(CoordinatorError) as caught:
        next(client.scan_all(7, count=True))
    assert (caught.value.code, scanned.asked) == ("invalid_request", [])


def test_a_refusal_in_a_stream_is_told_if_it_lasts(node: Node, scanned: Scanned) -> None:
    scanned.pages = [page(MANY[:1], "c1"), refusal(410, "timestamp_gone")]
    scanned.streams = [line(MANY[1:2], "c2") + FAILED]
    with Client(node.url) as client:
        rows = client.scan_all(7)
        assert [*islice(rows, 2)] == MANY[:2]
        with pytest.raises(CoordinatorError) as caught:
            next(rows)
    assert caught.value.code == "timestamp_gone"


def test_a_count_is_a_line(node: Node) -> None:
    assert run(node, "7", "--count").stdout == "3 entries (any)\n"


def test_more_rows_are_pointed_out(node: Node, scanned: Scanned) -> None:
    scanned.pages = [page(ROWS, "c1")]
    assert "--after c1" in run(node, "7").stderr


def test_an_index_that_is_being_built_is_exit_code_5(node: Node, scanned: Scanned) -> None:
    error = {"code": "index_building", "message": "it is being built", "details": {}}
    scanned.pages = [Answer(503, {"error": error})]
    assert run(node, "7").exit_code == 5


def test_a_scan_does_not_go_to_the_master(scanned: Scanned, node: Node) -> None:
    master = Node(lambda request: Answer(500))
    asked = Node(
        lambda request: (
            members(node.url)
            if request.path == "/v1/members"
            else scanned(request)
            if request.path == "/v1/scan"
            else redirect_to(master.url)(request)
        )
    )
    try:
        with Client(asked.url) as client:
            assert client.scan(7)["rows"] == ROWS
    finally:
        asked.stop()
        master.stop()
    assert master.requests == []


def test_a_slice_that_is_away_is_tried_again(node: Node, scanned: Scanned) -> None:
    error = {"code": "slice_unavailable", "message": "away", "details": {}}
    scanned.pages = [Answer(503, {"error": error})]
    with Client(node.url) as client:
        assert client.scan(7)["rows"] == ROWS
    assert len(scanned.asked) == 2
