"""Whoever reads, reads what was committed: one test for each kind of reader, on a real broker.

What an aborted transaction wrote stands on the topic before what is read. Where an open one begins
is the end, as far as readers are concerned. The readers on Spark have theirs in
`test_streaming_batches.py` and `test_archive.py`.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer, TopicPartition

from coordinator import codec
from coordinator.core.consensus.inputs import CommitRead, Input, TimestampsRead
from coordinator.core.model.entities import Setting
from coordinator.core.model.records import Event, Mutation, ReadBarrier
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka.agents import Folds
from coordinator.kafka.log_reader import read_events, read_to_end
from coordinator.kafka.producers import DeadLetters
from coordinator.kafka.readers import LogProbe, TailReader, watermarks
from coordinator.kafka.state_follower import Link
from coordinator.kafka.topics import (
    COMMIT,
    MUTATIONS,
    STABILITY,
    STATECONTEXT,
    ensure_topics,
    topic_name,
)
from coordinator.runtime.threads import Threads
from indexer_sim.pipeline.mutation_reader import MutationQueue, MutationReader, Needed, Stand
from streaming.spark.kafka_source import bounds
from tests.integration.cluster import value_of, wait_until

pytestmark = pytest.mark.integration

ABORTED, COMMITTED = 1, 2


class Log:
    """A topic of a cluster: what was aborted, then what was committed, then an open transaction."""

    def __init__(self, servers: str, cluster: str, name: str, make: Callable[[int], bytes]) -> None:
        self.topic = topic_name(cluster, name)
        self._producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": self.topic, "log_level": 2}
        )
        self._producer.init_transactions(30)
        self._write(make(ABORTED))
        self._producer.abort_transaction(30)
        self._write(make(COMMITTED))
        self._producer.commit_transaction(30)
        self.end = 4
        """Two records, and a marker for each."""
        self._write(make(ABORTED))

    def _write(self, value: bytes) -> None:
        self._producer.begin_transaction()
        self._producer.produce(self.topic, value, b"key", partition=0)
        assert self._producer.flush(30) == 0

    def close(self) -> None:
        self._producer.abort_transaction(30)


class Plant:
    """A broker with the topics of one cluster."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.cluster = f"i{uuid.uuid4().hex[:8]}"
        self._logs: list[Log] = []
        ensure_topics(servers, self.cluster, durable=False)

    def log(self, name: str, make: Callable[[int], bytes]) -> Log:
        self._logs.append(Log(self.servers, self.cluster, name, make))
        return self._logs[-1]

    def close(self) -> None:
        for log in self._logs:
            log.close()


@pytest.fixture
def plant(broker: Broker) -> Iterator[Plant]:
    made = Plant(broker.bootstrap_servers)
    yield made
    made.close()


def event(number: int) -> bytes:
    setting = Setting("k", str(number))
    mutation = Mutation("SettingWritten", setting.key, codec.encode(setting), setting)
    return codec.encode(Event(mutation, TxnId(1, number), 0, 1))


def barrier(number: int) -> bytes:
    return codec.encode(ReadBarrier(1, number))


def stability(number: int) -> bytes:
    return codec.encode(StabilityTimestamp("b", number, b"", b"", 1))


def numbers_of(events: list[Event]) -> list[int]:
    return [event.txn.seq for event in events]


def test_a_tail_reader_reads_what_was_committed(plant: Plant) -> None:
    log = plant.log(STATECONTEXT, event)
    read: list[bytes] = []

    def take(messages: list[Message]) -> None:
        read.extend(map(value_of, messages))

    reader = TailReader(plant.servers, "tail", {(log.topic, 0): 0}, take, read_nothing)
    wait_until(lambda: read, "something is read")
    reader.stop()
    assert read == [event(COMMITTED)]


def read_nothing(reason: str) -> None:
    raise AssertionError(reason)


def test_a_synchronisation_reads_what_was_committed(plant: Plant) -> None:
    log = plant.log(STATECONTEXT, event)
    batches = read_events(
        plant.servers,
        log.topic,
        cas_base=1,
        above_cas=0,
        at_least_cas=0,
        bad=lambda message, reason: read_nothing(reason),
    )
    assert numbers_of([one for batch in batches for one in batch]) == [COMMITTED]


def test_the_end_of_a_log_is_where_an_open_transaction_begins(plant: Plant) -> None:
    log = plant.log(STATECONTEXT, event)
    assert watermarks(plant.servers, log.topic) == (0, log.end)
    probe = LogProbe(plant.servers)
    assert probe.end(log.topic, 10.0) == log.end
    probe.close()
    assert bounds(plant.servers, [log.topic], 10.0) == {(log.topic, 0): (0, log.end)}


def test_the_agents_of_a_node_fold_what_was_committed(plant: Plant, tmp_path: Path) -> None:
    plant.log(COMMIT, barrier)
    plant.log(STABILITY, stability)
    fed: list[Input] = []

    async def run() -> None:
        folds = Folds(
            bootstrap_servers=plant.servers,
            cluster=plant.cluster,
            group=f"{plant.cluster}.node",
            begin=0,
            fold_and_store=fed.append,
            data_dir=str(tmp_path),
        )
        await folds.start()
        try:
            async with asyncio.timeout(60):
                while {type(one) for one in fed} < {CommitRead, TimestampsRead}:
                    await asyncio.sleep(0.01)
        finally:
            await folds.stop()

    asyncio.run(run())
    entries: list[Any] = [entry for one in fed for entry in getattr(one, "entries", ())]
    assert {entry.raw for entry in entries} == {barrier(COMMITTED), stability(COMMITTED)}


def test_who_follows_the_state_reads_what_was_committed(plant: Plant) -> None:
    """Projectors and indexers do."""
    log = plant.log(STATECONTEXT, event)
    link = Link(plant.servers, plant.cluster, "follower", [], DeadLetters(plant.cluster))
    link.connect(threading.Event())
    assert link.bounds() == (0, log.end)
    link.assign([TopicPartition(log.topic, 0, 0)])
    read: list[bytes] = []

    def reads() -> bool:
        read.extend(map(value_of, link.read(0.1)))
        return link.at_end

    wait_until(reads, "the end is reached")
    link.close()
    assert read == [event(COMMITTED)]


def test_an_indexer_reads_key_versions_and_timestamps_that_were_committed(plant: Plant) -> None:
    """They are garbage here: what is read is a dead letter."""
    plant.log(MUTATIONS, lambda number: b"garbage %d" % number)
    plant.log(STABILITY, lambda number: b"rubbish %d" % number)
    dead_letters: list[bytes] = []

    def dead_letter(message: Message, reason: str) -> None:
        dead_letters.append(value_of(message))

    reader = MutationReader(
        plant.servers,
        plant.cluster,
        1,
        MutationQueue(),
        lambda: Needed(0, {"b": Stand(dict.fromkeys(range(4), 0))}),
        dead_letter,
        lambda reason: None,  # It tries again: a new topic may have no leader yet.
        lambda: None,
        Threads(lambda: None),
    )
    reader.start()
    try:
        wait_until(lambda: len(set(dead_letters)) >= 2, "both topics are read")
    finally:
        reader.end()
        reader.join()
    expected = {b"garbage %d" % COMMITTED, b"rubbish %d" % COMMITTED}
    assert set(dead_letters) == expected


def test_the_ledger_of_timestamps_reads_what_was_committed(plant: Plant) -> None:
    log = plant.log(STATECONTEXT, event)
    read = [value_of(message) for message in read_to_end(plant.servers, log.topic, "timestamps")]
    assert read == [event(COMMITTED)]
