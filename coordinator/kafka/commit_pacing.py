"""When to begin the next Kafka transaction.

After a commit the transaction coordinator still writes markers, and closes the transaction in its
own log. If a producer begins the next transaction before that, it gets CONCURRENT_TRANSACTIONS, and
the client waits 20 ms before it asks again. That is five times as long as a wait for the right
moment. No call tells when that moment is, so it is learnt: the pause grows after each stall, and
shrinks a little after each success.

Pure: time comes in as values, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_S = 0.018
"""A begin that took this long ran into the client's back-off of 20 ms."""


@dataclass(slots=True)
class Pacing:
    """Learns the shortest pause after a commit that costs no stall."""

    pause_s: float = 0.002
    shortest_s: float = 0.0005
    longest_s: float = 0.012
    growth: float = 1.5
    decay: float = 0.99
    _committed_s: float = -1.0

    def committed(self, now_s: float) -> None:
        """A transaction was ended now."""
        self._committed_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return how long to wait before the next transaction is begun."""
        if self._committed_s < 0:
            return 0.0
        return max(0.0, self._committed_s + self.pause_s - now_s)

    def began(self, took_s: float) -> None:
        """The first write of a transaction took this long."""
        if took_s >= STALL_S:
            self.pause_s = min(self.longest_s, self.pause_s * self.growth)
        else:
            self.pause_s = max(self.shortest_s, self.pause_s * self.decay)
