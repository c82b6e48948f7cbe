"""Where `failover-log` ends now: what a scan has to know of that is not to show what is lost.

One question at a time is under way. Who asks meanwhile waits for the next one, because the answer
to this one may be older than what he wants to know. So many scans at once cost no more than one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from coordinator.kafka.address import client_settings
from coordinator.kafka.settings import RECONNECT_BACKOFF_MS_MAX
from coordinator.kafka.topic_histories import LATEST
from coordinator.kafka.topics import FAILOVER_LOG, STREAM_PARTITIONS, topic_name

WAIT_S = 1.0
"""A question is waited for no longer than this: a broker that is busy answers later than usual, and
from one that is away nothing new can be known."""

REQUEST_TIMEOUT_S = 2.0

Ends = tuple[int, ...]
"""The offset behind the last record of each partition, 0 where Kafka does not say it."""

Answer = asyncio.Future[Ends | None]


class FailoverLogEnds:
    """Asks Kafka for the scans of one loop, from the first one on."""

    def __init__(self, bootstrap_servers: str, cluster: str) -> None:
        topic = topic_name(cluster, FAILOVER_LOG)
        self._servers = bootstrap_servers
        self._places = [TopicPartition(topic, p) for p in range(STREAM_PARTITIONS)]
        self._admin: AdminClient | None = None
        self._is_closed = False
        self._asked: Answer | None = None
        """The answer to the question that is under way."""
        self._asked_s = 0.0
        self._next: Answer | None = None
        """The answer to the one after it, if anybody waits for that."""

    async def now(self, within_s: float) -> Ends | None:
        """Return where the log ends, no earlier than now. None: Kafka does not say so soon, or not
        within these seconds.

        A question that is late is waited for by nobody else.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        under_way = self._asked
        if under_way is None:
            return await self._answer_to(self._ask(), until_s)
        if loop.time() - self._asked_s > WAIT_S:
            return None
        mine = self._next = self._next or loop.create_future()
        await self._answer_to(under_way, until_s)
        return await self._answer_to(mine, until_s) if under_way.done() else None

    async def _answer_to(self, question: Answer, until_s: float) -> Ends | None:
        """Wait for an answer. What has come while the loop stood still has come in time."""
        left_s = until_s - asyncio.get_running_loop().time()
        await asyncio.wait([question], timeout=max(0.0, min(WAIT_S, left_s)))
        return question.result() if question.done() else None

    def close(self) -> None:
        """Ask no more."""
        self._is_closed = True
        self._admin = None

    def _ask(self, answer: Answer | None = None) -> Answer:
        """Ask, and have the answer in a future: in this one, if there is one already."""
        loop = asyncio.get_running_loop()
        told = answer or loop.create_future()
        try:
            asked = self._admin_client().list_offsets(
                dict.fromkeys(self._places, LATEST),
                isolation_level=IsolationLevel.READ_COMMITTED,
                request_timeout=REQUEST_TIMEOUT_S,
            )
        except (KafkaException, RuntimeError):
            told.set_result(None)
            return told
        self._asked, self._asked_s = told, loop.time()
        left = len(asked)

        def is_answered(_: Any) -> None:
            nonlocal left
            left -= 1
            if not left and not loop.is_closed():
                loop.call_soon_threadsafe(self._answered, told, asked)

        for one in asked.values():
            one.add_done_callback(is_answered)
        return told

    def _admin_client(self) -> AdminClient:
        if self._is_closed:
            raise RuntimeError("closed")
        if self._admin is None:
            self._admin = AdminClient(
                {
                    **client_settings(self._servers),
                    "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MS_MAX,
                    "socket.nagle.disable": True,
                    "log_level": 2,
                }
            )
        return self._admin

    def _answered(self, answer: Answer, asked: dict[TopicPartition, Any]) -> None:
        """Tell those who wait, and ask again for those who came meanwhile.

        The client says a negative offset where the leader that it knows has not answered. It would
        ask that one again and again, also when there is another: so the next question has a new
        client.
        """
        said = {
            at.partition: offset
            for at, one in asked.items()
            if one.exception() is None and (offset := one.result().offset) >= 0
        }
        partitions = range(len(asked))
        ends = tuple(said.get(p, 0) for p in partitions)
        answer.set_result(ends if said else None)
        if len(said) < len(asked):
            self._admin = None
        waiting, self._asked, self._next = self._next, None, None
        if waiting is not None:
            self._ask(waiting)
