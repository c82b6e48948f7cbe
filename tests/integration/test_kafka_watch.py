"""Watching by the topics, without a node: what it tells is compared with what nodes tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from coordinator.client.kafka_watch import KafkaWatch
from coordinator.kafka.history_tail import HistoryTail
from tests.integration.cluster import Cluster, Keep, an_index

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(keep: Keep) -> Cluster:
    return keep(indexers=2)


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[KafkaWatch]:
    with KafkaWatch(cluster.servers, cluster.name) as made:
        yield made


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
            client.put_config(f"{name}/{number % 3}", {"n": number})
        client.drop_index(made)
        return int(client.delete_config(f"{name}/0")["cas"])


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


def test_while_clients_write_and_the_master_dies_each_change_is_told_once(
    cluster: Cluster, watch: KafkaWatch
) -> None:
    begin = change_something(cluster)
    with closing(watch.watch(begin)) as watching, ThreadPoolExecutor(3) as writers:
        made = [
            writers.submit(change_something, cluster, 20, f"by-{number}") for number in range(3)
        ]
        told = [next_change(watching)]
        cluster.nodes[cluster.master()].kill()
        last = max(writer.result() for writer in made)
        cluster.start()
        history = told_of(cluster, begin)
        assert history[-1]["cas"] >= last
        told += changes_up_to(watching, history[-1]["cas"])
    assert told[: len(history)] == history


def next_change(watching: Iterator[Told]) -> Told:
    event = next(one for one in watching if one["type"] == "change")
    del event["type"]
    return event


def test_what_comes_after_the_bookmark_waits_for_no_search(
    cluster: Cluster, watch: KafkaWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for the place took most of a second, in which the first changes waited."""
    searches: list[int] = []
    monkeypatch.setattr(HistoryTail, "_history", record(searches, HistoryTail._history))
    with closing(watch.watch("now")) as watching:
        assert next(watching)["type"] == "bookmark"
        assert len(searches) == 1
        change_something(cluster, 2, "after")
        assert next_change(watching)["kind"] == "index"
    assert len(searches) == 1


def record(calls: list[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function, which counts its calls."""

    def counted(*given: Any) -> Any:
        calls.append(1)
        return function(*given)

    return counted


def test_a_snapshot_and_its_changes_lead_to_the_state(cluster: Cluster, watch: KafkaWatch) -> None:
    change_something(cluster, 4)
    held: dict[str, int] = {}
    with closing(watch.watch("snapshot")) as watching:
        while (event := next(watching))["type"] == "snapshot":
            held[event["key"]] = event["cas"]
        assert event["type"] == "snapshot_end"
        change_something(cluster, 5)
        state = cluster.settled()
        for change in changes_up_to(watching, state["cas"]):
            if change["dropped"]:
                del held[change["key"]]
            else:
                held[change["key"]] = change["cas"]
    settings = {key[7:]: cas for key, cas in held.items() if key.startswith("config/")}
    assert settings == {key: setting["cas"] for key, setting in state["config"].items()}


@pytest.mark.parametrize(
    "filters",
    [
        {"kind": "index", "state": "dropping"},
        {"kind": ["setting", "bucket"]},
        {"bucket": "travel", "indexer": 1},
        {"index": "watched"},
        {"key": ["config/watched/0", "config/watched/1"]},
        {"principal": "coordinator"},
        {"bucket": "nowhere"},
    ],
    ids=str,
)
def test_a_filter_fits_what_it_fits_at_a_node(
    cluster: Cluster, watch: KafkaWatch, filters: dict[str, Any]
) -> None:
    change_something(cluster, 3)
    newest = cluster.settled()["cas"]
    expected = [event for event in told_of(cluster, **filters) if event["cas"] <= newest]
    with closing(watch.watch(0, **filters)) as watching:
        assert changes_up_to(watching, newest)[: len(expected)] == expected
