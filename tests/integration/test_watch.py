"""Watching real nodes: what each watcher sees is compared with the whole history."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest
from httpx_sse import connect_sse

from coordinator import codec
from coordinator.client.client import AsyncClient, Client
from coordinator.client.errors import CoordinatorError
from coordinator.core.model.records import Event
from coordinator.kafka.topics import HISTORY, delete_records
from tests.integration.cluster import Cluster, Keep, an_index, value_of, wait_until

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(keep: Keep) -> Cluster:
    return keep(indexers=2)


class Watch:
    """A watch by the client in a thread: what it was told, in order."""

    def __init__(self, client: Client, after: int | str = "now", **filters: Any) -> None:
        self.told: list[Told] = []
        self.error: CoordinatorError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(client, after, filters), daemon=True
        )
        self._thread.start()

    def _run(self, client: Client, after: int | str, filters: dict[str, Any]) -> None:
        try:
            for event in client.watch(after, **filters):
                self.told.append(event)
                if self._ended.is_set():
                    return
        except CoordinatorError as error:
            self.error = error
        except RuntimeError:
            if not self._ended.is_set():  # Otherwise the test has closed the client.
                raise

    @property
    def changes(self) -> list[Told]:
        return [event for event in self.told if event["type"] == "change"]

    def reaches(self, cas: int) -> list[Told]:
        """Wait until all up to a CAS was told, and return the changes."""

        def reached() -> bool:
            assert self.error is None, self.error
            return any(event.get("cas", 0) >= cas for event in self.told)

        wait_until(reached, f"the watch has told of CAS {cas}")
        return self.changes

    def begun(self) -> None:
        wait_until(lambda: bool(self.told), "the watch has begun")

    def stop(self) -> None:
        self._ended.set()


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[Callable[..., Watch]]:
    clients: list[Client] = []
    watches: list[Watch] = []

    def make(*nodes: int, after: int | str = "now", **filters: Any) -> Watch:
        client = Client([cluster.nodes[n].url for n in nodes] or cluster.urls)
        clients.append(client)
        watches.append(Watch(client, after, **filters))
        return watches[-1]

    yield make
    for made in watches:
        made.stop()
    for client in clients:
        client.close()


def events_of(cluster: Cluster) -> list[Event]:
    return [codec.decode(value_of(message)) for message in cluster.read(HISTORY)]


def of(events: list[Event]) -> list[tuple[int, str, str, str]]:
    return [(e.cas, str(e.txn), e.mutation.key, e.mutation.event) for e in events]


def seen(told: list[Told]) -> list[tuple[int, str, str, str]]:
    return [(e["cas"], e["txn"], e["key"], e["event"]) for e in told]


def change_something(cluster: Cluster, count: int = 10) -> int:
    """Change settings and an index; return the last CAS."""
    with cluster.client() as client:
        made = client.create_index(an_index("watched", "travel"))["index"]["id"]
        for number in range(count):
            client.put_config(f"w/{number % 3}", {"n": number})
        client.drop_index(made)
        return int(client.delete_config("w/0")["cas"])


def test_who_watches_from_the_start_or_any_cas_sees_the_whole_history(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    change_something(cluster)
    middle = events_of(cluster)[7].cas
    watches = [(watch(n, after=after), after) for n in cluster.nodes for after in (0, middle)]
    last = change_something(cluster)
    for one, after in watches:
        told = seen(one.reaches(last))
        expected = of([e for e in events_of(cluster) if e.cas > after])
        assert told == expected[: len(told)]
        assert told[-1][0] >= last


def test_who_watches_from_now_on_begins_with_a_bookmark(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    before = change_something(cluster)
    one = watch()
    one.begun()
    assert one.told[0]["type"] == "bookmark"
    begin = one.told[0]["cas"]
    assert begin >= before
    last = change_something(cluster)
    told = seen(one.reaches(last))
    assert told == of([e for e in events_of(cluster) if e.cas > begin])[: len(told)]


def test_a_snapshot_and_its_changes_lead_to_the_state(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    change_something(cluster)
    one = watch(after="snapshot")
    wait_until(lambda: any(e["type"] == "snapshot_end" for e in one.told), "the snapshot is whole")
    change_something(cluster)
    state = cluster.settled()
    one.reaches(state["cas"])
    held: dict[str, int] = {}
    for event in one.told:
        if event["type"] == "snapshot" or (event["type"] == "change" and not event["dropped"]):
            held[event["key"]] = event["cas"]
        elif event["type"] == "change":
            del held[event["key"]]
    settings = {key[7:]: cas for key, cas in held.items() if key.startswith("config/")}
    assert settings == {key: setting["cas"] for key, setting in state["config"].items()}
    indexes = {key[6:]: cas for key, cas in held.items() if key.startswith("index/")}
    assert indexes == {key: index["cas"] for key, index in state["indexes"].items()}


def test_a_filter_is_applied_by_the_node_and_its_bookmarks_go_on(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    dropping = watch(after=0, kind="index", state="dropping")
    nothing = watch(after=0, bucket="nowhere")
    last = change_something(cluster)
    told = dropping.reaches(last)
    states = [{side["state"] for side in (e["before"], e["value"]) if side} for e in told]
    assert told
    assert all("dropping" in found for found in states)
    assert {e["kind"] for e in told} == {"index"}
    nothing.reaches(last)
    assert nothing.changes == []


def test_a_watch_goes_on_after_a_failover_without_a_gap_or_a_double(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    begin = change_something(cluster)
    watches = [watch(*nodes, after=begin) for nodes in ((1, 2, 3), (2, 3, 1), (3, 1, 2))]
    for one in watches:
        one.begun()
    victim = cluster.master()
    cluster.nodes[victim].kill()
    last = change_something(cluster)
    shutil.rmtree(cluster.nodes[victim].folder)
    cluster.start()
    last = max(last, change_something(cluster))
    for one in watches:
        told = seen(one.reaches(last))
        # After that: what indexers release is told of when they have done it.
        expected = of([e for e in events_of(cluster) if e.cas > begin])
        assert told == expected[: len(told)]
        assert told[-1][0] >= last


def test_a_wiped_node_tells_of_what_was_before_its_time(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    replica = cluster.replicas()[0]
    cluster.nodes[replica].kill()
    shutil.rmtree(cluster.nodes[replica].folder)
    cluster.start()
    last = change_something(cluster)
    told = seen(watch(replica, after=0).reaches(last))
    assert told == of(events_of(cluster))[: len(told)]


def test_a_client_that_comes_back_names_the_last_event(cluster: Cluster) -> None:
    change_something(cluster)
    events = events_of(cluster)
    first = next(e for e in events if e.count > 1 and e.index == 0)
    headers = {"Last-Event-ID": str(first.cas)}
    url = cluster.nodes[1].url + "/v1/watch"
    with (
        httpx.Client(trust_env=False, timeout=20) as http,
        connect_sse(http, "GET", url, headers=headers) as source,
    ):
        got = next(source.iter_sse())
    rest = events[events.index(first) + 1]
    assert (got.event, got.id, json.loads(got.data)["txn"]) == (
        *("change", str(rest.cas), str(first.txn)),
    ), "who resumes inside a transaction gets the rest of it"


def test_while_nothing_happens_there_are_bookmarks(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    one = watch(kind="setting")  # Indexers may still be dropping what a test before dropped.
    wait_until(lambda: len(one.told) >= 3, "a second and a third bookmark")
    assert {event["type"] for event in one.told} == {"bookmark"}


def test_an_async_client_sees_the_same(cluster: Cluster) -> None:
    last = change_something(cluster)

    async def collect() -> list[Told]:
        found: list[Told] = []
        async with AsyncClient(cluster.urls) as client:
            async for event in client.watch(0, kind=["setting", "index"]):
                found.append(event)
                if event["cas"] >= last:
                    return found
        return found

    told = asyncio.run(collect())
    kinds = ("config/", "index/")
    expected = [e for e in events_of(cluster) if e.mutation.key.startswith(kinds)]
    assert seen([e for e in told if e["type"] == "change"]) == of(expected)[: len(told)]


def test_a_reader_that_takes_nothing_slows_nobody(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    node = cluster.nodes[cluster.master()]
    with closing(socket.socket()) as stuck:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        stuck.connect(("127.0.0.1", node.port))
        stuck.sendall(b"GET /v1/watch?after=now HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in stuck.recv(300)
        one = watch()
        one.begun()
        last = 0
        with cluster.client() as client:
            for number in range(130):
                last = client.put_config(f"big/{number % 4}", "x" * 60_000)["cas"]
        one.reaches(last)
        assert len(one.changes) == 130
    with cluster.client() as client:
        for number in range(4):
            client.delete_config(f"big/{number}")


def test_members_and_stability_are_watched_too(
    cluster: Cluster, watch: Callable[..., Watch]
) -> None:
    one = watch(cluster.replicas()[0], kind=["members", "stability"])
    wait_until(lambda: any(e["type"] == "members" for e in one.told), "members are told of")
    first = next(e for e in one.told if e["type"] == "members")
    with cluster.client() as client:
        master = client.step_down()["master"]
    wait_until(
        lambda: any(e["type"] == "members" and e["master"] == master for e in one.told),
        "the new master is told of",
    )
    assert first["master"] != master
    assert one.changes == []
    cluster.settled()


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("after=x", "invalid_request"),
        ("after=-1", "invalid_request"),
        ("after=9007199254740999", "invalid_request"),
        ("kind=cats", "invalid_request"),
        ("state=asleep", "invalid_request"),
        ("indexer=x", "invalid_request"),
    ],
)
def test_a_watch_of_what_cannot_be_is_refused(cluster: Cluster, query: str, code: str) -> None:
    response = cluster.ask(1, "GET", f"/v1/watch?{query}")
    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    name, _, value = query.partition("=")
    with cluster.client() as client, pytest.raises(CoordinatorError) as caught:
        next(client.watch(value) if name == "after" else client.watch("now", **{name: value}))
    assert caught.value.code == code


def test_indexctl_shows_changes_until_it_is_interrupted(cluster: Cluster) -> None:
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from coordinator.cli.main import main\nmain()"
    )
    command = [sys.executable, "-c", program, "watch", "--after", "0", "--json"]
    environment = {**os.environ, "INDEXCTL_URL": ",".join(cluster.urls)}
    last = change_something(cluster)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as watching:
        assert watching.stdout is not None
        lines = map(json.loads, watching.stdout)
        found: list[Told] = []
        for line in lines:
            found.append(line)
            if line["cas"] >= last:
                break
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(20) == 0
    assert seen([e for e in found if e["type"] == "change"]) == of(events_of(cluster))[: len(found)]


def test_what_the_history_no_longer_has_is_said_to_be_compacted(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(indexers=1, nodes=1).start()
    with cluster.client() as client:
        for number in range(10):
            client.put_config("n", number)
        cluster.nodes[1].kill()
        delete_records(
            cluster.servers, cluster.topic(HISTORY), int(cluster.read(HISTORY)[5].offset() or 0)
        )
        cluster.start()
        oldest = events_of(cluster)[0].cas
        with pytest.raises(CoordinatorError) as caught:
            next(client.watch(1))
    assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": oldest})


def test_a_client_waits_until_an_index_has_a_state(cluster: Cluster) -> None:
    with cluster.client() as client:
        made = client.create_index(an_index("awaited", "travel"))["index"]["id"]
        assert client.wait_until(made, "ready")["index"]["state"] == "ready"
        with pytest.raises(CoordinatorError) as caught:
            client.wait_until(made, "maintenance", timeout_s=0.1)
        assert caught.value.code == "timeout"
        client.drop_index(made)
        with pytest.raises(CoordinatorError) as caught:
            client.wait_until(made, "maintenance")
        assert caught.value.code == "index_not_found"
