"""What Faust's transport does otherwise than its maker meant: one test for each, on a real broker.

That it reads what was committed is in `test_isolation.py`; a broker that restarts, and records that
were forgotten, are in `test_shell_fold.py`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from coordinator import codec
from coordinator.core.consensus.inputs import CommitRead, TimestampsRead
from coordinator.core.model.records import ReadBarrier
from coordinator.core.model.stream_records import StabilityTimestamp
from coordinator.core.model.types import Offset
from coordinator.embedded.broker import Broker
from coordinator.kafka.agents import Folds
from coordinator.kafka.topics import COMMIT, RESTART, STABILITY, ensure_topics, topic_name
from tests.integration.kafka_proxy import HOLD, KafkaProxy, only_once

pytestmark = pytest.mark.integration

DEADLINE_S = 90.0
STOP_S = 5.0
"""So long a node waits for its agents to stop."""

FETCH = 1


class Reading:
    """The agents of a node of a new cluster, and the offsets of what they folded."""

    def __init__(self, servers: str, folder: Path, begin: int = 0) -> None:
        self.servers = servers
        self.cluster = f"t{uuid.uuid4().hex[:8]}"
        self.group = f"{self.cluster}.node"
        self.commits: list[int] = []
        self.timestamps: list[int] = []
        ensure_topics(servers, self.cluster, durable=False)
        self._options = {"begin": Offset(begin), "data_dir": str(folder)}
        self.folds: Folds

    def topic(self, name: str) -> str:
        return topic_name(self.cluster, name)

    def write(self, count: int) -> None:
        self._write(COMMIT, [codec.encode(ReadBarrier(1, nonce)) for nonce in range(count)])

    def write_timestamps(self, name: str, count: int) -> None:
        """Write stability timestamps: to `restart`, where they do not belong, as well."""
        made = [StabilityTimestamp("b", number, b"", b"", 1) for number in range(count)]
        self._write(name, [codec.encode(one) for one in made])

    def _write(self, name: str, values: list[bytes]) -> None:
        producer = Producer(
            {"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 2}
        )
        errors: list[object] = []
        for number, value in enumerate(values):
            producer.produce(
                self.topic(name),
                value,
                b"%d" % number,
                partition=0,
                on_delivery=lambda error, _: errors.append(error),
            )
        assert producer.flush(DEADLINE_S) == 0
        assert not any(errors)

    def forget(self, name: str, before: int) -> None:
        """Delete the records of a topic below an offset, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 2})
        place = TopicPartition(self.topic(name), 0, before)
        for done in admin.delete_records([place]).values():
            done.result()

    @asynccontextmanager
    async def started(self) -> AsyncIterator[Folds]:
        """Have the agents read; in the end they stop while a node still waits for that."""
        self.folds = Folds(
            bootstrap_servers=self.servers,
            cluster=self.cluster,
            group=self.group,
            fold_and_store=self._fold,
            **self._options,  # type: ignore[arg-type]
        )
        starting = asyncio.create_task(self.folds.start())
        try:
            yield self.folds
        finally:
            # Faust swallows the cancellation that ends a stop that takes too long.
            async with asyncio.timeout(STOP_S) as limit:
                await self.folds.stop()
            starting.cancel()
        assert not limit.expired()

    def _fold(self, read: CommitRead | TimestampsRead) -> None:
        kept = self.commits if isinstance(read, CommitRead) else self.timestamps
        kept.extend(entry.offset for entry in read.entries)

    async def until(self, condition: Callable[[], bool], pause_s: float = 0.01) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(pause_s)


def test_all_that_a_topic_had_was_folded_once_it_is_whole(broker: Broker, tmp_path: Path) -> None:
    """Looked at in every turn of the loop, from before the start."""
    reading = Reading(broker.bootstrap_servers, tmp_path)
    reading.write_timestamps(STABILITY, 300)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: folds.is_whole(STABILITY), 0)
            assert reading.timestamps == list(range(300))
            await reading.until(lambda: folds.is_whole(RESTART))

    asyncio.run(run())


def test_a_topic_that_was_given_a_partition_is_refused_by_name(
    broker: Broker, tmp_path: Path
) -> None:
    """While a node runs: at its start it compares the topics with what they must be."""
    reading = Reading(broker.bootstrap_servers, tmp_path)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    topic = reading.topic(STABILITY)
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(DEADLINE_S)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: bool(folds.failure))
            text = f"{topic} has a partition 1: partitions were added to it [topic_mismatch]"
            assert folds.failure == text

    asyncio.run(run())


class Member:
    """Somebody else in the group of the agents, who has some of their partitions for a while."""

    def __init__(self, reading: Reading) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": reading.servers,
                "group.id": reading.group,
                "partition.assignment.strategy": "roundrobin",
                "auto.offset.reset": "latest",
                "enable.auto.commit": False,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([reading.topic(n) for n in (COMMIT, RESTART, STABILITY)])

    def stay(self) -> None:
        """Join, and leave once there is something to have. The group has committed no offset."""
        end_s = time.monotonic() + DEADLINE_S
        while not self._consumer.assignment():
            assert time.monotonic() < end_s, "nothing was assigned"
            self._consumer.poll(0.1)
        for place in self._consumer.committed(self._consumer.assignment(), DEADLINE_S):
            assert place.offset == OFFSET_INVALID
        self._consumer.close()


def test_after_another_assignment_reading_goes_on_where_it_was(
    broker: Broker, tmp_path: Path
) -> None:
    """As after a pause of the process that is longer than its session."""
    reading = Reading(broker.bootstrap_servers, tmp_path, begin=2)
    reading.write(5)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: reading.commits == [2, 3, 4])
            for count in (10, 15):
                await asyncio.to_thread(Member(reading).stay)
                await asyncio.to_thread(reading.write, 5)
                await reading.until(lambda count=count: len(reading.commits) == count - 2)
                assert folds.failure == ""
            assert reading.commits == list(range(2, 15))

    asyncio.run(run())


def test_a_fetch_that_comes_before_the_seek_ends_no_agent(broker: Broker, tmp_path: Path) -> None:
    """A new assignment has no offset until Faust seeks; a fetch may have begun before."""
    reading = Reading(broker.bootstrap_servers, tmp_path)
    reading.write(5)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: len(reading.commits) == 5)
            consumer: Any = folds.app.consumer
            seek, fetched = consumer.perform_seek, asyncio.Event()

            async def seek_later() -> None:
                await fetched.wait()
                await seek()

            consumer.perform_seek = seek_later
            fetching = asyncio.create_task(consumer._thread.getmany(None, DEADLINE_S))
            await asyncio.to_thread(Member(reading).stay)
            assert await fetching == {}
            fetched.set()
            await asyncio.to_thread(reading.write, 5)
            await reading.until(lambda: len(reading.commits) == 10)
            assert folds.failure == ""
            assert reading.commits == list(range(10))

    asyncio.run(run())


def test_where_the_log_does_not_have_its_next_record_an_agent_fails(
    broker: Broker, tmp_path: Path
) -> None:
    reading = Reading(broker.bootstrap_servers, tmp_path, begin=1)
    reading.write(5)
    reading.forget(COMMIT, 3)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: folds.failure != "")
            told = "commit has no offset 1 any more: it was trimmed, or lost [offset_gone]"
            assert folds.failure.endswith(told)
            assert reading.commits == []

    asyncio.run(run())


def test_what_was_forgotten_is_passed_over_and_is_not_the_end(
    broker: Broker, tmp_path: Path
) -> None:
    """Looked at in every turn of the loop, while the oldest record that is left is looked for."""
    reading = Reading(broker.bootstrap_servers, tmp_path)
    reading.write_timestamps(RESTART, 5)

    async def run() -> None:
        async with reading.started() as folds:
            await reading.until(lambda: folds.is_whole(RESTART))
            await asyncio.to_thread(reading.forget, RESTART, 3)
            place, transport = folds._place(RESTART), folds._transport
            folds._begin_at[place] = Offset(1)
            consumer: Any = folds.app.consumer
            await consumer.perform_seek()
            assert not transport.is_at_end(place)
            await reading.until(lambda: transport.is_at_end(place), 0)
            await reading.until(lambda: reading.timestamps == [0, 1, 2, 3, 4, 3, 4])
            assert folds.failure == ""

    asyncio.run(run())


def test_a_fetch_that_nobody_answers_is_given_up_soon(proxy: KafkaProxy, tmp_path: Path) -> None:
    reading = Reading(proxy.bootstrap_servers, tmp_path)
    reading.write(1)

    async def run() -> None:
        async with reading.started():
            await reading.until(lambda: reading.commits == [0])
            proxy.rule = only_once(FETCH, HOLD)
            await asyncio.to_thread(proxy.wait_for_held)
            began_s = time.monotonic()
            await asyncio.to_thread(reading.write, 1)
            await reading.until(lambda: reading.commits == [0, 1])
            assert time.monotonic() - began_s < 30

    asyncio.run(run())
