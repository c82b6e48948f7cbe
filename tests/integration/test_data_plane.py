"""From documents to scans, with every process real: indexes equal their oracles, whatever dies."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.kafka.topics import STREAM_BEGIN, STREAM_PARTITIONS
from tests.integration.cluster import Child, Cluster, wait_until
from tests.integration.data_plane import DataPlane, assert_rows
from tests.integration.some_documents import (
    PRIMARY,
    SPECS,
    some_documents,
)
from tests.integration.travel_specs import BY_CITY, BY_NAME, HIGH
from tests.support.oracle import rows

pytestmark = pytest.mark.integration

VBUCKETS = 32


def test_indexes_are_built_together_in_one_pass_and_kept_up_to_date(plant: Cluster) -> None:
    chance = random.Random(1)
    plane = DataPlane(plant, "travel", VBUCKETS)
    plane.write(some_documents(chance, 2_000, 1_500))
    plane.create(*SPECS)
    begun = [
        record
        for record in plant.records(STREAM_BEGIN, STREAM_PARTITIONS)
        if record.bucket == "travel" and record.kind == "backfill"
    ]
    with plant.client() as client:
        events = client.history(kind="index", bucket="travel", limit=1000)["events"]
    together = {event["txn"] for event in events if event["event"] == "BuildRouted"}
    # On a busy machine projectors may answer for one index before they do for the others.
    assert len(begun) == len({(r.vbucket, r.connection) for r in begun})
    assert len(begun) in range(VBUCKETS, VBUCKETS * len(together) + 1, VBUCKETS)
    plane.agrees()
    for _ in range(5):
        changes = some_documents(chance, 300, 2_000)
        deleted = dict.fromkeys(chance.sample(sorted(changes), 60))
        plane.write({**changes, **deleted})
    plane.agrees()


def test_an_index_that_is_not_deferred_is_built_by_itself(plant: Cluster) -> None:
    plane = DataPlane(plant, "prompt", VBUCKETS)
    plane.write(some_documents(random.Random(2), 300, 300))
    with plant.client() as client:
        client.create_index(BY_CITY.body("prompt"))
    plane.specs[BY_CITY.name] = BY_CITY
    plane.built()
    plane.agrees()


def test_an_index_is_built_while_documents_change(plant: Cluster) -> None:
    chance = random.Random(3)
    plane = DataPlane(plant, "lively", VBUCKETS)
    plane.write(some_documents(chance, 3_000, 3_000))
    plane.create(*SPECS, build=False)
    with plant.client() as client:
        client.build_indexes(bucket="lively")
    while plane.index("by_name")["state"] != "maintenance":
        changes = some_documents(chance, 50, 3_000)
        deleted = dict.fromkeys(chance.sample(sorted(changes), 10))
        plane.write({**changes, **deleted})
    plane.built()
    plane.agrees()


def test_a_second_build_starts_from_nothing_while_the_first_index_serves(plant: Cluster) -> None:
    chance = random.Random(4)
    plane = DataPlane(plant, "second", VBUCKETS)
    plane.write(some_documents(chance, 500, 500))
    plane.create(BY_CITY)
    plane.write(some_documents(chance, 500, 700))
    plane.create(BY_NAME)
    plane.agrees()


def test_connections_go_on_while_vbuckets_move_between_nodes(plant: Cluster) -> None:
    """A projector opens a connection for what has moved to it, and for nothing else."""
    chance = random.Random(7)
    plane = DataPlane(plant, "moving", VBUCKETS)
    plane.write(some_documents(chance, 500, 500))
    plane.create(BY_CITY, PRIMARY)
    first = _streaming(plane, {0: [VBUCKETS // 2], 1: [VBUCKETS // 2]})
    _move(plane, 1, 3)
    second = _streaming(plane, {0: [VBUCKETS // 2 - 3], 1: [3, VBUCKETS // 2]})
    plane.write(some_documents(chance, 200, 600))
    _move(plane, 0, 5)
    third = _streaming(plane, {0: [5, VBUCKETS // 2 - 3], 1: [VBUCKETS // 2 - 2]})
    plane.write(some_documents(chance, 200, 700))
    assert first < second, "those of both projectors have gone on beside one more"
    assert len(first & third) == 2, "what was asked for anew is none of them"
    assert len(third - second) == 1
    plane.agrees()


def _move(plane: DataPlane, to: int, count: int) -> None:
    """Have a node take the first vbuckets that the other one owns."""
    shown = plane.cluster.http.get(f"{plane.path}/vbuckets").json()
    others = [v for v, owner in enumerate(shown["owners"]) if owner != to]
    _post_move(plane, to=to, vbuckets=others[:count])


def _post_move(plane: DataPlane, **body: Any) -> None:
    answer = plane.cluster.http.post(f"{plane.path}/move", json=body)
    assert answer.status_code == 200, answer.text


def _streaming(plane: DataPlane, wanted: dict[int, list[int]]) -> set[str]:
    """Wait until each node has connections of so many vbuckets; return the ids of all."""
    seen: dict[str, Any] = {}

    def are_there() -> bool:
        listed = plane.cluster.http.get(f"{plane.kv.url}/v1/connections").json()["connections"]
        seen.clear()
        for one in listed:
            if (one["bucket"], one["kind"]) == (plane.bucket, "maintenance"):
                seen[one["id"]] = one
        found: dict[int, list[int]] = {node: [] for node in wanted}
        for one in seen.values():
            found[one["node"]].append(one["vbuckets"])
        return {node: sorted(counts) for node, counts in found.items()} == wanted

    try:
        wait_until(are_there, "the connections are as they should be")
    except AssertionError as error:
        error.add_note(f"wanted {wanted}, found {seen}")
        raise
    return set(seen)


def test_dropping_an_index_leaves_the_others_alone(plant: Cluster) -> None:
    chance = random.Random(5)
    plane = DataPlane(plant, "dropping", VBUCKETS)
    plane.write(some_documents(chance, 2_000, 2_000))
    plane.create(*SPECS, build=False)
    with plant.client() as client:
        client.build_indexes(bucket="dropping")
    plane.drop("by_name")
    plane.built()
    plane.drop("high")
    plane.write(some_documents(chance, 200, 2_000))
    plane.agrees()
    plant.settled()


def test_a_bucket_keeps_the_number_of_vbuckets_that_the_store_has(plant: Cluster) -> None:
    plane = DataPlane(plant, "sized", 64)
    plane.create(BY_CITY)
    assert plant.state(1)["buckets"]["sized"]["vbuckets"] == 64


def test_a_scan_of_an_index_that_is_not_built_says_so(plant: Cluster) -> None:
    plane = DataPlane(plant, "unbuilt", VBUCKETS)
    plane.create(BY_CITY, build=False)
    body = {"bucket": "unbuilt", "name": "by_city"}
    answer = plant.ask(1, "POST", "/v1/scan", json=body)
    assert answer.status_code >= 400
    assert answer.json()["error"]["code"] == "index_not_ready", answer.text


def test_a_consistent_scan_shows_every_slice_exactly_at_the_timestamp(plant: Cluster) -> None:
    chance = random.Random(6)
    plane = DataPlane(plant, "stable", VBUCKETS)
    plane.write(some_documents(chance, 800, 1_000))
    plane.create(*SPECS)
    body = {"bucket": "stable", "name": "by_name", "consistency": "consistent", "timeout_ms": 2_000}
    answer = plant.ask(1, "POST", "/v1/scan", json=body)
    assert answer.json()["error"]["code"] == "no_stability_timestamp", answer.text
    for number in (1, 2, 3):
        then = plane.publish_timestamp(number)
        changes = some_documents(chance, 300, 1_000)
        plane.write({**changes, **dict.fromkeys(chance.sample(sorted(changes), 60))})
        for spec in SPECS:
            found = plane.scan(spec.name, consistency={"consistent": number})
            assert_rows(found, rows(spec, then), f"{spec.name} at timestamp {number}")
    plane.agrees()


# -- anything at all -----------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(-1e9, 1e9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(
    st.sampled_from(("country", "city", "name", "elevation")), VALUES, max_size=4
)
CHANGES = st.dictionaries(
    st.integers(0, 30).map(lambda n: f"d{n}"), st.none() | DOCUMENTS | VALUES, max_size=20
)


@pytest.mark.matrix
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(CHANGES, min_size=1, max_size=3))
def test_indexes_equal_their_oracles_after_any_changes(
    plant: Cluster, changes: list[dict[str, Any]]
) -> None:
    plane = _whatever(plant)
    for part in changes:
        plane.write(part)
    plane.agrees()


def _whatever(plant: Cluster) -> DataPlane:
    """Return the bucket that the examples share, with its indexes built."""
    plane = DataPlane(plant, "whatever", 8)
    with plant.client() as client:
        there = bool(client.list_indexes("whatever")["indexes"])
    if there:
        plane.specs = {spec.name: spec for spec in SPECS}
    else:
        plane.create(*SPECS)
    return plane


BACKFILL_DELAY_MS = 2_000
"""Each piece of a backfill comes so late: so there is a middle of it."""


# -- deaths --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "victim",
    [
        "indexer",
        # The mixture below kills each of these, too.
        pytest.param("node", marks=pytest.mark.matrix),
        pytest.param("projector", marks=pytest.mark.matrix),
        pytest.param("kv", marks=pytest.mark.matrix),
    ],
)
def test_a_build_ends_correctly_whoever_is_killed_in_the_middle_of_it(
    plant: Cluster, victim: str
) -> None:
    chance = random.Random(victim)
    plane = DataPlane(plant, f"killed-{victim}", VBUCKETS)
    plane.write(some_documents(chance, 6_000, 6_000))
    plane.create(BY_CITY)
    plane.create(BY_NAME, HIGH, PRIMARY, build=False)
    slow = plane.delay_backfills(BACKFILL_DELAY_MS)
    with plant.client() as client:
        client.build_indexes(bucket=plane.bucket)
    assert plant.kv is not None
    child = {
        "projector": plant.projectors[chance.randrange(2)],
        "indexer": plant.indexers[1],
        "kv": plant.kv,
        "node": plant.nodes[1],
    }[victim]
    for _ in range(2):
        plane.in_the_middle(BY_NAME.name)
        child.kill()
        if child is not plant.kv:
            plane.write(some_documents(chance, 300, 6_000))
        child.start()
        wait_until(lambda: child.runs and _answers(plant), f"{victim} is back")
        assert plane.index(BY_NAME.name)["state"] == "backfill", "it was not over when it was hit"
        if child is plant.kv:
            slow = plane.delay_backfills(BACKFILL_DELAY_MS)
    plane.end_fault(slow)
    plane.write(some_documents(chance, 300, 6_000))
    plane.built()
    plane.agrees()


def test_processes_that_are_stopped_impatiently_end_well(plant: Cluster) -> None:
    plane = DataPlane(plant, "impatient", VBUCKETS)
    plane.write(some_documents(random.Random(4), 300, 300))
    plane.create(BY_CITY)
    for child in reversed(plant.children):
        child.stop_impatiently()
    for child in plant.children:
        child.start()
    wait_until(lambda: _answers(plant), "the store is back")
    plant.master()
    plane.agrees()


def _answers(plant: Cluster) -> bool:
    assert plant.kv is not None
    return plant.http.get(f"{plant.kv.url}/v1/nodes").status_code == 200


MIXED_STEPS = int(os.environ.get("MIXED_STEPS", "12"))
MIXED_SEED = int(os.environ.get("MIXED_SEED", "7"))


def test_indexes_equal_their_oracles_after_any_mixture_of_work_and_deaths(plant: Cluster) -> None:
    """Loads, deletions, builds, drops, kills, moves and closed connections, as a seed has them.

    Each comes once before any comes again.
    """
    chance = random.Random(MIXED_SEED)
    plane = DataPlane(plant, f"mixed-{MIXED_SEED}", VBUCKETS)
    plane.write(some_documents(chance, 2_000, 2_500))
    plane.create(BY_CITY, HIGH, build=False)
    done = []
    steps = chance.sample(list(STEPS), len(STEPS)) + chance.choices(list(STEPS), k=MIXED_STEPS)
    for step in steps[:MIXED_STEPS]:
        done.append(step)
        STEPS[step](plant, plane, chance)
        changes = some_documents(chance, 200, 2_500)
        plane.write({**changes, **dict.fromkeys(chance.sample(sorted(changes), 50))})
    with plant.client() as client:
        if plane.specs:
            client.build_indexes(bucket=plane.bucket, names=list(plane.specs))
    plane.built()
    try:
        plane.agrees()
    except AssertionError as error:
        raise AssertionError(f"after {done}: {error}") from error


def _build(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    with plant.client() as client:
        client.build_indexes(bucket=plane.bucket)


def _create(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    absent = [spec for spec in SPECS if spec.name not in plane.specs]
    if absent:
        plane.create(chance.choice(absent), build=False)


def _drop(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    if len(plane.specs) > 1:
        plane.drop(chance.choice(sorted(plane.specs)))


def _kill(child: Child, plant: Cluster) -> None:
    child.kill()
    child.start()
    wait_until(lambda: child.runs and _answers(plant), f"{child.name} is back")


def _kill_projector(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    _kill(plant.projectors[chance.randrange(2)], plant)


def _kill_indexer(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    _kill(plant.indexers[1 + chance.randrange(3)], plant)


def _kill_node(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    _kill(plant.nodes[1], plant)
    plant.master()


def _kill_store(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    _kill(plane.kv, plant)


def _pause_projector(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    """Stop a projector until another generation of streams is due, and let it go on."""
    victim = plant.projectors[chance.randrange(2)]
    victim.pause()
    other = plant.projectors[1 - victim.projector]
    _kill(other, plant)
    victim.resume()


def _lose_storage(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    """An indexer comes back with an empty folder: what it held is built again."""
    victim = plant.indexers[1 + chance.randrange(3)]
    victim.kill()
    shutil.rmtree(victim.folder, ignore_errors=True)
    victim.start()


def _move_vbuckets(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    _post_move(plane, count=chance.randint(1, 8), to=chance.randrange(2))


def _close_connections(plant: Cluster, plane: DataPlane, chance: random.Random) -> None:
    url = f"{plane.kv.url}/v1/connections"
    for connection in plant.http.get(url).json()["connections"]:
        plant.http.delete(f"{url}/{connection['id']}")


STEPS: dict[str, Callable[[Cluster, DataPlane, random.Random], None]] = {
    "build": _build,
    "create": _create,
    "drop": _drop,
    "kill a projector": _kill_projector,
    "kill an indexer": _kill_indexer,
    "kill the node": _kill_node,
    "kill the store": _kill_store,
    "pause a projector": _pause_projector,
    "lose an indexer's storage": _lose_storage,
    "move vbuckets": _move_vbuckets,
    "close connections": _close_connections,
}
