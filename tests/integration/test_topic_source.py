"""Kafka topics as buckets, with every process real: indexes equal their oracles."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from coordinator.client.errors import ConflictError, CoordinatorError, NotFoundError
from coordinator.embedded import orders_example
from coordinator.kafka.topics import DEAD_LETTER
from tests.integration.cluster import DEADLINE_S, Cluster, wait_until
from tests.integration.some_documents import SPECS, some_documents
from tests.integration.topic_plane import COMPACTED, TopicPlane
from tests.integration.travel_specs import BY_CITY
from tests.support.raw_batches import batch, produce, zstd_bomb

pytestmark = pytest.mark.integration

PARTITIONS = 6
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_indexes_of_a_topic_are_built_and_kept_up_to_date(plant: Cluster) -> None:
    chance = random.Random(1)
    plane = TopicPlane(plant, "journeys", PARTITIONS)
    plane.write(some_documents(chance, 2_000, 1_500))
    plane.create(*SPECS)
    plane.agrees()
    for _ in range(5):
        changes = some_documents(chance, 300, 2_000)
        deleted = dict.fromkeys(chance.sample(sorted(changes), 60))
        plane.write({**changes, **deleted})
    plane.agrees()
    both = [PARTITIONS // 2] * 2
    wait_until(lambda: sorted(plane.owners().values()) == both, "each reads its share")


def test_a_projector_that_is_killed_is_replaced_by_the_others(plant: Cluster) -> None:
    chance = random.Random(2)
    plane = TopicPlane(plant, "shipments", PARTITIONS)
    plane.write(some_documents(chance, 500, 400))
    plane.create(BY_CITY)
    plane.all_owned()
    victim = plant.projectors[0]
    victim.kill()
    plane.write(some_documents(chance, 300, 500))
    plane.agrees()
    wait_until(lambda: plane.owners() == {1: PARTITIONS}, "the other one reads all")
    victim.start()

    def reads() -> bool:
        shown = (p for b in buckets_of(plant).values() for p in b["projectors"])
        return any(p["projector"] == 0 and p["owned"] for p in shown)

    wait_until(reads, "both read again")
    plane.all_owned()
    plane.write(some_documents(chance, 300, 500))
    plane.agrees()


def test_a_scan_sees_the_record_that_its_writer_knows_by_its_offset(plant: Cluster) -> None:
    plane = TopicPlane(plant, "reads", PARTITIONS)
    plane.create(BY_CITY)
    for number in range(20):
        offsets = plane.produce({f"d{number}": json.dumps({"country": f"c{number}"})})
        body = {"bucket": "reads", "name": BY_CITY.name, "count": True}
        scan = {"prefix": [f"c{number}"]}
        answer = plant.ask(
            plant.running()[0],
            "POST",
            "/v1/scan",
            json={**body, "scan": scan, "consistency": {"at_least": {"offsets": offsets}}},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["count"] == 1, (number, offsets)


@pytest.mark.parametrize(
    ("offsets", "text"),
    [({"9": 1}, "no 9"), ({"0": -1}, "offsets"), ({"x": 1}, "offsets")],
)
def test_offsets_that_no_partition_has_are_refused(
    plant: Cluster, offsets: dict[str, int], text: str
) -> None:
    if "others" not in buckets_of(plant):
        TopicPlane(plant, "others", PARTITIONS).create(BY_CITY)
    body = {"bucket": "others", "name": BY_CITY.name}
    body |= {"consistency": {"at_least": {"offsets": offsets}}}
    answer = plant.ask(plant.running()[0], "POST", "/v1/scan", json=body)
    assert answer.status_code == 400
    assert text in answer.text


def buckets_of(plant: Cluster) -> dict[str, Any]:
    shown = plant.get(plant.running()[0], "/v1/buckets")["buckets"]
    return {bucket["name"]: bucket for bucket in shown}


def test_what_is_no_document_is_a_dead_letter_and_reading_goes_on(plant: Cluster) -> None:
    plane = TopicPlane(plant, "garbage", 1, config={"retention.ms": "-1"})
    plane.write({"a": {"city": "Bern"}, "b": {"city": "Chur"}})
    plane.create(BY_CITY)
    bad: dict[str, str | bytes] = {"a": "{", "c" * 4_097: "{}"}
    (last,) = plane.produce(bad).values()
    plane.producer.produce(plane.topic, b"{}", key=b"\xff")
    plane.producer.produce(plane.topic, b"{}")
    plane.producer.flush(DEADLINE_S)
    assert produce(plant.servers, plane.topic, 0, batch(zstd_bomb(3), 3)) == last + 3
    plane.write({"d": {"city": "Davos"}, "é" * 2_048: {"city": "Genève" * 500}})
    del plane.held["a"]
    plane.agrees()

    def letters() -> dict[int, str]:
        found = plant.records(DEAD_LETTER, 1)
        return {one.offset: one.reason for one in found if one.topic == plane.topic}

    wanted = {last - 1: "bad_json", last: "key_too_long", last + 1: "bad_key", last + 2: "no_key"}
    wanted[last + 5] = "broken_batch"
    wait_until(lambda: letters().keys() == wanted.keys(), "each is a dead letter")
    assert {at: reason.partition(":")[0] for at, reason in letters().items()} == wanted
    wait_until(
        lambda: (
            sum(p["unreadable"] for p in buckets_of(plant)["garbage"]["projectors"]) == len(wanted)
        ),
        "they are counted",
    )


def test_a_topic_that_is_made_anew_is_a_rollback_to_nothing(plant: Cluster) -> None:
    chance = random.Random(3)
    plane = TopicPlane(plant, "anew", 2)
    plane.write(some_documents(chance, 300, 300))
    plane.create(BY_CITY)
    plane.agrees()
    plane.admin.delete_topics([plane.topic])[plane.topic].result(DEADLINE_S)
    wait_until(lambda: plane.topic not in plane.admin.list_topics().topics, "it is gone")
    wait_until(
        lambda: buckets_of(plant)["anew"]["projectors"][0]["problem"], "somebody has noticed"
    )
    plane.held.clear()
    plane.make_topic(2, COMPACTED)
    plane.write(some_documents(chance, 500, 400))
    wait_until(lambda: rollbacks_of(plant, "anew") == ["done"], "the bucket has gone back")
    plane.agrees()


def rollbacks_of(plant: Cluster, bucket: str) -> list[str]:
    shown = plant.get(plant.running()[0], "/v1/rollbacks")["rollbacks"]
    return [one["state"] for one in shown if one["bucket"] == bucket]


def test_a_bucket_is_removed_with_its_last_index_and_may_come_back(plant: Cluster) -> None:
    plane = TopicPlane(plant, "passing", 2)
    plane.write({"a": {"city": "Bern"}})
    plane.create(BY_CITY)
    with plant.client() as client:
        with pytest.raises(ConflictError, match="bucket_in_use"):
            client.remove_bucket("passing")
        plane.drop(BY_CITY.name)
        wait_until(lambda: not client.list_indexes("passing")["indexes"], "the index is gone")
        client.remove_bucket("passing")
        with pytest.raises(NotFoundError, match="bucket_not_found"):
            client.bucket("passing")
        client.add_bucket("passing", topic=plane.topic)
    plane.create(BY_CITY)
    plane.agrees()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"cleanup.policy": "delete", "retention.ms": "1000"}, "forgets"),
        ({"cleanup.policy": "delete,compact", "retention.ms": "1000"}, "forgets"),
        ({"retention.ms": "-1", "retention.bytes": "1000"}, "forgets"),
        ({"retention.ms": "-1"}, ""),
    ],
)
def test_a_topic_that_forgets_documents_is_refused(
    plant: Cluster, config: dict[str, str], text: str
) -> None:
    name = f"forgets{abs(hash(tuple(config.items())))}"
    if text:
        with pytest.raises(CoordinatorError, match="kafka_topic_unfit"):
            TopicPlane(plant, name, 1, config=config)
    else:
        plane = TopicPlane(plant, name, 1, config=config)
        plane.write({"a": {"city": "Bern"}, "b": {"city": "Chur"}})
        plane.write({"a": None, "c": {"city": "Davos"}})
        plane.create(BY_CITY)
        plane.write({"a": {"city": "Aarau"}})
        plane.agrees()


def test_topics_that_are_not_there_or_the_clusters_own_are_refused(plant: Cluster) -> None:
    with plant.client() as client:
        with pytest.raises(NotFoundError, match="kafka_topic_not_found"):
            client.add_bucket("none", topic="no-such-topic")
        with pytest.raises(CoordinatorError, match="kafka_topic_unfit"):
            client.add_bucket("none", topic=plant.topic(DEAD_LETTER))


def run(plant: Cluster, *example: str) -> str:
    """Run an example to its end; return what it has printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES.joinpath(*example)), plant.servers],
        env={**os.environ, "INDEXCTL_URL": ",".join(plant.urls)},
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_debezium_has_recorded_of_a_database_is_indexed_and_can_come_again(
    plant: Cluster,
) -> None:
    """The example compares the indexes with what PostgreSQL had, and fails if they differ."""
    admin = AdminClient({"bootstrap.servers": plant.servers, "log_level": 2})
    try:
        shown = run(plant, "debezium", "replay.py")
        assert shown.startswith('customers by tag: a "c" Eva, a, b Eva, back Fritz, moved Chloé')
        assert shown.splitlines()[1] == "lines by thing: clock 3, lamp 2, rug 9007199254740993"
        assert run(plant, "debezium", "replay.py") == shown
    finally:
        topics = ["shop.public.customers", "shop.public.order_lines"]
        for deleted in admin.delete_topics(topics).values():
            deleted.result(DEADLINE_S)


def test_the_example_of_orders_is_loaded_once_and_each_write_is_seen(plant: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": plant.servers, "log_level": 2})
    try:
        assert orders_example.load(plant.servers, plant.urls, 1) == orders_example.ORDERS
        assert orders_example.load(plant.servers, plant.urls, 1) == 0
        assert run(plant, "orders.py").count("and see") == 5
        with plant.client() as client:
            definition = {"name": "by_city", "bucket": "orders"}
            index = client.create_index({**definition, "expressions": ["country", "city"]})["index"]
            client.wait_until(index["id"], "maintenance")
            body = {"bucket": "orders", "name": "by_city", "count": True}
            for city in ("Bern", "Chur"):
                scan = {"equals": ["CH", city]}
                wanted = sum(order["city"] == city for _, order in orders_example.orders())
                assert client.scan(**body, scan=scan)["count"] == wanted
    finally:
        admin.delete_topics([orders_example.NAME])[orders_example.NAME].result(DEADLINE_S)
