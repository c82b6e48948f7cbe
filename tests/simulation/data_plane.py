"""Projectors as the master sees them: they route, they wait for streams, they die.

What they stream is not modelled here, only who may: a number of generations, and a watermark for
each vbucket that rises while a stream is open.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from coordinator.core.consensus.inputs import TimestampEntry, TimestampsRead
from coordinator.core.model.entities import BACKFILL, MAINTENANCE, PENDING, STREAMED, Index, Stream
from coordinator.core.model.records import BucketSeen, StreamAwaited, TimestampsHeartbeat
from coordinator.core.model.stream_records import RestartRequested, RestartTimestamp
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import HEARTBEAT, RESTART
from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.clock import WALL_MS
from tests.simulation.voices import ProjectorVoice

if TYPE_CHECKING:
    from coordinator.core.node import Node
    from tests.simulation.actors import Indexer
    from tests.simulation.machine import Machine
    from tests.simulation.world import World

PERIOD_MS = 250
VBUCKETS = 4
BUCKETS = ("b0", "b1")


class Projector(ProjectorVoice):
    """Follows `statecontext`; says what it routes, and which buckets it cannot stream."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.alive = True
        self.refusing = 0.0
        self.incarnation = 1
        self.position = 0
        self.indexes: dict[str, Index] = {}
        self.streams: dict[str, Stream] = {}
        self.running: dict[str, int] = {}
        world.clock.at(world.clock.chance.randrange(PERIOD_MS), self.period)

    def restart(self) -> None:
        """Begin another incarnation: it has nothing, and reads the state from its start."""
        self.incarnation += 1
        self.position = 0
        self.indexes, self.streams, self.running = {}, {}, {}

    def heal(self) -> None:
        self.alive = True

    def disconnect(self) -> None:
        """Lose the connections to the key-value store."""
        self.running = dict.fromkeys(self.running, -1)

    def period(self) -> None:
        world = self.world
        world.clock.at(PERIOD_MS, self.period)
        if not self.alive:
            return
        self._read()
        buckets = {i.bucket for i in self.indexes.values() if i.state in STREAMED}
        waiting = tuple(
            StreamAwaited(bucket, self._number(bucket))
            for bucket in sorted(buckets)
            if not self._streams(bucket)
        )
        seen = tuple(BucketSeen(bucket, VBUCKETS) for bucket in BUCKETS)
        self.say_alive(seen, waiting)
        for index in self.indexes.values():
            if index.state == PENDING and self._streams(index.bucket):
                self._route(index)

    def _route(self, index: Index) -> None:
        reason = "it does not compile" if self.world.clock.hit(self.refusing) else ""
        self.say_routed(index.id, index.build, reason)

    def _number(self, bucket: str) -> int:
        """Return this process's number in the bucket's stream, 0 if it has none."""
        stream = self.streams.get(bucket)
        process_id = (self.number, self.incarnation)
        sources = stream.sources if stream else ()
        return next((s.number for s in sources if (s.projector, s.incarnation) == process_id), 0)

    def _streams(self, bucket: str) -> bool:
        """Tell whether the bucket's stream runs: a number is used for one connection only."""
        number, running = self._number(bucket), self.running.get(bucket, 0)
        if running == -1:
            self.running[bucket] = -number if number else -1
            return False
        if running < 0 and -running >= number:
            return False
        if number > abs(running):
            self.running[bucket] = number
            self.world.judge.stream_begun(self.number, self.incarnation, bucket, number)
        return number > 0

    def _read(self) -> None:
        partition = self.world.broker["statecontext"]
        for record in partition.read(self.position):
            mutation = record.value.mutation
            entity = mutation.entity
            self.indexes.pop(mutation.key, None)
            if entity is None:
                self.streams.pop(mutation.key.partition("/")[2], None)
            elif isinstance(entity, Index):
                self.indexes[mutation.key] = entity
            elif isinstance(entity, Stream):
                self.streams[entity.bucket] = entity
        self.position = partition.stable


class Application(Actor):
    """What computes timestamps, as nodes see it: it answers, it tells of losses, it dies.

    It draws from a source of chance of its own. Its records are as arbitrary as records may be: a
    vector that is lower than anybody needs, or repeats, or an answer that nobody waits for.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = Random(f"application {world.seed}")
        self.alive = True
        self.records: list[RestartTimestamp] = []
        self.read: dict[int, tuple[Node, int]] = {}
        world.clock.at(self.chance.randrange(PERIOD_MS), self.period)

    def period(self) -> None:
        world, chance = self.world, self.chance
        world.clock.at(PERIOD_MS, self.period)
        if not world.healed:
            self.alive ^= chance.random() < 0.05
        elif not self.alive:
            self.alive = True
        if self.alive:
            beat = TimestampsHeartbeat(incarnation=1, pid=1, batch=len(self.records), at_ms=WALL_MS)
            for machine in world.machines.values():
                world.clock.at(chance.randint(1, 12), machine.hear, HEARTBEAT, beat)
            if not world.healed and chance.random() < 0.04:
                self._tell(chance.choice(BUCKETS), 0)
        for machine in world.machines.values():
            self._show(machine)

    def asked(self, question: RestartRequested) -> None:
        """A master asks; not every question is answered, and some late."""
        if self.alive and self.chance.random() < 0.8:
            delay_ms = self.chance.choice((50, 300, 4_000))
            self.world.clock.at(delay_ms, self._tell, question.bucket, question.round)

    def _tell(self, bucket: str, asked: int) -> None:
        chance = self.chance
        vbuckets = tuple(v for v in range(VBUCKETS) if chance.random() < 0.7)
        seqnos = [chance.randrange(5) for _ in vbuckets]
        vbuuids, stored = Vector([7 if seqno else 0 for seqno in seqnos], seqnos).to_bytes()
        projectors = tuple(p for p in (0, 1) if chance.random() < 0.7)
        number = 1 + sum(record.bucket == bucket for record in self.records)
        self.records.append(
            RestartTimestamp(
                bucket=bucket,
                number=number,
                round=asked,
                vbuckets=vbuckets,
                vbuuids=vbuuids,
                seqnos=stored,
                branched=(),
                projectors=projectors,
                reason="lost",
                at_ms=WALL_MS,
            )
        )

    def _show(self, machine: Machine) -> None:
        """A node reads on; a new incarnation of it reads all from the start."""
        node = machine.node
        if node is None or machine.paused or RESTART in machine.cut_topics:
            return
        known, position = self.read.get(machine.number, (None, 0))
        position = position if known is node else 0
        entries = tuple(
            TimestampEntry(RESTART, position + place, record)
            for place, record in enumerate(self.records[position:])
        )
        self.read[machine.number] = (node, len(self.records))
        if entries:
            machine.feed(TimestampsRead(entries))

    def unsettled(self) -> str:
        """Return what was told of, and led to nothing; a projector may have gone meanwhile."""
        streams = {}
        for record in self.world.broker["statecontext"].read(0):
            entity = record.value.mutation.entity
            if isinstance(entity, Stream):
                streams[entity.bucket] = entity
        carried = {
            i.bucket
            for p in self.world.projectors
            for i in p.indexes.values()
            if i.state in STREAMED
        }
        for record in self.records:
            stream = streams.get(record.bucket)
            if record.round or stream is None or record.bucket not in carried:
                continue
            named = {s.projector for s in stream.sources} & {*record.projectors}
            if named and stream.restart < record.number:
                return f"restart {record.number} of {record.bucket}, answered {stream.restart}"
        return ""


def attend_to_builds(indexer: Indexer) -> None:
    """Tell what an indexer holds of each bucket, and which builds it has finished."""
    world = indexer.world
    hosted = [i for i in indexer.indexes.values() if indexer.number in i.hosts]
    for bucket in sorted({i.bucket for i in hosted if i.state in STREAMED}):
        indexes = tuple(i.id for i in hosted if i.bucket == bucket)
        indexer.say_held(bucket, _watermark(indexer, bucket), indexes)
    for index in hosted:
        held = indexer.held.get(index.id)
        if held is None or held.shard != index.shard_on(indexer.number):
            continue
        known = (indexer.number, index.id, index.build, held.shard) in world.judge.built
        if index.state == BACKFILL and (known or world.clock.hit(0.3)):
            # One that stood still in between says it when it is not true any more.
            late_ms = world.clock.chance.choice((500, 3_000)) if world.clock.hit(0.2) else 0
            indexer.say_built(index, held.shard, late_ms)


def _watermark(indexer: Indexer, bucket: str) -> Vector:
    """Return what an indexer holds: more with time, and nothing of a vbucket never streamed."""
    world = indexer.world
    number = world.judge.streams.get(bucket, 0)
    if not number:
        return Vector.zero(VBUCKETS)
    seqnos = [world.clock.now * (v + 1) // 100 + indexer.number for v in range(VBUCKETS)]
    return Vector([7] * VBUCKETS, seqnos)


def is_built(index: Index) -> bool:
    """Tell whether nothing is to be done about an index any more."""
    return index.state in (MAINTENANCE, "error") or (index.defer_build and index.state == "ready")
