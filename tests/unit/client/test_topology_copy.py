"""The copy of the state in SQLite that an example keeps: what it makes of the events of a watch."""

from __future__ import annotations

import runpy
import sqlite3
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "topology_copy.py"


def test_a_snapshot_without_entities_empties_the_copy() -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    copy = sqlite3.connect(":memory:")
    copy.executescript(example["TABLES"])
    held = {"type": "snapshot", "txn": "", "key": "config/a", "cas": 3, "value": 1}
    example["follow"](copy, [held, {"type": "snapshot_end", "cas": 4}])
    assert copy.execute("SELECT key FROM entities").fetchall() == [("config/a",)]
    example["follow"](copy, [{"type": "bookmark", "cas": 5}])
    assert copy.execute("SELECT key FROM entities").fetchall() == [("config/a",)]
    example["follow"](copy, [{"type": "snapshot_end", "cas": 9}])
    assert copy.execute("SELECT key FROM entities").fetchall() == []
    assert example["position_of"](copy) == 9
    copy.close()


def test_a_slice_that_has_moved_is_where_its_part_is() -> None:
    example: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    copy = sqlite3.connect(":memory:")
    copy.executescript(example["TABLES"])

    def held(number: int, state: str, *masters: int, **more: str) -> dict[str, Any]:
        slices = [{"slice": n, "master": m, "replicas": []} for n, m in enumerate(masters)]
        index = {"bucket": "b", "name": "i", "state": state, "topology": {"slices": slices}}
        key = f"index/{number}"
        return {"type": "snapshot", "txn": "", "key": key, "cas": number, "value": index | more}

    events = [
        held(1, "maintenance", -1, 2),
        held(2, "maintenance", 3, -1, part_of="1"),
        held(3, "backfill", -1, 4, part_of="1"),
    ]
    example["follow"](copy, [*events, {"type": "snapshot_end", "cas": 4}])
    rows = copy.execute("SELECT name, slice, indexer FROM slices ORDER BY slice").fetchall()
    assert rows == [("i", 0, 3), ("i", 1, 2)]
    copy.close()
