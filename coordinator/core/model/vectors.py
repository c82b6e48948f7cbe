"""The vector of a bucket: for each vbucket a branch and a seqno, unsigned 64 bits each. Pure.

Seqnos of different branches (vbuuids) cannot be compared, position by position. The seqno 0 is
the beginning of every branch: nothing is held. Arrays that a vector was made of are never shared
with the outside: they are copied in, and read-only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.core.model.types import Seqno, Vbuuid

Numbers = NDArray[np.uint64]
WIRE = np.dtype("<u8")
HASH_BITS = 63
VBUCKET_MAX = 2**31 - 1


class Places(NamedTuple):
    """Positions in some vbuckets: columns of one length, and no seqno that is 0."""

    vbuckets: NDArray[np.int64]
    vbuuids: Numbers
    seqnos: Numbers

    @classmethod
    def of(cls, places: Mapping[int, tuple[int, int]]) -> Places:
        """Return the places, vbuuid and seqno, of vbuckets. ValueError: a number that is none."""
        rows = [(vb, vbuuid, seqno) for vb, (vbuuid, seqno) in places.items() if seqno]
        try:
            columns = [np.array([row[n] for row in rows], np.uint64) for n in range(3)]
        except OverflowError as error:
            raise ValueError(f"numbers are unsigned, of 64 bits: {error}") from error
        vbuckets, vbuuids, seqnos = columns
        if (vbuckets > VBUCKET_MAX).any():
            raise ValueError(f"vbucket {vbuckets.max()}")
        return cls(vbuckets.astype(np.int64), vbuuids, seqnos)


class Vector:
    """An immutable vector; `vbuuids` and `seqnos` have one entry for each vbucket."""

    __slots__ = ("seqnos", "vbuuids")

    def __init__(self, vbuuids: Iterable[int] | Numbers, seqnos: Iterable[int] | Numbers) -> None:
        """Copy both. ValueError: they differ in length."""
        self.vbuuids = _frozen(vbuuids)
        self.seqnos = _frozen(seqnos)
        if len(self.vbuuids) != len(self.seqnos):
            raise ValueError(f"{len(self.vbuuids)} vbuuids and {len(self.seqnos)} seqnos")

    @classmethod
    def zero(cls, vbuckets: int) -> Vector:
        """Return the vector of one who holds nothing."""
        nothing = np.zeros(vbuckets, np.uint64)
        return cls(nothing, nothing)

    @classmethod
    def from_bytes(cls, vbuuids: bytes, seqnos: bytes) -> Vector:
        """Return the vector of two byte strings, 8 bytes a vbucket, little-endian. ValueError."""
        return cls(np.frombuffer(vbuuids, WIRE), np.frombuffer(seqnos, WIRE))

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Return the vbuuids and the seqnos as bytes: the inverse of `from_bytes`."""
        return self.vbuuids.astype(WIRE).tobytes(), self.seqnos.astype(WIRE).tobytes()

    def __len__(self) -> int:
        return len(self.seqnos)

    def position(self, vbucket: int) -> tuple[Vbuuid, Seqno]:
        """Return branch and seqno of one vbucket."""
        return Vbuuid(int(self.vbuuids[vbucket])), Seqno(int(self.seqnos[vbucket]))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vector)
            and np.array_equal(self.vbuuids, other.vbuuids)
            and np.array_equal(self.seqnos, other.seqnos)
        )

    def __hash__(self) -> int:
        return self.digest()

    def __repr__(self) -> str:
        return f"Vector({self.vbuuids.tolist()}, {self.seqnos.tolist()})"

    @property
    def holds_anything(self) -> bool:
        """Tell whether anything is held of any vbucket, be it the beginning of a branch."""
        return bool(self.seqnos.any() or self.vbuuids.any())

    def digest(self) -> int:
        """Return 63 bits that tell vectors apart, never 0."""
        whole = blake2b(b"".join(self.to_bytes()), digest_size=8).digest()
        return (int.from_bytes(whole, "little") >> (64 - HASH_BITS)) or 1

    def covers(self, other: Vector) -> bool:
        """Tell whether everything up to `other` is held here: never across branches."""
        if len(self) != len(other):
            return False
        same = (self.vbuuids == other.vbuuids) & (self.seqnos >= other.seqnos)
        return bool(np.all(same | (other.seqnos == 0)))

    def lacking(self, places: Places) -> int | None:
        """Return a vbucket whose place is not held here, None if all are: never across branches."""
        outside = places.vbuckets >= len(self)
        if outside.any():
            return int(places.vbuckets[outside][0])
        vbuuids, seqnos = self.vbuuids[places.vbuckets], self.seqnos[places.vbuckets]
        lacks = (vbuuids != places.vbuuids) | (seqnos < places.seqnos)
        return int(places.vbuckets[lacks][0]) if lacks.any() else None


def _frozen(numbers: Iterable[int] | Numbers) -> Numbers:
    if not isinstance(numbers, np.ndarray):
        numbers = np.fromiter(numbers, np.uint64)
    copied = numbers.astype(np.uint64)
    copied.setflags(write=False)
    return copied
