"""A cluster of one node in one thread: the real node and codec, and the real HTTP API on it.

Everything that the node sends comes back at once, in order, as if there were a broker that never
fails. It is for what concerns one node and its clients; what concerns several is the simulator's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import httpx

from coordinator import codec
from coordinator.core import effects as fx
from coordinator.core import inputs as inp
from coordinator.core.commands import Outcome
from coordinator.core.config import NodeConfig
from coordinator.core.entities import Index
from coordinator.core.node import Node
from coordinator.core.records import (
    ALLOCATED,
    IndexerHeartbeat,
    NodeHeartbeat,
    ReadBarrier,
    SliceAnswered,
)
from coordinator.core.types import Instant
from coordinator.examining import Examiner
from coordinator.http.app import build_app
from coordinator.metrics import NodeMetrics

HOST = "127.0.0.1:8600"
START_MS, WALL_MS = 1_000, 1_800_000_000_000
TICK_MS = 50
LEADS_MS = 4_000
"""After this the node is master."""

INDEXER = 1


class LoneNode:
    """One node, of a roster of one, with an indexer that takes every slice if it `serves`."""

    def __init__(self, *, serves: bool = True, **config: Any) -> None:
        self.node = Node(
            NodeConfig(
                **{"node": 1, "roster": (1,), "address": f"http://{HOST}", "pid": 1, **config},
                incarnation=7,
                cluster_id="c",
            ),
            codec.Codec(),
        )
        self.mono_ms, self.wall_ms = START_MS, WALL_MS
        self.replies: dict[int, Outcome] = {}
        self.letters: list[Any] = []
        self.halted: fx.Halt | None = None
        self.heard: Callable[[int, Outcome], None] = self.replies.__setitem__
        self.holds_barriers = False
        """Whether barriers, and nothing else, are not read back."""
        self._serves = serves
        self._commit = self._statecontext = 0
        self._inbox: deque[inp.Input] = deque([inp.Started(None, 0, 0)])
        self._stepping = False
        self._allocated: list[inp.Input] = []

    @property
    def now(self) -> Instant:
        return Instant(self.mono_ms, self.wall_ms)

    def feed(self, *events: inp.Input) -> None:
        """Take inputs, and all that they lead to."""
        self._inbox.extend(events)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox and self.halted is None:
                for effect in self.node.step(self.now, self._inbox.popleft()):
                    self._inbox.extend(self._carried_out(effect))
        finally:
            self._stepping = False

    def run(self, ms: int) -> LoneNode:
        """Let time pass."""
        for _ in range(ms // TICK_MS):
            self.mono_ms += TICK_MS
            self.wall_ms += TICK_MS
            beat = IndexerHeartbeat(INDEXER, 5, "http://127.0.0.1:1", "", 9, 0, 0, 0, self.wall_ms)
            self.feed(inp.Tick(), *([inp.BeatsRead((beat,))] if self._serves else []))
        return self

    def read(self, record: Any, raw: bytes = b"") -> inp.CommitRead:
        """Return that a record was read from `commit`, at its end."""
        raw = raw or codec.encode(record)
        entry = inp.Entry(self._commit, codec.decode(raw), raw)
        self._commit += 1
        return inp.CommitRead((entry,))

    def end_of_commit(self) -> int:
        """Return the offset of the next record of `commit`, which somebody else writes."""
        self._commit += 1
        return self._commit - 1

    def _carried_out(self, effect: fx.Effect) -> Iterable[inp.Input]:
        match effect:
            case fx.Append():
                held = self.holds_barriers and isinstance(effect.record, ReadBarrier)
                return [] if held else [self.read(effect.record)]
            case fx.Save():
                return [inp.Stored(effect.token)] if effect.sync else []
            case fx.Beat():
                return [inp.BeatsRead((effect.record,))]
            case fx.OpenProducer():
                return [inp.ProducerOpened(effect.token)]
            case fx.WriteEvents():
                begin = self._statecontext
                self._statecontext += len(effect.events)
                self._allocate(effect)
                offsets = tuple(range(begin, self._statecontext))
                return [inp.Written(effect.token, offsets)]
            case fx.Conclude() | fx.Abandon():
                self._statecontext += 1
                if isinstance(effect, fx.Abandon):
                    return [inp.Ended(effect.token)]
                read = [self.read(record) for record in effect.records]
                allocated, self._allocated = self._allocated, []
                return [inp.Ended(effect.token), *read, *allocated]
            case fx.ReadTail():
                return [inp.TailRead(effect.token, ())]
            case fx.Reply():
                self.heard(effect.token, effect.outcome)
            case fx.Bury():
                self.letters.append(effect.letter)
            case fx.Halt():
                self.halted = effect
        return []

    def _allocate(self, effect: fx.WriteEvents) -> None:
        """Have the indexer allocate what is about to be committed, as soon as it is."""
        for event in effect.events:
            index = event.mutation.entity
            if event.mutation.event == "IndexProposed" and isinstance(index, Index):
                slices = index.slices_on(INDEXER)
                answer = SliceAnswered(INDEXER, 5, index.id, ALLOCATED, "", slices, 9)
                self._allocated.append(inp.AcksRead((answer,)))


class LoneShell:
    """What the HTTP API needs of a shell, around a `LoneNode`."""

    def __init__(self, lone: LoneNode | None = None) -> None:
        self.lone = lone or LoneNode().run(LEADS_MS)
        self.node = self.lone.node
        self.metrics = NodeMetrics(self.node)
        self.examiner = Examiner()
        self.has_read = lambda name: True
        self._callers: dict[int, asyncio.Future[Outcome]] = {}
        self._last = 0
        self.lone.heard = self._reply

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
        outcome: Outcome = await asyncio.wait_for(future, 1)
        return outcome

    def _reply(self, token: int, outcome: Outcome) -> None:
        caller = self._callers.pop(token, None)
        if caller is not None and not caller.done():
            caller.set_result(outcome)

    def client(self, **more: Any) -> httpx.AsyncClient:
        """Return a client of the API, in this process."""
        shell: Any = self
        transport = httpx.ASGITransport(app=build_app(shell), raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", **more)


def other_beat(node: int, **more: Any) -> NodeHeartbeat:
    """Return a heartbeat that claims to be of some node."""
    fields = {"incarnation": 1, "state": "replica", "epoch": 0, "cas": 0, "digest": 0}
    fields |= {"address": "http://127.0.0.1:9", "pid": 1, "reason": "", "at_ms": WALL_MS, **more}
    return NodeHeartbeat(node, **fields)
