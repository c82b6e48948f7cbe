"""Where a key of an index lives: its partition, and the shard that holds a replica of that.

The seed's `TopologyProvider`. Each slice of an index is one partition of its keys. Replica 0 is
the masters of all slices; replica k is the k-th host of each, the master being the 0th. A
`key_version` is an encoded key: `KeyOrder.encode`, which the index's evaluator yields.

`HashTopology`   CRC-32 of the encoded key, scaled down to the number of slices. Equal values have
                 equal bytes, so 1 and 1.0 live together. This is for ever: entries lie by it
`RangeTopology`  the lowest key of each slice but the first; a bound may be the beginning of a key

Pure. A provider is of one index as it stands: make it anew when the index changes.
"""

from __future__ import annotations

from bisect import bisect_right
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
    """A part of an index's keys, and the slice that is it."""

    number: int
    slice: Slice


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
        """Return the copies of the index, the masters' first."""
        ...

    def locate_key(self, replica: Replica, key_version: bytes) -> tuple[Shard, Slice]:
        """Return where this copy has the key: the storage (number 0: not allocated yet)."""
        ...


class _Topology:
    """What both providers share: partitions and replicas of an index."""

    def __init__(self, index: Index) -> None:
        self.partitions = tuple(
            Partition(number, piece) for number, piece in enumerate(index.slices)
        )
        copies = min(len(piece.hosts) for piece in index.slices)
        self._replicas = [Replica(number) for number in range(copies)]
        self._shards = [
            [Shard(host, index.shard_on(host)) for host in piece.hosts] for piece in index.slices
        ]

    def get_partition(self, key_version: bytes) -> Partition:
        raise NotImplementedError

    def get_replicas(self) -> list[Replica]:
        return list(self._replicas)

    def locate_key(self, replica: Replica, key_version: bytes) -> tuple[Shard, Slice]:
        partition = self.get_partition(key_version)
        return self._shards[partition.number][replica.number], partition.slice


class HashTopology(_Topology):
    """Keys spread evenly, wherever they come from: a scan of a range asks every slice."""

    def get_partition(self, key_version: bytes) -> Partition:
        partitions = self.partitions
        return partitions[crc32(key_version) * len(partitions) >> HASH_BITS]


class RangeTopology(_Topology):
    """Neighbours live together: a scan of a range asks the slices of that range only."""

    def __init__(self, index: Index) -> None:
        super().__init__(index)
        self.bounds = read_bounds(index.bounds_json, order_of(index))
        if len(self.bounds) + 1 != len(self.partitions):
            raise ValueError(f"{len(self.bounds)} bounds for {len(self.partitions)} slices")

    def get_partition(self, key_version: bytes) -> Partition:
        return self.partitions[bisect_right(self.bounds, key_version)]


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
