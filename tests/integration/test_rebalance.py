"""Copies of slices move between indexers: scans are exact all the time, whoever is killed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from coordinator.client.errors import CoordinatorError
from coordinator.core.catalog.rebalances import NOBODY_LEFT
from tests.integration.cluster import Child, Cluster, wait_until
from tests.integration.logged_plane import LoggedPlane, drop_all, loaded_plane, some_change
from tests.integration.travel_specs import BY_CITY, BY_NAME, BY_TAG, HIGH
from tests.support.oracle import Spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

VBUCKETS = 32
DOCUMENTS = 400
BY_PAIR = replace(BY_CITY, name="by_pair", options={"slices": 2})
SPECS: tuple[Spec, ...] = (BY_CITY, BY_NAME, HIGH, BY_PAIR, BY_TAG)
LIMITS = {"period_ms": 300, "sync_missing_ms": 60_000}
MOVED_S = 120.0
ADVANCE_S = 120.0


@pytest.fixture(scope="module")
def plant(stable_plant: Cluster) -> Cluster:
    return stable_plant


@pytest.fixture(scope="module")
def plane(plant: Cluster) -> Iterator[LoggedPlane]:
    made = loaded_plane(plant, "moving", VBUCKETS, SPECS, DOCUMENTS, LIMITS)
    yield made
    drop_all(plant)


def rebalance(plane: LoggedPlane, *moves: tuple[str, int, int | None, int]) -> str:
    """Begin to move copies: index, slice, from, to; return the id of the rebalance."""
    named = [
        {"index": int(plane.index(name)["id"]), "slice": number, "from": source, "to": target}
        for name, number, source, target in moves
    ]
    with plane.cluster.client() as client:
        return str(client.rebalance(moves=named)["rebalance"]["id"])


def shown(plane: LoggedPlane, rebalance_id: str) -> dict[str, Any]:
    with plane.cluster.client() as client:
        found = client.list_rebalances(consistency="linearizable")["rebalances"]
    return next(one for one in found if one["id"] == rebalance_id)


def ended(plane: LoggedPlane, rebalance_id: str) -> dict[str, Any]:
    """Wait until a rebalance is over, and return it."""

    def is_over() -> dict[str, Any] | None:
        found = shown(plane, rebalance_id)
        return found if found["state"] in ("done", "cancelled") else None

    try:
        return wait_until(is_over, f"rebalance {rebalance_id} is over", MOVED_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {shown(plane, rebalance_id)}") from None


def free(plane: LoggedPlane, name: str, number: int) -> tuple[int, int]:
    """Return who serves a slice as master, and an indexer that has no copy of it."""
    piece = plane.index(name)["topology"]["slices"][number]
    hosts = {piece["master"], *piece["replicas"]}
    return piece["master"], next(i for i in plane.cluster.indexers if i not in hosts)


def is_well(plane: LoggedPlane) -> None:
    plane.agrees()
    number = plane.stable(ADVANCE_S)
    plane.is_exact(*(plane.scanned(spec.name, number) for spec in SPECS))


@contextmanager
def slowly_filled(plane: LoggedPlane) -> Iterator[None]:
    """Let indexers take over a few documents a second, until the block ends."""
    with plane.cluster.client() as client:
        client.put_config("rebalance", {"documents_per_s": 8})
        try:
            yield
        finally:
            client.put_config("rebalance", {"documents_per_s": 0})


def said_by(plane: LoggedPlane, indexer: int) -> str:
    return plane.cluster.indexers[indexer].log.read_text()


def test_a_slice_moves_while_it_is_written_and_scanned(plane: LoggedPlane) -> None:
    chance = random.Random(7)
    source, target = free(plane, "by_city", 0)
    third, fourth = free(plane, "by_name", 1)
    seen = []
    with plane.being_written(lambda: some_change(chance, DOCUMENTS)):
        moving = rebalance(plane, ("by_city", 0, source, target), ("by_name", 1, third, fourth))
        while shown(plane, moving)["state"] == "running":
            seen += [plane.scanned(spec.name) for spec in SPECS]
        found = ended(plane, moving)
    assert [move["state"] for move in found["moves"]] == ["done", "done"], found
    assert plane.index("by_city")["topology"]["slices"][0]["master"] == target
    for move, indexer in zip(found["moves"], (target, fourth), strict=True):
        assert f"index {move['part']}: has " in said_by(plane, indexer), "no projector has sent it"
    plane.is_exact(*seen)
    is_well(plane)


@pytest.mark.matrix
def test_slices_that_move_to_one_indexer_are_one_part(plane: LoggedPlane) -> None:
    chance = random.Random(12)
    masters = [piece["master"] for piece in plane.index("by_pair")["topology"]["slices"]]
    target = next(i for i in plane.cluster.indexers if i not in masters)
    moves = [("by_pair", number, master, target) for number, master in enumerate(masters)]
    with plane.being_written(lambda: some_change(chance, DOCUMENTS)):
        found = ended(plane, rebalance(plane, *moves))
    assert [move["state"] for move in found["moves"]] == ["done", "done"], found
    assert len({move["part"] for move in found["moves"]}) == 1
    assert [p["master"] for p in plane.index("by_pair")["topology"]["slices"]] == [target] * 2
    is_well(plane)


def on(plane: LoggedPlane, indexer: int) -> int:
    """Return how many slices an indexer holds, as it says itself."""
    node = plane.cluster.running()[0]
    rows = plane.cluster.get(node, "/v1/indexers")["indexers"]
    return next(int(row["slices"]) for row in rows if row["id"] == indexer)


def allocated(plane: LoggedPlane, indexer: int) -> int:
    node = plane.cluster.running()[0]
    rows = plane.cluster.get(node, "/v1/indexers")["indexers"]
    return next(int(row["allocated"]) for row in rows if row["id"] == indexer)


def known(plane: LoggedPlane) -> set[int]:
    """Return the indexers that are registered."""
    node = plane.cluster.running()[0]
    rows = plane.cluster.get(node, "/v1/indexers")["indexers"]
    return {row["id"] for row in rows if row["registered"]}


def indexctl(plane: LoggedPlane, *args: str) -> str:
    """Run a command against the cluster; return what it printed."""
    entry = "from coordinator.cli.entry import main; main()"
    command = [sys.executable, "-c", entry, *args, "--url", ",".join(plane.cluster.urls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * MOVED_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.matrix
def test_an_indexer_is_emptied_and_filled_again(plane: LoggedPlane) -> None:
    chance = random.Random(8)
    with plane.being_written(lambda: some_change(chance, DOCUMENTS)):
        told = indexctl(plane, "drain", "2", "--wait", "--timeout", "100")
        assert "indexer 2: " in told
    wait_until(lambda: allocated(plane, 2) == 0, "indexer 2 holds nothing", MOVED_S)
    is_well(plane)
    with plane.cluster.client() as client:
        planned = client.rebalance(drain=[2], dry_run=True)["rebalance"]
        for dry_run in (True, False):
            with pytest.raises(CoordinatorError, match=NOBODY_LEFT):
                client.rebalance(drain=sorted(known(plane)), dry_run=dry_run)
    assert [move for move in planned["moves"] if "2" in (move["from"], move["to"])] == []
    indexctl(plane, "rebalance", "--wait", "--timeout", "100")
    assert on(plane, 2) > 0
    is_well(plane)


# -- who dies meanwhile ---------------------------------------------------------------------------


def _kill(one: Child, until: Callable[[], object]) -> None:
    one.kill()
    until()
    one.start()


def _kill_master(plant: Cluster, source: int, target: int) -> None:
    old = plant.master()
    _kill(plant.nodes[old], lambda: plant.master(other_than=old))


def _kill_target(plant: Cluster, source: int, target: int) -> None:
    _kill(plant.indexers[target], lambda: None)


def _kill_source(plant: Cluster, source: int, target: int) -> None:
    _kill(plant.indexers[source], lambda: None)


def _kill_projector(plant: Cluster, source: int, target: int) -> None:
    _kill(plant.projectors[0], lambda: None)


FAULTS: dict[str, Callable[[Cluster, int, int], None]] = {
    "master": _kill_master,
    "target": _kill_target,
    "source": _kill_source,
    "projector": _kill_projector,
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("target", marks=pytest.mark.matrix),
        pytest.param("master", marks=pytest.mark.matrix),
        pytest.param("source", marks=pytest.mark.matrix),
        pytest.param("projector", marks=pytest.mark.matrix),
    ],
)
def test_whoever_is_killed_while_a_copy_is_built_the_move_goes_on(
    plane: LoggedPlane, fault: str
) -> None:
    chance = random.Random(9)
    source, target = free(plane, "by_city", 0)
    with plane.being_written(lambda: some_change(chance, DOCUMENTS)):
        with slowly_filled(plane):
            moving = rebalance(plane, ("by_city", 0, source, target))
            wait_until(lambda: is_being_filled(plane, moving), "the copy is being built", MOVED_S)
            FAULTS[fault](plane.cluster, source, target)
        [move] = ended(plane, moving)["moves"]
        assert (move["state"], move["reason"]) == ("done", None)
    wait_until(lambda: are_scanned(plane), "every slice answers", MOVED_S)
    is_well(plane)


def is_being_filled(plane: LoggedPlane, rebalance_id: str) -> bool:
    """Tell whether some of what moves is at its target, and not all."""
    [move] = shown(plane, rebalance_id)["moves"]
    progress = move["progress"]
    return move["state"] == "pending" and bool(progress) and 0 < progress["percent"] < 100


def are_scanned(plane: LoggedPlane) -> bool:
    """Tell whether each slice of each index answers."""
    bodies = ({"bucket": plane.bucket, "name": spec.name, "timeout_ms": 1_000} for spec in SPECS)
    return all(
        plane.cluster.ask(plane.cluster.running()[0], "POST", "/v1/scan", json=body).is_success
        for body in bodies
    )


def test_a_rebalance_that_is_cancelled_changes_nothing(plane: LoggedPlane) -> None:
    source, target = free(plane, "by_city", 0)
    with slowly_filled(plane):
        moving = rebalance(plane, ("by_city", 0, source, target))
        wait_until(lambda: is_being_filled(plane, moving), "the copy is being built", MOVED_S)
        indexctl(plane, "rebalance", "--cancel", moving)
        found = ended(plane, moving)
    assert (found["state"], found["moves"][0]["state"]) == ("cancelled", "cancelled")
    assert plane.index("by_city")["topology"]["slices"][0]["master"] == source
    is_well(plane)


def test_an_index_that_is_dropped_while_it_moves_is_gone_everywhere(plane: LoggedPlane) -> None:
    extra = replace(BY_CITY, name="extra")
    plane.create(extra)
    source, target = free(plane, "extra", 0)
    with slowly_filled(plane):
        moving = rebalance(plane, ("extra", 0, source, target))
        wait_until(lambda: is_being_filled(plane, moving), "the copy is being built", MOVED_S)
        plane.drop("extra")
        [move] = ended(plane, moving)["moves"]
    assert (move["state"], move["reason"]) == ("failed", "the index was dropped")
    wanted = {i: on(plane, i) for i in plane.cluster.indexers}

    def released() -> bool:
        return all(allocated(plane, i) == on(plane, i) for i in wanted)

    wait_until(released, "its storage is released", MOVED_S)
    is_well(plane)


@pytest.mark.matrix
def test_copies_of_an_indexer_that_is_lost_are_made_anew(plane: LoggedPlane) -> None:
    """And when it comes back, it has nothing of them any more."""
    indexctl(plane, "rebalance", "--wait", "--timeout", "100")
    source, _ = free(plane, "by_city", 0)
    with plane.cluster.client() as client:
        before = len(client.list_rebalances()["rebalances"])
        client.put_config("repair", {"after_s": 4})
        plane.cluster.indexers[source].kill()

        def repaired() -> bool:
            found = client.list_rebalances()["rebalances"]
            return len(found) > before and found[0]["state"] == "done"

        try:
            wait_until(repaired, "the copies are made anew", 2 * MOVED_S)
        except AssertionError as error:
            newest = client.list_rebalances()["rebalances"][0]
            raise AssertionError(f"{error}: {newest}") from None
        client.put_config("repair", {"after_s": 0})
    assert plane.index("by_city")["topology"]["slices"][0]["master"] != source
    wait_until(lambda: are_scanned(plane), "every slice answers", MOVED_S)
    is_well(plane)
    indexctl(plane, "indexers", "remove", str(source))
    wait_until(lambda: source not in known(plane), "it is forgotten")
    plane.cluster.indexers[source].start()
    wait_until(lambda: source in known(plane), "it is registered again", MOVED_S)
    wait_until(lambda: allocated(plane, source) == 0, "it has released everything", MOVED_S)
    indexctl(plane, "rebalance", "--wait", "--timeout", "100")
    is_well(plane)
