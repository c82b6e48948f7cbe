"""The Faust agents on a real broker: over its restart, and where records have been forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator import codec
from coordinator.core.consensus.inputs import CommitRead, Input, TimestampsRead
from coordinator.core.model.records import ReadBarrier
from coordinator.core.model.stream_records import RestartTimestamp
from coordinator.embedded.broker import Broker
from coordinator.kafka.agents import Folds
from coordinator.kafka.topics import COMMIT, RESTART, STABILITY

DEADLINE_S = 60.0


def make_topics(servers: str, cluster: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    topics = [NewTopic(f"{cluster}.{name}", 1, 1) for name in (COMMIT, STABILITY, RESTART)]
    for made in admin.create_topics(topics).values():
        made.result()


def write(servers: str, cluster: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2})
    for nonce in range(count):
        producer.produce(f"{cluster}.{COMMIT}", codec.encode(ReadBarrier(1, nonce)), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_after_a_restart_of_the_broker_nothing_is_lost_or_read_again(
    mortal_broker: Broker, tmp_path: Path
) -> None:
    asyncio.run(restart_under_a_fold(mortal_broker, tmp_path))


def a_fold(
    servers: str, cluster: str, begin: int, feed: Callable[[Input], None], folder: Path
) -> Folds:
    """Return the agents of a node that go on at an offset of `commit`."""
    return Folds(
        bootstrap_servers=servers,
        cluster=cluster,
        group=f"{cluster}.node-1",
        begin=begin,
        fold_and_store=feed,
        data_dir=str(folder),
    )


async def restart_under_a_fold(broker: Broker, folder: Path) -> None:
    servers, cluster = broker.bootstrap_servers, "restarted"
    await asyncio.to_thread(make_topics, servers, cluster)
    await asyncio.to_thread(write, servers, cluster, 2_000)
    seen: list[int] = []

    def feed(event: Input) -> None:
        assert isinstance(event, CommitRead)
        seen.extend(entry.offset for entry in event.entries)

    fold = a_fold(servers, cluster, 1_000, feed, folder)
    starting = asyncio.create_task(fold.start())
    await until(lambda: seen[-1:] == [1_999], seen)
    await asyncio.to_thread(broker.stop)
    await asyncio.to_thread(broker.start)
    assert broker.bootstrap_servers == servers
    await asyncio.to_thread(write, servers, cluster, 1_000)
    await until(lambda: seen[-1:] == [2_999], seen)
    # A group that has to be joined anew seeks anew, wherever it had been.
    consumer: Any = fold.app.consumer
    await consumer.perform_seek()
    await asyncio.to_thread(write, servers, cluster, 1)
    await until(lambda: seen[-1:] == [3_000], seen)
    assert fold.failure == ""
    assert seen == list(range(1_000, 3_001))
    await fold.stop()
    starting.cancel()


def test_a_topic_that_has_forgotten_its_oldest_records_is_read_from_what_is_left(
    broker: Broker, tmp_path: Path
) -> None:
    asyncio.run(forgotten_records(broker.bootstrap_servers, tmp_path))


async def forgotten_records(servers: str, folder: Path) -> None:
    """Before the first record is read, and later, when the fold seeks to where it was."""
    cluster = "forgotten"
    await asyncio.to_thread(make_topics, servers, cluster)
    await asyncio.to_thread(write, servers, cluster, 3)
    await asyncio.to_thread(write_restarts, servers, cluster, range(1, 7))
    await asyncio.to_thread(forget, servers, cluster, 4)
    seen: list[int] = []
    commits: list[int] = []

    def feed(event: Input) -> None:
        if isinstance(event, TimestampsRead):
            seen.extend(entry.offset for entry in event.entries)
        elif isinstance(event, CommitRead):
            commits.extend(entry.offset for entry in event.entries)

    fold = a_fold(servers, cluster, 0, feed, folder)
    assert not fold.is_whole(RESTART)
    starting = asyncio.create_task(fold.start())
    try:
        await until(lambda: fold.is_whole(RESTART) and fold.is_whole(STABILITY), seen)
        assert seen == [4, 5]
        await until(lambda: commits == [0, 1, 2], commits)
        consumer: Any = fold.app.consumer
        await asyncio.to_thread(write_restarts, servers, cluster, range(7, 10))
        await until(lambda: seen[-1] == 8, seen)
        place = fold._place(RESTART)
        # Faust notes how far it has read behind the agent, and would note it over the seek.
        await until(lambda: consumer._read_offset[place] == 8, seen)
        fold._begin_at[place] = 1
        await consumer.perform_seek()
        await asyncio.to_thread(write_restarts, servers, cluster, range(10, 12))
        await until(lambda: seen[-1] == 10, seen)
        assert seen == [4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9, 10]
        await asyncio.to_thread(write, servers, cluster, 1)
        await until(lambda: commits == [0, 1, 2, 3], commits)
        assert fold.failure == ""
    finally:
        await fold.stop()
        starting.cancel()


def write_restarts(servers: str, cluster: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 2})
    for number in numbers:
        record = RestartTimestamp(
            bucket="b",
            number=number,
            round=0,
            vbuckets=(),
            vbuuids=b"",
            seqnos=b"",
            branched=(),
            projectors=(),
            reason="closed",
            at_ms=0,
        )
        producer.produce(f"{cluster}.{RESTART}", codec.encode(record), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def forget(servers: str, cluster: str, before: int) -> None:
    """Delete the records below an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
    for done in admin.delete_records([TopicPartition(f"{cluster}.{RESTART}", 0, before)]).values():
        done.result()


async def until(condition: Callable[[], bool], seen: list[int]) -> None:
    end_s = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, (len(seen), seen[-3:])
        await asyncio.sleep(0.02)
