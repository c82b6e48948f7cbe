"""A store, two projectors and their topics: what they tell, and what is true."""

from __future__ import annotations

from dataclasses import replace

from coordinator.core.model.stream_records import Sync
from streaming.stability.fold import Control
from tests.support.stability_bench import begin, closed, end, log, sync


class World:
    """A store, two projectors and their topics, as they would be: the plain truth.

    Vbuckets move, projectors are started again with and without a word, and the store loses what
    nobody was told of. At the end everything is streamed, and every owner says how far it is.
    """

    SIZE = 3

    def __init__(self) -> None:
        self.topics: dict[str, list[Sync | Control]] = {
            name: [] for name in ("begin", "end", "sync", "log")
        }
        self.records: list[Sync | Control] = []
        """All records in the order in which they came to be."""
        self.high = [0] * self.SIZE
        self.told = [0] * self.SIZE
        self.logs: list[tuple[tuple[int, int], ...]] = [((100 + v, 0),) for v in range(self.SIZE)]
        self.projector_of = [v % 2 for v in range(self.SIZE)]
        self.owner: list[int | None] = [None] * self.SIZE
        self.connections: dict[int, int] = {}
        self.ordinals: dict[int, int] = {}
        self.generation = 0
        for v in range(self.SIZE):
            self.put("log", log(v, *self.logs[v]))
        for projector in (0, 1):
            self.start(projector)

    def put(self, topic: str, record: Sync | Control) -> None:
        self.topics[topic].append(record)
        self.records.append(record)

    def ordinal(self, connection: int) -> int:
        self.ordinals[connection] = self.ordinals.get(connection, 0) + 1
        return self.ordinals[connection]

    def start(self, projector: int) -> None:
        """A projector streams all that it has, in a new generation."""
        self.generation += 1
        connection = self.connections[projector] = 1_000 + self.generation
        for v in range(self.SIZE):
            if self.projector_of[v] == projector:
                vbuuid, since = self.logs[v][0][0], self.told[v] // 2
                record = begin(
                    v,
                    connection,
                    self.ordinal(connection),
                    since,
                    number=self.generation,
                    projector=projector,
                    vbuuid=vbuuid,
                )
                self.put("begin", record)
                self.owner[v] = connection

    def stop(self, projector: int, how: int) -> None:
        """A projector ends its streams with ENDs, with its connection's end only, or not at all."""
        connection = self.connections[projector]
        for v in range(self.SIZE):
            if self.owner[v] == connection:
                if how == 0:
                    self.leave(v)
                self.owner[v] = None
        if how < 2:
            record = closed(connection, self.ordinal(connection), projector)
            self.put("end", record)

    def leave(self, v: int) -> None:
        connection = self.owner[v]
        assert connection is not None
        record = end(v, connection, self.ordinal(connection), projector=self.projector_of[v])
        self.put("end", record)
        self.owner[v] = None

    def say(self, v: int) -> None:
        connection = self.owner[v]
        if connection is not None:
            self.told[v] = self.high[v]
            vbuuid = self.logs[v][0][0]
            record = sync(v, connection, self.ordinal(connection), self.high[v], vbuuid)
            self.put("sync", replace(record, projector=self.projector_of[v]))

    def step(self, what: int, v: int, amount: int) -> None:
        projector = self.projector_of[v]
        if what < 3:
            self.high[v] += amount
        elif what < 6:
            self.say(v)
        elif what == 6:
            self.stop(projector, amount % 3)
            self.start(projector)
        elif what == 7:  # A vbucket moves: the other projector streams all anew.
            self.leave(v)
            self.projector_of[v] = 1 - projector
            self.stop(1 - projector, amount % 3)
            self.start(1 - projector)
        else:  # A crash: what nobody was told of may be lost.
            self.high[v] = max(self.told[v], self.high[v] - amount)
            older = tuple((vbuuid, min(at, self.high[v])) for vbuuid, at in self.logs[v])
            self.logs[v] = ((10_000 + self.generation, self.high[v]), *older)
            self.generation += 1
            self.put("log", log(v, *self.logs[v]))
            self.stop(projector, 0)
            self.start(projector)
