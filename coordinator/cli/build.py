"""`indexctl build`: have indexes built, and watch them being built."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from coordinator.cli.lookup import refuse_statement
from coordinator.cli.output import CommandError

if TYPE_CHECKING:
    from coordinator.client.client import Client

PERIOD_S = 0.5
UNDERWAY = ("init", "ready", "pending", "backfill")


def begin(client: Client, bucket: str | None, names: Sequence[str]) -> dict[str, Any]:
    """Ask for a build: of these names or ids, or of all deferred indexes of the bucket.

    A name without a bucket must be an id, or `bucket.name`.
    """
    ids = [name for name in names if bucket is None and name.isdecimal()]
    rest = [name for name in names if name not in ids]
    if not bucket and rest:
        buckets = {name.partition(".")[0] for name in rest if "." in name}
        if ids or len(buckets) != 1 or not all("." in name for name in rest):
            refuse_statement("build", *rest)
            raise CommandError("usage", "in which bucket? Give --bucket, bucket.name, or ids")
        bucket = buckets.pop()
        rest = [name.partition(".")[2] for name in rest]
    if ids:
        return client.build_indexes(ids=ids)
    if not bucket:
        raise CommandError(
            "usage", "which indexes? Name them, or give --bucket for all deferred ones"
        )
    return client.build_indexes(bucket=bucket, names=rest)


def underway(client: Client, bucket: str) -> list[dict[str, Any]]:
    """Return the indexes of a bucket that are being built, whoever asked for it."""
    indexes: list[dict[str, Any]] = client.list_indexes(bucket)["indexes"]
    return [index for index in indexes if index["state"] in ("pending", "backfill")]


def watch(
    client: Client, indexes: Sequence[dict[str, Any]], *, deadline_s: float | None, quiet: bool
) -> list[dict[str, Any]]:
    """Wait until all of them take scans or have failed; return them. A bar shows on a terminal.

    CommandError `timeout`: it takes longer than `deadline_s`; the building goes on.
    """
    states = _states(client, [index["id"] for index in indexes], deadline_s)
    show = _silently if quiet or not sys.stderr.isatty() else _with_bars
    return show(states)


def _states(
    client: Client, ids: Sequence[str], deadline_s: float | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the indexes again and again, until none of them is under way. One may be dropped."""
    from coordinator.client.errors import CoordinatorError

    began = time.monotonic()
    while True:
        found = []
        for index_id in ids:
            try:
                found.append(client.get_index(index_id, consistency="local")["index"])
            except CoordinatorError as error:
                if error.code != "index_not_found":
                    raise
        yield found
        if not any(index["state"] in UNDERWAY for index in found):
            return
        if deadline_s is not None and time.monotonic() - began > deadline_s:
            waiting = ", ".join(i["name"] for i in found if i["state"] in UNDERWAY)
            raise CommandError(
                "timeout", f"{waiting}: not built in {deadline_s:g} s; the build goes on"
            )
        time.sleep(PERIOD_S)


def _silently(states: Iterator[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return deque(states, maxlen=1)[0]


def _with_bars(states: Iterator[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Show a bar for each index while it is built."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    last: list[dict[str, Any]] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%  {task.fields[how]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}
        for last in states:
            for index in last:
                if index["id"] not in tasks:
                    tasks[index["id"]] = bars.add_task(index["name"], total=100, how="")
                done = 100 if index["state"] == "maintenance" else percent_of(index)
                bars.update(tasks[index["id"]], completed=done, how=how(index))
    return last


def percent_of(index: dict[str, Any]) -> float:
    """Return how much of a build is done; the last step is taken by the indexers."""
    progress = index.get("progress")
    return min(99.0, progress["percent"]) if progress else 0.0


def how(index: dict[str, Any]) -> str:
    """Return how an index's build goes, in a few words; empty where none is under way."""
    progress = index.get("progress")
    if not progress:
        return "" if index["state"] != "error" else f"failed: {index['reason']}"
    if index["state"] == "pending":
        return "waiting for the projectors"
    parts = [f"{percent_of(index):.0f} %"]
    if progress["documents_per_s"]:
        parts.append(f"{progress['documents_per_s']:,} documents/s")
    if progress["remaining"] and progress["remaining_s"] is not None:
        parts.append(f"{progress['remaining_s']:.0f} s left")
    return ", ".join(parts)
