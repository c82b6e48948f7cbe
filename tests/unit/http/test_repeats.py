"""A repeat under the same key gets the first outcome, whatever has changed around the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordinator.core.consensus import inputs as inp
from coordinator.kafka.document_topics import TopicFacts
from coordinator.kafka.errors import KafkaRefusal
from tests.support.indexes import make_indexer_beat
from tests.support.lone_api import LoneApi
from tests.support.lone_node import INDEXER, INDEXER_URL

KEY = {"Idempotency-Key": "018f0000-aaaa-bbbb-8000-000000000001"}
OTHER_KEY = {"Idempotency-Key": "018f0000-aaaa-bbbb-8000-000000000002"}
ORDERS = {"name": "orders", "source": {"topic": "orders"}}


@pytest.fixture
def api() -> Iterator[LoneApi]:
    made = LoneApi()
    yield made
    made.close()


def gone(topic: str) -> TopicFacts:
    raise KafkaRefusal("kafka_topic_not_found", f"Kafka has no topic {topic}")


def grown(topic: str) -> TopicFacts:
    return TopicFacts(topic, "id", 3)


@pytest.mark.parametrize("examine", [gone, grown])
def test_a_bucket_was_added_whatever_its_topic_is_now(api: LoneApi, examine: object) -> None:
    first = api.ask("POST", "/v1/buckets", ORDERS, **KEY)
    assert first.status_code == 201, first.text
    api.shell.examine_topic = examine
    again = api.ask("POST", "/v1/buckets", ORDERS, **KEY)
    assert (again.status_code, again.json()["txn"]) == (201, first.json()["txn"])


def test_who_did_not_ask_before_hears_what_the_topic_is(api: LoneApi) -> None:
    api.shell.examine_topic = gone
    assert (
        api.ask("POST", "/v1/buckets", ORDERS, **KEY).json()["error"]["code"]
        == "kafka_topic_not_found"
    )
    assert api.ask("POST", "/v1/buckets", ORDERS).json()["error"]["code"] == "kafka_topic_not_found"


@pytest.mark.parametrize("more", [{"If-Match": "0"}, {}])
def test_another_request_under_the_key_of_one_is_refused(
    api: LoneApi, more: dict[str, str]
) -> None:
    assert api.ask("POST", "/v1/buckets", ORDERS, **KEY).status_code == 201
    body = ORDERS if more else {**ORDERS, "name": "others"}
    assert (
        api.ask("POST", "/v1/buckets", body, **KEY, **more).json()["error"]["code"]
        == "request_mismatch"
    )


def test_a_rebalance_was_planned_whoever_is_away_now(api: LoneApi) -> None:
    lone = api.shell.lone
    index = {"bucket": "travel", "name": "by_city", "expressions": ["city"]}
    assert api.ask("POST", "/v1/indexes", index).status_code in (200, 201)
    beat = make_indexer_beat(1, incarnation=6, address=INDEXER_URL, at_ms=lone.wall_ms)
    lone.feed(inp.BeatsRead((beat,)))
    lone.until(lambda: 1 in lone.node.authority.indexers)
    body = {"drain": [INDEXER]}
    first = api.ask("POST", "/v1/rebalance", body, **KEY)
    assert first.status_code == 200, first.text
    for _ in range(100):
        lone.run(50)  # Indexer 1, the target, says nothing meanwhile.
    again = api.ask("POST", "/v1/rebalance", body, **KEY)
    assert (again.status_code, again.json()["txn"]) == (200, first.json()["txn"])
    assert api.ask("POST", "/v1/rebalance", body, **OTHER_KEY).status_code == 400
