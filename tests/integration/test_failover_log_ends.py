"""Where `failover-log` ends, asked of a real broker by many scans at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coordinator.embedded.broker import Broker
from coordinator.kafka import failover_log_ends
from coordinator.kafka.failover_log_ends import FailoverLogEnds
from coordinator.kafka.settings import client_settings, plain_settings
from coordinator.kafka.topics import FAILOVER_LOG, STREAM_PARTITIONS, topic_name
from tests.integration.cluster import DEADLINE_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PATIENCE_S = 0.05


class Log:
    """The topic of a cluster of its own, and who asks where it ends."""

    def __init__(self, broker: Broker, cluster: str) -> None:
        self.topic = topic_name(cluster, FAILOVER_LOG)
        self._servers = broker.bootstrap_servers
        self._producer = Producer(plain_settings(self._servers))
        self.ends = FailoverLogEnds(self._servers, cluster)
        self.asked = 0
        ask = self.ends._ask

        def counted(*given: Any) -> Any:
            self.asked += 1
            return ask(*given)

        self.ends._ask = counted  # type: ignore[method-assign]

    def make(self) -> None:
        admin = AdminClient(client_settings(self._servers))
        [made] = admin.create_topics([NewTopic(self.topic, STREAM_PARTITIONS, 1)]).values()
        made.result(DEADLINE_S)

    def add(self, partition: int) -> None:
        """Add a record, and return once it can be read."""
        self._producer.produce(self.topic, b"x", partition=partition)
        assert self._producer.flush(DEADLINE_S) == 0

    async def known(self) -> tuple[int, ...]:
        """Return where the log ends, once Kafka says it in time."""
        async with asyncio.timeout(DEADLINE_S):
            while (found := await self.ends.now(DEADLINE_S)) is None:
                await asyncio.sleep(PATIENCE_S)
        return found


def test_whoever_asks_is_told_no_less_than_can_be_read_when_he_asks(broker: Broker) -> None:
    log = Log(broker, "ends-fresh")

    async def run() -> None:
        await log.known()
        for number in range(30):
            earlier = asyncio.ensure_future(log.ends.now(DEADLINE_S))
            await asyncio.sleep(0)  # It is under way now, and its answer may be an older one.
            log.add(number % STREAM_PARTITIONS)
            later = await log.known()
            written = [(number + STREAM_PARTITIONS - p) // STREAM_PARTITIONS for p in range(4)]
            assert list(later) == written, number
            await earlier

    log.make()
    asyncio.run(run())


def test_many_who_ask_at_once_cost_two_questions(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(broker, "ends-many")
    log.make()
    log.add(2)

    async def run() -> None:
        assert await log.known() == (0, 0, 1, 0)
        monkeypatch.setattr(failover_log_ends, "WAIT_S", DEADLINE_S)  # The machine may be slow.
        log.asked = 0
        found = await asyncio.gather(*(log.ends.now(DEADLINE_S) for _ in range(500)))
        assert log.asked <= 2
        assert {*found} == {(0, 0, 1, 0)}

    asyncio.run(run())


def test_where_there_is_no_such_topic_nothing_is_known_until_it_is_made(broker: Broker) -> None:
    log = Log(broker, "ends-away")

    async def run() -> None:
        assert await log.ends.now(DEADLINE_S) is None
        log.make()
        assert await log.known() == (0, 0, 0, 0)
        log.ends.close()
        assert await log.ends.now(DEADLINE_S) is None

    asyncio.run(run())
