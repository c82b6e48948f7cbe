"""Create an index by publishing a statement on Kafka, and wait for its outcome.

    python examples/publish_ddl.py HOST:PORT [CLUSTER]     # of Kafka, as `make run` prints it

Nothing here knows where a node of the coordinator is.
"""

import json
import sys

from coordinator.client.errors import CoordinatorError
from coordinator.client.publisher import Publisher


def main(kafka: str, *cluster: str) -> None:
    with Publisher(kafka, *cluster, principal="etl") as publisher:
        statement = 'CREATE INDEX by_zone ON travel(tz, name) WITH {"replicas": 1}'
        published = publisher.publish(statement)
        print(f"published {published.request_id} at {published.partition}/{published.offset}")
        # The same as over HTTP: the answer, or one of the same exceptions.
        answer = published.wait()
        print(f"ok, cas {answer['cas']}, transaction {answer['txn']}")
        print(json.dumps(answer["index"]))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:]) if len(sys.argv) in (2, 3) else sys.exit(__doc__)
    except CoordinatorError as error:
        # `no_reply` says that nobody has answered yet. To publish the statement again under the
        # same request_id is safe, from any process: it takes effect once.
        sys.exit(str(error))
