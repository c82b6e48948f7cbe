"""A master has `statecontext` compared with its state, now and then, and mends what differs.

Pure. What is found is written again from the master's own state, which is what was committed: a
transaction like any other, so that all who follow the topic see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.core.commands import RewriteEntities
from coordinator.core.effects import Scrub
from coordinator.core.inputs import Scrubbed

if TYPE_CHECKING:
    from coordinator.core.master import Master

UNKNOWN = -1

FIRST_MS = 1_000
"""A new master serves for this long before it has the topic read."""


class Scrubbing:
    """The part of a master that keeps `statecontext` right."""

    def __init__(self, master: Master) -> None:
        self.master = master
        self._token = 0
        self._seq = 0
        self._due_ms = master.node.now.mono_ms + FIRST_MS

    def tick(self) -> None:
        """Have the topic read when it is time, unless it is being read."""
        node = self.master.node
        if self._token or node.now.mono_ms < self._due_ms or not node.state.cas:
            return
        self._token = node.token()
        # Events of a transaction under way would be taken for some that nobody committed.
        self._seq = self.master.seq if self.master.attempt is None else UNKNOWN
        node.emit(Scrub(self._token, node.state))

    def scrubbed(self, event: Scrubbed) -> None:
        """Write again what differs."""
        if event.token != self._token:
            return
        node = self.master.node
        self._token = 0
        self._due_ms = node.now.mono_ms + node.config.scrub_ms
        if event.problem:
            node.note(f"statecontext was not compared: {event.problem}")
            return
        found = event.findings
        quiet = self.master.seq == self._seq and self.master.attempt is None
        strays = (*found.strays, *found.later) if quiet else found.strays
        node.counters.scrubs += 1
        node.counters.holes_found += len(found.holes)
        node.counters.strays_found += len(strays)
        differing = sorted({*found.holes, *strays})
        if not differing:
            return
        node.note(
            f"statecontext has {len(found.holes)} holes and {len(strays)} strays: "
            f"rewriting {len(differing)} entities"
        )
        for number, keys in enumerate(self.master.portions(differing)):
            self.master.want(f"scrub/{number}", RewriteEntities(keys))
