"""Faust's transport, changed to read what the protocol needs: committed records, from our offset.

Faust reads uncommitted records unless its own exactly-once mode is on, and begins at the offset
that its consumer group committed. Here the isolation level is read_committed. Reading begins after
the store's applied offset, because Faust's committed offset may be ahead of what is durable. If a
topic deletes its oldest records by retention, reading goes on with the oldest that is left. On any
other topic an offset that does not exist is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode import Service
from mode.utils.futures import maybe_async

READ_COMMITTED = 1
"""The wire protocol's number for it, as aiokafka keeps it."""

FETCH_WAIT_MS = 500
REQUEST_TIMEOUT_MS = 4_000
"""A broker that takes this long hangs: another may lead by now. Longer than a broker may hold a
new group back (`group.initial.rebalance.delay.ms`). Faust's own setting cannot be shorter than the
session's time-out."""


class _InLoop(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread, without the thread: it runs in the loop of the application.

    Each record would otherwise cross between two loops four times, which costs more than the
    reading itself.
    """

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, **kwargs: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, **kwargs)

    async def start(self) -> None:
        self._thread_started.set()
        await self._default_start()

    async def stop(self) -> None:
        if self._started.is_set():
            await Service.stop(self)

    def _stopped_set(self) -> None:
        self._stopped.set()

    def set_shutdown(self) -> None:
        self._shutdown.set()

    async def _stop_children(self) -> None:
        await self.on_thread_stop()
        await self._default_stop_children()
        self.set_shutdown()

    async def _stop_futures(self) -> None:
        await self._default_stop_futures()

    async def _stop_exit_stacks(self) -> None:
        await self._default_stop_exit_stacks()

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await maybe_async(fun(*args, **kwargs))

    async def cast_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        await maybe_async(fun(*args, **kwargs))

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        transport = self.transport
        assert isinstance(transport, Transport)
        try:
            found = await super().getmany(active_partitions, timeout)
        except NoOffsetForPartitionError:
            # The partition was assigned anew, after a long pause of the process, and a fetch came
            # before `perform_seek`, which says where to go on.
            return {}
        except OffsetOutOfRangeError as error:
            gone = {TP(*place) for place in error.args[0]}
            if not gone <= transport.forgetful:
                raise
            # Not waited for: a broker that is away would hold the other topics up.
            self.add_future(self._begin_again(error.args[0]))
            return {}
        for place, records in found.items():
            if records:
                transport.delivered[TP(*place)] = records[-1].offset
        return found

    async def _begin_again(self, places: Iterable[Any]) -> None:
        """Go on with the oldest records there are; if that fails, the next fetch asks again."""
        with suppress(KafkaError):
            await self._ensure_consumer().seek_to_beginning(*places)

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        # aiokafka has no setter; `isolation_level_of` guards this at start and in the tests.
        consumer._isolation_level = "read_committed"
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS
        consumer._request_timeout_ms = REQUEST_TIMEOUT_MS
        consumer._client._request_timeout_ms = REQUEST_TIMEOUT_MS
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        level = isolation_level_of(self._ensure_consumer())
        if level != READ_COMMITTED:
            raise RuntimeError(f"the consumer reads at isolation level {level}")


class _Consumer(driver.Consumer):
    """A consumer that begins at the offsets that the transport was given."""

    def _new_consumer_thread(self) -> _InLoop:
        return _InLoop(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Seek to what comes next, wherever the group's committed offset is."""
        transport = self.transport
        assert isinstance(transport, Transport)
        for tp in self.assignment():
            start = transport.begin_at.get(tp)
            if start is None:
                continue
            await self._seek(tp, start)
            self._read_offset[tp] = start - 1 if start > 0 else None
            self._committed_offset[tp] = None


class Transport(driver.Transport):
    """Give it to `app.transport` before agents are made.

    `begin_at` is the next offset to read, looked up at each assignment; `forgetful` partitions
    begin with the oldest record that they have left where that offset is gone. `delivered` is the
    last offset that agents were given.
    """

    Consumer = _Consumer

    def __init__(
        self,
        *args: Any,
        begin_at: Mapping[TP, int],
        forgetful: AbstractSet[TP] = frozenset(),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.begin_at = begin_at
        self.forgetful = forgetful
        self.delivered: dict[TP, int] = {}


def isolation_level_of(consumer: aiokafka.AIOKafkaConsumer) -> int:
    """Return the isolation level at which a started consumer really fetches."""
    return int(consumer._fetcher._isolation_level)


def is_at_end(consumer: Any, place: TP) -> bool:
    """Tell whether everything was fetched that a partition had when it was last fetched from.

    `consumer` is the application's; before it has joined its group, nothing was.
    """
    inner: aiokafka.AIOKafkaConsumer | None = consumer._thread._consumer
    subscription = inner._subscription.subscription if inner is not None else None
    assignment = subscription.assignment if subscription is not None else None
    if assignment is None or place not in assignment.tps:
        return False
    state = assignment.state_value(place)
    return state.has_valid_position and state.lso is not None and state.position >= state.lso
