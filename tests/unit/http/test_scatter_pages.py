"""What a scan makes of the pages of indexers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.keys.scan_pages import MEDIA_TYPE, Page, pack
from coordinator.core.model.entities import Slice
from coordinator.http import scatter as module
from coordinator.http.calls import Calls, Reply
from coordinator.http.scatter import Scatter
from tests.support.indexes import make_index
from tests.support.scatters import make_asked


class Told(Calls):
    """Calls to indexers that answer what is told of them: who is asked, and what."""

    def __init__(self, page: Callable[[int, dict[str, Any]], Page]) -> None:
        super().__init__()
        self._page = page

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        asked = json.loads(body)
        return Reply(200, MEDIA_TYPE, pack(self._page(asked["indexer"], asked)))


def scatter_of(page: Callable[[int, dict[str, Any]], Page], **more: Any) -> Scatter:
    """Return a scan of an index with a slice on each of two indexers."""
    index = make_index(1, slices=(Slice(0, 1, ()), Slice(1, 2, ())))
    asked = replace(make_asked(**more), index=index, holders=(index,), slices=(0, 1))
    return Scatter(calls=Told(page), asked=asked, address=str, is_heard=bool)


def test_a_count_goes_on_where_an_indexer_stopped_counting() -> None:
    def page(indexer: int, body: dict[str, Any]) -> Page:
        pages = {None: Page([b"m"], True, 5), b"m".hex(): Page([b"q"], True, 5)}
        last = Page([], False, 2)
        return last if indexer == 1 else pages.get(body["after"], last)

    assert asyncio.run(scatter_of(page).count()).counted == 2 + 5 + 5 + 2


def test_a_scan_reads_at_the_newest_timestamp_that_all_indexers_hold() -> None:
    held = {1: (3, 5, 7), 2: (3, 4, 5)}

    def page(indexer: int, body: dict[str, Any]) -> Page:
        number = body["consistency"]["consistent"] or held[indexer][-1]
        return Page([b"%d at %d" % (indexer, number)], False, 0, number, number, held[indexer])

    found = asyncio.run(scatter_of(page, consistency={"consistent": 0}).rows())
    assert (found.entries, found.number, found.hash) == ([b"1 at 5", b"2 at 5"], 5, 5)


def test_a_scan_of_which_not_all_had_room_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What had no room was released: it would be missed."""
    entries = [b"%03d" % n for n in range(9)]

    def page(indexer: int, body: dict[str, Any]) -> Page:
        return Page(entries[indexer - 1 :: 2], True)

    scatter = scatter_of(page)
    asyncio.run(scatter.rows())
    assert scatter.go_on(scatter.asked), "all had room"
    monkeypatch.setattr(module, "ROWS_BYTES_MAX", 8)
    scatter = scatter_of(page)
    found = asyncio.run(scatter.rows())
    assert (found.entries, found.more) == (entries[:3], True)
    assert not scatter.go_on(scatter.asked)


def test_indexers_are_told_what_they_must_have_undone_and_whether_an_old_snapshot_will_do() -> None:
    told: list[tuple[Any, ...]] = []

    def page(indexer: int, body: dict[str, Any]) -> Page:
        told.append((body["indexer"], body["rollback"], body["last_good"]))
        return Page([], number=3, hash=4, held=(3,))

    more = {"rollback": 2**60, "last_good": True, "consistency": {"consistent": 0}}
    found = asyncio.run(scatter_of(page, **more).rows())
    assert told == [(1, str(2**60), True), (2, str(2**60), True)]
    assert (found.number, found.hash) == (3, 4)
