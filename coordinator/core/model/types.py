"""The words of the protocol that every module uses.

Pure. All of these are whole numbers and must never be mixed up: each has a type of its own, which
costs nothing but at the places where a plain number becomes one. Names end in what they are
(`last_cas`, `proposal_offset`).
"""

from __future__ import annotations

from typing import NamedTuple, NewType

Offset = NewType("Offset", int)
"""A position in one partition of a topic."""

Cas = NewType("Cas", int)
"""The version of an entity, or of the whole state: orders mutations. 0: there is none."""

Epoch = NewType("Epoch", int)
"""Counts accepted claims of the mastership. 0: nobody has claimed it."""

Seqno = NewType("Seqno", int)
"""Numbers the mutations of one vbucket on one branch of its history, from 1 on."""

Vbuuid = NewType("Vbuuid", int)
"""A branch of a vbucket's history; unsigned, 64 bits. 0: there is none."""

Generation = NewType("Generation", int)
"""Numbers the streams of a projector for a bucket, as the master committed them."""

CAS_MAX = Cas(2**53 - 1)
"""A CAS is a JSON number; beyond this bound other languages would round it."""


class TxnId(NamedTuple):
    """A transaction: the epoch of the master that proposed it, and its number in that epoch."""

    epoch: Epoch
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"


EPOCH_FROM_BIT, SEQ_FROM_BIT = 40, 10
"""Where in the number of an entity the epoch begins, and the transaction within it."""


def number_in(txn: TxnId, index: int) -> int:
    """Return the number of an entity that a transaction makes, by its place in that: no other has
    it, and those of later transactions are higher."""
    return (txn.epoch << EPOCH_FROM_BIT) | (txn.seq << SEQ_FROM_BIT) | index


def epoch_of(number: int) -> Epoch:
    """Return the epoch in which an entity was made, by its number."""
    return Epoch(number >> EPOCH_FROM_BIT)


class Instant(NamedTuple):
    """The time at which an input arrived: monotonic for timeouts, wall clock for people (ms)."""

    mono_ms: int
    wall_ms: int
