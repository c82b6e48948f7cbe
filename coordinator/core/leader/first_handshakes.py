"""What a new master hears of before it takes DDL, goes on with builds, and renews streams.

Pure. By its claim it knows the state, and who replicates it: it serves settings and reads at once.
What indexers hold, how far they have come, and which histories the vbuckets have, it has yet to
hear. It waits for all of these under one deadline, `first_handshakes_ms`: whoever has not said it
by then is heard later, as one that comes later is. Source: specification, "Index-Coordinator
bootstrap".
"""

from __future__ import annotations

from coordinator.core.consensus.view import NodeView, authority_of
from coordinator.core.leader.build_coordinator import BuildCoordinator
from coordinator.core.leader.handshake import Handshakes
from coordinator.core.model.commands import (
    AddBucket,
    AddTopic,
    Command,
    DeleteSetting,
    PutSetting,
    RemoveTopic,
    Subscribe,
    Transact,
    Unsubscribe,
)

WITHOUT_THEM = (
    *(PutSetting, DeleteSetting, AddBucket, AddTopic, RemoveTopic, Subscribe, Unsubscribe),
)


class FirstHandshakes:
    """Whether a new master has heard of everybody, or has waited for long enough."""

    def __init__(self) -> None:
        self.are_over = False
        self._since_ms: int | None = None

    def look(self, view: NodeView, handshakes: Handshakes, building: BuildCoordinator) -> bool:
        """Tell whether they have just ended."""
        if self.are_over:
            return False
        if self._since_ms is None:
            self._since_ms = view.now.mono_ms
        is_late = view.now.mono_ms - self._since_ms >= view.config.first_handshakes_ms
        self.are_over = is_late or (_all_reported(view, handshakes) and building.has_heard(view))
        return self.are_over


def waits_for_them(command: Command) -> bool:
    """Tell whether a command is about indexes, or about where they lie."""
    if isinstance(command, Transact):
        return any(map(waits_for_them, (*command.then, *command.otherwise)))
    return not isinstance(command, WITHOUT_THEM)


def _all_reported(view: NodeView, handshakes: Handshakes) -> bool:
    """Tell whether each living indexer has said what it holds."""
    return all(
        (held := handshakes.get(indexer)) is not None and held.has_reported
        for indexer in authority_of(view).indexers
        if view.peers.indexer_alive(indexer)
    )
