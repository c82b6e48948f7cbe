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
