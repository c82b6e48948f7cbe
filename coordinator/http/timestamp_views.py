"""What the API shows of timestamps, as JSON values. Reads only.

vbuuids and seqnos are unsigned 64-bit numbers: they are decimal strings wherever they stand alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinator.core.catalog.state import Versioned
from coordinator.core.model.entities import Stream
from coordinator.core.model.records import TimestampsHeartbeat
from coordinator.core.model.stream_records import (
    HwHeartbeat,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.board import BucketBoard, IndexerLag, lag, total

SUM = re.compile(r"[0-9]{1,40}")
"""A sum of seqnos: nobody has so many vbuckets that it has more digits, and Python reads no number
of some thousands."""


class Row(NamedTuple):
    """What is known of a bucket; `watermarks` is None where the node is not the master.

    `beat` is the last one of the application on Spark, None while it is away.
    """

    bucket: str
    vbuckets: int | None
    known: BucketBoard
    stream: Versioned | None
    watermarks: list[HwHeartbeat] | None
    beat: TimestampsHeartbeat | None = None


def stabilities(node: int, rows: Sequence[Row], now_ms: int) -> dict[str, Any]:
    """Return the newest stability timestamp of every bucket, without its vector."""
    return {"node": node, "buckets": [_row(row, now_ms) for row in rows]}


def _row(row: Row, now_ms: int) -> dict[str, Any]:
    held = row.known.stability.record if row.known.stability else None
    backwards = row.known.backwards
    return {
        "bucket": row.bucket,
        "vbuckets": row.vbuckets,
        "stability": _header(held, now_ms) if held else None,
        "began_again": _when(backwards.number, backwards.at_ms, now_ms) if backwards else None,
        "current": _current(row, now_ms),
        "owners": _owners(row),
        "projectors": _projectors(row.stream),
        "lag": _lag(held, row.watermarks),
    }


def _when(number: int, at_ms: int, now_ms: int) -> dict[str, Any]:
    return {"number": number, "at_ms": at_ms, "age_ms": max(0, now_ms - at_ms)}


def _header(record: StabilityTimestamp, now_ms: int) -> dict[str, Any]:
    vector = Vector.from_bytes(record.vbuuids, record.seqnos)
    return {
        **_when(record.number, record.at_ms, now_ms),
        "digest": _hash(vector.digest()),
        "seqnos": total(vector.seqnos),
    }


def _current(row: Row, now_ms: int) -> dict[str, Any] | None:
    """Return up to where everything was sent, as the application knows it."""
    beat = row.beat
    if beat is None:
        return None
    for current in beat.currents:
        if current.bucket == row.bucket and SUM.fullmatch(current.seqnos):
            age_ms = max(0, now_ms - beat.at_ms)
            return {"seqnos": int(current.seqnos), "at_ms": beat.at_ms, "age_ms": age_ms}
    return None


def _owners(row: Row) -> list[dict[str, Any]]:
    """Return which connections stream the bucket, as the application knows it."""
    return [
        {
            "connection": str(owner.connection),
            "projector": owner.projector,
            "number": owner.number,
            "vbuckets": owner.vbuckets,
        }
        for owner in (row.beat.owners if row.beat else ())
        if owner.bucket == row.bucket
    ]


def _projectors(stream: Versioned | None) -> list[dict[str, Any]]:
    """Return who may stream a bucket, each under the number of a generation."""
    if stream is None or not isinstance(stream.entity, Stream):
        return []
    return [
        {"projector": source.projector, "number": source.number} for source in stream.entity.sources
    ]


def _lag(
    held: StabilityTimestamp | None, watermarks: Sequence[HwHeartbeat] | None
) -> dict[str, Any] | None:
    found = lag(held, watermarks) if watermarks else None
    if found is None:
        return None
    return {
        "high": found.high,
        "seqnos": found.seqnos,
        "ms": found.ms,
        "indexers": [_indexer(row) for row in found.indexers],
    }


def _indexer(row: IndexerLag) -> dict[str, Any]:
    return {
        **row._asdict(),
        "snapshot": _hash(row.snapshot) if row.snapshot else None,
        "persisted": _hash(row.persisted) if row.persisted else None,
    }


def _hash(digest: int) -> str:
    """Return the hash of a vector as all answers have it."""
    return f"{digest:016x}"


def stability(record: StabilityTimestamp, now_ms: int) -> dict[str, Any]:
    """Return a stability timestamp with its vector."""
    vector = Vector.from_bytes(record.vbuuids, record.seqnos)
    return {
        "bucket": record.bucket,
        **_when(record.number, record.at_ms, now_ms),
        "digest": _hash(vector.digest()),
        "vbuckets": places(range(len(vector)), vector),
    }


def published(record: StabilityTimestamp) -> dict[str, Any]:
    """Return a stability timestamp without its vector; `hash` is how a scan names it."""
    digest = Vector.from_bytes(record.vbuuids, record.seqnos).digest()
    return {
        "bucket": record.bucket,
        "number": record.number,
        "at_ms": record.at_ms,
        "hash": _hash(digest),
    }


def stability_history(
    bucket: str, records: Sequence[StabilityTimestamp], next_offset: int | None
) -> dict[str, Any]:
    """Return timestamps of a bucket, in their order, without their vectors."""
    rows = [{**published(record), "seqnos": _seqnos(record)} for record in records]
    return {"bucket": bucket, "timestamps": rows, "next": next_offset}


def _seqnos(record: StabilityTimestamp) -> int:
    return total(Vector.from_bytes(record.vbuuids, record.seqnos).seqnos)


def restart(bucket: str, known: BucketBoard, limit: int, now_ms: int) -> dict[str, Any]:
    """Return at most `limit` of the restart timestamps and of the enquiries, newest first."""
    restarts = [read.record for read in known.restarts[-limit:]]
    enquiries = [read.record for read in known.enquiries[-limit:]]
    return {
        "bucket": bucket,
        "restarts": [_restart(record, now_ms) for record in reversed(restarts)],
        "enquiries": [_enquiry(record, now_ms) for record in reversed(enquiries)],
    }


def _restart(record: RestartTimestamp, now_ms: int) -> dict[str, Any]:
    vector = Vector.from_bytes(record.vbuuids, record.seqnos)
    return {
        **_when(record.number, record.at_ms, now_ms),
        "round": record.round,
        "reason": record.reason,
        "projectors": list(record.projectors),
        "branched": list(record.branched),
        "vbuckets": places(record.vbuckets, vector),
    }


def _enquiry(record: RollbackEnquiry, now_ms: int) -> dict[str, Any]:
    return {
        **_when(record.number, record.at_ms, now_ms),
        "reason": record.reason,
        "vbucket": record.vbucket,
        "position": [str(record.vbuuid), str(record.seqno)],
        "seen": [str(record.seen_vbuuid), str(record.seen_seqno)],
        "projector": record.projector,
        "connection": str(record.connection),
    }


def places(vbuckets: Sequence[int], vector: Vector) -> dict[str, list[str]]:
    """Return `{"0": ["vbuuid", "seqno"], …}`."""
    places = zip(vbuckets, vector.vbuuids.tolist(), vector.seqnos.tolist(), strict=True)
    return {str(vbucket): [str(vbuuid), str(seqno)] for vbucket, vbuuid, seqno in places}
