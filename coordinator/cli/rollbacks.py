"""`indexctl rollbacks`: which buckets have gone back, or do, to what their store still has."""

import time
from typing import Any

import typer

from coordinator.cli.moments import how_long, moment
from coordinator.cli.output import print_json, print_table
from coordinator.cli.session import Session, command


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "rollbacks")(rollbacks)


def rollbacks(session: Session) -> None:
    """Show the last rollback of each bucket whose store has lost something, newest first.

    vbuckets lost: of how many it was known that they lost changes which an indexer held. took: how
    long the rollback lasted, or has lasted so far. indexers done: how many of the live ones have
    gone back and have everything again; those that are still recovering have gone back.
    """
    with session.connect() as client:
        found = client.list_rollbacks(consistency="linearizable")
    if session.json:
        print_json(found)
        return
    now_ms = time.time_ns() // 1_000_000
    print_table(
        ["bucket", "state", "vbuckets lost#", "began", "took#", "indexers done", "reason"],
        [
            [
                *(row["bucket"], row["state"], len(row["vbuckets"]), moment(row["began_ms"])),
                *(_took(row, now_ms), _done(row["indexers"]), row["reason"]),
            ]
            for row in found["rollbacks"]
        ],
        empty="no rollbacks",
    )


def _took(row: dict[str, Any], now_ms: int) -> str:
    if row["ended_ms"] is not None:
        return str(how_long(row["ended_ms"] - row["began_ms"]))
    return f"{how_long(max(0, now_ms - row['began_ms']))} so far"


def _done(indexers: list[dict[str, Any]] | None) -> str:
    if not indexers:
        return ""
    behind = sum(one["done"] and one["recovering"] for one in indexers)
    done = sum(one["done"] for one in indexers) - behind
    return f"{done} of {len(indexers)}" + (f", {behind} recovering" if behind else "")
