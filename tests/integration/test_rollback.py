"""A node of the store loses changes: indexes go back to what is left, and scans show no more."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from coordinator import codec
from coordinator.core.consensus.roles import ROLLBACK
from coordinator.core.model.stream_records import FailoverBranch, FailoverLog
from coordinator.core.model.types import Seqno, Vbuuid
from coordinator.kafka.settings import plain_settings
from coordinator.kafka.topics import FAILOVER_LOG, STREAM_PARTITIONS
from tests.integration.cluster import Child, Cluster, error_of, wait_until
from tests.integration.logged_plane import (
    LoggedPlane,
    loaded_plane,
    some_change,
)
from tests.integration.travel_specs import BY_CITY, BY_NAME, BY_TAG, HIGH
from tests.support.oracle import Spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

VBUCKETS = 32
DOCUMENTS = 400
SPECS: tuple[Spec, ...] = (BY_CITY, BY_NAME, HIGH, BY_TAG)
LIMITS = {"period_ms": 300, "sync_missing_ms": 60_000}
RECOVERED_S = 120.0
SCANNED_MS = 30_000
RARELY_MS = 600_000
ADVANCE_S = 120.0


@pytest.fixture(scope="module")
def plant(stable_plant: Cluster) -> Cluster:
    return stable_plant


@pytest.fixture(scope="module")
def plane(plant: Cluster) -> LoggedPlane:
    """The bucket that goes through everything, with its indexes built."""
    return loaded_plane(plant, "losing", VBUCKETS, SPECS, DOCUMENTS, LIMITS)


def _change(chance: random.Random) -> tuple[str, Any]:
    return some_change(chance, DOCUMENTS)


def lose(plane: LoggedPlane, node: int = 0, count: int = 2, **more: Any) -> None:
    """Have a node of the store lose the last changes of its vbuckets, or of some of them."""
    url = f"{plane.kv.url}/v1/nodes/{node}/crash"
    answer = plane.cluster.http.post(url, json={"lose": count, "bucket": plane.bucket, **more})
    assert answer.status_code == 200, answer.text
    assert answer.json()["lost"]


def steps(plane: LoggedPlane) -> list[str]:
    """Return the events of the rollbacks of a bucket, the oldest first."""
    return plane.events("rollback")


def ended(plane: LoggedPlane, before: int) -> None:
    """Wait until a bucket has gone back once more than `before`, and no rollback goes on."""

    def is_over() -> bool:
        seen = steps(plane)
        return seen.count("RollbackEnded") > before and seen[-1] == "RollbackEnded"

    wait_until(is_over, f"{plane.bucket} has gone back", RECOVERED_S)


@contextmanager
def rolled_back(plane: LoggedPlane) -> Iterator[None]:
    """What is lost meanwhile is gone from the indexes of the bucket afterwards."""
    before = steps(plane).count("RollbackEnded")
    began = time.monotonic()
    yield
    ended(plane, before)
    plane.forget_lost()
    print(f"gone back after {time.monotonic() - began:.1f} s: {steps(plane)}")


def are_scanned(plane: LoggedPlane) -> bool:
    """Tell whether each slice of each index answers."""
    bodies = ({"bucket": plane.bucket, "name": spec.name, "timeout_ms": 1_000} for spec in SPECS)
    return all(
        plane.cluster.ask(1, "POST", "/v1/scan", json=body).status_code == 200 for body in bodies
    )


def change_all_vbuckets(plane: LoggedPlane) -> None:
    """Write so much that each vbucket is changed: an indexer that was restarted between a change
    and the SYNC behind it makes no snapshot of a vbucket before it changes again."""
    for n in range(20 * VBUCKETS):
        plane.put(f"again-{n}", {"country": "Z", "city": f"again-{n}", "name": f"again-{n}"})


def gone_back_to(plane: LoggedPlane) -> list[str]:
    """Return what each indexer said last of a rollback."""
    said = [indexer.said.splitlines() for indexer in plane.cluster.indexers.values()]
    return [
        next((t for t in reversed(one) if f"{plane.bucket}: rollback" in t), "") for one in said
    ]


def is_well(plane: LoggedPlane) -> None:
    """Indexes have what the store has, and no more; timestamps and consistent scans go on.

    Who was away may have recovered later than the others: a rollback does not wait for him.
    """
    wait_until(lambda: are_scanned(plane), "every slice answers", RECOVERED_S)
    plane.agrees()
    number = plane.stable(ADVANCE_S)
    plane.is_exact(*(plane.scanned(spec.name, number) for spec in SPECS))
    plane.is_single_owner(ADVANCE_S)
    plane.put("last", {"country": "Z", "name": f"after {number}", "elevation": 9_000})
    assert plane.stable(ADVANCE_S) > number
    plane.is_exact(*(plane.scanned(spec.name) for spec in SPECS))
    plane.agrees()


EVENTS = [
    *("RollbackStarted", "RollbackPrepared", "RollbackRestarted", "RollbackCommanded"),
    "RollbackEnded",
]


def test_what_the_store_has_lost_is_in_no_index_and_everything_goes_on(plane: LoggedPlane) -> None:
    plane.stable(ADVANCE_S)
    plane.agrees()
    for n in range(40):
        plane.put(f"lost-{n}", {"country": "Z", "city": f"lost-{n}", "name": f"lost-{n}"})
    plane.agrees()
    with rolled_back(plane):
        lose(plane)
    assert steps(plane) == EVENTS
    is_well(plane)


def is_persisted(plane: LoggedPlane, indexer: int) -> bool:
    """Tell whether an indexer's newest checkpoint is of the newest stability timestamp."""
    shown = plane.cluster.get(plane.cluster.master(), "/v1/stability")["buckets"]
    bucket = next(one for one in shown if one["bucket"] == plane.bucket)
    row = next(one for one in bucket["lag"]["indexers"] if one["indexer"] == indexer)
    return bool(row["persisted"] == bucket["stability"]["digest"])


@pytest.mark.matrix
def test_indexers_go_back_to_a_snapshot_that_has_nothing_of_what_was_lost(
    plant: Cluster, plane: LoggedPlane
) -> None:
    plane.stable(ADVANCE_S)
    plane.is_exact(*(plane.scanned(spec.name) for spec in SPECS))
    with plant.client() as client:
        client.put_config(f"timestamps/{plane.bucket}", {"period_ms": RARELY_MS})
    before = plane.high().seqnos
    number = plane.stability()[0]
    restarted = plant.indexers[1]
    wait_until(lambda: is_persisted(plane, restarted.indexer), "there is a checkpoint of it")
    for n in range(40):
        plane.put(f"later-{n}", {"country": "Z", "city": f"later-{n}", "name": f"later-{n}"})
    plane.agrees()
    _restart_indexer(plant)
    wait_until(lambda: are_scanned(plane), "every slice answers", RECOVERED_S)
    plane.agrees()
    assert plane.stability()[0] == number, "nothing of this is in any snapshot"
    written = [v for v, (a, b) in enumerate(zip(before, plane.high().seqnos, strict=True)) if a < b]
    with rolled_back(plane):
        lose(plane, 0, 1, vbuckets=[v for v in written if v < VBUCKETS // 2])
    first, *others = gone_back_to(plane)
    assert first.endswith(f"back to timestamp {number}, from a checkpoint"), first
    assert all(one.endswith(f"back to timestamp {number}") for one in others), others
    plane.agrees()
    with plant.client() as client:
        client.put_config(f"timestamps/{plane.bucket}", LIMITS)
    change_all_vbuckets(plane)
    is_well(plane)


def _kill(one: Child, until: Callable[[], object]) -> None:
    one.kill()
    until()
    one.start()


def _kill_master(plant: Cluster) -> None:
    """It leads a rollback; its successor goes on with that at once."""
    old = plant.master()
    wait_until(lambda: plant.get(old, "/readyz")["role"] == ROLLBACK, "the master rolls back")
    _kill(plant.nodes[old], lambda: plant.master(other_than=old))


def _restart_indexer(plant: Cluster) -> None:
    _kill(plant.indexers[1], lambda: None)


def _restart_projector(plant: Cluster) -> None:
    _kill(plant.projectors[0], lambda: None)


def _restart_spark(plant: Cluster) -> None:
    assert plant.timestamps is not None
    _kill(plant.timestamps, lambda: None)


def _lose_again(plant: Cluster) -> None:
    """The other node of the store loses something, too, and then the first one once more."""
    assert plant.kv is not None
    for node in (1, 0):
        answer = plant.http.post(f"{plant.kv.url}/v1/nodes/{node}/crash", json={"lose": 1})
        assert answer.status_code == 200, answer.text


MEANWHILE: dict[str, Callable[[Cluster], None]] = {
    "nothing": lambda plant: None,
    "master": _kill_master,
    "indexer": _restart_indexer,
    "projector": _restart_projector,
    "spark": _restart_spark,
    "another loss": _lose_again,
}
QUICK = ("another loss",)
"""What `make test` has of these; `make chaos` has the others. Indexers that begin anew, or are away
meanwhile, have tests of their own."""


@pytest.mark.parametrize(
    "meanwhile",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.matrix) for n in MEANWHILE],
)
def test_whatever_happens_meanwhile_indexes_have_what_the_store_has(
    plant: Cluster, plane: LoggedPlane, meanwhile: str
) -> None:
    """While documents are written, before, during and after the loss."""
    chance = random.Random(meanwhile)
    plane.stable(ADVANCE_S)
    with rolled_back(plane), plane.being_written(lambda: _change(chance)):
        before = steps(plane).count("RollbackEnded")
        lose(plane)
        MEANWHILE[meanwhile](plant)
        ended(plane, before)
    if meanwhile == "indexer":
        change_all_vbuckets(plane)
    is_well(plane)


@pytest.mark.matrix
def test_an_indexer_that_was_away_goes_back_when_it_returns(
    plant: Cluster, plane: LoggedPlane
) -> None:
    plane.stable(ADVANCE_S)
    away = plant.indexers[2]
    before = gone_back_to(plane)[1]
    away.kill()
    with rolled_back(plane):
        lose(plane)
    away.start()
    wait_until(lambda: gone_back_to(plane)[1] != before, "it goes back")
    change_all_vbuckets(plane)
    is_well(plane)


def await_newest(plane: LoggedPlane, node: int) -> None:
    """Wait until a node has read what any node shows of the rollbacks of a bucket."""
    with plane.cluster.client() as client:
        events = client.history(kind="rollback", bucket=plane.bucket, limit=1000)["events"]
    url = f"/v1/rollbacks?consistency=local&at_least={events[-1]['cas']}"
    wait_until(lambda: plane.cluster.ask(node, "GET", url).status_code == 200, "it has read that")


def test_a_scan_meanwhile_is_refused_or_shows_nothing_that_was_lost(plane: LoggedPlane) -> None:
    """From when a node has read that a rollback began. An indexer stands still until the first scan
    was refused: a busy machine may not come to ask before all is over."""
    plane.stable(ADVANCE_S)
    answers: Counter[str] = Counter()
    for n in range(20):
        plane.put(f"gone-{n}", {"country": "Z", "city": f"gone-{n}", "name": "gone"})
    plane.agrees()
    before = steps(plane).count("RollbackStarted")
    left: set[str] = set()

    def scan() -> None:
        for mode in ("any", "last_good"):
            body = {"bucket": plane.bucket, "name": BY_NAME.name, "limit": 5_000}
            got = plane.cluster.ask(
                1, "POST", "/v1/scan", json={**body, "consistency": mode, "timeout_ms": 1_000}
            )
            if got.status_code == 200:
                answers[mode] += 1
                assert {row["id"] for row in got.json()["rows"]} <= left, mode
            else:
                answers[error_of(got)] += 1

    def is_over() -> bool:
        return steps(plane)[-1] == "RollbackEnded"

    with rolled_back(plane):
        standing = plane.cluster.indexers[1]
        standing.pause()
        try:
            lose(plane, 0, 3)
            wait_until(lambda: steps(plane).count("RollbackStarted") > before, "a rollback began")
            left |= set(plane.documents())
            await_newest(plane, 1)
            while not answers["index_rolling_back"] and not is_over():
                scan()
        finally:
            standing.resume()
        end_s = time.monotonic() + RECOVERED_S
        while not is_over() and time.monotonic() < end_s:
            scan()
    assert answers["index_rolling_back"], answers
    is_well(plane)


def test_a_scan_that_begins_after_the_branch_can_be_read_shows_nothing_of_what_was_lost(
    plant: Cluster, plane: LoggedPlane
) -> None:
    """Nobody can have begun a rollback: the master stands still. No store has written this history,
    so no other test can follow."""
    plane.stable(ADVANCE_S)
    master = plant.master()
    other = next(node for node in plant.running() if node != master)
    vbucket, seqno = next((v, int(s)) for v, s in enumerate(plane.high().seqnos) if s > 1)
    shown = plant.http.get(f"{plane.path}/vbuckets?failover_logs=true").json()
    known = shown["failover_logs"][vbucket]
    branches = [FailoverBranch(Vbuuid(int(b["vbuuid"])), Seqno(int(b["seqno"]))) for b in known]
    newest = FailoverBranch(Vbuuid(2**62), Seqno(seqno - 1))
    log = FailoverLog(plane.bucket, vbucket, (newest, *branches), 0)
    producer = Producer(plain_settings(plant.servers))
    body = {"bucket": plane.bucket, "name": BY_CITY.name, "timeout_ms": SCANNED_MS}
    wanted: list[Any] = ["consistent", {"at_least": {"vbuckets": {}}}]

    def scanned() -> list[Any]:
        asked = ({"json": {**body, "consistency": one}} for one in wanted)
        return [plant.ask(other, "POST", "/v1/scan", **one, timeout=60.0) for one in asked]

    assert [answer.status_code for answer in scanned()] == [200, 200]
    plant.nodes[master].pause()
    try:
        producer.produce(
            plant.topic(FAILOVER_LOG),
            codec.encode(log),
            f"{plane.bucket}/{vbucket}",
            partition=vbucket % STREAM_PARTITIONS,
        )
        assert producer.flush(30.0) == 0
        answers = scanned()
    finally:
        plant.nodes[master].resume()
    assert [error_of(answer) for answer in answers] == ["index_rolling_back"] * 2
