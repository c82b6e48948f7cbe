"""Keep a copy of the state in SQLite, whatever dies: `python examples/topology_copy.py FILE`.

Each transaction of the coordinator becomes one transaction of SQLite, together with its CAS. So the
copy is always the state of some CAS, and whoever starts this again, after any crash, goes on after
that CAS without a gap. The view `slices` names the indexer of each slice's master copy. Set
INDEXCTL_URL to the nodes, with commas. It prints the CAS of the copy again and again, also while
nothing changes; Ctrl-C ends it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError

TABLES = """
CREATE TABLE IF NOT EXISTS entities (key TEXT PRIMARY KEY, cas INTEGER, value TEXT);
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), cas INTEGER);
DROP VIEW IF EXISTS slices;
CREATE VIEW slices AS
    SELECT json_extract(held.value, '$.bucket') AS bucket,
        json_extract(held.value, '$.name') AS name,
        json_extract(slice.value, '$.slice') AS slice,
        json_extract(slice.value, '$.master') AS indexer
    FROM entities AS held, json_each(held.value, '$.topology.slices') AS slice
    WHERE held.key LIKE 'index/%' AND indexer <> -1
        AND (json_extract(held.value, '$.part_of') IS NULL
            OR json_extract(held.value, '$.state') = 'maintenance');
"""

Event = dict[str, Any]


def main(file: str) -> None:
    """Follow all changes, for ever."""
    copy = sqlite3.connect(file)
    copy.executescript(TABLES)
    with Client() as client:
        try:
            follow(copy, client.watch(position_of(copy) or "snapshot"))
        except CoordinatorError as error:
            if error.code != "compacted":
                raise
            # Away for so long that the history has been cut: begin anew.
            follow(copy, client.watch("snapshot"))


def position_of(copy: sqlite3.Connection) -> int:
    """Return the CAS that the copy has, 0 if it has none."""
    row = copy.execute("SELECT cas FROM position").fetchone()
    return int(row[0]) if row else 0


def follow(copy: sqlite3.Connection, events: Iterable[Event]) -> None:
    """Write what comes, a transaction at a time."""
    for cas, is_snapshot, group in transactions(events):
        with copy:
            if is_snapshot:
                copy.execute("DELETE FROM entities")
            for event in group:
                if event.get("dropped"):
                    copy.execute("DELETE FROM entities WHERE key = ?", [event["key"]])
                else:
                    row = [event["key"], event["cas"], json.dumps(event["value"])]
                    copy.execute("INSERT OR REPLACE INTO entities VALUES (?, ?, ?)", row)
            copy.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", [cas])
        print(f"CAS {cas}", flush=True)


def transactions(events: Iterable[Event]) -> Iterator[tuple[int, bool, list[Event]]]:
    """Yield the CAS of each transaction, whether it is a snapshot, and its changes.

    A transaction is whole when another begins, or when a bookmark says that all before it was told.
    """
    group: list[Event] = []
    for event in events:
        if event["type"] == "snapshot_restart":
            group = []
            continue
        if event["type"] in ("bookmark", "snapshot_end"):
            yield event["cas"], event["type"] == "snapshot_end", group
            group = []
            continue
        if group and group[-1]["txn"] != event["txn"]:
            yield group[-1]["cas"], False, group
            group = []
        group.append(event)


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) == 2 else sys.exit(__doc__))
    except KeyboardInterrupt:
        sys.exit(130)
    except CoordinatorError as refused:
        # No node has answered until the deadline of the client: start it again, it goes on.
        sys.exit(str(refused))
