"""Faults that a cluster survives while it serves: full disks, silence, the death of the master.

The nodes share one cluster; each test ends with all three in it again. Where this process may
mount, every node has a small file system of its own.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import httpx
import pytest

from coordinator.client.client import Client
from coordinator.client.errors import UnavailableError
from coordinator.client.request_ids import new_request_id
from coordinator.core.consensus.inputs import Restored
from coordinator.embedded.broker import Broker
from tests.integration.cluster import (
    Cluster,
    NodeChild,
    an_index,
    can_mount,
    error_of,
    in_parallel,
    shown,
    summary,
    wait_until,
)

pytestmark = pytest.mark.integration

NODES = ("node-1", "node-2", "node-3")
LARGE = "x" * 60_000
WRITES_MAX = 600
ATTEMPTS = 3
REFUSALS = re.compile("No space left on device|File too large")
NEW_MASTER_S = 40.0


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    disks = NODES if can_mount() else ()
    folder = tmp_path_factory.mktemp("cluster")
    with Cluster(folder, broker.bootstrap_servers, own_disks=disks) as running:
        yield running.start()


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """Whatever a test did, the next one finds three members on one digest."""
    yield
    for node in cluster.nodes.values():
        if not node.runs:
            node.start()
        with suppress(ProcessLookupError):
            node.resume()
    cluster.settled_members()
    assert cluster.digest_by_history() == shown(cluster.settled())


# -- a disk that refuses -------------------------------------------------------------------------


def _limit(node: NodeChild) -> Callable[[], None]:
    """Let the kernel refuse every growth of a file; return what undoes it."""
    node.limit_file_size(0)
    return node.limit_file_size


def _fill(node: NodeChild) -> Callable[[], None]:
    """Fill the node's file system; return what undoes it."""
    node.fill_disk()
    return node.empty_disk


STARVE = [
    pytest.param(_limit, id="file-size-limit", marks=[pytest.mark.matrix] if can_mount() else []),
    pytest.param(
        _fill,
        id="full-disk",
        marks=pytest.mark.skipif(not can_mount(), reason="mounting needs root"),
    ),
]


def _write_until_refused(cluster: Cluster, key: str) -> tuple[dict[str, Any], httpx.Response]:
    """Write until a write is refused; return the state before it, and the refusal.

    RocksDB allocates files ahead, so that a full disk takes some more.
    """
    master = cluster.master()
    for number in range(WRITES_MAX):
        before = cluster.state(master)
        answer = cluster.put(f"{key}/{number % 4}", f"{number} {LARGE}")
        if answer.status_code != 200:
            return before, answer
    raise AssertionError("a full disk took everything")


@pytest.mark.parametrize("starve", STARVE)
def test_a_replica_whose_disk_refuses_rolls_back_is_expired_and_comes_back(
    cluster: Cluster, starve: Callable[[NodeChild], Callable[[], None]]
) -> None:
    master = cluster.master()
    victim, other = cluster.replicas()
    relieve = starve(cluster.nodes[victim])
    try:
        before, refusal = _write_until_refused(cluster, "starved")
        assert (refusal.status_code, error_of(refusal)) == (503, "unavailable")
        assert f"node {victim}: " in refusal.text
        assert REFUSALS.search(refusal.text), refusal.text
        assert shown(cluster.state(master)) == shown(before)

        rows = cluster.get(master, "/v1/transactions?limit=3")["transactions"]
        assert [(row["status"], row["cas"]) for row in rows] == [("rollback", 0)] * ATTEMPTS
        assert all(f"node {victim}: " in row["reason"] for row in rows)
        assert all(row["participants"] == [1, 2, 3] for row in rows)
        wait_until(
            lambda: cluster.get(other, "/v1/transactions?limit=3")["transactions"] == rows,
            "the other replica has folded the rollbacks",
        )
        for node in (master, other):
            held = cluster.nodes[node].restored()
            assert held is not None
            assert held.prepared is None
            assert summary(held.state) == shown(before)
        of_victim = cluster.nodes[victim].restored()
        assert of_victim is not None
        prepared = of_victim.prepared
        assert prepared is None or str(prepared.proposal.txn) not in {row["txn"] for row in rows}

        assert cluster.member(victim)["role"] == "outside"
        assert cluster.put("starved/by-two", 1).status_code == 200
        assert cluster.get(master, "/v1/transactions?limit=1")["transactions"][0][
            "participants"
        ] == sorted({master, other})
        assert cluster.ask(victim, "GET", "/readyz").status_code == 503
    finally:
        relieve()
    state = cluster.settled()
    assert state["config"]["starved/by-two"]["value"] == 1
    cluster.settled_members()
    wait_until(
        lambda: summary(_restored(cluster.nodes[victim]).state) == shown(state),
        "the store has all of it",
    )
    assert _restored(cluster.nodes[victim]).prepared is None


def _restored(node: NodeChild) -> Restored:
    held = node.restored()
    assert held is not None
    return held


def test_a_master_whose_disk_refuses_hands_over(cluster: Cluster) -> None:
    victim = cluster.master()
    relieve = _limit(cluster.nodes[victim])
    try:
        with cluster.client() as client:
            written = client.put_config("by-another", 1)
        assert cluster.master() != victim
    finally:
        relieve()
    state = cluster.settled()
    assert state["config"]["by-another"] == {"value": 1, "cas": written["cas"]}


# -- silence -------------------------------------------------------------------------------------


def test_a_silent_replica_is_expired_and_the_transaction_goes_on(cluster: Cluster) -> None:
    victim, other = cluster.replicas()
    cluster.nodes[victim].pause()
    answer = cluster.put("silent", 1)
    assert answer.status_code == 200
    assert cluster.member(victim)["role"] == "outside"
    assert not cluster.member(victim)["alive"]
    assert cluster.state(other)["config"]["silent"]["value"] == 1
    cluster.nodes[victim].resume()
    state = cluster.settled()
    assert state["config"]["silent"] == {"value": 1, "cas": answer.json()["cas"]}
    cluster.settled_members()


def test_nothing_commits_while_two_of_three_are_silent(cluster: Cluster) -> None:
    master, victims = cluster.master(), cluster.replicas()
    before = cluster.state(master)
    headers = {"Idempotency-Key": new_request_id()}
    for victim in victims:
        cluster.nodes[victim].pause()
    answer = cluster.put("too-few", 1, **headers)
    assert (answer.status_code, error_of(answer)) in ((504, "timeout"), (503, "unavailable"))
    assert shown(cluster.state(master)) == shown(before)
    for victim in victims:
        cluster.nodes[victim].resume()
    with cluster.client() as client:
        written = client.put_config("too-few", 1, request_id=headers["Idempotency-Key"])
    assert cluster.settled()["config"]["too-few"] == {"value": 1, "cas": written["cas"]}
    events = [e for e in cluster.history() if e.mutation.key == "config/too-few"]
    assert [e.cas for e in events] == [written["cas"]]


# -- the death of the master ---------------------------------------------------------------------


class Writer:
    """A client that writes settings one after the other, and keeps what it was told."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.acknowledged: dict[str, dict[str, Any]] = {}
        self.unknown: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        with self.cluster.client(self.number % 3 + 1) as client:
            while not stop.is_set():
                self._write(client)

    def _write(self, client: Client) -> None:
        request = new_request_id()
        key = f"load/{self.number}/{len(self.acknowledged) % 5}"
        try:
            answer = client.put_config(key, request, request_id=request)
        except UnavailableError:
            self.unknown.add(request)
        else:
            self.acknowledged[request] = answer


def test_no_acknowledged_write_is_lost_or_doubled_when_the_master_is_killed(
    cluster: Cluster,
) -> None:
    writers = [Writer(cluster, number) for number in range(6)]
    stop = threading.Event()

    def count() -> int:
        return sum(len(writer.acknowledged) for writer in writers)

    def kill_masters() -> list[float]:
        took_s = []
        try:
            for _ in range(2):
                seen = count()
                wait_until(lambda seen=seen: count() >= seen + 100, "writes")  # type: ignore[misc]
                victim = cluster.master()
                cluster.nodes[victim].kill()
                begin = time.monotonic()
                cluster.master()
                took_s.append(time.monotonic() - begin)
                seen = count()
                wait_until(lambda seen=seen: count() >= seen + 50, "writes go on")  # type: ignore[misc]
                cluster.nodes[victim].start()
                cluster.settled_members()
        finally:
            stop.set()
        return took_s

    *_, took_s = in_parallel(*(partial(w.run, stop) for w in writers), kill_masters)
    assert took_s is not None
    assert max(took_s) < NEW_MASTER_S, took_s
    cluster.settled()

    events = [e for e in cluster.history() if e.mutation.key.startswith("config/load/")]
    times = Counter(e.mutation.request for e in events)
    assert set(times.values()) == {1}
    cas_of = {e.mutation.request: e.cas for e in events}
    for writer in writers:
        for request, answer in writer.acknowledged.items():
            assert cas_of[request] == answer["cas"]
            assert answer["value"] == request
    known = {request for writer in writers for request in (*writer.acknowledged, *writer.unknown)}
    assert set(times) <= known


def test_a_repeat_gets_the_first_answer_from_the_next_master(cluster: Cluster) -> None:
    keys = [new_request_id() for _ in range(3)]
    with cluster.client() as client:
        doomed = client.create_index(an_index("doomed"))["index"]["id"]

        def ask() -> list[dict[str, Any]]:
            return [
                client.create_index(an_index("repeated", replicas=1), request_id=keys[0]),
                client.drop_index(doomed, request_id=keys[1]),
                client.put_config("repeated", {"a": [1, None]}, request_id=keys[2]),
            ]

        first = ask()
        victim = cluster.master()
        cluster.nodes[victim].kill()
        assert cluster.master() != victim
        created, dropped, put = ask()
        assert [created, put] == [first[0], first[2]]
        assert (dropped["cas"], dropped["txn"]) == (first[1]["cas"], first[1]["txn"])
        assert (dropped["index"]["id"], dropped["index"]["state"]) == (doomed, "dropped")
        mismatch = cluster.put("repeated", 2, **{"Idempotency-Key": keys[0]})
        assert (mismatch.status_code, error_of(mismatch)) == (422, "request_mismatch")
