"""Ends the transaction of a dead master without the wait that librdkafka would add.

When a transactional id is initialised, Kafka aborts the open transaction of the older producer.
This takes some 10 ms; until then Kafka answers "concurrent transactions". librdkafka then waits for
a fixed 500 ms. It waits as long if it is asked before it has a connection to a broker by its
number. aiokafka asks again at once. So aiokafka initialises the id first, and librdkafka's own
initialisation finds no open transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer

from coordinator.kafka.address import aiokafka_settings
from coordinator.kafka.hanging_transactions import end_hanging
from coordinator.kafka.settings import plain_settings

log = logging.getLogger(__name__)

RETRY_MS = 10
FENCE_TIMEOUT_S = 3.0
HANGING_TIMEOUT_S = 5.0


def end_open_transaction(
    bootstrap_servers: str, transactional_id: str, timeout_ms: int, topics: Sequence[str]
) -> None:
    """Fence the id's producer and abort its transaction; end what of it hangs on these topics.

    A failure is told of; it only costs the wait, unless a transaction hangs.
    """
    try:
        asyncio.run(_fence(bootstrap_servers, transactional_id, timeout_ms, topics))
    except Exception as error:
        log.info("fencing ahead failed: %s: %s", type(error).__name__, error)


def open_transactional(
    bootstrap_servers: str,
    transactional_id: str,
    topics: Sequence[str],
    timeout_s: float,
    **more: Any,
) -> Producer:
    """Return a new producer of a transactional id: the one before it is fenced, and its transaction
    is ended. `topics` are those that it writes; `more` is for the client, with the transaction's
    timeout. Raises KafkaException.
    """
    timeout_ms = more["transaction.timeout.ms"]
    end_open_transaction(bootstrap_servers, transactional_id, timeout_ms, topics)
    settings = {"transactional.id": transactional_id, **more}
    producer = Producer(plain_settings(bootstrap_servers, **settings))
    connect(producer, topics[0], timeout_s)
    producer.init_transactions(timeout_s)
    return producer


def connect(producer: Producer, topic: str, timeout_s: float) -> None:
    """Have a new producer connected. Raises KafkaException.

    The first answer comes over the bootstrap connection, and names the broker; the second one
    over a connection that transactions can use.
    """
    for _ in range(2):
        producer.list_topics(topic, timeout=timeout_s)


async def _fence(
    bootstrap_servers: str, transactional_id: str, timeout_ms: int, topics: Sequence[str]
) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers.split(","),
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        retry_backoff_ms=RETRY_MS,
        **aiokafka_settings(bootstrap_servers),
    )
    try:
        async with asyncio.timeout(FENCE_TIMEOUT_S):
            await producer.start()
        own = producer._txn_manager
        async with asyncio.timeout(HANGING_TIMEOUT_S):
            await end_hanging(
                producer.client,
                bootstrap_servers,
                transactional_id,
                own.producer_id,
                own.producer_epoch,
                topics,
            )
    finally:
        async with asyncio.timeout(FENCE_TIMEOUT_S):
            await producer.stop()
