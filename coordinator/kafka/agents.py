"""The Faust application of a node: an agent for the commit topic, and one for each of the topics
`stability` and `restart`.

Each process of a node is a consumer group of its own. So every node reads everything, and a restart
never waits for the session of the process before it.

An agent decodes a record, and has it folded and stored, before it reads the next one. The shell
(`node/shell.py`) hands it to the node, whose followers (`core/consensus/follower.py`,
`timestamp_follower.py`) know what it means and fold it, and writes what they ask it to save to the
store, in the same turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import faust
from aiokafka.errors import KafkaConnectionError
from faust.types import TP
from yarl import URL

from coordinator import codec
from coordinator.core.consensus.inputs import (
    CommitRead,
    Entry,
    TimestampEntry,
    TimestampsRead,
)
from coordinator.core.model.records import CommitRecord, Unreadable
from coordinator.core.model.stream_records import (
    ConsolidatedStability,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.types import Offset
from coordinator.kafka.address import aiokafka_settings
from coordinator.kafka.errors import KafkaRefusal, no_broker_answers
from coordinator.kafka.faust_transport import Transport
from coordinator.kafka.topics import COMMIT, RESTART, STABILITY, topic_name
from schemas.registry import SchemaError

FETCHED_MAX = 500
"""So many records are taken from what was fetched at once."""

SESSION_TIMEOUT_S = 60.0
"""Long: nobody else waits for this group's partition, and a busy loop must not lose it."""

REPEAT_S = 10.0
REASON_LENGTH_MAX = 1_000
NOISY = (
    "aiokafka",
    "aiokafka.conn",
    "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator",
)
"""They tell of every attempt at a broker that is away: some twenty lines a second."""


TIMESTAMPS: dict[str, Any] = {
    STABILITY: StabilityTimestamp | ConsolidatedStability,
    RESTART: RestartTimestamp | RollbackEnquiry,
}
"""The topics that tell of timestamps, and what belongs there."""


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


Decode = Callable[[Offset, bytes | None], CommitRead | TimestampsRead]
FoldAndStore = Callable[[CommitRead | TimestampsRead], None]
"""Has a follower of the node fold what was read, and the store written, before it returns."""


class Folds:
    """Reads `commit` from `begin` on, and all that `stability` and `restart` have, each by a Faust
    agent that folds and stores every record in the order of its topic."""

    def __init__(
        self,
        *,
        bootstrap_servers: str,
        cluster: str,
        group: str,
        begin: Offset,
        fold_and_store: FoldAndStore,
        data_dir: str,
    ) -> None:
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
            broker_max_poll_records=FETCHED_MAX,
            broker_credentials=_credentials(bootstrap_servers),
        )
        self._servers, self._group, self._cluster = bootstrap_servers, group, cluster
        self._agents: dict[str, _Agent] = {}
        self._whole: set[str] = set()
        self._begin_at = {self._place(name): Offset(0) for name in TIMESTAMPS}
        self._transport = self.app.transport = Transport(
            urls, self.app, begin_at=self._begin_at, forgetful=frozenset(self._begin_at)
        )
        self._begin_at[self._place(COMMIT)] = begin
        self._add(COMMIT, _commit_read, fold_and_store)
        for name, expected in TIMESTAMPS.items():
            self._add(name, partial(_timestamps_read, name, expected), fold_and_store)
        _be_quiet()

    def _place(self, name: str) -> TP:
        return TP(topic_name(self._cluster, name), 0)

    def _add(self, name: str, decode: Decode, fold_and_store: FoldAndStore) -> None:
        place = self._place(name)
        agent = self._agents[name] = _Agent(place, self._begin_at, decode, fold_and_store)
        # Without acks Faust commits no offsets, which nobody would read, and does not keep the
        # gaps that transaction markers leave in a tree of intervals.
        channel = self.app.topic(
            place.topic, key_serializer="raw", value_serializer="raw", acks=False
        )
        self.app.agent(channel, name=f"{self._group}.{name}")(agent.run)

    async def start(self) -> None:
        """Begin to read. Raises KafkaRefusal `kafka_unavailable`: no broker answers."""
        self.app.finalize()
        try:
            await self.app.start()
        except KafkaConnectionError as error:
            raise no_broker_answers(self._servers) from error

    async def stop(self) -> None:
        await self.app.stop()

    @property
    def failure(self) -> str:
        """Return why the application, or one of its agents, is of no more use; empty: all go on.

        Faust starts an agent anew that has raised, and skips the record: here that is the end.
        """
        reason = self.app.crash_reason
        if isinstance(reason, KafkaRefusal):
            return f"{reason.message} [{reason.code}]"
        if reason is not None:
            return f"{type(reason).__name__}: {reason}"
        return next((a.failure for a in self._agents.values() if a.failure), "")

    def is_whole(self, name: str) -> bool:
        """Tell whether all that a topic had, at some time since the start, was folded."""
        if name not in self._whole and self.app.started:
            place = self._place(name)
            folded = self._begin_at[place] > self._transport.delivered.get(place, -1)
            if folded and self._transport.is_at_end(place):
                self._whole.add(name)
        return name in self._whole


class _Agent:
    """Folds and stores every record of a topic, one after the other."""

    def __init__(
        self,
        place: TP,
        begin_at: dict[TP, Offset],
        decode: Decode,
        fold_and_store: FoldAndStore,
    ) -> None:
        self._place = place
        self._begin_at = begin_at
        self._decode = decode
        self._fold_and_store = fold_and_store
        self.failure = ""

    async def run(self, stream: Any) -> None:
        """Decode, fold and store until the application ends; any other end is a `failure`."""
        why = "it ended by itself"
        try:
            async for event in stream.events():
                offset = event.message.offset
                read = self._decode(offset, event.value)
                self._fold_and_store(read)
                # A rebalance seeks anew: not to where this life began, which may be long ago.
                self._begin_at[self._place] = offset + 1
        except asyncio.CancelledError:
            why = "it was cancelled"
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.failure = f"the agent of {self._place.topic} reads no more: {why}"


def _commit_read(offset: Offset, raw: bytes | None) -> CommitRead:
    """Decode one record; one that does not belong here still takes its place in the order."""
    return CommitRead((Entry(offset, _decoded(raw, CommitRecord), raw or b""),))


def _timestamps_read(
    topic: str, expected: Any, offset: Offset, raw: bytes | None
) -> TimestampsRead:
    return TimestampsRead((TimestampEntry(topic, offset, _decoded(raw, expected), raw or b""),))


def _decoded(raw: bytes | None, expected: Any) -> Any:
    """Return the record, or an `Unreadable` that says why it does not belong here."""
    try:
        record = codec.decode(raw or b"")
    except SchemaError as error:
        return Unreadable(f"{error.code}: {error}"[:REASON_LENGTH_MAX])
    except Exception as error:
        return Unreadable(f"unreadable: {type(error).__name__}")
    if not isinstance(record, expected):
        return Unreadable(f"{type(record).__name__} does not belong here")
    return record


def _credentials(bootstrap_servers: str) -> Any:
    """Return how Faust's clients log in; None: they need not."""
    settings = aiokafka_settings(bootstrap_servers)
    context = settings.get("ssl_context")
    if "sasl_mechanism" in settings:
        return faust.SASLCredentials(
            mechanism=settings["sasl_mechanism"],
            username=settings["sasl_plain_username"],
            password=settings["sasl_plain_password"],
            ssl_context=context,
        )
    return None if context is None else faust.SSLCredentials(context)


def _be_quiet() -> None:
    """Have the libraries log what matters, and the same thing once in a while."""
    logging.getLogger("faust").setLevel(logging.WARNING)
    logging.getLogger("mode").setLevel(logging.WARNING)
    logging.getLogger("coordinator.kafka.faust_transport").setLevel(logging.WARNING)
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    sparing = Sparing()
    for name in NOISY:
        logging.getLogger(name).addFilter(sparing)
