"""The Faust agent over a restart of the broker: it goes on where it was, not where it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator import codec
from coordinator.core.inputs import CommitRead
from coordinator.core.records import ReadBarrier
from coordinator.embedded.broker import Broker
from coordinator.kafka.agents import CommitFold

DEADLINE_S = 60.0


def write(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 2})
    for nonce in range(count):
        producer.produce("f.commit", codec.encode(ReadBarrier(1, nonce)), partition=0)
    assert producer.flush(DEADLINE_S) == 0


def test_after_a_restart_of_the_broker_nothing_is_lost_or_read_again(tmp_path: Path) -> None:
    asyncio.run(restart_under_a_fold(tmp_path))


async def restart_under_a_fold(folder: Path) -> None:
    broker = Broker(folder / "kafka")
    await asyncio.to_thread(broker.start)
    try:
        servers = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers, "log_level": 2})
        await asyncio.to_thread(
            admin.create_topics([NewTopic("f.commit", 1, 1)])["f.commit"].result
        )
        await asyncio.to_thread(write, servers, 2_000)
        seen: list[int] = []

        def feed(event: CommitRead) -> None:
            seen.extend(entry.offset for entry in event.entries)

        fold = CommitFold(
            bootstrap_servers=servers,
            cluster="f",
            group="f.node-1",
            begin=1_000,
            feed=feed,
            data_dir=str(folder),
        )
        starting = asyncio.create_task(fold.start())
        await until(lambda: seen[-1:] == [1_999], seen)
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        assert broker.bootstrap_servers == servers
        await asyncio.to_thread(write, servers, 1_000)
        await until(lambda: seen[-1:] == [2_999], seen)
        # A group that has to be joined anew seeks anew, wherever it had been.
        consumer: Any = fold.app.consumer
        await consumer.perform_seek()
        await asyncio.to_thread(write, servers, 1)
        await until(lambda: seen[-1:] == [3_000], seen)
        assert fold.failure == ""
        assert seen == list(range(1_000, 3_001))
        await fold.stop()
        starting.cancel()
    finally:
        await asyncio.to_thread(broker.stop)


async def until(condition: Callable[[], bool], seen: list[int]) -> None:
    end_s = asyncio.get_running_loop().time() + DEADLINE_S
    while not condition():
        assert asyncio.get_running_loop().time() < end_s, (len(seen), seen[-3:])
        await asyncio.sleep(0.02)
