"""A page of a scan, as an indexer reads it: entries up to its room, or how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.keys.collation import EVERYTHING, Bounds
from indexer_sim.scans import api
from indexer_sim.scans.api import Scan, Wanted, read_page


class Lists:
    """Slices that are lists of entries."""

    number, hash = 7, 9
    held: tuple[int, ...] = (5, 7)

    def __init__(self, slices: dict[int, list[bytes]]) -> None:
        self._slices = slices

    def entries(self, piece: int, bounds: Bounds, *, backwards: bool) -> Iterator[bytes]:
        found = sorted(self._slices[piece], reverse=backwards)
        return (entry for entry in found if entry in bounds)

    def close(self) -> None:
        pass


def make_scan(*slices: int, **more: Any) -> Scan:
    known: dict[str, Any] = {"index_id": 1, "slices": slices, "bounds": EVERYTHING, "after": None}
    known |= {"descending": False, "limit": 10, "count": False, "shard": 0, "build": 0}
    return Scan(**(known | {"wanted": Wanted(), "timeout_ms": 0} | more))


ENTRIES = [b"%05d" % n for n in range(200)]


@given(
    st.sets(st.sampled_from(ENTRIES)),
    st.integers(1, 4),
    st.integers(1, 100),
    st.booleans(),
)
def test_pages_have_every_entry_once_and_the_last_one_says_so(
    entries: set[bytes], slices: int, limit: int, descending: bool
) -> None:
    view = Lists({n: [e for e in entries if e[-1] % slices == n] for n in range(slices)})
    expected = sorted(entries, reverse=descending)
    after: bytes | None = None
    while True:
        page = read_page(
            make_scan(*range(slices), limit=limit, descending=descending, after=after), view
        )
        assert list(page.entries) == expected[:limit]
        expected = expected[limit:]
        assert page.more == bool(expected)
        assert (page.number, page.hash, page.held) == (7, 9, (5, 7))
        if not page.more:
            return
        after = page.entries[-1]


@pytest.mark.parametrize("descending", [False, True])
def test_a_count_goes_on_behind_the_last_entry_that_was_counted(
    monkeypatch: pytest.MonkeyPatch, descending: bool
) -> None:
    monkeypatch.setattr(api, "CHUNK", 30)
    monkeypatch.setattr(api, "COUNT_MAX", 60)
    view, counted, after = Lists({0: ENTRIES}), [], None
    while True:
        page = read_page(make_scan(0, count=True, descending=descending, after=after), view)
        counted.append(page.counted)
        if not page.more:
            break
        (after,) = page.entries
    assert counted == [60, 60, 60, 20]
    assert not page.entries
