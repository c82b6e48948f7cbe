"""`indexctl timestamps`: how far stability has come in each bucket, once or again and again."""

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.moments import TIME, how_long, moment, ms_of
from coordinator.cli.output import CommandError, console, plain, print_json, print_table, table
from coordinator.cli.session import Session, command

if TYPE_CHECKING:
    from coordinator.client.client import Client

PERIOD_S = 1.0
PAGE = 100
COLUMNS = [
    *("bucket", "number#", "age#", "stability#", "current#", "lag#", "lag in s#"),
    *("snapshots", "owners", "remarks"),
]


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "timestamps")(timestamps)


def timestamps(
    session: Session,
    bucket: Annotated[
        str | None, typer.Argument(metavar="BUCKET", help="Only this one (default: all).")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="Show the timestamps that BUCKET had in the last seven days, newest first.",
        ),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="With --history: show at most this many.")
    ] = 20,
    until: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help=f"With --history: none later than this: {TIME}."),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append each refresh as a line of JSON, for `plot`."),
    ] = None,
) -> None:
    """Show the stability timestamp of each bucket, and its lag.

    stability: the sum of its seqnos. current: the sum of the seqnos that projectors have sent or
    indexers hold, the higher of the two. lag: the difference. snapshots: how many indexers have
    taken a snapshot at the timestamp. owners: the projectors that stream, each with its connection
    and the number of its vbuckets.

    With --watch and --json, each line is one document.
    """
    with session.connect() as client:
        if history:
            if bucket is None:
                raise CommandError("usage", "of which bucket is the history? Give BUCKET")
            _show_history(session, client, bucket, limit, until)
            return
        if until is not None:
            raise CommandError("usage", "--until needs --history")
        if not watch:
            found = next(_recorded(iter([gather(client, bucket)]), record))
            if session.json:
                print_json(found)
            else:
                print_table(COLUMNS, _rows(found), empty="no buckets")
            return
        with suppress(KeyboardInterrupt):
            _watch(session, _recorded(_again(client, bucket), record))


def _show_history(
    session: Session, client: "Client", bucket: str, limit: int, until: str | None
) -> None:
    to_ms = None if until is None else ms_of(until, "--until", TIME)
    found: list[dict[str, Any]] = []
    before: int | None = None
    while len(found) < limit:
        page = client.stability_history(
            bucket, before=before, limit=min(PAGE, limit - len(found)), to_ms=to_ms
        )
        found += page["timestamps"]
        before = page["next"]
        if before is None:
            break
    if session.json:
        for row in found:
            typer.echo(json.dumps(row))
        return
    print_table(
        ["number#", "time", "stability#", "hash"],
        [[row["number"], moment(row["at_ms"]), row["seqnos"], row["hash"]] for row in found],
        empty="no timestamps",
    )


def gather(client: "Client", bucket: str | None) -> dict[str, Any]:
    """Return `{"node", "buckets"}` as the master has it, or any node where none answers.

    CommandError `not_found`: there is no such bucket.
    """
    from coordinator.client.errors import UnavailableError

    found = None
    master = _master(client)
    if master:
        with suppress(UnavailableError):
            found = client.stability(node=master)
    found = found or client.stability()
    if bucket is None:
        return found
    buckets = [row for row in found["buckets"] if row["bucket"] == bucket]
    if not buckets:
        raise CommandError("not_found", f"there is no bucket {bucket}", {"bucket": bucket})
    return {**found, "buckets": buckets}


def _master(client: "Client") -> str | None:
    """Return the URL of the master: only that one knows what the indexers hold."""
    members = client.members()
    return next(
        (m["address"] for m in members["members"] if m["node"] == members["master"] and m["alive"]),
        None,
    )


def _again(client: "Client", bucket: str | None) -> Iterator[dict[str, Any]]:
    """Yield what there is, every second; while nobody answers, an `{"error"}`, but not at first."""
    from coordinator.client.errors import UnavailableError

    yield gather(client, bucket)
    while True:
        time.sleep(PERIOD_S)
        try:
            yield gather(client, bucket)
        except UnavailableError as error:
            yield {"error": {"code": error.code, "message": error.message}}


def _recorded(found: Iterator[dict[str, Any]], record: Path | None) -> Iterator[dict[str, Any]]:
    """Yield each, having appended it to the file with the time, `at_ms`, if there is a file.

    CommandError `unwritable`.
    """
    for body in found:
        if record is not None:
            line = json.dumps({"at_ms": time.time_ns() // 1_000_000, **body}) + "\n"
            try:
                with record.open("a", encoding="utf-8") as file:
                    file.write(line)
            except OSError as error:
                raise CommandError("unwritable", f"{record}: {error.strerror}") from error
        yield body


def _watch(session: Session, found: Iterator[dict[str, Any]]) -> None:
    """Show each: in place on a terminal, one after the other elsewhere."""
    from rich.live import Live

    shown = console()
    live = None
    if shown.is_terminal and not session.json:
        live = Live(console=shown, auto_refresh=False)
    with live or nullcontext():
        for body in found:
            if session.json:
                typer.echo(json.dumps(body))
            elif "error" in body:
                _say(plain(body["error"]["message"]), live)
            elif live is not None:
                live.update(table(COLUMNS, _rows(body)), refresh=True)
            else:
                print_table(COLUMNS, _rows(body), empty="no buckets")


def _say(message: str, live: Any) -> None:
    if live is None:
        typer.echo(message, err=True)
    else:
        from rich.text import Text

        live.update(Text(message), refresh=True)


def _rows(found: dict[str, Any]) -> list[list[Any]]:
    return [_row(bucket) for bucket in found["buckets"]]


def _row(bucket: dict[str, Any]) -> list[Any]:
    stable = bucket["stability"] or {"number": None, "age_ms": None, "seqnos": None}
    lag = bucket["lag"] or {"high": None, "seqnos": None, "ms": None, "indexers": []}
    behind, behind_ms = lag_of(bucket)
    sent = bucket.get("current") or {"seqnos": None}
    current = max((n for n in (sent["seqnos"], lag["high"]) if n is not None), default=None)
    return [
        *(bucket["bucket"], stable["number"], how_long(stable["age_ms"]), stable["seqnos"]),
        *(current, behind, None if behind_ms is None else f"{behind_ms / 1000:.1f}"),
        _snapshots(lag["indexers"]),
        "\n".join(map(_owner, sorted(bucket.get("owners", ()), key=itemgetter("projector")))),
        "; ".join(_remarks(bucket, lag["indexers"])),
    ]


def lag_of(bucket: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return how far a timestamp is behind, in seqnos and milliseconds; None: that is not known.

    It is behind what was sent, and what indexers hold: Spark may not have read what they do.
    """
    stable, current, lag = bucket["stability"], bucket.get("current"), bucket["lag"]
    known: list[tuple[int, int | None]] = []
    if stable is not None and current is not None:
        seqnos = max(0, current["seqnos"] - stable["seqnos"])
        known.append((seqnos, max(0, current["at_ms"] - stable["at_ms"]) if seqnos else 0))
    if stable is not None and lag is not None and lag["seqnos"] is not None:
        known.append((lag["seqnos"], lag["ms"]))
    return max(known, key=itemgetter(0), default=(None, None))


def _owner(owner: dict[str, Any]) -> str:
    return f"{owner['projector']}: {owner['connection']} ({owner['vbuckets']})"


def _snapshots(indexers: list[dict[str, Any]]) -> str:
    have = sum(indexer["has_snapshot"] for indexer in indexers)
    return f"{have} of {len(indexers)}" if indexers else ""


def _remarks(bucket: dict[str, Any], indexers: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what an operator should look at."""
    if bucket["began_again"]:
        yield f"timestamps ignored: numbers restarted at {bucket['began_again']['number']}"
    for indexer in indexers:
        if indexer["branched"]:
            yield f"indexer {indexer['indexer']}: other branch in {indexer['branched']} vbuckets"
