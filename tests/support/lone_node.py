"""A cluster of one node without processes: what the node sends comes back at once.

The core and the codec are the real ones. Time moves when the test says so. Effects can be held back
by their type, to look at what a master does while something is under way.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator import codec
from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.consensus.full_sync import COMPACTED
from coordinator.core.consensus.scrubber import Scrubber
from coordinator.core.leader.master import Master
from coordinator.core.model.commands import Command, Outcome, Position, Request
from coordinator.core.model.config import NodeConfig
from coordinator.core.model.entities import Index
from coordinator.core.model.records import (
    ALLOCATED,
    RELEASED,
    CommitRecord,
    Event,
    NodeHeartbeat,
    SliceAnswered,
)
from coordinator.core.model.types import Instant
from coordinator.core.node import Node
from tests.support.indexes import make_indexer_beat

WALL_MS = 1_700_000_000_000
PATIENCE_MS = 15_000
INDEXER = 0
HOST = "127.0.0.1:8600"
INDEXER_URL = "http://127.0.0.1:1"


@dataclass
class LoneNode:
    """One node, master of a cluster of one, with one indexer that allocates what it is told."""

    settings: dict[str, Any] = field(default_factory=dict)
    wall_ms: int = WALL_MS
    log: list[bytes] = field(default_factory=list)
    """What `commit` holds; markers are not counted."""
    topic: list[tuple[int, Event]] = field(default_factory=list)
    """The events of `statecontext` with their offsets."""
    serves: bool = False
    """Whether its indexer does its part by itself, as time goes by."""

    def __post_init__(self) -> None:
        config = NodeConfig(
            node=1,
            roster=(1,),
            address=f"http://{HOST}",
            pid=1,
            incarnation=7,
            cluster_id="c",
            **self.settings,
        )
        self.node = Node(config, codec.Codec())
        self.mono_ms = 1_000
        self.replies: dict[int, Outcome] = {}
        self.heard: Callable[[int, Outcome], None] = self.replies.__setitem__
        self.written: list[Any] = []
        self.dead_letters: list[Any] = []
        self.answered: set[int] = set()
        self.halted: fx.Halt | None = None
        self.held: set[type] = set()
        self.replaced: dict[type, Callable[[Any], None]] = {}
        """How effects of a type are carried out instead."""
        self.kept: list[fx.Effect] = []
        self.saves: list[fx.Save] = []
        self.longest_s = 0.0
        self._token = 0
        self._end = self.topic[-1][0] + 2 if self.topic else 0
        self._inbox: deque[inp.Input] = deque()
        self._read = 0

    # -- time --------------------------------------------------------------------------------

    def start(self) -> LoneNode:
        """Start it on what the log holds, and let it become master."""
        self.begin()
        return self.until(lambda: self.node.master is not None and self.node.master.active)

    def begin(self) -> LoneNode:
        """Start it, and no more."""
        return self.feed(inp.Started(None, 0, len(self.log)))

    @property
    def now(self) -> Instant:
        return Instant(self.mono_ms, self.wall_ms)

    def run(self, ms: int, step_ms: int = 50) -> LoneNode:
        for _ in range(ms // step_ms):
            self.mono_ms += step_ms
            self.wall_ms += step_ms
            self.feed(inp.Tick())
            if self.serves:
                self.indexer_answers()
        return self

    def until(self, done: Callable[[], Any], ms: int = 30_000) -> LoneNode:
        end_ms = self.mono_ms + ms
        while not done():
            assert self.mono_ms < end_ms, "it did not come about"
            self.run(50)
        return self

    # -- what goes in ------------------------------------------------------------------------

    def feed(self, event: inp.Input) -> LoneNode:
        self._inbox.append(event)
        if len(self._inbox) > 1:
            return self
        while self._inbox and self.halted is None:
            began_s = time.perf_counter()
            found = self.node.step(self.now, self._inbox[0])
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s)
            for effect in found:
                self.carry_out(effect)
            self._inbox.popleft()
        self._inbox.clear()
        return self

    def written_by_others(self, raw: bytes = b"") -> int:
        """Return the offset at which somebody else has written to `commit`; it is not read yet."""
        self.log.append(raw)
        self._read = len(self.log)
        return self._read - 1

    def send(self, command: Command, **terms: Any) -> int:
        """Ask for a command, and return the token under which the answer comes."""
        self._token += 1
        request = Request(
            command=command, token=self._token, deadline_ms=self.mono_ms + PATIENCE_MS, **terms
        )
        self.feed(inp.Requested(request))
        return self._token

    def ask(self, command: Command, request_id: str = "", **terms: Any) -> Outcome:
        """Ask for a command, under an id if one is given, and return the answer."""
        if request_id:
            print_ = codec.fingerprint(command, terms.get("expected_cas"))
            terms |= {"id": request_id, "recorded": True, "fingerprint": print_}
        token = self.send(command, **terms)
        self.until(lambda: token in self.replies)
        return self.replies[token]

    def publish(self, command: Command, request_id: str, offset: int, partition: int = 0) -> None:
        """Have a command read from the `ddl` topic."""
        place = Position(partition, offset)
        print_ = codec.fingerprint(command, None)
        request = Request(
            command=command, id=request_id, fingerprint=print_, recorded=True, position=place
        )
        self.feed(inp.DdlRead((request,)))

    def indexer_answers(self) -> None:
        """The indexer is alive, and has done what the state says."""
        beat = make_indexer_beat(INDEXER, incarnation=5, address=INDEXER_URL, at_ms=self.wall_ms)
        self.feed(inp.BeatsRead((beat,)))
        for held in list(self.node.state.of_kind("index")):
            index = held.entity
            assert isinstance(index, Index)
            numbers = index.slices_on(INDEXER)
            answer = RELEASED if index.state == "dropping" else ALLOCATED
            if index.state in ("init", "dropping"):
                shard = SliceAnswered(INDEXER, 5, index.id, answer, "", numbers, 1)
                self.feed(inp.AcksRead((shard,)))

    def create(self, command: Command, request_id: str = "") -> Outcome:
        """Create an index, the indexer doing its part."""
        self.indexer_answers()
        self.until(lambda: self.node.authority and INDEXER in self.node.authority.indexers)
        print_ = codec.fingerprint(command, None)
        terms = {"id": request_id, "recorded": True, "fingerprint": print_} if request_id else {}
        token = self.send(command, **terms)

        def answered() -> bool:
            self.indexer_answers()
            return token in self.replies

        self.until(answered)
        return self.replies[token]

    @property
    def master(self) -> Master:
        assert self.node.master is not None
        return self.node.master

    # -- what comes out ----------------------------------------------------------------------

    def carry_out(self, effect: fx.Effect) -> None:
        if type(effect) in self.held:
            self.kept.append(effect)
            return
        instead = self.replaced.get(type(effect))
        if instead is not None:
            instead(effect)
            return
        handler = CARRY_OUT.get(type(effect))
        if handler is not None:
            handler(self, effect)

    def release(self) -> None:
        """Carry out what was held back, and hold nothing any more."""
        self.held.clear()
        kept, self.kept = self.kept, []
        for effect in kept:
            self.carry_out(effect)

    def release_first(self) -> None:
        """Carry out what was held back, and hold what comes of it."""
        kept, self.kept = self.kept, []
        for effect in kept:
            CARRY_OUT[type(effect)](self, effect)

    def _later(self, event: inp.Input) -> None:
        if self._inbox:
            self._inbox.append(event)
        else:
            self.feed(event)

    def _follow(self, effect: fx.Follow) -> None:
        self._read = effect.offset
        self._deliver()

    def _deliver(self) -> None:
        found = []
        for offset in range(self._read, len(self.log)):
            raw = self.log[offset]
            record: CommitRecord = codec.decode(raw)
            found.append(inp.Entry(offset, record, raw))
        self._read = len(self.log)
        if found:
            self._later(inp.CommitRead(tuple(found)))

    def append(self, record: CommitRecord) -> None:
        """Write a record to `commit`, and have it read."""
        self.log.append(codec.encode(record))
        self._deliver()

    def _conclude(self, effect: fx.Conclude) -> None:
        self._end += 1
        self.written += [*effect.replies, *effect.dead_letters]
        self._later(inp.Ended(effect.token))
        self.log += [codec.encode(record) for record in effect.records]
        self._deliver()

    def _write_events(self, effect: fx.WriteEvents) -> None:
        offsets = tuple(range(self._end, self._end + len(effect.events)))
        for offset, event in zip(offsets, effect.events, strict=True):
            cas = offset + self.node.config.cas_base
            self.topic.append((offset, replace(codec.decode(codec.encode(event)), cas=cas)))
        self._end += len(offsets)
        self._later(inp.Written(effect.token, offsets))

    def _abandon(self, effect: fx.Abandon) -> None:
        self._end += 1
        self._later(inp.Ended(effect.token))

    def _synchronise(self, effect: fx.Synchronise) -> None:
        events = tuple(e for _, e in self.topic) if effect.source == COMPACTED else ()
        self._later(inp.SyncRead(effect.token, events, True))

    def _save(self, effect: fx.Save) -> None:
        self.saves.append(effect)
        if effect.sync:
            self._later(inp.Stored(effect.token))

    def _beat(self, effect: fx.Beat) -> None:
        self._later(inp.BeatsRead((effect.record,)))

    def _scrub(self, effect: fx.Scrub) -> None:
        scrubber = Scrubber(effect.state)
        scrubber.add(event for _, event in self.topic)
        self._later(inp.Scrubbed(effect.token, scrubber.findings()))

    def _reply(self, effect: fx.Reply) -> None:
        assert effect.token not in self.answered, "answered twice"
        self.answered.add(effect.token)
        self.heard(effect.token, effect.outcome)

    def _halt(self, effect: fx.Halt) -> None:
        self.halted = effect


CARRY_OUT: dict[type, Callable[[LoneNode, Any], None]] = {
    fx.Follow: LoneNode._follow,
    fx.Append: lambda lone, effect: lone.append(effect.record),
    fx.Conclude: LoneNode._conclude,
    fx.WriteEvents: LoneNode._write_events,
    fx.Abandon: LoneNode._abandon,
    fx.Synchronise: LoneNode._synchronise,
    fx.Save: LoneNode._save,
    fx.Beat: LoneNode._beat,
    fx.Scrub: LoneNode._scrub,
    fx.Reply: LoneNode._reply,
    fx.Halt: LoneNode._halt,
    fx.SendDeadLetter: lambda lone, effect: lone.dead_letters.append(effect.dead_letter),
    fx.OpenProducer: lambda lone, effect: lone._later(inp.ProducerOpened(effect.token)),
    fx.ReadTail: lambda lone, effect: lone._later(inp.TailRead(effect.token, ())),
    fx.TakeSnapshot: lambda lone, effect: lone._later(inp.SnapshotTaken(effect.token, 0)),
}


def other_beat(node: int, **more: Any) -> NodeHeartbeat:
    """Return a heartbeat that claims to be of some node."""
    fields = {"incarnation": 1, "state": "replica", "epoch": 0, "cas": 0, "digest": 0}
    fields |= {"address": "http://127.0.0.1:9", "pid": 1, "reason": "", "at_ms": WALL_MS, **more}
    return NodeHeartbeat(node=node, **fields)
