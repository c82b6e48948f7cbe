"""What a scan tells where no indexer of a slice answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.keys.key_order import order_of
from coordinator.core.keys.scan_pages import MEDIA_TYPE, Page, pack
from coordinator.core.keys.scans import cover_of, slices_of
from coordinator.core.model.entities import Slice
from coordinator.http.calls import Calls, Reply, Silent
from coordinator.http.scatter import ScanFailed, Scatter
from tests.support.indexes import make_index
from tests.support.scatters import make_asked


class Answering(Calls):
    """Calls to indexers that have nothing, unless they are down: the host is the port."""

    def __init__(self, *down: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self._down = down

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        host = url.split("/")[2]
        self.asked.append(host)
        if host in self._down:
            raise Silent("refused")
        return Reply(200, MEDIA_TYPE, pack(Page([])))


def asked_of(*down: str, heard: Collection[int]) -> list[str]:
    """Return who was asked: `a` has the master copy, `b` the replica. Raises ScanFailed."""
    calls, address = Answering(*down), {1: "http://a", 2: "http://b"}.get
    scatter = Scatter(calls=calls, asked=make_asked(), address=address, is_heard=heard.__contains__)
    asyncio.run(scatter.rows())
    return calls.asked


def test_who_was_not_heard_lately_is_asked_where_nobody_else_answers() -> None:
    assert asked_of(heard=(1, 2)) == ["a"]
    assert asked_of(heard=(2,)) == ["b"]
    assert asked_of("b", heard=(2,)) == ["b", "a"]
    assert asked_of(heard=()) == ["a"], "all of them, or this node, may have been slow"


def test_who_was_not_heard_and_does_not_answer_is_not_alive() -> None:
    with pytest.raises(ScanFailed) as caught:
        asked_of("a", "b", heard=(2,))
    assert caught.value.code == "slice_unavailable"
    assert caught.value.details["indexers"] == {"1": "not alive: refused", "2": "refused"}


class Refusing(Calls):
    """Calls to indexers that refuse, each with a code of its own: the host is the port."""

    def __init__(self, codes: dict[str, str]) -> None:
        super().__init__()
        self._codes = codes

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        error = {"error": {"code": self._codes[url.split("/")[2]], "message": "no"}}
        return Reply(503, "application/json", json.dumps(error).encode())


def failure(**codes: str) -> ScanFailed:
    """Return how a scan fails of an index with one slice on `a` and a replica on `b`."""
    asked = make_asked()
    address: Any = {1: "http://a", 2: "http://b"}.get
    calls = Refusing(codes)
    scatter = Scatter(calls=calls, asked=asked, address=address, is_heard=bool)
    with pytest.raises(ScanFailed) as caught:
        asyncio.run(scatter.rows())
    return caught.value


@pytest.mark.parametrize("other", ["index_recovering", "index_building", "slice_not_here"])
def test_an_index_that_one_has_released_may_be_replaced_whatever_the_other_says(other: str) -> None:
    """Its storage is given up there as well, and may say until then that it opens again."""
    assert failure(a="index_not_found", b=other).is_gone
    assert failure(a=other, b="index_not_found").is_gone


def test_a_slice_that_one_has_released_may_have_moved() -> None:
    found = failure(a="index_recovering", b="slice_not_here")
    assert (found.code, found.is_gone) == ("index_recovering", True)


def test_an_index_that_nobody_has_released_is_not_replaced() -> None:
    found = failure(a="index_recovering", b="unreachable")
    assert (found.code, found.is_gone) == ("index_recovering", False)


@pytest.mark.parametrize("consistency", ["any", {"consistent": 0}])
def test_bounds_that_are_the_wrong_way_round_have_no_slice_and_no_rows(consistency: Any) -> None:
    index = replace(
        make_index(1),
        partitioning="range",
        bounds_json='[["m"]]',
        slices=(Slice(0, 1), Slice(1, 2)),
    )
    cover = cover_of({"range": {"low": ["z"], "high": ["a"]}}, order_of(index))
    assert slices_of(index, cover) == ()
    asked = replace(
        make_asked(consistency=consistency),
        index=index,
        holders=(index,),
        slices=(),
        bounds=cover.bounds,
    )
    scatter = Scatter(calls=Calls(), asked=asked, address=lambda _: None, is_heard=lambda _: True)
    assert asyncio.run(scatter.rows()).entries == []
    assert asyncio.run(scatter.count()).counted == 0
