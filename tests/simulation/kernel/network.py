"""Plain records on their way: everybody who listens to a topic hears each, after some time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.simulation.kernel.actor import Actor
from tests.simulation.kernel.clock import Clock


def unchanged(value: Any) -> Any:
    return value


class Network:
    """Topics that nobody reads again: who does not listen when a record is sent misses it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.through: Callable[[Any], Any] = unchanged
        """What a record goes through on its way: encoding and decoding, in some worlds."""
        self._listeners: defaultdict[str, list[Actor]] = defaultdict(list)

    def listen(self, actor: Actor, topic: str) -> None:
        """Let an actor hear what is sent on a topic."""
        self._listeners[topic].append(actor)

    def send(self, topic: str, record: Any, extra_ms: int = 0) -> None:
        """Send a record, by a way that takes so much longer."""
        record = self.through(record)
        for actor in self._listeners[topic]:
            ear = actor.ear(record)
            if ear is not None:
                delay_ms = self.clock.delay() + extra_ms + actor.slow()
                self.clock.at(delay_ms, ear, topic, record)
