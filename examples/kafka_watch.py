"""Keep every change in a file, read from Kafka.

    python examples/kafka_watch.py HOST:PORT CLUSTER FILE     # of Kafka, as `make run` prints it

Each line of the file is a change, as JSON. The file is the position, too: whoever starts this
again, after any crash, goes on after the CAS of the last whole line. So each change is in the file
once, in order, and none is missing. No node has to be alive, only Kafka. Ctrl-C ends it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from coordinator.client.errors import CoordinatorError
from coordinator.client.kafka_watch import KafkaWatch

TAIL_BYTES = 32 * 1024 * 1024
"""More than any line has: Kafka takes no record of more than 4 MiB."""


def resume(file: Path) -> int:
    """Cut off a line that a crash has left half written; return the CAS of the last one, or 0."""
    with file.open("ab+") as lines:
        size = lines.seek(0, os.SEEK_END)
        lines.seek(max(0, size - TAIL_BYTES))
        tail = lines.read()
        whole = tail.rfind(b"\n") + 1
        lines.truncate(size - len(tail) + whole)
        *_, last = [b'{"cas": 0}', *tail[:whole].splitlines()]
        return int(json.loads(last)["cas"])


def main(kafka: str, cluster: str, file: Path) -> None:
    after = resume(file)
    print(f"going on after CAS {after}", flush=True)
    with KafkaWatch(kafka, cluster) as watch, file.open("ab") as lines:
        # `batches` hands over together what has come together: one sync for all of it.
        for batch in watch.batches(after):
            changes = [event for event in batch if event["type"] == "change"]
            if changes:
                lines.write(b"".join(json.dumps(one).encode() + b"\n" for one in changes))
                lines.flush()
                os.fsync(lines.fileno())
                print(f"CAS {changes[-1]['cas']}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    except KeyboardInterrupt:
        sys.exit(130)
    except CoordinatorError as refused:
        # `compacted`: away for so long that the history has been cut. Begin with another file.
        sys.exit(str(refused))
