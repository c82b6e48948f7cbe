"""What the API shows of timestamps is what its description says, and loses no digit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coordinator.core.catalog.state import Versioned
from coordinator.core.model.entities import Source, Stream
from coordinator.core.model.records import BucketCurrent, StreamOwner, TimestampsHeartbeat
from coordinator.core.model.stream_records import (
    SYNC_MISSING,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.model.types import Instant
from coordinator.core.model.vectors import Vector
from coordinator.core.timestamps.board import EMPTY, BucketBoard, fold, of
from coordinator.http import models
from coordinator.http.timestamp_views import Row, restart, stabilities, stability
from tests.support.indexes import make_watermarks

TOP = 2**64 - 1
NOW_MS = 10_000
PLACES = Vector([TOP, 7], [TOP, 0]).to_bytes()
APPLICATION = TimestampsHeartbeat(
    incarnation=1,
    pid=1,
    batch=1,
    at_ms=9_200,
    currents=(BucketCurrent("a", "1"), BucketCurrent("b", str(2**70)), BucketCurrent("c", "none")),
    owners=(StreamOwner("a", 1, 1, 1, 1), StreamOwner("b", 2**62, 1, 6, 2)),
)
STABLE = StabilityTimestamp("b", 41, *PLACES, 9_000)


def known() -> BucketBoard:
    board = EMPTY
    for record in (
        STABLE,
        StabilityTimestamp("b", 40, *PLACES, 9_500),
        RestartTimestamp(
            bucket="b",
            number=1,
            round=5,
            vbuckets=(3, 1),
            vbuuids=PLACES[0],
            seqnos=PLACES[1],
            branched=(1,),
            projectors=(0,),
            reason="closed",
            at_ms=20_000,
        ),
        RestartTimestamp(
            bucket="b",
            number=2,
            round=0,
            vbuckets=(),
            vbuuids=b"",
            seqnos=b"",
            branched=(),
            projectors=(),
            reason="asked",
            at_ms=1_000,
        ),
        RollbackEnquiry(
            bucket="b",
            number=3,
            vbucket=9,
            vbuuid=TOP,
            seqno=1,
            seen_vbuuid=7,
            seen_seqno=TOP,
            projector=1,
            connection=2**63 - 1,
            reason=SYNC_MISSING,
            at_ms=9_000,
        ),
    ):
        board = fold(board, record, Instant(0, 0)).board
    return of(board, "b")


def test_a_timestamp_is_shown_with_every_place() -> None:
    shown = stability(STABLE, NOW_MS)
    assert json.loads(models.StabilityAnswer(**shown).model_dump_json()) == shown | {
        "vbuckets": {"0": [str(TOP), str(TOP)], "1": ["7", "0"]}
    }
    assert (shown["age_ms"], shown["digest"]) == (
        1_000,
        f"{Vector([TOP, 7], [TOP, 0]).digest():016x}",
    )


def test_buckets_are_shown_with_and_without_what_is_known_of_them() -> None:
    stream = Stream("b", 6, (Source(0, 1, 5), Source(1, 2, 6)), b"", b"", "")
    digest = Vector([TOP, 7], [TOP, 0]).digest()
    beat = make_watermarks(3, PLACES, last_stability=digest, at_ms=9_100)
    rows = [
        Row("b", 2, known(), Versioned(1, b"", stream), [beat], APPLICATION),
        Row("c", None, BucketBoard(), None, [], APPLICATION),
        Row("d", 8, BucketBoard(), None, None),
    ]
    shown = stabilities(4, rows, NOW_MS)
    assert json.loads(models.StabilitiesAnswer(**shown).model_dump_json()) == shown
    first, *others = shown["buckets"]
    assert (first["stability"]["number"], first["stability"]["seqnos"]) == (41, TOP)
    assert first["began_again"] == {"number": 40, "at_ms": 9_500, "age_ms": 500}
    assert first["projectors"] == [{"projector": 0, "number": 5}, {"projector": 1, "number": 6}]
    assert (first["lag"]["high"], first["lag"]["seqnos"]) == (TOP, 0)
    lags = first["lag"]["indexers"]
    assert [(r["has_snapshot"], r["snapshot"]) for r in lags] == [(True, f"{digest:016x}")]
    assert [row["persisted"] for row in lags] == [None]
    assert first["current"] == {"seqnos": 2**70, "at_ms": 9_200, "age_ms": 800}
    owner = {"connection": str(2**62), "projector": 1, "number": 6, "vbuckets": 2}
    assert first["owners"] == [owner]
    for other in others:
        assert (other["current"], other["owners"]) == (None, [])
        assert (other["stability"], other["lag"], other["projectors"]) == (None, None, [])


def test_restarts_and_enquiries_are_shown_newest_first_and_a_clock_that_is_ahead_has_no_age() -> (
    None
):
    shown = restart("b", known(), 10, NOW_MS)
    assert json.loads(models.RestartAnswer(**shown).model_dump_json()) == shown
    assert [(r["number"], r["age_ms"]) for r in shown["restarts"]] == [(2, 9_000), (1, 0)]
    assert shown["restarts"][1]["vbuckets"] == {"3": [str(TOP), str(TOP)], "1": ["7", "0"]}
    [enquiry] = shown["enquiries"]
    assert enquiry["position"] == [str(TOP), "1"]
    assert enquiry["connection"] == str(2**63 - 1)
    assert [r["number"] for r in restart("b", known(), 1, NOW_MS)["restarts"]] == [2]


@pytest.mark.parametrize("seqnos", ["", "-1", "1.0", "٣", "9" * 41, "9" * 5_000])
def test_what_is_no_sum_of_seqnos_is_no_current_timestamp(seqnos: str) -> None:
    """Whoever writes to `heartbeat` says it: it must not keep the others from being shown."""
    beat = replace(APPLICATION, currents=(BucketCurrent("b", seqnos),), owners=())
    (shown,) = stabilities(1, [Row("b", 2, known(), None, None, beat)], NOW_MS)["buckets"]
    assert shown["current"] is None
    assert shown["stability"] is not None
