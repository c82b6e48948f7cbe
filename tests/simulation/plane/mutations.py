"""The topic `mutations`: partitions that lose records, and producers.

What a producer was handed lies in its queues until it is in the log; a process that ends takes with
it what lies there. In each partition that is an end of the queue, in each another one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from coordinator.core.model.stream_records import FailoverLog, KeyVersions
from coordinator.kafka.topics import HW

if TYPE_CHECKING:
    from tests.simulation.plane.world import PlaneWorld

PARTITIONS = 2
NOBODY = -1
"""Who is meant by a record that is gone, and has left its offset."""


class Message(NamedTuple):
    """A record for an indexer."""

    indexer: int
    record: KeyVersions


class Partition:
    """One partition: offsets from `start` to `end` - 1."""

    def __init__(self) -> None:
        self.start = 0
        self._messages: list[Message] = []

    @property
    def end(self) -> int:
        return self.start + len(self._messages)

    def append(self, message: Message) -> None:
        self._messages.append(message)

    def read(self, offset: int, limit: int) -> list[Message]:
        """Return messages from an offset on that is not below the start."""
        at = offset - self.start
        return self._messages[at : at + limit]

    def trim(self, offset: int) -> None:
        """Let go of what is below an offset."""
        offset = min(offset, self.end)
        if offset > self.start:
            del self._messages[: offset - self.start]
            self.start = offset

    def hole(self, offset: int, count: int) -> None:
        """Lose records in the middle: nobody is told."""
        for at in range(max(0, offset - self.start), min(self.end, offset + count) - self.start):
            self._messages[at] = self._messages[at]._replace(indexer=NOBODY)

    def truncate(self, count: int) -> None:
        """Lose the last records: what comes next has their offsets."""
        del self._messages[max(0, len(self._messages) - count) :]


class Producer:
    """The sink of One process of a projector."""

    def __init__(self, world: PlaneWorld) -> None:
        self.world = world
        self.stopped = False
        self.slow_ms = 0
        self._queues: list[deque[Message]] = [deque() for _ in range(PARTITIONS)]
        self._due = [False] * PARTITIONS

    @property
    def is_empty(self) -> bool:
        return not any(self._queues)

    def items(self, partition: int, indexer: int, record: KeyVersions) -> None:
        self._queues[partition].append(Message(indexer, record))
        self._wake(partition)

    def control(self, vbucket: int, record: object) -> None:
        if isinstance(record, FailoverLog):
            self.world.branched(record)
            self.world.network.send(HW, record)

    def stop(self) -> None:
        """The process stands still, with what it has not sent."""
        self.stopped = True

    def go_on(self) -> None:
        self.stopped = False
        for partition in range(PARTITIONS):
            self._wake(partition)

    def die(self) -> None:
        """Lose what was not sent; a part of it may have been, in each partition for itself."""
        self.stopped = True
        for partition, queue in enumerate(self._queues):
            if queue and self.world.clock.hit(0.7):
                self._ship(partition, self.world.clock.chance.randint(0, len(queue)))
            queue.clear()

    def purge(self) -> None:
        """Kafka has refused something: nothing behind that is sent."""
        self.die()
        self.stopped = False

    def _wake(self, partition: int) -> None:
        if self._queues[partition] and not self._due[partition] and not self.stopped:
            self._due[partition] = True
            clock = self.world.clock
            late_ms = clock.chance.randint(0, self.slow_ms) if self.slow_ms else 0
            clock.at(clock.delay() + late_ms, self._send, partition)

    def _send(self, partition: int) -> None:
        self._due[partition] = False
        if not self.stopped:
            queue = self._queues[partition]
            self._ship(partition, self.world.clock.chance.randint(1, max(1, len(queue))))
            self._wake(partition)

    def _ship(self, partition: int, count: int) -> None:
        queue, log = self._queues[partition], self.world.mutations[partition]
        for _ in range(min(count, len(queue))):
            log.append(queue.popleft())
        self.world.mutations_moved()
