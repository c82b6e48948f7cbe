"""A master compares `statecontext` with its state from time to time, and repairs what differs.

Pure. The master's own state is what was committed. From it the master writes again what differs, in
a transaction like any other, so that all who follow the topic see it.
"""

from __future__ import annotations

from coordinator.core.consensus.counters import Counters
from coordinator.core.consensus.effects import Note, Scrub
from coordinator.core.consensus.inputs import Scrubbed
from coordinator.core.consensus.signals import Result
from coordinator.core.consensus.view import NodeView, Tokens
from coordinator.core.leader.rewrites import rewrites
from coordinator.core.model.types import Instant

FIRST_MS = 1_000
"""A new master serves for this long before it has the topic read."""


class ScrubSchedule:
    """The part of a master that keeps `statecontext` right.

    `quiet_at` is how many proposals the master has made, if none is in flight, else None. If it is
    the same before and after a comparison, nothing was committed meanwhile, and so events above the
    state's CAS are strays.
    """

    def __init__(self, now: Instant, tokens: Tokens, counters: Counters) -> None:
        self._tokens = tokens
        self._counters = counters
        self._token = 0
        self._quiet_at: int | None = None
        self._due_ms = now.mono_ms + FIRST_MS

    def tick(self, view: NodeView, quiet_at: int | None) -> list[Result]:
        """Have the topic read when it is time, unless it is being read."""
        if self._token or view.now.mono_ms < self._due_ms or not view.state.cas:
            return []
        self._token = self._tokens.next()
        self._quiet_at = quiet_at
        return [Scrub(self._token, view.state)]

    def scrubbed(self, view: NodeView, event: Scrubbed, quiet_at: int | None) -> list[Result]:
        """Write again what differs."""
        if event.token != self._token:
            return []
        self._token = 0
        self._due_ms = view.now.mono_ms + view.config.scrub_ms
        if event.problem:
            return [Note(f"statecontext was not compared: {event.problem}")]
        found, counters = event.findings, self._counters
        quiet = quiet_at is not None and quiet_at == self._quiet_at
        strays = (*found.strays, *found.later) if quiet else found.strays
        counters.scrubs += 1
        counters.holes_found += len(found.holes)
        counters.strays_found += len(strays)
        differing = sorted({*found.holes, *strays})
        if not differing:
            return []
        note = (
            f"statecontext has {len(found.holes)} holes and {len(strays)} strays: "
            f"rewriting {len(differing)} entities"
        )
        return [Note(note), *rewrites(view, "scrub", differing)]
