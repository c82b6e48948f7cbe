"""The Faust application of a node: one agent that folds the commit topic.

Each life of a node is a consumer group of its own, so that every node sees everything and a
restart never waits for the session of its predecessor. The agent only hands records over, in
order; what they mean is the core's business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import faust
from faust.types import TP
from yarl import URL

from coordinator import codec
from coordinator.core.inputs import CommitRead, Entry
from coordinator.core.records import CommitRecord, Unreadable
from coordinator.kafka.faust_transport import Transport
from coordinator.kafka.topics import COMMIT, topic_name
from schemas.registry import SchemaError

BATCH_MAX = 500
SESSION_TIMEOUT_S = 60.0
"""Long: nobody else waits for this group's partition, and a busy loop must not lose it."""

REPEAT_S = 10.0
NOISY = (
    "aiokafka",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
)
"""They tell of every attempt at a broker that is away: some twenty lines a second."""


class Sparing(logging.Filter):
    """Lets a message through once in `REPEAT_S`, whatever its arguments; `now` is in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._said: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, str(record.msg)), self._now()
        if now - self._said.get(key, -REPEAT_S) < REPEAT_S:
            return False
        self._said[key] = now
        return True


class CommitFold:
    """Reads `commit` from `begin` on by a Faust agent, and feeds batches of entries in order."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        cluster: str,
        group: str,
        begin: int,
        feed: Callable[[CommitRead], None],
        data_dir: str,
    ) -> None:
        self._feed = feed
        self._pending: list[Entry] = []
        self._flush_planned = False
        topic = topic_name(cluster, COMMIT)
        urls = [URL(f"kafka://{server}") for server in bootstrap_servers.split(",")]
        self.app = faust.App(
            group,
            broker=urls,
            datadir=data_dir,
            store="memory://",
            web_enabled=False,
            topic_disable_leader=True,
            topic_allow_declare=False,
            stream_wait_empty=False,
            stream_publish_on_commit=False,
            consumer_auto_offset_reset="none",
            broker_session_timeout=SESSION_TIMEOUT_S,
            broker_max_poll_records=BATCH_MAX,
        )
        self._place = TP(topic, 0)
        self._begin_at = {self._place: begin}
        self.app.transport = Transport(urls, self.app, begin_at=self._begin_at)
        # Without acks Faust commits no offsets, which nobody would read, and does not keep the
        # gaps that transaction markers leave in a tree of intervals.
        channel = self.app.topic(topic, key_serializer="raw", value_serializer="raw", acks=False)
        self.app.agent(channel, name=f"{group}.fold")(self._fold)
        logging.getLogger("faust").setLevel(logging.WARNING)
        logging.getLogger("mode").setLevel(logging.WARNING)
        logging.getLogger("coordinator.kafka.faust_transport").setLevel(logging.WARNING)
        logging.getLogger("aiokafka").setLevel(logging.ERROR)
        sparing = Sparing()
        for name in NOISY:
            logging.getLogger(name).addFilter(sparing)

    async def start(self) -> None:
        self.app.finalize()
        await self.app.start()

    async def stop(self) -> None:
        await self.app.stop()

    @property
    def failure(self) -> str:
        """Return why the application crashed, or an empty text while it has not."""
        reason = self.app.crash_reason
        return f"{type(reason).__name__}: {reason}" if reason is not None else ""

    async def _fold(self, stream: Any) -> None:
        """Hand every record over, in order; those that are there already go as one batch."""
        loop = asyncio.get_running_loop()
        async for event in stream.events():
            # Nothing in here may raise: Faust would start the agent anew and skip the record.
            self._pending.append(_entry(event.message.offset, event.value))
            # A rebalance seeks anew: not to where this life began, which may be long ago.
            self._begin_at[self._place] = event.message.offset + 1
            if len(self._pending) >= BATCH_MAX:
                self._flush()
            elif not self._flush_planned:
                self._flush_planned = True
                loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._pending:
            entries, self._pending = tuple(self._pending), []
            self._feed(CommitRead(entries))


def _entry(offset: int, raw: bytes | None) -> Entry:
    """Decode one record; one that does not belong here still takes its place in the order."""
    try:
        record = codec.decode(raw or b"")
    except SchemaError as error:
        record = Unreadable(f"{error.code}: {error}")
    if not isinstance(record, CommitRecord):
        record = Unreadable(f"{type(record).__name__} does not belong here")
    return Entry(offset, record, raw or b"")
