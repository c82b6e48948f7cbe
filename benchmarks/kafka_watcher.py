"""One watcher by the library: `python -m benchmarks.kafka_watcher SERVERS CLUSTER SECONDS`.

Says "begun" when it is at the end of the topic, and at last which CAS it saw when.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from coordinator.client.kafka_watch import KafkaWatch


def main() -> None:
    servers, cluster, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    seen: list[tuple[int, float]] = []
    with KafkaWatch(servers, cluster) as watching:
        for event in watching.watch("now", kind="setting"):
            now = time.time()
            if not seen and event["type"] == "bookmark":
                threading.Timer(seconds, watching.close).start()
                print("begun", flush=True)
            if event["type"] == "change":
                seen.append((event["cas"], now))
    print(json.dumps({"seen": [seen]}), flush=True)


if __name__ == "__main__":
    main()
