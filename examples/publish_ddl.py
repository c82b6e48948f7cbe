"""Create an index by publishing a command on Kafka, and wait for the reply.

    python examples/publish_ddl.py HOST:PORT     # of Kafka, as `make run` prints it

Nothing here knows where a node of the coordinator is. Publishing again under the same request id
gives the first outcome again.
"""

import sys

from confluent_kafka import Consumer, Producer

from coordinator.client.request_ids import new_request_id
from coordinator.codec import decode, encode_ddl
from coordinator.core.model.commands import CreateIndex

kafka = {"bootstrap.servers": sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__)}
request = new_request_id()
command = CreateIndex(name="by_zone", bucket="travel", expressions=("tz", "name"), replicas=1)

producer = Producer({**kafka, "acks": "all"})
producer.produce("default.ddl", encode_ddl(request, command, principal="etl"), key=command.bucket)
if producer.flush(10):
    sys.exit("Kafka did not take the command")
print(f"published {request}")

# This client reads committed records only, unless told otherwise; so must yours.
replies = Consumer({**kafka, "group.id": request, "auto.offset.reset": "earliest"})
replies.subscribe(["default.ddl-replies"])
while (message := replies.poll(30)) is not None:
    if not message.error() and message.key() == request.encode():
        reply = decode(message.value())
        print(f"{reply.status}, cas {reply.cas}, transaction {reply.txn or '-'}")
        print(reply.error_message or reply.answer_json)
        break
else:
    sys.exit("no reply yet: publish it again under the same request id")
replies.close()
