"""What a node asks of indexers for the consistency of a scan, for the first page and later ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.core.keys.scans import Cursor, ScanError
from coordinator.core.model.entities import Bucket
from coordinator.http.errors import ApiError
from coordinator.http.scan import (
    ScanBody,
    _check_goes_on,
    _check_vbuckets,
    _consistency,
    _with_positions,
)
from tests.support.indexes import make_index

DIGEST = b"8 bytes."
VECTOR = {"vbuckets": {"0": ["1", "2"]}}


def body_of(consistency: Any) -> ScanBody:
    return ScanBody.model_validate({"index": 1, "consistency": consistency})


def cursor(number: int) -> Cursor:
    return Cursor(1, DIGEST, number, 0, b"entry")


def test_a_later_page_is_read_at_the_timestamp_of_the_first() -> None:
    for newest in ("consistent", "last_good", {"consistent": 0}):
        assert _consistency(body_of(newest), None) == {"consistent": 0}
        assert _consistency(body_of(newest), cursor(7)) == {"consistent": 7}
    assert _consistency(body_of({"consistent": 7}), cursor(7)) == {"consistent": 7}
    both = _consistency(body_of({"consistent": 0, "at_least": VECTOR}), cursor(7))
    assert (both.keys(), both["consistent"]) == ({"consistent", "at_least"}, 7)
    assert _consistency(body_of("any"), cursor(0)) == "any"


@pytest.mark.parametrize(
    ("consistency", "number", "goes_on"),
    [
        ("any", 0, True),
        ("any", 7, False),
        ("consistent", 7, True),
        ("consistent", 0, False),
        ({"consistent": 7}, 7, True),
        ({"consistent": 8}, 7, False),
        ({"at_least": VECTOR}, 0, True),
        ({"at_least": VECTOR}, 7, False),
    ],
)
def test_a_cursor_goes_on_with_the_consistency_that_it_was_made_under(
    consistency: Any, number: int, goes_on: bool
) -> None:
    body = body_of(consistency)
    if goes_on:
        _check_goes_on(body, cursor(number), DIGEST)
    else:
        with pytest.raises(ScanError, match="repeat its `consistency`"):
            _check_goes_on(body, cursor(number), DIGEST)


def shell_with(vbuckets: int) -> Any:
    """Return a node that knows index 1, of a topic with so many partitions."""
    index = SimpleNamespace(entity=make_index(1, bucket="b"))
    bucket = SimpleNamespace(entity=Bucket("b", vbuckets, topic="t"))
    state = SimpleNamespace(named_by_id=lambda _: index, bucket=lambda _: bucket)
    positions = SimpleNamespace(branches=lambda _, partitions: {p: 70 + p for p in partitions})
    return SimpleNamespace(node=SimpleNamespace(state=state), positions=positions)


def test_the_offset_of_a_record_is_the_seqno_behind_it() -> None:
    asked = body_of({"consistent": 0, "at_least": {"offsets": {"1": 41, "0": 0}}})
    found = asyncio.run(_with_positions(shell_with(2), asked))
    at_least = {"vbuckets": {"0": (70, 1), "1": (71, 42)}}
    assert _consistency(found, None) == {"consistent": 0, "at_least": at_least}


def test_the_first_vbucket_that_there_is_not_is_refused() -> None:
    """Indexers would wait for it, until the scan has no time left."""
    index = make_index(1, bucket="b")
    by_offset = body_of({"at_least": {"offsets": {"1": 41}}})
    by_seqno = body_of({"at_least": {"vbuckets": {"1": ["1", "2"]}}})
    asyncio.run(_with_positions(shell_with(2), by_offset))
    _check_vbuckets(shell_with(2), index, by_seqno)
    with pytest.raises(ApiError, match="has 1 partitions, and no 1"):
        asyncio.run(_with_positions(shell_with(1), by_offset))
    with pytest.raises(ApiError, match="has 1 vbuckets, and no 1"):
        _check_vbuckets(shell_with(1), index, by_seqno)
