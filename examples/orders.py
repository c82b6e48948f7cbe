"""Write orders to a Kafka topic, and find each of them through an index right away.

    python examples/orders.py HOST:PORT     # of Kafka, as `indexctl run --example orders` tells

The index is made first, if it is not there. What writes is a plain producer: it knows the topic,
and nothing of the coordinator. What it is told of each record, its partition and offset, is what a
scan needs to be sure that it sees the record.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import KafkaError, Producer

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError

INDEX = {"name": "by_customer", "bucket": "orders", "expressions": ["customer", "total DESC"]}


def write(producer: Producer, name: str, order: dict[str, Any]) -> dict[int, int]:
    """Write one order, and return where it is: its offset, by partition."""
    place: dict[int, int] = {}

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"{name} was not written: {error}")
        place[message.partition()] = message.offset()

    producer.produce("orders", json.dumps(order), name, on_delivery=delivered)
    producer.flush()
    return place


def main(kafka: str) -> None:
    with Client() as client:
        index = client.create_index({**INDEX, "if_not_exists": True})["index"]
        client.wait_until(index["id"], "maintenance")
        producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        for number in range(1, 6):
            order = {"customer": "you", "total": 1_000 * number, "state": "open"}
            place = write(producer, f"yours-{number}", order)
            found = client.scan(
                index["id"],
                scan={"prefix": ["you"]},
                consistency={"at_least": {"offsets": place}},
            )
            totals = [row["key"][1] for row in found["rows"]]
            print(f"wrote {order['total']} at {place}, and see {totals}")
            assert totals == [1_000 * n for n in range(number, 0, -1)]
        for number in range(1, 6):
            producer.produce("orders", None, f"yours-{number}")
        producer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1]) if len(sys.argv) == 2 else sys.exit(__doc__)
    except CoordinatorError as error:
        sys.exit(str(error))
