"""Who writes documents, and who makes, builds and drops indexes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from coordinator.core.model.commands import BuildIndexes, CreateIndex, DropIndex
from tests.simulation.actors import Client
from tests.simulation.kernel.actor import Actor
from tests.simulation.plane.oracle import KEYS, definition, elements

if TYPE_CHECKING:
    from tests.simulation.plane.store import Mutation
    from tests.simulation.plane.world import PlaneWorld

NAMES = 6


class IndexClient(Client):
    """Asks for indexes, builds and drops."""

    world: PlaneWorld

    reads = 0.0
    recorded = (CreateIndex,)

    def begin(self) -> None:
        """Wait for the projectors: they tell how many vbuckets a bucket has."""
        if self.left > 0 and not self.world.knows_buckets():
            self.world.clock.at(200, self.begin)
        else:
            super().begin()

    def _command(self, request_id: str) -> tuple[Any, int | None]:
        chance = self.world.clock.chance
        bucket = chance.choice(self.world.buckets)
        dice = chance.random()
        if 0.7 <= dice < 0.85 and self._made > 1:
            return DropIndex(0, bucket, f"i{chance.randrange(NAMES)}"), None
        if dice >= 0.7 and self._made > 1:
            return BuildIndexes(bucket=bucket), None
        command = definition(
            chance.randrange(NAMES),
            bucket,
            chance.randint(1, 3),
            replicas=chance.choice((0, 0, 1, 2)),
            defer_build=chance.random() < 0.2,
        )
        return command, None


class Writer(Actor):
    """Writes documents, one at a time, for as long as it is told to."""

    def __init__(self, world: PlaneWorld, until_ms: int) -> None:
        self.world = world
        self.until_ms = until_ms
        self.period_ms = world.clock.chance.choice((120, 300, 800))
        self.teasing = world.clock.chance.choice((0.0, 0.3))
        for _ in range(world.clock.chance.choice((0, 10, 40))):
            self._write()
        world.clock.at(1_000, self.write)

    @property
    def busy(self) -> bool:
        return self.world.clock.now < self.until_ms

    def unsettled(self) -> str:
        return "documents are written" if self.busy else ""

    def write(self) -> None:
        if self.busy:
            for _ in range(self.world.clock.chance.choice((1, 1, 1, 6))):
                self._write()
            self.world.clock.at(self.world.clock.chance.randint(1, self.period_ms), self.write)

    def tease(self, bucket: str, sent: list[Mutation]) -> None:
        """Write what a backfill or a catch-up has just read, now and then."""
        if self.busy and self.world.clock.hit(self.teasing):
            key = self.world.clock.chance.choice(sent).key
            self.world.clock.at(1, self._write, bucket, key)

    def _write(self, bucket: str = "", key: bytes = b"") -> None:
        """Write a document: often one that has no place in an index, or moves to another."""
        chance = self.world.clock.chance
        bucket = bucket or chance.choice(self.world.buckets)
        key = key or chance.choice(KEYS)
        document: dict[str, Any] | None = {"y": chance.randrange(4)}
        dice = chance.random()
        if dice < 0.25:
            document = None
        elif dice < 0.85:
            assert document is not None
            document["x"] = chance.choice((0, 1, 2, 3, 4, 5, "s"))
        if document is not None:
            document["z"] = elements(document)
        raw = None if document is None else json.dumps(document).encode()
        self.world.store.write(bucket, key, raw)
