"""How fast a topic of documents is read: by a bare consumer, as frames, and turned into items.

All three read in one process, with one client, from the beginning to the end, and take turns. The
bare consumer looks at key and value of each record, and at nothing else. The items are those of a
backfill of three indexes, encoded as they go to `mutations`, and not sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic

from benchmarks.data_plane import INDEXES
from coordinator import codec
from coordinator.core.model.stream_records import BACKFILL, KeyVersions
from coordinator.kafka.readers import consumer
from coordinator.kafka.topic_histories import TopicHistories
from coordinator.kafka.topics import STREAM_PARTITIONS
from projector_sim.kv.generator import Generator
from projector_sim.projector.connection_runs import Run
from projector_sim.projector.router import Router
from projector_sim.sources.topic_records import decoder_of
from projector_sim.sources.topic_stream import TopicPlace, TopicStream

DOCUMENTS = int(os.environ.get("BENCH_TOPIC_DOCUMENTS", "300000"))
PARTITIONS, ROUNDS, SEED = 4, 3, 15
TOPIC, GROUP = "bench-documents", "bench-readers"
WAIT_S = 60.0
BATCH_MAX = 2_000
SYNC_MS = 100


def topic_source(servers: str) -> dict[str, Any]:
    """Return documents a second of each way to read a topic, and the ratios to the first."""
    kafka = TopicHistories(servers)
    size_bytes = _write(servers, kafka)
    place = TopicPlace(
        *(servers, GROUP, kafka.facts([TOPIC])[TOPIC], kafka.cleaning(TOPIC), kafka),
    )
    ways: dict[str, Callable[[], int]] = {
        "bare": lambda: _bare(servers),
        "frames": lambda: _read(place, to_items=False),
        "items": lambda: _read(place, to_items=True),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            began_s = time.perf_counter()
            assert read() >= DOCUMENTS
            took[name].append(time.perf_counter() - began_s)
    kafka.close()
    rates = {name: DOCUMENTS / median(times) for name, times in took.items()}
    return {
        "documents": DOCUMENTS,
        "bytes_of_a_document": round(size_bytes / DOCUMENTS),
        "documents_per_second": {name: round(rate) for name, rate in rates.items()},
        "ratio_to_bare": {name: round(rate / rates["bare"], 2) for name, rate in rates.items()},
    }


def _write(servers: str, kafka: TopicHistories) -> int:
    """Write the topic; return the bytes of its documents."""
    wanted = NewTopic(TOPIC, PARTITIONS, 1, config={"cleanup.policy": "compact"})
    kafka.admin.create_topics([wanted])[TOPIC].result(WAIT_S)
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20}
    producer = Producer({**settings, "queue.buffering.max.messages": DOCUMENTS + 1})
    size_bytes = 0
    for key, document, _ in Generator(SEED, DOCUMENTS).load():
        assert document is not None
        size_bytes += len(document)
        producer.produce(TOPIC, document, key)
    assert producer.flush(WAIT_S) == 0
    return size_bytes


def _bare(servers: str) -> int:
    """Read the topic with Kafka's client alone; return how many records it has."""
    reader = consumer(servers, GROUP, **{"enable.partition.eof": True})
    reader.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
    found = ended = 0
    while ended < PARTITIONS:
        for message in reader.consume(BATCH_MAX, 0.1):
            if message.error() is not None:
                ended += 1
            else:
                found += bool(message.key() and message.value())
    reader.close()
    return found


class _Sink:
    """Encodes items, and drops them."""

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None:
        codec.encode(record)

    def control(self, vbucket: int, record: Any) -> None:
        codec.encode(record)


def _read(place: TopicPlace, *, to_items: bool) -> int:
    """Read the topic by a stream, perhaps to items; return how many records it has."""
    histories = place.histories.histories(place.facts, range(PARTITIONS))
    routes = [spec.route(number) for number, spec in enumerate(INDEXES, 1)]
    run = Run(
        bucket=TOPIC,
        kind=BACKFILL,
        connection=1,
        vbuckets=tuple(histories),
        carried={route.index.id: route.index for route in routes},
        opened_ms=0,
        number=1,
        starts={p: (place.branches.log(p, one)[0].vbuuid, 0) for p, one in histories.items()},
        until={p: one.stable for p, one in histories.items()},
    )
    router = Router(run, routes, _Sink(), 1, STREAM_PARTITIONS, lambda: 1, is_topic=True)
    stream = TopicStream(
        *(place, run, lambda _: decoder_of("json"), lambda: frozenset(histories)),
        *(_unreadable, _forgotten, SYNC_MS, lambda: None),
    )
    while not stream.is_over:
        found = stream.poll()
        if found is None:
            time.sleep(0.001)
        elif to_items:
            for kind, body in found:
                router.route(kind, body)
    router.flush()
    assert stream.reason == "all that was asked for was sent", stream.reason
    return sum(run.until.values())


def _unreadable(record: Any, error: Exception) -> None:
    raise AssertionError(f"{record.offset()}: {error}")


def _forgotten(partition: int) -> None:
    raise AssertionError(f"partition {partition} has forgotten something")
