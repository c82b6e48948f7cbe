"""The prepare phase of DDL on real indexers: refusals, silence, and where slices go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.client.errors import CoordinatorError
from coordinator.client.request_ids import new_request_id
from coordinator.embedded.broker import Broker
from tests.integration.cluster import Cluster, an_index, error_of, wait_until

pytestmark = pytest.mark.integration

ZONES = {1: "east", 2: "east", 3: "west", 4: "west"}
DDL_TIMEOUT_MS = 3_000


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    options = ("--ddl-timeout-ms", str(DDL_TIMEOUT_MS))
    with Cluster(
        folder, broker.bootstrap_servers, indexers=4, zones=ZONES, options=options
    ) as running:
        yield running.start()


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    """Each test ends without indexes, and without storage that stands for none."""
    yield
    for indexer in cluster.indexers.values():
        indexer.resume()
        indexer.limit_file_size()
    cluster.indexers_alive()
    with cluster.client() as client:
        for index in client.list_indexes()["indexes"]:
            client.drop_index(index["id"])
    _holds(cluster, {})
    cluster.settled()


def _holds(cluster: Cluster, wanted: dict[int, int]) -> None:
    """Wait until the indexers hold as many slices as `wanted` says, and 0 where it is silent."""
    master = cluster.master()

    def held() -> bool:
        rows = cluster.get(master, "/v1/indexers")["indexers"]
        return {r["id"]: r["allocated"] for r in rows} == {
            number: wanted.get(number, 0) for number in cluster.indexers
        }

    wait_until(held, f"the indexers hold {wanted}")


def _create(cluster: Cluster, **more: Any) -> dict[str, Any]:
    with cluster.client() as client:
        index: dict[str, Any] = client.create_index(an_index(**more))["index"]
        return index


def _refusal(cluster: Cluster, request: str = "", **more: Any) -> CoordinatorError:
    with pytest.raises(CoordinatorError) as refusal, cluster.client() as client:
        client.create_index(an_index(**more), request_id=request or None)
    return refusal.value


def test_an_indexer_that_refuses_undoes_the_index_everywhere(cluster: Cluster) -> None:
    cluster.indexers[2].limit_file_size(0)
    request = new_request_id()
    body: dict[str, Any] = {"name": "refused", "slices": 2, "nodes": [1, 2, 3]}
    refusal = _refusal(cluster, request, **body)
    assert refusal.code == "indexer_refused"
    assert "indexer 2: " in refusal.message
    assert "File too large" in refusal.message
    answer = cluster.ask(
        cluster.master(),
        "POST",
        "/v1/indexes",
        json=an_index(**body),
        headers={"Idempotency-Key": request},
    )
    assert (answer.status_code, error_of(answer)) == (409, "indexer_refused")
    _holds(cluster, {})

    cluster.indexers[2].limit_file_size()
    again = _create(cluster, **body)
    assert again["name"] == "refused"
    assert {e["master"] for e in again["topology"]["slices"]} <= {1, 2, 3}
    history = cluster.history()
    [key] = {
        e.mutation.key
        for e in history
        if (e.mutation.request, e.mutation.event) == (request, "IndexProposed")
    }
    life = [e.mutation.event for e in history if e.mutation.key == key]
    assert life == ["IndexProposed", "IndexUndone", "IndexForgotten"]


def test_an_indexer_that_stays_silent_counts_as_refusing(cluster: Cluster) -> None:
    cluster.indexers[3].pause()
    refusal = _refusal(cluster, name="silent", replicas=3)
    assert refusal.code == "indexer_refused"
    assert "indexers [3] did not answer" in refusal.message
    cluster.indexers[3].resume()
    _holds(cluster, {})
    cluster.indexers_alive()
    _create(cluster, name="silent", replicas=3)
    _holds(cluster, {1: 1, 2: 1, 3: 1, 4: 1})


def test_an_indexer_that_was_killed_finds_what_it_promised(cluster: Cluster) -> None:
    _create(cluster, name="kept", slices=3, replicas=3)
    _holds(cluster, dict.fromkeys(cluster.indexers, 3))
    cluster.indexers[4].kill()
    cluster.indexers[4].start()
    cluster.indexers_alive()
    _holds(cluster, dict.fromkeys(cluster.indexers, 3))


def test_copies_of_a_slice_are_on_different_indexers_and_zones(cluster: Cluster) -> None:
    index = _create(cluster, name="spread", slices=6, replicas=1)
    for piece in index["topology"]["slices"]:
        hosts = [piece["master"], *piece["replicas"]]
        assert len(set(hosts)) == 2
        assert {ZONES[host] for host in hosts} == {"east", "west"}
    _holds(cluster, dict.fromkeys(cluster.indexers, 3))
    four = _create(cluster, name="everywhere", replicas=3)
    [piece] = four["topology"]["slices"]
    assert sorted([piece["master"], *piece["replicas"]]) == [1, 2, 3, 4]


def test_named_indexers_are_used_and_no_others(cluster: Cluster) -> None:
    index = _create(cluster, name="named", slices=4, replicas=1, nodes=[2, 4])
    for piece in index["topology"]["slices"]:
        assert {piece["master"], *piece["replicas"]} == {2, 4}
    _holds(cluster, {2: 4, 4: 4})


def test_more_replicas_than_indexers_are_impossible(cluster: Cluster) -> None:
    impossible = [
        _refusal(cluster, name="too-many", replicas=4),
        _refusal(cluster, name="too-many", replicas=2, nodes=[1, 2]),
        _refusal(cluster, name="too-many", nodes=[1, 99]),
    ]
    assert [refusal.code for refusal in impossible] == ["placement_impossible"] * 3
    assert "too-many" not in [i["name"] for i in cluster.settled()["indexes"].values()]
