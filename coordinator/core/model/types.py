"""The words of the protocol that every module uses.

Pure. A CAS orders mutations, an offset is a position in one Kafka partition, an epoch counts
accepted claims of the mastership. They are all whole numbers and must never be mixed up: names
end in what they are (`last_cas`, `proposal_offset`).
"""

from __future__ import annotations

from typing import NamedTuple

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
