"""The past of a cluster: every change, the state of any moment, and the differences of two.

The oracle reads `history` itself, and folds it from nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from coordinator import codec
from coordinator.cli.main import app
from coordinator.client.client import Client
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.model import digest as digests
from coordinator.core.model.entities import Index
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.topics import HISTORY, delete_records
from schemas.registry import SchemaError
from tests.integration.cluster import Cluster, an_index, value_of, wait_until

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster in which settings, indexes and the master have changed."""
    folder = tmp_path_factory.mktemp("history")
    with Cluster(folder, broker.bootstrap_servers, indexers=2) as running:
        running.start()
        for user in ("ada", "grace"):
            with Client(running.urls, principal=user) as client:
                for number in range(4):
                    client.put_config(f"app/{number % 3}", {"by": user, "n": number})
        with running.client() as client:
            client.create_index(an_index("kept", "travel"))
            gone = client.create_index(an_index("gone", "other"))["index"]["id"]
            running.publish(HISTORY, b"no event")
            running.publish(HISTORY, codec.encode(A_STRANGERS))
            client.drop_index(gone)
            client.delete_config("app/0")
            running.nodes[running.master()].kill()
            client.put_config("app/1", None)
        running.start()
        yield running


A_STRANGERS = Event(
    Mutation("SettingDeleted", "config/app/1", None, None), TxnId(1, 900), 0, 1, Cas(90_000)
)
"""An event that nobody has committed, with a CAS that is above all."""


@pytest.fixture(scope="module")
def events(cluster: Cluster) -> list[Event]:
    return events_of(cluster)


@pytest.fixture(scope="module")
def moments(events: list[Event]) -> list[StateContext]:
    return moments_of(events)


def events_of(cluster: Cluster) -> list[Event]:
    """Return what `history` holds, without what strangers wrote."""
    found: list[Event] = []
    for message in cluster.read(HISTORY):
        with suppress(SchemaError):
            found.append(codec.decode(value_of(message)))
    return [event for event in found if event != A_STRANGERS]


def moments_of(events: Sequence[Event]) -> list[StateContext]:
    """Return the state after each transaction of a history."""
    found: list[StateContext] = []
    state = states.EMPTY
    for event in events:
        state = states.evolve(state, [(event.mutation, event.cas)])
        if event.index == event.count - 1:
            found.append(state)
    return found


def told(cluster: Cluster, node: int, limit: int = 1_000, **filters: Any) -> list[Told]:
    """Return all events that a node tells of, page by page."""
    found: list[Told] = []
    after: int | None = 0
    now = cluster.get(cluster.master(), "/v1/state")["cas"]
    while after is not None:
        query = {"after": after, "limit": limit, "at_least": now, **filters}
        response = cluster.ask(node, "GET", "/v1/history", params=query)
        assert response.status_code == 200, response.text
        assert len(response.json()["events"]) <= limit
        found += response.json()["events"]
        after = response.json()["next"]
    return found


def cas_of(found: Sequence[Told]) -> list[int]:
    return [event["cas"] for event in found]


# -- history -------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_every_node_tells_of_every_committed_change_once_in_order(
    cluster: Cluster, limit: int
) -> None:
    made = [(e.cas, str(e.txn), e.mutation.key, e.mutation.event) for e in events_of(cluster)]
    assert len(made) > len({txn for _, txn, _, _ in made}), "a transaction has several events"
    for node in cluster.nodes:
        found = told(cluster, node, limit)
        assert [(e["cas"], e["txn"], e["key"], e["event"]) for e in found] == made


def test_each_change_tells_the_value_before_it(cluster: Cluster) -> None:
    last: dict[str, Any] = {}
    for event in told(cluster, 1):
        value, cas = last.get(event["key"], (None, 0))
        assert (event["before"], event["before_cas"]) == (value, cas), event
        last[event["key"]] = (None, 0) if event["dropped"] else (event["value"], event["cas"])
    assert {"config/app/1", "config/started"} <= last.keys()
    assert last["config/app/1"] != (None, 0), "null is a value, and not the absence of one"
    dropped = [e for e in told(cluster, 1, kind="index") if e["dropped"]]
    assert [e["before"]["name"] for e in dropped] == ["gone"]


def test_a_change_just_acknowledged_is_told_of_by_every_node(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(20):
            cas = client.put_config("app/fresh", number)["cas"]
            for node in cluster.nodes:
                body = cluster.get(node, f"/v1/history?after={cas - 1}&at_least={cas}")
                assert [e["value"] for e in body["events"] if e["cas"] == cas] == [number]


FILTERS: list[tuple[dict[str, Any], Callable[[Told], bool]]] = [
    ({"principal": "ada"}, lambda e: e["principal"] == "ada"),
    ({"principal": ["ada", "grace"]}, lambda e: e["principal"] in ("ada", "grace")),
    ({"kind": "setting"}, lambda e: e["key"].startswith("config/")),
    ({"key": "config/app/1"}, lambda e: e["key"] == "config/app/1"),
    ({"kind": "index", "bucket": "other"}, lambda e: "other" in buckets_of(e)),
    ({"index": "kept"}, lambda e: "kept" in fields_of(e, "name") and e["kind"] == "index"),
    ({"state": "dropping"}, lambda e: "dropping" in fields_of(e, "state")),
    ({"indexer": 1}, lambda e: e["kind"] == "index" and 1 in hosts_of(e)),
]


def sides(event: Told) -> list[Told]:
    return [side for side in (event["before"], event["value"]) if isinstance(side, dict)]


def fields_of(event: Told, name: str) -> list[Any]:
    return [side.get(name) for side in sides(event)]


def buckets_of(event: Told) -> list[Any]:
    return fields_of(event, "bucket") if event["kind"] == "index" else []


def hosts_of(event: Told) -> set[int]:
    pieces = [piece for side in sides(event) for piece in side["topology"]["slices"]]
    return {host for piece in pieces for host in (piece["master"], *piece["replicas"])}


@pytest.mark.parametrize(("filters", "wanted"), FILTERS, ids=[json.dumps(f) for f, _ in FILTERS])
def test_a_filter_finds_what_fits_before_or_after_and_nothing_else(
    cluster: Cluster, filters: dict[str, Any], wanted: Callable[[Told], bool]
) -> None:
    whole = told(cluster, 1)
    expected = cas_of([event for event in whole if wanted(event)])
    assert 0 < len(expected) < len(whole)
    assert cas_of(told(cluster, 2, 3, **filters)) == expected


def test_a_page_ends_where_it_is_told_to(cluster: Cluster, events: list[Event]) -> None:
    after, until = events[4].cas, events[-5].cas
    found = cluster.get(1, f"/v1/history?after={after}&until={until}&limit=1000")
    assert cas_of(found["events"]) == [e.cas for e in events if after < e.cas <= until]
    assert found["next"] is None


def test_times_and_requests_select_changes(cluster: Cluster) -> None:
    whole = told(cluster, 1)
    middle = whole[len(whole) // 2]
    late = told(cluster, 1, from_ms=middle["at_ms"])
    assert cas_of(late) == cas_of([e for e in whole if e["at_ms"] >= middle["at_ms"]])
    early = told(cluster, 1, to_ms=middle["at_ms"])
    assert cas_of(early) == cas_of([e for e in whole if e["at_ms"] <= middle["at_ms"]])
    by_txn = told(cluster, 1, txn=middle["txn"])
    assert cas_of(by_txn) == cas_of([e for e in whole if e["txn"] == middle["txn"]])


@pytest.mark.parametrize(
    "query",
    [
        *("kind=cats", "state=asleep", "limit=0", "limit=1001", "after=-1"),
        *("from_ms=2&to_ms=1", "indexer=x", "after=9007199254740993"),
    ],
)
def test_what_cannot_be_meant_is_refused(cluster: Cluster, query: str) -> None:
    response = cluster.ask(1, "GET", f"/v1/history?{query}")
    assert response.status_code == 400, response.text
    assert response.json()["error"]["code"] == "invalid_request"


# -- states of the past --------------------------------------------------------------------------


def test_every_node_has_the_state_of_every_cas_with_the_digest_of_then(
    cluster: Cluster, moments: list[StateContext]
) -> None:
    for node in cluster.nodes:
        for before, state in zip([states.EMPTY, *moments], [*moments, None], strict=True):
            # Between two transactions, the first one's state holds.
            asked = before.cas if state is None else state.cas - 1
            body = cluster.get(node, f"/v1/state?cas={asked}")
            assert (body["cas"], body["digest"]) == (before.cas, digests.text(before.digest))
            assert body["indexes"].keys() == {str(i.id) for i, _ in before.indexes()}


def test_the_state_of_now_is_the_one_that_is_shown(cluster: Cluster) -> None:
    now = cluster.settled()
    past = cluster.get(2, f"/v1/state?cas={now['cas']}")
    assert all(now[name] == past[name] for name in ("digest", "indexes", "buckets", "config"))


def test_a_cas_that_is_not_there_yet_is_waited_for(cluster: Cluster) -> None:
    with cluster.client() as client:
        cas = client.put_config("app/fresh", "again")["cas"]
    for node in cluster.nodes:
        body = cluster.get(node, f"/v1/state?cas={cas}&consistency=local")
        assert body["config"]["app/fresh"] == {"value": "again", "cas": cas}


def test_a_time_finds_the_last_transaction_before_it(
    cluster: Cluster, events: list[Event], moments: list[StateContext]
) -> None:
    made_ms = {event.cas: event.mutation.at_ms for event in events}
    for state in moments:
        at_ms = made_ms[state.cas]
        body = cluster.get(1, f"/v1/state?at_ms={at_ms}")
        expected = max(m.cas for m in moments if made_ms[m.cas] <= at_ms)
        assert body["cas"] == expected
    assert cluster.get(1, "/v1/state?at_ms=1")["cas"] == 0


def test_two_moments_differ_by_what_was_changed_between_them(
    cluster: Cluster, moments: list[StateContext]
) -> None:
    for before, after in [(moments[2], moments[-1]), (moments[-1], moments[2])]:
        body = cluster.get(3, f"/v1/diff?from={before.cas}&to={after.cas}")
        assert (body["from"], body["to"]) == (before.cas, after.cas)
        keys = {*before.entities, *after.entities}
        held = {key: (before.get(key), after.get(key)) for key in keys}
        differing = {k for k, (a, b) in held.items() if not (a and b and a.entity == b.entity)}
        assert [row["key"] for row in body["changes"]] == sorted(differing)
        for row in body["changes"]:
            assert row["before_cas"] == before.cas_of(row["key"])
            assert row["after_cas"] == after.cas_of(row["key"])
            if row["kind"] == "index" and row["after"] is not None:
                held = after.get(row["key"])
                assert held is not None
                assert isinstance(held.entity, Index)
                assert row["after"]["state"] == held.entity.state


def test_a_wiped_node_has_the_same_past(cluster: Cluster, moments: list[StateContext]) -> None:
    replica = cluster.replicas()[0]
    before = told(cluster, replica)
    cluster.nodes[replica].kill()
    shutil.rmtree(cluster.nodes[replica].folder)
    cluster.start()
    assert told(cluster, replica)[: len(before)] == before
    state = moments[len(moments) // 2]
    body = cluster.get(replica, f"/v1/state?cas={state.cas}")
    assert body["digest"] == digests.text(state.digest)


# -- what is gone --------------------------------------------------------------------------------


def test_what_was_deleted_from_the_log_is_said_to_be_gone(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(indexers=1).start()
    with cluster.client() as client:
        for number in range(10):
            client.put_config("n", number)
    messages = cluster.read(HISTORY)
    first = messages[5]
    delete_records(cluster.servers, cluster.topic(HISTORY), int(first.offset() or 0))
    oldest = events_of(cluster)[0].cas
    for path in (f"/v1/state?cas={oldest - 1}", "/v1/history", f"/v1/diff?from={oldest - 1}"):
        response = cluster.ask(1, "GET", path)
        assert response.status_code == 410, response.text
        error = response.json()["error"]
        assert (error["code"], error["details"]) == ("compacted", {"oldest": oldest})
    assert wait_until(lambda: cluster.get(1, "/v1/state")["cas"] > oldest, "the state of now")


# -- indexctl ------------------------------------------------------------------------------------


@pytest.fixture
def indexctl(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command against the cluster, and return what it prints."""
    monkeypatch.setenv("INDEXCTL_URL", ",".join(cluster.urls))

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    return run


def lines_of(text: str) -> list[Told]:
    return [json.loads(line) for line in text.splitlines()]


def test_indexctl_shows_the_newest_changes_or_all(
    cluster: Cluster, indexctl: Callable[..., str]
) -> None:
    whole = told(cluster, 1)
    assert lines_of(indexctl("history", "--all", "--json")) == whole
    assert lines_of(indexctl("history", "-n", "3", "--json")) == whole[-3:]
    assert lines_of(indexctl("history", "--since", str(whole[-3]["cas"]), "--json")) == whole[-2:]
    first = str(whole[1]["cas"])
    assert lines_of(indexctl("history", "--until", first, "--json")) == whole[:2]
    assert indexctl("history", "--until", "2001-01-01") == "no changes\n"
    assert lines_of(indexctl("history", "--since", "1d", "--all", "--json")) == whole


def test_indexctl_shows_a_change_with_what_it_changed(indexctl: Callable[..., str]) -> None:
    text = indexctl("history", "--key", "config/app/1", "--all")
    assert "SettingWritten  config/app/1  by ada" in text
    assert 'by: - "ada"  + "grace"' in text, text
    assert "+ null" in text, text
    text = indexctl("history", "--index", "gone", "--state", "dropping")
    assert 'state: - "ready"  + "dropping"' in text, text


def test_indexctl_shows_how_it_was(
    cluster: Cluster, indexctl: Callable[..., str], moments: list[StateContext]
) -> None:
    past = moments[len(moments) // 2]
    body = json.loads(indexctl("state", "--at", str(past.cas), "--json"))
    assert body["digest"] == digests.text(past.digest)
    assert f"CAS     {past.cas}\n" in indexctl("state", "--at", str(past.cas))
    assert "travel" in indexctl("state")
    rows = lines_of(indexctl("diff", str(past.cas), "--json"))
    now = cluster.get(1, f"/v1/diff?from={past.cas}")
    assert rows == now["changes"]
    shown = indexctl("diff", str(moments[5].cas), "0")
    assert shown.splitlines()[0].startswith(f"CAS {moments[5].cas} to 0: ")
    assert all(line[:2] in ("- ", "  ") for line in shown.splitlines()[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        ("history", "--since", "yesterday"),
        ("history", "--all", "-n", "3"),
        ("state", "--at", "12:99"),
        ("diff", "soon"),
    ],
)
def test_indexctl_says_what_it_does_not_understand(
    indexctl: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    assert "[usage]" in indexctl(*arguments, code=2)
