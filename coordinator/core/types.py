"""The words of the protocol, as distinct types.

Pure. A `Cas` orders mutations, an `Offset` is a position in one Kafka partition, an `Epoch`
counts accepted claims of the mastership. They are all whole numbers and must never be mixed up.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

Cas = NewType("Cas", int)
Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
NodeId = NewType("NodeId", int)
IndexerId = NewType("IndexerId", int)
IndexId = NewType("IndexId", int)
Digest = NewType("Digest", int)

ABSENT = Cas(0)
"""The CAS of what does not exist; the first CAS of a new cluster is above it."""

CAS_MAX = 2**53 - 1
"""A CAS is a JSON number; beyond this bound other languages would round it."""


class TxnId(NamedTuple):
    """A transaction: the epoch of the master that proposed it, and its number in that epoch."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


class Instant(NamedTuple):
    """The time at which an input arrived: monotonic for timeouts, wall clock for people (ms)."""

    mono_ms: int
    wall_ms: int
