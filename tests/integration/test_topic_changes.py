"""What a topic or its bucket becomes while nobody looks: its indexes follow in the end."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.integration.cluster import DEADLINE_S, Cluster, Keep, wait_until
from tests.integration.some_documents import some_documents
from tests.integration.topic_plane import COMPACTED, TopicPlane
from tests.integration.travel_specs import BY_CITY

pytestmark = pytest.mark.integration

LONG_S = 150.0
FORGETFUL = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


@pytest.fixture(scope="module")
def plant(keep: Keep) -> Cluster:
    """One node, two indexers and one projector, that the tests of this module share."""
    return keep(nodes=1, indexers=2, projectors=1)


def agrees(plane: TopicPlane) -> bool:
    try:
        plane.agrees()
    except AssertionError:
        return False
    return True


def follows(plane: TopicPlane) -> None:
    wait_until(lambda: agrees(plane), "the index is that of the topic", LONG_S)


def documents(first: int, count: int) -> dict[str, Any]:
    return {f"d{n}": {"country": "CH", "city": f"c{n}"} for n in range(first, first + count)}


@contextmanager
def asleep(plant: Cluster) -> Iterator[None]:
    """The projector sleeps meanwhile, and hears of all of it at once."""
    plant.projectors[0].pause()
    try:
        yield
    finally:
        plant.projectors[0].resume()


def test_who_was_away_for_longer_than_deletions_are_kept_reads_all_of_the_topic_again(
    plant: Cluster,
) -> None:
    """A deletion is gone without a trace: nobody could tell whether there was one."""
    plane = TopicPlane(plant, "away", 1, config=FORGETFUL)
    plane.write(documents(0, 20))
    plane.create(BY_CITY)
    plane.agrees()
    assert not problem(plant, "away")
    plant.projectors[0].kill()
    plane.write({**documents(20, 20), "d0": None})
    gone_s = time.monotonic() + 3
    wait_until(lambda: time.monotonic() > gone_s, "the deletion may be forgotten")
    plant.projectors[0].start()
    wait_until(lambda: plane.reading() == 1, "the topic is read again", LONG_S)
    follows(plane)
    wait_until(lambda: "RollbackEnded" in plane.events("rollback"), "the rollback is over")
    wait_until(lambda: not problem(plant, "away"), "nothing is wrong any more")
    plane.write(documents(40, 5))
    follows(plane)
    assert plane.reading() == 1
    assert plane.events("rollback").count("RollbackEnded") == 1
    assert len(plane.events("stream")) < 10, "streams are not renewed again and again"


def problem(plant: Cluster, bucket: str) -> str:
    """Return what the projector says is wrong with a topic."""
    found = plant.get(1, f"/v1/buckets/{bucket}")["bucket"]["projectors"]
    return str(found[0]["problem"] or "") if found else ""


def test_a_bucket_that_is_added_again_with_another_format_is_read_in_that(plant: Cluster) -> None:
    plane = TopicPlane(plant, "formats", 2)

    def write(first: int, count: int) -> None:
        for name, document in documents(first, count).items():
            plane.held[name] = document
            event = {"op": "c", "after": document}
            plane.produce({json.dumps({"id": name}): json.dumps(event)})

    write(0, 20)
    plane.create(BY_CITY)
    with asleep(plant), plant.client() as client:
        plane.drop(BY_CITY.name)
        wait_until(lambda: not client.list_indexes("formats")["indexes"], "the index is gone")
        client.remove_bucket("formats")
        client.add_bucket("formats", topic=plane.topic, format="debezium-json")
        plane.create(BY_CITY, build=False)
        client.build_indexes(bucket="formats", names=[BY_CITY.name])
    plane.built(BY_CITY.name)
    write(20, 20)
    follows(plane)


def test_a_bucket_that_is_added_again_with_another_topic_is_read_from_that(
    plant: Cluster,
) -> None:
    plane = TopicPlane(plant, "other", 2)
    plane.write(documents(0, 50))
    plane.create(BY_CITY)
    plane.agrees()
    plane.topic = f"{plane.topic}-two"
    plane.make_topic(2, COMPACTED)
    plane.held.clear()
    plane.write(documents(30, 60))
    with asleep(plant), plant.client() as client:
        plane.drop(BY_CITY.name)
        wait_until(lambda: not client.list_indexes("other")["indexes"], "the index is gone")
        client.remove_bucket("other")
        client.add_bucket("other", topic=plane.topic)
        plane.create(BY_CITY, build=False)
        client.build_indexes(bucket="other", names=[BY_CITY.name])
    plane.built(BY_CITY.name)
    plane.write(documents(90, 20))
    follows(plane)


def test_a_topic_that_is_made_anew_with_more_partitions_is_told_of_and_heals(
    plant: Cluster,
) -> None:
    chance = random.Random(5)
    plane = TopicPlane(plant, "sizes", 2)
    plane.write(some_documents(chance, 100, 100))
    plane.create(BY_CITY)
    plane.agrees()

    def made(partitions: int) -> bool:
        wanted = NewTopic(plane.topic, partitions, 1, config=COMPACTED)
        try:
            plane.admin.create_topics([wanted])[plane.topic].result(DEADLINE_S)
        except KafkaException:
            return False
        return True

    for partitions in (3, 2):
        plane.admin.delete_topics([plane.topic])[plane.topic].result(DEADLINE_S)
        wait_until(partial(made, partitions), "the topic is made")
        if partitions == 3:
            wait_until(lambda: "3 partitions" in problem(plant, "sizes"), "the problem is told")
    wait_until(lambda: not problem(plant, "sizes"), "it is well again")
    plane.held.clear()
    plane.write(some_documents(chance, 100, 100))
    follows(plane)
