"""Records of `mutations` that are gone, whatever took them: an indexer notices, and asks again."""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.core.model.stream_records import CatchUpRequested
from coordinator.core.model.vectors import Vector
from coordinator.embedded.broker import Broker
from coordinator.kafka import readers
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import (
    MUTATIONS,
    STREAM_PARTITIONS,
    STREAM_REQUEST,
    topic_name,
)
from coordinator.runtime.threads import Threads
from indexer_sim.pipeline.mutation_reader import Lost, MutationQueue, MutationReader, Needed, Stand
from tests.integration.cluster import ORDERED
from tests.integration.indexer_bench import Bench
from tests.integration.indexer_process import Cluster, Process, until
from tests.integration.indexing import (
    BRANCH,
    VBUCKETS,
    catchup,
    entry,
    maintenance,
)

pytestmark = pytest.mark.integration

EVERYWHERE = range(VBUCKETS)
BATCH_HEAD = struct.Struct(">qi")
"""The first offset of a batch on the broker's disk, and how many bytes follow."""


def asked_for(bench: Bench, vbuckets: set[int]) -> list[int]:
    """Wait until the indexer asks for exactly these vbuckets; return after which seqnos."""
    with bench.cluster.listen(STREAM_REQUEST) as requests:
        asked: CatchUpRequested = requests.hears(
            f"a request for {vbuckets}", lambda r: set(r.vbuckets) == vbuckets
        )
    vector = Vector.from_bytes(asked.vbuuids, asked.seqnos)
    assert set(vector.vbuuids.tolist()) == {BRANCH}
    return vector.seqnos.tolist()


def catch_up(bench: Bench, begin: int, end: int, number: int = 1) -> None:
    filling = catchup(bench.sender, {1: 1}, number).begin(begin)
    filling.put(begin + 1, {v: (f"d{v}", "x") for v in EVERYWHERE})
    filling.end(end)


def caught_up(bench: Bench) -> None:
    """Wait until the indexer has what was built, what was sent last, and what was caught up."""
    bench.watermarks.reach(20)
    expected = {entry("a", "Paris"), entry("z", "Zug")} | {entry(f"d{v}", "x") for v in EVERYWHERE}
    assert bench.scans().entries() == expected


def partition_of(vbucket: int) -> int:
    return vbucket % STREAM_PARTITIONS


def test_a_record_that_is_missing_in_the_middle_is_asked_for(bench: Bench) -> None:
    stream = bench.build({0: ("a", "Paris")})
    lost = {v for v in EVERYWHERE if partition_of(v) == 1}
    stream.put(11, {v: (f"d{v}", "x") for v in EVERYWHERE}, lost={1})
    stream.put(19, dict.fromkeys(sorted(lost)[:1], ("z", "Zug")))
    stream.sync(20)
    assert asked_for(bench, lost) == [10] * len(lost)
    catch_up(bench, 10, 20)
    caught_up(bench)


def test_a_missing_record_is_noticed_by_one_of_no_items_and_after_a_restart(
    bench: Bench,
) -> None:
    stream = bench.build({0: ("a", "Paris")})
    bench.restart()
    stream.put(11, {v: (f"d{v}", "x") for v in EVERYWHERE}, lost=range(STREAM_PARTITIONS))
    stream.probe()
    assert asked_for(bench, set(EVERYWHERE)) == [10] * VBUCKETS
    catch_up(bench, 10, 18)
    stream.put(19, {1: ("z", "Zug")})
    stream.sync(20)
    # Between 18 and 20 something may have been lost, too, but for where 19 came.
    others = set(EVERYWHERE) - {1}
    assert asked_for(bench, others) == [18] * len(others)
    catch_up(bench, 18, 20)
    caught_up(bench)


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "by offset alone"])
def test_what_kafka_has_dropped_is_asked_for(bench: Bench, linked: bool) -> None:
    stream = bench.build({0: ("a", "Paris")})
    stream.is_linked = linked
    bench.process.stop()
    stream.put(11, {v: (f"d{v}", "x") for v in EVERYWHERE})
    bench.sender.drop_all()
    stream.put(19, {1: ("z", "Zug")})
    stream.sync(20)
    bench.process = bench.start()
    assert asked_for(bench, set(EVERYWHERE)) == [10] * VBUCKETS
    catch_up(bench, 10, 20)
    caught_up(bench)


def make_again(bench: Bench) -> None:
    """Delete `mutations`, and make it again."""
    name = topic_name(bench.cluster.name, MUTATIONS)
    admin = AdminClient({"bootstrap.servers": bench.cluster.bootstrap_servers, "log_level": 2})
    admin.delete_topics([name])[name].result(20)

    def made() -> bool:
        try:
            admin.create_topics([NewTopic(name, STREAM_PARTITIONS, 1)])[name].result(20)
        except KafkaException:
            return False  # It is not quite gone.
        return True

    until("the topic can be made again", made)


@pytest.mark.parametrize("alive", [True, False], ids=["alive", "away"])
def test_a_topic_that_was_made_again_and_has_grown_is_another_one(
    bench: Bench,
    alive: bool,
) -> None:
    """Its offsets are those of the old one.

    Who reads goes on as if nothing had happened, and learns from the links that it has missed
    something. Who was away has offsets of another topic, which needs no links.
    """
    bench.build({0: ("a", "Paris")})
    if not alive:
        bench.process.stop()
    make_again(bench)
    stream = maintenance(bench.sender, {1: 1}, number=2)
    stream.is_linked = alive

    def grown() -> bool:
        """Whoever writes has to hear of the new topic first."""
        try:
            stream.begin(18)
            for _ in range(10):
                stream.sync(18)
        except (AssertionError, KafkaException):
            return False
        return True

    until("the topic has grown", grown)
    stream.put(19, {1: ("z", "Zug")})
    stream.sync(20)
    if not alive:
        bench.process = bench.start()
    assert asked_for(bench, set(EVERYWHERE)) == [10] * VBUCKETS
    catch_up(bench, 10, 20, number=2)
    caught_up(bench)


def cut_off(broker: Broker, topic: str, partition: int, offset: int) -> None:
    """Have a broker that is stopped lose what it has from an offset on, as an unclean leader does.

    It makes the index of the log anew, since it did not stop cleanly.
    """
    (folder,) = broker.data_dir.rglob(f"{topic}-{partition}")
    (log,) = folder.glob("*.log")
    raw, at = log.read_bytes(), 0
    while at < len(raw):
        first, size = BATCH_HEAD.unpack_from(raw, at)
        if first >= offset:
            break
        at += BATCH_HEAD.size + size
    assert at < len(raw), "there is nothing to lose"
    log.write_bytes(raw[:at])
    for path in (*folder.glob("*index"), *folder.glob("*.snapshot")):
        path.unlink()
    for path in broker.data_dir.rglob(".kafka_cleanshutdown"):
        path.unlink()


@pytest.mark.parametrize(
    "alive", [True, pytest.param(False, marks=pytest.mark.matrix)], ids=["alive", "away"]
)
def test_a_log_that_was_cut_off_and_has_grown_is_told_by_its_leader(
    mortal_broker: Broker, tmp_path: Path, alive: bool
) -> None:
    """No record names the one before it, and each offset that was read is there again."""
    topics = Cluster(mortal_broker.bootstrap_servers)
    processes: list[Process] = []

    def begin(folder: Path = tmp_path / "indexer", **more: Any) -> Process:
        processes.append(Process(topics, folder, tmp_path / "stderr", **more))
        return processes[-1]

    bench = Bench(topics, begin)
    try:
        stream = bench.build({0: ("a", "Paris")})
        stream.is_linked = False
        for seqno in range(11, 15):
            stream.put(seqno, {1: ("gone", "x")})
        bench.watermarks.reach(10, 14, *[10] * 6)
        if not alive:
            bench.process.stop()
        name = topic_name(topics.name, MUTATIONS)
        ends = {p: end_of(topics, p) for p in range(STREAM_PARTITIONS)}
        mortal_broker.stop()
        cut_off(mortal_broker, name, 1, ends[1] - 3)
        mortal_broker.start()
        until("the broker answers", lambda: end_of(topics, 1) == ends[1] - 3)
        for _ in range(6):
            stream.sync(18)
        stream.put(19, {1: ("z", "Zug")})
        stream.sync(20)
        assert end_of(topics, 1) > ends[1]
        if not alive:
            bench.process = bench.start()
        lost = {v for v in EVERYWHERE if partition_of(v) == 1}
        asked_for(bench, lost)
    finally:
        bench.close()
        topics.close()
        for process in processes:
            process.kill()


class Forgetful(Consumer):
    """A client that never asks where an epoch ends: its positions are without one.

    While it rests it asks for nothing.
    """

    rests = threading.Event()

    def poll(self, timeout: float = -1) -> Message | None:
        if self.rests.is_set():
            self.pause(self.assignment())
            until("it rests no more", lambda: not self.rests.is_set())
            self.resume(self.assignment())
            for place in self.position(self.assignment()):
                self.seek(TopicPartition(place.topic, place.partition, max(place.offset, 0)))
        return super().poll(timeout)

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        return []


def test_a_log_that_was_cut_off_is_told_by_its_records(
    mortal_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the client has not noticed it: what was read last has another leader now."""
    topics = Cluster(mortal_broker.bootstrap_servers)
    name = topic_name(topics.name, MUTATIONS)
    queue, faults, passed = MutationQueue(), list[str](), list[int]()

    def write(count: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": mortal_broker.bootstrap_servers,
                "log_level": 2,
                **ORDERED,
            }
        )
        for _ in range(count):
            producer.produce(name, b"no record", partition=1)
            producer.flush(20)

    def lost() -> list[Lost]:
        return [q.one for q in queue.take(1_000, 0.1) if isinstance(q.one, Lost)]

    monkeypatch.setattr(readers, "SteppingConsumer", Forgetful)
    reader = MutationReader(
        *(mortal_broker.bootstrap_servers, topics.name, 1, queue),
        lambda: Needed(0, {"b": Stand(dict.fromkeys(range(STREAM_PARTITIONS), 0))}),
        lambda message, _: passed.append(int(message.offset() or 0)),
        *(faults.append, lambda: None, Threads(lambda: None)),
    )
    try:
        write(7)
        reader.start()
        until("all is read", lambda: 6 in passed)
        assert lost() == []
        Forgetful.rests.set()
        mortal_broker.stop()
        cut_off(mortal_broker, name, 1, 4)
        passed.clear()
        mortal_broker.start()
        until("the broker answers", lambda: end_of(topics, 1) >= 0)
        write(8)
        Forgetful.rests.clear()
        assert until("it is lost", lost) == [Lost("b", {1: 7})]
        until("reading goes on", lambda: 11 in passed)
    finally:
        Forgetful.rests.clear()
        reader.end()
        reader.join()
        topics.close()


def end_of(topics: Cluster, partition: int) -> int:
    """Return where a partition of `mutations` ends, -1 while nobody tells."""
    reader = consumer(topics.bootstrap_servers, "ends")
    try:
        place = TopicPartition(topic_name(topics.name, MUTATIONS), partition)
        return int(reader.get_watermark_offsets(place, 5)[1])
    except KafkaException:
        return -1
    finally:
        reader.close()
