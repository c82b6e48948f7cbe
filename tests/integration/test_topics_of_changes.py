"""Subscriptions on a real cluster: each change once, where they end, and whoever dies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.client.client import Client
from coordinator.client.errors import ConflictError, CoordinatorError, NotFoundError
from tests.integration.cluster import Cluster, error_of, read_partition, wait_until

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with cluster.client() as made:
        yield made


def change(client: Client, key: str, count: int = 3) -> list[int]:
    return [int(client.put_config(f"{key}/{n % 2}", {"n": n})["cas"]) for n in range(count)]


def received(client: Client, topic: str, subscriber: str, up_to: int) -> list[int]:
    """Return the CAS of all changes that a subscriber receives up to one, and acknowledge them."""
    found = []
    with closing(client.receive(topic, subscriber)) as events:
        for event in events:
            if event["type"] == "change":
                found.append(event["cas"])
            elif event["cas"] >= up_to:
                return found
    raise AssertionError("the subscription has ended")


def kafka_topic(cluster: Cluster, name: str) -> str:
    """Make a topic that is none of the cluster's, and return its name."""
    made = f"out-{cluster.name}-{name}"
    admin = AdminClient({"bootstrap.servers": cluster.servers})
    admin.create_topics([NewTopic(made, 1, 1)])[made].result(30)
    return made


def delivered(cluster: Cluster, topic: str) -> list[Told]:
    """Return what was delivered to a Kafka topic, and is committed."""
    return [
        json.loads(message.value() or b"") for message in read_partition(cluster.servers, topic)
    ]


def test_topics_are_added_listed_and_removed_and_a_name_is_taken_once(client: Client) -> None:
    added = client.add_topic("cities", kind="index", bucket=["travel", "world"])
    assert added["topic"]["filter"] == {"kind": ["index"], "bucket": ["travel", "world"]}
    with pytest.raises(ConflictError, match="topic_exists"):
        client.add_topic("cities")
    client.subscribe("cities", "router-1", state="maintenance")
    with pytest.raises(ConflictError, match="subscriber_exists"):
        client.subscribe("cities", "router-1")
    listed = {one["name"]: one["subscriptions"] for one in client.topics()["topics"]}
    assert listed["cities"] == 1
    with pytest.raises(ConflictError, match="topic_in_use"):
        client.remove_topic("cities")
    client.remove_topic("cities", with_subscriptions=True)
    for ask in (client.subscriptions, client.remove_topic):
        with pytest.raises(NotFoundError, match="topic_not_found"):
            ask("cities")


def test_a_repeat_of_a_subscription_gets_the_first_answer(client: Client) -> None:
    client.add_topic("repeated")
    first = client.subscribe("repeated", "a", request_id="subscribe-once")
    again = client.subscribe("repeated", "a", request_id="subscribe-once")
    assert again == first


def test_a_subscriber_receives_what_fits_both_filters_and_goes_on_where_it_was(
    client: Client,
) -> None:
    client.add_topic("settings", kind="setting")
    begin = client.put_config("before", 1)["cas"]
    client.subscribe("settings", "auditor", key=["config/seen/0", "config/seen/1"])
    first, _ = change(client, "seen"), change(client, "unseen")
    assert received(client, "settings", "auditor", first[-1]) == first
    second = change(client, "seen", 5)
    assert received(client, "settings", "auditor", second[-1]) == second
    row = client.subscription("settings", "auditor")["subscription"]
    assert (row["acknowledged"] >= second[-2], row["after"] >= begin) == (True, True)


def test_what_was_not_acknowledged_comes_again_on_every_node(
    cluster: Cluster, client: Client
) -> None:
    client.add_topic("again", kind="setting")
    client.subscribe("again", "one")
    made = change(client, "again", 4)
    for node in cluster.running():
        with cluster.client(node) as other:
            events = other.receive("again", "one", acknowledge=False)
            with closing(events):
                found = [next(e for e in events if e["type"] == "change")["cas"] for _ in made]
        assert found == made
    assert client.acknowledge("again", "one", made[1]) == {"acknowledged": made[1]}
    assert client.acknowledge("again", "one", made[0]) == {"acknowledged": made[1]}
    for node in cluster.running():
        with cluster.client(node) as other:
            assert received(other, "again", "one", made[-1])[:2] == made[2:]
            break


def test_nothing_above_the_cas_of_an_unsubscribe_is_delivered(client: Client) -> None:
    client.add_topic("ending")
    client.subscribe("ending", "one")
    made = change(client, "ending", 2)
    events = client.receive("ending", "one")
    with closing(events):
        found = [next(events)["cas"] for _ in range(3)]
        assert found[1:] == made
        ended = client.unsubscribe("ending", "one")["cas"]
        change(client, "ending", 2)
        rest = list(events)
    assert [e["type"] for e in rest if e["type"] != "bookmark"] == ["change", "unsubscribed"]
    assert {e["cas"] for e in rest if e["type"] != "bookmark"} == {ended}
    with pytest.raises(NotFoundError, match="subscription_not_found"):
        next(client.receive("ending", "one"))


def test_who_is_silent_expires_and_is_told_and_who_listens_does_not(client: Client) -> None:
    client.add_topic("silence", kind="setting")
    client.subscribe("silence", "silent", expires_after_ms=1_500)
    client.subscribe("silence", "listens", expires_after_ms=4_000)
    client.subscribe("silence", "silent-for-long", expires_after_ms=9_000)
    told: list[Told] = []
    with ThreadPoolExecutor(1) as pool:
        events = client.receive("silence", "listens")
        listening = pool.submit(lambda: next(e for e in events if e["type"] == "change"))
        for event in client.watch(after=0, kind="subscription"):
            if event.get("event") == "SubscriptionExpired":
                told.append(event)
            if len(told) == 2:
                break
        change(client, "silence", 1)
        assert listening.result(30)["key"] == "config/silence/0"
        events.close()
    states = {s["id"]: s["state"] for s in client.subscriptions("silence")["subscriptions"]}
    assert states == {"silent": "expired", "silent-for-long": "expired", "listens": "active"}
    with pytest.raises(CoordinatorError, match="subscription_expired") as expired:
        next(client.receive("silence", "silent"))
    assert expired.value.details["cas"] == told[0]["cas"]
    again = client.subscribe("silence", "silent")["subscription"]
    assert again["state"] == "active"


def behind(cluster: Cluster, subscriber: str) -> float:
    """Return by how many CAS a subscriber is behind, by the metrics of the master."""
    text = cluster.ask(cluster.master(), "GET", "/metrics").text
    (line,) = re.findall(
        rf'^coordinator_subscription_behind_cas{{subscriber="{subscriber}".*}} (.*)$', text, re.M
    )
    return float(line)


def test_who_lags_is_told_by_how_much(cluster: Cluster, client: Client) -> None:
    client.add_topic("lag", kind="setting")
    client.subscribe("lag", "slow")
    assert client.subscription("lag", "slow")["subscription"]["lag"]["changes"] == 0
    made = change(client, "lag", 5)
    lag = client.subscription("lag", "slow")["subscription"]["lag"]
    assert lag["changes"] == 5
    assert lag["cas"] >= made[-1] - made[0]
    client.acknowledge("lag", "slow", made[3])
    assert client.subscription("lag", "slow")["subscription"]["lag"]["changes"] == 1
    wait_until(lambda: behind(cluster, "slow") == 1 or None, "one change waits")
    client.acknowledge("lag", "slow", made[4])
    client.add_topic("nothing-that-it-wants")
    wait_until(lambda: behind(cluster, "slow") == 0 or None, "nothing waits")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"id": "1"}, "invalid_request"),
        ({"id": "a", "filter": {"kind": "nonsense"}}, "invalid_request"),
        ({"id": "a", "filter": {"colour": "red"}}, "invalid_request"),
        ({"id": "a", "after": 2**60}, "invalid_request"),
        ({"id": "a", "expires_after_ms": 1}, "invalid_request"),
        ({"id": "a", "deliver_to": "..", "expires_after_ms": None}, "invalid_request"),
        ({"id": "a", "deliver_to": "__consumer_offsets"}, "invalid_request"),
        ({"id": "a", "deliver_to": "out", "expires_after_ms": 5_000}, "invalid_request"),
    ],
)
def test_what_is_no_subscription_says_why(
    cluster: Cluster, body: dict[str, Any], code: str
) -> None:
    with cluster.client() as client:
        if "refused" not in {t["name"] for t in client.topics()["topics"]}:
            client.add_topic("refused")
    path = "/v1/topics/refused/subscriptions"
    answer = cluster.ask(cluster.master(), "POST", path, json=body)
    assert (answer.status_code, error_of(answer)) == (400, code)
    own = {"id": "a", "deliver_to": cluster.topic("history")}
    answer = cluster.ask(cluster.master(), "POST", path, json=own)
    assert (answer.status_code, error_of(answer)) == (400, "invalid_request")


def test_changes_are_delivered_to_kafka_each_once_whatever_master_dies(
    make_cluster: Callable[..., Cluster],
) -> None:
    cluster = make_cluster(indexers=0).start()
    out = kafka_topic(cluster, "changes")
    with cluster.client() as client:
        client.add_topic("all", kind="setting")
        client.subscribe("all", "warehouse", deliver_to=out)
        with pytest.raises(CoordinatorError, match="delivered_elsewhere"):
            next(client.receive("all", "warehouse"))
        made: list[int] = []
        for round_ in range(3):
            made += change(client, f"round-{round_}", 20)
            master = cluster.master()
            cluster.nodes[master].kill()
            made += change(client, f"after-{round_}", 5)
            cluster.nodes[master].start()
            cluster.settled()
        wait_until(
            lambda: len(delivered(cluster, out)) >= len(made) or None, "all changes are delivered"
        )
        expected = list(client.history_all(after=made[0] - 1, kind="setting"))
        assert [e["cas"] for e in delivered(cluster, out)] == [e["cas"] for e in expected]
        assert delivered(cluster, out) == expected
        ended = client.unsubscribe("all", "warehouse")["cas"]
        more = change(client, "more", 3)
        assert all(e["cas"] < ended for e in delivered(cluster, out))
        assert more[0] > ended
        keys = [message.key() for message in read_partition(cluster.servers, out)]
        assert keys == [e["key"].encode() for e in expected]


def test_a_kafka_topic_that_is_gone_is_told_and_hurts_nobody_else(
    cluster: Cluster, client: Client
) -> None:
    good = kafka_topic(cluster, "good")
    client.add_topic("two", kind="setting")
    client.subscribe("two", "bad", deliver_to="no/such topic".replace("/", "-").replace(" ", "-"))
    client.subscribe("two", "good", deliver_to=good)
    made = change(client, "two", 5)
    wait_until(lambda: len(delivered(cluster, good)) >= 5 or None, "the good one gets all")
    assert [e["cas"] for e in delivered(cluster, good)] == made
