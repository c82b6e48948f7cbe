"""When the request that ends a Kafka transaction may have been sent twice.

librdkafka repeats EndTxn by itself, without an error callback, when the connection is lost or the
broker answers with an error that passes. Up to protocol version 4, which it speaks, the request
names the producer but not the transaction: a copy that was delayed ends the *next* transaction,
with the verdict of the one before. A producer that was initialised anew is not affected, since
Kafka refuses the older epoch. So whoever waits longer than the client's shortest pause before a
repeat cannot know, and has to initialise.

Pure: time comes in as values.
"""

from __future__ import annotations

RETRY_BACKOFF_MS = 500
"""The client's pause before it repeats a request. EndTxn takes 5 ms at the 99.9th percentile: one
that is merely slow is well below."""

JITTER = 0.2
"""librdkafka makes each pause up to this much shorter or longer."""

REPEATED_AFTER_S = RETRY_BACKOFF_MS * (1 - JITTER) / 1000


def may_be_repeated(took_s: float) -> bool:
    """Tell whether the client may have sent an EndTxn again that was answered after `took_s`."""
    return took_s >= REPEATED_AFTER_S
