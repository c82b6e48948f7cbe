"""Indexes that are altered on a real cluster: at once, or by another that takes their place."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.client import Client
from coordinator.client.errors import ConflictError, NotFoundError
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import AlterIndex
from coordinator.kafka.topics import DDL
from tests.integration.cluster import Cluster, Keep, replies, wait_until
from tests.integration.data_plane import DataPlane, canonical
from tests.integration.travel_specs import BY_NAME
from tests.support.oracle import Document, Spec, get, rows

pytestmark = pytest.mark.integration

VBUCKETS = 8
BACKFILL_DELAY_MS = 300
BY_CITY = Spec("by_name", ("city",), lambda name, d: (get(d, "city"),), options={"slices": 2})


@pytest.fixture(scope="module")
def plant(keep: Keep) -> Cluster:
    """Three nodes, three indexers and a projector, that the tests of this module share."""
    return keep(projectors=1)


def documents(chance: random.Random, count: int) -> dict[str, Document]:
    return {
        f"d{chance.randrange(800)}": {
            "name": f"Port {chance.randrange(50)}",
            "city": chance.choice("xyz"),
        }
        for _ in range(count)
    }


@contextmanager
def a_bucket(plant: Cluster, bucket: str) -> Iterator[tuple[DataPlane, Client]]:
    """A bucket with documents, and one index of three slices with a replica each."""
    plane = DataPlane(plant, bucket, VBUCKETS)
    plane.write(documents(random.Random(1), 1_000))
    plane.create(BY_NAME)
    with plant.client() as client:
        yield plane, client


def test_a_rename_and_fewer_replicas_leave_the_entries_where_they_are(plant: Cluster) -> None:
    with a_bucket(plant, "in-place") as (plane, client):
        before = plane.index("by_name")
        told = client.alter_index(before["id"], {"name": "by_port", "replicas": 0})
        assert (told["index"]["id"], told["index"]["build"]) == (before["id"], before["build"])
        plane.specs["by_port"] = replace(plane.specs.pop("by_name"), name="by_port")
        plane.write(documents(random.Random(2), 300))
        plane.agrees()
        assert told["index"]["state"] == "maintenance"
        assert client.list_indexes("in-place", "by_name")["indexes"] == []

        def released() -> bool:
            held = client.indexers()["indexers"]
            return all(one["allocated"] == one["slices"] for one in held)

        wait_until(released, "the indexers have released the replicas")


@contextmanager
def writing(plane: DataPlane) -> Iterator[None]:
    """Documents are written until the end."""
    over = threading.Event()
    chance = random.Random(3)

    def write() -> None:
        while not over.is_set():
            plane.write(documents(chance, 50))

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(write)
        try:
            yield
        finally:
            over.set()
        going.result()


def test_an_index_is_rebuilt_while_it_is_written_and_scanned(plant: Cluster) -> None:
    """Each scan by the name finds an index that takes scans, before, during and after."""
    with a_bucket(plant, "rebuilt") as (plane, client), ThreadPoolExecutor(1) as pool:
        first = plane.index("by_name")
        slow = plane.delay_backfills(BACKFILL_DELAY_MS)
        changes = {"expressions": ["city"], "slices": 2, "replicas": 0}
        with writing(plane):
            altering = pool.submit(client.alter_index, first["id"], changes)
            widths = set()
            while not altering.done():
                found = plane.scan("by_name")
                assert found
                widths.add(plane.index("by_name")["id"])
            told = altering.result()
        plane.end_fault(slow)
        assert first["id"] in widths, "it was scanned while the other one was built"
        assert told["index"]["id"] != first["id"]
        plant.settled()
        plane.specs["by_name"] = BY_CITY
        plane.agrees()
        assert told["index"]["expressions"] == ["city"]


def test_a_scan_during_the_switch_has_the_rows_of_one_of_the_two(plant: Cluster) -> None:
    with a_bucket(plant, "switched") as (plane, client), ThreadPoolExecutor(1) as pool:
        first = plane.index("by_name")
        stored = plane.documents()
        allowed = [sorted(map(canonical, rows(spec, stored))) for spec in (BY_NAME, BY_CITY)]
        changes = {"expressions": ["city"], "slices": 2, "replicas": 0}
        begun = client.scan(bucket="switched", name="by_name", limit=10)
        altering = pool.submit(client.alter_index, first["id"], changes)
        while not altering.done():
            assert sorted(map(canonical, plane.scan("by_name"))) in allowed
        altering.result()
        with pytest.raises(NotFoundError, match="is gone") as gone:
            client.scan(bucket="switched", name="by_name", limit=10, after=begun["next"])
        assert gone.value.code == "index_not_found"
        assert sorted(map(canonical, plane.scan("by_name"))) == allowed[1]


def test_a_rebuild_goes_on_when_the_master_is_killed(plant: Cluster) -> None:
    request = new_request_id()
    with a_bucket(plant, "killed") as (plane, client), ThreadPoolExecutor(1) as pool:
        first = plane.index("by_name")
        slow = plane.delay_backfills(BACKFILL_DELAY_MS)
        changes = {"expressions": ["city"], "slices": 2, "replicas": 0, "name": "by_city"}
        altering = pool.submit(client.alter_index, first["id"], changes, request_id=request)

        def second() -> dict[str, Any] | None:
            listed = client.list_indexes("killed")["indexes"]
            return next((one for one in listed if one["replaces"] == first["id"]), None)

        made = wait_until(second, "the second index is there")
        master = plant.nodes[plant.master()]
        master.kill()
        plant.master(other_than=master.node)
        assert plane.index("by_name")["id"] == first["id"]
        plane.end_fault(slow)
        told = altering.result()
        assert told["index"]["id"] == made["id"]
        assert client.alter_index(first["id"], changes, request_id=request)["cas"] == told["cas"]
        master.start()
        plant.settled()
        proposed = [c for c in client.history_all(request=request) if c["event"] == "IndexProposed"]
        assert len(proposed) == 1
        plane.specs = {"by_city": replace(BY_CITY, name="by_city")}
        plane.agrees()


def test_a_build_that_is_not_wanted_any_more_is_ended_by_a_drop(plant: Cluster) -> None:
    with a_bucket(plant, "ended") as (plane, client), ThreadPoolExecutor(1) as pool:
        first = plane.index("by_name")
        slow = plane.delay_backfills(BACKFILL_DELAY_MS)
        altering = pool.submit(client.alter_index, first["id"], {"expressions": ["city"]})

        def second() -> dict[str, Any] | None:
            listed = client.list_indexes("ended")["indexes"]
            return next((one for one in listed if one["replaces"]), None)

        made = wait_until(second, "the second index is there")
        with pytest.raises(ConflictError, match="is being altered") as refusal:
            client.alter_index(first["id"], {"name": "other"})
        assert refusal.value.code == "index_altering"
        client.drop_index(made["id"])
        with pytest.raises(ConflictError) as ended:
            altering.result()
        assert ended.value.code == "alter_abandoned"
        plane.end_fault(slow)
        plane.agrees()


def test_an_alter_on_the_topic_is_answered_when_the_other_index_is_there(plant: Cluster) -> None:
    with a_bucket(plant, "published") as (plane, client):
        first = plane.index("by_name")
        asked = AlterIndex(bucket="published", name="by_name", where="city = 'x'")
        renamed = AlterIndex(bucket="published", name="by_name", new_name="other")
        for request, command in (("a-rebuild", asked), ("a-rename", renamed)):
            plant.publish(DDL, codec.encode_ddl(request, command))
            (reply,) = replies(plant, request)
            assert (reply.status, reply.error_code) == ("ok", "")
        shown = client.list_indexes("published", "other")["indexes"]
        assert [one["where"] for one in shown] == ["city = 'x'"]
        assert shown[0]["id"] != first["id"]
