"""The real HTTP API on a node without processes."""

from __future__ import annotations

import asyncio
import atexit
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import httpx

from coordinator.core.consensus import inputs as inp
from coordinator.core.history.feed import Feed
from coordinator.core.model.commands import Outcome
from coordinator.core.model.records import Event
from coordinator.core.model.subscription_records import SubscriptionRecord
from coordinator.core.model.types import Instant
from coordinator.http.app import build_app
from coordinator.kafka.document_topics import TopicError, TopicFacts
from coordinator.kafka.errors import KafkaRefusal
from coordinator.kafka.stability_log import TimestampPage
from coordinator.language.examiner import Definition, Examiner
from coordinator.node.history import History
from coordinator.node.metrics import NodeMetrics
from coordinator.node.positions import PositionBook
from coordinator.node.subscriptions import Subscriptions
from tests.support.changes import MemoryLog
from tests.support.lone_node import HOST, LoneNode

TICK_MS = 50


class NoTimestamps:
    """A history of timestamps that has none."""

    def page(self, bucket: str, **asked: Any) -> TimestampPage:
        return TimestampPage((), None)


class NoPositions:
    """Kafka is away."""

    def branches(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        raise TopicError("topic_unavailable", f"{topic} has no leader")


class NoEnds:
    """Kafka is away."""

    async def now(self, within_s: float) -> None:
        return None


class LoneBook(PositionBook):
    """Positions that are in the memory of one node only."""

    def listen(self) -> None:
        """There is no log to read."""

    async def _write(self, record: SubscriptionRecord) -> None:
        self.take([record])


EXAMINER = Examiner()
"""The examiner of all shells of a process: to start one takes longer than most of their tests."""

atexit.register(EXAMINER.close)


class SharedExaminer:
    """What a shell has for an examiner; to close it leaves it to the others."""

    def examine(self, definition: Definition) -> Definition | str:
        return EXAMINER.examine(definition)

    def close(self) -> None:
        """Others may need it."""


class Served:
    """An application, and what stands in it for the shell that it serves.

    To build one takes longer than most tests. So a client that is closed gives its own back, and
    the next one serves another shell with it. Two clients that are open have two applications.
    """

    free: ClassVar[list[Served]] = []

    def __init__(self, shell: LoneShell) -> None:
        self.shell = shell
        served: Any = self
        self.app = build_app(served)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shell, name)

    @classmethod
    def take(cls, shell: LoneShell) -> Served:
        """Return an application that serves a shell from now on."""
        address = shell.node.config.address  # It is what clients may call it, and was built in.
        found = next((one for one in cls.free if one.node.config.address == address), None)
        if found is None:
            return cls(shell)
        cls.free.remove(found)
        found.shell = shell
        return found


class Transport(httpx.ASGITransport):
    """Leads to an application, and gives it back at the end."""

    def __init__(self, served: Served) -> None:
        super().__init__(app=served.app, raise_app_exceptions=False)
        self._served: Served | None = served

    async def aclose(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            Served.free.append(served)


class LoneShell:
    """What the HTTP API needs of a shell, around a `LoneNode`."""

    def __init__(self, lone: LoneNode | None = None) -> None:
        self.lone = lone or LoneNode(serves=True).start()
        self.node = self.lone.node
        self.metrics = NodeMetrics(self.node)
        self.examiner = SharedExaminer()
        self._folder = tempfile.TemporaryDirectory()
        self.history = History(lambda _: MemoryLog(self._events), Path(self._folder.name))
        self.stability_log: Any = NoTimestamps()
        self.changes = Feed()
        # A watch ends with what there is: nobody could wait for its end otherwise.
        self.changes.close()
        self.subscriptions = Subscriptions(
            "",
            "lone",
            node=self.node,
            changes=self.changes,
            history=self.history,
            ask=self.ask,
            dead_letter=lambda message, reason: None,
            failed=lambda reason: None,
        )
        self.subscriptions.book = LoneBook("", "lone", lambda *_: None, lambda _: None)
        self.positions: Any = NoPositions()
        self.failover_log_ends: Any = NoEnds()
        self.retention = None
        self.has_read = lambda name: True
        self._callers: dict[int, asyncio.Future[Outcome]] = {}
        self._last = 0
        self.lone.heard = self._reply

    def _events(self) -> list[Event]:
        return [event for _, event in self.lone.topic]

    def examine_topic(self, topic: str) -> TopicFacts:
        """Kafka has every topic but those that begin with `no`."""
        if topic.startswith("no"):
            raise KafkaRefusal("kafka_topic_not_found", f"Kafka has no topic {topic}")
        return TopicFacts(topic, "id", 2)

    def now(self) -> Instant:
        return self.lone.now

    def feed(self, event: inp.Input) -> None:
        self.lone.feed(event)

    async def ask(self, make: Callable[[int], inp.Input]) -> Outcome:
        self._last += 1
        future = asyncio.get_running_loop().create_future()
        self._callers[self._last] = future
        self.lone.feed(make(self._last))
        for _ in range(400):
            if future.done() or self.lone.halted:
                break
            self.lone.run(TICK_MS)
        assert self.lone.halted is None, self.lone.halted
        outcome: Outcome = await asyncio.wait_for(future, 60)
        return outcome

    def _reply(self, token: int, outcome: Outcome) -> None:
        caller = self._callers.pop(token, None)
        if caller is not None and not caller.done():
            caller.set_result(outcome)

    def client(self, **more: Any) -> httpx.AsyncClient:
        """Return a client of the API, in this process."""
        transport = Transport(Served.take(self))
        return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", **more)
