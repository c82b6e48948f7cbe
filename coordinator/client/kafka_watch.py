"""Watching without a node: changes as they are committed, read from Kafka itself.

`KafkaWatch.watch` and `AsyncKafkaWatch.watch` yield the same events as those of `Client` and
`AsyncClient`, with the same fields: a program changes one line to move from one to the other. They
need the address of Kafka, and permission to read the topics `history`, `statecontext`, `snapshots`
and `commit`. They join no consumer group, and write nothing. Each watch keeps one state in memory:
that at its position.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from typing import Any, NamedTuple
from weakref import WeakSet

from confluent_kafka import KafkaError, KafkaException, Message

from coordinator.client.errors import error_of
from coordinator.client.kafka_contact import CONTACT_S, await_topics, fault_of
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history import shown
from coordinator.core.history.following import Bookmarks, Following
from coordinator.core.history.predicates import (
    Begin,
    Predicate,
    PredicateError,
    begin_of,
    predicate_of,
)
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.errors import may_pass
from coordinator.kafka.history_tail import NEEDED, Gone, HistoryTail, LogReplaced
from coordinator.kafka.topics import HISTORY, topic_name

DEFAULT_PREFIX = "default"
FIRST_PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
REPLACED_S = 10.0
"""So long a log may end too early: a broker that has just become its leader may not know all yet.
"""

PORTION = 100
"""So many entities of a snapshot are handed over together."""

OF_NODES = frozenset({"stability", "members"})
"""Kinds of what only nodes tell of: neither is in the history."""

log = logging.getLogger("coordinator.client")

WatchEvent = dict[str, Any]
Filter = str | int | Sequence[str] | Sequence[int] | None


class BadRecord(NamedTuple):
    """A record that could not be used: where it stands, and what is wrong with it."""

    topic: str
    partition: int
    offset: int
    reason: str


def warn(bad: BadRecord) -> None:
    """Log a record that could not be used: the default of `on_bad`."""
    log.warning("%s [%d] at %d is passed over: %s", *bad)


class KafkaWatch:
    """Watches one cluster by its topics. Use it in a `with`, or `close` it."""

    def __init__(
        self,
        bootstrap_servers: str,
        prefix: str = DEFAULT_PREFIX,
        *,
        first_contact_s: float = CONTACT_S,
        on_bad: Callable[[BadRecord], None] = warn,
    ) -> None:
        """`prefix` is the name of the cluster, which its topics begin with.

        `on_bad` is called with each record that cannot be decoded or was never committed; by
        default the watch logs a warning. The watch skips such a record, as nodes do. If `on_bad`
        raises, the watch ends with that exception.
        """
        self._servers = bootstrap_servers
        self._prefix = prefix
        self._first_contact_s = first_contact_s
        self._on_bad = on_bad
        self._stopping = threading.Event()
        self._open: WeakSet[Batches] = WeakSet()

    def watch(
        self, after: int | str = "now", **filters: Filter
    ) -> Generator[WatchEvent, None, None]:
        """Yield changes as they are committed, for ever, in order of CAS: each once, without a gap.

        Takes the arguments of `Client.watch`, and yields the same events, except the kinds
        `stability` and `members`. If brokers die, the watch resumes when they are back. Raises
        CoordinatorError: `invalid_request`, `compacted`; `unreachable` or `topics_missing` at the
        beginning; `log_replaced`, `kafka_error`.
        """
        return _one_by_one(self.batches(after, **filters))

    def batches(self, after: int | str = "now", **filters: Filter) -> Batches:
        """Yield the events of `watch` in lists, as they arrive; [] while none arrives."""
        begin, predicate = asked(after, filters)
        watch = _Watch(self._servers, self._prefix, begin, predicate, self._stopping)
        made = Batches(watch.run(self._first_contact_s, self._on_bad))
        self._open.add(made)
        return made

    def close(self) -> None:
        """End all watches, also one in which another thread waits; it ends without an error."""
        self._stopping.set()
        for one in [*self._open]:
            one.close()

    def __enter__(self) -> KafkaWatch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Batches:
    """The events of a watch. Any thread may close it; `close` waits for one that is reading it."""

    def __init__(self, batches: Generator[list[WatchEvent], None, None]) -> None:
        self._batches = batches
        self._turn = threading.RLock()

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> list[WatchEvent]:
        with self._turn:
            return next(self._batches)

    def close(self) -> None:
        """End the watch, and its connection."""
        with self._turn, suppress(ValueError):  # Called from within, it ends by itself.
            self._batches.close()


def _one_by_one(batches: Batches) -> Generator[WatchEvent, None, None]:
    with closing(batches):
        for batch in batches:
            yield from batch


class AsyncKafkaWatch:
    """The same for asyncio. Use it in an `async with`, or `aclose` it.

    Each watch has a thread, which ends with it.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Takes what `KafkaWatch` takes."""
        self._watch = KafkaWatch(*given, **settings)

    async def watch(
        self, after: int | str = "now", **filters: Filter
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield changes as they are committed: see `KafkaWatch.watch`."""
        loop = asyncio.get_running_loop()
        batches = self._watch.batches(after, **filters)
        with ThreadPoolExecutor(1, "kafka-watch") as thread:
            try:
                while True:
                    batch = await loop.run_in_executor(thread, next, batches, None)
                    if batch is None:
                        return
                    for told in batch:
                        yield told
            finally:
                await asyncio.shield(loop.run_in_executor(thread, batches.close))

    async def aclose(self) -> None:
        await asyncio.to_thread(self._watch.close)

    async def __aenter__(self) -> AsyncKafkaWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def asked(after: int | str, filters: dict[str, Filter]) -> tuple[Begin, Predicate]:
    """Return where a watch begins, and its filters. CoordinatorError `invalid_request`."""
    try:
        kind = filters.get("kind")
        kinds = {kind} if isinstance(kind, str | int) else {*(kind or ())}
        if OF_NODES & kinds:
            raise PredicateError(f"kind: only nodes tell of {' and '.join(sorted(OF_NODES))}")
        return begin_of(str(after)), predicate_of(filters)
    except PredicateError as error:
        raise error_of("invalid_request", str(error)) from None


# -- one watch -----------------------------------------------------------------------------------


class _Watch:
    """One watch: its position, which it keeps from one connection to the next."""

    def __init__(
        self,
        servers: str,
        prefix: str,
        begin: Begin,
        predicate: Predicate,
        stopping: threading.Event,
    ) -> None:
        self._servers = servers
        self._prefix = prefix
        self._begin = begin
        self._predicate = predicate
        self._stopping = stopping
        self._following: Following | None = None
        self._position: Offset | None = None
        self._replaced_s: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._reported: set[tuple[str, int, int]] = set()

    def run(
        self, first_contact_s: float, on_bad: Callable[[BadRecord], None]
    ) -> Generator[list[WatchEvent], None, None]:
        """Yield the events; connect again when a connection fails. Raises CoordinatorError."""
        topics = [topic_name(self._prefix, name) for name in NEEDED]
        await_topics(self._servers, topics, first_contact_s, self._stopping)
        until_s = time.monotonic() + first_contact_s

        def bad(message: Message, reason: str) -> None:
            self._report(message, reason, on_bad)

        while not self._stopping.is_set():
            tail = HistoryTail(self._servers, self._prefix, self._stopping, bad)
            try:
                with closing(tail):
                    yield from self._events(tail)
            except Gone as error:
                raise error_of("compacted", str(error), {"oldest": error.oldest}) from None
            except LogReplaced as error:
                self._replaced(error)
            except KafkaException as error:
                if not self._stopping.is_set():
                    self._failed(error, until_s)
            self._stopping.wait(self._pause_s)
            self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s)

    def _report(self, message: Message, reason: str, on_bad: Callable[[BadRecord], None]) -> None:
        """Tell of a record once: a search for a place may come across it again and again."""
        place = (str(message.topic()), int(message.partition() or 0), int(message.offset() or 0))
        if place in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported.add(place)
        on_bad(BadRecord(*place, reason))

    def _failed(self, error: KafkaException, until_s: float) -> None:
        """Return if the error is transient; raise it otherwise."""
        cause = error.args[0]
        passes = may_pass(error) or cause.retriable() or cause.code() in OUT_OF_PLACE
        if not passes or (self._following is None and time.monotonic() > until_s):
            raise fault_of(error, self._servers) from None
        log.info("the watch of %s goes on: %s", self._prefix, cause.str())

    def _replaced(self, error: LogReplaced) -> None:
        now_s = time.monotonic()
        self._replaced_s = self._replaced_s or now_s
        if now_s - self._replaced_s > REPLACED_S:
            topic = topic_name(self._prefix, HISTORY)
            raise error_of("log_replaced", str(error), {"topic": topic}) from None

    def _events(self, tail: HistoryTail) -> Iterator[list[WatchEvent]]:
        """Yield the events that one connection reads."""
        if self._following is None:
            yield from self._first_events(tail)
        following = self._following
        assert following is not None
        bookmarks = Bookmarks(time.monotonic())
        has_caught_up = not isinstance(self._begin, int)
        for found in tail.follow(following.state.cas, self._position):
            changes = [c for one in found.transactions for c in following.take(one)]
            self._position = tail.position
            self._replaced_s, self._pause_s = None, FIRST_PAUSE_S
            told = [{"type": "change", **json.loads(shown.change(change))} for change in changes]
            if told or (found.at_end and not has_caught_up):
                bookmarks.expect(time.monotonic())
            elif bookmarks.is_due(time.monotonic()):
                told.append(_bookmark(following.position))
            has_caught_up = has_caught_up or found.at_end
            yield told

    def _first_events(self, tail: HistoryTail) -> Iterator[list[WatchEvent]]:
        """Find the state to begin from, and yield what comes before all changes."""
        if isinstance(self._begin, int):
            state = tail.state_below(self._begin)
            self._following = Following(state, self._begin, self._predicate)
            return
        state = tail.state_now()
        # The place is looked for now: nothing that comes after the bookmark waits for that.
        self._position = tail.begin(state.cas)
        self._following = Following(state, state.cas, self._predicate)
        if self._begin == "now":
            yield [_bookmark(state.cas)]
            return
        yield from _snapshot(state, self._predicate)


REPORTED_MAX = 10_000
OUT_OF_PLACE = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._STATE}
)
"""A new connection finds out what has become of the log."""


def _snapshot(state: StateContext, predicate: Predicate) -> Iterator[list[WatchEvent]]:
    """Yield every entity that fits, and the CAS at which they are."""
    held: Iterator[tuple[str, Versioned]] = iter(state.entities.items())
    while portion := [*islice(held, PORTION)]:
        yield [
            {"type": "snapshot", **json.loads(shown.entity(key, one))}
            for key, one in portion
            if predicate.fits_held(key, one)
        ]
    yield [{"type": "snapshot_end", "cas": state.cas}]


def _bookmark(cas: Cas) -> WatchEvent:
    return {"type": "bookmark", "cas": cas}
