"""How far subscribers have come: what a node reads of `subscription-positions`, and writes to it.

Every node keeps this while there are subscriptions. Nothing here is needed to go on after a crash.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from confluent_kafka import KafkaException, Message

from coordinator.core.history.subscribing import Positions
from coordinator.core.model.entities import Subscription
from coordinator.core.model.subscription_records import (
    NOBODY,
    PositionRead,
    SubscriberSeen,
    SubscriptionAcknowledged,
    SubscriptionRecord,
)
from coordinator.core.model.types import Cas
from coordinator.kafka.subscription_log import NotWrittenError, PositionReader, PositionWriter

T = TypeVar("T")

SETTLE_S = 10.0
WAITING_MAX = 10_000


class PositionBook:
    """The positions of subscribers, as one node knows them. The loop owns it; `close` ends it."""

    def __init__(
        self,
        bootstrap_servers: str,
        cluster: str,
        dead_letter: Callable[[Message, str], None],
        failed: Callable[[str], None],
    ) -> None:
        """`dead_letter` and `failed` may be called in another thread."""
        self._servers, self._cluster = bootstrap_servers, cluster
        self._dead_letter, self._failed = dead_letter, failed
        self.positions = Positions()
        self._marks: dict[int, asyncio.Future[None]] = {}
        self._waiting: list[tuple[SubscriptionRecord, asyncio.Future[None]]] = []
        self._draining: asyncio.Task[None] | None = None
        self._writing = ThreadPoolExecutor(1, "positions")
        self._writer: PositionWriter | None = None
        self._reader: PositionReader | None = None
        self._is_closed = False

    async def acknowledge(self, subscription: Subscription, cas: Cas) -> Cas:
        """Note that a subscriber has all changes up to a CAS; return how far it is then.

        Raises NotWrittenError.
        """
        if cas > self.positions.of(subscription):
            await self._write(SubscriptionAcknowledged(subscription.number, cas, now_ms()))
        else:
            await self.note_presence(subscription)
        return self.positions.of(subscription)

    async def note_presence(self, subscription: Subscription) -> None:
        """Note that a subscriber is there, where it matters. Raises NotWrittenError."""
        if subscription.expires_after_ms:
            await self._write(SubscriberSeen(subscription.number, now_ms(), 0))

    async def settle(self, subscription: Subscription) -> Cas:
        """Return how far a subscriber is, knowing all that any node has written of it before.

        Raises NotWrittenError.
        """
        await self._read_up_to_now(subscription.number)
        return self.positions.of(subscription)

    async def catch_up(self) -> None:
        """Read all that is in the log now: `positions` tells of it. Raises NotWrittenError."""
        await self._read_up_to_now(NOBODY)

    async def _read_up_to_now(self, number: int) -> None:
        """Write a mark under the number of a subscription, and read up to it."""
        self.listen()
        mark = secrets.randbits(62) + 1
        read = self._marks[mark] = asyncio.get_running_loop().create_future()
        self.positions.expect(mark, monotonic_ms())
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._write(SubscriberSeen(number, now_ms(), mark))
                await read
        except TimeoutError:
            raise NotWrittenError("the positions of subscribers cannot be read") from None
        finally:
            del self._marks[mark]
            self.positions.give_up(mark)

    def listen(self) -> None:
        """Begin to read, if that has not begun."""
        if self._reader is None and not self._is_closed:
            hand_over = partial(self._hand_over, asyncio.get_running_loop())
            self._reader = PositionReader(
                self._servers, self._cluster, hand_over, self._dead_letter, self._failed
            )

    @property
    def is_listening(self) -> bool:
        """Tell whether the topic is read."""
        return self._reader is not None

    @property
    def has_died(self) -> bool:
        """Tell whether positions are not read any more, although they should be."""
        return self._reader is not None and self._reader.has_died

    def _hand_over(self, loop: asyncio.AbstractEventLoop, records: list[PositionRead]) -> None:
        """Pass on what the reader's thread has read."""
        with suppress(RuntimeError):  # The loop is being closed.
            loop.call_soon_threadsafe(self.take, records)

    def take(self, records: Sequence[PositionRead]) -> None:
        """Fold records that were read, or that were written by this process."""
        mono_ms = monotonic_ms()
        for record in records:
            self.positions.take(record, mono_ms)
            if isinstance(record, SubscriberSeen):
                read = self._marks.get(record.mark)
                if read is not None and not read.done():
                    read.set_result(None)

    async def _write(self, record: SubscriptionRecord) -> None:
        """Write a record, together with those that come meanwhile. Raises NotWrittenError."""
        if len(self._waiting) >= WAITING_MAX:
            raise NotWrittenError(f"{WAITING_MAX} positions wait to be written: retry")
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        await written

    async def _drain(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            records = ascending([record for record, _ in batch], self.positions)
            failure: NotWrittenError | None = None
            try:
                await self._in_writer(partial(_written, records))
            except NotWrittenError as error:
                failure = error
            except Exception as error:
                # Whoever waits must hear of it, whatever it is.
                failure = NotWrittenError(f"{type(error).__name__}: {error}")
            else:
                # Before the next batch: it must not write what is lower.
                self.take([r for r in records if isinstance(r, SubscriptionAcknowledged)])
            for _, written in batch:
                if written.done():
                    continue
                if failure is None:
                    written.set_result(None)
                else:
                    written.set_exception(failure)

    async def _in_writer(self, work: Callable[[PositionWriter], T]) -> T:
        """Do what blocks, in the writer's thread. Raises NotWrittenError."""

        def in_thread() -> T:
            try:
                if self._writer is None or self._writer.is_done_for:
                    self._writer = PositionWriter(self._servers, self._cluster)
                return work(self._writer)
            except KafkaException as error:
                raise NotWrittenError(str(error)) from error

        if self._is_closed:
            raise NotWrittenError("this node is stopping")
        return await asyncio.get_running_loop().run_in_executor(self._writing, in_thread)

    async def forget(self, numbers: Sequence[int]) -> None:
        """Remove what there is of subscriptions that are gone. Raises NotWrittenError."""
        await self._in_writer(lambda writer: writer.forget(numbers))
        self.positions.forget(numbers)

    async def close(self) -> None:
        """Let go of Kafka."""
        self._is_closed = True
        for read in self._marks.values():
            if not read.done():
                read.set_exception(NotWrittenError("this node is stopping"))
                read.exception()  # Whoever waits may still wait for the write: none is unheard.
        if self._reader is not None:
            await asyncio.to_thread(self._reader.stop)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.close)
        self._writing.shutdown(wait=False)


def ascending(
    records: Sequence[SubscriptionRecord], known: Positions
) -> Sequence[SubscriptionRecord]:
    """Return records so that no position is lower than one that was written before it.

    Compaction keeps the last. Whoever acknowledges less than it has is only seen.
    """
    highest: dict[int, Cas] = {}
    found: list[SubscriptionRecord] = []
    for record in records:
        if isinstance(record, SubscriberSeen):
            found.append(record)
        elif record.cas > highest.get(record.number, known.reached(record.number)):
            highest[record.number] = record.cas
            found.append(record)
        else:
            found.append(SubscriberSeen(record.number, record.at_ms, 0))
    return found


def _written(records: Sequence[SubscriptionRecord], writer: PositionWriter) -> None:
    writer.write(records)


def monotonic_ms() -> int:
    """Return the time by the clock that nobody sets."""
    return time.monotonic_ns() // 1_000_000


def now_ms() -> int:
    """Return the time by the wall clock."""
    return time.time_ns() // 1_000_000
