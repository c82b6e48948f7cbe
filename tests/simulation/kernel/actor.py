"""What takes part in a world: a node, an indexer, a client, the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Ear = Callable[[str, Any], None]
"""Is told the topic and the record."""


class Actor:
    """What the kernel asks of an actor: here is what most of them answer."""

    left: int = 0
    """How many operations it has still to begin."""

    @property
    def patience_ms(self) -> int:
        """How much longer than others it may need to come to rest."""
        return 0

    def heal(self) -> None:
        """End all that befalls it: from now on it must come to rest."""

    def tend(self) -> None:
        """Do what an operator does for it once all is healed, again and again."""

    def unsettled(self) -> str:
        """Say what it waits for; nothing if it is at rest."""
        return ""

    def ear(self, record: Any) -> Ear | None:
        """Return who is to hear a record that is sent now; None if it does not heed it."""
        return None

    def slow(self) -> int:
        """Return how much longer a message takes to it than to others."""
        return 0
