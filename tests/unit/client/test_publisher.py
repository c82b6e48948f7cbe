"""What is wrong with a command is said before it is published: a dead letter gets no reply."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.client.errors import (
    ConflictError,
    CoordinatorError,
    NotFoundError,
    UnavailableError,
)
from coordinator.client.publisher import (
    NO_BUCKET,
    AsyncPublisher,
    Order,
    Published,
    _body_of,
    _record_of,
)
from coordinator.core.model.commands import (
    Comparison,
    CreateIndex,
    DropIndex,
    Position,
    PutSetting,
    SkipRecord,
    Transact,
)
from coordinator.core.model.names import is_name
from coordinator.core.model.records import DdlReply
from coordinator.core.model.types import Cas, Offset
from coordinator.language.ddl_commands import COMMAND_BYTES_MAX, read_command

PUT = PutSetting("quota", "1")
AN_INDEX = CreateIndex(name="i", bucket="travel", expressions=("a",))


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (Order("CREATE INDEX i ON travel(a"), "invalid_statement"),
        (Order("DROP INDEX i ON b; DROP INDEX j ON b"), "invalid_statement"),
        (Order(CreateIndex(name="i", bucket="b", slices=2**40)), "invalid_request"),
        (Order(CreateIndex(name="\ud800", bucket="b")), "invalid_request"),
        (Order(CreateIndex(name=7, bucket="b")), "invalid_request"),  # type: ignore[arg-type]
        (Order(PUT), "invalid_request"),  # type: ignore[arg-type]
        (Order(AN_INDEX, expected_cas=2**70), "invalid_request"),
        (Order(CreateIndex(name="i", bucket="b", where="x" * COMMAND_BYTES_MAX)), "too_large"),
    ],
)
def test_what_no_master_could_read_is_refused(order: Order, code: str) -> None:
    with pytest.raises(CoordinatorError) as raised:
        _record_of(order, "request", "")
    assert raised.value.code == code


@pytest.mark.parametrize(("request_id", "principal"), [("", ""), ("x" * 129, ""), ("x", "p" * 257)])
def test_an_id_and_a_principal_have_their_bounds(request_id: str, principal: str) -> None:
    with pytest.raises(CoordinatorError) as raised:
        _record_of(Order(AN_INDEX), request_id, principal)
    assert raised.value.code == "invalid_request"


def test_what_is_published_is_read_as_the_command_it_was() -> None:
    _, value = _record_of(Order(AN_INDEX, expected_cas=0), "request", "etl")
    read = read_command(value, Position(0, Offset(0)))
    assert not isinstance(read.command, SkipRecord)
    assert (read.command, read.id, read.principal, read.expected_cas) == (
        *(AN_INDEX, "request", "etl"),
        0,
    )


@pytest.mark.parametrize(
    ("command", "bucket", "key"),
    [
        ("BUILD INDEX ON travel", "", "travel"),
        (DropIndex(bucket="travel", name="i"), "other", "travel"),
        (DropIndex(index_id=7), "travel", "travel"),
        (DropIndex(index_id=7), "", NO_BUCKET),
        (Transact(then=(PUT, AN_INDEX)), "", "travel"),
        (Transact(compare=(Comparison(cas=Cas(0), bucket="b", name="i"),), then=(PUT,)), "", "b"),
        (Transact(then=(PUT,)), "", NO_BUCKET),
    ],
)
def test_the_bucket_is_the_key(command: Any, bucket: str, key: str) -> None:
    assert _record_of(Order(command, bucket=bucket), "request", "")[0] == key


def test_no_bucket_is_called_as_what_has_none() -> None:
    assert not is_name(NO_BUCKET)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("index_exists", ConflictError),
        ("cas_mismatch", ConflictError),
        ("index_not_found", NotFoundError),
        ("unavailable", UnavailableError),
        ("invalid_request", CoordinatorError),
    ],
)
def test_a_refusal_is_of_the_class_that_it_has_over_http(
    code: str, kind: type[CoordinatorError]
) -> None:
    reply = DdlReply(
        request="request",
        status="refused",
        answer_json="{}",
        error_code=code,
        error_message="no",
        error_details_json='{"id": "7"}',
        cas=Cas(0),
        txn="",
        at_ms=0,
    )
    with pytest.raises(CoordinatorError) as raised:
        _body_of(reply)
    assert type(raised.value) is kind
    assert (raised.value.code, raised.value.message) == (code, "no")
    assert raised.value.details == {"id": "7"}


class Waiting:
    """A publisher whose outcomes do not come before they are let."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()
        self.has_waited = False

    def publish_all(self, orders: Any, **_: Any) -> Iterator[Published]:
        self.asked.set()
        self.let.wait(10)
        self.has_waited = True
        yield from ()


def test_who_is_cancelled_does_not_wait_for_outcomes() -> None:
    """The loop would stand still until then, with all that runs in it."""
    waiting: Any = Waiting()

    async def story() -> None:
        publisher = AsyncPublisher("")
        publisher._publisher = waiting

        async def publish() -> None:
            async for _ in publisher.publish_all(["CREATE INDEX i ON b(c)"]):
                pass

        task = asyncio.create_task(publish())
        assert await asyncio.to_thread(waiting.asked.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not waiting.has_waited
        waiting.let.set()

    asyncio.run(story())


def test_the_bucket_of_what_is_done_otherwise_counts_too() -> None:
    order = Order(Transact(then=(), otherwise=(DropIndex(bucket="travel", name="i"),)))
    assert _record_of(order, "request", "")[0] == "travel"
