"""Index what Debezium tells of a database: two tables of PostgreSQL, with all their changes.

    python examples/debezium/replay.py HOST:PORT     # of Kafka, as `indexctl run` tells

The messages are those of `changes.jsonl`, which Debezium's own engine has written (`record.py`).
This program writes them to topics, as Debezium would, and makes a bucket of each. Then it looks
whether indexes have what PostgreSQL had at the end (`tables.json`): if you write to the topics
yourself, they do not. To begin anew, drop the indexes, remove the buckets (`indexctl buckets remove
customers`), and delete the topics.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError

HERE = Path(__file__).parent
TABLES = ("customers", "order_lines")
BY_TAG = {"name": "by_tag", "bucket": "customers", "expressions": ["DISTINCT tags", "name"]}
BY_THING = {"name": "by_thing", "bucket": "order_lines", "expressions": ["thing", "count"]}
TIMEOUT_S = 60.0

Places = dict[str, dict[int, int]]
"""Of each topic the last offset that was written, by partition."""


def topic_of(table: str) -> str:
    return f"shop.public.{table}"


def make_topics(kafka: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 2})
    try:
        admin.list_topics(timeout=TIMEOUT_S / 6)
    except KafkaException as error:
        sys.exit(f"Kafka does not answer at {kafka}: {error.args[0].str()}")
    wanted = [NewTopic(topic_of(t), 2, config={"cleanup.policy": "compact"}) for t in TABLES]
    for made in admin.create_topics(wanted).values():
        try:
            made.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def replay(kafka: str) -> Places:
    """Write all messages in their order; return where the last ones are."""
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    places: Places = {topic_of(table): {} for table in TABLES}

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"a message was not written: {error}")
        places[message.topic()][message.partition()] = message.offset()

    for line in (HERE / "changes.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["topic"] in places:
            producer.produce(record["topic"], record["value"], record["key"], on_delivery=delivered)
    producer.flush(TIMEOUT_S)
    return places


def keys_of(client: Client, index: dict[str, Any], at: dict[int, int]) -> list[tuple[Any, ...]]:
    """Return the keys that an index has at or after some offsets."""
    made = client.create_index({**index, "if_not_exists": True})["index"]
    client.wait_until(made["id"], "maintenance")
    found = client.scan(made["id"], consistency={"at_least": {"offsets": at}})
    return [tuple(row["key"]) for row in found["rows"]]


def show(title: str, found: list[tuple[Any, ...]], wanted: list[tuple[Any, ...]]) -> None:
    print(f"{title}: {', '.join(' '.join(map(str, key)) for key in found)}")
    if found != sorted(wanted):
        sys.exit(f"that is not what PostgreSQL had: {sorted(wanted)}")


def main(kafka: str) -> None:
    make_topics(kafka)
    places = replay(kafka)
    tables = json.loads((HERE / "tables.json").read_text(encoding="utf-8"))
    with Client() as client:
        for table in TABLES:
            try:
                client.add_bucket(table, topic=topic_of(table), format="debezium-json")
            except CoordinatorError as error:
                if error.code != "bucket_exists":
                    raise
        tags = [(tag, row["name"]) for row in tables["customers"] for tag in row["tags"]]
        show("customers by tag", keys_of(client, BY_TAG, places[topic_of("customers")]), tags)
        things = [(row["thing"], row["count"]) for row in tables["order_lines"]]
        show("lines by thing", keys_of(client, BY_THING, places[topic_of("order_lines")]), things)


if __name__ == "__main__":
    try:
        main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
    except CoordinatorError as error:
        sys.exit(str(error))
