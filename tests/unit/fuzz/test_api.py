"""The HTTP API of a node on any request: a real node and application, in this process.

Requests come from the OpenAPI document, as it wants them and as it does not (schemathesis), and
from nowhere at all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import assume
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from coordinator.codec import encode
from coordinator.core.catalog.state import evolve
from coordinator.core.keys.scans import Cursor
from coordinator.core.model.entities import Bucket
from coordinator.core.model.records import Mutation
from coordinator.http.errors import STATUS
from tests.support.fuzzing import CALL_S_MAX, INTS, TEXTS, VALUES, holds
from tests.support.hostile import EXPRESSIONS
from tests.support.indexes import make_index
from tests.support.lone_node import HOST, INDEXER, LoneNode
from tests.support.lone_shell import LoneShell

pytestmark = pytest.mark.fuzz

DOCS = Path(__file__).parents[3] / "docs" / "http-api.md"
URL = f"http://{HOST}"
JSON = {"Content-Type": "application/json"}
PORTION = 10

FAULTS = {503, 504}
"""What may be answered besides a success and a refusal: it goes on, here or elsewhere."""

SPECIAL = {"no_stability_timestamp": 404}
"""Codes that have another status on some route."""


class Service:
    """One node and a client of it, over many requests; another node once that one has ended."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.shell: LoneShell
        self.http: httpx.AsyncClient
        self._begin()

    def _begin(self) -> None:
        self.shell = LoneShell(self.node())
        self.http = self.shell.client()

    def node(self) -> LoneNode:
        return LoneNode(serves=True).start().run(2_000)

    def send(self, request: httpx.Request) -> httpx.Response:
        return self.loop.run_until_complete(self.http.send(request))

    def close(self) -> None:
        self.loop.run_until_complete(self.http.aclose())
        self.shell.examiner.close()
        self.loop.close()

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Return what is answered, which keeps to the laws of the API."""
        began = time.thread_time()
        response = self.send(request)
        taken = time.thread_time() - began
        assert taken < 4 * CALL_S_MAX, f"it took {taken:.2f} s"
        assert self.shell.lone.halted is None, self.shell.lone.halted
        _is_lawful(response)
        return response


def _is_lawful(response: httpx.Response) -> None:
    """No fault that is not documented; every error has the one shape, and a code of its own."""
    status, kind = response.status_code, response.headers.get("content-type", "")
    if status < 400 and status != 307:
        assert status in (200, 201), response.text
        if kind.startswith("application/json"):
            json.loads(response.text, parse_constant=pytest.fail)
        return
    if response.request.url.path == "/readyz":
        return
    assert kind == "application/json", (status, kind, response.text[:200])
    body = response.json()
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) == {"code", "message", "details"}, error
    assert isinstance(error["message"], str)
    assert error["message"]
    assert len(response.content) < 100_000
    assert error["code"] in STATUS, error
    assert status in (STATUS[error["code"]], SPECIAL.get(error["code"])), error
    assert status < 500 or status in FAULTS, error
    assert f"`{error['code']}`" in _documented(), error


@cache
def _documented() -> str:
    return DOCS.read_text()


def test_every_code_of_the_api_is_documented() -> None:
    assert [code for code in STATUS if f"`{code}`" not in _documented()] == []


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [2**63, 10**19 - 1])
def test_a_number_that_no_index_can_have_is_of_none(service: Service, number: int) -> None:
    """With a key a command is written down to be compared, and a long has 63 bits."""
    body = {"indexes": [str(number)]}
    headers = {"Idempotency-Key": "k"}
    request = httpx.Request("POST", f"{URL}/v1/indexes/build", json=body, headers=headers)
    response = service.answer(request)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "index_not_found")


# -- as the document says, and against it ---------------------------------------------------------


@cache
def operations() -> dict[str, Any]:
    made = Service()
    document = made.answer(httpx.Request("GET", f"{URL}/openapi.json")).json()
    made.close()
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    return {operation.ok().label: operation.ok() for operation in found}


OPERATIONS = [
    *("POST /v1/indexes", "GET /v1/indexes", "DELETE /v1/indexes/{index_id}"),
    "PATCH /v1/indexes/{index_id}",
    *(
        "GET /v1/indexes/{index_id}",
        "POST /v1/indexes/build",
        "GET /v1/config",
        "POST /v1/txn",
        "POST /v1/undo",
    ),
    *("GET /v1/config/{key}", "PUT /v1/config/{key}", "DELETE /v1/config/{key}"),
    *("GET /v1/state", "GET /v1/topology", "GET /v1/transactions", "GET /v1/members"),
    *("POST /v1/members/step-down", "POST /v1/members/reform", "POST /v1/members/{node}/leave"),
    *("GET /v1/indexers", "GET /v1/projectors", "POST /v1/scan", "GET /v1/stability"),
    "GET /v1/rollbacks",
    *("DELETE /v1/indexers/{indexer}", "DELETE /v1/projectors/{projector}"),
    *("POST /v1/rebalance", "GET /v1/rebalance", "DELETE /v1/rebalance/{rebalance_id}"),
    *("GET /v1/stability/{bucket}", "GET /v1/restart/{bucket}", "GET /livez", "GET /readyz"),
    *("GET /metrics", "GET /v1/history", "GET /v1/diff", "GET /v1/watch"),
    "GET /v1/stability/{bucket}/history",
    *("POST /v1/buckets", "GET /v1/buckets"),
    *("GET /v1/buckets/{bucket}", "DELETE /v1/buckets/{bucket}"),
    *("POST /v1/topics", "GET /v1/topics", "GET /v1/topics/{topic}", "DELETE /v1/topics/{topic}"),
    "POST /v1/topics/{topic}/subscriptions",
    "GET /v1/topics/{topic}/subscriptions",
    "GET /v1/topics/{topic}/subscriptions/{subscriber}",
    "DELETE /v1/topics/{topic}/subscriptions/{subscriber}",
    "POST /v1/topics/{topic}/subscriptions/{subscriber}/ack",
    "GET /v1/topics/{topic}/subscriptions/{subscriber}/watch",
]


@pytest.mark.thorough
def test_every_route_of_the_document_is_tried() -> None:
    assert sorted(operations()) == sorted(OPERATIONS)


def _request(case: Case) -> httpx.Request:
    """Return a case as it goes over the wire."""
    given = case.as_transport_kwargs(base_url=URL)
    given.pop("timeout", None)
    prepared = requests.Request(**given).prepare()
    # The client sends no longer ones; a node answers them as it answers any line that is too long.
    assume(len(prepared.url or URL) < URL_LENGTH_MAX)
    headers = {k: v for k, v in prepared.headers.items() if k.lower() not in FRAMING}
    if prepared.method == "POST":
        headers = {**JSON, **headers}  # Also where the document knows of no body.
    return httpx.Request(
        prepared.method or "GET",
        httpx.URL(prepared.url or URL),
        headers=[(_raw(name), _raw(value)) for name, value in headers.items()],
        content=_raw(prepared.body or b""),
    )


URL_LENGTH_MAX = 60_000
FRAMING = {"content-length", "transfer-encoding", "accept-encoding", "connection"}


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_route_keeps_to_the_laws(service: Service, name: str) -> None:
    operation = operations()[name]
    cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))

    def law(case: Case) -> None:
        response = service.answer(_request(case))
        if response.status_code < 300:
            # As the document says; errors have one schema, which the laws above spell out.
            operation.validate_response(_known(case, response))

    holds(law, cases, portion=PORTION)


def _known(case: Case, response: httpx.Response) -> Any:
    return schemathesis.Response(
        status_code=response.status_code,
        headers={name: [value] for name, value in response.headers.items()},
        content=response.content,
        request=requests.Request(case.method, URL).prepare(),
        elapsed=0.0,
        verify=False,
        http_version="1.1",
    )


# -- from nowhere ---------------------------------------------------------------------------------

SEGMENTS = st.sampled_from(
    [
        *("v1", "indexes", "config", "members", "build", "leave", "scan", "stability", "restart"),
        *("rollbacks", "rebalance"),
        *("1", "0", "-1", "9" * 30, "9" * 5_000, "a", "..", "%2e%2e", "%00", "%ff", "%ED%A0%80"),
        *("", ".", "step-down", "openapi.json", "docs", "metrics", "é", "a%2Fb", "timestamps"),
    ]
)
PATHS = st.lists(SEGMENTS, max_size=4).map(lambda parts: "/" + "/".join(parts))
ROUTES = st.sampled_from([name.split()[1].replace("{", "").replace("}", "") for name in OPERATIONS])
QUERIES = st.dictionaries(
    st.sampled_from(["consistency", "at_least", "limit", "bucket", "name", "x"]),
    TEXTS.map(lambda text: text.encode("utf-8", "replace").decode()) | INTS.map(str),
    max_size=3,
)
HEADERS = st.dictionaries(
    st.sampled_from(["idempotency-key", "if-match", "x-principal", "content-type", "origin"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=12)
    | st.sampled_from(["application/json", "9" * 30, "9" * 5_000, "x" * 5_000, '"1"', URL, "null"]),
    max_size=3,
)
BODIES = st.one_of(
    st.binary(max_size=30),
    VALUES.map(json.dumps).map(str.encode),
    st.builds(
        lambda opening, number: opening * number,
        st.sampled_from([b"[", b'{"a":', b'"', b"9"]),
        st.sampled_from([1, 64, 65, 949, 5_000, 70_000]),
    ),
)


@st.composite
def strays(draw: st.DrawFn) -> httpx.Request:
    method = draw(st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]))
    url = httpx.URL(URL + draw(PATHS | ROUTES), params=draw(QUERIES))
    headers = {**(JSON if draw(st.booleans()) else {}), **draw(HEADERS)}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return httpx.Request(method, url, headers=raw, content=draw(BODIES))


DEEP = b"[" * 949 + b"]" * 949
STRAYS = [
    httpx.Request("PUT", f"{URL}/v1/config/k", content=DEEP, headers={"idempotency-key": "1"}),
    httpx.Request("PUT", f"{URL}/v1/config/k", content=b"9" * 5_000),
    httpx.Request("PUT", f"{URL}/v1/config/k", content=b'"\\ud800"'),
    httpx.Request("POST", f"{URL}/v1/scan", content=b"[" * 200_000, headers=JSON),
    httpx.Request("POST", f"{URL}/v1/members/{'9' * 30}/leave", headers=JSON),
    httpx.Request("POST", f"{URL}/v1/members/-5/leave", headers=JSON),
    httpx.Request("GET", f"{URL}/v1/indexes/{'9' * 4_500}"),
    httpx.Request("GET", f"{URL}/v1/indexes?at_least={'9' * 30}"),
    httpx.Request("GET", f"{URL}/v1/indexes?bucket=%00&name=%ff"),
    httpx.Request("GET", f"{URL}/v1/config/%ff%fe"),
    httpx.Request("GET", f"{URL}/v1/status/"),
    httpx.Request("POST", f"{URL}/v1/indexes/", headers=JSON),
    httpx.Request("PUT", f"{URL}/v1/config/k", content=b"1", headers={"if-match": "9" * 4_000}),
    httpx.Request(
        "POST",
        f"{URL}/v1/indexes",
        json={"name": "i", "bucket": "b", "expressions": ["ELSE"]},
    ),
]


@pytest.mark.thorough
def test_strays_keep_to_the_laws(service: Service) -> None:
    def law(request: httpx.Request) -> None:
        response = service.send(request)
        if request.method not in ("HEAD", "OPTIONS"):
            _is_lawful(response)
        assert service.shell.lone.halted is None

    holds(law, strays(), STRAYS, portion=PORTION)


# -- commands that make sense, mostly -------------------------------------------------------------

IDS = st.sampled_from(["r1", "r2", "", "0190a5f0-0000-7000-8000-000000000000"])
TERMS = st.fixed_dictionaries(
    {}, optional={"idempotency-key": IDS, "if-match": st.sampled_from(["0", "3", "99"])}
)
NAMES = st.sampled_from(["i", "j", "#primary", "b", "bad name"])
COUNTS = st.integers(-1, 4) | INTS


DEFINITIONS: dict[str, st.SearchStrategy[Any]] = {
    "expressions": st.lists(EXPRESSIONS.filter(str.isprintable), max_size=3),
    "where": st.none() | EXPRESSIONS,
    "slices": COUNTS,
    "replicas": st.just(0) | COUNTS,
    "nodes": st.lists(COUNTS, max_size=2),
    "partitioning": st.sampled_from(["hash", "range", "x"]),
    "bounds": st.lists(st.lists(VALUES, max_size=2), max_size=3),
}


@st.composite
def commands(draw: st.DrawFn) -> httpx.Request:
    kinds = ["create", "create", "alter", "alter", "drop", "build", "put", "delete"]
    kind = draw(st.sampled_from(kinds))
    headers = {**JSON, **draw(TERMS)}
    index = draw(st.integers(0, 6).map(lambda n: (1 << 40) + 1024 * n) | INTS)
    if kind == "create":
        body: dict[str, Any] = {"name": draw(NAMES), "bucket": draw(NAMES)}
        optional = {**DEFINITIONS, "primary": st.booleans(), "if_not_exists": st.booleans()}
        body |= draw(st.just({"expressions": ["a"]}) | st.fixed_dictionaries({}, optional=optional))
        return _json("POST", "/v1/indexes", body, headers)
    if kind == "alter":
        body = draw(st.fixed_dictionaries({}, optional={**DEFINITIONS, "name": NAMES}))
        dry = draw(st.sampled_from(["", "?dry_run=true"]))
        return _json("PATCH", f"/v1/indexes/{index}{dry}", body, headers)
    if kind == "build":
        some = {"indexes": [str(index)], "bucket": draw(NAMES), "names": [draw(NAMES)]}
        chosen = draw(st.sets(st.sampled_from(sorted(some)), max_size=2))
        return _json("POST", "/v1/indexes/build", {n: some[n] for n in chosen}, headers)
    if kind == "drop":
        return httpx.Request("DELETE", f"{URL}/v1/indexes/{index}", headers=headers)
    key = draw(st.sampled_from(["k", "timestamps", "timestamps/b", "a/b"]))
    if kind == "put":
        return _json("PUT", f"/v1/config/{key}", draw(VALUES), headers)
    return httpx.Request("DELETE", f"{URL}/v1/config/{key}", headers=headers)


def _json(method: str, path: str, body: Any, headers: dict[str, str]) -> httpx.Request:
    return httpx.Request(method, URL + path, content=json.dumps(body).encode(), headers=headers)


def test_commands_keep_to_the_laws_and_leave_a_state_that_can_be_read(service: Service) -> None:
    made = httpx.Request("GET", f"{URL}/v1/state")

    def law(request: httpx.Request) -> None:
        service.answer(request)
        assert service.answer(made).status_code == 200

    example = _json("POST", "/v1/indexes", {"name": "i", "bucket": "b", "primary": True}, JSON)
    assert service.answer(example).status_code in (201, 409)
    holds(law, commands(), portion=PORTION)


# -- scans ----------------------------------------------------------------------------------------


class ScanService(Service):
    """A node that holds an index which takes scans; its indexer is away."""

    def node(self) -> LoneNode:
        one = super().node()
        index = make_index(
            1 << 40,
            *(INDEXER, 2),
            name="i",
            bucket="b",
            expressions=("a", "c DESC"),
            state="maintenance",
        )
        held = (Bucket("b", 64), index)
        changes = [(Mutation("x", e.key, encode(e), e), 10 + n) for n, e in enumerate(held)]
        one.node.follower.state = evolve(one.node.state, changes)
        return one


@st.composite
def scans(draw: st.DrawFn) -> httpx.Request:
    body: dict[str, Any] = {"bucket": "b", "name": "i"}
    if draw(st.integers(0, 9)) == 0:
        body = {"index": draw(st.sampled_from([1 << 40, str(1 << 40), "x", -1, None]))}
    form = draw(st.sampled_from(["equals", "prefix", "range", "starts_with"]))
    ends = {"low": VALUES, "high": VALUES, "include_low": VALUES, "include_high": st.booleans()}
    bounds = VALUES | st.lists(VALUES, max_size=3) | st.fixed_dictionaries({}, optional=ends)
    places = st.dictionaries(INTS.map(str), VALUES | st.tuples(INTS, INTS), max_size=3)
    vector = VALUES | st.builds(dict, vbuckets=places)
    fresh = st.fixed_dictionaries({}, optional={"at_least": vector, "consistent": VALUES})
    optional = {
        "scan": st.builds(lambda value: {form: value}, bounds),
        "consistency": st.sampled_from(["any", "consistent"]) | fresh | VALUES,
        "limit": VALUES,
        "order": st.sampled_from(["asc", "desc"]) | VALUES,
        "count": st.booleans() | VALUES,
        "after": st.binary(max_size=40).map(lambda raw: str(Cursor(7, raw[:8].ljust(8), 1, 1, raw)))
        | TEXTS,
    }
    body |= draw(st.fixed_dictionaries({}, optional=optional))
    body["timeout_ms"] = 1
    return httpx.Request("POST", f"{URL}/v1/scan", content=json.dumps(body).encode(), headers=JSON)


@pytest.fixture(scope="module")
def scanning() -> Iterator[ScanService]:
    made = ScanService()
    yield made
    made.close()


def test_scans_keep_to_the_laws(scanning: ScanService) -> None:
    answer = scanning.answer(
        httpx.Request("POST", f"{URL}/v1/scan", json={"bucket": "b", "name": "i", "timeout_ms": 1})
    )
    assert answer.status_code in FAULTS, answer.text  # There is an index, and nobody to ask.
    holds(scanning.answer, scans(), portion=PORTION)
