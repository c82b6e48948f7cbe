"""Query parameters: a route refuses those that it does not know, and the client sends none such."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from coordinator.client.client import Client
from coordinator.http.app import build_app
from coordinator.http.reading import BoundedRoute
from tests.support.http_node import Answer, Node, Request, refusal
from tests.support.lone_shell import LoneShell

JSON = {"Content-Type": "application/json"}


def routes() -> list[BoundedRoute]:
    shell: Any = LoneShell()
    shell.examiner.close()
    found = [route for route in build_app(shell).routes if isinstance(route, APIRoute)]
    assert all(isinstance(route, BoundedRoute) for route in found)
    return [route for route in found if isinstance(route, BoundedRoute)]


def ask(*requests: tuple[str, str]) -> list[httpx.Response]:
    """Return the answers of a node to a method and a path each."""

    async def run() -> list[httpx.Response]:
        shell = LoneShell()
        try:
            async with shell.client() as http:
                return [await http.request(*one, headers=JSON) for one in requests]
        finally:
            shell.examiner.close()

    return asyncio.run(run())


def test_every_route_refuses_a_parameter_that_it_does_not_know_and_names_it() -> None:
    named = [
        (method, re.sub(r"\{[^}]*\}", "1", route.path), route)
        for route in routes()
        if route.path.startswith("/v1/")
        for method in route.methods
    ]
    assert {"GET", "PATCH", "DELETE", "POST"} <= {method for method, *_ in named}
    asked = [(method, f"{path}?at_most=1&dryrun=true") for method, path, _ in named]
    for (_, path, route), answer in zip(named, ask(*asked), strict=True):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "unknown_parameter"), path
        known = sorted(route.parameters)
        assert error["details"] == {"parameter": "at_most", "known": known}, path
        assert "'at_most'" in error["message"]


def test_a_refusal_tells_the_parameters_that_there_are() -> None:
    some, none = ask(("GET", "/v1/diff?since=1"), ("POST", "/v1/txn?dry_run=1"))
    takes = "the parameters here are at_least, consistency, from, to"
    assert takes in some.json()["error"]["message"]
    assert "there are none" in none.json()["error"]["message"]


def test_a_parameter_that_a_route_knows_is_none() -> None:
    paths = ("/v1/history?kind=index&kind=setting&to_ms=9&limit=1", "/v1/diff?from=0&to=0")
    paths = (*paths, "/v1/state?at_least=0&consistency=local", "/v1/indexes?bucket=b&name=n")
    assert [answer.status_code for answer in ask(*(("GET", path) for path in paths))] == [200] * 4


def test_probes_and_metrics_take_any_parameter() -> None:
    paths = ("/livez?verbose", "/readyz?verbose=1", "/metrics?module=x")
    assert [answer.status_code for answer in ask(*(("GET", path) for path in paths))] == [200] * 3


def test_a_name_that_is_long_or_strange_is_refused_as_well() -> None:
    long, strange = ask(("GET", f"/v1/state?{'x' * 5_000}=1"), ("GET", "/v1/state?%ff%00=1"))
    assert len(long.json()["error"]["details"]["parameter"]) == 100
    assert strange.json()["error"]["code"] == "unknown_parameter"


# -- the client ------------------------------------------------------------------------------------

FRESH: dict[str, Any] = {"consistency": "local", "at_least": 3}
FILTERS: dict[str, Any] = dict.fromkeys(
    ("kind", "bucket", "index", "indexer", "state", "key", "principal"), "1"
)

CALLS: dict[str, Callable[[Client], Any]] = {
    "list_indexes": lambda c: c.list_indexes("b", "n", **FRESH),
    "get_index": lambda c: c.get_index(1, **FRESH),
    "state": lambda c: c.state(cas=1, **FRESH),
    "state at": lambda c: c.state(at_ms=1, **FRESH),
    "history": lambda c: c.history(
        after=1, until=2, limit=3, from_ms=1, to_ms=2, request="r", txn="1-1", **FILTERS, **FRESH
    ),
    "diff": lambda c: c.diff(1, 2, **FRESH),
    "topology": lambda c: c.topology(**FRESH),
    "transactions": lambda c: c.transactions(5),
    "members": lambda c: c.members(),
    "get_config": lambda c: c.get_config("k", **FRESH),
    "list_config": lambda c: c.list_config(**FRESH),
    "indexers": lambda c: c.indexers(),
    "projectors": lambda c: c.projectors(),
    "remove_indexer": lambda c: c.remove_indexer(1),
    "remove_projector": lambda c: c.remove_projector(1),
    "list_rebalances": lambda c: c.list_rebalances(**FRESH),
    "rebalance": lambda c: c.rebalance(drain=[1], max_moves=2, dry_run=True),
    "named moves": lambda c: c.rebalance(
        moves=[{"index": 1, "slice": 0, "from": 1, "to": 2}], dry_run=True
    ),
    "cancel_rebalance": lambda c: c.cancel_rebalance(1),
    "list_rollbacks": lambda c: c.list_rollbacks(**FRESH),
    "stability": lambda c: c.stability("b"),
    "all stability": lambda c: c.stability(),
    "stability_history": lambda c: c.stability_history("b"),
    "restart": lambda c: c.restart("b", 2),
    "ready": lambda c: c.ready(),
    "topics": lambda c: c.topics(**FRESH),
    "subscriptions": lambda c: c.subscriptions("t"),
    "subscription": lambda c: c.subscription("t", "s"),
    "acknowledge": lambda c: c.acknowledge("t", "s", 1),
    "subscribe": lambda c: c.subscribe("t", "s"),
    "transact": lambda c: c.transact(then=[{"delete": {"key": "config/k"}}]),
    "scan": lambda c: c.scan(bucket="b", name="n"),
    "remove_topic": lambda c: c.remove_topic("t", with_subscriptions=True),
    "unsubscribe": lambda c: c.unsubscribe("t", "s"),
    "alter_index": lambda c: c.alter_index(1, {"name": "x"}, dry_run=True),
    "drop_index": lambda c: c.drop_index(1),
    "put_config": lambda c: c.put_config("k", 1),
    "undo": lambda c: c.undo(1, dry_run=True),
    "watch": lambda c: next(c.watch(1, **FILTERS)),
    "receive": lambda c: next(c.receive("t", "s")),
}


@pytest.fixture(scope="module")
def known() -> Callable[[str, str], frozenset[str]]:
    """Return the parameters of the first route of a method that fits a path."""
    table = routes()

    def of(method: str, path: str) -> frozenset[str]:
        fitting = (r for r in table if method in r.methods and r.path_regex.match(path))
        return next(fitting).parameters

    return of


def answered(request: Request) -> Answer:
    """A stream is refused: it would be asked for again and again."""
    if request.path.endswith("/watch"):
        return refusal(400, "invalid_request")
    return Answer(200, {"cas": 9, "members": []})


@pytest.mark.thorough
@pytest.mark.parametrize("name", CALLS)
def test_the_client_sends_no_parameter_that_a_route_does_not_know(
    name: str, known: Callable[[str, str], frozenset[str]]
) -> None:
    node = Node(answered)
    try:
        with Client(node.url, deadline_s=1.0) as client:
            client.put_config("k", 0)  # From now on it asks to see this.
            asked = len(node.requests)
            try:
                CALLS[name](client)
            except (AttributeError, TypeError):
                raise
            except Exception:  # The answer says nothing; what was sent is what counts.
                assert len(node.requests) > asked
        sent = [one for one in node.requests if one.path != "/v1/members" or name == "members"]
        assert sent
        for request in node.requests:
            assert request.query.keys() <= known(request.method, request.path), request
    finally:
        node.stop()
