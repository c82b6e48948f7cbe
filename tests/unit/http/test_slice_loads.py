"""What indexers tell of their slices is shown, and what cannot be told is not taken for it."""

from __future__ import annotations

from typing import Any

from coordinator.core.catalog.loads import Load
from coordinator.core.consensus import inputs
from coordinator.core.model.records import SliceLoad, SliceLoads
from coordinator.http import views
from tests.support.lone_node import INDEXER, LoneNode


def shown(one: LoneNode, number: int = INDEXER) -> Any:
    rows = views.indexers(one.node)["indexers"]
    return next((row["load"] for row in rows if row["id"] == number), None)


def test_the_loads_that_were_told_last_are_shown() -> None:
    one = LoneNode(serves=True).start().run(2_000)
    assert shown(one) is None
    for entries in (7, 8):
        loads = (SliceLoad(2**40, 3, entries, 900, 2), SliceLoad(5, 0, 1, 100, 0))
        one.feed(inputs.BeatsRead((SliceLoads(INDEXER, 1, loads, 4, 5),)))
    assert shown(one)["left_out"] == 4
    assert shown(one)["slices"][0] == {
        "index": str(2**40),
        "slice": 3,
        "entries": 8,
        "bytes": 900,
        "mutations_per_second": 2,
    }
    told = one.node.peers.reported[INDEXER]
    assert told[:2] == (2, Load(9, 1_000, 2))
    assert {i: each[:2] for i, each in told.of_index.items()} == {
        2**40: (1, Load(8, 900, 2)),
        5: (1, Load(1, 100, 0)),
    }


def test_odd_loads_do_no_harm() -> None:
    one = LoneNode(serves=True).start().run(2_000)
    odd = SliceLoads(INDEXER, 1, (SliceLoad(1, 1, -5, -(2**60), -1),), -1, 0)
    one.feed(inputs.BeatsRead((odd, SliceLoads(9_999, 1, (), 0, 0), SliceLoads(7, 1, (), 0, 0))))
    assert one.node.peers.reported[INDEXER][:2] == (1, Load(0, 0, 0))
    assert set(one.node.peers.loads) == {INDEXER, 7}
