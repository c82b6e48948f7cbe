"""How fast a connection may be read: so many documents a second. Pure; seconds of any clock."""

from __future__ import annotations

BURST_S = 0.1
"""What was not taken for this long may be taken at once."""


class Pace:
    """When the next documents may be read."""

    __slots__ = ("due_s",)

    def __init__(self) -> None:
        self.due_s = 0.0

    def took(self, documents: int, per_s: int, now_s: float) -> None:
        """Note what was read just now; with `per_s` 0 there is no bound."""
        if per_s:
            self.due_s = max(self.due_s, now_s - BURST_S) + documents / per_s
        else:
            self.due_s = 0.0
