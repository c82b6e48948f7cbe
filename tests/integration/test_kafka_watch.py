"""Watching by the topics, without a node: what it tells is compared with what nodes tell."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.client.kafka_watch import KafkaWatch
from coordinator.embedded.broker import Broker
from tests.integration.cluster import Cluster, an_index

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("kafka-watch")
    with Cluster(folder, broker.bootstrap_servers, indexers=2) as running:
        yield running.start()


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[KafkaWatch]:
    with KafkaWatch(cluster.servers, cluster.name) as made:
        yield made
    assert [t.name for t in threading.enumerate() if "kafka-watch" in t.name] == []


def told_of(cluster: Cluster, after: int = 0, **filters: Any) -> list[Told]:
    """Return what the nodes tell of the past: the oracle."""
    with cluster.client() as client:
        return list(client.history_all(after=after, limit=1_000, **filters))


def changes_up_to(watching: Iterator[Told], cas: int) -> list[Told]:
    """Return the changes that a watch tells, until it has told of all up to a CAS."""
    found = []
    for event in watching:
        if event["type"] == "change":
            found.append({name: value for name, value in event.items() if name != "type"})
        if event.get("cas", 0) >= cas and event["type"] in ("bookmark", "change"):
            return found
    raise AssertionError("the watch has ended")


def change_something(cluster: Cluster, count: int = 10, name: str = "watched") -> int:
    """Change settings and an index; return the last CAS."""
    with cluster.client() as client:
        made = client.create_index(an_index(name, "travel"))["index"]["id"]
        for number in range(count):
            client.put_config(f"w/{number % 3}", {"n": number})
        client.drop_index(made)
        return int(client.delete_config("w/0")["cas"])


def test_from_the_start_and_from_every_tenth_cas_it_tells_the_whole_history(
    cluster: Cluster, watch: KafkaWatch
) -> None:
    last = change_something(cluster)
    history = told_of(cluster)
    for after in (0, *(event["cas"] for event in history[::10])):
        expected = [event for event in history if event["cas"] > after]
        told = changes_up_to(watch.watch(after), history[-1]["cas"])
        assert told[: len(expected)] == expected
        assert told[-1]["cas"] >= last
