"""Where a key of an index lives: its partition, and the shard that holds a replica of that.

The seed's `TopologyProvider`. A partition has one slice, or several among which its keys are
spread. Replica 0 is the masters of all slices; replica k is the k-th host of each, the master being
the 0th. A `key_version` is an encoded key: `KeyOrder.encode`, which the index's evaluator yields.

`HashTopology`   each slice is a partition. CRC-32 of the encoded key, scaled down to their number.
                 Equal values have equal bytes, so 1 and 1.0 live together. This is for ever:
                 entries lie by it
`RangeTopology`  the lowest key of each partition but the first; a bound may be the beginning of a
                 key. If there are more slices than partitions, each partition has as many as the
                 others, one after the other, and the hash says in which of them a key is

Pure. A provider is of one index as it stands: make it anew when the index changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from zlib import crc32

from coordinator.core.keys.key_order import KeyOrder, order_of
from coordinator.core.keys.key_versions import KEY_BYTES_MAX
from coordinator.core.model import json_text
from coordinator.core.model.entities import RANGE, Index, Shard, Slice

HASH_BITS = 32
BOUNDS_MAX = 255
"""One less than an index may have slices: what has more is refused before any is looked at."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A part of an index's keys, and the slices that hold them."""

    number: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """A whole copy of an index: the `number`-th host of each slice; 0 is the masters."""

    number: int


class TopologyProvider(Protocol):
    """Where the keys of one index live."""

    def get_partition(self, key_version: bytes) -> Partition:
        """Return the only partition in which this key can be."""
        ...

    def get_replicas(self) -> list[Replica]:
        """Return the copies of the index, the masters' first, those that are leaving last.

        One of which some slices have no copy has fewer than the others.
        """
        ...

    def locate_key(self, replica: Replica, key_version: bytes) -> tuple[Shard, Slice] | None:
        """Return where this copy has the key: the storage (number 0: not allocated yet).

        None: this copy lacks the slice.
        """
        ...

    def slice_of(self, key_version: bytes) -> Slice:
        """Return the only slice in which this key can be."""
        ...

    def shard_of(self, replica: Replica, piece: Slice) -> Shard | None:
        """Return where this copy has a slice; None: it lacks it."""
        ...


class _Topology:
    """What both providers share: slices and replicas of an index."""

    def __init__(self, index: Index) -> None:
        self.slices = index.slices
        self._replicas = [Replica(n) for n in range(max(len(one.hosts) for one in index.slices))]
        self._shards = [
            [Shard(host, index.shard_on(host)) for host in piece.hosts] for piece in index.slices
        ]

    def slice_of(self, key_version: bytes) -> Slice:
        raise NotImplementedError

    def get_replicas(self) -> list[Replica]:
        return list(self._replicas)

    def shard_of(self, replica: Replica, piece: Slice) -> Shard | None:
        shards = self._shards[piece.number]
        return shards[replica.number] if replica.number < len(shards) else None

    def locate_key(self, replica: Replica, key_version: bytes) -> tuple[Shard, Slice] | None:
        piece = self.slice_of(key_version)
        shard = self.shard_of(replica, piece)
        return (shard, piece) if shard is not None else None


class HashTopology(_Topology):
    """Keys spread evenly, wherever they come from: a scan of a range asks every slice."""

    def get_partition(self, key_version: bytes) -> Partition:
        piece = self.slice_of(key_version)
        return Partition(piece.number, (piece,))

    def slice_of(self, key_version: bytes) -> Slice:
        return _spread(key_version, self.slices)


class RangeTopology(_Topology):
    """Neighbours live together: a scan of a range asks the slices of that range only."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.bounds = read_bounds(index.bounds_json, order_of(index))
        each, odd = divmod(len(self.slices), len(self.bounds) + 1)
        if odd or not each:
            raise ValueError(f"{len(self.bounds)} bounds for {len(self.slices)} slices")
        self.partitions = tuple(
            Partition(number, self.slices[number * each : (number + 1) * each])
            for number in range(len(self.bounds) + 1)
        )

    def get_partition(self, key_version: bytes) -> Partition:
        return self.partitions[bisect_right(self.bounds, key_version)]

    def slice_of(self, key_version: bytes) -> Slice:
        return _spread(key_version, self.get_partition(key_version).slices)


def _spread(key_version: bytes, slices: Sequence[Slice]) -> Slice:
    """Return the slice of a key among some: always the same of as many."""
    return slices[crc32(key_version) * len(slices) >> HASH_BITS]


def topology_of(index: Index) -> TopologyProvider:
    """Return where the keys of `index` live, as it stands."""
    return RangeTopology(index) if index.partitioning == RANGE else HashTopology(index)


def read_bounds(bounds_json: str, order: KeyOrder) -> list[bytes]:
    """Return the bounds of a range-partitioned index as encoded keys. ValueError: they are none.

    Each is an array of the first components of a key, and above the one before it, in the order
    of the index. The components are no arrays or objects.
    """
    try:
        bounds: Any = json_text.parse(bounds_json)
    except ValueError as error:
        raise ValueError(f"bounds are no JSON: {error}") from None
    if not isinstance(bounds, list):
        raise ValueError("bounds are an array of keys")
    if len(bounds) > BOUNDS_MAX:
        raise ValueError(f"{len(bounds)} bounds: at most {BOUNDS_MAX}")
    encoded: list[bytes] = []
    for number, bound in enumerate(bounds, 1):
        if not isinstance(bound, list) or not 1 <= len(bound) <= len(order.descending):
            most = len(order.descending)
            raise ValueError(f"bound {number} is no array of 1 to {most} key components")
        if any(isinstance(component, list | dict) for component in bound):
            raise ValueError(f"bound {number}: a component is null, a boolean, number or string")
        try:
            raw = order.encode(bound)
        except (TypeError, ValueError) as error:
            raise ValueError(f"bound {number}: {error}") from None
        if len(raw) > KEY_BYTES_MAX:
            raise ValueError(f"bound {number} is longer than a key of {KEY_BYTES_MAX} bytes")
        if encoded and raw <= encoded[-1]:
            raise ValueError(f"bound {number} is not above the one before it")
        encoded.append(raw)
    return encoded
