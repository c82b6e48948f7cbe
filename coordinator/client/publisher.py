"""Publishing DDL on Kafka, without a node: a command goes on `ddl`, its outcome comes back.

    with Publisher("127.0.0.1:22882", principal="etl") as publisher:
        answer = publisher.publish("CREATE INDEX by_zone ON travel(tz, name)").wait()

A command is published under a request id. If the outcome is unknown, publish the command again
under the same id, even from another process: it takes effect once, and every reply has the first
outcome. Commands for one bucket are decided in the order in which they were published. A
`Publisher` needs the address of Kafka, and permission to write `ddl` and to read `ddl-replies`. It
joins no consumer group.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from coordinator import codec
from coordinator.client.ddl_outbox import Delivery, Outbox
from coordinator.client.ddl_replies import Expected, Replies
from coordinator.client.errors import CoordinatorError, error_of
from coordinator.client.kafka_contact import CONTACT_S, await_topics
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import (
    OK,
    AlterIndex,
    BuildIndexes,
    Command,
    CreateIndex,
    DropIndex,
    Position,
    Transact,
)
from coordinator.core.model.records import DdlReply
from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.topics import DDL, DDL_REPLIES, topic_name
from coordinator.language import ddl_parser
from coordinator.language.ddl_commands import COMMAND_BYTES_MAX, command_of

DEFAULT_PREFIX = "default"
DEADLINE_S = 30.0
IN_FLIGHT_MAX = 256
"""So many commands of a batch are without an answer at any time."""

NO_BUCKET = "-"
"""The key of what names no bucket: it has an order of its own. No bucket can be called so."""

Body = dict[str, Any]
Publishable = str | CreateIndex | AlterIndex | DropIndex | BuildIndexes | Transact
"""A statement, such as `CREATE INDEX …`, or a command of `coordinator.core.model.commands`."""


@dataclass(frozen=True)
class Order:
    """A command with its terms. `expected_cas` makes it conditional; 0 means "must not exist".

    The key of the record on Kafka is the bucket that the command names, else `bucket`. Give
    `bucket` for a command that names an index by its id only.
    """

    command: Publishable
    request_id: str | None = None
    expected_cas: int | None = None
    bucket: str = ""


class Published:
    """A command that was published: under which request id, and where it stands on `ddl`.

    `offset` is None if Kafka did not report it. In a batch, `partition` is None for a command that
    Kafka has not acknowledged; `wait` raises the reason.
    """

    def __init__(self, request_id: str, until_s: float) -> None:
        self.request_id = request_id
        self.partition: int | None = None
        self.offset: int | None = None
        self._until_s = until_s
        self._expected: Expected | None = None
        self._delivery: Delivery | None = None
        self._error: CoordinatorError | None = None

    def wait(self, timeout_s: float | None = None) -> Body:
        """Return the outcome of the command: the answer of the HTTP route, with `cas` and `txn`.

        Waits at most `timeout_s`; by default until `deadline_s` of the publisher after the command
        was published. Raises CoordinatorError: a refusal of the master, of the same class as over
        HTTP; `no_reply` (UnavailableError), after which you may wait again, or publish the command
        again under the same request id.
        """
        if self._error is not None:
            raise self._error
        assert self._expected is not None
        left_s = self._until_s - time.monotonic() if timeout_s is None else timeout_s
        try:
            return _body_of(self._expected.reply.result(max(left_s, 0.0)))
        except TimeoutError:
            raise self._no_reply() from None

    def _no_reply(self) -> CoordinatorError:
        text = f"there is no reply to {self.request_id} yet: wait again, or publish it again"
        place = {"partition": self.partition, "offset": self.offset}
        return error_of("no_reply", text, {"request": self.request_id, **place})


class Publisher:
    """Publishes commands to one cluster. Use it in a `with`, or `close` it.

    Threads may share it.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        prefix: str = DEFAULT_PREFIX,
        *,
        principal: str = "",
        deadline_s: float = DEADLINE_S,
        first_contact_s: float = CONTACT_S,
    ) -> None:
        """Contact Kafka. `prefix` is the name of the cluster, which its topics begin with.

        `principal`: in whose name changes are made. The history shows it; nobody verifies it.
        `deadline_s` limits two waits for each command: until Kafka has acknowledged it, and until
        its outcome is known. Raises CoordinatorError: `unreachable`, `topics_missing`,
        `kafka_error`.
        """
        self._principal = principal
        self._deadline_s = deadline_s
        topics = [topic_name(prefix, name) for name in (DDL, DDL_REPLIES)]
        await_topics(bootstrap_servers, topics, first_contact_s, threading.Event())
        self._replies = Replies(bootstrap_servers, topics[1], first_contact_s)
        self._outbox = Outbox(bootstrap_servers, topics[0], deadline_s)

    def publish(
        self,
        command: Publishable,
        *,
        request_id: str | None = None,
        expected_cas: int | None = None,
        bucket: str = "",
    ) -> Published:
        """Publish a command, and return once all in-sync replicas of Kafka have it.

        `request_id` is a new UUIDv7 by default. A command that Kafka does not acknowledge is sent
        again until the deadline. Raises CoordinatorError: `invalid_statement`, `invalid_request` or
        `too_large`, if nothing was published; `unreachable` (UnavailableError) or `kafka_error`, if
        it may have been published. `details.request` is the id under which to repeat it.
        """
        published = self._begun(Order(command, request_id, expected_cas, bucket))
        self._settle(published)
        if published._error is not None:
            raise published._error
        return published

    def publish_all(
        self, orders: Iterable[Publishable | Order], *, in_flight_max: int = IN_FLIGHT_MAX
    ) -> Iterator[Published]:
        """Publish commands, and yield each in order when its outcome is known, or its deadline has
        passed. Its `wait` then returns or raises at once.

        At most `in_flight_max` commands are without an outcome at a time; the next one is taken
        from `orders` after that. So the batch may be of any length. A failed command does not end
        the batch.
        """
        open_: deque[Published] = deque()
        for order in orders:
            open_.append(self._begun(order if isinstance(order, Order) else Order(order)))
            while len(open_) >= in_flight_max:
                yield self._ended(open_.popleft())
        while open_:
            yield self._ended(open_.popleft())

    def close(self) -> None:
        """Close the publisher. What Kafka has acknowledged stays a command for the next master.

        Threads that wait end at once: `publish` raises `publisher_closed`, `wait` raises
        `no_reply`.
        """
        self._outbox.close()
        self._replies.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begun(self, order: Order) -> Published:
        """Hand a command over to the client of Kafka; what is wrong with it is kept."""
        until_s = time.monotonic() + self._deadline_s
        published = Published(order.request_id or new_request_id(), until_s)
        try:
            key, value = _record_of(order, published.request_id, self._principal)
            published._expected = self._replies.expect(published.request_id, codec.hashed(value))
        except CoordinatorError as error:
            error.details.setdefault("request", published.request_id)
            published._error = error
        else:
            published._delivery = self._outbox.send(key, value, until_s)
        return published

    def _settle(self, published: Published) -> None:
        """Wait until Kafka has a command, or may not have it."""
        delivery = published._delivery
        if delivery is None:
            return
        self._outbox.settle(delivery)
        published.partition, published.offset = delivery.partition, delivery.offset
        published._delivery = None
        if delivery.error is not None:
            delivery.error.details["request"] = published.request_id
            published._error = delivery.error

    def _ended(self, published: Published) -> Published:
        self._settle(published)
        if published._expected is not None and published._error is None:
            left_s = published._until_s - time.monotonic()
            with suppress(TimeoutError):
                published._expected.reply.exception(max(left_s, 0.0))
        return published


# -- asyncio -------------------------------------------------------------------------------------


class AsyncPublished:
    """See `Published`."""

    def __init__(self, published: Published) -> None:
        self._published = published
        self.request_id = published.request_id
        self.partition = published.partition
        self.offset = published.offset

    async def wait(self, timeout_s: float | None = None) -> Body:
        """Return what came of the command: see `Published.wait`. No thread waits meanwhile."""
        published = self._published
        if published._expected is not None and published._error is None:
            left_s = published._until_s - time.monotonic() if timeout_s is None else timeout_s
            reply = asyncio.wrap_future(published._expected.reply)
            await asyncio.wait([reply], timeout=max(left_s, 0.0))
        return published.wait(0.0)


class AsyncPublisher:
    """The same for asyncio. Use it in an `async with`; it contacts Kafka there."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Takes what `Publisher` takes."""
        self._given, self._settings = given, settings
        self._publisher: Publisher | None = None

    async def publish(self, command: Publishable, **terms: Any) -> AsyncPublished:
        """Publish a command: see `Publisher.publish`."""
        return AsyncPublished(await asyncio.to_thread(self._open.publish, command, **terms))

    async def publish_all(
        self, orders: Iterable[Publishable | Order], *, in_flight_max: int = IN_FLIGHT_MAX
    ) -> AsyncIterator[AsyncPublished]:
        """Publish commands: see `Publisher.publish_all`. A thread takes them from `orders`."""
        loop = asyncio.get_running_loop()
        ended = self._open.publish_all(orders, in_flight_max=in_flight_max)
        thread = ThreadPoolExecutor(1, "publisher")
        try:
            while True:
                published = await loop.run_in_executor(thread, next, ended, None)
                if published is None:
                    return
                yield AsyncPublished(published)
        finally:
            # Who is cancelled does not wait for the outcome that the thread waits for.
            thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _open(self) -> Publisher:
        if self._publisher is None:
            raise RuntimeError("use it in an `async with`")
        return self._publisher

    async def __aenter__(self) -> AsyncPublisher:
        self._publisher = await asyncio.to_thread(Publisher, *self._given, **self._settings)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._open.close)


# -- records -------------------------------------------------------------------------------------


def _record_of(order: Order, request_id: str, principal: str) -> tuple[str, bytes]:
    """Return key and value on `ddl`. CoordinatorError.

    A record that the master cannot read is a dead letter, and gets no reply: it is refused here.
    """
    command = _command_of(order.command)
    cas = None if order.expected_cas is None else Cas(order.expected_cas)
    try:
        value = codec.encode_ddl(request_id, command, principal, cas)
        codec.decode_ddl(value, Position(0, Offset(0)))
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
        raise error_of("invalid_request", f"that is no command: {error}"[:300]) from None
    if len(value) > COMMAND_BYTES_MAX:
        text = f"the command has {len(value)} bytes; at most {COMMAND_BYTES_MAX} are read"
        raise error_of("too_large", text, {"limit": COMMAND_BYTES_MAX})
    return _bucket_of(command) or order.bucket or NO_BUCKET, value


def _command_of(
    given: Publishable,
) -> CreateIndex | AlterIndex | DropIndex | BuildIndexes | Transact:
    if not isinstance(given, str):
        return given
    try:
        return command_of(ddl_parser.parse_statement(given))
    except ddl_parser.SqlError as error:
        place = {"line": error.line, "column": error.column}
        raise error_of("invalid_statement", str(error), place) from None


def _bucket_of(command: Command) -> str:
    """Return the bucket that a command names; a transaction has indexes of one bucket only."""
    if isinstance(command, CreateIndex | AlterIndex | DropIndex | BuildIndexes):
        return command.bucket
    if isinstance(command, Transact):
        operations = (*command.then, *command.otherwise)
        named = (*map(_bucket_of, operations), *(one.bucket for one in command.compare))
        return next(filter(None, named), "")
    return ""


def _body_of(reply: DdlReply) -> Body:
    """Return the answer that a reply has. CoordinatorError: what it refuses."""
    if reply.status != OK:
        details = json.loads(reply.error_details_json or "{}")
        raise error_of(reply.error_code, reply.error_message, details)
    return {**json.loads(reply.answer_json), "cas": reply.cas, "txn": reply.txn}
