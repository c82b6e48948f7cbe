"""Copies of slices move between indexers: scans are exact all the time, whoever is killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster import Cluster, wait_until
from tests.integration.logged_plane import LoggedPlane, loaded_plane, some_change, stable_plant
from tests.integration.travel_specs import BY_CITY, BY_NAME, HIGH
from tests.support.oracle import Spec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

VBUCKETS = 32
DOCUMENTS = 400
SPECS: tuple[Spec, ...] = (BY_CITY, BY_NAME, HIGH)
LIMITS = {"period_ms": 300, "sync_missing_ms": 60_000}
MOVED_S = 60.0
ADVANCE_S = 30.0


@pytest.fixture(scope="module")
def plant(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("plant")
    with stable_plant(folder, broker.bootstrap_servers, LIMITS) as made:
        yield made


@pytest.fixture(scope="module")
def plane(plant: Cluster) -> LoggedPlane:
    return loaded_plane(plant, "moving", VBUCKETS, SPECS, DOCUMENTS)


def rebalance(plane: LoggedPlane, *moves: tuple[str, int, int | None, int]) -> str:
    """Begin to move copies: index, slice, from, to; return the id of the rebalance."""
    body = {
        "moves": [
            {"index": int(plane.index(name)["id"]), "slice": number, "from": source, "to": target}
            for name, number, source, target in moves
        ]
    }
    node = plane.cluster.running()[0]
    answer = plane.cluster.ask(node, "POST", "/v1/rebalance", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["rebalance"]["id"])


def shown(plane: LoggedPlane, rebalance_id: str) -> dict[str, Any]:
    node = plane.cluster.running()[0]
    found = plane.cluster.get(node, "/v1/rebalance?consistency=linearizable")["rebalances"]
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
    plane.is_exact(*seen)
    is_well(plane)
