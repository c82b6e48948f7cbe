"""The reader of the `ddl` topic that a machine runs while its node is master."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.commands import Position

if TYPE_CHECKING:
    from tests.simulation.machine import Machine


class DdlReader:
    """Reads each partition from where it is told to, and hands batches to the node."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.partitions = machine.broker.ddl
        self._at: dict[int, int] = {}
        self._reader = 0
        self._busy: set[int] = set()
        for number, partition in enumerate(self.partitions):
            partition.listeners.append(partial(self._moved, number))

    def read(self, effect: fx.ReadDdl) -> None:
        """Begin after what was consumed."""
        self.stop()
        consumed = dict(effect.consumed)
        self._at = {p: consumed.get(p, -1) + 1 for p in range(len(self.partitions))}
        for number in self._at:
            self._moved(number)

    def stop(self) -> None:
        """Read no more."""
        self._reader += 1
        self._busy.clear()
        self._at = {}

    @property
    def is_at_the_end(self) -> bool:
        """Whether this machine has read all that there is."""
        return self._at == {number: p.end for number, p in enumerate(self.partitions)}

    def _moved(self, number: int) -> None:
        at = self._at.get(number)
        if at is None or number in self._busy or self.partitions[number].end <= at:
            return
        self._busy.add(number)
        self.clock.at(self.clock.delay(), self._deliver, self._reader, number)

    def _deliver(self, reader: int, number: int) -> None:
        if reader != self._reader:
            return
        machine = self.machine
        if machine.deaf or machine.paused:
            self.clock.at(60, self._deliver, reader, number)
            return
        limit = self.clock.chance.choice((1, 3, 50))
        found = self.partitions[number].read(self._at[number], limit)
        self._busy.discard(number)
        if found:
            self._at[number] = found[-1].offset + 1
            requests = (replace(r.value, position=Position(number, r.offset)) for r in found)
            event = inp.DdlRead(tuple(requests))
            if machine.doubling:
                machine.later(2 * self.clock.delay(), event)
            machine.feed(event)
        if reader == self._reader:
            self._moved(number)
