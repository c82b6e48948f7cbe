"""The clients against real HTTP servers on loopback: redirects, retries, failover, errors."""

import asyncio
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from coordinator.client import client as client_module
from coordinator.client.client import AsyncClient, Client, default_urls
from coordinator.client.errors import (
    ConflictError,
    CoordinatorError,
    NotFoundError,
    UnavailableError,
)
from coordinator.client.request_ids import new_request_id
from tests.support.http_node import Answer, Node, Request, members, redirect_to, refusal, unused_url


@pytest.fixture
def serve() -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def start(script: Callable[[Request], Answer]) -> Node:
        nodes.append(Node(script))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


@pytest.fixture
def closed_url() -> str:
    return unused_url()


def always(answer: Answer) -> Callable[[Request], Answer]:
    return lambda request: members() if request.path == "/v1/members" else answer


def in_turn(*answers: Answer) -> Callable[[Request], Answer]:
    """Answer these one after the other, then the last for ever."""
    left = list(answers)

    def script(request: Request) -> Answer:
        if request.path == "/v1/members":
            return members()
        return left.pop(0) if len(left) > 1 else left[0]

    return script


Calls = Callable[..., list[Any]]


def run_sync(url: Any, *calls: Callable[[Any], Any], **options: Any) -> list[Any]:
    with Client(url, **options) as client:
        return [call(client) for call in calls]


def run_async(url: Any, *calls: Callable[[Any], Any], **options: Any) -> list[Any]:
    async def all_calls() -> list[Any]:
        async with AsyncClient(url, **options) as client:
            return [await call(client) for call in calls]

    return asyncio.run(all_calls())


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Calls:
    """Make calls one after the other with a client of one kind, and return the answers."""
    return request.param


CREATED = Answer(201, {"index": {"id": "7", "name": "a", "bucket": "b"}, "cas": 9, "txn": "1-2"})
CREATE = {"name": "a", "bucket": "b", "expressions": ["c"]}


def create(client: Any) -> Any:
    return client.create_index(CREATE)


def test_a_write_follows_the_redirect_with_its_id_and_body_and_then_knows_the_master(serve, run):
    master = serve(always(CREATED))
    replica = serve(redirect_to(master.url))
    first, second = run(replica.url, create, create)
    assert first == second == CREATED.body
    assert len(replica.requests) == 1
    assert len(master.requests) == 2
    assert replica.keys()[0] == master.keys()[0] != master.keys()[1]
    assert json.loads(master.requests[0].body) == CREATE
    assert master.requests[0].headers["host"] == urlsplit(master.url).netloc


@pytest.mark.thorough
@pytest.mark.parametrize(
    "trouble",
    [
        refusal(503, "no_master"),
        refusal(503, "unavailable"),
        refusal(504, "timeout"),
        refusal(307, "not_master"),
        Answer(502, "<html>bad gateway</html>"),
        Answer(200, None),
    ],
    ids=["no_master", "unavailable", "timeout", "not_master", "proxy", "closed"],
)
def test_a_transient_fault_is_retried_with_the_same_id(serve, run, trouble):
    node = serve(in_turn(trouble, trouble, CREATED))
    assert run(node.url, create) == [CREATED.body]
    assert len(node.requests) == 3
    assert len(set(node.keys())) == 1
    assert uuid.UUID(node.keys()[0]).version == 7


def test_a_given_request_id_is_sent(serve, run):
    node = serve(always(CREATED))
    run(node.url, lambda client: client.create_index(CREATE, request_id="mine"))
    assert node.keys() == ["mine"]


def test_at_the_deadline_the_last_reason_is_raised(serve, run):
    node = serve(always(refusal(503, "no_master", since_s=4)))
    start = time.monotonic()
    with pytest.raises(
        UnavailableError, match=r"because of no_master \(tried for \d+\.\d s\) "
    ) as caught:
        run(node.url, create, deadline_s=0.5)
    assert time.monotonic() - start < 5
    assert caught.value.code == "no_master"
    assert caught.value.details["since_s"] == 4
    assert caught.value.details["requests"] > 1
    assert len(set(node.keys())) == 1


@pytest.mark.thorough
def test_a_reason_that_a_node_gave_stands_first_though_the_last_try_was_cut_short(serve, run):
    """As with a CAS still to come: a node says so after a time, and the next try has less."""
    release = threading.Event()

    def first_says_why(request: Request) -> Answer:
        if len(node.requests) > 1:
            release.wait(30)
        return refusal(504, "timeout")

    node = serve(first_says_why)
    try:
        with pytest.raises(UnavailableError) as caught:
            run(node.url, lambda client: client.state(cas=99_999), deadline_s=0.5)
    finally:
        release.set()
    assert re.fullmatch(r"because of timeout \(tried for \d+\.\d s\)", caught.value.message)


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "index_exists", ConflictError),
        (412, "cas_mismatch", ConflictError),
        (404, "config_not_found", NotFoundError),
        (422, "invalid_request", CoordinatorError),
        (422, "request_mismatch", CoordinatorError),
        (410, "request_expired", CoordinatorError),
        (409, "indexer_refused", CoordinatorError),
        (409, "placement_impossible", CoordinatorError),
        (413, "value_too_large", CoordinatorError),
    ],
)
def test_a_refusal_is_raised_at_once_with_its_details(serve, run, status, code, kind):
    node = serve(always(refusal(status, code, expected=1, actual=2)))
    with pytest.raises(CoordinatorError) as caught:
        run(node.url, create)
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert caught.value.details == {"expected": 1, "actual": 2}
    assert len(node.requests) == 1


def test_where_nothing_listens_the_first_contact_deadline_counts(run, closed_url):
    start = time.monotonic()
    with pytest.raises(UnavailableError) as caught:
        run(closed_url, create, deadline_s=60, first_contact_s=0.2)
    assert time.monotonic() - start < 10
    assert caught.value.code == "unreachable"
    assert caught.value.message == f"no coordinator answers at {closed_url}"


def test_when_a_node_dies_the_members_it_named_are_asked(serve, run):
    second = serve(always(CREATED))
    named = members("http://127.0.0.1:1", urlsplit(second.url).netloc)

    def script(request: Request) -> Answer:
        answer = named if request.path == "/v1/members" else CREATED
        return Answer(answer.status, answer.body, {"Connection": "close"})

    first = Node(script)

    def stop(client: Any) -> Any:
        first.stop()
        return create(client)

    assert run(first.url, create, stop) == [CREATED.body] * 2
    assert len(second.requests) == 1


@pytest.mark.thorough
def test_a_hung_node_does_not_use_up_the_deadline(serve, run):
    release = threading.Event()

    def hang(request: Request) -> Answer:
        release.wait(30)
        return CREATED

    hung, healthy = serve(hang), serve(always(CREATED))
    try:
        assert run([hung.url, healthy.url], create, deadline_s=1.0) == [CREATED.body]
        assert hung.keys() == healthy.keys()
    finally:
        release.set()


def test_a_node_that_says_who_is_a_member_must_be_quick_about_it(serve, run, monkeypatch):
    """Whoever looks at a cluster in trouble does not wait for the node that is the trouble."""
    monkeypatch.setattr(client_module, "MEMBERS", replace(client_module.MEMBERS, limit_s=0.2))
    release = threading.Event()

    def hang(_: Request) -> Answer:
        release.wait(30)
        return members()

    hung, healthy = serve(hang), serve(always(members()))
    try:
        began = time.monotonic()
        run([hung.url, healthy.url], lambda client: client.members(), deadline_s=20.0)
        assert time.monotonic() - began < 5
    finally:
        release.set()


def test_a_node_without_a_master_is_passed_over(serve, run):
    lonely, healthy = serve(always(refusal(503, "no_master"))), serve(always(CREATED))
    assert run([lonely.url, healthy.url], create) == [CREATED.body]
    assert len(lonely.requests) == 1


def test_a_redirect_to_a_dead_master_is_retried_until_there_is_a_new_one(serve, run, closed_url):
    gone = Answer(307, {}, {"Location": f"{closed_url}/v1/indexes"})
    node = serve(in_turn(gone, gone, CREATED))
    assert run(node.url, create) == [CREATED.body]
    assert len(set(node.keys())) == 1


@pytest.mark.thorough
def test_nodes_that_redirect_in_a_circle_end_as_no_master(serve, run):
    node = serve(always(refusal(500, "unused")))
    node.script = redirect_to(node.url)
    with pytest.raises(UnavailableError, match="redirect") as caught:
        run(node.url, create, deadline_s=0.3)
    assert caught.value.code == "no_master"


@pytest.mark.parametrize("body", ["<html>hello</html>", [1], "nonsense"])
def test_an_answer_that_is_not_the_apis_is_no_success(serve, run, body):
    node = serve(always(Answer(200, body)))
    with pytest.raises(CoordinatorError) as caught:
        run(node.url, lambda client: client.indexers())
    assert caught.value.code == "bad_response"


@pytest.mark.parametrize(
    "answer",
    [
        refusal(500, "internal"),
        Answer(500, "<html>a proxy</html>"),
        Answer(408, "<html>a proxy</html>"),
        Answer(200, "<html>a proxy</html>"),
        Answer(200, [1]),
    ],
)
def test_a_write_that_was_answered_without_a_refusal_may_have_been_done(serve, run, answer):
    node = serve(always(answer))
    with pytest.raises(UnavailableError):
        run(node.url, create)
    assert len(node.requests) == 1


@pytest.mark.parametrize(
    "listed",
    [
        Answer(200, "<html>a proxy</html>"),
        Answer(200, {"members": "nonsense"}),
        Answer(200, {"members": 7}),
        Answer(
            200, {"members": [7, {"address": 7}, {"address": "ftp://x"}, {"address": "http://:1"}]}
        ),
        Answer(503, {}),
    ],
)
def test_whatever_a_node_says_of_its_members_the_answer_stays_the_answer(serve, run, listed):
    done = Answer(200, {"cas": 7})
    node = serve(lambda request: listed if request.path == "/v1/members" else done)
    assert run(node.url, create) == [{"cas": 7}]


def test_only_what_is_the_url_of_a_node_is_learnt():
    route = client_module._Route(["http://a:1"])
    addresses = [7, None, "", "ftp://x", "http://:1", "http://b:2"]
    route.learn_from({"members": [{"address": address} for address in addresses]})
    assert route.nodes(for_write=False) == ["http://a:1", "http://b:2"]


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "é" * 64])
def test_a_host_that_no_name_service_knows_is_refused_at_once(host):
    with pytest.raises(CoordinatorError) as caught:
        client_module._Route([f"http://{host}:1"])
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize("host", ["[::1]", "127.0.0.1", "localhost.", "a-b_c", "bücher.example"])
def test_a_host_that_may_be_there_is_asked(host):
    assert client_module._Route([f"http://{host}:1"]).nodes(for_write=False)


@pytest.mark.parametrize("principal", ["José", "Žofie", "ada\N{LATIN SMALL LETTER E}", "阿达"])
def test_a_principal_of_any_alphabet_is_sent_as_utf_8(serve, run, principal):
    node = serve(always(CREATED))
    assert run(node.url, create, principal=principal) == [CREATED.body]
    (asked,) = [one for one in node.requests if one.path == "/v1/indexes"]
    assert asked.headers["x-principal"].encode("latin-1").decode() == principal


@pytest.mark.parametrize("principal", ["a\nb", "a\rb", "\0", "a\x1b"])
def test_a_principal_that_no_header_holds_is_refused_before_anything_is_sent(serve, run, principal):
    node = serve(always(CREATED))
    with pytest.raises(CoordinatorError) as caught:
        run(node.url, create, principal=principal)
    assert caught.value.code == "invalid_request"
    assert not node.requests


NO_ROUTE = Answer(
    404, {"error": {"code": "not_found", "message": "there is no route", "details": {}}}
)


@pytest.mark.parametrize("answer", [NO_ROUTE, Answer(404, "Not Found")], ids=["store", "indexer"])
@pytest.mark.parametrize(
    "call",
    [lambda c: c.members(), lambda c: c.list_indexes(), create],
    ids=["members", "get", "post"],
)
def test_what_knows_no_members_is_no_node_and_is_said_to_be_none(serve, run, answer, call):
    other = serve(lambda request: answer)
    with pytest.raises(CoordinatorError) as caught:
        run(other.url, call)
    assert caught.value.code == "not_found"
    assert caught.value.message.startswith(f"what answers at {other.url} is no node: ")


def test_a_node_that_has_not_what_is_asked_for_is_a_node(serve, run):
    def script(request: Request) -> Answer:
        return members() if request.path == "/v1/members" else refusal(404, "not_found")

    with pytest.raises(CoordinatorError) as caught:
        run(serve(script).url, lambda client: client.stability("none"))
    assert caught.value.message == "because of not_found"


def test_drop_by_name_looks_up_the_id(serve, run):
    def script(request: Request) -> Answer:
        if request.method == "DELETE":
            return CREATED
        return Answer(200, {"indexes": [{"id": "7"}], "cas": 9})

    node = serve(script)
    run(node.url, lambda client: client.drop_index(bucket="b", name="a/ü", expected_cas=5))
    look_up, deletion = node.requests
    assert look_up.query == {"bucket": "b", "name": "a/ü", "consistency": "linearizable"}
    assert (deletion.method, deletion.path) == ("DELETE", "/v1/indexes/7")
    assert deletion.headers["if-match"] == "5"


def test_drop_by_a_name_that_is_not_there_deletes_nothing(serve, run):
    node = serve(always(Answer(200, {"indexes": [], "cas": 9})))
    with pytest.raises(NotFoundError) as caught:
        run(node.url, lambda client: client.drop_index(bucket="b", name="a"))
    assert caught.value.code == "index_not_found"
    assert [request.method for request in node.requests] == ["GET"]


@pytest.mark.parametrize(
    "target", [{}, {"bucket": "b"}, {"index_id": 1, "bucket": "b", "name": "a"}]
)
def test_drop_needs_an_id_or_a_bucket_and_a_name(run, closed_url, target):
    with pytest.raises(ValueError, match="drop_index takes"):
        run(closed_url, lambda client: client.drop_index(**target))


@pytest.mark.parametrize("value", [None, False, 0, "", "text", [1, {"a": None}], {"ü": 1.5}])
def test_a_setting_is_sent_as_the_bare_json_value(serve, run, value):
    node = serve(always(Answer(200, {"key": "k", "value": value, "cas": 3, "txn": "1-1"})))
    run(node.url, lambda client: client.put_config("a/b c?", value, expected_cas=0))
    [request] = node.requests
    assert json.loads(request.body) == value
    assert request.path == "/v1/config/a%2Fb%20c%3F"
    assert request.headers["if-match"] == "0"
    assert request.headers["content-type"] == "application/json"


READS: list[tuple[Callable[[Any], Any], str, dict[str, str]]] = [
    (lambda c: c.list_indexes("b"), "/v1/indexes", {"bucket": "b"}),
    (lambda c: c.get_index(7, at_least=5), "/v1/indexes/7", {"at_least": "5"}),
    (lambda c: c.state(consistency="local"), "/v1/state", {"consistency": "local"}),
    (lambda c: c.topology(), "/v1/topology", {}),
    (lambda c: c.transactions(3), "/v1/transactions", {"limit": "3"}),
    (lambda c: c.indexers(), "/v1/indexers", {}),
    (lambda c: c.list_config(), "/v1/config", {}),
    (lambda c: c.get_config("k"), "/v1/config/k", {}),
    (lambda c: c.stability(), "/v1/stability", {}),
    (lambda c: c.list_rollbacks(at_least=5), "/v1/rollbacks", {"at_least": "5"}),
    (lambda c: c.stability("#b"), "/v1/stability/%23b", {}),
    (lambda c: c.restart("b"), "/v1/restart/b", {}),
    (lambda c: c.restart("b", 3), "/v1/restart/b", {"limit": "3"}),
]


@pytest.mark.parametrize(("call", "path", "query"), READS, ids=[path for _, path, _ in READS])
def test_reads_ask_what_they_say_and_carry_no_request_id(serve, run, call, path, query):
    node = serve(always(Answer(200, {"indexes": []})))
    assert run(node.url, call) == [{"indexes": []}]
    [request] = node.requests
    assert (request.method, request.path, request.query) == ("GET", path, query)
    assert "idempotency-key" not in request.headers


def test_a_read_pinned_to_a_node_asks_no_other_and_only_once(serve, run, closed_url):
    other = serve(always(Answer(200, {"cas": 1})))
    with pytest.raises(UnavailableError):
        run(other.url, lambda client: client.state(node=closed_url))
    assert other.requests == []


def test_ready_says_why_not(serve, run):
    ready, unready = serve(always(Answer(200, {}))), serve(always(refusal(503, "unavailable")))
    assert run(ready.url, lambda client: client.ready())[0]["ready"] is True
    answer = run(unready.url, lambda client: client.ready())[0]
    assert (answer["ready"], answer["reason"]) == (False, "because of unavailable")
    assert len(unready.requests) == 1


def test_members_are_asked_for_once_in_the_life_of_a_client(serve, run):
    asked = []

    def script(request: Request) -> Answer:
        asked.append(request.path)
        return members() if request.path == "/v1/members" else CREATED

    node = serve(script)
    run(node.url, create, create, create)
    assert asked.count("/v1/members") == 1


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port"])
def test_what_is_not_the_url_of_a_node_is_refused(url):
    with pytest.raises(CoordinatorError) as caught:
        Client(url)
    assert caught.value.code == "invalid_request"


def test_the_environment_names_the_nodes(monkeypatch):
    monkeypatch.setenv("INDEXCTL_URL", "http://a:1,http://b:2")
    assert default_urls() == ["http://a:1", "http://b:2"]
    monkeypatch.delenv("INDEXCTL_URL")
    assert default_urls() == ["http://127.0.0.1:8600"]


def test_request_ids_are_uuids_of_version_7_that_carry_the_time():
    before = time.time_ns() // 1_000_000
    ids = [uuid.UUID(new_request_id()) for _ in range(1000)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == len(ids)
    assert {(i.version, i.variant) for i in ids} == {(7, uuid.RFC_4122)}
    assert all(before <= i.int >> 80 <= after for i in ids)


def test_a_reform_without_a_master_is_asked_of_the_node_that_has_the_most():
    plan = client_module._plan_reform(client_module._Route(["http://a:1"]), {}, None)
    next(plan)
    listed = [{"node": n, "alive": True, "cas": n, "address": f"http://n{n}:1"} for n in (2, 3)]
    call = plan.send({"mastership": {"state": "no_eligible_node"}, "members": listed})
    assert call.node == "http://n3:1"


def test_no_request_outlives_the_deadline_of_its_call():
    attempts = client_module._Attempts(client_module._Route(["http://a:1"]), 1.0, 1.0, {})
    attempts._start -= 0.9
    assert attempts.timeout().read <= 0.1
    assert attempts.timeout(5.0).read <= 0.1


def test_a_client_reads_what_it_has_written(serve, run):
    node = serve(always(CREATED))
    run(
        node.url,
        lambda client: client.list_config(),
        create,
        lambda client: client.list_config(),
        lambda client: client.list_config(consistency="local"),
        lambda client: client.get_index("7", at_least=3),
        lambda client: client.transactions(),
    )
    before, _, own, local, given, other = node.requests
    assert before.query == {}
    assert own.query == {"at_least": "9"}
    assert local.query == {"consistency": "local"}
    assert given.query == {"at_least": "3"}
    assert other.query == {}, "what knows no at_least is not asked for it"
