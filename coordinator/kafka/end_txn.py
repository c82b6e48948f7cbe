"""When the request that ends a Kafka transaction may have been sent twice.

librdkafka repeats EndTxn by itself, without an error callback, when the connection is lost or the
broker answers with a transient error. It speaks the request up to version 4, which names the
producer but not the transaction. So a delayed copy ends the *next* transaction, with the verdict of
the one before. After a new initialisation Kafka refuses the copy, because its producer epoch is
old. If an end took longer than the client's shortest pause before a repeat, there may be a copy,
and the producer has to be initialised again.

Pure: time comes in as values.
"""

from __future__ import annotations

RETRY_BACKOFF_MS = 500
"""The client's pause before it repeats a request. EndTxn takes 5 ms at the 99.9th percentile: one
that is merely slow is well below."""

JITTER = 0.2
"""librdkafka makes each pause up to this much shorter or longer."""

REPEATED_AFTER_S = RETRY_BACKOFF_MS * (1 - JITTER) / 1000

RETRY_BACKOFF_MS_MAX = 2_000
"""Where every end takes long, each producer that was given up is followed by one that pauses twice
as long, up to this: else there would be no master for as long as the broker is slow."""

QUICK_ENDS = 1_000
"""After so many quick ends in a row the next producer pauses as usual again."""


def may_be_repeated(took_s: float, pause_ms: int = RETRY_BACKOFF_MS) -> bool:
    """Tell whether a client that pauses so long may have sent an EndTxn again by `took_s`."""
    return took_s >= pause_ms * (1 - JITTER) / 1000


class Patience:
    """The pause before a repeat, for one producer of a process after the other."""

    def __init__(self) -> None:
        self.pause_ms = RETRY_BACKOFF_MS
        """Of the producer that is now."""
        self._next_ms = RETRY_BACKOFF_MS
        self._quick = 0

    def begin(self) -> int:
        """A producer is made: return its pause in ms."""
        self.pause_ms = self._next_ms
        return self.pause_ms

    def ended(self, took_s: float) -> bool:
        """An end was answered, or given up, after `took_s`; tell whether it may arrive again."""
        doubtful = may_be_repeated(took_s, self.pause_ms)
        if doubtful:
            self._quick = 0
            self._next_ms = min(2 * self.pause_ms, RETRY_BACKOFF_MS_MAX)
            return True
        self._quick = self._quick + 1 if took_s < REPEATED_AFTER_S / 2 else 0
        if self._quick >= QUICK_ENDS:
            self._next_ms = RETRY_BACKOFF_MS
        return False
