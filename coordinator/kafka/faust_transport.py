"""Faust's transport, changed to read what the protocol needs: committed records, from our offset.

Faust reads uncommitted records unless its own exactly-once mode is on, and begins at the offset
that its consumer group committed. Here the isolation level is read_committed. Reading begins after
the store's applied offset, because Faust's committed offset may be ahead of what is durable. If a
topic deletes its oldest records by retention, reading goes on with the oldest that is left. On any
other topic an offset that does not exist is a failure (`offset_gone`).

Each override says why it is here, and the mutants of `tests/mutants/table.py` that are named
`faust-…` say which test fails without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import aiokafka
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.utils.futures import maybe_async

from coordinator.kafka.errors import KafkaRefusal

REQUEST_TIMEOUT_MS = 4_000
"""A broker that takes this long hangs: another may lead by now. Longer than a broker may hold a
new group back (`group.initial.rebalance.delay.ms`). Faust's own setting cannot be shorter than the
session's time-out."""


class _InLoop(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread, without the thread: it runs in the loop of the application.

    Each record, and each look for one, would otherwise cross between two loops. Measured in turn,
    four times each, on two busy cores: with the thread a write takes 1.25 times the processor time
    of the three nodes (20.9 ms, not 16.7), and p50 is 1.12 times as long (62.8 ms, not 55.8).
    """

    async def start(self) -> None:
        """Start as any service does, where Faust would start a thread."""
        await self._default_start()

    async def _stop_children(self) -> None:
        """Stop the consumer, which Faust has the thread do as it ends."""
        await self._shutdown_thread()

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call at once, where Faust would ask the thread to."""
        return await maybe_async(fun(*args, **kwargs))

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        """Fetch, and note how far; go on where Faust would end for want of an offset.

        KafkaRefusal `offset_gone`: what comes next was trimmed while the node stood still.
        """
        transport = self.transport
        assert isinstance(transport, Transport)
        try:
            found = await super().getmany(active_partitions, timeout)
        except NoOffsetForPartitionError:
            # The partition was assigned anew, after a long pause of the process, and a fetch came
            # before `perform_seek`, which says where to go on.
            return {}
        except OffsetOutOfRangeError as error:
            gone = error.args[0]
            if not gone.keys() <= transport.forgetful:
                place, offset = min(gone.items())
                message = f"{place.topic} has no offset {offset} any more: it was trimmed, or lost"
                raise KafkaRefusal("offset_gone", message) from error
            await self.seek_to_beginning(*gone)
            return {}
        transport.delivered.update((place, got[-1].offset) for place, got in found.items())
        return found

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        """Make the consumer that Faust would, with two options for which it has no setting: the
        isolation level, and a time-out of requests that is shorter than the session's.
        """
        conf = self.app.conf
        return aiokafka.AIOKafkaConsumer(
            group_id=conf.id,
            bootstrap_servers=driver.server_list(transport.url, transport.default_port),
            enable_auto_commit=False,
            auto_offset_reset=conf.consumer_auto_offset_reset,
            isolation_level="read_committed",
            max_poll_records=conf.broker_max_poll_records,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            **driver.credentials_to_aiokafka_auth(conf.broker_credentials, conf.ssl_context),
        )


class _Consumer(driver.Consumer):
    """A consumer that begins at the offsets that the transport was given."""

    def _new_consumer_thread(self) -> _InLoop:
        return _InLoop(self, loop=self.loop, thread_loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Seek to what comes next, where Faust would seek to the group's committed offset.

        KafkaRefusal `topic_mismatch`: a topic was given partitions that nothing here reads.
        """
        transport = self.transport
        assert isinstance(transport, Transport)
        assigned = self.assignment()
        if strange := sorted(place for place in assigned if place not in transport.begin_at):
            topic, partition = strange[0]
            message = f"{topic} has a partition {partition}: partitions were added to it"
            raise KafkaRefusal("topic_mismatch", message)
        for place in assigned:
            await self.seek(place, transport.begin_at[place])


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

    def is_at_end(self, place: TP) -> bool:
        """Tell whether everything was fetched that a partition had when it was last fetched from.

        Before the consumer has joined its group, nothing was.
        """
        consumer = self.app.consumer
        assert isinstance(consumer, _Consumer)
        inner = consumer._thread._consumer
        if inner is None or place not in inner.assignment():
            return False
        # aiokafka tells a position only to those who wait for it.
        state = inner._subscription.subscription.assignment.state_value(place)
        return state.has_valid_position and state.lso is not None and state.position >= state.lso
