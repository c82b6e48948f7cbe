"""The example of a Kafka topic as a bucket: orders of a shop, in the topic and bucket `orders`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError
from coordinator.kafka.address import client_settings

NAME = "orders"
PARTITIONS = 4
ORDERS = 10_000
SEED = 26
TIMEOUT_S = 60.0

PLACES = (
    *(("CH", "Bern"), ("CH", "Chur"), ("CH", "Zürich"), ("DE", "Bremen"), ("DE", "Dresden")),
    *(("FR", "Lyon"), ("FR", "Nantes"), ("IS", "Akureyri"), ("IT", "Torino"), ("PT", "Porto")),
)
STATES = ("open", "paid", "sent", "returned")
THINGS = ("lamp", "chair", "desk", "shelf", "clock", "rug", "mirror")
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def load(bootstrap_servers: str, urls: Sequence[str], copies: int) -> int:
    """Make the topic, write the orders, and add the bucket; return how many orders were written.

    What is there already stays as it is. KafkaException, CoordinatorError: it was not possible.
    """
    settings = {**client_settings(bootstrap_servers), "log_level": 2}
    is_new = _make_topic(settings, copies)
    if is_new:
        _write(settings)
    with Client(list(urls)) as client:
        try:
            client.add_bucket(NAME, topic=NAME)
        except CoordinatorError as error:
            if error.code != "bucket_exists" or _topic_of(client) != NAME:
                raise
    return ORDERS if is_new else 0


def _topic_of(client: Client) -> str:
    source = client.bucket(NAME)["bucket"]["source"]
    return str(source["topic"]) if source else ""


def _make_topic(settings: dict[str, Any], copies: int) -> bool:
    admin = AdminClient(settings)
    config = {"cleanup.policy": "compact"}
    wanted = NewTopic(NAME, PARTITIONS, copies, config=config)
    try:
        admin.create_topics([wanted])[NAME].result(TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def _write(settings: dict[str, Any]) -> None:
    producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 20})
    for name, order in orders():
        producer.produce(NAME, json.dumps(order), name)
        producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def orders() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the orders, each with its number: always the same."""
    chance = random.Random(SEED)
    for number in range(1, ORDERS + 1):
        country, city = chance.choice(PLACES)
        lines: list[dict[str, Any]] = [
            {"thing": thing, "count": chance.randint(1, 4), "price": chance.randint(500, 60_000)}
            for thing in chance.sample(THINGS, chance.randint(1, 3))
        ]
        at = FIRST + timedelta(seconds=chance.randrange(300 * 86_400))
        yield (
            f"order-{number}",
            {
                "number": number,
                "customer": f"customer-{chance.randint(1, 2_000)}",
                "country": country,
                "city": city,
                "state": chance.choice(STATES),
                "total": sum(line["count"] * line["price"] for line in lines),
                "lines": lines,
                "at": at.isoformat(),
            },
        )
