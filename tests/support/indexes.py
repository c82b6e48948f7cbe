"""Entities and heartbeats with many fields: tests name those that they are about."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from coordinator.core.model.entities import READY, Index, Slice
from coordinator.core.model.records import IndexerHeartbeat
from coordinator.core.model.stream_records import (
    MAINTENANCE,
    HwHeartbeat,
    KeyVersions,
    Sync,
    SyncVector,
)
from coordinator.core.model.vectors import Vector


def make_index(index_id: int, *hosts: int, **fields: Any) -> Index:
    """Return an index on `a` of the bucket `travel`, ready; a slice on each of the `hosts`."""
    known = {
        "name": f"i{index_id}",
        "bucket": "travel",
        "expressions": ("a",),
        "where": None,
        "primary": False,
        "using": "gsi",
        "defer_build": False,
        "state": READY,
        "reason": None,
        "slices": tuple(Slice(number, host) for number, host in enumerate(hosts or (1,))),
        "request": f"r{index_id}",
        "created_ms": 1,
    }
    return Index(id=index_id, **(known | fields))


def make_watermarks(
    indexer: int, vector: Vector | tuple[bytes, bytes], **fields: Any
) -> HwHeartbeat:
    """Return what an indexer says of the bucket `b`: it has nothing but these high watermarks."""
    vbuuids, seqnos = vector.to_bytes() if isinstance(vector, Vector) else vector
    known = {
        "incarnation": 1,
        "bucket": "b",
        "indexes": (),
        "last_persistence": 0,
        "last_stability": 0,
        "mutation_queue": 0,
        "free": 0,
        "builds": (),
        "at_ms": 0,
    }
    return HwHeartbeat(indexer=indexer, vbuuids=vbuuids, seqnos=seqnos, **(known | fields))


def make_indexer_beat(indexer: int, **fields: Any) -> IndexerHeartbeat:
    """Return a heartbeat of an indexer in its first incarnation: it holds nothing."""
    known = {"incarnation": 1, "address": "x", "zone": "", "pid": 1, "slices": 0, "bytes": 0}
    return IndexerHeartbeat(indexer=indexer, **(known | {"cas": 0, "at_ms": 0} | fields))


def make_key_versions(ordinal: int, **fields: Any) -> KeyVersions:
    """Return a record of `mutations` without items: the connection 1 of projector 0 sends it."""
    known = {"bucket": "b", "kind": MAINTENANCE, "projector": 0, "connection": 1, "number": 1}
    known |= {"indexes": (), "builds": (), "items": b"", "at_ms": 0, "previous": ordinal - 1}
    return KeyVersions(ordinal=ordinal, **(known | fields))


def make_sync_vector(vbuckets: Sequence[int], **fields: Any) -> SyncVector:
    """Return what the connection 1 of projector 0 says of several vbuckets of the bucket `b`.

    `vbuuid` and `seqno` are those of all of them, or `vbuuids` and `seqnos` one for each.
    """
    count, of_each = len(vbuckets), {}
    for one, name in (("vbuuid", "vbuuids"), ("seqno", "seqnos")):
        numbers = fields.pop(name, [fields.pop(one, 0)] * count)
        of_each[name] = struct.pack(f"<{count}Q", *numbers)
    known = {"bucket": "b", "projector": 0, "connection": 1, "ordinal": 0, "at_ms": 0}
    return SyncVector(vbuckets=struct.pack(f"<{count}H", *vbuckets), **(known | of_each | fields))


def syncs_of(vector: SyncVector) -> list[Sync]:
    """Return what a vector says, vbucket by vbucket."""
    count = len(vector.vbuckets) // 2
    columns = (
        struct.unpack(f"<{count}{kind}", raw)
        for kind, raw in zip("HQQ", (vector.vbuckets, vector.vbuuids, vector.seqnos), strict=True)
    )
    return [
        Sync(
            bucket=vector.bucket,
            vbucket=vbucket,
            projector=vector.projector,
            connection=vector.connection,
            ordinal=vector.ordinal,
            vbuuid=vbuuid,
            seqno=seqno,
            at_ms=vector.at_ms,
        )
        for vbucket, vbuuid, seqno in zip(*columns, strict=True)
    ]


def make_sync(vbucket: int, **fields: Any) -> Sync:
    """Return what the connection 1 of projector 0 says first of a vbucket of the bucket `b`."""
    known = {"bucket": "b", "projector": 0, "connection": 1, "ordinal": 0, "vbuuid": 0}
    return Sync(vbucket=vbucket, **(known | {"seqno": 0, "at_ms": 0} | fields))
