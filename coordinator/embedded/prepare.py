"""Prepare a machine, or an image, for starts without a network and in less time.

`python -m coordinator.embedded.prepare` downloads the jars of Kafka and of Spark's connectors into
the cache, and makes the class archives of both: it runs a broker once and Spark once, over topics
in a temporary folder.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from coordinator import codec
from coordinator.core.model.stream_records import Tick
from coordinator.embedded.broker import Broker
from coordinator.kafka.address import client_settings
from coordinator.kafka.topics import TICK, ensure_topics, topic_name
from coordinator.runtime.errors import EmbeddedError
from coordinator.runtime.files import last_lines

CLUSTER = "prepare"
TIMEOUT_S = 180.0


def prepare(folder: Path) -> None:
    """Run a broker and Spark over topics in `folder`. Raises EmbeddedError."""
    with Broker(folder / "kafka") as broker:
        servers = broker.bootstrap_servers
        ensure_topics(servers, CLUSTER, durable=False)
        _put_tick(servers)
        _run_spark(servers, folder / "spark")


def _put_tick(servers: str) -> None:
    """Write the one record that makes a batch."""
    producer = Producer({**client_settings(servers), "log_level": 0, "enable.idempotence": True})
    tick = codec.encode(Tick(at_ms=time.time_ns() // 1_000_000, writer=0))
    producer.produce(topic_name(CLUSTER, TICK), tick, partition=0)
    if producer.flush(TIMEOUT_S):
        raise EmbeddedError("broker_timeout", f"no record was written within {TIMEOUT_S:g} s")


def _run_spark(servers: str, folder: Path) -> None:
    """Run Spark's application until it has read the topics; its last words are the error's."""
    command = [
        *(sys.executable, "-m", "streaming", "classes", "--cluster", CLUSTER),
        *("--bootstrap-servers", servers, "--data-dir", str(folder)),
    ]
    folder.mkdir()
    said = folder / "said.log"
    try:
        with open(said, "wb") as output:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=TIMEOUT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise EmbeddedError("spark_timeout", f"Spark did not end in {TIMEOUT_S:g} s") from None
    if done.returncode:
        why = "".join(last_lines(said, 1)).strip()
        raise EmbeddedError("spark_failed", f"Spark ended with {done.returncode}: {why}")


def main() -> int:
    """Prepare in a temporary folder; an expected fault is one line on stderr."""
    try:
        with tempfile.TemporaryDirectory(prefix="prepare-") as folder:
            prepare(Path(folder))
    except EmbeddedError as error:
        print(f"prepare: {error.message} [{error.code}]", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
